"""Nodes that fail and come back, and what becomes of the jobs on them.

Rules of the file: a rigid or moldable job that loses a node fails as a whole. A malleable or evolving one
goes on with the nodes that are left when they are at least its minimum and a legal size, else it fails too. A
failed job waits again, ahead of all that have not failed and among failed ones in order of submission, and
begins anew: from nothing, or from its last checkpoint (`Job.checkpoint_interval_s`, or the last transfer of
its program that was a checkpoint).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.model.machine import NodeFailure
from dask_hpc_policies.jobs.constraints import is_legal

if TYPE_CHECKING:
    from dask_hpc.sim.engine.engine import Engine


class FailureSource:
    """The failures of one run."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        #: When each failed node comes back.
        self._returns: dict[int, float] = {}

    def returns_s(self) -> tuple[float, ...]:
        """When failed nodes come back, ascending."""
        return tuple(sorted(self._returns.values())) if self._returns else ()

    def schedule(self) -> None:
        """Enter the listed failures and the first random one."""
        engine = self.engine
        failures = engine.machine.failures
        for failure in failures.listed:
            if not 0 <= failure.node < engine.machine.nodes or failure.downtime_s < 0:
                raise WorkloadError(
                    f"failure of node {failure.node} at {failure.t_s:g} s: nodes are 0 to "
                    f"{engine.machine.nodes - 1}, the downtime at least 0 s"
                )
            engine.schedule_failure(failure.t_s, failure)
        if engine.workload.jobs:
            self._next_random(engine.workload.jobs[0].submit_s)

    def _next_random(self, after_s: float) -> None:
        engine = self.engine
        mtbf_s = engine.machine.failures.node_mtbf_s
        if mtbf_s is not None:
            engine.schedule_failure(after_s + engine.rng.expovariate(engine.machine.nodes / mtbf_s), None)

    def happen(self, failure: NodeFailure | None) -> None:
        """A node fails: the one listed, or any that is up."""
        engine = self.engine
        if failure is None:
            if not engine.goes_on():
                return
            self._next_random(engine.now_s)
            node = engine.rng.randrange(engine.machine.nodes)
            failure = NodeFailure(t_s=engine.now_s, node=node, downtime_s=engine.machine.failures.downtime_s)
        if failure.node in engine.nodes.down_ids:
            return  # it is down already
        active = engine.nodes.fail(failure.node)
        back_s = self._returns[failure.node] = engine.now_s + failure.downtime_s
        engine.schedule_return(back_s, failure.node)
        if active is not None:
            if self._survives(active):
                engine.lost_node(active)
            else:
                engine.failed(active)
        engine.changed("node-lost", active)

    def back(self, node: int) -> None:
        """A node is up again."""
        self.engine.nodes.back(node)
        del self._returns[node]
        self.engine.changed("node-added")

    def _survives(self, active: ActiveJob) -> bool:
        job = active.job
        left = active.nodes - 1
        return (
            job.kind in ("malleable", "evolving")
            and active.round is None
            and left >= job.min_nodes
            and is_legal(job.constraint, left)
        )
