"""The policy placement: it places first, then when what was measured drifts and another split is worth it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from placements import any_application, brute_force

from dask_hpc_policies import registry
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.decision import Decision, Place, Reason, ReasonCode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.placement.application import MODES, Application
from dask_hpc_policies.placement.replan import application_of, best_split, known, phases, plan_of
from dask_hpc_policies.placement.view import (
    SECTION,
    AnalysisView,
    FlowView,
    MeasuredView,
    PlatformView,
    SimulationView,
    Split,
)
from dask_hpc_policies.protocol import decode_state, encode_state
from dask_hpc_policies.rules.placing import misfit, refusal, split_of

WHY = Reason(ReasonCode.SHORTER_STEP, "test")
FLOW = FlowView(
    steps=0,
    nodes=16,
    simulation=SimulationView(one_core_s=300.0, memory_bytes=32e9),
    platform=PlatformView(nodes=16, cores=4, memory_bytes=8e9, bandwidth_bytes_s=1e9),
    analyses=tuple(
        AnalysisView(name=name, one_core_s=work_s, memory_bytes=peak, input_bytes=read)
        for name, work_s, peak, read in (
            ("spectrum", 36.0, 1.0e9, 6.0e9),
            ("vortices", 30.0, 2.0e9, 6.0e9),
            ("isosurface", 20.0, 3.0e9, 2.0e9),
            ("tracers", 25.0, 0.8e9, 0.4e9),
        )
    ),
)


class Asked:
    """The policy, asked about one flow again and again; its state goes through JSON each time."""

    def __init__(self, **params: Any) -> None:
        self.policy = registry.create("placement", **params)
        self._state = encode_state(self.policy.initial_state())

    def __call__(self, flow: FlowView) -> Decision:
        section = json.loads(json.dumps({"fields": encode(flow)}))
        view = ClusterSnapshot(now_s=0.0, sections={SECTION: section})
        decision, state = self.policy.decide(view, decode_state(self.policy, self._state))
        self._state = json.loads(json.dumps(encode_state(state)))
        again = json.loads(json.dumps(encode(decision)))
        assert decode(Decision, again) == decision
        return decision


def placed(flow: FlowView, decision: Decision) -> FlowView:
    """The flow when what was decided has been done."""
    places = [action for action in decision.actions if isinstance(action, Place)]
    assert all(refusal(place, flow) is None for place in places)
    split = split_of(flow, places)
    assert misfit(flow, split) is None
    return with_split(flow, split)


def with_split(flow: FlowView, split: Split) -> FlowView:
    return dataclasses.replace(
        flow,
        nodes=split.nodes,
        helper_cores=split.helper_cores,
        staging_nodes=split.staging_nodes,
        analyses=tuple(
            dataclasses.replace(one, where="in-situ" if one.name in split.in_situ else "in-transit")
            for one in flow.analyses
        ),
    )


def changed(flow: FlowView, name: str, factor: float, steps: int, **what: Any) -> FlowView:
    """The work of an analysis is another, and steps have passed."""
    return dataclasses.replace(
        flow,
        steps=flow.steps + steps,
        analyses=tuple(
            dataclasses.replace(one, one_core_s=factor * (one.one_core_s or 0), **what)
            if one.name == name
            else one
            for one in flow.analyses
        ),
    )


def codes(decision: Decision) -> set[ReasonCode]:
    return {one.reason.code for one in (*decision.actions, *decision.suppressed)}


def test_analyses_get_a_place_each_and_then_nothing_is_said() -> None:
    ask = Asked()
    decision = ask(FLOW)
    assert codes(decision) == {ReasonCode.FIRST_PLACE}
    assert [action.analysis for action in decision.actions] == [one.name for one in FLOW.analyses]  # type: ignore[attr-defined]
    flow = placed(FLOW, decision)
    application = application_of(flow)
    assert application is not None
    step_s = phases(application, flow, flow.present).step_s("asynchronous")
    assert step_s == pytest.approx(brute_force(application, "asynchronous"))
    assert decision.actions[0].reason.data["step_s"] == pytest.approx(step_s)
    for steps in range(5):
        assert ask(dataclasses.replace(flow, steps=steps)) == Decision()


def test_a_drift_beyond_noise_changes_the_split_once() -> None:
    ask = Asked()
    flow = placed(FLOW, ask(FLOW))
    measured = MeasuredView(step_s=15.0, simulation_s=7.0, in_situ_s=15.0, in_transit_s=5.0)
    drifted = dataclasses.replace(changed(flow, "spectrum", 4.0, 20), measured=measured)
    decision = ask(drifted)
    assert codes(decision) == {ReasonCode.SHORTER_STEP}
    reason = decision.actions[0].reason
    assert reason.data["drifted"]["spectrum work"] == pytest.approx(4.0)
    assert reason.data["step_s"] < 0.95 * reason.data["present_step_s"]
    assert reason.data["measured_step_s"] == 15.0
    assert "spectrum work is 4 times what it was" in reason.text
    flow = placed(drifted, decision)
    assert flow.present != drifted.present
    assert ask(dataclasses.replace(flow, steps=21)) == Decision()


@pytest.mark.parametrize(("factor", "spread"), [(1.05, 0.0), (0.95, 0.0), (4.0, 1.51)])
def test_what_is_noise_is_not_looked_at(factor: float, spread: float) -> None:
    ask = Asked(margin=0.0)
    flow = placed(FLOW, ask(FLOW))
    assert ask(changed(flow, "spectrum", factor, 20, spread=spread)) == Decision()


def test_less_than_the_margin_is_refused_with_the_figures_and_said_once() -> None:
    ask = Asked(margin=0.5)
    flow = placed(FLOW, ask(FLOW))
    drifted = changed(flow, "spectrum", 4.0, 20)
    decision = ask(drifted)
    assert decision.actions == ()
    assert codes(decision) == {ReasonCode.HYSTERESIS}
    reason = decision.suppressed[0].reason
    gain = 1 - reason.data["step_s"] / reason.data["present_step_s"]
    assert 0.05 < gain < 0.5
    assert f"{gain:.1%} less is not above the margin, 50.0%" in reason.text
    assert ask(drifted) == Decision()


def test_steps_lie_between_changes_and_twice_as_many_before_one_is_taken_back() -> None:
    ask = Asked(cooldown_steps=10)
    first = placed(FLOW, ask(FLOW))
    dear = changed(first, "spectrum", 4.0, 20)
    second = placed(dear, ask(dear))
    back = changed(second, "spectrum", 0.25, 5)
    decision = ask(back)
    assert codes(decision) == {ReasonCode.COOLDOWN}
    assert "changed at step 20, not again before step 30" in decision.suppressed[0].reason.text
    third = placed(back, ask(dataclasses.replace(back, steps=30)))
    assert third.present == first.present
    again = changed(third, "spectrum", 4.0, 0)
    assert codes(ask(dataclasses.replace(again, steps=49))) == {ReasonCode.COOLDOWN}
    assert codes(ask(dataclasses.replace(again, steps=50))) == {ReasonCode.SHORTER_STEP}


def test_nothing_is_said_while_a_change_is_under_way_or_a_work_is_not_known() -> None:
    ask = Asked()
    assert ask(dataclasses.replace(FLOW, changing=True)) == Decision()
    unknown = dataclasses.replace(FLOW.analyses[0], one_core_s=None)
    assert ask(dataclasses.replace(FLOW, analyses=(unknown, *FLOW.analyses[1:]))) == Decision()
    assert codes(ask(FLOW)) == {ReasonCode.FIRST_PLACE}


def test_a_split_that_does_not_fit_any_more_is_left_whatever_the_gain() -> None:
    ask = Asked(margin=1.0)
    flow = placed(FLOW, ask(FLOW))
    assert "isosurface" in flow.present.in_situ
    peak = changed(flow, "isosurface", 1.0, 20, memory_bytes=140e9)
    decision = ask(peak)
    assert codes(decision) == {ReasonCode.SHORTER_STEP}
    assert decision.actions[0].reason.data["present_step_s"] is None
    assert "isosurface" in placed(peak, decision).present.in_transit


def test_when_nothing_fits_it_says_so() -> None:
    ask = Asked()
    flow = placed(FLOW, ask(FLOW))
    grown = dataclasses.replace(
        flow, simulation=dataclasses.replace(flow.simulation, memory_bytes=1e12), steps=20
    )
    decision = ask(grown)
    assert decision.actions == ()
    assert codes(decision) == {ReasonCode.NOT_ENOUGH_NODES}


def test_a_flow_that_begins_anew_is_looked_at_anew() -> None:
    ask = Asked()
    flow = placed(FLOW, ask(FLOW))
    dear = changed(flow, "spectrum", 4.0, 20)
    ask(dear)
    assert codes(ask(dataclasses.replace(FLOW, steps=0))) == {ReasonCode.FIRST_PLACE}


def test_an_analysis_of_every_second_step_counts_half() -> None:
    application = application_of(
        dataclasses.replace(FLOW, analyses=tuple(dataclasses.replace(one, every=2) for one in FLOW.analyses))
    )
    assert application is not None
    assert [one.one_core_s for one in application.analyses] == [18.0, 15.0, 10.0, 12.5]
    assert [one.sent_bytes for one in application.analyses] == [3.0e9, 3.0e9, 1.0e9, 0.2e9]
    assert [one.memory_bytes for one in application.analyses] == [1.0e9, 2.0e9, 3.0e9, 0.8e9]


def test_large_flows_are_planned_outside_and_the_plan_has_to_be_about_what_is_known() -> None:
    many = tuple(dataclasses.replace(FLOW.analyses[i % 4], name=f"a{i}") for i in range(14))
    flow = dataclasses.replace(FLOW, analyses=many)
    ask = Asked()
    assert ask(flow) == Decision()
    plan = plan_of(flow)
    assert plan is not None
    stale = dataclasses.replace(plan, found_for={**plan.found_for, "a3 work": 1.0})
    assert ask(dataclasses.replace(flow, plan=stale)) == Decision()
    decision = ask(dataclasses.replace(flow, plan=plan))
    assert placed(flow, decision).present == plan.split
    assert plan_of(FLOW) is None
    assert dict(plan.found_for) == dict(known(flow))


@examples(60)
@given(chance=st.randoms(use_true_random=False), mode=st.sampled_from(MODES))
def test_what_is_decided_can_be_done_and_is_the_best(chance: Any, mode: Any) -> None:
    application = any_application(chance, most=5, nodes=6)
    assume(application.platform.max_staging_nodes is None and application.analyses)
    flow = dataclasses.replace(flow_of(application), mode=mode)
    known_as = application_of(flow)
    assert known_as is not None
    least_s = brute_force(known_as, mode)
    decision = Asked()(flow)
    if best_split(known_as, flow) is None:
        assert decision.actions == ()
        return
    after = placed(flow, decision)
    found_s = phases(known_as, after, after.present).step_s(mode)
    assert found_s == pytest.approx(least_s, rel=1e-9)
    if after.staging_nodes:
        # it has no staging node that it could do without
        fewer = dataclasses.replace(after.present, staging_nodes=after.staging_nodes - 1)
        fits = misfit(flow, fewer) is None
        assert not fits or phases(known_as, after, fewer).step_s(mode) > found_s * (1 + 1e-10)


def flow_of(application: Application) -> FlowView:
    """The flow of which that is known."""
    platform = application.platform
    fixed_nodes, fixed_cores = platform.simulation_nodes, platform.helper_cores
    return FlowView(
        nodes=platform.nodes if fixed_nodes is None else fixed_nodes,
        helper_cores=0 if fixed_cores is None else fixed_cores,
        staging_nodes=None if fixed_nodes is None else platform.nodes - fixed_nodes,
        simulation=SimulationView(
            one_core_s=application.simulation.one_core_s,
            memory_bytes=application.simulation.memory_bytes,
            serial_fraction=application.simulation.serial_fraction,
        ),
        platform=PlatformView(
            nodes=platform.nodes,
            cores=platform.cores,
            memory_bytes=platform.memory_bytes,
            staging_memory_bytes=platform.staging_memory_bytes,
            bandwidth_bytes_s=platform.bandwidth_bytes_s,
            nodes_fixed=fixed_nodes is not None,
            cores_fixed=fixed_cores is not None,
            least_helper_cores=platform.least_helper_cores,
        ),
        analyses=tuple(
            AnalysisView(
                name=one.name,
                declared=one.where,
                one_core_s=one.one_core_s,
                memory_bytes=one.memory_bytes,
                input_bytes=one.input_bytes,
                serial_fraction=one.serial_fraction,
            )
            for one in application.analyses
        ),
    )


def place(analysis: str = "spectrum", where: Any = "in-situ", nodes: int = 12, cores: int = 1) -> Place:
    return Place(flow="fields", analysis=analysis, where=where, nodes=nodes, cores=cores, reason=WHY)


SYNCHRONOUS = dataclasses.replace(FLOW, mode="synchronous")
BOUND = dataclasses.replace(
    FLOW,
    helper_cores=2,
    platform=dataclasses.replace(FLOW.platform, nodes_fixed=True, cores_fixed=True),
    nodes=12,
)
LENDING = dataclasses.replace(BOUND, staging_nodes=2)
LEAST = dataclasses.replace(FLOW, platform=dataclasses.replace(FLOW.platform, least_helper_cores=2))
DECLARED = dataclasses.replace(
    FLOW, analyses=(dataclasses.replace(FLOW.analyses[0], declared="in-transit"), *FLOW.analyses[1:])
)


@pytest.mark.parametrize(
    ("action", "flow", "code", "part"),
    [
        (place(), FLOW, None, ""),
        (place(where="in-transit", nodes=4, cores=4), FLOW, None, ""),
        (place(nodes=16, cores=0), SYNCHRONOUS, None, ""),
        (place(), None, ReasonCode.UNKNOWN_FLOW, "no flow 'fields'"),
        (place("other"), FLOW, ReasonCode.UNKNOWN_FLOW, "no analysis 'other'"),
        (place(), dataclasses.replace(FLOW, changing=True), ReasonCode.LOCKED, "is being changed"),
        (place(), DECLARED, ReasonCode.OUT_OF_BOUNDS, "is to run in-transit, as its user said"),
        (place(nodes=17), FLOW, ReasonCode.OUT_OF_BOUNDS, "allowed are 1 to 16"),
        (place(nodes=0), FLOW, ReasonCode.OUT_OF_BOUNDS, "allowed are 1 to 16"),
        (place(cores=4), FLOW, ReasonCode.OUT_OF_BOUNDS, "allowed are 1 to 3 of 4"),
        (place(cores=0), FLOW, ReasonCode.OUT_OF_BOUNDS, "allowed are 1 to 3 of 4"),
        (place(cores=1), SYNCHRONOUS, ReasonCode.OUT_OF_BOUNDS, "allowed are 0 to 0"),
        (place(where="in-transit", nodes=16, cores=4), FLOW, ReasonCode.OUT_OF_BOUNDS, "are 1 to 15"),
        (place(where="in-transit", nodes=4, cores=2), FLOW, ReasonCode.OUT_OF_BOUNDS, "all of its 4"),
        (place(nodes=11, cores=2), BOUND, ReasonCode.OUT_OF_BOUNDS, "it stays on the 12 that it has"),
        (place(nodes=12, cores=1), BOUND, ReasonCode.OUT_OF_BOUNDS, "the simulation leaves 2"),
        (place(where="in-transit", nodes=3, cores=4), BOUND, ReasonCode.OUT_OF_BOUNDS, "stays on the 12"),
        (place(nodes=12, cores=2), BOUND, None, ""),
        (place(where="in-transit", nodes=3, cores=4), LENDING, None, ""),
        (place(where="in-transit", nodes=5, cores=4), LENDING, ReasonCode.OUT_OF_BOUNDS, "are 1 to 4 of 16"),
        (place(cores=1), LEAST, ReasonCode.OUT_OF_BOUNDS, "allowed are 2 to 3 of 4"),
    ],
)
def test_each_refusal_has_its_reason(
    action: Place, flow: FlowView | None, code: ReasonCode | None, part: str
) -> None:
    why = refusal(action, flow)
    assert (None if why is None else why.code) == code
    assert part in ("" if why is None else why.text)


NAMES = tuple(one.name for one in FLOW.analyses)


@pytest.mark.parametrize(
    ("split", "code", "part"),
    [
        (Split(in_situ=NAMES, nodes=16, helper_cores=1), None, ""),
        (Split(in_situ=NAMES[:2], nodes=16), ReasonCode.INCOMPLETE, "where 'isosurface' runs"),
        (Split(in_situ=NAMES[1:], in_transit=NAMES[:1], nodes=16), ReasonCode.NOT_ENOUGH_NODES, "no node"),
        (Split(in_situ=NAMES[1:], in_transit=NAMES[:1], nodes=4), ReasonCode.NOT_ENOUGH_NODES, "3.78e+10"),
        (Split(in_transit=NAMES, nodes=3), ReasonCode.NOT_ENOUGH_NODES, "takes 3.2e+10 bytes, 3 nodes have"),
        (Split(in_transit=NAMES, nodes=4), None, ""),
        (Split(in_transit=NAMES, nodes=4, staging_nodes=0), ReasonCode.NOT_ENOUGH_NODES, "no node is left"),
    ],
)
def test_what_does_not_fit_is_told_of_the_whole_split(
    split: Split, code: ReasonCode | None, part: str
) -> None:
    why = misfit(FLOW, split)
    assert (None if why is None else why.code) == code
    assert part in ("" if why is None else why.text)


def test_a_flow_written_before_it_had_all_fields_loads() -> None:
    assert decode(FlowView, {}) == FlowView()
    assert decode(FlowView, {"analyses": [{"name": "a"}], "later": 1}).analyses == (AnalysisView(name="a"),)


def test_staging_nodes_go_back_when_fewer_are_enough_and_come_when_more_are_needed() -> None:
    platform = dataclasses.replace(FLOW.platform, nodes_fixed=True)
    simulation = dataclasses.replace(FLOW.simulation, one_core_s=100.0)
    ask = Asked()
    flow = dataclasses.replace(FLOW, platform=platform, simulation=simulation, nodes=12, staging_nodes=4)
    flow = placed(flow, ask(flow))
    assert (flow.present.in_transit, flow.staging_nodes) == (("vortices",), 4)
    faster = dataclasses.replace(platform, bandwidth_bytes_s=1e10)
    eased = dataclasses.replace(flow, steps=20, platform=faster)
    flow = placed(eased, decision := ask(eased))
    # a step is as long as it was
    assert codes(decision) == {ReasonCode.NO_DEMAND}
    assert flow.present == dataclasses.replace(eased.present, staging_nodes=2)
    again = dataclasses.replace(flow, steps=40, platform=platform)
    flow = placed(again, decision := ask(again))
    assert codes(decision) == {ReasonCode.SHORTER_STEP}
    assert flow.staging_nodes == 4
    # what is serial alone takes as long on one
    serial = dataclasses.replace(FLOW.analyses[0], one_core_s=99.0, serial_fraction=1.0, input_bytes=0.0)
    flow = dataclasses.replace(LENDING, analyses=(dataclasses.replace(serial, declared="in-transit"),))
    assert placed(flow, Asked()(flow)).staging_nodes == 1
