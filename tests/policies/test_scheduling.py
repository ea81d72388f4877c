"""What the builtin policies decide in situations taken from their sources."""

from __future__ import annotations

from typing import Any

import pytest

from dask_hpc_policies.decision import (
    Decision,
    Expand,
    Hold,
    ReasonCode,
    ReleaseNodes,
    RequestNodes,
    Shrink,
    Start,
)
from dask_hpc_policies.model import ClusterSnapshot, Demand, JobView, NodeView
from dask_hpc_policies.registry import BUILTIN, create
from dask_hpc_policies.rules.dask_default import DaskDefaultState, target_nodes


def running(name: str, nodes: int, lo: int = 1, hi: int = 16, **more: Any) -> JobView:
    return JobView(
        id=name,
        **{"state": "running", "nodes": nodes, "min_nodes": lo, "max_nodes": hi, "start_s": 0.0, **more},
    )


def waiting(name: str, nodes: int | None = None, lo: int = 1, hi: int = 16, **more: Any) -> JobView:
    return JobView(id=name, start_nodes=nodes, min_nodes=lo, max_nodes=hi, **more)


def view(idle: int, *jobs: JobView, pool: int = 16, **more: Any) -> ClusterSnapshot:
    nodes = tuple(NodeView(id=f"n{i}") for i in range(pool))
    return ClusterSnapshot(now_s=100.0, nodes=nodes, jobs=jobs, idle_nodes=idle, **more)


def decide(name: str, snapshot: ClusterSnapshot, **params: Any) -> Decision:
    policy = create(name, **params)
    return policy.decide(snapshot, policy.initial_state())[0]


def short(decision: Decision) -> list[tuple[Any, ...]]:
    """Actions as (kind, job, nodes), holds as (kind, job, reason code)."""
    rows: list[tuple[Any, ...]] = []
    for action in decision.actions:
        if isinstance(action, Hold):
            rows.append(("hold", action.job, action.reason.code.value))
        elif isinstance(action, (Start, Expand, Shrink)):
            rows.append((action.TAG, action.job, action.nodes))
    return rows


HEAD_WAITS = view(3, running("a", 13), waiting("h", 8), waiting("small", 1))


def test_fcfs_blocks_everybody_behind_the_head_and_says_why() -> None:
    decision = decide("fcfs", HEAD_WAITS)
    assert short(decision) == [("hold", "h", "not-enough-nodes"), ("hold", "small", "behind-head")]
    assert "8" in decision.actions[0].reason.text
    assert "3" in decision.actions[0].reason.text


@pytest.mark.parametrize("name", sorted(set(BUILTIN) - {"easy", "conservative", "fair"}))
def test_every_policy_starts_in_order_while_the_head_fits(name: str) -> None:
    # Figure 5.1: 10 CPUs, jobs of 8, 4, 2 and 8.
    jobs = [waiting(f"J{i}", n, n, n, kind="rigid") for i, n in enumerate((8, 4, 2, 8), start=1)]
    assert short(decide(name, view(10, *jobs, pool=10)))[:2] == [
        ("start", "J1", 8),
        ("hold", "J2", "not-enough-nodes"),
    ]


@pytest.mark.parametrize("name", sorted(set(BUILTIN) - {"fixed", "io-aware"}))
def test_a_moldable_start_takes_the_largest_legal_size_that_fits(name: str) -> None:
    decision = decide(name, view(30, waiting("m", lo=16, hi=36, constraint="square"), pool=30))
    assert short(decision) == [("start", "m", 25)]
    assert decision.actions[0].reason.code is ReasonCode.MOLDED_TO_FIT


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_a_job_below_its_minimum_is_served_before_any_start(name: str) -> None:
    lost = running("lost", 2, 4, 4, kind="rigid", start_nodes=4)
    assert short(decide(name, view(3, lost, waiting("w", 2))))[:2] == [
        ("expand", "lost", 4),
        ("hold", "w", "not-enough-nodes"),
    ]
    part = decide(name, view(1, running("lost", 1, 4, 8, constraint="pof2"), waiting("w", 1)))
    assert short(part)[0] == ("expand", "lost", 2)
    assert part.actions[0].reason.code is ReasonCode.BELOW_MINIMUM
    none = decide(name, view(0, lost))
    assert short(none) == []
    assert none.suppressed[0].reason.code is ReasonCode.NOT_ENOUGH_NODES


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_the_default_job_starts_at_its_minimum_and_is_never_resized(name: str) -> None:
    pending = waiting("default", lo=2, hi=16, is_default=True)
    assert ("start", "default", 2) in short(decide(name, view(8, pending)))
    present = running("default", 1, 2, 16, is_default=True)
    assert all(row[1] != "default" for row in short(decide(name, view(8, present, waiting("w", 12)))))


def test_pwma_shrinks_youngest_first_and_starts_the_head_in_the_same_decision() -> None:
    jobs = running("J3", 6, 4, start_s=0.0), running("J4", 10, 4, start_s=5.0), waiting("J5", 8)
    assert short(decide("pwma-fpsma", view(0, *jobs))) == [
        ("shrink", "J4", 4),
        ("shrink", "J3", 4),
        ("start", "J5", 8),
    ]
    # Equal shares of 4 and 4 do not exist: J3 has only 2 to give.
    assert short(decide("pwma-egs", view(0, *jobs))) == [("hold", "J5", "not-enough-nodes")]


def test_pwma_shrinks_nobody_when_all_together_cannot_make_room_and_grows_instead() -> None:
    decision = decide(
        "pwma-fpsma",
        view(2, running("J1", 10, 8, 16), running("r", 4, 4, 4, kind="rigid"), waiting("J2", 16)),
    )
    assert short(decision) == [("expand", "J1", 12), ("hold", "J2", "not-enough-nodes")]
    assert decision.actions[-1].reason.data["reclaimable_nodes"] == 2


def test_pwma_needs_only_what_idle_nodes_do_not_cover() -> None:
    assert short(decide("pwma-fpsma", HEAD_WAITS))[:2] == [("shrink", "a", 8), ("start", "h", 8)]


def test_pwma_shrinks_a_job_that_was_never_expanded() -> None:
    job = running("a", 12, 2, 16, start_nodes=12)
    assert ("shrink", "a", 8) in short(decide("pwma-fpsma", view(4, job, waiting("h", 8))))


@pytest.mark.parametrize("name", ["prma-fpsma", "prma-egs"])
def test_prma_never_shrinks_and_expands_a_job_at_most_twice(name: str) -> None:
    assert short(decide(name, HEAD_WAITS))[0] == ("expand", "a", 16)
    often = view(3, running("a", 8, expansions=2))
    decision = decide(name, often)
    assert short(decision) == []
    assert decision.suppressed[0].reason.code is ReasonCode.EXPANSION_CAP
    assert short(decide(name, often, max_expansions=None)) == [("expand", "a", 11)]


@pytest.mark.parametrize("name", ["prma-fpsma", "prma-egs", "pwma-fpsma", "pwma-egs", "equipartition"])
def test_idle_nodes_are_used_when_nobody_waits(name: str) -> None:
    assert short(decide(name, view(12, running("J1", 4, 4, 16)))) == [("expand", "J1", 16)]


def test_egs_divides_idle_nodes_equally() -> None:
    jobs = running("a", 2, start_s=1.0), running("b", 6, start_s=0.0), running("c", 3, start_s=2.0)
    assert short(decide("pwma-egs", view(5, *jobs))) == [
        ("expand", "b", 8),
        ("expand", "a", 4),
        ("expand", "c", 4),
    ]


def test_performance_aware_shrinks_the_worst_and_grows_the_best() -> None:
    jobs = (
        running("good", 6, mtct=0.1),
        running("bad", 6, mtct=2.0),
        running("unknown", 2),
        running("fair", 2, mtct=0.5),
    )
    assert short(decide("performance-aware", view(0, *jobs, waiting("h", 6)))) == [
        ("shrink", "bad", 1), ("shrink", "fair", 1), ("start", "h", 6)
    ]  # fmt: skip
    grown = decide("performance-aware", view(3, *jobs))
    assert short(grown) == [("expand", "good", 9)]
    unmeasured = decide("performance-aware", view(3, running("unknown", 2)))
    assert short(unmeasured) == []
    assert unmeasured.suppressed[0].reason.code is ReasonCode.NO_PERFORMANCE_DATA


def test_performance_aware_jumps_several_constraint_steps() -> None:
    decision = decide(
        "performance-aware", view(0, running("a", 10, constraint="even", mtct=1.0), waiting("h", 8))
    )
    assert short(decision) == [("shrink", "a", 2), ("start", "h", 8)]


def test_equipartition_divides_equally_and_makes_room_for_the_head() -> None:
    jobs = running("a", 12, start_s=0.0), running("b", 3, start_s=1.0)
    assert short(decide("equipartition", view(0, *jobs, pool=15))) == [("shrink", "a", 8), ("expand", "b", 7)]
    assert short(decide("equipartition", view(1, *jobs, waiting("h", 6)))) == [
        ("shrink", "a", 5), ("expand", "b", 5), ("start", "h", 6)
    ]  # fmt: skip


def test_fixed_brings_every_malleable_job_to_the_target() -> None:
    jobs = (
        running("big", 10),
        running("low", 2),
        running("r", 3, 3, 3, kind="rigid"),
        running("p", 8, constraint="pof2"),
        waiting("m", lo=1, hi=16),
    )
    assert short(decide("fixed", view(3, *jobs, pool=26), target_nodes=5)) == [
        ("start", "m", 3), ("shrink", "big", 5), ("shrink", "p", 4)
    ]  # fmt: skip
    assert short(decide("fixed", view(9, running("low", 2)), target_nodes=5)) == [("expand", "low", 5)]
    assert short(decide("fixed", view(9, running("low", 2)))) == []


def test_step_next_moves_by_one_legal_size() -> None:
    even = view(8, running("a", 2, constraint="even"))
    assert short(decide("pwma-fpsma", even, step="next")) == [("expand", "a", 4)]
    assert short(decide("pwma-fpsma", even)) == [("expand", "a", 10)]


def test_lock_system_stops_resizes_but_not_starts_while_a_job_adapts() -> None:
    adapting = running("x", 4, state="adapting")
    jobs = running("a", 8), adapting, waiting("fits", 2), waiting("h", 8)
    locked = decide("pwma-fpsma", view(4, *jobs, lock="system"))
    assert short(locked) == [("start", "fits", 2), ("hold", "h", "locked")]
    assert [(s.action.TAG, s.reason.code.value) for s in locked.suppressed] == [("shrink", "locked")]
    free = decide("pwma-fpsma", view(4, *jobs))
    assert short(free) == [("start", "fits", 2), ("shrink", "a", 2), ("start", "h", 8)]


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_an_adapting_job_gets_no_action(name: str) -> None:
    jobs = running("x", 4, state="adapting", mtct=1.0), waiting("h", 14)
    assert all(row[1] != "x" for row in short(decide(name, view(12, *jobs))))


def test_a_job_without_a_legal_size_blocks_nobody() -> None:
    impossible = waiting("i", lo=5, hi=7, constraint="pof2")
    assert short(decide("fcfs", view(8, impossible, waiting("w", 2)))) == [
        ("start", "w", 2), ("hold", "i", "no-legal-size")
    ]  # fmt: skip


# Pool size: the arithmetic and the patience of Dask's own adaptive scaling


@pytest.mark.parametrize(
    ("demand", "nodes", "nthreads", "target"),
    [
        (Demand(occupancy_s=100.0, ready_tasks=90, processing_tasks=10), 4, 4, 20),
        (Demand(occupancy_s=100.0, ready_tasks=90, processing_tasks=10), 4, 16, 5),
        (Demand(occupancy_s=1000.0, ready_tasks=0, processing_tasks=3), 4, 4, 3),  # long tasks: threads
        (Demand(ready_tasks=5), 0, 0, 1),
        (Demand(used_bytes=70, limit_bytes=100), 4, 4, 8),
        (Demand(), 4, 4, 0),
        (Demand(closable_nodes=1), 4, 4, 3),
        (Demand(used_bytes=40, limit_bytes=100), 10, 10, 8),
    ],
)
def test_dask_default_target(demand: Demand, nodes: int, nthreads: int, target: int) -> None:
    assert target_nodes(demand, nodes, nthreads, 5.0) == target


def test_dask_default_scales_up_at_once_and_down_after_wait_count() -> None:
    policy = create("dask-default", minimum=1, maximum=12, wait_count=3)
    busy = view(4, pool=4, demand=Demand(occupancy_s=1e4, ready_tasks=5000))
    decision, state = policy.decide(busy, policy.initial_state())
    (request,) = decision.actions
    assert isinstance(request, RequestNodes)
    assert (request.nodes, request.reason.code) == (12, ReasonCode.DEMAND)
    quiet = view(4, pool=4, demand=Demand())
    sizes = []
    for _ in range(3):
        decision, state = policy.decide(quiet, state)
        sizes.append([(type(a), a.nodes) for a in decision.actions if isinstance(a, ReleaseNodes)])
    assert sizes == [[], [], [(ReleaseNodes, 1)]]


def test_dask_default_releases_only_nodes_that_every_recommendation_named() -> None:
    policy = create("dask-default", wait_count=2)
    state = DaskDefaultState()
    for closable in (3, 1):
        decision, state = policy.decide(view(4, pool=4, demand=Demand(closable_nodes=closable)), state)
    (release,) = decision.actions
    assert isinstance(release, ReleaseNodes)
    assert release.nodes == 3
    _, state = policy.decide(view(4, pool=4, demand=Demand(occupancy_s=1e4, ready_tasks=5000)), state)
    assert state == DaskDefaultState()
