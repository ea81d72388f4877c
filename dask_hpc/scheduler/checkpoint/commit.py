"""One version of a checkpoint, from the call for it on: what is known of it, and when the next one is due."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.services import served
from dask_hpc.scheduler.checkpoint.writing import Writing
from dask_hpc.worker.saved import Copy
from dask_hpc_policies.resilience.commit_times import History, Rule, due


@dataclass(slots=True, eq=False)
class Commit:
    """One version, under way or ended."""

    id: int
    plan: Plan
    #: What is done to blocks on their way to the store, and by managers in the memory of hosts.
    services: str
    #: Folder of level L3; None: it is not written there.
    store: str | None
    submitted_s: float
    #: Levels that were asked for, and those that have it.
    asked: Sequence[str] = ("L3",)
    #: Folder of the store that it goes to when the memory of hosts does not take it as was asked for, though
    #: that level was not; None: to none.
    instead: str | None = None
    #: Whether its results may be lost with the next host.
    urgent: bool = False
    levels: tuple[str, ...] = ()
    #: Of each level that workers write; empty before, and once it has ended.
    writings: dict[str, Writing] = field(default_factory=dict)
    #: The job whose state or results it is of; None: it is of what a client has.
    job: str | None = None
    #: Whether its results are read back when they are lost.
    protect: bool = True
    #: Its results, as long as it is the newest of its `place`.
    keys: tuple[Any, ...] = ()
    #: What the version is made of with its services: what its blocks are encrypted for is drawn once.
    stored: Plan = field(init=False)
    #: Where each result of a job is in the store, once it is whole, and what workers could not make bytes of.
    copies: Mapping[Any, tuple[Copy, str]] = field(default_factory=dict)
    unwritable: Set[Any] = frozenset()
    #: Folders of versions that it was to have files of and that somebody has removed.
    removed: Set[str] = frozenset()
    state: str = "waiting"
    reason: str = ""
    version: int | None = None
    path: str | None = None
    nbytes: int = 0
    #: When it ended, whatever became of it, on the runtime's clock.
    ended_s: float | None = None
    #: Seconds that writing blocks, and making them a version, took; results were waited for in the first.
    writing_s: float = 0.0
    finishing_s: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    #: What writes it; whether it has been given up, and whether that comes too late: it gets its name now.
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    named: bool = False

    def __post_init__(self) -> None:
        self.stored = served(self.plan, self.services)

    @property
    def place(self) -> tuple[str | None, str]:
        """Folder of the store, if it is written there, and name of the checkpoint."""
        return self.store, self.plan.name

    @property
    def turns(self) -> list[tuple[str | None, str]]:
        """What it has for itself while it is written, in this order: its name, then that in its store.

        Of a name also where only one of two is for the store: what is for memory may go there instead, and
        both are numbered as they were asked for. What is urgent waits for the store alone, and not for
        results that another one waits for.
        """
        name = (None, self.plan.name)
        return [self.place] if self.urgent or self.place == name else [name, self.place]

    def due(self, now_s: float, every_s: float) -> str | None:
        """Why the next version of its name is to be begun, with so much between two; None: not yet."""
        history = History(since_s=self.ended_s, under_way=self.ended_s is None)
        return due(now_s, history, Rule(every_s), nodes=1)

    def row(self, now_s: float) -> dict[str, Any]:
        """It as plain data."""
        blocks = sum(array.count for array in self.plan.arrays)
        whole = self.state == "complete"
        lefts = [writing.left for writing in self.writings.values()]
        return {
            "id": self.id,
            "name": self.plan.name,
            "version": self.version,
            "state": self.state,
            "reason": self.reason,
            "path": self.path if whole else None,
            "blocks": blocks,
            "blocks_left": 0 if whole else max(lefts, default=blocks),
            "asked": list(self.asked),
            "services": self.services,
            "levels": list(self.levels),
            "bytes": self.nbytes,
            "age_s": round(now_s - self.submitted_s, 3),
            "writing_s": round(self.writing_s, 6),
            "finishing_s": round(self.finishing_s, 6),
        }
