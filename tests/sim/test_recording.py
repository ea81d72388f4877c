"""Traces written by the simulator: they replay, they are workloads, and they tell what happened."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import Restless, application, malleable, malleable_workloads, rigid, workload

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import Options, Workload, load, simulate
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.formats import trace_file
from dask_hpc.sim.model.job import Compute, Request, SchedulingPoint
from dask_hpc.sim.model.machine import PUBLISHED, Failures, NodeFailure
from dask_hpc.trace.files import Trace, read_trace
from dask_hpc.trace.records import Header, JobEvent, NodeEvent, Pass, Record
from dask_hpc.trace.records import Result as Done
from dask_hpc.trace.replay import replay
from dask_hpc.trace.runs import job_runs, pool_steps
from dask_hpc_policies.registry import create

OPTIONS = Options(snapshots=True, node_ids=True)

FAILING = workload(
    rigid("a", 3, 20.0, checkpoint_interval_s=5.0), malleable("b", 4, 1, 8, 30.0), rigid("c", 2, 10.0, 3.0),
    nodes=8,
    failures=Failures(listed=(NodeFailure(t_s=8.0, node=0, downtime_s=6.0),
                              NodeFailure(t_s=12.0, node=5, downtime_s=4.0),
                              NodeFailure(t_s=13.0, node=7, downtime_s=4.0))),
)  # fmt: skip
SLOW_RESIZES = workload(
    malleable("a", 6, 1, 12, 100.0), malleable("b", 4, 1, 12, 80.0), rigid("c", 4, 10.0, 30.0), nodes=12,
    adaptation=PUBLISHED,
)  # fmt: skip


EVOLVING = workload(
    application(
        "e", 2, Compute(work=20.0), Request(nodes=6.0), SchedulingPoint(), Compute(work=60.0),
        Request(nodes=1.0), SchedulingPoint(), Compute(work=5.0),
        kind="evolving", min_nodes=1, max_nodes=8, resize="points",
    ),
    malleable("m", 6, 1, 8, 50.0), rigid("r", 3, 9.0, 5.0), nodes=8,
)  # fmt: skip


def run(work: Workload, policy: Any, **options: Any) -> tuple[Engine, Trace]:
    assert work.machine is not None
    chosen = Options(snapshots=True, node_ids=True, **options)
    engine = Engine(work, create(policy), work.machine, chosen)
    header, *records = recorded(engine)
    assert isinstance(header, Header)
    return engine, Trace("simulated", header, tuple(records))


def sizes_held(records: tuple[Record, ...]) -> dict[float, dict[str, int]]:
    """How many nodes each job holds at the end of every moment, by the events of the nodes."""
    holder: dict[str, str | None] = {}
    found: dict[float, dict[str, int]] = {}
    for record in records:
        if isinstance(record, NodeEvent):
            holder.update(dict.fromkeys(record.nodes, record.job))
        if isinstance(record, (NodeEvent, JobEvent)):
            counts: dict[str, int] = {}
            for job in holder.values():
                if job is not None:
                    counts[job] = counts.get(job, 0) + 1
            found[record.t_s] = counts
    return found


def sizes_told(records: tuple[Record, ...]) -> dict[float, dict[str, int]]:
    """The same by the events of the jobs."""
    present: dict[str, int] = {}
    found: dict[float, dict[str, int]] = {}
    for record in records:
        if isinstance(record, JobEvent):
            present[record.job] = record.nodes
        if isinstance(record, (NodeEvent, JobEvent)):
            found[record.t_s] = {job: nodes for job, nodes in present.items() if nodes}
    return found


def check(work: Workload, policy: Any, **options: Any) -> Trace:
    engine, trace = run(work, policy, **options)
    assert replay(trace).ok, replay(trace).first
    again = replay(trace, create(policy))
    assert (again.mode, again.ok) == ("verify", True)
    assert len(trace.passes) == engine.world.counts.policy_calls
    by_id = {found.id: found for found in job_runs(trace.records)}
    for was in engine.world.table.runs(engine.world.workload.jobs):
        found = by_id[was.id]
        assert (found.submit_s, found.state) == (was.submit_s, was.state)
        assert (found.start_s, found.end_s) == (was.start_s, was.end_s)
        assert (found.expansions, found.shrinks) == (was.expansions, was.shrinks)
    assert sizes_held(trace.records) == sizes_told(trace.records)
    outcomes = [record.outcome for record in trace.records if isinstance(record, Done)]
    assert sum(outcome.result == "refused" for outcome in outcomes) == engine.world.counts.refused
    asked = sum(action.TAG != "hold" for item in trace.passes for action in item.decision.actions)
    assert len(outcomes) == asked
    return trace


@pytest.mark.parametrize(
    ("source", "policy"),
    [
        ("builtin:figure-5-1", "fcfs"),
        ("builtin:figure-5-1", "easy"),
        ("builtin:figure-5-1", "conservative"),
        ("builtin:esp-10", "pwma-fpsma"),
        ("builtin:five-jobs", "prma-fpsma"),
        ("builtin:node-stealing", "sfsj"),
        ("builtin:five-jobs", "mebf"),
        ("builtin:io-aware", "io-aware"),
    ],
)
def test_a_simulated_trace_replays_and_tells_what_happened(source: str, policy: str) -> None:
    options = {"jobs": 40} if source == "builtin:io-aware" else {}
    work = load(source, seed=1, **options)
    trace = check(work, policy)
    again = trace_file.from_trace(trace)
    assert len(again.jobs) == len(work.jobs)
    assert work.machine is not None
    assert again.machine is not None
    assert again.machine.nodes == work.machine.nodes


@pytest.mark.parametrize(
    "work", [FAILING, SLOW_RESIZES, EVOLVING], ids=["failing", "slow resizes", "evolving"]
)
@pytest.mark.parametrize("policy", ["easy", "pwma-fpsma", "fcfs-malleable"])
def test_failures_and_resizes_that_take_time_are_told(work: Workload, policy: str) -> None:
    trace = check(work, policy)
    if work is FAILING:
        steps = dict(pool_steps(trace.records))
        assert (steps[8.0], steps[13.0], steps[14.0]) == (7, 5, 6)
        assert any(isinstance(r, JobEvent) and r.reason == "interrupted: failure" for r in trace.records)
    if work is EVOLVING:
        assert 6 in {job.requested_nodes for item in trace.passes for job in item.snapshot.jobs}


def test_late_answers_and_ticks_are_told() -> None:
    trace = check(load("builtin:esp-10"), "easy", decision_s=3.0, tick_s=50.0)
    assert {item.decide_s for item in trace.passes} == {3.0}
    assert "tick" in {item.snapshot.trigger for item in trace.passes}


@examples(15)
@given(malleable_workloads(), st.sampled_from(["pwma-fpsma", "prma-egs", "easy", "mebf"]))
def test_any_run_can_be_replayed(work: Workload, policy: str) -> None:
    check(work, policy)


@examples(15)
@given(malleable_workloads(), st.lists(st.integers(0, 20), max_size=20), st.booleans())
def test_any_resize_is_told(work: Workload, numbers: list[int], slow: bool) -> None:
    assert work.machine is not None
    if slow:
        work = workload(*work.jobs, nodes=16, adaptation=PUBLISHED)
    assert work.machine is not None
    _, trace = run(work, Restless(numbers))
    assert sizes_held(trace.records) == sizes_told(trace.records)
    assert len(job_runs(trace.records)) == len(work.jobs)


def test_rigid_jobs_of_a_trace_run_as_they_ran(tmp_path: Path) -> None:
    path = tmp_path / "easy.jsonl.gz"
    first = simulate(load("builtin:figure-5-1"), "easy", trace=path)
    second = simulate(load(path), "easy")
    assert [run.start_s for run in second.runs] == [run.start_s for run in first.runs] == [0, 4, 0, 8]
    assert [run.end_s for run in second.runs] == [run.end_s for run in first.runs]
    assert simulate(load(path), "fcfs").metrics()["makespan_s"] == 12


def test_equal_runs_give_equal_traces_and_the_trace_changes_nothing(tmp_path: Path) -> None:
    results = [simulate(load("builtin:esp-10"), "pwma-fpsma", trace=tmp_path / f"{i}.jsonl.gz") for i in "ab"]
    plain = simulate(load("builtin:esp-10"), "pwma-fpsma")
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert results[0].runs == plain.runs
    trace = read_trace(tmp_path / "a.jsonl.gz")
    assert trace.header.source == "simulated"
    lines = gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()
    assert len(lines) == len(trace.records) + 1


def test_a_fork_is_not_recorded() -> None:
    work = load("builtin:figure-5-1")
    assert work.machine is not None
    engine = Engine(work, create("easy"), work.machine, OPTIONS)
    stream = recorded(engine)
    records = [next(stream) for _ in range(5)]
    engine.fork().run()
    records += stream
    assert len([record for record in records if isinstance(record, Pass)]) == engine.world.counts.policy_calls
    assert not engine.world.active


def test_a_trace_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"none.*cannot be written: No such file"):
        simulate(load("builtin:figure-5-1"), "easy", trace=tmp_path / "none" / "t.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_workload_and_a_result_are_one_line_in_a_notebook_however_many_jobs_they_have():
    found = load("builtin:five-jobs")
    result = simulate(found, "easy")
    assert repr(found) == "<Workload 'five-jobs' jobs=5 source='builtin:five-jobs'>"
    assert repr(result) == f"<Result 'five-jobs' policy='easy' jobs=5 nodes={result.machine.nodes}>"
