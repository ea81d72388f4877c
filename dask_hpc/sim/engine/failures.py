"""Nodes that fail, and what becomes of the jobs on them.

Rules of the file: a rigid or moldable job that loses a node fails as a whole. A malleable or evolving one
goes on with the nodes that are left when they are at least its minimum and a legal size, else it fails too. A
failed job waits again, ahead of all that have not failed and among failed ones in order of submission, and
begins anew: from nothing, or from its last checkpoint (`Job.checkpoint_interval_s`, or the last transfer of
its program that was a checkpoint).
"""

from __future__ import annotations

import random
from typing import NamedTuple

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import NODE_BACK, NODE_FAILS, Calendar
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.machine import NodeFailure
from dask_hpc_policies.jobs.constraints import is_legal


class Lost(NamedTuple):
    """What a failure took."""

    #: The job that held the node; None: it was free.
    active: ActiveJob | None
    #: Whether that job goes on with the nodes that are left.
    goes_on: bool = False


class FailureSource:
    """The failures of one run."""

    def __init__(self, world: World, calendar: Calendar, nodes: NodePool) -> None:
        self._world = world
        self._calendar = calendar
        self._nodes = nodes
        self._rng = random.Random(world.options.seed)

    def schedule(self) -> None:
        """Enter the listed failures and the first random one.

        Raises
        ------
        WorkloadError
            When a listed failure is of a node that the machine does not have, or ends before it begins.
        """
        machine, jobs = self._world.machine, self._world.workload.jobs
        for failure in machine.failures.listed:
            if not 0 <= failure.node < machine.nodes or failure.downtime_s < 0:
                raise WorkloadError(
                    f"failure of node {failure.node} at {failure.t_s:g} s: nodes are 0 to "
                    f"{machine.nodes - 1}, the downtime at least 0 s"
                )
            self._calendar.enter(failure.t_s, NODE_FAILS, None, failure)
        if jobs:
            self._next_random(jobs[0].submit_s)

    def _next_random(self, after_s: float) -> None:
        machine = self._world.machine
        mtbf_s = machine.failures.node_mtbf_s
        if mtbf_s is not None:
            at_s = after_s + self._rng.expovariate(machine.nodes / mtbf_s)
            self._calendar.enter(at_s, NODE_FAILS, None, None)

    def happen(self, failure: NodeFailure | None) -> Lost | None:
        """A node fails: the one listed, or any that is up; None when it is down already, or not there.

        Random failures strike machines that work: while no job holds a node, none happens. Else a job that
        needs many nodes would wait for ever for all of them to be up at once.
        """
        world = self._world
        if failure is None:
            self._next_random(world.now_s)
            if not self._nodes.held:
                return None
            node = self._rng.randrange(world.machine.nodes)
            downtime_s = world.machine.failures.downtime_s
            failure = NodeFailure(t_s=world.now_s, node=node, downtime_s=downtime_s)
        if failure.node in self._nodes.down_ids or failure.node in self._nodes.absent:
            return None
        back_s = world.now_s + failure.downtime_s
        active = self._nodes.fail(failure.node, back_s)
        self._calendar.enter(back_s, NODE_BACK, None, failure.node)
        return Lost(active, active is not None and survives(active))


def survives(active: ActiveJob) -> bool:
    """Whether a job that has just lost a node, which its number still counts, goes on without it."""
    job = active.job
    left = active.nodes - 1
    return (
        job.kind in ("malleable", "evolving")
        and active.round is None
        and left >= job.min_nodes
        and is_legal(job.constraint, left)
    )
