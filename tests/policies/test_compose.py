"""Guards, chain and arbiter: what they hold back, and that it is recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from dask_hpc_policies.combine.guards import Clamp, Cooldown, Hysteresis, MtctFilter
from dask_hpc_policies.combine.merge import Arbiter, Chain
from dask_hpc_policies.decision import (
    Action,
    Decision,
    Expand,
    Reason,
    ReasonCode,
    ReleaseNodes,
    RequestNodes,
    Shrink,
    Start,
)
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.params import ParameterError
from dask_hpc_policies.registry import create


def running(name: str, nodes: int, lo: int = 1, hi: int = 16, **more: Any) -> JobView:
    return JobView(id=name, state="running", nodes=nodes, min_nodes=lo, max_nodes=hi, start_s=0.0, **more)


def view(idle: int, *jobs: JobView, now_s: float = 0.0) -> ClusterSnapshot:
    return ClusterSnapshot(now_s=now_s, jobs=jobs, idle_nodes=idle)


def rows(decision: Decision) -> list[tuple[str, str, Any]]:
    return [(a.TAG, getattr(a, "job", ""), getattr(a, "nodes", None)) for a in decision.actions]


def turned_down(decision: Decision) -> list[tuple[str, str, str]]:
    return [(s.action.TAG, getattr(s.action, "job", ""), s.reason.code.value) for s in decision.suppressed]


WAITING = JobView(id="h", start_nodes=6, min_nodes=6, max_nodes=6, kind="rigid")


def test_clamp_bounds_growth_moldable_starts_and_shrinks() -> None:
    policy = Clamp(create("pwma-fpsma"), min_nodes=3, max_nodes=6)
    decision, _ = policy.decide(view(12, running("a", 4)), None)
    assert rows(decision) == [("expand", "a", 6)]
    assert turned_down(decision) == [("expand", "a", "clamped")]
    decision, _ = policy.decide(view(12, JobView(id="m", min_nodes=1, max_nodes=16)), None)
    assert rows(decision) == [("start", "m", 6)]
    # Two jobs at 4 may give one each down to 3: not enough for the head, so nobody gives.
    decision, _ = policy.decide(view(0, running("a", 4), running("b", 4), WAITING), None)
    assert rows(decision) == [("hold", "h", None)]
    assert ("shrink", "a", "clamped") in turned_down(decision)


def test_clamp_never_takes_a_job_below_its_own_minimum() -> None:
    decision, _ = Clamp(create("pwma-fpsma"), max_nodes=2).decide(view(3, running("a", 5, lo=5)), None)
    assert rows(decision) == []


def test_hysteresis_waits_for_consecutive_proposals() -> None:
    policy = Hysteresis(create("pwma-fpsma"), passes=3)
    state = policy.initial_state()
    seen = []
    for idle in (2, 2, 0, 2, 2, 2):  # the interruption starts the count again
        decision, state = policy.decide(view(idle, running("a", 4)), state)
        seen.append(rows(decision))
    assert seen == [[], [], [], [], [], [("expand", "a", 6)]]


def test_hysteresis_keeps_a_shrink_and_the_start_it_serves_together() -> None:
    policy = Hysteresis(create("pwma-fpsma"), passes=2)
    picture = view(0, running("a", 8), WAITING)
    first, state = policy.decide(picture, policy.initial_state())
    assert rows(first) == [("hold", "h", None)]
    assert turned_down(first) == [("shrink", "a", "hysteresis")]
    second, _ = policy.decide(picture, state)
    assert rows(second) == [("shrink", "a", 2), ("start", "h", 6)]


def test_cooldown_leaves_a_job_alone_after_its_size_changed() -> None:
    policy = Cooldown(create("pwma-fpsma"), cooldown_s=30)
    state = policy.initial_state()
    seen = []
    for now_s, nodes in ((0.0, 4), (10.0, 6), (39.0, 6), (40.0, 6)):
        decision, state = policy.decide(view(2, running("a", nodes), now_s=now_s), state)
        seen.append((rows(decision), turned_down(decision)))
    assert seen[0][0] == [("expand", "a", 6)]
    assert seen[1] == seen[2] == ([], [("expand", "a", "cooldown")])
    assert seen[3][0] == [("expand", "a", 8)]


def test_guards_do_not_hold_back_a_job_below_its_minimum() -> None:
    policy = Hysteresis(Cooldown(MtctFilter(Clamp(create("fcfs"), max_nodes=1))), passes=9)
    decision, _ = policy.decide(view(2, running("a", 1, lo=3)), policy.initial_state())
    assert rows(decision) == [("expand", "a", 3)]
    assert turned_down(decision) == []


@pytest.mark.parametrize(
    ("mtct", "previous", "grows", "shrinks"),
    [(0.4, None, True, False), (0.7, None, False, False), (0.7, 0.4, True, False), (1.2, None, False, True),
     (None, None, False, False)],
)  # fmt: skip
@pytest.mark.parametrize("base", ["pwma-fpsma", "pwma-egs"])
def test_mtct_filter(
    base: str, mtct: float | None, previous: float | None, grows: bool, shrinks: bool
) -> None:
    policy = MtctFilter(create(base), lower=0.5, upper=1.0)
    job = running("a", 8, mtct=mtct, mtct_previous=previous)
    grown, _ = policy.decide(view(2, job), None)
    assert rows(grown) == ([("expand", "a", 10)] if grows else [])
    shrunk, _ = policy.decide(view(0, job, WAITING), None)
    assert rows(shrunk) == ([("shrink", "a", 2), ("start", "h", 6)] if shrinks else [("hold", "h", None)])
    if not grows:
        expected = "no-performance-data" if mtct is None else "threshold"
        assert turned_down(grown) == [("expand", "a", expected)]


def test_mtct_filter_passes_over_a_protected_job_to_the_next() -> None:
    policy = MtctFilter(create("pwma-fpsma"))
    jobs = (
        replace(running("old", 8, mtct=2.0), start_s=0.0),
        replace(running("young", 8, mtct=0.1), start_s=9.0),
    )
    decision, _ = policy.decide(view(0, *jobs, WAITING), None)
    assert rows(decision) == [("shrink", "old", 2), ("start", "h", 6)]


def test_wrong_guard_parameters_are_refused() -> None:
    with pytest.raises(ParameterError, match="mtct_lower"):
        MtctFilter(create("fcfs"), lower=2.0, upper=1.0)
    with pytest.raises(ParameterError, match="clamp_min_nodes"):
        Clamp(create("fcfs"), min_nodes=3, max_nodes=2)
    with pytest.raises(ParameterError, match="policies"):
        Chain()


@dataclass(frozen=True)
class Says:
    """A policy that always answers the same."""

    actions: tuple[Action, ...]
    name: str = "says"

    def initial_state(self) -> None:
        return None

    def decide(self, view: ClusterSnapshot, state: Any) -> tuple[Decision, Any]:
        known = {job.id for job in view.jobs}
        return Decision(
            actions=tuple(a for a in self.actions if getattr(a, "job", "") in {*known, ""})
        ), state


WHY = Reason(ReasonCode.IDLE_NODES, "test")
FOR_HEAD = Reason(ReasonCode.HEAD_JOB_WAITS, "test", {"head": "h"})


def test_arbiter_prefers_the_earlier_and_records_the_rest() -> None:
    first = Says((Expand(job="a", nodes=6, reason=WHY), RequestNodes(nodes=9, reason=WHY)))
    second = Says((Shrink(job="a", nodes=2, reason=WHY), ReleaseNodes(nodes=3, reason=WHY)))
    policy = Arbiter(first, second)
    decision, _ = policy.decide(view(2, running("a", 4)), policy.initial_state())
    assert rows(decision) == [("expand", "a", 6), ("request-nodes", "", 9)]
    assert turned_down(decision) == [("shrink", "a", "conflict"), ("release-nodes", "", "conflict")]


def test_arbiter_gives_no_node_twice_and_drops_what_a_lost_start_needed() -> None:
    takes = Says((Expand(job="a", nodes=6, reason=WHY),))
    serves = Says((Shrink(job="b", nodes=2, reason=FOR_HEAD), Start(job="h", nodes=4, reason=WHY)))
    policy = Arbiter(takes, serves)
    head = replace(WAITING, start_nodes=4)
    decision, _ = policy.decide(view(2, running("a", 4), running("b", 4), head), policy.initial_state())
    # b frees 2, but the 2 idle ones went to a: h lacks 2, so b keeps its nodes.
    assert rows(decision) == [("expand", "a", 6), ("hold", "h", None)]
    assert turned_down(decision) == [("start", "h", "conflict"), ("shrink", "b", "conflict")]


@pytest.mark.parametrize("beside", ["interval-daly", "placement", Cooldown(create("interval-fixed"))])
def test_a_policy_for_something_else_starts_nobody_whom_the_one_before_it_holds(beside: Any) -> None:
    # by then there are nodes for h, and s would have two of them for a long time
    ends = running("r", 4, 4, 4, user="ada", remaining_s=50.0)
    slow = JobView(id="s", start_nodes=2, min_nodes=2, max_nodes=2, user="ada", walltime_s=1e3)
    picture = view(2, ends, slow, replace(WAITING, user="bob"), now_s=10.0)
    alone = create("fair")
    for policy in (alone, Chain(alone, create(beside)), Arbiter(alone, create(beside))):
        decision, _ = policy.decide(picture, policy.initial_state())
        assert rows(decision) == [("hold", "s", None), ("hold", "h", None)]


def test_a_policy_for_something_else_makes_room_by_itself_and_has_nobody_grow_before_those_who_wait() -> None:
    @dataclass(frozen=True)
    class Beside(Says):
        beside: bool = True

    grow, start = Expand(job="a", nodes=5, reason=WHY), Start(job="h", nodes=6, reason=WHY)
    holds = create("fixed", target_nodes=None)
    for first, done in (
        (Shrink(job="b", nodes=2, reason=FOR_HEAD), [("shrink", "b", 2), ("start", "h", 6)]),
        (grow, [("hold", "h", None)]),
    ):
        policy = Chain(holds, Beside((first, start)))
        picture = view(4, running("a", 4), running("b", 4), WAITING)
        decision, _ = policy.decide(picture, policy.initial_state())
        assert rows(decision) == done


def test_chain_shows_each_member_what_is_left() -> None:
    first = Says((Expand(job="a", nodes=5, reason=WHY),))
    policy = Chain(first, create("pwma-fpsma"))
    decision, _ = policy.decide(view(3, running("a", 4), running("b", 4)), policy.initial_state())
    assert rows(decision) == [("expand", "a", 5), ("expand", "b", 6)]
