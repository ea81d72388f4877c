"""What a worker's heartbeats carry for us: small sections by name, sampled on the worker.

They travel among the worker's own metrics, so nothing of ours is sent by itself, and nothing at all by a
worker that has nothing to tell: its heartbeats are those of stock. Stock drops a metric that raises without a
word; a section that fails is sent as what went wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dask_hpc.errors import ConfigError, WorkerError
from dask_hpc.wire import HEARTBEAT, ROLE_RESOURCE
from dask_hpc.worker.host_process import folders
from dask_hpc.worker.node import NodeSection

logger = logging.getLogger("distributed.dask_hpc.heartbeat")

#: What samples one section on its worker; a method `stop`, where there is one, is called at the end.
Section = Callable[[], Mapping[str, Any]]
#: What makes the sections of a worker, by their names.
SECTIONS: dict[str, Callable[[Any], Section]] = {
    "node": NodeSection,
}


class NothingToTell(Exception):
    """No section has anything; stock leaves a metric out that raises, the name of the metric included."""


class Heartbeat:
    """All sections of one worker; called by it before each heartbeat."""

    def __init__(self, worker: Any, sections: Mapping[str, Callable[[Any], Section]]) -> None:
        self._worker = worker
        self._sections: dict[str, Section] = {}
        #: Why a section gives nothing, by its name.
        self._failed: dict[str, str] = {}
        for name, make in sections.items():
            try:
                self._sections[name] = make(worker)
            except Exception as error:  # the worker's own work goes on
                self._note(name, error)

    def __call__(self, worker: Any = None) -> dict[str, Any]:
        """The sections that have something, as they are now; ``{"error": text}`` in place of one that fails.

        Raises
        ------
        NothingToTell
            When none has.
        """
        told: dict[str, Any] = {}
        for name, sample in self._sections.items():
            try:
                if section := dict(sample()):
                    told[name] = section
                self._failed.pop(name, None)
            except Exception as error:  # stock would drop all sections without a word
                self._note(name, error)
        told |= {name: {"error": text} for name, text in self._failed.items()}
        if not told:
            raise NothingToTell
        return told

    def section(self, name: str) -> Section | None:
        """The section of that name; None when there is none."""
        return self._sections.get(name)

    def add(self, name: str, make: Callable[[Any], Section]) -> Section:
        """Carry one more section; raises what making it raises."""
        made = self._sections[name] = make(self._worker)
        return made

    def remove(self, name: str) -> None:
        """Carry a section no more."""
        sample = self._sections.pop(name, None)
        self._failed.pop(name, None)
        _end(sample)

    def _note(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._failed.get(name) != text:
            logger.error("Section %s of the heartbeats fails: %s", name, text)
        self._failed[name] = text

    def stop(self) -> None:
        """Sample no more."""
        for sample in self._sections.values():
            _end(sample)


def _end(sample: Section | None) -> None:
    end = getattr(sample, "stop", None)
    if end is not None:
        end()


def start(worker: Any) -> None:
    """Have the worker's heartbeats carry our sections from now on."""
    stop(worker)
    worker.metrics[HEARTBEAT] = Heartbeat(worker, SECTIONS)
    worker.loop.add_callback(_look, worker)
    if any(name.startswith(ROLE_RESOURCE) for name in worker.state.total_resources):
        worker.loop.add_callback(_wake, worker)


def _look(worker: Any) -> None:
    """Have it look for what earlier clusters have left in the memory of its host."""
    # a configuration that is wrong the section `node` tells of; a worker may be on its way out by then
    with suppress(ConfigError, WorkerError):
        if folders():
            # what keeps checkpoints in memory is loaded where there are some
            from dask_hpc.worker.host_memory import look

            look(worker)


async def _wake(worker: Any) -> None:
    """Have the scheduler see to it that nothing is placed here that does not belong."""
    try:
        await worker.scheduler.hpc(method="see_roles")
    except OSError as error:
        logger.warning("The scheduler could not be told of this node's role: %s", error)


def stop(worker: Any) -> None:
    """Have them carry nothing of ours any more."""
    present = worker.metrics.get(HEARTBEAT)
    if isinstance(present, Heartbeat):
        del worker.metrics[HEARTBEAT]
        present.stop()
