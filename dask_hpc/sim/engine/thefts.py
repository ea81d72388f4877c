"""Thefts: a running job is interrupted because another one needs its nodes.

Rules of the file: here it is found out whether and when (`dask_hpc_policies.rules.thefts`); who calls
interrupts the victim. A job with `Job.checkpoints` is waited for until its commit has been moved, too; any
other job without a program saves in no time, at its interval or when it is told to.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import THEFT, Calendar
from dask_hpc.sim.engine.checkpoints import next_checkpoint_s
from dask_hpc.sim.engine.commits import Commits
from dask_hpc.sim.engine.progress import Keep
from dask_hpc.sim.engine.saving import Saved
from dask_hpc.sim.engine.views import facts
from dask_hpc.sim.engine.world import World
from dask_hpc_policies.decision import Reason, ReasonCode, Steal
from dask_hpc_policies.rules.feasible import refusal
from dask_hpc_policies.rules.thefts import Saves, when


class Theft(NamedTuple):
    """One that waits."""

    action: Steal
    victim: ActiveJob
    #: How often the victim had been interrupted when it was chosen.
    restarts: int
    #: The commit that is waited for; None: a moment is.
    number: int | None = None


class Thefts:
    """The thefts of one run."""

    def __init__(self, world: World, calendar: Calendar, commits: Commits) -> None:
        self._world = world
        self._calendar = calendar
        self._commits = commits
        #: Those that wait for a commit.
        self._waiting: list[Theft] = []

    def begin(self, action: Steal) -> tuple[ActiveJob, Keep] | None:
        """The victim, when it is to be interrupted now, and what it keeps; None: later, or not at all."""
        world = self._world
        victim = world.by_id.get(action.job)
        why = self._refusal(action)
        if why is not None or victim is None:
            assert why is not None
            world.refuse(action, why)
            return None
        if victim.saving is None:
            return self._without_commits(action, victim)
        what, _ = when(action.timing, action.job, _saves(victim))
        world.listener.begun(victim, action)
        if what == "now":
            return victim, "saved"
        saving = victim.saving
        begun = saving.held == "commit" or _moving(victim, inf)
        number = saving.number + (not begun or saving.asked)
        self._waiting.append(Theft(action, victim, victim.restarts, number))
        if what == "commit":
            self._commits.ask(victim)
        return None

    def _without_commits(self, action: Steal, victim: ActiveJob) -> tuple[ActiveJob, Keep] | None:
        """`begin` for a job that says nothing of commits."""
        world, plain = self._world, victim.job.program is None
        if action.timing == "next-checkpoint" and plain and victim.job.checkpoint_interval_s is not None:
            at_s = next_checkpoint_s(victim, world.now_s)
            if at_s is None:
                text = f"{action.job} ends before its next checkpoint: then its nodes are free"
                world.refuse(action, Reason(ReasonCode.ALMOST_DONE, text))
                return None
            world.listener.begun(victim, action)
            self._calendar.enter(at_s, THEFT, None, Theft(action, victim, victim.restarts))
            return None
        world.listener.begun(victim, action)
        return victim, "all" if action.timing == "proactive-checkpoint" and plain else "saved"

    def committed(self, active: ActiveJob) -> None:
        """A commit of the job may have ended, or been moved: thefts that waited for it happen now."""
        saving = active.saving
        for theft in self._waiting if saving is not None else ():
            number = theft.number or 0
            if theft.victim is not active or saving is None or saving.number < number:
                continue
            if saving.held != "commit" and not _moving(active, number):
                self._drop(theft)
                self._calendar.enter(self._world.now_s, THEFT, None, theft)
                return

    def left(self, active: ActiveJob) -> None:
        """The job was interrupted, or has ended: what it was to be waited for does not come."""
        for theft in [one for one in self._waiting if one.victim is active]:
            self._drop(theft)
            if active.key in self._world.active:
                self._world.refuse(theft.action, _interrupted(theft))

    def due(self, theft: Theft) -> ActiveJob | None:
        """The victim, which has its checkpoint, when it is still to be interrupted for the thief."""
        victim = theft.victim
        if victim.key not in self._world.active:
            return None  # its end has been told
        changed = victim.restarts != theft.restarts
        why = _interrupted(theft) if changed else self._refusal(theft.action)
        if why is None:
            return victim
        self._world.refuse(theft.action, why)
        return None

    def _drop(self, theft: Theft) -> None:
        self._waiting = [one for one in self._waiting if one is not theft]

    def _refusal(self, action: Steal) -> Reason | None:
        by_id = self._world.by_id
        victim, thief = by_id.get(action.job), by_id.get(action.thief)
        if (first := next((one for one in self._waiting if one.victim is victim), None)) is not None:
            text = f"{action.job} is to be interrupted for {first.action.thief} already"
            return Reason(ReasonCode.STALE, text)
        return refusal(
            action,
            None if victim is None else facts(victim),
            None if thief is None else facts(thief),
            locked=False,
        )


def _interrupted(theft: Theft) -> Reason:
    return Reason(ReasonCode.STALE, f"{theft.action.job} was interrupted before its checkpoint")


def _moving(active: ActiveJob, number: float) -> bool:
    """Whether anything is still being moved of the commits up to this one."""
    moving = () if active.lanes is None else active.lanes.moving
    return any(isinstance(one.keeps, Saved) and one.keeps.number <= number for one in moving)


def _saves(active: ActiveJob) -> Saves | None:
    """What is known of the commits of a job; None: it makes none."""
    saving, spec = active.saving, active.job.checkpoints
    if saving is None or spec is None:
        return None
    # without an interval it commits after scheduling points, which only a program has
    comes = active.job.program is not None if spec.every_s is None else spec.every_s < inf
    under_way = saving.asked or saving.held == "commit" or _moving(active, inf)
    return Saves(under_way, comes)
