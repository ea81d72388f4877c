"""A state of a cluster in which another policy would do better, for what the panel predicts from it."""

from __future__ import annotations

from dask_hpc.trace.records import NodeEvent
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


def large():
    """A state of 500 nodes and 100 jobs, sixty of which wait, and the nodes as ``status`` has them."""
    jobs = [
        JobView(
            id=f"j-{i + 1}", name=f"job-{i}", state="running" if i < 40 else "pending", kind="malleable",
            nodes=12 if i < 40 else 0, min_nodes=1 + i % 9, max_nodes=40, submit_s=float(i),
            start_s=float(i) if i < 40 else None, remaining_s=100.0 + 7 * (i * 37 % 91),
        )
        for i in range(100)
    ]  # fmt: skip
    views = [
        NodeView(id=f"node-{i}", job=f"j-{i // 12 + 1}" if i < 480 else None, nthreads=1) for i in range(500)
    ]
    state = ClusterSnapshot(now_s=100.0, nodes=tuple(views), jobs=tuple(jobs), idle_nodes=20)
    return state, [{"id": one.id, "job": one.job, "state": "up"} for one in views]


def many_changes():
    """What 80 changes of each of 100 jobs on 500 nodes leave in a trace."""
    return [
        NodeEvent(
            t_s=float(change),
            nodes=tuple(f"node-{(7 * change + i) % 500}" for i in range(4)),
            job=f"j-{job + 1}",
        )
        for change in range(80)
        for job in range(100)
    ]
