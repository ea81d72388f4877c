"""What the program is asked about a picture, and what becomes of decisions around its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_hpc_policies import codec
from dask_hpc_policies.combine.corridor import amended, enforced
from dask_hpc_policies.decision import Decision, Expand, Hold, Reason, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.program import solve
from dask_hpc_policies.power.question import (
    Terms,
    candidates,
    drawn_w,
    kept_w,
    outside_w,
    planned,
    question,
    terms_of,
)
from dask_hpc_policies.power.view import PowerView
from dask_hpc_policies.ranges import DEFAULT_LEVERS
from dask_hpc_policies.registry import create

WHY = Reason(ReasonCode.IDLE_NODES, "a test")


def job(id: str, nodes: int = 0, watts: float = 170.0, **more: Any) -> JobView:
    """A job; it runs when it has nodes."""
    state: Any = more.pop("state", "running" if nodes else "pending")
    given = {"min_nodes": 1, "max_nodes": 14, "min_power_w": watts, "max_power_w": watts, **more}
    return JobView(id=id, name=id, nodes=nodes, state=state, **given)  # type: ignore[arg-type]


def picture(lower_w: float, upper_w: float, *jobs: JobView, **more: Any) -> tuple[ClusterSnapshot, PowerView]:
    """Fourteen nodes of 71 W and these jobs; `more` is said of power."""
    view = ClusterSnapshot(
        now_s=0.0,
        nodes=tuple(NodeView(id=f"n{i}") for i in range(14)),
        jobs=jobs,
        idle_nodes=14 - sum(one.nodes for one in jobs),
    )
    power = PowerView(
        lower_w=lower_w, upper_w=upper_w, idle_w=71.0, busy_w=100.0, **{"mode": "policy", **more}
    )
    low_w, high_w = drawn_w(view, power)
    power = replace(power, draw_w=low_w, min_w=low_w, max_w=high_w)
    return replace(view, sections={"power": codec.encode(power)}), power


def decided(view: ClusterSnapshot, power: PowerView, **params: str) -> Decision:
    policy: Any = create("power-aware", **params)
    decision: Decision = policy.decide(planned(view, power, terms_of(policy.params), solve), None)[0]
    return decision


def steps(decision: Decision) -> dict[str, int]:
    return {a.job: a.nodes for a in decision.actions if isinstance(a, (Start, Expand, Shrink))}


def test_a_margin_is_at_most_half_of_what_is_between_the_bounds() -> None:
    wide, middle = Terms(margin_w=500.0), replace(picture(1000, 1100)[1], draw_w=1050.0, min_w=None)
    assert kept_w(middle, wide) == 50
    assert kept_w(middle, Terms(margin_w=20.0)) == 20
    assert outside_w(middle, wide) == 0
    assert outside_w(replace(middle, draw_w=1052.0), wide) == 2


def test_what_is_beyond_a_bound_by_a_millionth_is_on_it() -> None:
    power = replace(picture(1000, 2000)[1], min_w=None)
    for draw_w, found in ((2000.001, 0.0), (999.999, 0.0), (2000.01, 0.01), (999.99, 0.01)):
        assert outside_w(replace(power, draw_w=draw_w), Terms()) == pytest.approx(found, abs=1e-9)


def test_more_than_any_site_draws_is_asked_about_all_the_same() -> None:
    table = ((1, 5e8), (2, 6e8))
    view, power = picture(1000, 2000, job("runs", 2), job("waits", power_by_nodes=table), base_w=2e9)
    asked = question(view, power, Terms(forecast=False))
    assert asked is not None
    assert asked.rigid.max_w == 1e9
    assert solve(asked).status == "infeasible"


def test_elastic_jobs_come_first_and_others_where_none_of_those_waits() -> None:
    rigid, elastic = job("rigid", kind="rigid", start_nodes=2), job("elastic")
    terms = Terms(malleable_only=True)
    view, power = picture(1500, 2500, job("runs", 2), rigid, elastic)
    assert [one.id for one in candidates(view, power, terms)] == ["elastic"]
    view, power = picture(1500, 2500, job("runs", 2), rigid)
    assert [one.id for one in candidates(view, power, terms)] == ["rigid"]


def test_while_a_job_is_resized_nothing_is_asked_and_nobody_starts() -> None:
    resized, waits = job("resized", 4, state="adapting"), job("waits", start_nodes=2)
    for lower_w in (1000, 1500):
        view, power = picture(lower_w, 2500, resized, job("runs", 2), waits)
        assert question(view, power, Terms()) is None
        found = decided(view, power)
        assert steps(found) == {}
        assert [(one.job, one.reason.code) for one in found.actions if isinstance(one, Hold)] == [
            ("waits", ReasonCode.LOCKED)
        ]


def test_a_plan_that_came_before_a_job_is_resized_waits_for_that() -> None:
    # without the lever that holds jobs plans are carried out at other times, too
    view, power = picture(1000, 1300, job("runs", 9), job("resized", 2))
    view = planned(replace(view, lock="system"), power, terms_of({"hold": "no"}), solve)
    policy: Any = create("power-aware", hold="no")
    assert steps(policy.decide(view, None)[0])
    jobs = tuple(replace(one, state="adapting") if one.id == "resized" else one for one in view.jobs)
    found = replace(view, jobs=jobs)
    assert steps(policy.decide(found, None)[0]) == {}


def test_without_the_lever_a_job_is_asked_about_at_the_size_that_it_wants_alone() -> None:
    jobs = job("runs", 2), job("waits", preferred_nodes=4, max_nodes=9)
    for levers, sizes in ((DEFAULT_LEVERS, (1, 4)), (("resize", "hold"), (4, 4))):
        view, power = picture(1500, 2500, *jobs, levers=levers)
        asked = question(view, power, Terms())
        assert asked is not None
        (one,) = asked.waiting
        assert (one.min_nodes, one.max_nodes) == sizes


def test_who_lacks_nodes_blocks_those_behind_it_and_moldable_jobs_get_equal_parts() -> None:
    alone = job("runs", 6, kind="rigid")
    large, small = job("large", start_nodes=9), job("small", start_nodes=2)
    view, power = picture(500, 5000, alone, large, small)
    assert steps(decided(view, power)) == {}
    assert steps(decided(*picture(500, 5000, alone, small, large))) == {"small": 2}
    assert steps(decided(*picture(500, 5000, job("a"), job("b")))) == {"a": 7, "b": 7}


def test_outside_whoever_would_start_is_held_until_there_is_a_plan() -> None:
    view, power = picture(1000, 1700, job("runs", 9), job("waits"), mode="enforce")
    wish = Decision(
        actions=(Start(job="waits", nodes=2, reason=WHY), Expand(job="runs", nodes=12, reason=WHY))
    )
    found = enforced(view, wish, power)
    assert [(type(one), one.job) for one in found.actions] == [(Hold, "waits")]
    assert len(found.suppressed) == 2
    # what there is no lever for is the policy's
    for levers, kept in ((("resize",), {"waits": 2}), (("hold", "start"), {"runs": 12})):
        assert steps(enforced(view, wish, replace(power, levers=levers))) == kept


def test_nobody_steals_while_the_decision_resizes() -> None:
    jobs = job("hungry", 9, 250.0, min_nodes=9), job("modest", 0, 100.0, min_nodes=6, max_nodes=6)
    view, power = picture(500, 2000, *jobs, levers=(*DEFAULT_LEVERS, "steal"))
    view = planned(view, power, Terms(), solve)
    assert [type(one) for one in amended(view, Decision()).actions] == [Steal]
    shrink = Decision(actions=(Shrink(job="hungry", nodes=8, reason=WHY),))
    assert amended(view, shrink).actions == shrink.actions


def test_jobs_that_ask_for_another_size_are_answered() -> None:
    fewer, more = (job("a", 4, kind="evolving", requested_nodes=nodes) for nodes in (2, 6))
    assert steps(decided(*picture(0, 5000, fewer))) == {"a": 2}
    view, power = picture(0, 5000, more)
    denied = decided(view, power)
    assert steps(denied) == {}
    (suppressed,) = denied.suppressed
    assert (suppressed.action.TAG, suppressed.reason.code) == ("expand", ReasonCode.CORRIDOR)
    # without bounds it is as with any other policy
    free = replace(view, sections={})
    assert steps(create("power-aware").decide(free, None)[0]) == {"a": 6}


def test_who_waits_for_nodes_is_told_so_and_not_that_no_size_is_legal() -> None:
    # the program has not been asked yet
    view, _ = picture(0, 5000, job("a", 13), job("b", start_nodes=4), job("c", start_nodes=1))
    decision = create("power-aware").decide(view, None)[0]
    holds = {a.job: a.reason.code for a in decision.actions if isinstance(a, Hold)}
    assert holds == {"b": ReasonCode.NOT_ENOUGH_NODES, "c": ReasonCode.BEHIND_HEAD}
