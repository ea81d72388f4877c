"""Learns how many tasks of jobs are to read and write a target at once, while they run (``hpc.io.tokens``).

A sample is the bytes a second of one task, over tasks that were all sent since the number was last changed,
times that number, while others waited: so many were at it all the time. Seconds are all that a task takes,
since its token is gone for as long; so tasks that also compute are let in as long as more of them get more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.scheduler.internals import durations
from dask_hpc.scheduler.internals.span_metrics import heard_since
from dask_hpc.scheduler.io.accounts import Accounts
from dask_hpc.scheduler.placing.gate import Gate, Target
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.rules.io.tokens import SAMPLES, Tokens

#: Tasks need a token when they spend this share of their time in reads and writes, and that for so many bytes
#: together.
_SHARE = 0.25
_FEW_BYTES = 1 << 16
#: They need none any more when that is less than this in all jobs of the name, after so many seconds of one.
_OFF_S, _OFF = 1.0, 0.1
#: A sample is made of so many seconds of tasks, and of a task for each token, so many at least.
_LEAST_S, _LEAST_TASKS = 0.1, 2
#: Names of tasks that are remembered.
_NAMES = 1000
#: When nobody has given a token back for so long, and so many times as long as tasks of the kind take, one
#: more is let through: those that have one may be waiting for it.
_STUCK_S, _STUCK_TIMES = 30.0, 5.0


@dataclass
class Learner:
    """One target."""

    tokens: Tokens
    #: Bytes and seconds from which the next sample counts; None: tasks that were sent before the number was
    #: changed have not ended, or what they have measured comes with the next heartbeats.
    since: tuple[int, float] | None = None
    #: Whether some have waited all the time since.
    full: bool = False
    #: Who has had the tokens, and since when.
    holders: set[Any] = field(default_factory=set)
    held_since_s: float = 0.0


class TokenLearning:
    """Has tasks of jobs wait for tokens, and finds out how many there should be."""

    def __init__(self, state: State, gate: Gate) -> None:
        self._state = state
        self._gate = gate
        self._learners: dict[Target, Learner] = {}

    def tick(self, now_s: float, jobs: Iterable[JobRecord], found: Accounts) -> None:
        """Look at what was measured of the tasks of active jobs."""
        if self._state.settings.io_tokens == "never":
            self.end()
            return
        named = list(jobs)
        for target, sums in self._sums(named, found).items():
            learner = self._learners.get(target)
            if learner is not None:
                self._sample(target, learner, *sums)
            else:
                self._begin(target, *sums)

        for target, learner in self._learners.items():
            self._unstick(now_s, target, learner)

    def _unstick(self, now_s: float, target: Target, learner: Learner) -> None:
        """Let one more through when all that have tokens seem to wait for one that has none."""
        waiting, holders = self._gate.waiting.get(target), self._gate.holders(target)
        if not waiting or holders != learner.holders:
            learner.holders, learner.held_since_s = holders, now_s
            return
        usual_s = durations.usual(waiting[0][1])[1] or 0.0
        if now_s - learner.held_since_s >= max(_STUCK_S, _STUCK_TIMES * usual_s):
            self._gate.limits[target] += 1
            learner.held_since_s, learner.full = now_s, False

    def end(self) -> None:
        """Have no task wait for tokens any more."""
        self._learners.clear()
        self._gate.limits.clear()
        self._gate.needs.clear()
        for job in self._state.jobs.named:
            if job.gate is not None:
                self._gate.drop(job)

    def best_bytes_s(self) -> float | None:
        """The most that any target has given to all tasks together; None while nothing is known."""
        return max((one.tokens.best_bytes_s for one in self._learners.values()), default=None)

    def row(self, target: Target) -> dict[str, Any]:
        """``tokens`` (None: as many as like) and ``writers``, the tasks on workers that need one."""
        return {"tokens": self._gate.limits.get(target), "writers": len(self._gate.holders(target))}

    def _sums(self, jobs: list[JobRecord], found: Accounts) -> dict[Target, tuple[int, float]]:
        """Note which tasks read and write what; by target, their bytes and seconds."""
        sums: dict[Target, tuple[int, float]] = {}
        by_span = {job.span_id: job for job in jobs}
        needs = self._gate.needs
        #: Names of which a job does read and write, and of which one has executed without.
        busy, without = set[tuple[str, str]](), set[tuple[str, str]]()
        for (span, name), work in found.work.items():
            job = by_span.get(span)
            if job is None:
                continue
            targets = tuple(t for t, row in sorted(work.targets.items()) if row.nbytes >= _FEW_BYTES)
            if targets and work.io_s >= _SHARE * work.task_s:
                needs[job.name, name] = targets
                busy.add((job.name, name))
            elif work.task_s >= _OFF_S and work.io_s < _OFF * work.task_s:
                without.add((job.name, name))
            for target in needs.get((job.name, name), ()):
                nbytes, seconds = sums.get(target, (0, 0.0))
                row = work.targets.get(target)
                sums[target] = nbytes + (row.nbytes if row else 0), seconds + work.task_s
        for both in (without - busy) & needs.keys():
            self._gate.forget(*both)
        while len(needs) > _NAMES:
            del needs[next(iter(needs))]
        names = {name for name, _ in needs}
        for job in jobs:
            if job.gate is None and job.name in names:
                job.gate = self._gate
        return sums

    def _begin(self, target: Target, nbytes: int, seconds: float) -> None:
        """The first tasks of a target were measured: as many were at it as are now."""
        owner, needs, at_once = self._state.owner, self._gate.needs, 0
        for ws in self._state.scheduler.workers.values():
            at_it = [
                ts
                for ts in ws.processing
                if (lane := owner.get(ts.key)) is not None
                and target in needs.get((lane.job.name, ts.prefix.name), ())
            ]
            self._gate.adopt(target, at_it)
            at_once += min(ws.nthreads, len(at_it))
        if at_once and seconds >= _LEAST_S:
            # it is of many tasks, and enough to go on
            bytes_s = nbytes / seconds * at_once
            tokens = Tokens(at_once, {at_once: (bytes_s, SAMPLES - 1)})
            self._use(target, Learner(tokens), tokens.seen(at_once, bytes_s, self._threads()))

    def _sample(self, target: Target, learner: Learner, nbytes: int, seconds: float) -> None:
        """Take one more sample if there is one."""
        ended_s = self._gate.ended_s(target)
        if learner.since is None and not heard_since(self._state.scheduler, ended_s):
            return
        waits = bool(self._gate.waiting.get(target))
        since = learner.since
        if since is None or not (learner.full and waits) or seconds < since[1]:
            learner.since, learner.full = (nbytes, seconds), waits
            return
        more, took_s, now = nbytes - since[0], seconds - since[1], learner.tokens.now
        usual_s = durations.usual(self._gate.waiting[target][0][1])[1] or 0.0
        if more < _FEW_BYTES or took_s < max(_LEAST_S, max(_LEAST_TASKS, now) * usual_s):
            return
        learner.since = nbytes, seconds
        self._use(target, learner, learner.tokens.seen(now, more / took_s * now, self._threads()))

    def _use(self, target: Target, learner: Learner, tokens: Tokens) -> None:
        changed = self._gate.limits.get(target) != tokens.now
        learner.tokens = tokens
        self._learners[target] = learner
        if changed:
            self._gate.allow(target, tokens.now)
            learner.since, learner.full = None, False

    def _threads(self) -> int:
        """Tasks that can run at once."""
        return max(1, sum(ws.nthreads for ws in self._state.scheduler.workers.values()))
