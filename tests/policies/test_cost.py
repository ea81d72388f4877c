"""What a policy pass costs does not depend on the number of nodes, and grows with the jobs in line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from dask_hpc_policies import registry
from dask_hpc_policies.jobs.constraints import CONSTRAINTS, largest_at_most
from dask_hpc_policies.model import ClusterSnapshot, Demand, JobView, NodeView


class Untouched(tuple[NodeView, ...]):
    """Nodes that nobody may look at one by one."""

    def __iter__(self) -> Iterator[NodeView]:
        raise AssertionError("a pass looked at every node")

    def __getitem__(self, index: Any) -> NoReturn:
        raise AssertionError("a pass looked at a node")


def _view(pending: int, nodes: int, idle: int, head_need: int, total: int = 100) -> ClusterSnapshot:
    """`total` jobs, `pending` of them waiting; the rest hold all but `idle` of the nodes."""
    running = total - pending
    jobs = []
    for i in range(running):
        constraint = CONSTRAINTS[i % len(CONSTRAINTS)]
        size = largest_at_most(constraint, max(1, (nodes - idle) // running), 1) or 1
        jobs.append(
            JobView(
                id=f"r{i}",
                state="running",
                kind="malleable",
                nodes=max(size, 2 if constraint == "even" else 1),
                min_nodes=2 if constraint == "even" else 1,
                max_nodes=nodes,
                constraint=constraint,
                submit_s=i,
                start_s=float(i * 7 % 100),
                remaining_s=500.0 + i,
                mtct=(i * 37 % 100) / 50,
            )
        )
    jobs += [
        JobView(id=f"p{i}", min_nodes=head_need, max_nodes=nodes, submit_s=200.0 + i) for i in range(pending)
    ]
    held = sum(job.nodes for job in jobs)
    return ClusterSnapshot(
        now_s=1000.0,
        nodes=Untouched(NodeView(id=f"n{i}") for i in range(nodes)),
        jobs=tuple(jobs),
        idle_nodes=nodes - held,
        demand=Demand(occupancy_s=1e5, ready_tasks=10_000, processing_tasks=1000),
    )


VIEWS = {
    "growing": _view(0, 1000, 100, 1),
    "head waits and fits after shrinks": _view(50, 1000, 3, 600),
    "head waits in vain": _view(50, 1000, 3, 1000),
    "many start": _view(90, 1000, 500, 3),
}


def _calls(policy: registry.Policy, view: ClusterSnapshot) -> int:
    """Function calls that one pass makes: a measure of its work that no machine's load changes."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    state = policy.initial_state()
    sys.setprofile(profile)
    try:
        policy.decide(view, state)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("name", [name for name in registry.BUILTIN if name != "dask-default"])
def test_a_pass_looks_at_no_node(name: str, view: ClusterSnapshot) -> None:
    policy = registry.create(name)
    decision, _ = policy.decide(view, policy.initial_state())
    assert decision.actions or decision.suppressed or not view.pending


@pytest.mark.parametrize("name", [name for name in registry.BUILTIN if name != "dask-default"])
def test_twice_the_jobs_cost_about_twice(name: str) -> None:
    policy = registry.create(name)
    one = _calls(policy, _view(50, 4000, 100, 4000, total=100))
    two = _calls(policy, _view(100, 4000, 100, 4000, total=200))
    print(f"{name:20} calls: {one} with 100 jobs, {two} with 200")
    assert two <= 2.6 * one
