"""One result that checkpoints protect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask._task_spec import Task

from dask_hpc.scheduler.internals.lineage import Lineage
from dask_hpc.worker import saved
from dask_hpc.worker.saved import AnyCopy


@dataclass(slots=True)
class Result:
    """Where it is, and how it is made meanwhile."""

    #: Where it is, in memory first, then the newest, and the name of its type.
    copies: tuple[AnyCopy, ...]
    type_name: str
    #: Whether it is to be read back whatever else is there.
    always: bool
    #: What its reading stands in for, while it does.
    lineage: Lineage | None = None
    #: Why no copy is of use, once that is known.
    bad: str | None = None

    def reading(self, key: Any, insists: bool = False) -> Task:
        """The task that reads it (see `saved.load`)."""
        return Task(key, saved.load, list(self.copies), insists)
