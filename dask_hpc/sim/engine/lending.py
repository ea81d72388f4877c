"""Lending in a run: how fast jobs get on by what they borrow, also while they wait for nodes.

Rules of the file: who runs on which slots is the rule that also holds live
(`dask_hpc_policies.rules.lending`); here is what follows for a job whose work is tasks of equal length. It is
dealt out anew whenever anything happens. Tasks that have begun go on: a job has as many as it runs until it
ends. The nodes that a job has, and all that is accounted for by them, are as without lending.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.progress import Progress
from dask_hpc.sim.engine.turns import TurnTaking, shared
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.job import computing_s
from dask_hpc.sim.model.lending import EXTRA, Lent
from dask_hpc_policies.protocol import Policy
from dask_hpc_policies.rules.fair.turns import Work
from dask_hpc_policies.rules.lending import Party, slots

#: What a share of work is off by after many changes of speed.
_ROUNDING = 1e-9


def lending_of(world: World, nodes: NodePool, progress: Progress) -> Lending | None:
    """The lending of a run; None: nothing is lent there."""
    lent = world.options.extra.get(EXTRA)
    return None if lent is None else Lending(world, nodes, progress, Lent(**lent))


class Lending:
    """Sets how fast jobs get on."""

    def __init__(self, world: World, nodes: NodePool, progress: Progress, lent: Lent) -> None:
        self._world = world
        self._nodes = nodes
        self._progress = progress
        self._lent = lent
        #: Share of the work of each job that one of its tasks is, and slots that it runs on, by its key.
        self._task: dict[int, float] = {}
        self._used: dict[int, int] = {}
        self._turns = TurnTaking(lent.turns, lent.ends)

    def settle(self, policy: Policy) -> None:
        """Something has happened: deal slots out anew, in turns as far as the policy has jobs take them."""
        lent, world = self._lent, self._world
        jobs = [active for active in world.active.values() if self._takes_part(active)]
        parties = [self._party(active) for active in jobs]
        idle = self._nodes.idle * lent.threads
        found = self._in_turn({one.job.id: party for one, party in zip(jobs, parties, strict=True)}, policy)
        for i, active in enumerate(jobs):
            if (slots_now := found.get(active.job.id)) is not None:
                idle += parties[i].own - slots_now
                parties[i] = replace(parties[i], own=slots_now)
        self._used = {}
        for active, used in zip(jobs, slots(parties, idle), strict=True):
            self._used[active.key] = used
            self._pace(active, used)

    def _in_turn(self, parties: dict[str, Party], policy: Policy) -> dict[str, int]:
        """Slots of the jobs that share theirs, by id."""
        if not self._lent.turns:
            return {}
        works = [self._work(one) for one in self._world.active.values() if self._shares(one)]
        there = (self._nodes.held + self._nodes.idle) * self._lent.threads
        order = self._turns.advance(self._world.now_s, works, there)
        sharing = {id: party for id, party in parties.items() if self._turns.takes(id)}
        return shared(sharing, order, bool(getattr(policy, "in_turn", False)))

    def _shares(self, active: ActiveJob) -> bool:
        """Whether the virtual cluster knows the job, also while something holds it up."""
        return self._turns.takes(active.job.id) and active.job.id in self._lent.tasks

    def _work(self, active: ActiveJob) -> Work:
        job = active.job
        return Work(
            id=job.id,
            done_s=0.0,
            left_s=self._progress.left(active) * self._slot_s(active, 1),
            width=max(1, self._waiting(active)),
            user=job.user,
            weight=job.weight,
            priority=job.priority,
            submit_s=job.submit_s,
        )

    def _takes_part(self, active: ActiveJob) -> bool:
        """Whether what it runs on is followed here: not while a resize or a commit holds it up."""
        return (
            active.job.id in self._lent.tasks
            and active.job.program is None
            and active.saving is None
            and active.round is None
            and active.state in ("pending", "running")
        )

    def _party(self, active: ActiveJob) -> Party:
        lent, job = self._lent, active.job
        own = active.nodes * lent.threads
        waiting = self._waiting(active)
        task_s = self._task[active.key] * self._slot_s(active, 1)
        return Party(
            own=own,
            tasks=max(1, waiting, self._used.get(active.key, 0)),
            priority=job.priority,
            submit_s=job.submit_s,
            lends=not job.exclusive,
            borrows=not job.exclusive and task_s <= lent.limit_s,
            ahead=min(active.nodes * lent.ahead, max(0, waiting - own)),
        )

    def _waiting(self, active: ActiveJob) -> int:
        """How many of its tasks have not ended."""
        left = self._progress.left(active)
        task = self._task.setdefault(active.key, left / self._lent.tasks[active.job.id])
        return ceil(left / task - _ROUNDING) if task > 0 else 0

    def _pace(self, active: ActiveJob, used: int) -> None:
        """Have a job get on as on so many slots."""
        length_s = self._slot_s(active, max(1, active.nodes)) / used if used else inf
        if active.stage is None and length_s == inf:
            return
        if active.paused or active.stage is None or active.length_s != length_s:
            self._progress.pace(active, length_s)

    def _slot_s(self, active: ActiveJob, nodes: int) -> float:
        """Seconds of one slot that all of its work takes, if it is as fast on each as on `nodes` nodes.

        What is said of its time holds for as many slots as its tasks could use then.
        """
        job, threads = active.job, self._lent.threads
        used = min(1.0, self._lent.tasks[job.id] / (job.reference_nodes * threads))
        return computing_s(job, nodes) * nodes * threads * used
