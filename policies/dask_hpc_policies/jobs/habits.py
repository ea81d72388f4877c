"""What a policy does with nodes that are idle, and for a job that lacks some: seen by asking it.

Rules of the file: pure. A policy is anybody's code, and declares nothing of the kind; a forecast needs to
know whether jobs that run grow into what others leave, and whether they shrink for one that waits. So the
policy is asked about a small cluster in each of these states. One that fails there does neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_hpc_policies.decision import Decision, Expand, Shrink
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView

if TYPE_CHECKING:
    from dask_hpc_policies.protocol import Policy

_NODES = 4
#: It runs long enough that waits between two resizes, which filters may ask for, are over.
_NOW_S = 1e6
_WORK_S = 1e4


@dataclass(frozen=True, slots=True)
class Habits:
    """Whether malleable jobs grow into idle nodes, and shrink for the first job that waits."""

    grows: bool = False
    makes_room: bool = False


#: Of a policy that resizes nobody.
NONE = Habits()


def habits_of(policy: Policy) -> Habits:
    """The habits of `policy`, which is asked twice."""
    return Habits(
        grows=_does(policy, _state(held=1, waits=False), Expand),
        makes_room=_does(policy, _state(held=_NODES, waits=True), Shrink),
    )


def _does(policy: Policy, view: ClusterSnapshot, kind: type) -> bool:
    try:
        decision, _ = policy.decide(view, policy.initial_state())
        return isinstance(decision, Decision) and any(isinstance(one, kind) for one in decision.actions)
    except Exception:
        return False


def _state(held: int, waits: bool) -> ClusterSnapshot:
    """A malleable job that holds so many of four nodes, and a rigid one that waits for two."""
    runs = JobView(
        id="runs",
        kind="malleable",
        state="running",
        nodes=held,
        start_nodes=held,
        min_nodes=1,
        max_nodes=_NODES,
        submit_s=0.0,
        start_s=0.0,
        remaining_s=_WORK_S,
        walltime_s=_NOW_S + _WORK_S,
        unfinished_tasks=1000,
        processing_tasks=held,
    )
    late = JobView(
        id="waits", start_nodes=2, min_nodes=2, max_nodes=2, submit_s=1.0, walltime_s=_WORK_S, user="another"
    )
    nodes = tuple(NodeView(id=f"n{i}", job="runs" if i < held else None) for i in range(_NODES))
    jobs = (runs, late) if waits else (runs,)
    return ClusterSnapshot(now_s=_NOW_S, nodes=nodes, jobs=jobs, idle_nodes=_NODES - held, trigger="finish")
