"""Fixtures and rules for all tests.

- `data_folder`: real data that is not part of the repository, from ``$DASK_HPC_DATA``. A test that
  uses it carries the marker ``data`` and is skipped, with the reason, when the folder is not there.
- Worker processes are forked from one that has imported Dask and us: most of what they take is imports. They
  have its environment; where they need another one, ``distributed.worker.multiprocessing-method`` is set.
- What clusters keep in memory is in a folder of the process (``hpc.node.memory-folder``).
- With ``CI=true`` any other skipped test fails the run: nothing is left untested by accident.
- ``--subset`` runs a part of the tests, drawn by a seed: see `subset`.
- An error in a callback, or one that our code logs, fails the test that caused it: see `unexpected`.
- Hypothesis prints what is needed to repeat a failure. ``--examples`` is the share of tries: see `examples`.
- The fixtures of `distributed.utils_test` (loop, cleanup, client, ...) are available.
"""

from __future__ import annotations

import atexit
import multiprocessing.forkserver
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import USUALLY, Examples
from hypothesis import HealthCheck, settings
from subset import Subset
from unexpected import Unexpected

_MEMORY_FOLDER = "DASK_HPC__NODE__MEMORY_FOLDER"
# that of the process which has started this one: the configuration is not to have it
os.environ.pop(_MEMORY_FOLDER, None)

# before distributed.utils_test, which resets the configuration to what it finds when it is imported
import dask  # noqa: E402

import dask_hpc.config  # noqa: E402

dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})

from distributed.utils import get_mp_context  # noqa: E402
from forked_managers import fork_managers  # noqa: E402

from distributed.utils_test import (  # isort: skip  # noqa: E402
    a,
    b,
    cleanup,
    client,
    client_no_amm,
    client_secondary,
    cluster_fixture,
    loop,
    loop_in_thread,
    name_of_test,
    requires_default_ports,
    s,
    security,
    tls_client,
    tls_cluster,
    ws,
)

REPOSITORY = Path(__file__).resolve().parents[1]

settings.register_profile(
    "dask-hpc",
    print_blob=True,
    # Hypothesis would try the same ones each time where it sees $CI: other ones for each commit notice more
    derandomize=False,
    # a loaded machine is slow; that is no fault of the code under test
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dask-hpc")

# clusters of other processes that run tests are not to take over what those of this one leave in memory
_SHARED = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _made_folder() -> str:
    """A new folder in memory whose name has no random letters.

    Dask reads each DASK_ variable as Python first: of "3if" it would be warned in every process.
    """
    path = os.path.join(_SHARED or tempfile.gettempdir(), f"dask-hpc-tests-{os.getpid()}-{time.time_ns()}")
    os.mkdir(path, 0o700)
    return path


_memory = _made_folder()
os.environ[_MEMORY_FOLDER] = _memory
atexit.register(shutil.rmtree, _memory, True)
#: What each worker, or each producer of a flow, would import by itself again.
_IMPORTED = (
    "distributed", "numpy", "pandas", "xarray", "dask.array", "dask_hpc.agent", "dask_hpc.worker.heartbeat",
    "dask_hpc.worker.small", "dask_hpc.worker.saved", "dask_hpc.worker.coupling.receiver",
    "dask_hpc.worker.io.switch", "dask_hpc.worker.power.switch", "dask_hpc.program.block_tasks",
    "dask_hpc.coupling.source", "dask_hpc.scheduler.install", "dask_hpc.worker.manager",
)  # fmt: skip
# workers are forked from a process that has this environment, not one that some test has set for itself
get_mp_context().set_forkserver_preload(list(_IMPORTED))
multiprocessing.forkserver.ensure_running()
fork_managers()

_in_ci = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
_wrong_skips: list[str] = []
#: With ``--reruns``: tests that failed at first, and why. More than so many are not the machine's fault.
_second_tries: list[tuple[str, str]] = []
_MOST_SECOND_TRIES = 3


def _data_folder() -> Path:
    return Path(os.environ.get("DASK_HPC_DATA") or REPOSITORY.parent / "shared" / "data").resolve()


def _own_memory() -> Iterator[Path]:
    folder = _made_folder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_MEMORY_FOLDER, folder)
        yield Path(folder)
    # managers that end now remove theirs, too
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for the managers of this test alone; they end when it is gone."""
    yield from _own_memory()


@pytest.fixture(scope="module")
def memory_of_file() -> Iterator[Path]:
    """A folder for the managers of the tests of a file alone; they end when it is gone."""
    yield from _own_memory()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder with real traces and measurements; see ``$DASK_HPC_DATA``."""
    folder = _data_folder()
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}; set DASK_HPC_DATA to one that holds the data")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=float, default=USUALLY, help="share of the examples of each property")
    parser.addoption("--subset", type=float, default=1.0, help="share of the tests to run, at most 1")
    parser.addoption("--subset-seed", default="0", help="word that decides which")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Unexpected())
    config.pluginmanager.register(Examples(config.getoption("examples")))
    if config.getoption("subset") != 1:
        config.pluginmanager.register(Subset(config.getoption("subset"), config.getoption("subset_seed")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "data_folder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # of all processes that run tests, this is told in the one that reports
    expected_failure = hasattr(report, "wasxfail")
    absent = "more_data" in report.keywords or not _data_folder().is_dir()
    needs_data = "data" in report.keywords and absent
    if report.skipped and not expected_failure and not needs_data:
        _wrong_skips.append(f"{report.nodeid}: {_reason(report)}")

    if report.outcome == "rerun":
        _second_tries.append((report.nodeid, report.longreprtext))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _wrong_skips.append(f"{report.nodeid}: {_reason(report)}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _in_ci and _wrong_skips:
        terminalreporter.section("skipped, and should have run")
        for line in _wrong_skips:
            terminalreporter.line(line)
    if _second_tries:
        terminalreporter.section(f"failed at first, at most {_MOST_SECOND_TRIES} may")
        for name, text in _second_tries:
            terminalreporter.line(f"{name}\n{text}\n")


def pytest_sessionfinish(session: pytest.Session) -> None:
    wrong = (_in_ci and _wrong_skips) or len(_second_tries) > _MOST_SECOND_TRIES
    if wrong and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
