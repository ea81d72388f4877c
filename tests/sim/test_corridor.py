"""A power corridor in the simulator: the account, the study of the source, other policies held to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run as command
from sim_worlds import application, malleable

from dask_hpc.errors import SimulationError, TraceError, WorkloadError
from dask_hpc.report.power import power_report
from dask_hpc.sim import Machine, Options, Result, Workload, simulate
from dask_hpc.sim.engine import corridor as twin
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.formats import yaml_file, yaml_text
from dask_hpc.sim.model.corridor import Corridor, corridor
from dask_hpc.sim.model.job import Compute, Job, Transfer
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.power import NodePower
from dask_hpc.sim.workloads.sources import load
from dask_hpc.trace.files import read_trace
from dask_hpc.trace.records import DRAW, Pass
from dask_hpc.trace.records import Result as Done
from dask_hpc_policies.decision import ReleaseNodes, RequestNodes, Steal
from dask_hpc_policies.power.ramp import ramped
from dask_hpc_policies.registry import create

AHEAD = {"policy": "power-aware", "params": {"lookahead": "yes"}}
NEVER_HELD = {"policy": "power-aware", "params": {"hold": "no"}}


def run(policy: Any, seed: int = 0, mode: str | None = None) -> Result:
    """The study of the source, with the workload of that seed."""
    extra = {} if mode is None else {"corridor": {"mode": mode}}
    return simulate(load("builtin:corridor", seed=seed), policy, options=Options(extra=extra))


def two_jobs(*steps: tuple[float, float, float]) -> Workload:
    """Rigid jobs of 100 s on 2 of 4 nodes, of 200 W a node, the second 100 s after the first has ended."""
    common: Any = {"start_nodes": 2, "min_nodes": 2, "max_nodes": 2, "runtime_s": 100.0}
    jobs = tuple(
        Job(id=name, submit_s=at_s, power_by_nodes=((2, 200.0),), **common)
        for name, at_s in (("a", 0.0), ("b", 200.0))
    )
    power = NodePower(idle_w=50.0, busy_w=999.0)
    return Workload(name="two", jobs=jobs, machine=Machine(nodes=4, power=power, corridor=corridor(steps)))


def test_watts_outside_are_counted_by_hand() -> None:
    # 500 W while a job runs, 200 W between them
    result = simulate(two_jobs((0.0, 100.0, 450.0), (210.0, 300.0, 550.0)), "fcfs")
    found = result.metrics()
    assert found["energy_j"] == pytest.approx(500 * 100 + 200 * 100 + 500 * 100)
    assert found["corridor_violation_ws"] == pytest.approx(50 * 100 + 50 * 10)
    assert found["corridor_outside_s"] == pytest.approx(110)
    # rigid jobs run: no other allocation was there
    assert found["corridor_avoidable_s"] == 0
    assert found["corridor_departures"] == 1
    assert result.corridor is not None
    assert result.corridor.draw == ((0.0, 500.0), (100.0, 200.0), (200.0, 500.0))


def test_a_run_that_is_only_looked_at_is_as_without_a_corridor() -> None:
    work = load("builtin:corridor")
    assert work.machine is not None
    without = simulate(replace(work, machine=replace(work.machine, corridor=None)), "fair")
    looked_at = run("fair", mode="monitor")
    assert looked_at.runs == without.runs
    assert "corridor_outside_s" not in without.metrics()
    assert run("power-aware", mode="monitor").runs == run("fcfs").runs


def test_the_study_of_the_source() -> None:
    seeds = (0, 6, 9)  # 20 of them: tests/benchmarks/corridor.py
    held, free, easy, ahead = (
        [run(policy, seed).metrics() for seed in seeds]
        for policy in ("power-aware", NEVER_HELD, "easy", AHEAD)
    )

    def total(rows: list[dict[str, Any]], name: str) -> float:
        return sum(row[name] for row in rows)

    outside, left = "corridor_violation_ws", "corridor_departures"
    assert total(held, "completed") == 20 * len(seeds)
    assert total(held, outside) <= 0.1 * total(free, outside)
    assert total(held, outside) <= 0.05 * total(easy, outside)
    assert total(held, left) < min(total(free, left), total(easy, left))
    assert max(row["corridor_avoidable_s"] for row in held) <= 10
    assert total(easy, "corridor_avoidable_s") > 100  # or the line before says nothing
    assert total(ahead, left) == 0
    assert total(ahead, "makespan_s") <= 1.35 * total(easy, "makespan_s")


@pytest.mark.parametrize("policy", ["fcfs", "fair", "equipartition", "pwma-egs", "io-aware", "sfsj"])
def test_every_policy_can_be_held_to_it(policy: str) -> None:
    loose, held = run(policy, 1).metrics(), run(policy, 1, "enforce").metrics()
    assert held["completed"] == 20
    assert held["corridor_avoidable_s"] <= 10
    assert held["corridor_violation_ws"] <= 0.1 * loose["corridor_violation_ws"]


@pytest.mark.parametrize(("policy", "mode"), [(AHEAD, None), ("fair", "enforce")])
def test_a_trace_replays_without_a_solver(
    policy: Any, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    extra = {} if mode is None else {"corridor": {"mode": mode}}
    simulate(load("builtin:corridor"), policy, options=Options(extra=extra), trace=path)
    monkeypatch.setattr(twin, "solve", None)
    again = create(policy)
    state = again.initial_state()
    passes = [record for record in read_trace(path).records if isinstance(record, Pass)]
    assert {"corridor", "submit", "finish"} <= {one.snapshot.trigger for one in passes}
    assert any(one.snapshot.sections["power"].get("plan") for one in passes)
    for one in passes:
        decision, state = again.decide(one.snapshot, state)
        assert decision == one.decision


def test_a_decision_that_is_refused_names_its_watts(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    extra = {"corridor": {"mode": "enforce"}}
    simulate(load("builtin:corridor"), "fair", options=Options(extra=extra), trace=path)
    refused = [
        one.reason.text
        for record in read_trace(path).records
        if isinstance(record, Pass) and record.arbitrated is not None
        for one in record.arbitrated.suppressed
    ]
    assert any("corridor, upper bound: in the end the decision leads to" in text for text in refused)


TEXT = """
machine:
  nodes: 8
  power: {idle_w: 71}
  corridor: [[0 s, 700, 1500], [5 min, 500, 900]]
jobs:
  - {name: a, nodes: 2, min_nodes: 1, max_nodes: 8, runtime: 100 s, power_by_nodes: {1: 180, 8: 160}}
  - {name: b, nodes: 2, runtime: 10 s, min_power_w: 100, max_power_w: 120}
"""


def test_the_power_of_a_trace_without_records_of_the_draw_is_that_of_its_passes(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    simulate(yaml_file.parse(TEXT, "w.yaml"), "fcfs", trace=path)
    trace = read_trace(path)
    # so simulations have written theirs before
    earlier = replace(trace, records=[one for one in trace.records if getattr(one, "kind", "") != DRAW])
    now, before = power_report(trace), power_report(earlier)
    for name in ("accounted_s", "energy_j", "outside_s", "outside_ws"):
        assert before[name] == pytest.approx(now[name], rel=1e-6)
    assert before["bills"][0]["jobs"].keys() == now["bills"][0]["jobs"].keys()
    simulate(load("builtin:five-jobs"), "fcfs", trace=path)
    with pytest.raises(TraceError, match="the machine of the workload needs power; simulate it again"):
        power_report(read_trace(path))


def test_a_corridor_in_yaml_comes_back() -> None:
    work = yaml_file.parse(TEXT, "w.yaml")
    assert work.machine is not None
    assert work.machine.corridor == Corridor(steps=((0.0, 700.0, 1500.0), (300.0, 500.0, 900.0)))
    assert work.jobs[0].power_by_nodes == ((1, 180.0), (8, 160.0))
    assert work.notes == ()
    again = yaml_file.parse(yaml_text.dump(work), "again.yaml")
    assert (again.machine, again.jobs) == (work.machine, work.jobs)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("[]", "no steps; give at least one"),
        ("[[0, 5, 4]]", "lower_w is 5.0, upper_w 4.0; allowed.*lower_w not above upper_w"),
        ("[[5, 1, 2], [5, 1, 2]]", "step 2: t_s is 5, not after 5; times rise"),
        ("[[0, 1]]", "a lower and an upper bound in watts"),
        ("[[0, 1, 1e15]]", "allowed: from 0 to 1e[+]09 W"),
    ],
)
def test_what_is_wrong_with_a_corridor_is_one_line(steps: str, words: str) -> None:
    text = TEXT.replace("[[0 s, 700, 1500], [5 min, 500, 900]]", steps)
    with pytest.raises(WorkloadError, match=f"w.yaml, line 5.*{words}") as error:
        yaml_file.parse(text, "w.yaml")
    assert "\n" not in str(error.value)


def test_a_corridor_needs_watts_of_nodes() -> None:
    with pytest.raises(WorkloadError, match="nobody says what nodes draw; give power"):
        yaml_file.parse(TEXT.replace("  power: {idle_w: 71}\n", ""), "w.yaml")


def test_bounds_that_change_slowly_hold_a_job_ahead_of_a_step_and_after_it(tmp_path: Path) -> None:
    work = two_jobs((0.0, 0.0, 900.0), (210.0, 0.0, 450.0), (400.0, 0.0, 900.0))
    options = Options(extra={"corridor": {"mode": "enforce"}})
    # a job draws 500 W with the idle nodes: 460 W are allowed at 200 s, 500 W again at 450 s
    assert simulate(work, "fcfs", options=options).runs[1].start_s == 200
    path = tmp_path / "two.yaml"
    path.write_text(yaml_text.dump(work))
    asked = [str(path), "--policy", "fcfs", "--corridor-mode", "enforce", "--corridor-ramp", "1", "--json"]
    data = json.loads(command("simulate", *asked).stdout)
    assert [job["start_s"] for job in data["jobs"]] == [0, pytest.approx(450, abs=10)]
    assert data["corridor"] == [list(step) for step in ramped(work.machine.corridor, 1, 0).steps]  # type: ignore[union-attr,arg-type]
    assert data["corridor_outside_s"] == 0
    # one that jumps further than it is wide cannot change slowly
    far = command("simulate", "builtin:corridor", "--policy", "easy", "--corridor-ramp", "5")
    assert "no draw that changes by 5 W/s stays inside the bounds around 800 s" in far.output
    none = command("simulate", "builtin:five-jobs", "--policy", "easy", "--corridor-ramp", "5")
    assert "whose machine has a power corridor" in none.output


def test_on_the_command_line() -> None:
    asked = ["builtin:corridor", "--policy", "easy", "--corridor-mode"]
    found = command("simulate", *asked, "enforce", "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    assert data["corridor"] == [[0, 1700, 2500], [550, 1000, 1700], [800, 2500, 3500]]
    assert data["corridor_violation_ws"] < 20_000
    shown = command("simulate", *asked, "monitor").stdout
    assert "from 550 s 1000 to 1700 W" in shown
    assert "corridor_departures" in shown
    refused = command("simulate", *asked, "advise")
    assert refused.exit_code == 2
    assert "'monitor', 'enforce'" in refused.output


def with_levers(work: Workload, policy: str, *words: str) -> tuple[Result, list[Any]]:
    """A run under the corridor with these levers beside the usual ones, and its thefts and pool actions."""
    given = ("resize", "hold", "start", *words)
    options = Options(snapshots=True, extra={"corridor": {"mode": "enforce", "levers": given}})
    assert work.machine is not None
    pulled = [
        record.outcome.action
        for record in recorded(Engine(work, create(policy), work.machine, options))
        if isinstance(record, Done) and isinstance(record.outcome.action, (RequestNodes, ReleaseNodes, Steal))
    ]
    return simulate(work, policy, options=options), pulled


def with_pool(*steps: tuple[float, float, float]) -> Workload:
    """The two jobs on five nodes that come and go, and one of 60 W on one of them all the time."""
    work = two_jobs(*steps)
    assert work.machine is not None
    calm = Job(id="calm", submit_s=0.0, start_nodes=1, min_nodes=1, max_nodes=1, runtime_s=450.0,
               power_by_nodes=((1, 60.0),))  # fmt: skip
    machine = replace(work.machine, nodes=5, pool=Pool(initial_nodes=5, wait_s=1.0))
    return replace(work, jobs=(calm, *work.jobs), machine=machine)


@pytest.mark.parametrize("policy", ["fcfs", "power-aware"])
def test_idle_nodes_go_back_and_others_are_asked_for_on_request_alone(policy: str) -> None:
    # four idle ones draw 200 W: from 150 s on two may be there, from 190 s on three must
    work = with_pool((0.0, 0.0, 900.0), (150.0, 0.0, 180.0), (190.0, 210.0, 900.0))
    found, pulled = with_levers(work, policy, "pool")
    assert found.pool[:3] == ((0.0, 5), (150.0, 3), (191.0, 4))
    assert [(type(one), one.nodes) for one in pulled[:2]] == [(ReleaseNodes, 3), (RequestNodes, 4)]
    assert "draw 260 to 260 W, allowed are 0 to 180 W" in pulled[0].reason.text
    assert found.metrics()["corridor_outside_s"] == pytest.approx(1.0)
    without, none = with_levers(work, policy)
    assert without.metrics()["corridor_outside_s"] == pytest.approx(40.0)
    assert none == []


@pytest.mark.parametrize("policy", ["fcfs", "power-aware"])
def test_nodes_come_back_for_jobs_that_wait_once_there_are_watts_for_them(policy: str) -> None:
    work = with_pool((0.0, 0.0, 900.0), (150.0, 0.0, 70.0), (400.0, 0.0, 900.0))
    found, _ = with_levers(work, policy, "pool")
    assert found.pool[:3] == ((0.0, 5), (150.0, 1), (401.0, 3))
    assert found.runs[2].start_s == pytest.approx(401.0)


def test_idle_nodes_go_for_what_a_job_may_then_have_of_the_others_and_come_again() -> None:
    job = Job(id="a", submit_s=0.0, kind="malleable", start_nodes=1, min_nodes=1, max_nodes=4,
              runtime_s=1200.0, power_by_nodes=((1, 75.0),))  # fmt: skip
    bounds = corridor(((0.0, 0.0, 225.0), (300.0, 0.0, 900.0)))
    power = NodePower(idle_w=50.0, busy_w=200.0)
    machine = Machine(nodes=4, power=power, corridor=bounds, pool=Pool(initial_nodes=4, wait_s=1.0))
    work = Workload(name="off", jobs=(job,), machine=machine)
    # with three idle nodes there are watts for one that computes, with one that is off for three
    found, pulled = with_levers(work, "power-aware", "pool")
    assert [type(one) for one in pulled] == [ReleaseNodes, RequestNodes]
    assert found.pool == ((0.0, 3), (301.0, 4))
    assert "with 1 node off jobs may have more of the others" in pulled[0].reason.text
    assert found.metrics()["corridor_outside_s"] == 0
    assert found.runs[0].end_s == pytest.approx(301 + (1200 - 3 * 301) / 4, abs=1)
    without, _ = with_levers(work, "power-aware")
    assert without.runs[0].end_s == pytest.approx(300 + 900 / 4, abs=1)


@pytest.mark.parametrize("policy", ["fcfs", "power-aware"])
def test_a_waiting_job_takes_the_nodes_of_a_malleable_one_on_request_alone(policy: str) -> None:
    common: Any = {"walltime_s": 1000.0}
    jobs = (
        Job(id="hungry", submit_s=0.0, kind="malleable", start_nodes=4, min_nodes=3, max_nodes=4,
            runtime_s=300.0, power_by_nodes=((3, 250.0), (4, 250.0)), **common),
        Job(id="modest", submit_s=50.0, start_nodes=2, min_nodes=2, max_nodes=2, runtime_s=100.0,
            power_by_nodes=((2, 100.0),), **common),
    )  # fmt: skip
    # three nodes of the first one draw 800 W with the idle one, two of the second one 300 W
    steps = ((0.0, 0.0, 1200.0), (100.0, 0.0, 600.0), (500.0, 0.0, 1200.0))
    machine = Machine(nodes=4, power=NodePower(idle_w=50.0, busy_w=200.0), corridor=corridor(steps))
    work = Workload(name="theft", jobs=jobs, machine=machine)
    found, pulled = with_levers(work, policy, "steal")
    [theft, *_] = pulled
    assert (theft.job, theft.thief) == ("hungry", "modest")
    assert "the draw is 300 to 300 W, allowed are 0 to 600 W" in theft.reason.text
    assert found.metrics()["corridor_outside_s"] < 5
    assert found.runs[1].start_s == pytest.approx(100.0, abs=5)
    assert found.runs[0].end_s is not None
    without, none = with_levers(work, policy)
    assert none == []
    assert without.metrics()["corridor_outside_s"] > 100


def test_a_draw_that_is_no_jobs_is_led_back() -> None:
    # four nodes send for 200 s: 80 W of their cards beyond what is known, as 8 nodes compute at 200 W
    sends = application("sends", 4, Transfer(size_bytes=2e12), Compute(work=4.0))
    other = malleable("other", 4, 1, 4, 400.0)
    power = NodePower(idle_w=50.0, busy_w=200.0, nic_w=20.0)
    bounds = corridor(((0.0, 0.0, 1620.0),))
    machine = Machine(nodes=8, power=power, corridor=bounds, file_system_bytes_s=10e9)
    work = Workload(name="sends", jobs=(sends, other), machine=machine)
    options = Options(tick_s=1.0, extra={"corridor": {"mode": "enforce"}})
    found = simulate(work, "fcfs", machine=machine, options=options)
    assert 15 < found.metrics()["corridor_outside_s"] < 30
    assert [run.shrinks for run in found.runs] == [0, 1]


def test_bounds_that_come_later_than_is_looked_ahead_hold_nobody_of_unknown_length() -> None:
    job = Job(id="a", submit_s=0.0, start_nodes=2, min_nodes=2, max_nodes=2, runtime_s=100.0,
              power_by_nodes=((2, 200.0),))  # fmt: skip
    # two of four nodes draw 500 W, from 300 s on 450 W are allowed, from 400 s on all again
    steps = corridor(((0.0, 0.0, 900.0), (300.0, 0.0, 450.0), (400.0, 0.0, 900.0)))
    machine = Machine(nodes=4, power=NodePower(idle_w=50.0, busy_w=200.0), corridor=steps)
    work = Workload(name="ahead", jobs=(job,), machine=machine)

    def starts_s(**given: float) -> float | None:
        options = Options(extra={"corridor": given})
        return simulate(work, create("power-aware", lookahead="yes"), options=options).runs[0].start_s

    assert starts_s() == 0
    assert starts_s(horizon_s=301.0) == 400
    with pytest.raises(SimulationError, match="horizon_s is -1; allowed: at least 0 s"):
        starts_s(horizon_s=-1.0)


def test_a_lever_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(SimulationError, match="lever 'pray'; allowed: resize, hold"):
        with_levers(two_jobs((0.0, 0.0, 900.0)), "fcfs", "pray")
    asked = ["builtin:corridor", "--policy", "easy", "--corridor-levers", "resize, pray"]
    found = command("simulate", *asked)
    assert found.exit_code == 2
    assert "'pray'; allowed: resize, hold" in found.output


def test_the_lane_of_power_has_what_was_drawn_between_which_bounds(tmp_path: Path) -> None:
    result = simulate(two_jobs((0.0, 100.0, 450.0), (210.0, 300.0, 550.0)), "fcfs")
    found = [(one.start_s, one.end_s, one.watts, one.upper_w) for one in result.spans().power]
    assert found == [
        (0.0, 100.0, 500.0, 450.0), (100.0, 200.0, 200.0, 450.0),
        (200.0, 210.0, 500.0, 450.0), (210.0, 300.0, 500.0, 550.0),
    ]  # fmt: skip
    picture = result.timeline()
    drawn = picture.svg()
    assert "Watts of all nodes over time" in drawn
    assert "500 W, 210.0 s to 300.0 s" in drawn
    assert drawn.count('class="bound"') == 8
    picture.save(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5_000
    work = two_jobs((0.0, 100.0, 450.0))
    assert work.machine is not None
    without = simulate(replace(work, machine=replace(work.machine, corridor=None)), "fcfs")
    assert without.spans().power == ()
    assert "Watts of all nodes" not in without.timeline().svg()
