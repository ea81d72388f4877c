"""What fails, and what becomes of the jobs there.

A failure is of a class, as on a live cluster (`dask_hpc_policies.rules.losses`): of a process (the job that
ran there fails, the node stays usable), of a host (one node, or all that are on it) or of a domain (all nodes
that share it, at once).

Rules of the file: a rigid or moldable job that loses a node fails as a whole. A malleable or evolving one
goes on with the nodes that are left when they are at least its minimum and a legal size, else it fails too. A
failed job waits again, ahead of all that have not failed and among failed ones in order of submission, and
begins anew: from nothing, or from its last checkpoint (`Job.checkpoint_interval_s`, or the last transfer of
its program that was a checkpoint). A job with `Job.checkpoints` begins at its newest commit that survives a
failure of that class. It fails as a whole when a process of it does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import NODE_BACK, NODE_FAILS, Calendar
from dask_hpc.sim.engine.losses import Losses
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.machine import FAILING, NodeFailure
from dask_hpc_policies.jobs.constraints import is_legal
from dask_hpc_policies.rules.losses import Severity

#: So many failures in a row of which nobody notices anything are drawn one by one.
_MOST_PASSED = 200


class Lost(NamedTuple):
    """What a failure took of one job."""

    #: The job; None: nobody held what failed.
    active: ActiveJob | None
    #: Whether that job goes on with the nodes that are left.
    goes_on: bool = False
    #: How many nodes it has lost; 0: a process alone.
    gone: int = 1
    severity: Severity = "host"


class FailureSource:
    """The failures of one run."""

    def __init__(self, world: World, calendar: Calendar, nodes: NodePool) -> None:
        self._world = world
        self._calendar = calendar
        self._nodes = nodes
        seed = world.options.seed
        # a stream for each class: those of one are the same with and without the others
        self._rng: dict[Severity, random.Random] = {
            what: random.Random(seed if what == "host" else f"{what} {seed}") for what in FAILING
        }
        #: By class and node, all nodes that fail with it; one that is not named fails alone.
        self._together: dict[Severity, dict[int, list[int]]] = {
            "process": {},
            "host": _together(nodes.hosts or ()),
            "domain": _together(nodes.domains or ()),
        }
        every = range(nodes.total)
        #: What a random failure of a class may strike: a node of each.
        self._struck: dict[Severity, Sequence[int]] = {
            "process": every,
            "host": every if nodes.hosts is None else [n for n in every if n == self._failing("host", n)[0]],
            "domain": [node for node, nodes in self._together["domain"].items() if node == nodes[0]],
        }
        #: Counts and tells of losses; None: it is not said what fails.
        self.losses = Losses(world, nodes) if world.machine.tells_losses else None

    def schedule(self) -> None:
        """Enter the listed failures and the first random one of each class.

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
            for what in FAILING:
                self._next_random(what, jobs[0].submit_s)

    def _next_random(self, what: Severity, after_s: float, idle_until_s: float = -inf) -> None:
        """Enter the next one after `after_s`; of those before `idle_until_s` nobody would notice anything."""
        mtbf_s = self._world.machine.failures.mtbf_s[what]
        if mtbf_s is None:
            return
        rate = len(self._struck[what]) / mtbf_s
        at_s = after_s + self._rng[what].expovariate(rate)
        passed = 0
        while at_s < idle_until_s < inf:
            passed += 1
            # of what fails at random nothing depends on when the last one was
            from_s = idle_until_s if passed > _MOST_PASSED else at_s
            at_s = from_s + self._rng[what].expovariate(rate)
        self._calendar.enter(at_s, NODE_FAILS, None, what)

    def happen(self, failure: NodeFailure | Severity, next_s: float) -> list[Lost]:
        """Something fails: what is listed, or anything of a class; nothing when it is down, or not there.

        Random failures strike machines that work: while no job holds a node, none happens. Else a job that
        needs many nodes would wait for ever for all of them to be up at once. `next_s` is when anything else
        happens: until then no job gets nodes.
        """
        if not isinstance(failure, NodeFailure):
            self._next_random(failure, self._world.now_s, -inf if self._nodes.held else next_s)
            if not self._nodes.held:
                return []
            failure = self._drawn(failure)
        what = failure.severity or "host"
        # nobody asks what failed: the node alone
        nodes = [failure.node] if failure.severity is None else self._failing(what, failure.node)
        down, absent = self._nodes.down_ids, self._nodes.absent
        nodes = [node for node in nodes if node not in down and node not in absent]
        if not nodes:
            return []
        found = self._process(nodes[0]) if what == "process" else self._down(nodes, failure.downtime_s, what)
        if self.losses is not None:
            self.losses.note(what, nodes)
        return found

    def _drawn(self, what: Severity) -> NodeFailure:
        """A failure of a class, wherever it strikes."""
        node = self._rng[what].choice(self._struck[what])
        downtime_s = self._world.machine.failures.downtime_s
        return NodeFailure(t_s=self._world.now_s, node=node, downtime_s=downtime_s, severity=what)

    def _failing(self, what: Severity, node: int) -> list[int]:
        """The nodes that a failure of this class takes when it strikes a node."""
        return self._together[what].get(node, [node])

    def _process(self, node: int) -> list[Lost]:
        active = self._nodes.holder[node]
        return [] if active is None else [Lost(active, gone=0, severity="process")]

    def _down(self, nodes: list[int], downtime_s: float, what: Severity) -> list[Lost]:
        back_s = self._world.now_s + downtime_s
        gone: dict[int, int] = {}
        holders: dict[int, ActiveJob] = {}
        for node in nodes:
            active = self._nodes.fail(node, back_s)
            self._calendar.enter(back_s, NODE_BACK, None, node)
            if active is not None:
                holders[active.key] = active
                gone[active.key] = gone.get(active.key, 0) + 1
        lost = [Lost(active, survives(active, gone[key]), gone[key], what) for key, active in holders.items()]
        return lost or [Lost(None)]


def _together(labels: Sequence[str | None]) -> dict[int, list[int]]:
    """For each node that has a label, all nodes that have it."""
    found: dict[str, list[int]] = {}
    for node, label in enumerate(labels):
        if label is not None:
            found.setdefault(label, []).append(node)
    return {node: nodes for nodes in found.values() for node in nodes}


def survives(active: ActiveJob, gone: int = 1) -> bool:
    """Whether a job that has just lost so many nodes, which its number still counts, goes on without them."""
    job = active.job
    left = active.nodes - gone
    return (
        job.kind in ("malleable", "evolving")
        and active.round is None
        and left >= job.min_nodes
        and is_legal(job.constraint, left)
    )
