"""The arbiter on decisions small enough to be followed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.limits import AnyGuard, BoundGuard, Limit, SumGuard, VetoGuard
from dask_hpc_policies.decision import (
    Action,
    Decision,
    Expand,
    Hold,
    Reason,
    ReasonCode,
    RequestNodes,
    Shrink,
    Start,
    Steal,
)
from dask_hpc_policies.model import ClusterSnapshot, JobView


def reason(code: ReasonCode = ReasonCode.IDLE_NODES, **data: Any) -> Reason:
    return Reason(code, "because", data)


BECAUSE = reason()


def start(job: str, nodes: int) -> Start:
    return Start(job=job, nodes=nodes, reason=reason(ReasonCode.FITS))


def expand(job: str, nodes: int, code: ReasonCode = ReasonCode.IDLE_NODES) -> Expand:
    return Expand(job=job, nodes=nodes, reason=reason(code))


def shrink(job: str, nodes: int, code: ReasonCode = ReasonCode.POOL_SHARED, **data: Any) -> Shrink:
    return Shrink(job=job, nodes=nodes, reason=reason(code, **data))


def running(id: str, nodes: int, lo: int = 1, hi: int = 16, **more: Any) -> JobView:
    return JobView(id=id, state="running", nodes=nodes, min_nodes=lo, max_nodes=hi, start_s=0.0, **more)


def pending(id: str, nodes: int, lo: int | None = None, **more: Any) -> JobView:
    """A job that starts on exactly `nodes`; with `lo` a moldable start up to `nodes`."""
    exact = nodes if lo is None else None
    return JobView(id=id, start_nodes=exact, min_nodes=lo or nodes, max_nodes=nodes, **more)


def view(idle: int, *jobs: JobView) -> ClusterSnapshot:
    return ClusterSnapshot(now_s=0.0, jobs=jobs, idle_nodes=idle)


def watts(lower: float | None = None, upper: float | None = None, **more: Any) -> SumGuard:
    """100 W a node that a job holds."""
    fields: dict[str, Any] = {"name": "corridor", "rank": "corridor", "unit": "W", **more}
    return SumGuard(cost=lambda job, nodes: 100.0 * nodes, lower=lower, upper=upper, **fields)


def judged(picture: ClusterSnapshot, guards: list[AnyGuard], *actions: Action, whole: bool = False) -> Any:
    """What is let through: rows of actions; then what is refused or cut, with the code of the reason."""
    decision = arbitrate(picture, Decision(actions=actions, whole=whole), guards)
    through = [(a.TAG, getattr(a, "job", ""), getattr(a, "nodes", None)) for a in decision.actions]
    refused = [(s.action.TAG, getattr(s.action, "job", ""), s.reason.code.value) for s in decision.suppressed]
    return through, refused


def test_growth_is_cut_to_a_legal_size_that_keeps_the_sum() -> None:
    picture = view(8, running("a", 4, constraint="pof2"))
    through, refused = judged(picture, [watts(upper=700)], expand("a", 12))
    assert through == []
    assert refused == [("expand", "a", "outside-sum")]
    picture = view(12, running("a", 4, constraint="even"))
    decision = arbitrate(picture, Decision(actions=(expand("a", 14),)), [watts(upper=1100)])
    assert [(a.job, a.nodes) for a in decision.actions if isinstance(a, Expand)] == [("a", 10)]
    assert decision.actions[0].reason.text == "because; 10 nodes in place of 14: corridor"
    (suppressed,) = decision.suppressed
    assert suppressed.action == expand("a", 14)
    assert suppressed.reason.text == (
        "corridor: in the end the decision leads to 1400 W, allowed are at most 1100 W, now it is 400"
    )
    assert suppressed.reason.data == {
        "guard": "corridor", "unit": "W", "amount": 1400.0, "now": 400.0, "lower": None, "upper": 1100,
    }  # fmt: skip


def test_what_is_served_last_gives_way_first() -> None:
    picture = view(12, running("a", 2), running("low", 1, lo=2), pending("s", 4), pending("t", 4))
    actions = (expand("a", 4), start("t", 4), expand("low", 2), start("s", 4))
    assert judged(picture, [watts(upper=1300)], *actions)[0] == [
        ("expand", "a", 3), ("start", "t", 4), ("expand", "low", 2), ("start", "s", 4),
    ]  # fmt: skip
    # Growth goes first, then the start that comes last in the order of service, and says so to its job.
    through, refused = judged(picture, [watts(upper=800)], *actions)
    assert through == [("expand", "low", 2), ("start", "s", 4), ("hold", "t", None)]
    assert refused == [("expand", "a", "outside-sum"), ("start", "t", "outside-sum")]


def test_a_moldable_start_is_cut_and_an_exact_one_is_not() -> None:
    picture = view(8, pending("m", 8, lo=2), pending("x", 8))
    assert judged(picture, [watts(upper=500)], start("m", 8))[0] == [("start", "m", 5)]
    assert judged(picture, [watts(upper=100)], start("m", 8))[0] == [("hold", "m", None)]
    assert judged(picture, [watts(upper=500)], start("x", 8))[0] == [("hold", "x", None)]


@pytest.mark.parametrize("code", [ReasonCode.USER_REQUEST, ReasonCode.JOB_REQUEST])
def test_who_asks_for_a_size_gets_that_or_nothing(code: ReasonCode) -> None:
    picture = view(8, running("a", 4))
    assert judged(picture, [watts(upper=1000)], expand("a", 12, code))[0] == []
    assert judged(picture, [watts(upper=1200)], expand("a", 12, code))[0] == [("expand", "a", 12)]
    assert judged(picture, [watts(lower=300)], shrink("a", 2, code))[0] == []


def test_the_trough_of_a_round_counts_for_what_must_be_there_at_least() -> None:
    # From 800 W to 800 W, but on its way the round dips to 400 W: the shrink is cut, and with it the growth.
    picture = view(0, running("a", 6), running("b", 2))
    through, refused = judged(picture, [watts(lower=600)], shrink("a", 2), expand("b", 6))
    assert through == [("shrink", "a", 4), ("expand", "b", 4)]
    assert refused == [("shrink", "a", "outside-sum"), ("expand", "b", "incomplete")]
    assert judged(picture, [watts(lower=800)], shrink("a", 2), expand("b", 6))[0] == []
    decision = arbitrate(
        picture, Decision(actions=(shrink("a", 2), expand("b", 6))), [watts(lower=600)]
    ).suppressed
    assert "on its way the decision leads to 400 W, allowed are at least 600 W" in decision[0].reason.text
    assert decision[1].reason.text.startswith("2 nodes for it are not freed: corridor: on its way")
    assert judged(picture, [watts(lower=400)], shrink("a", 2), expand("b", 6))[1] == []


def test_a_start_falls_with_the_shrinks_that_make_room_for_it() -> None:
    picture = view(3, running("a", 6), running("b", 6), pending("h", 8), running("c", 1))
    shrinks = (shrink("a", 3, head="h"), shrink("b", 4, head="h"))
    whole = (*shrinks, start("h", 8))
    keeps_b = BoundGuard(name="pinned", limit=lambda _, job: pinned_to(job, "b", 5))
    through, refused = judged(picture, [keeps_b], *whole)
    assert through == [("hold", "h", None)]
    assert refused == [
        ("shrink", "a", "incomplete"), ("shrink", "b", "clamped"), ("start", "h", "incomplete"),
    ]  # fmt: skip
    # An expansion into idle nodes has nothing to do with it.
    through, _ = judged(picture, [keeps_b], *shrinks, start("h", 7), expand("c", 2))
    assert through == [("expand", "c", 2), ("hold", "h", None)]


def pinned_to(job: JobView, id: str, lo: int) -> Limit | None:
    return Limit(lo=lo, hi=99, reason=Reason(ReasonCode.CLAMPED, f"at least {lo}")) if job.id == id else None


def test_a_shrink_that_makes_room_for_nobody_gives_way_before_one_that_does() -> None:
    # no more than two nodes can be given up
    picture = view(0, running("a", 4), running("b", 4), pending("s", 2))
    actions = (shrink("a", 2, head="s"), shrink("b", 2), start("s", 2))
    through, refused = judged(picture, [watts(lower=600)], *actions)
    assert through == [("shrink", "a", 2), ("start", "s", 2)]
    assert refused == [("shrink", "b", "outside-sum")]


def test_a_shrink_falls_with_the_start_that_it_makes_room_for() -> None:
    picture = view(0, running("a", 6), pending("h", 4))
    veto = VetoGuard(name="checkpoint", refuses=lambda _, action, __: no_start_of(action, "h"))
    through, refused = judged(picture, [veto], shrink("a", 2, head="h"), start("h", 4))
    assert through == [("hold", "h", None)]
    assert refused == [("shrink", "a", "incomplete"), ("start", "h", "kept")]


def no_start_of(action: Action, job: str) -> Reason | None:
    if isinstance(action, Start) and action.job == job:
        return Reason(ReasonCode.KEPT, "its data is being written")
    return None


def test_too_little_gives_way_before_too_much_of_the_same_rank() -> None:
    # The shrink cannot be, so the start is not, and there is room for the growth.
    picture = view(2, running("a", 4), running("c", 1), pending("h", 4))
    floor = SumGuard(name="floor", unit="nodes", lower=4, cost=lambda job, n: n if job.id == "a" else 0)
    ceiling = SumGuard(name="ceiling", unit="nodes", upper=6, cost=lambda job, n: n)
    actions = (shrink("a", 1, head="h"), start("h", 4), expand("c", 2))
    assert judged(picture, [floor, ceiling], *actions)[0] == [("expand", "c", 2), ("hold", "h", None)]


def test_a_steal_is_a_dip_now_or_later() -> None:
    picture = view(0, running("v", 4), pending("t", 2))
    now = Steal(job="v", thief="t", stolen_nodes=2, reason=reason(ReasonCode.NODE_STOLEN))
    late = Steal(job="v", thief="t", stolen_nodes=2, timing="next-checkpoint", reason=now.reason)
    assert judged(picture, [watts(lower=100)], now, start("t", 2))[0] == [("hold", "t", None)]
    assert judged(picture, [watts(lower=100)], late)[0] == []
    assert judged(picture, [watts(lower=100, in_end=True)], late)[0] == []
    # The thief may have the nodes of a victim that is gone, not yet those of one that is not.
    assert judged(picture, [watts(upper=400)], now, start("t", 2))[1] == []
    assert judged(view(2, *picture.jobs), [watts(upper=500)], late, start("t", 2))[1] == [
        ("steal", "v", "incomplete"), ("start", "t", "outside-sum"),
    ]  # fmt: skip


def test_what_is_outside_already_may_stay_or_come_nearer() -> None:
    picture = view(4, running("a", 8), running("b", 2))
    guard = watts(upper=600)
    assert judged(picture, [guard], shrink("a", 6))[1] == []
    assert judged(picture, [guard], expand("b", 3))[1] == [("expand", "b", "outside-sum")]
    assert judged(picture, [guard], shrink("a", 7), expand("b", 3))[1] == []
    # A start that leads past the bounds, and nearer to them than nothing does, passes.
    assert judged(view(9, pending("x", 9)), [watts(lower=500, upper=800)], start("x", 9))[1] == []


def test_a_whole_decision_is_refused_as_a_whole() -> None:
    picture = view(4, running("a", 2), running("b", 2))
    actions = (expand("a", 4), expand("b", 4))
    assert judged(picture, [watts(upper=700)], *actions)[0] == [("expand", "a", 4), ("expand", "b", 3)]
    decision = arbitrate(picture, Decision(actions=actions, whole=True), [watts(upper=700)])
    assert decision.actions == ()
    assert [s.reason.code for s in decision.suppressed] == [ReasonCode.INCOMPLETE, ReasonCode.OUTSIDE_SUM]
    assert decision.suppressed[0].reason.data["guard"] == "corridor"
    assert decision.suppressed[0].reason.text.startswith("the decision is refused as a whole: corridor: ")


def test_a_veto_sees_where_the_whole_decision_leads() -> None:
    def apart(_: ClusterSnapshot, action: Action, after: Mapping[str, int]) -> Reason | None:
        both = after["a"] > 2 and after["b"] > 2 and isinstance(action, Expand) and action.job == "b"
        return Reason(ReasonCode.KEPT, f"a will have {after['a']}") if both else None

    picture = view(8, running("a", 2), running("b", 2))
    guards = [VetoGuard(name="apart", refuses=apart)]
    assert judged(picture, guards, expand("b", 4))[1] == []
    decision = arbitrate(picture, Decision(actions=(expand("a", 4), expand("b", 4))), guards)
    assert [a.job for a in decision.actions if isinstance(a, Expand)] == ["a"]
    assert decision.suppressed[0].reason.text == "apart: a will have 4"
    assert decision.suppressed[0].reason.data == {"guard": "apart"}


def test_bounds_cut_growth_and_shrinks_and_refuse_what_cannot_be_cut() -> None:
    bound = BoundGuard(name="quota", limit=lambda _, job: Limit(lo=3, hi=5, reason=reason()))
    picture = view(9, running("a", 4), running("big", 9), pending("m", 8, lo=1), pending("x", 8))
    assert judged(picture, [bound], expand("a", 8))[0] == [("expand", "a", 5)]
    assert judged(picture, [bound], shrink("a", 1))[0] == [("shrink", "a", 3)]
    assert judged(picture, [bound], start("m", 8))[0] == [("start", "m", 5)]
    assert judged(picture, [bound], start("m", 2))[0] == [("hold", "m", None)]
    assert judged(picture, [bound], start("x", 8))[0] == [("hold", "x", None)]
    # What is outside may come nearer, and no further away.
    assert judged(picture, [bound], shrink("big", 7))[1] == []
    assert judged(picture, [bound], expand("big", 10))[0] == []
    steal = Steal(job="a", thief="m", stolen_nodes=1, reason=reason())
    assert judged(picture, [bound], steal)[0] == []


def test_a_veto_judges_what_a_bound_of_its_rank_has_cut() -> None:
    veto = VetoGuard(name="a", refuses=lambda _, action, after: BECAUSE if after["a"] > 5 else None)
    bound = BoundGuard(name="b", limit=lambda _, job: Limit(lo=1, hi=5, reason=BECAUSE))
    assert judged(view(8, running("a", 4)), [veto, bound], expand("a", 8))[0] == [("expand", "a", 5)]


def test_plain_work_has_the_nodes_that_are_left() -> None:
    plain = running("plain", 6, is_default=True)
    picture = view(6, plain, pending("x", 4))
    # Nodes that change hands draw what they drew before.
    assert judged(picture, [watts(upper=600)], start("x", 4))[1] == []
    named = SumGuard(name="named", unit="nodes", upper=3, cost=lambda job, n: 0 if job.is_default else n)
    assert judged(picture, [named], start("x", 4))[0] == [("hold", "x", None)]


def test_actions_that_allot_nothing_take_their_part_and_go_last() -> None:
    picture = view(4, running("a", 2))
    ask = RequestNodes(nodes=8, reason=reason())
    guard = watts(upper=500, action_cost=lambda action: 250.0)
    assert judged(picture, [guard], ask, expand("a", 4))[0] == [("request-nodes", "", 8)]
    assert judged(picture, [watts(upper=400, action_cost=lambda _: 250.0)], ask)[1] == [
        ("request-nodes", "", "outside-sum")
    ]


def test_what_leaves_at_a_deadline_is_given_and_the_rest_is_judged_from_there() -> None:
    picture = view(2, running("a", 8), running("b", 4))
    leaving = shrink("a", 4, ReasonCode.DEADLINE)
    guard = watts(lower=1000)
    assert judged(picture, [guard], shrink("a", 4))[0] == [("shrink", "a", 6)]
    assert judged(picture, [guard], leaving)[1] == []
    # 800 W is what must be: nothing may lead further down from there.
    through, refused = judged(picture, [guard], leaving, shrink("b", 3))
    assert through == [("shrink", "a", 4)]
    assert refused == [("shrink", "b", "outside-sum")]
    # What leads no further down passes, although the sum is outside.
    assert judged(picture, [guard], leaving, expand("b", 5))[1] == []
    # What leaves does so whatever becomes of the job that was to profit.
    waiting = view(0, *picture.jobs, pending("h", 4))
    veto = VetoGuard(name="checkpoint", refuses=lambda _, action, __: no_start_of(action, "h"))
    for_h = shrink("a", 4, ReasonCode.DEADLINE, head="h")
    assert judged(waiting, [veto], for_h, start("h", 4))[0] == [("shrink", "a", 4), ("hold", "h", None)]
    stays = VetoGuard(
        name="pin", rank="deadline", refuses=lambda _, action, __: Reason(ReasonCode.KEPT, "it is the last")
    )
    assert judged(picture, [stays], leaving)[0] == []


def test_of_several_refusals_the_highest_rank_is_named() -> None:
    picture = view(4, running("a", 2))
    guards = [watts(upper=200, name="a-quota", rank="jobs"), watts(upper=200, name="corridor")]
    decision = arbitrate(picture, Decision(actions=(expand("a", 4),)), guards)
    assert decision.suppressed[0].reason.data["guard"] == "corridor"


def test_without_guards_or_actions_nothing_changes() -> None:
    decision = Decision(actions=(Hold(job="h", reason=reason()),))
    assert arbitrate(view(0), decision, [watts(upper=0)]) is decision
    decision = Decision(actions=(expand("a", 4),))
    assert arbitrate(view(0, running("a", 2)), decision, []) is decision
    assert arbitrate(view(0, running("a", 2)), decision, [watts(upper=900)]) is decision


def test_unknown_jobs_are_left_to_the_enactor_and_second_resizes_are_refused() -> None:
    assert judged(view(4), [watts(upper=0)], expand("gone", 4))[1] == []
    picture = view(4, running("a", 2))
    assert judged(picture, [watts(upper=900)], expand("a", 4), shrink("a", 1)) == (
        [("expand", "a", 4)], [("shrink", "a", "conflict")],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ["'corridor'", "lower=None", "upper=None", "at least one bound"]),
        ({"lower": 5, "upper": 4}, ["lower=5", "upper=4", "not above"]),
        ({"upper": float("inf")}, ["upper=inf", "finite"]),
        ({"upper": 4, "base": float("nan")}, ["base=nan"]),
        ({"upper": 4, "unit": ""}, ["'corridor'", "unit"]),
    ],
)
def test_a_sum_says_what_is_wrong_with_it(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match="corridor") as caught:
        watts(**fields)
    assert all(word in str(caught.value) for word in words)


def test_guards_that_cannot_be_told_apart_or_ranked_are_refused() -> None:
    decision = Decision(actions=(expand("a", 4),))
    with pytest.raises(ValueError, match="2 guards are called 'corridor'"):
        arbitrate(view(4), decision, [watts(upper=1), watts(lower=1)])
    with pytest.raises(ValueError, match="rank='urgent' must be one of deadline, protection, corridor, jobs"):
        arbitrate(view(4), decision, [watts(upper=1, rank="urgent")])
    odd = SumGuard(name="odd", unit="W", upper=1, cost=lambda job, n: float("inf"))
    with pytest.raises(ValueError, match="guard 'odd': job a on 2 nodes amounts to inf W"):
        arbitrate(view(4, running("a", 2)), decision, [odd])
