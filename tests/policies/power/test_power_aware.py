"""What ``power-aware`` decides about a picture, and what becomes of others' decisions under a corridor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies import codec
from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.corridor import enforced, guards
from dask_hpc_policies.decision import Decision, Expand, Hold, Reason, ReasonCode, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.program import solve
from dask_hpc_policies.power.question import Terms, drawn_w, planned, question, terms_of
from dask_hpc_policies.power.view import PowerPlan, PowerView, fits, seen
from dask_hpc_policies.power.watts import mean_w, node_w
from dask_hpc_policies.registry import create

IDLE_W = 71.0
WATTS = {"pi": 170.0, "heat": 250.0}
WHY = Reason(ReasonCode.IDLE_NODES, "a test")


def job(name: str, nodes: int = 0, **more: Any) -> JobView:
    """A job of the study: pi or heat; it runs when it has nodes."""
    watts = WATTS[name.split("-")[0]]
    given = {"min_nodes": 1, "max_nodes": 14, "min_power_w": watts, "max_power_w": watts, "start_nodes": 2}
    state = "running" if nodes else "pending"
    return JobView(id=name, name=name, nodes=nodes, state=state, **{**given, **more})  # type: ignore[arg-type]


def picture(lower_w: float, upper_w: float, *jobs: JobView, nodes: int = 14, **more: Any) -> ClusterSnapshot:
    """Before it is said what they draw: see `shown`."""
    view = ClusterSnapshot(
        now_s=0.0,
        nodes=tuple(NodeView(id=f"n{i}") for i in range(nodes)),
        jobs=jobs,
        idle_nodes=nodes - sum(one.nodes for one in jobs),
    )
    power = PowerView(mode="policy", lower_w=lower_w, upper_w=upper_w, idle_w=IDLE_W, busy_w=100.0, **more)
    low_w, high_w = drawn_w(view, power)
    return replace(
        view, sections={"power": codec.encode(replace(power, draw_w=low_w, min_w=low_w, max_w=high_w))}
    )


def decided(view: ClusterSnapshot, **params: str) -> Decision:
    """What the policy says when the program has been asked."""
    policy: Any = create("power-aware", **params)
    power = seen(view)
    assert power is not None
    decision: Decision = policy.decide(planned(view, power, terms_of(policy.params), solve), None)[0]
    return decision


def steps(decision: Decision) -> dict[str, int]:
    """New sizes by job."""
    return {a.job: a.nodes for a in decision.actions if isinstance(a, (Start, Expand, Shrink))}


def test_the_last_corridor_of_the_study_needs_one_heat_job() -> None:
    # 14 pi nodes draw 2,380 W; the source's scenario: k = (10, 1, 1), m = 2
    running = [job("pi-1", 10), job("pi-2", 2), job("pi-3", 2)]
    waiting = [job("pi-4"), job("heat-5")]
    decision = decided(picture(2500, 3500, *running, *waiting))
    assert steps(decision)["heat-5"] == 2
    assert "pi-4" not in steps(decision)
    held = next(action for action in decision.actions if isinstance(action, Hold))
    assert held.job == "pi-4"
    assert "W" in held.reason.text


def test_nobody_waits_and_running_jobs_are_resized_all_the_same() -> None:
    found = steps(decided(picture(1000, 1700, job("pi-1", 7), job("heat-2", 7))))
    assert set(found) == {"pi-1", "heat-2"}
    drawn = 14 * IDLE_W + found["pi-1"] * 99 + found["heat-2"] * 179
    assert 1000 <= drawn <= 1700


def test_a_draw_on_a_bound_is_inside() -> None:
    view = picture(14 * 71 + 7 * 99, 14 * 71 + 7 * 99, job("pi-1", 7))
    assert steps(decided(view)) == {}
    power = seen(view)
    assert power is not None
    outside = replace(view, sections={"power": codec.encode(replace(power, lower_w=1690.0, upper_w=1800.0))})
    assert steps(decided(outside)) == {"pi-1": 8}


def test_a_moldable_job_starts_on_fewer_nodes_than_are_idle() -> None:
    one = job("heat-1", start_nodes=None, kind="moldable")
    # 994 idle, 179 more a node: 3 fit below 1,700 W
    assert steps(decided(picture(900, 1700, one))) == {"heat-1": 3}


def test_holding_never_deadlocks() -> None:
    # pi alone never reaches 2,500 W, but comes nearer than an idle machine
    decision = decided(picture(2500, 3500, job("pi-1")))
    assert steps(decision) == {"pi-1": 2}
    reason = next(action.reason.text for action in decision.actions if isinstance(action, Start))
    assert "below 2500 W" in reason
    assert "lower lower_w" in reason  # what would help
    # and a start that leads further outside is held, with its watts
    held = decided(picture(900, 1000, job("heat-1"))).actions
    assert [type(action) for action in held] == [Hold]
    assert "358 W more" in held[0].reason.text


def test_jobs_start_whatever_they_draw_when_nobody_is_held() -> None:
    assert steps(decided(picture(900, 1000, job("heat-1")), hold="no")) == {"heat-1": 2}


def test_levers_that_are_not_there_are_not_pulled() -> None:
    molded = job("heat-1", start_nodes=None, kind="moldable", preferred_nodes=6)
    assert steps(decided(picture(900, 1700, molded))) == {"heat-1": 3}
    # on all that it asks for, or not at all
    assert steps(decided(picture(900, 1700, molded, levers=("resize", "hold")))) == {}
    assert steps(decided(picture(900, 2500, molded, levers=("resize", "hold")))) == {"heat-1": 6}
    assert steps(decided(picture(1600, 2500, molded, levers=("resize", "hold")))) == {"heat-1": 6}
    jobs = [job("pi-1", 7), job("heat-2", 5), job("heat-3")]
    assert {"pi-1", "heat-2"} <= set(steps(decided(picture(1000, 1700, *jobs))))
    assert steps(decided(picture(1000, 1700, *jobs, levers=("hold", "start")))) == {}
    # who is not held starts; what runs makes room
    found = steps(decided(picture(1000, 1700, *jobs, levers=("resize", "start"))))
    assert found["heat-3"] == 2


def test_hungry_jobs_are_kept_for_an_announced_higher_corridor() -> None:
    jobs = [job("pi-1", 10), job("heat-2"), job("pi-3")]
    announced = ((800.0, 2500.0, 3500.0),)
    assert steps(decided(picture(1700, 2500, *jobs, announced=announced)))["heat-2"] == 2
    ahead = steps(decided(picture(1700, 2500, *jobs, announced=announced), lookahead="yes"))
    assert next(iter(ahead)) == "pi-3"
    # nobody starts whose least draw would leave no room below an announced upper bound
    jobs = [*(job(f"pi-{i}", 1) for i in range(7)), job("pi-8")]
    announced = ((550.0, 1000.0, 1700.0),)
    assert "pi-8" in steps(decided(picture(1600, 2500, *jobs, announced=announced)))
    assert "pi-8" not in steps(decided(picture(1600, 2500, *jobs, announced=announced), lookahead="yes"))


def test_nobody_waits_for_bounds_that_come_when_it_has_ended() -> None:
    fixed = {"kind": "rigid", "min_nodes": 2, "max_nodes": 2}
    later = {"announced": ((600.0, 0.0, 1050.0),)}

    def starts(ahead: dict[str, Any], **more: Any) -> bool:
        return bool(steps(decided(picture(0, 5000, job("pi-1", **fixed, **more), **ahead), lookahead="yes")))

    # two nodes of 170 W beside idle ones draw 1,192 W
    assert [starts(later, walltime_s=length_s) for length_s in (60.0, 600.0, 601.0)] == [True, True, False]
    assert starts(later, walltime_s=601.0, remaining_s=60.0) is False
    for known in ("remaining_s", "recorded_s"):
        assert [starts(later, **{known: length_s}) for length_s in (60.0, 601.0)] == [True, False]
    # nobody knows for how long: as far as is looked ahead, else all that is announced
    assert starts(later) is False
    assert [starts({**later, "horizon_s": horizon_s}) for horizon_s in (30.0, 700.0)] == [True, False]
    soon = {"announced": ((30.0, 0.0, 1500.0), *later["announced"])}
    assert starts(soon, walltime_s=60.0) is True


def test_a_forecast_that_is_wider_than_the_corridor_keeps_nobody_waiting() -> None:
    # 1,786 W with one job, 1,885 W with another one
    running = job("pi-1", 8, kind="rigid", min_nodes=8, max_nodes=8)
    view = picture(1700, 2000, running, job("pi-2", start_nodes=1), job("heat-3", start_nodes=4))
    wide = decided(drawing(view, 1786.0, min_w=1600.0, max_w=2100.0))
    assert steps(wide) == {"pi-2": 1}
    for decision in (wide, decided(drawing(view, 1786.0, min_w=1786.0, max_w=1999.0))):
        texts = [action.reason.text for action in decision.actions]
        assert all("by the forecast (by what is known of the jobs 1786 to 1786 W)" in text for text in texts)
    assert "its middle counts" in wide.actions[0].reason.text
    assert "forecast" not in str(decided(view))
    # one that says something keeps whom it has no room for
    assert steps(decided(drawing(view, 1786.0, min_w=1786.0, max_w=1999.0))) == {}


def test_measured_or_expected() -> None:
    view = picture(1000, 1700, job("pi-1", 7))
    power = seen(view)
    assert power is not None
    rising = codec.encode(replace(power, max_w=1800.0))
    view = replace(view, sections={"power": rising})
    # reactive: what is drawn is inside; it would only use idle nodes, and none fits
    assert steps(decided(view, mode="reactive")) == {}
    assert question(view, replace(power, max_w=1800.0), Terms(forecast=True)) is not None


def test_a_plan_for_other_sizes_or_bounds_is_dropped() -> None:
    view = picture(1000, 1700, job("pi-1", 9))
    power = seen(view)
    assert power is not None
    plan = PowerPlan(found_for={"pi-1": 9}, lower_w=1000, upper_w=1700, nodes={"pi-1": 7}, violation_w=0.0)
    policy: Any = create("power-aware")
    for found, does in (
        (plan, {"pi-1": 7}),
        (replace(plan, found_for={"pi-1": 8}), {}),
        (replace(plan, upper_w=1800), {}),
        (replace(plan, start=("gone",)), {}),
    ):
        shown = replace(view, sections={"power": codec.encode(replace(power, plan=found))})
        assert steps(policy.decide(shown, None)[0]) == does


def test_jobs_of_which_nothing_is_known_draw_as_any_busy_node() -> None:
    plain = {"min_power_w": None, "max_power_w": None}
    assert node_w(job("pi-1", **plain), 3, 100.0) == (100.0, 100.0)
    assert node_w(job("pi-1", max_power_w=None), 3, 100.0) == (170.0, 170.0)
    table = {"power_by_nodes": ((2, 200.0), (4, 100.0))}
    assert [node_w(job("pi-1", min_power_w=None, **table), n, 9.0)[0] for n in (1, 2, 3, 4, 9)] == [
        200, 200, 150, 100, 100,
    ]  # fmt: skip


def test_a_mean_that_was_measured_does_not_narrow_the_range_that_a_user_says() -> None:
    says = {"min_power_w": 170.0, "max_power_w": 250.0}
    for watts, known in ((210.0, (170, 250)), (160.0, (160, 250)), (265.0, (170, 265)), (100.0, (100, 100))):
        one = job("heat-1", 4, **says, power_by_nodes=((4, watts),))
        assert node_w(one, 4, 9.0) == known
        assert mean_w(one, 4, 9.0) == watts
    # six nodes would draw 1,828 W by the mean, and 2,068 W at most
    view = picture(900, 1900, job("heat-1", 4, **says, power_by_nodes=((4, 210.0),)))
    assert steps(decided(view)) == {"heat-1": 5}
    # one figure is no range
    assert node_w(job("pi-1", 4, power_by_nodes=((4, 160.0),)), 4, 9.0) == (160, 160)


def enforcing(view: ClusterSnapshot) -> ClusterSnapshot:
    power = seen(view)
    assert power is not None
    return planned(view, replace(power, mode="enforce"), Terms(), solve)


def test_steps_that_lead_outside_are_cut_or_refused_with_their_watts() -> None:
    view = enforcing(picture(1000, 1700, job("pi-1", 2), job("pi-2"), nodes=14))
    wish = Decision(
        actions=(Expand(job="pi-1", nodes=14, reason=WHY), Start(job="pi-2", nodes=2, reason=WHY))
    )
    found = arbitrate(view, wish, guards(view))
    assert steps(found) == {"pi-2": 2, "pi-1": 5}
    assert "W" in found.suppressed[0].reason.text
    # without the lever that holds jobs they start, but none that runs is led outside
    free = enforcing(picture(1000, 1700, job("pi-1", 2), job("pi-2"), nodes=14, levers=("resize", "start")))
    big = Decision(
        actions=(Expand(job="pi-1", nodes=12, reason=WHY), Start(job="pi-2", nodes=2, reason=WHY))
    )
    assert steps(arbitrate(free, big, guards(free))) == {"pi-2": 2, "pi-1": 7}
    alone = Decision(actions=(Start(job="pi-2", nodes=12, reason=WHY),))
    assert steps(arbitrate(free, alone, guards(free))) == {"pi-2": 12}
    low = Decision(actions=(Shrink(job="pi-1", nodes=1, reason=WHY),))
    near = enforcing(picture(14 * 71 + 198, 1700, job("pi-1", 2)))
    assert steps(arbitrate(near, low, guards(near))) == {}


def test_outside_the_plan_stands_in_for_the_decision() -> None:
    view = enforcing(picture(1000, 1700, job("pi-1", 9), job("pi-2")))
    wish = Decision(
        actions=(Start(job="pi-2", nodes=2, reason=WHY), Expand(job="pi-1", nodes=12, reason=WHY))
    )
    found = enforced(view, wish)
    drawn = 14 * 71 + 99 * sum(steps(found).get(one.id, one.nodes) for one in view.jobs)
    assert 1000 <= drawn <= 1700
    assert [one.reason.code for one in found.suppressed].count(ReasonCode.CORRIDOR) >= 1
    assert enforced(view, found) == found
    monitored = replace(view, sections={})
    assert enforced(monitored, wish) == wish


def drawing(view: ClusterSnapshot, draw_w: float, **more: Any) -> ClusterSnapshot:
    """The same, with another draw than jobs say."""
    power = seen(view)
    assert power is not None
    return replace(view, sections={"power": codec.encode(replace(power, draw_w=draw_w, **more))})


@pytest.mark.parametrize("mode", ["proactive", "reactive"])
def test_while_the_draw_is_beyond_a_bound_no_step_goes_further_that_way(mode: str) -> None:
    # 1,390 W by what is known of the jobs: ten nodes would be inside
    running, waiting = job("pi-1", 4), job("heat-2")
    view = picture(1000, 2000, running, waiting)
    assert steps(decided(view, mode=mode)) == {"heat-2": 2}
    assert steps(decided(picture(1000, 2000, running), mode=mode)) == {"pi-1": 10}
    above = decided(drawing(view, 2600.0), mode=mode)
    assert steps(above) == {}
    assert "the draw is 2600 W" in next(a.reason.text for a in above.actions if isinstance(a, Hold))
    assert steps(decided(drawing(picture(1000, 2000, running), 2600.0), mode=mode)) == {}
    # not in place of another one either, though that would use idle nodes, and also where what is known
    # of the jobs is below the lower bound
    both = picture(1000, 2000, job("pi-1", 2), job("heat-2", 4))
    assert steps(decided(drawing(both, 2600.0), mode=mode)) == {}
    assert steps(decided(drawing(picture(1500, 2000, running), 2600.0), mode=mode)) == {}
    # nor does one that runs make room for one that waits or for another one, whatever jobs are said to draw
    assert steps(decided(drawing(picture(1000, 2000, job("pi-1", 8), waiting), 2600.0), mode=mode)) == {}
    full = picture(1000, 2000, job("pi-1", 6), job("heat-2", 4))
    sizes = steps(decided(drawing(full, 2600.0), mode=mode))
    assert sizes
    assert all(sizes.get(id, nodes) <= nodes for id, nodes in (("pi-1", 6), ("heat-2", 4)))
    # a job that draws less than an idle node does may start
    saves = job("pi-2", min_power_w=20.0, max_power_w=20.0)
    assert steps(decided(drawing(picture(1000, 2000, running, saves), 2600.0), mode=mode)) == {"pi-2": 2}
    # below the lower one jobs start and grow, and shrink for what they may come to draw alone
    assert steps(decided(drawing(view, 900.0), mode=mode)) != {}
    full = picture(1000, 1700, job("pi-1", 7))
    assert steps(decided(drawing(full, 900.0), mode=mode)) == {}


def test_below_the_lower_bound_jobs_that_may_come_above_the_upper_one_shrink_until_they_do_not() -> None:
    # 880 to 1,056 W where 600 to 900 are allowed; one node less is still 44 W too many
    wide = job("pi-1", 8, min_power_w=110.0, max_power_w=132.0)
    power = replace(seen(picture(600, 900, wide, nodes=8)), idle_w=20.0, draw_w=550.0)  # type: ignore[type-var]
    view = replace(picture(600, 900, wide, nodes=8), sections={"power": codec.encode(power)})
    assert steps(decided(view)) == {"pi-1": 6}


def test_over_any_policy_no_step_goes_further_while_the_draw_is_beyond_a_bound() -> None:
    view = picture(1000, 2000, job("pi-1", 4), job("heat-2"))
    wish = Decision(
        actions=(Expand(job="pi-1", nodes=14, reason=WHY), Start(job="heat-2", nodes=2, reason=WHY))
    )
    less = Decision(actions=(Shrink(job="pi-1", nodes=2, reason=WHY),))
    for draw_w, grows, shrinks in ((1500.0, True, True), (2600.0, False, True), (900.0, True, False)):
        found = enforcing(drawing(view, draw_w))
        grown, shrunk = (enforced(found, arbitrate(found, one, guards(found))) for one in (wish, less))
        assert (bool(steps(grown)), bool(steps(shrunk))) == (grows, shrinks)
    # what another one gives is nobody's while the draw is above, though the sum is inside
    busy = picture(1000, 2000, job("pi-1", 6), job("heat-2", 2), job("heat-3"))
    give = Shrink(job="pi-1", nodes=1, reason=WHY)
    for get in (Start(job="heat-3", nodes=2, reason=WHY), Expand(job="heat-2", nodes=4, reason=WHY)):
        both = Decision(actions=(give, get))
        for draw_w, found in ((1900.0, {"pi-1": 1, get.job: get.nodes}), (2600.0, {"pi-1": 1})):
            now = enforcing(drawing(busy, draw_w))
            assert steps(enforced(now, arbitrate(now, both, guards(now)))) == found


def test_reasons_name_the_bounds_that_are_set() -> None:
    view = drawing(picture(1600, 1650, job("pi-1", 7, min_nodes=7, max_nodes=7)), 1700.0, min_w=1500.0)
    text = "the corridor is 1600 to 1650 W, and while the draw is 1700 W no step may lead to more"
    assert text in str(seen(enforcing(view)))
    below = enforcing(drawing(picture(1000, 2000, job("pi-1", 4)), 900.0))
    less = Decision(actions=(Shrink(job="pi-1", nodes=2, reason=WHY),))
    text = arbitrate(below, less, guards(below)).suppressed[0].reason.text
    assert "the corridor is 1000 to 2000 W, and while the draw is 900 W no step may lead to less" in text


@given(data=st.data())
@examples(60)
def test_it_never_leads_further_outside_and_settles(data: st.DataObject) -> None:
    jobs, left, total = [], 10, 10
    for i in range(data.draw(st.integers(1, 5))):
        low = data.draw(st.floats(60, 300))
        nodes = data.draw(st.integers(0, left))
        kind = data.draw(st.sampled_from(["rigid", "moldable", "malleable"]))
        start = None if kind == "moldable" else data.draw(st.integers(1, 4))
        bounds = {"min_nodes": 1, "max_nodes": total}
        if kind == "rigid":
            bounds = {"min_nodes": nodes or start or 1, "max_nodes": nodes or start or 1}
            start = bounds["min_nodes"]
        spread = data.draw(st.sampled_from([1.0, 1.1]))
        watts = {"min_power_w": low, "max_power_w": low * spread}
        jobs.append(job(f"pi-{i}", nodes, kind=kind, start_nodes=start, **bounds, **watts))
        left -= nodes
    lower = data.draw(st.floats(0, 2500))
    upper = lower + data.draw(st.floats(0, 1000))
    params = {
        "lookahead": data.draw(st.sampled_from(["yes", "no"])),
        "strategy": data.draw(st.sampled_from(["all", "favour-elastic"])),
    }
    before = None
    for _ in range(12):
        view = picture(lower, upper, *jobs, nodes=total)
        power = seen(view)
        assert power is not None
        assert power.min_w is not None
        assert power.max_w is not None
        outside = max(0.0, lower - power.min_w) + max(0.0, power.max_w - upper)
        assert before is None or outside <= before + 0.01
        before = outside
        found = steps(decided(view, **params))
        assert set(found) <= {one.id for one in jobs}
        if not found:
            return
        jobs = [
            replace(
                one, nodes=found.get(one.id, one.nodes), state="running" if found.get(one.id) else one.state
            )
            for one in jobs
        ]
        assert sum(one.nodes for one in jobs) <= total
    pytest.fail("it resizes for ever")


def test_what_a_policy_sees_survives_a_trace() -> None:
    view = picture(2500, 3500, job("pi-1", 10), job("heat-2"))
    power = seen(view)
    assert power is not None
    full = planned(view, power, Terms(), solve)
    again = codec.decode(ClusterSnapshot, codec.encode(full))
    assert again == full
    assert fits(again, seen(again))  # type: ignore[arg-type]
