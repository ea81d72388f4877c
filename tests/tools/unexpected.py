"""An error that no test expected fails the test in which it happened.

A callback of an event loop, a task or a future that nobody waits for cannot fail a test by raising: asyncio
and tornado log what it raised, and go on. So does our own code where it must not stop. Here every such record
of level ERROR fails the test that runs. What is told when an object is collected (an exception that was never
retrieved) is waited for by collecting after each test in which there was an event loop.

A test that provokes errors says which: ``@pytest.mark.errors("policy .* failed")`` names patterns of their
messages. Each must come, once or more.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import re
from collections.abc import Callable, Generator
from typing import Any

import pytest

#: Loggers of callbacks, tasks and futures, and ours: on schedulers and clients, in notebooks, on workers.
WATCHED = ("asyncio", "tornado.application", "dask_hpc", "dask_hpc_widgets", "distributed.dask_hpc")
#: What no test of ours can help: tornado sets a limit to a connection attempt that distributed has given up.
OTHERS = (r"^asyncio: Future exception was never retrieved\n.*exception=TimeoutError\('Timeout'\)>",)
#: Of the garbage collector: objects made and not given up, and rounds, until it looks.
_THRESHOLDS = (10_000, 10, 10)
#: What a test may name.
MARKER = "errors"


class Unexpected(logging.Handler):
    """The plugin: collects errors from all threads, and looks at them after each test."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._logged: list[str] = []
        self._missing: set[str] = set()
        #: Event loops since the last test, and those that still run.
        self._loops: list[asyncio.BaseEventLoop] = []
        #: How many of them are of earlier tests, and how often the collector has let survivors grow old.
        self._known = self._aged = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Remember what was logged, with its traceback."""
        self._logged.append(f"{record.name}: {self.format(record)}")

    def pytest_configure(self, config: pytest.Config) -> None:
        """Watch from now on."""
        config.addinivalue_line(
            "markers",
            f"{MARKER}(*patterns): errors that the test provokes; any other that is logged fails it",
        )
        for name in WATCHED:
            logging.getLogger(name).addHandler(self)
        begun = asyncio.BaseEventLoop.__init__
        asyncio.BaseEventLoop.__init__ = self._noting(begun)  # type: ignore[method-assign]

    def _noting(self, begun: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(begun)
        def noted(loop: asyncio.BaseEventLoop) -> None:
            begun(loop)
            self._loops.append(loop)

        return noted

    def pytest_unconfigure(self) -> None:
        """Watch no more."""
        asyncio.BaseEventLoop.__init__ = asyncio.BaseEventLoop.__init__.__wrapped__  # type: ignore
        for name in WATCHED:
            logging.getLogger(name).removeHandler(self)

    def pytest_collection_finish(self) -> None:
        """What is there before the first test is not looked through after each."""
        gc.collect()
        gc.freeze()
        # what is found later is found all the same, and looking takes time
        gc.set_threshold(*_THRESHOLDS)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        """Of what is imported nothing becomes garbage that is worth to be looked for."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """A test has its own expectations, and what was logged between tests is nobody's."""
        self._missing = set(_patterns(item))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """The test has passed: did it log what nobody expected?"""
        result = yield
        self._look(item)
        return result

    # the outermost: what others keep of a test, such as records with what was logged, is gone by then
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        """The same for its fixtures, for what it left to be collected, and for what did not come."""
        result = yield
        if self._loops:
            self._collect(last=nextitem is None or nextitem.path != item.path)
        self._look(item)
        if logging.root.manager.disable:
            logging.disable(logging.NOTSET)
            pytest.fail("logging was switched off, for all tests after this one", pytrace=False)
        if self._missing and getattr(item, "passed", False):
            pytest.fail(f"expected errors have not come: {', '.join(sorted(self._missing))}", pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        """Whether the test itself has passed."""
        report = yield
        if call.when == "call":
            item.passed = report.passed  # type: ignore[attr-defined]
        return report

    def _collect(self, last: bool) -> None:
        # not before conftest.py has looked after the environment, which this reads
        from distributed import core

        # it remembers methods of servers, and with them whole clusters, each of whose servers hears all that
        # any other logs: after some hundred tests that took longer than a test
        core._expects_comm.cache_clear()
        # Beside a cluster that the tests of a file share, a test that begins none and makes little has left
        # what it has left among the young: most are such, and going through the cluster took longer.
        young = not last and len(self._loops) == self._known and _aged() == self._aged
        gc.collect(1 if young else 2)
        # Those of clusters that the tests of a file share run on, until its last test. One that still runs
        # then is of a library such as zarr and never ends: each test after it would look through all that
        # those before have left, which took longer than most tests.
        self._loops = [] if last else [loop for loop in self._loops if loop.is_running()]
        if not self._loops:
            # whatever is still there stays: the next test need not look through it
            gc.freeze()
        self._known, self._aged = len(self._loops), _aged()

    def _look(self, item: pytest.Item) -> None:
        logged, self._logged = self._logged, []
        patterns = _patterns(item)
        unexpected = []
        for text in logged:
            found = {pattern for pattern in patterns if re.search(pattern, text)}
            self._missing -= found
            if not found and not any(re.search(pattern, text) for pattern in OTHERS):
                unexpected.append(text)
        # what failed may leave behind what it would have ended; a failure in teardown is not run again
        if unexpected and getattr(item, "passed", True):
            pytest.fail("errors were logged that the test did not expect:\n\n" + "\n".join(unexpected), False)


def _aged() -> int:
    return sum(generation["collections"] for generation in gc.get_stats()[1:])


def _patterns(item: pytest.Item) -> list[str]:
    return [pattern for marker in item.iter_markers(MARKER) for pattern in marker.args]
