"""Thefts: a running job is interrupted because another one needs its nodes.

Rules of the file: here it is found out whether and when; who calls interrupts the victim.
"""

from __future__ import annotations

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import THEFT, Calendar
from dask_hpc.sim.engine.checkpoints import next_checkpoint_s
from dask_hpc.sim.engine.progress import Keep
from dask_hpc.sim.engine.views import facts
from dask_hpc.sim.engine.world import World
from dask_hpc_policies.decision import Steal
from dask_hpc_policies.rules.feasible import refusal

#: Victim, thief, and how often the victim had been interrupted when it was chosen.
Theft = tuple[ActiveJob, ActiveJob, int]


class Thefts:
    """The thefts of one run."""

    def __init__(self, world: World, calendar: Calendar) -> None:
        self._world = world
        self._calendar = calendar

    def begin(self, action: Steal) -> tuple[ActiveJob, Keep] | None:
        """The victim, when it is to be interrupted now, and what it keeps; None: later, or not at all."""
        world = self._world
        victim, thief = world.by_id.get(action.job), world.by_id.get(action.thief)
        why = refusal(
            action,
            None if victim is None else facts(victim),
            None if thief is None else facts(thief),
            locked=False,
        )
        if why is not None:
            world.refuse(action, why)
            return None
        assert victim is not None
        assert thief is not None
        world.listener.begun(victim, action)
        if action.timing == "next-checkpoint":
            at_s = next_checkpoint_s(victim, world.now_s)
            if at_s is not None:
                self._calendar.enter(at_s, THEFT, None, (victim, thief, victim.restarts))
            return None
        return victim, "all" if action.timing == "proactive-checkpoint" else "saved"

    def due(self, theft: Theft) -> ActiveJob | None:
        """The victim, which has its checkpoint, when it is still to be interrupted for the thief."""
        victim, thief, restarts = theft
        gone = victim.key not in self._world.active or victim.restarts != restarts
        if gone or victim.state != "running" or thief.state != "pending" or thief.round is not None:
            return None
        return victim
