"""One round: the actions of one decision that change allotments, and the reductions it begins with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from dask_hpc.scheduler.internals.allotment import AllotmentSet
from dask_hpc.scheduler.resizing.windows import Window
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc_policies import states
from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.model import Trigger

#: One run of a task on one worker: key, address, run id.
Run = tuple[Any, str, int | None]
#: Called with the nodes that were drained for it and, when there are none, why.
Taker = Callable[[list[Node], Reason], None]


class Reduction:
    """Taking nodes from one job (or, with `job` None, from plain work)."""

    def __init__(
        self, id: int, job: JobRecord | None, action: Shrink | Steal, leaving: list[Node], began_s: float
    ) -> None:
        self.id = id
        self.job = job
        self.action = action
        self.leaving = leaving
        self.phase = states.reconfig_step("steady", "begin")
        #: Whether the nodes leave the pool: then everything on them has to end, whoever it belongs to.
        self.for_good = False
        #: The job's own window; its nodes are drained when that has been committed.
        self.window: Window | None = None
        #: Whether the nodes go to jobs that use them together with this one: then nothing has to leave.
        self.together = False
        #: Jobs that use the nodes together with their holder have to leave, too.
        self.others: AllotmentSet | None = None
        #: Ids of jobs that get the nodes: they need not leave.
        self.takers: Collection[str] = ()
        #: Since when its nodes are drained.
        self.began_s = began_s
        #: Whether nobody has to make room (a node that nobody uses needs no mention).
        self.silent = False
        #: What is told of it when it has been carried out.
        self.why = Reason(ReasonCode.DONE, "carried out")
        #: Runs that were asked back: each is asked once.
        self.asked: set[Run] = set()

    @property
    def active(self) -> bool:
        """Whether it is still waiting for its nodes to fall quiet."""
        return self.phase == "preparing"

    def step(self, *events: str) -> None:
        """Follow the reconfiguration table through `events`."""
        for event in events:
            self.phase = states.reconfig_step(self.phase, event)

    def concerns(self, job: JobRecord) -> bool:
        """Whether tasks of that job have to leave."""
        if job.id in self.takers:
            return False
        own = job.is_default if self.job is None else job is self.job
        # plain work has the use of the nodes of jobs that rest
        return own or job.reach is self.others or (self.others is not None and job.is_default)


class Round:
    """The actions of one decision that change allotments."""

    def __init__(self, began_s: float, trigger: Trigger) -> None:
        self.began_s = began_s
        self.trigger: Trigger = trigger
        self.reductions: list[Reduction] = []
        #: Expansions and starts with their reconfiguration ids.
        self.grows: list[tuple[Start | Expand, int]] = []
        #: Whether all of them are of jobs that hold their nodes together.
        self.together = False
        #: Nodes set aside for them.
        self.ready: list[Node] = []
        #: Gets the nodes when they are drained, in place of jobs; none when they could not be.
        self.taker: Taker | None = None
        #: How long its nodes may take to fall quiet; None: ``hpc.shrink-deadline``.
        self.limit_s: float | None = None
        self.why = Reason(ReasonCode.DONE, "carried out")
