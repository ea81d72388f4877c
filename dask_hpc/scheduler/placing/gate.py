"""Tokens: how many tasks of jobs are on workers at once that read or write one target.

A task that is known to, by the name of its job and its own, needs a token of each of its targets from when it
is sent until it has ended; one that finds none is set aside, and those behind it that need none pass. One
that depends on others is sent as soon as it can run, as in stock, if it finds one then. What needs tokens and
how many there are is told from above (`dask_hpc.scheduler.io.tokens`); while nothing is, no job has a gate.
Plain work never has one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from distributed.metrics import time

from dask_hpc.scheduler.internals import reads, writes

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

    from dask_hpc.scheduler.tables.jobs import JobRecord
    from dask_hpc.scheduler.tables.state import State

#: Kind of a file system and its name.
Target = tuple[str, str]


class Gate:
    """Who has a token, and who waits for one."""

    def __init__(self) -> None:
        #: Targets of tasks, by the names of job and task.
        self.needs: dict[tuple[str, str], tuple[Target, ...]] = {}
        #: Tokens of each target; any number where none is said.
        self.limits: dict[Target, int] = {}
        #: Tasks that wait for a token, by the target that has none for them, in order.
        self.waiting: dict[Target, deque[tuple[JobRecord, TaskState]]] = {}
        #: Who has a token, by target and key: always this very object.
        self.tokens: dict[Target, dict[Any, TaskState]] = {}
        #: Keys of those that may have none any more, looked at when `reopen` is asked next.
        self.over: set[Any] = set()
        #: Tasks that had a token when the number of these was changed, and have not ended; when the last has.
        self._earlier: dict[Target, set[Any]] = {}
        self._ended_s: dict[Target, float] = {}
        #: Tokens that others have who write: commits.
        self._leased: dict[Target, int] = {}

    def passes(self, job: JobRecord, ts: TaskState, *, take: bool) -> bool:
        """Whether a held task may be sent now; one that may not is set aside.

        Parameters
        ----------
        take
            It is about to be sent: it has its tokens from now on.
        """
        targets = self.needs.get((job.name, ts.prefix.name))
        if targets is None:
            return True
        for target in targets:
            if self.free(target) < 1 and ts.key not in self.tokens.get(target, ()):
                self.waiting.setdefault(target, deque()).append((job, ts))
                return False
        if take:
            for target in targets:
                self.tokens.setdefault(target, {})[ts.key] = ts
        return True

    def holds(self, state: State, ts: TaskState) -> bool:
        """Hold a task that is about to be sent, as its data is there, if it finds no token; whether it is.

        It does as a rule: what it depends on has ended.
        """
        lane = state.owner.get(ts.key)
        if lane is None or lane is not lane.job.lanes["rest"] or ts.actor or lane.job.gate is None:
            return False
        targets = self.needs.get((lane.job.name, ts.prefix.name))
        if targets is None or not reads.queuing(state.scheduler):
            return False
        for target in targets:
            taken = self.tokens.setdefault(target, {})
            for dts in ts.dependencies:
                taken.pop(dts.key, None)
            if self.free(target) < 1 and ts.key not in taken:
                state.owner[ts.key] = lane.job.lanes["root"]
                writes.hold(ts)
                return True
        for target in targets:
            self.tokens[target][ts.key] = ts
        return False

    def adopt(self, target: Target, tasks: Iterable[TaskState]) -> None:
        """These are on workers already: they have tokens of the target, whether there are any or not."""
        self.tokens.setdefault(target, {}).update({ts.key: ts for ts in tasks})

    def allow(self, target: Target, tokens: int) -> None:
        """Change the number of tokens of a target."""
        self.limits[target] = tokens
        self._earlier[target], self._ended_s[target] = self.holders(target), time()

    def ended_s(self, target: Target) -> float:
        """When the last task had ended that had a token when their number was changed, as `time.time` has it.

        Infinite: it has not.
        """
        return math.inf if self._earlier.get(target) else self._ended_s.get(target, 0.0)

    def free(self, target: Target) -> float:
        """Tokens of a target that nobody has."""
        limit = self.limits.get(target)
        if limit is None:
            return math.inf
        # `taken`, written out: this runs for every task that needs a token
        return limit - len(self.tokens.get(target, ())) - self._leased.get(target, 0)

    def taken(self, target: Target) -> int:
        """Tokens of a target that somebody has."""
        return len(self.tokens.get(target, ())) + self._leased.get(target, 0)

    def holders(self, target: Target) -> set[Any]:
        """Keys of the tasks on workers that have a token of a target."""
        return {key for key, ts in self.tokens.get(target, {}).items() if _at_it(ts)}

    def lease(self, target: Target) -> Lease:
        """Tokens for somebody who is no task and writes a target."""
        return Lease(self, target)

    def ended(self, key: Any = None) -> None:
        """A task has left its worker; None: any may have left its worker, or its thread.

        Whether it has a token still is looked at by `reopen`. Runs for every task while some have one.
        """
        for taken in self.tokens.values():
            if key is None:
                self.over.update(taken)
            elif key in taken:
                self.over.add(key)

    def reopen(self, left: Callable[[JobRecord], int] = lambda job: 0) -> set[JobRecord]:
        """Let go of the tokens of tasks that have ended; jobs whose tasks may have one now, held again.

        To be asked between two passes of admission.

        Parameters
        ----------
        left
            How many tasks of a job go where others have just ended, which is looked at anyway: a job that has
            no more than these is not given.
        """
        for target, taken in self.tokens.items() if self.over else ():
            for key in self.over:
                if key in taken and not _at_it(taken[key]):
                    del taken[key]
            if (earlier := self._earlier.get(target)) and earlier.isdisjoint(taken):
                self._earlier[target], self._ended_s[target] = set(), time()
        self.over.clear()
        again: dict[JobRecord, int] = {}
        for target, waiting in list(self.waiting.items()):
            room = self.free(target)
            while waiting and room >= 1:
                job, ts = waiting.popleft()
                if _waits(job, ts):
                    job.park(ts)
                    again[job] = again.get(job, 0) + 1
                    room -= 1
            if not waiting:
                del self.waiting[target]
        return {job for job, count in again.items() if count > left(job)}

    def drop(self, job: JobRecord) -> None:
        """Have a job go on without tokens: what was set aside is held as before."""
        job.gate = None
        self._take_back(lambda other, _: other is job)

    def forget(self, job: str, name: str) -> None:
        """Tasks of these names need no tokens any more: those that were set aside are held as before."""
        del self.needs[job, name]
        self._take_back(lambda other, ts: (other.name, ts.prefix.name) == (job, name))

    def _take_back(self, which: Callable[[JobRecord, TaskState], bool]) -> None:
        for target, waiting in list(self.waiting.items()):
            kept: deque[tuple[JobRecord, TaskState]] = deque()
            for job, ts in waiting:
                if not which(job, ts):
                    kept.append((job, ts))
                # its job may have ended already: its heir takes them
                elif ts.state == "no-worker":
                    job.park(ts)
            if kept:
                self.waiting[target] = kept
            else:
                del self.waiting[target]


class Lease:
    """Tokens of one target that somebody has who is no task: a version that is written.

    One may be taken whether there is any or not, so that nobody waits who keeps others waiting; tasks get
    fewer then.
    """

    def __init__(self, gate: Gate, target: Target) -> None:
        self._gate, self._target = gate, target
        self._taken = 0

    def open(self) -> bool:
        """Whether one more may be taken."""
        return not self._taken or self._gate.free(self._target) >= 1

    def take(self) -> None:
        """Take one more token."""
        self._taken += 1
        self._add(1)

    def give(self) -> None:
        """Give one back."""
        self._taken -= 1
        self._add(-1)

    def _add(self, tokens: int) -> None:
        leased = self._gate._leased
        leased[self._target] = leased.get(self._target, 0) + tokens
        if not leased[self._target]:
            del leased[self._target]


def _at_it(ts: TaskState) -> bool:
    # one that has left its thread waits for tasks of its own, which may need tokens
    ws = ts.processing_on
    return ws is not None and ts not in ws.long_running


def _waits(job: JobRecord, ts: TaskState) -> bool:
    # a task that was forgotten, or has been run elsewhere, meanwhile waits no more
    return job.active and ts.state == "no-worker"
