"""What is known of a protected job."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.checkpoint.commit import Commit
from dask_hpc.scheduler.checkpoint.copies import InVersions
from dask_hpc.scheduler.checkpoint.results import Results
from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.resilience.commit_times import History

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Versions in whose mean a program was held up.
_HELD_UPS = 20
#: The last version of a job is tried again so often, and after so many seconds, then twice that and so on: a
#: file system that is full or away for a moment is to cost nobody what a job has computed.
TRIED_AGAIN, AGAIN_S = 6, 5.0


@dataclass(slots=True, eq=False)
class ProtectedJob:
    """One job, and the versions of its state or of its results."""

    name: str
    #: None: the memory of hosts.
    store: str | None
    results: Results
    record: JobRecord
    #: What is done to blocks of its versions; None: what the setting says.
    services: str | None = None
    #: Topic of its program, which writes; None: its results are written.
    topic: str | None = None
    #: When it was asked, if it has not begun since.
    asked_s: float | None = None
    #: Seconds that a step of its program takes.
    step_s: float = 0.0
    #: What versions have held its program up, lately.
    held_ups_s: deque[float] = field(default_factory=lambda: deque(maxlen=_HELD_UPS))
    #: When there was nothing to write, or a version could not even be begun, the last time.
    tried_s: float | None = None
    #: The newest version, and what the newest whole one took.
    newest: Commit | None = None
    cost_s: float | None = None
    #: When the newest whole one was begun.
    whole_s: float | None = None
    #: Whether all was written that there was at its end; how often that failed, and when it is tried again.
    ended: bool = False
    failed: int = 0
    again_s: float = 0.0
    #: Whether its user knows that its results are not written.
    told: bool = False
    #: Results that stay until they are written, whoever lets go of them.
    held: set[Any] = field(default_factory=set)

    @property
    def writing(self) -> bool:
        """Whether a version is being written."""
        return self.newest is not None and self.newest.ended_s is None

    def is_asked(self, state: State) -> bool:
        """Whether its program has been asked; it may have been away, and is asked again some time later."""
        limit_s = state.settings.window_timeout_s
        return self.asked_s is not None and state.now_s() - self.asked_s < limit_s

    def try_again(self, now_s: float) -> bool:
        """The version of what there was at its end has failed; whether it is tried again, in a while."""
        self.failed += 1
        self.ended = self.failed > TRIED_AGAIN
        self.again_s = now_s + AGAIN_S * 2 ** (self.failed - 1)
        return not self.ended

    def hold(self, scheduler: Scheduler, protected: InVersions) -> None:
        """Have what is new of the next version (see `Results.next`) stay until `let_go`."""
        if (found := self.results.next(scheduler, protected)) is not None:
            _, keys, known = found
            self.held.update(key for key in keys if key not in known)
            writes.want(scheduler, self.held, self._holder)

    def let_go(self, scheduler: Scheduler) -> None:
        """Its last version is whole, or there is to be none: its results stay for others alone."""
        held, self.held = self.held, set()
        if held:
            writes.want_no_more(scheduler, held, self._holder, "hpc-checkpoint")

    @property
    def _holder(self) -> str:
        return f"hpc-protect-{self.record.id}"

    def history(self, state: State) -> History:
        """What is known of its versions, for who decides when the next one is to be."""
        settings = state.settings
        times = [self.tried_s, self.newest.ended_s if self.newest is not None else None]
        if self.topic is None:
            times.append(self.record.start_s)
        # a node is given up, and takes no more tasks, as long before its end as its workers are told to
        ends = [
            node.end_s - settings.walltime_notice_s
            for node in state.nodes_of(self.record)
            if node.end_s is not None
        ]
        return History(
            since_s=max((s for s in times if s is not None), default=None),
            cost_s=self.cost_s,
            # results are written beside the tasks of their job: nothing tells what that costs it
            held_up_s=fmean(self.held_ups_s) if self.held_ups_s else None,
            under_way=self.is_asked(state) or self.writing,
            end_s=min(ends, default=None),
            ahead_s=self.step_s + settings.tick_s,
        )
