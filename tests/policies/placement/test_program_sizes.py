"""Programs that hand over their steps grow into idle nodes when it pays, and make room for who waits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dask_hpc_policies import registry
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.decision import Decision, Expand, Hold, ReasonCode, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.placement.replan import known, plan_of
from dask_hpc_policies.placement.view import (
    SECTION,
    AnalysisView,
    FlowView,
    PlatformView,
    SimulationView,
)
from dask_hpc_policies.protocol import decode_state, encode_state

#: Four nodes, and one for staging, on which a step's analysis takes 4 s; the simulation takes 25 / nodes s.
FLOW = FlowView(
    steps=100,
    nodes=4,
    staging_nodes=1,
    helper_cores=1,
    job="heat",
    job_nodes=4,
    simulation=SimulationView(one_core_s=75.0, samples=100),
    platform=PlatformView(
        nodes=5, cores=4, nodes_fixed=True, cores_fixed=True, pipelined=True, bandwidth_bytes_s=1e9
    ),
    analyses=(
        AnalysisView(
            name="spectrum",
            declared="in-transit",
            where="in-transit",
            one_core_s=16.0,
            input_bytes=1e9,
            memory_bytes=1e9,
            samples=100,
        ),
    ),
)
HEAT = JobView(id="heat", state="running", kind="malleable", nodes=4, min_nodes=2, max_nodes=16)
WAITS = JobView(id="other", kind="rigid", start_nodes=2, min_nodes=2, max_nodes=2)


def sized(flow: FlowView, nodes: int, **more: Any) -> FlowView:
    """`flow` with its job on so many nodes."""
    others = flow.job_nodes - flow.nodes
    platform = replace(flow.platform, nodes=flow.platform.nodes + nodes - flow.job_nodes)
    return replace(flow, nodes=nodes - others, job_nodes=nodes, platform=platform, **more)


class Asked:
    """The policy, asked again and again; its state goes through JSON each time."""

    def __init__(self, **params: Any) -> None:
        self.policy = registry.create("placement", **params)
        self._state = encode_state(self.policy.initial_state())

    def __call__(self, flow: FlowView, *others: JobView, idle: int = 4, heat: JobView = HEAT) -> Decision:
        view = ClusterSnapshot(
            now_s=0.0,
            jobs=(replace(heat, nodes=flow.job_nodes), *others),
            idle_nodes=idle,
            sections={SECTION: json.loads(json.dumps({"fields": encode(flow)}))},
        )
        decision, state = self.policy.decide(view, decode_state(self.policy, self._state))
        self._state = json.loads(json.dumps(encode_state(state)))
        assert decode(Decision, json.loads(json.dumps(encode(decision)))) == decision
        return decision


def resizes(decision: Decision) -> list[tuple[type, int]]:
    return [(type(one), one.nodes) for one in decision.actions if isinstance(one, (Expand, Shrink))]


def refusals(decision: Decision) -> set[ReasonCode]:
    return {one.reason.code for one in decision.suppressed}


def test_a_program_gets_as_many_idle_nodes_as_make_its_step_shorter() -> None:
    assert resizes(Asked()(FLOW, idle=1)) == [(Expand, 5)]
    decision = Asked()(FLOW, idle=12)
    # with 7 the analysis is the slower one; with 6 a step is longer by less than the margin
    assert resizes(decision) == [(Expand, 6)]
    (action,) = decision.actions
    assert action.reason.code is ReasonCode.SHORTER_STEP
    assert "a step is to take 4.17 s with the simulation on 6 nodes; on 4 6.25 s" in action.reason.text
    # a node fewer of the job, too, is one of the simulation when some of the job's nodes stage
    staged = replace(FLOW, job_nodes=5)
    assert resizes(Asked()(staged, idle=12)) == [(Expand, 7)]
    assert resizes(Asked()(FLOW, idle=12, heat=replace(HEAT, constraint="pof2"))) == [(Expand, 8)]
    assert resizes(Asked()(replace(FLOW, lent_nodes=3), idle=4)) == [(Expand, 5)]
    # after a loss its size may be none that it could have, and what it could have no faster
    bound = replace(FLOW, analyses=(replace(FLOW.analyses[0], one_core_s=400.0),))
    assert Asked()(sized(bound, 3), heat=replace(HEAT, constraint="pof2")) == Decision()


def test_it_is_judged_when_something_has_changed_and_not_again_before_some_steps() -> None:
    ask = Asked(cooldown_steps=10)
    slow = replace(FLOW.analyses[0], one_core_s=26.0)
    bound = replace(FLOW, analyses=(slow,))
    # the analysis takes 6.5 s
    assert ask(bound) == Decision()
    cheap = replace(bound, steps=200, analyses=(replace(slow, one_core_s=16.0),))
    assert resizes(ask(cheap)) == [(Expand, 6)]
    dear = replace(FLOW.simulation, one_core_s=300.0, samples=109)
    # too few steps of that size were measured, then too few were done
    assert ask(sized(cheap, 6, steps=209, simulation=dear)) == Decision()
    dear = replace(dear, samples=110)
    grown = sized(cheap, 6, steps=209, simulation=dear)
    decision = ask(grown)
    assert (decision.actions, refusals(decision)) == ((), {ReasonCode.COOLDOWN})
    assert "changed a moment ago, not before step 210" in decision.suppressed[0].reason.text
    assert resizes(ask(replace(grown, steps=210))) == [(Expand, 10)]
    # it got as many as were idle, and more are
    grown = sized(grown, 10, steps=230, simulation=replace(dear, samples=130))
    assert ask(grown, idle=0) == Decision()
    assert resizes(ask(replace(grown, steps=231), idle=6)) == [(Expand, 16)]


def test_who_waits_gets_what_it_can_do_without_and_what_it_had_grown_by() -> None:
    ask = Asked(cooldown_steps=10)
    slow = replace(FLOW, analyses=(replace(FLOW.analyses[0], one_core_s=36.0),))
    # the analysis takes 9 s, and the simulation on 3 nodes no longer
    decision = ask(slow, WAITS, idle=1)
    assert resizes(decision) == [(Shrink, 3)]
    assert [type(one) for one in decision.actions] == [Shrink, Start]
    # all or nothing: with two more it would be slower
    decision = Asked()(slow, WAITS, idle=0)
    assert [type(one) for one in decision.actions] == [Hold]
    assert resizes(Asked()(FLOW, WAITS, idle=1)) == []
    # what it grew by it gives back at once, and takes again after twice the wait
    ask = Asked(cooldown_steps=10)
    assert resizes(ask(FLOW, idle=2)) == [(Expand, 6)]
    grown = sized(FLOW, 6, steps=101)
    assert resizes(ask(grown, WAITS, idle=0)) == [(Shrink, 4)]

    def at(steps: int) -> FlowView:
        return replace(FLOW, steps=steps, simulation=replace(FLOW.simulation, samples=10 * steps))

    for first in (121, 202):
        assert refusals(ask(at(first - 1), idle=2)) == {ReasonCode.COOLDOWN}
        assert resizes(ask(at(first), idle=2)) == [(Expand, 6)]
        assert resizes(ask(sized(at(first + 1), 6), WAITS, idle=0)) == [(Shrink, 4)]
    # a size that somebody else has said is its own: 5 s on 5 nodes are too long
    ask = Asked()
    ask(FLOW, idle=2)
    one_node = replace(WAITS, start_nodes=1, min_nodes=1, max_nodes=1)
    assert resizes(ask(sized(FLOW, 5, steps=101), one_node, idle=0)) == []


def test_a_program_of_many_analyses_is_sized_with_the_split_that_was_planned_outside() -> None:
    (one,) = FLOW.analyses
    part = replace(one, declared="auto", one_core_s=16 / 14, input_bytes=1e9 / 14, memory_bytes=1e9)
    many = replace(FLOW, analyses=tuple([replace(part, name=f"a{number}") for number in range(14)]))
    # nobody has planned it, or it was another flow then
    assert Asked()(many, idle=12).actions == ()
    plan = plan_of(many)
    assert plan is not None
    slower = replace(many, simulation=replace(FLOW.simulation, one_core_s=90.0), plan=plan)
    assert resizes(Asked()(slower, idle=12)) == []
    split = plan.split
    assert split is not None
    assert len(split.in_situ) == len(split.in_transit)
    placed = [replace(a, where="in-situ" if a.name in split.in_situ else "in-transit") for a in many.analyses]
    planned = replace(many, plan=plan, analyses=tuple(placed))
    decision = Asked()(planned, idle=12)
    # half of them stage, and take 2 s
    assert resizes(decision) == [(Expand, 12)]
    (text,) = [one.reason.text for one in decision.actions if isinstance(one, Expand)]
    assert "2.08 s with the simulation on 12 nodes; on 4 6.25 s; its analyses split as" in text
    # those that stage take 20 s: with fewer nodes a step is as long, while the 7 GB of the others fit them
    one_node = replace(WAITS, start_nodes=1, min_nodes=1, max_nodes=1)
    dear = tuple([replace(a, one_core_s=10 * 16 / 14) if a.where == "in-transit" else a for a in placed])
    for node_bytes, found in ((2.4e9, [(Shrink, 3)]), (2.3e9, [])):
        platform = replace(FLOW.platform, memory_bytes=node_bytes)
        tight = replace(planned, platform=platform, analyses=dear)
        tight = replace(tight, plan=replace(plan, found_for=known(tight)))
        assert resizes(Asked()(tight, one_node, idle=0)) == found


@pytest.mark.parametrize(
    ("flow", "heat", "others"),
    [
        (replace(FLOW, job=None), HEAT, ()),
        (replace(FLOW, changing=True), HEAT, ()),
        (replace(FLOW, job_nodes=4), replace(HEAT, state="adapting"), ()),
        (replace(FLOW, simulation=replace(FLOW.simulation, samples=4)), HEAT, ()),
        (replace(FLOW, analyses=(replace(FLOW.analyses[0], samples=0),)), HEAT, ()),
        (FLOW, replace(HEAT, kind="rigid"), ()),
        (FLOW, replace(HEAT, max_nodes=4), ()),
        (FLOW, HEAT, (JobView(id="default", state="running", is_default=True, unfinished_tasks=1),)),
    ],
)
def test_nobody_grows_that_may_not_or_of_which_too_little_is_known(
    flow: FlowView, heat: JobView, others: tuple[JobView, ...]
) -> None:
    assert resizes(Asked()(flow, *others, heat=heat)) == []


def test_a_growth_that_does_not_pay_is_refused_with_its_figures() -> None:
    almost = replace(FLOW, analyses=(replace(FLOW.analyses[0], one_core_s=24.0),))
    # from 6.25 to 6 s
    decision = Asked()(almost)
    assert (decision.actions, refusals(decision)) == ((), set())
    decision = Asked(margin=0.4)(FLOW)
    assert (decision.actions, refusals(decision)) == ((), {ReasonCode.HYSTERESIS})
    decision = Asked()(FLOW, heat=replace(HEAT, remaining_s=40.0))
    assert (decision.actions, refusals(decision)) == ((), {ReasonCode.ALMOST_DONE})
    # to move 0.99 TB takes 82.5 s of those four nodes' links, 2 s are saved a step
    heavy = replace(FLOW, steps=39, simulation=replace(FLOW.simulation, memory_bytes=0.99e12))
    ask = Asked()
    decision = ask(heavy)
    assert (decision.actions, refusals(decision)) == ((), {ReasonCode.COOLDOWN})
    assert "moving its data takes longer, not before step 40" in decision.suppressed[0].reason.text
    assert resizes(ask(replace(heavy, steps=40))) == [(Expand, 6)]
