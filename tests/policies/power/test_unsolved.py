"""Outside the corridor without a plan: the program fails to answer, or there is nothing to ask it about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_hpc_policies import codec
from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.corridor import amended, guards
from dask_hpc_policies.decision import Decision, Expand, Reason, ReasonCode, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.checks import MOST_TOTAL_W, slack_w
from dask_hpc_policies.power.program import solve
from dask_hpc_policies.power.question import drawn_w, planned, terms_of
from dask_hpc_policies.power.view import PowerView, seen
from dask_hpc_policies.registry import create

WHY = Reason(ReasonCode.IDLE_NODES, "a test")


def picture(
    lower_w: float,
    upper_w: float,
    unsolved: bool,
    kind: Any = "malleable",
    mode: Any = "enforce",
    **more: Any,
):
    """Four of eight nodes run `a`, which draws 600 W with the others; `b` waits for two, 100 W more."""
    given: Any = {"min_nodes": 1, "max_nodes": 8, "min_power_w": 100.0, "max_power_w": 100.0}
    jobs = (
        JobView(id="a", name="a", kind=kind, state="running", nodes=4, **given),
        JobView(id="b", name="b", kind="malleable", state="pending", start_nodes=2, **given),
    )
    view = ClusterSnapshot(
        now_s=0.0, nodes=tuple(NodeView(id=f"n{i}") for i in range(8)), jobs=jobs, idle_nodes=4
    )
    power = PowerView(mode=mode, lower_w=lower_w, upper_w=upper_w, idle_w=50.0, unsolved=unsolved, **more)
    low_w, high_w = drawn_w(view, power)
    power = replace(power, draw_w=low_w, min_w=low_w, max_w=high_w)
    return replace(view, sections={"power": codec.encode(power)})


def found(view: ClusterSnapshot, *actions: Any) -> tuple[dict[str, int], str]:
    """New sizes by job, and why others are not what was asked."""
    after = amended(view, arbitrate(view, Decision(actions=actions), guards(view)))
    sizes = {one.job: one.nodes for one in after.actions if isinstance(one, (Expand, Shrink, Start))}
    return sizes, " ".join(one.reason.text for one in after.suppressed)


START = Start(job="b", nodes=2, reason=WHY)
GROW, SHRINK = Expand(job="a", nodes=8, reason=WHY), Shrink(job="a", nodes=2, reason=WHY)


@pytest.mark.parametrize(
    ("bounds", "action", "sizes"),
    [
        # above the upper bound what adds nothing may be
        ((0, 500), START, {}),
        ((0, 500), GROW, {}),
        ((0, 500), SHRINK, {"a": 2}),
        # below the lower one what takes nothing away, and not above the other one
        ((750, 900), START, {"b": 2}),
        ((750, 900), GROW, {"a": 8}),
        ((750, 790), GROW, {"a": 7}),
        ((750, 900), SHRINK, {}),
        # inside the corridor holds without any plan
        ((500, 640), START, {}),
        ((500, 700), START, {"b": 2}),
    ],
)
def test_while_the_program_fails_no_step_leads_further_outside_and_others_may_be(
    bounds: tuple[float, float], action: Any, sizes: dict[str, int]
) -> None:
    assert found(picture(*bounds, unsolved=True), action)[0] == sizes


def test_where_nobody_is_held_for_watts_jobs_start_also_above_the_upper_bound_and_none_grows() -> None:
    view = picture(0, 500, unsolved=True, levers=("resize", "start"))
    assert [found(view, action)[0] for action in (START, GROW)] == [{"b": 2}, {}]


def test_while_an_answer_is_awaited_nothing_is_moved_outside() -> None:
    for action in (START, GROW, SHRINK):
        sizes, why = found(picture(750, 900, unsolved=False), action)
        assert sizes == {}
        assert "before there is a plan" in why


@pytest.mark.parametrize(
    ("bounds", "size"), [((0, 500), None), ((750, 900), 2), ((620, 640), None), ((500, 700), 2)]
)
def test_power_aware_holds_nobody_for_want_of_a_program(bounds: Any, size: int | None) -> None:
    policy: Any = create("power-aware")
    decision = policy.decide(picture(*bounds, unsolved=True, mode="policy"), None)[0]
    starts = [one for one in decision.actions if isinstance(one, Start)]
    assert [one.nodes for one in starts] == ([] if size is None else [size])
    for one in starts:
        assert ("no further outside" in one.reason.text) is (bounds[0] > 600)


def test_where_nothing_can_be_resized_no_plan_is_said_to_come() -> None:
    sizes, why = found(picture(0, 500, unsolved=False, kind="rigid"), START)
    assert sizes == {}
    assert "no job that runs can be resized, and until the draw has fallen nothing is added" in why


def planned_starts(
    bounds: tuple[float, float], *waiting: tuple[str, float], runs: bool = False
) -> list[Start]:
    """Which of jobs of two nodes, each of so many watts, `power-aware` starts once the program was asked."""
    view = picture(*bounds, unsolved=False, mode="policy")
    power = seen(view)
    assert power is not None
    running, other = view.jobs
    jobs = [replace(other, id=id, min_power_w=watts, max_power_w=watts) for id, watts in waiting]
    view = replace(view, jobs=(*([running] * runs), *jobs), idle_nodes=4 if runs else 8)
    low_w, high_w = drawn_w(view, power)
    power = replace(power, draw_w=low_w, min_w=low_w, max_w=high_w)
    policy: Any = create("power-aware")
    decision = policy.decide(planned(view, power, terms_of(policy.params), solve), None)[0]
    return [one for one in decision.actions if isinstance(one, Start)]


@pytest.mark.parametrize(
    ("bounds", "waiting", "runs", "started"),
    [
        # eight idle nodes draw 400 W
        ((0, 300), [("still", 50.0)], False, ["still"]),
        ((900, 950), [("still", 50.0)], False, ["still"]),
        # before it whoever leads nearer, and nobody who leads further outside
        ((900, 950), [("still", 50.0), ("more", 100.0)], False, ["more"]),
        ((0, 300), [("more", 100.0), ("still", 50.0)], False, ["still"]),
        ((0, 300), [("more", 100.0)], False, []),
        # while sizes lead nearer they come first
        ((0, 300), [("still", 50.0)], True, []),
    ],
)
def test_whoever_changes_nothing_is_not_held_where_nothing_leads_nearer(
    bounds: Any, waiting: Any, runs: bool, started: list[str]
) -> None:
    starts = planned_starts(bounds, *waiting, runs=runs)
    assert [one.job for one in starts] == started
    assert all("no further outside" in one.reason.text for one in starts if one.job == "still")


def test_an_upper_bound_that_is_none_is_not_told() -> None:
    (start,) = planned_starts((900, MOST_TOTAL_W), ("more", 100.0))
    assert "allowed are 900 W and more" in start.reason.text
    assert start.job == "more"
    assert "e+" not in start.reason.text


def test_how_far_a_draw_may_be_outside_and_count_as_inside_goes_by_the_bounds_that_there_are() -> None:
    assert slack_w(0.0, 0.5) == 1e-6
    assert slack_w(900.0, 2000.0) == 2e-3
    assert slack_w(900.0, MOST_TOTAL_W) == 9e-4
