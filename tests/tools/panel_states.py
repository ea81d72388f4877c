"""A state of a cluster in which another policy would do better, for what the panel predicts from it."""

from __future__ import annotations

from dask_hpc_policies import registry
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView

FCFS, MALLEABLE = (registry.spec_of(registry.create(name)) for name in ("fcfs", "pwma-fpsma"))
ASSUMED_S = 60.0


def job(number, nodes, low, high, tasks):
    return JobView(
        id=f"j-{number}", name=f"<b>{number}", state="running" if nodes else "pending", kind="malleable",
        nodes=nodes, min_nodes=low, max_nodes=high, submit_s=float(number),
        start_s=float(number) if nodes else None, unfinished_tasks=tasks,
    )  # fmt: skip


#: One job has all four nodes for 100 s, and a short one waits for two of them.
STATE = ClusterSnapshot(
    now_s=100.0,
    nodes=tuple(NodeView(id=f"n{i}", job="j-1", nthreads=1) for i in range(4)),
    jobs=(job(1, 4, 1, 4, 400), job(2, 0, 2, 2, 20)),
)
ROWS = [
    {"id": id, "closed": True, "phases": [{"tasks": 50, "compute_s": 50.0}], "held_task_s": None}
    for id in ("j-1", "j-2")
]
