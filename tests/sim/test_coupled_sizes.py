"""Coupled runs whose jobs are resized: they go on between two steps, and the policy sizes them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sim_worlds import BECAUSE

from dask_hpc import sim
from dask_hpc.errors import WorkloadError
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.pipeline import Pipeline
from dask_hpc.sim.model.coupled import Coupled, Drift
from dask_hpc.sim.model.job import Compute, Job, Program
from dask_hpc.sim.model.machine import AdaptationCost, Failures, Machine, NodeFailure, Options
from dask_hpc.sim.model.workload import Workload
from dask_hpc.sim.workloads.prepare import prepare
from dask_hpc.trace.files import read_trace
from dask_hpc.trace.replay import replay
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision, Expand, Place, ReasonCode, Steal
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.placement.application import Analysis, Application, Platform, Simulation
from dask_hpc_policies.placement.view import Split

#: On 4 nodes a step of the simulation takes 6.25 s, and so many more what is done with it on a staging node.
RUN = Coupled(
    flow="fields",
    steps=60,
    application=Application(
        platform=Platform(
            nodes=5,
            cores=4,
            memory_bytes=8e9,
            bandwidth_bytes_s=1e9,
            simulation_nodes=4,
            helper_cores=1,
            pipelined=True,
        ),
        simulation=Simulation(one_core_s=75.0, memory_bytes=4e9),
        analyses=(
            Analysis(name="spectrum", one_core_s=26.0, memory_bytes=1e9, input_bytes=1e9, where="in-transit"),
        ),
    ),
    split=Split(in_transit=("spectrum",), nodes=4, helper_cores=1, staging_nodes=1),
    # in transit it is the slower one until it gets cheaper
    drifts=(Drift(step=15, analysis="spectrum", factor=0.5),),
)


def job(run: Coupled = RUN, **how: Any) -> Job:
    how = {"start_nodes": 5, "min_nodes": 3, "max_nodes": 12, "kind": "malleable"} | how
    return Job(id="heat", submit_s=0.0, program=Program(stages=(run,)), **how)


def waits(at_s: float, nodes: int, runtime_s: float = 50.0) -> Job:
    return Job(
        id="other", submit_s=at_s, start_nodes=nodes, min_nodes=nodes, max_nodes=nodes, runtime_s=runtime_s
    )


def workload(*jobs: Job, nodes: int = 12, **how: Any) -> Workload:
    return Workload(name="w", jobs=jobs, machine=Machine(nodes=nodes, **how))


def sizes(result: Any) -> list[tuple[int, int]]:
    """The first step of each size of the simulation, and the size."""
    return [(one["step"], one["nodes"]) for one in result.flows[0]["splits"]]


def test_a_simulation_gets_idle_nodes_once_what_is_done_with_its_steps_gets_cheap(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    result = sim.simulate(workload(job()), "placement", trace=path)
    (first, second) = sizes(result)
    assert first == (0, 4)
    # with 8 of 11 nodes a step is as short as it can be but for the margin
    assert second[1] == 8
    assert 15 < second[0] <= 18
    steps = result.flows[0]["steps"]
    assert [step["step"] for step in steps] == list(range(60))
    at_s = result.flows[0]["splits"][1]["t_s"]
    for step in steps:
        assert step["simulation_s"] == pytest.approx(6.25 if step["begin_s"] < at_s else 3.125)
    assert result.flows[0]["run_s"] < 0.75 * sim.simulate(workload(job()), "fcfs").flows[0]["run_s"]
    trace = read_trace(path)
    (grown,) = [one for each in trace.passes for one in each.decision.actions if isinstance(one, Expand)]
    assert (grown.nodes, grown.reason.code) == (9, ReasonCode.SHORTER_STEP)
    assert replay(trace).ok


def test_it_gives_up_to_who_waits_what_it_had_grown_by_and_takes_it_again_later() -> None:
    result = sim.simulate(workload(job(), waits(200.0, 6)), "placement")
    assert [nodes for _, nodes in sizes(result)] == [4, 8, 5, 8]
    # with none to give up it would have had to wait for the end
    rigid = sim.simulate(workload(job(min_nodes=5, max_nodes=5, kind="rigid"), waits(200.0, 6)), "placement")
    assert [nodes for _, nodes in sizes(rigid)] == [4]


@pytest.mark.parametrize("cost_s", [0.0, 2.0])
def test_a_resize_waits_for_the_end_of_a_step_and_holds_up_the_simulation_alone(cost_s: float) -> None:
    machine = {"adaptation": AdaptationCost(expand_base_s=cost_s, shrink_base_s=cost_s)}
    # an analysis of 26 s is under way all the time
    slow = replace(RUN, drifts=(Drift(step=0, analysis="spectrum", factor=4.0),), queue=3, steps=12)
    work = workload(job(slow), waits(30.0, 8), **machine)
    result = sim.simulate(work, "pwma-fpsma")
    steps, splits = result.flows[0]["steps"], result.flows[0]["splits"]
    # it gets all there are before its first step, and gives up what the other one needs in the midst of one
    assert [nodes for _, nodes in sizes(result)][:2] == [11, 3]
    for split in splits[1:]:
        begin_s = split["t_s"] - cost_s
        for one in steps:
            assert not one["begin_s"] + 1e-9 < begin_s < one["begin_s"] + one["simulation_s"] - 1e-9
            assert not begin_s - 1e-9 < one["begin_s"] < split["t_s"] - 1e-9
    for one, after in itertools.pairwise(steps):
        assert after["begin_s"] >= one["begin_s"] + one["simulation_s"] - 1e-9
    later = next(one for one in steps if one["begin_s"] >= splits[1]["t_s"])
    assert later["simulation_s"] == pytest.approx(75.0 / (3 * 3))
    # analyses go on meanwhile
    assert [one["in_transit_s"] for one in steps] == pytest.approx([26.0] * 12)
    assert result.flows[0]["run_s"] < steps[0]["simulation_s"] + 12 * 26.0 + cost_s + 1e-6


def test_what_begins_anew_after_a_failure_has_the_nodes_that_its_job_has_then() -> None:
    failure = NodeFailure(t_s=150.0, node=0, downtime_s=1e6)
    work = workload(job(), failures=Failures(listed=(failure,)))
    result = sim.simulate(work, "placement")
    assert result.flows[0]["steps"][-1]["step"] == 59
    at_s = [split["t_s"] for split in result.flows[0]["splits"]]
    assert at_s == sorted(at_s)


def test_a_copy_of_a_run_that_is_resized_goes_on_as_it_does() -> None:
    work = workload(job(), waits(200.0, 6), adaptation=AdaptationCost(expand_base_s=2.0, shrink_base_s=2.0))
    engine = Engine(work, registry.create("placement"), work.machine or Machine(nodes=1), Options())
    assert engine.run_until(150.0)
    other = engine.fork()
    engine.run()
    other.run()
    assert engine.world.flow_reports == other.world.flow_reports
    assert len(engine.world.flow_reports[0]["splits"]) > 2


def test_a_run_among_whose_nodes_those_for_staging_are_is_resized_all_the_same() -> None:
    work, machine = prepare("builtin:coupled", malleable_share=1.0, options={"steps": 8})
    result = sim.simulate(work, registry.create("fixed", target_nodes=12), machine=machine)
    assert [split["nodes"] for split in result.flows[0]["splits"]][-1] == 12
    assert len(result.flows[0]["steps"]) == 8


def test_the_builtin_run_may_begin_with_few_nodes_and_grow_into_the_others() -> None:
    work = sim.load("builtin:coupled", start_nodes=8)
    result = sim.simulate(work, "placement")
    splits = result.flows[0]["splits"]
    assert splits[0]["nodes"] < splits[-1]["nodes"]
    assert result.flows[0]["run_s"] < 0.8 * sim.simulate(work, "fcfs").flows[0]["run_s"]
    with pytest.raises(WorkloadError, match="start_nodes is 17; allowed: 2 to 16"):
        sim.load("builtin:coupled", start_nodes=17)


def test_after_a_resize_too_a_policy_is_asked_before_the_next_step_begins(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    work = sim.load("builtin:coupled", start_nodes=8, drift_step=15, steps=40)
    (found,) = sim.simulate(work, "placement", trace=path).flows
    said = [
        one.snapshot.sections["coupling"]["fields"]["steps"]
        for one in read_trace(path).passes
        if any(isinstance(action, Place) for action in one.decision.actions)
    ]
    resized, changed = (split["t_s"] for split in found["splits"][1:])
    step = next(step for step in found["steps"] if step["step"] == said[-1])
    # what it said when so many steps had been handed over is done with the very next one
    assert resized < changed == step["begin_s"]


def test_a_run_that_is_cut_off_as_the_policy_is_asked_begins_anew_and_so_does_what_comes_before_it() -> None:
    policy = registry.create("fcfs")

    class Robs:
        name, params = "robs", policy.params

        def initial_state(self) -> bool:
            return False

        def decide(self, view: ClusterSnapshot, done: bool) -> tuple[Decision, bool]:
            flow = view.sections["coupling"].get("fields")
            if not done and flow is not None and flow["steps"] == 2:
                steal = Steal(job="heat", thief="other", stolen_nodes=5, reason=BECAUSE)
                return Decision(actions=(steal,)), True
            return policy.decide(view, policy.initial_state())[0], done

    heat = job(replace(RUN, steps=4))
    assert heat.program is not None
    # 10 s on its five nodes come first
    stages = Compute(work=50.0), *heat.program.stages
    work = workload(replace(heat, program=replace(heat.program, stages=stages)), waits(1.0, 8), nodes=8)
    result = sim.simulate(work, Robs())
    assert result.rows[0].restarts == 1
    # it is robbed after two steps of 6.25 s, and served at once, before who came later
    assert result.flows[0]["steps"][0]["begin_s"] == 10.0 + 2 * 6.25 + 10.0


def test_a_policy_sees_where_each_analysis_runs_once_a_step_has_begun() -> None:
    run: Any = SimpleNamespace(begun=0, split=SimpleNamespace(in_situ={"mean"}))
    assert Pipeline._where(run, "mean") == "auto"
    run.begun = 1
    assert [Pipeline._where(run, name) for name in ("mean", "fit")] == ["in-situ", "in-transit"]
