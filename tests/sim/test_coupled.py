"""Coupled runs: the planner's times come true, the policy finds the best split and follows a drift."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from placements import applications

from dask_hpc import sim
from dask_hpc.cli import hpc
from dask_hpc.errors import WorkloadError
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.generators.coupled import ANALYSES
from dask_hpc.sim.model.coupled import Coupled, Reader
from dask_hpc.sim.model.job import Job, Program
from dask_hpc.sim.model.machine import Failures, Machine, NodeFailure, Options
from dask_hpc.sim.model.workload import Workload
from dask_hpc.trace.files import read_trace
from dask_hpc.trace.replay import replay
from dask_hpc.trace.steps import step_rows
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision, Place, Reason, ReasonCode, Start
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.placement.application import MODES, Application, InvalidApplication, Mode
from dask_hpc_policies.placement.plan import METHODS, plan
from dask_hpc_policies.placement.view import Split

NAMES = [name for name, *_ in ANALYSES]


def flow(policy: Any = "placement", seed: int = 0, **options: Any) -> Mapping[str, Any]:
    """What became of the coupled run of ``builtin:coupled``."""
    work = sim.load("builtin:coupled", seed=seed, **options)
    (found,) = sim.simulate(work, policy, options=Options(seed=seed)).flows
    return found


def coupled(run: Coupled) -> Workload:
    """One job that is nothing but that run."""
    nodes = run.application.platform.nodes
    job = Job(
        id="j",
        submit_s=0.0,
        start_nodes=nodes,
        min_nodes=nodes,
        max_nodes=nodes,
        program=Program(stages=(run,)),
    )
    return Workload(name="w", jobs=(job,), machine=Machine(nodes=nodes))


def changes(found: Mapping[str, Any]) -> list[int]:
    """The first steps of all splits but the first."""
    return [split["step"] for split in found["splits"][1:]]


@examples(60)
@given(
    application=applications(),
    mode=st.sampled_from(MODES),
    method=st.sampled_from(METHODS),
    steps=st.integers(1, 30),
    queue=st.integers(1, 3),
)
def test_a_run_takes_as_long_as_the_planner_says(
    application: Application, mode: Mode, method: str, steps: int, queue: int
) -> None:
    try:
        found = plan(application, method, mode=mode)
    except InvalidApplication:
        return
    split = Split(
        in_situ=found.in_situ,
        in_transit=found.in_transit,
        nodes=found.nodes,
        helper_cores=found.helper_cores,
    )
    run = Coupled(flow="f", steps=steps, application=application, split=split, mode=mode, queue=queue)
    result = sim.simulate(coupled(run), "fcfs")
    assert result.flows[0]["run_s"] == pytest.approx(found.run_s(steps), rel=1e-9)
    assert result.metrics()["makespan_s"] == pytest.approx(found.run_s(steps), rel=1e-9)
    last = result.flows[0]["steps"][-1]
    phases = found.phases
    for name in ("simulation_s", "in_situ_s", "in_transit_s"):
        assert last[name] == pytest.approx(getattr(phases, name), rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_the_split_is_the_best_of_all_64(mode: Mode) -> None:
    runs_s = {}
    for count in range(len(NAMES) + 1):
        for chosen in itertools.combinations(NAMES, count):
            runs_s[chosen] = flow("fcfs", mode=mode, in_situ=chosen or None)["run_s"]
    assert len(runs_s) == 64
    ours_s = flow(mode=mode)["run_s"]
    assert ours_s <= 1.05 * min(runs_s.values())
    nothing_s, all_s = runs_s[()], runs_s[tuple(NAMES)]
    if mode == "asynchronous":
        assert ours_s < 0.9 * min(nothing_s, all_s)
    else:  # all in situ is best there
        assert ours_s <= all_s < nothing_s


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("name", NAMES)
def test_one_analysis_four_times_dearer_changes_the_split_within_three_steps_and_hardly_again(
    name: str, noise: float
) -> None:
    drift = {"drift_analysis": name, "drift_step": 15, "steps": 60, "noise": noise}
    for seed in range(3 if noise else 1):
        found = flow(seed=seed, **drift)
        assert found["refused"] == []
        first, *later = changes(found)
        assert 15 < first <= 18
        assert len([step for step in later if step <= first + 20]) <= 1
        stayed = flow("fcfs", seed=seed, **drift, in_situ=found["splits"][0]["in_situ"] or None)
        assert found["run_s"] < stayed["run_s"]


def test_noise_alone_changes_nothing() -> None:
    for seed in range(5):
        assert changes(flow(seed=seed, noise=0.1, steps=200)) == []


def test_two_steps_overlap_and_a_change_waits_for_what_has_begun() -> None:
    found = flow(drift_step=10, steps=30)
    steps, change = found["steps"], found["splits"][1]
    begun = [step for step in steps if step["step"] < change["step"]]
    assert max(step["end_s"] for step in begun) <= change["t_s"]
    # the simulation moves what it keeps on the nodes that it leaves: 32 GB of 15 nodes to 11
    moved_s = 32e9 * (1 - change["nodes"] / 15) / (change["nodes"] * 1e9)
    later = next(step for step in steps if step["begin_s"] > change["t_s"])
    assert later["begin_s"] == pytest.approx(change["t_s"] + moved_s)
    for one, after in itertools.pairwise(steps[:10]):
        assert one["handed_s"] <= after["begin_s"] < one["end_s"]


def in_flight(steps: list[Mapping[str, Any]]) -> int:
    """Most steps that were handed over and not done at one time."""
    times = [(step["handed_s"], 1) for step in steps if not step["dropped"]]
    times += [(step["end_s"], -1) for step in steps if not step["dropped"]]
    return max(itertools.accumulate(change for _, change in sorted(times)))


#: In transit the simulation is the slowest, a step each 8.33 s.
PLAIN: dict[str, Any] = {"policy": "fcfs", "in_situ": None, "steps": 1000}


@pytest.fixture(scope="module")
def plain_s() -> float:
    """How long that run takes when nobody is gone."""
    return float(flow(**PLAIN)["run_s"])


@pytest.mark.parametrize("queue", [1, 3])
@pytest.mark.parametrize("when_full", ["wait", "drop-oldest", "drop-newest"])
def test_who_reads_is_gone_for_an_hour(plain_s: float, when_full: str, queue: int) -> None:
    stall = {"reader_s": 0.1, "stall_step": 100, "stall_s": 3600.0}
    found = flow(**PLAIN, **stall, queue=queue, when_full=when_full)
    steps = found["steps"]
    assert [step["step"] for step in steps] == list(range(1000))
    assert found["peak_in_flight"] == queue
    assert in_flight(steps) == queue
    dropped = [step["step"] for step in steps if step["dropped"]]
    assert found["dropped"] == len(dropped)
    if when_full == "wait":
        assert dropped == []
        assert found["run_s"] == pytest.approx(plain_s + 3600, rel=0.01)
    else:
        assert len(dropped) == pytest.approx(3600 / 8.33, abs=4)
        first = 100 if when_full == "drop-oldest" else 100 + queue
        assert dropped == list(range(first, first + len(dropped)))
        assert found["run_s"] == pytest.approx(plain_s, rel=1e-4)


@pytest.mark.parametrize("queue", [1, 3])
def test_analyses_slower_than_the_simulation_lose_steps_and_none_that_they_have_begun(queue: int) -> None:
    slow = {"policy": "fcfs", "in_situ": NAMES, "steps": 200, "queue": queue}
    drift = {"drift_analysis": NAMES[0], "drift_step": 0, "drift_factor": 50.0}
    all_s = flow(**slow, **drift)["run_s"]
    found = flow(**slow, **drift, when_full="drop-oldest")
    steps = [step for step in found["steps"] if not step["dropped"]]
    assert found["dropped"] > 100
    # they are never idle: as many are done as could be
    work_s = all_s / 200
    assert len(steps) >= found["run_s"] / work_s - queue - 1
    # and of what is dropped nothing was analysed
    assert {step["in_situ_s"] for step in found["steps"] if step["dropped"]} == {0.0}


def test_a_flow_that_nobody_reads_runs_on() -> None:
    found = flow(steps=50, queue=2)
    assert found["dropped"] == 0
    assert found["peak_in_flight"] <= 2
    assert found["run_s"] == pytest.approx(flow(steps=50, queue=2, reader_s=0.0)["run_s"])


def test_a_copy_of_a_run_goes_on_as_it_does() -> None:
    work = sim.load("builtin:coupled", drift_step=10, noise=0.1)
    engine = Engine(work, registry.create("placement"), work.machine or Machine(nodes=1), Options())
    assert engine.run_until(90.0)
    other = engine.fork()
    engine.run()
    other.run()
    assert engine.world.flow_reports == other.world.flow_reports
    assert engine.world.flow_reports[0]["splits"][1:]


def test_a_node_that_fails_has_the_run_begin_anew() -> None:
    work = sim.load("builtin:coupled", steps=20)
    failure = NodeFailure(t_s=60.0, node=3, downtime_s=5.0)
    machine = replace(work.machine or Machine(nodes=1), failures=Failures(listed=(failure,)))
    result = sim.simulate(work, "placement", machine=machine)
    (found,) = result.flows
    assert found["steps"][0]["begin_s"] == 65.0
    assert found["run_s"] == pytest.approx(flow(steps=20)["run_s"])
    assert [split["step"] for split in found["splits"]] == [0]


def test_a_trace_of_it_has_the_places_and_replays(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    result = sim.simulate(sim.load("builtin:coupled", drift_step=10), "placement", trace=path)
    trace = read_trace(path)
    places = [action for one in trace.passes for action in one.decision.actions if isinstance(action, Place)]
    assert len(places) == 2 * len(NAMES)
    assert {place.reason.code for place in places} == {ReasonCode.FIRST_PLACE, ReasonCode.SHORTER_STEP}
    report = replay(trace)
    assert report.ok
    # what its steps have taken is in it, as in one of a live flow
    (found,) = result.flows
    steps = step_rows(trace.records)[found["flow"]]
    for name in ("step", "simulation_s", "in_situ_s", "in_transit_s"):
        assert [one[name] for one in steps] == pytest.approx([one[name] for one in found["steps"]]), name
    for row, before, after in zip(steps[1:], found["steps"], found["steps"][1:], strict=False):
        assert row["step_s"] == pytest.approx(after["handed_s"] - before["handed_s"])
        used_s = row["helper_cores"] * row["step_s"] - row["idle_helper_core_s"]
        assert 0 < row["in_situ_work_share"] < 1
        assert 0 < used_s <= row["helper_cores"] * row["step_s"]
    assert report.flows[found["flow"]]["steps"] == len(steps)


@dataclass(frozen=True)
class Says:
    """A policy that starts the job and then says those places once."""

    places: tuple[Place, ...]
    name: str = "says"

    def initial_state(self) -> None:
        return None

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        why = Reason(ReasonCode.FITS, "test")
        if view.pending:
            return Decision(actions=(Start(job="simulation", nodes=16, reason=why),)), None
        flows = view.sections["coupling"]
        at_first = flows and flows["fields"].get("steps", 0) == 0
        return Decision(actions=self.places if at_first else ()), None


def place(analysis: str, where: Any, nodes: int, cores: int) -> Place:
    why = Reason(ReasonCode.SHORTER_STEP, "test")
    return Place(flow="fields", analysis=analysis, where=where, nodes=nodes, cores=cores, reason=why)


def test_what_is_refused_changes_nothing() -> None:
    work = sim.load("builtin:coupled", steps=5)
    result = sim.simulate(work, Says((place("other", "in-situ", 12, 1), place("tracers", "in-situ", 12, 4))))
    texts = {refused.reason for refused in result.refusals}
    assert any("no analysis 'other'" in text for text in texts)
    assert any("4 helper cores: allowed are 1 to 3" in text for text in texts)
    assert [split["nodes"] for split in result.flows[0]["splits"]] == [16]


def test_a_split_that_does_not_fit_is_dropped_whole() -> None:
    work = sim.load("builtin:coupled", steps=5)
    (found,) = sim.simulate(work, Says(tuple(place(name, "in-situ", 4, 1) for name in NAMES))).flows
    assert [split["nodes"] for split in found["splits"]] == [16]
    assert "takes 4.08e+10 bytes, 4 nodes have 3.2e+10" in found["refused"][0]


def test_the_command_tells_phases_of_steps_and_the_split_over_time() -> None:
    arguments = "simulate builtin:coupled --policy placement --option drift_step=15 --json".split()
    result = CliRunner().invoke(hpc, arguments, prog_name="dask hpc")
    assert result.exit_code == 0, result.output
    for part in ('"in_transit_s"', '"helper_cores"', "spectrum work is 4 times what it was"):
        assert part in result.stdout
    result = CliRunner().invoke(hpc, arguments[:-1], prog_name="dask hpc")
    assert "flow fields, 40 steps, asynchronous" in result.stdout
    row = r"18 +155\.47 +vortices, isosurface, statistics, compression, tracers +spectrum +11 +1"
    assert re.search(row, result.stdout), result.stdout


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"in_situ": "all, spectrum"}, "'in_situ' cannot be 'all, spectrum'"),
        ({"drift_analysis": "x"}, "'drift_analysis' cannot be 'x': it must be one of spectrum"),
        ({"nodes": 3}, "32000000000.0 bytes do not fit|3.2e"),
        ({"nodes": 5}, "which does not fit; take more nodes"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, Any], part: str) -> None:
    with pytest.raises(WorkloadError, match=part):
        sim.load("builtin:coupled", **options)


def test_no_file_format_describes_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(hpc, ["convert", "builtin:coupled", str(tmp_path / "c.yaml")])
    assert result.exit_code == 1
    assert "is a coupled run (fields), which no YAML describes" in result.output
    assert not (tmp_path / "c.yaml").exists()


def test_a_reader_takes_its_time_for_each_step() -> None:
    work = sim.load("builtin:coupled", steps=20)
    (job,) = work.jobs
    assert job.program is not None
    (run,) = job.program.stages
    assert isinstance(run, Coupled)
    slow = coupled(replace(run, reader=Reader(seconds=30.0)))
    found = sim.simulate(slow, "fcfs").flows[0]
    first = found["steps"][0]["end_s"]
    assert found["run_s"] == pytest.approx(first + 19 * 30.0)
