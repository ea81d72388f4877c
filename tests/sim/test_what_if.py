"""A simulation that goes on from a picture of a cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sim_worlds import BECAUSE, Scripted, malleable, rigid, workload

from dask_hpc.errors import TraceError, WorkloadError
from dask_hpc.sim import load, simulate
from dask_hpc.sim.model.machine import FREE, Failures, NodeFailure
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.power import NodePower
from dask_hpc.sim.what_if import engine_from, simulate_from
from dask_hpc.trace.files import Trace, read_trace
from dask_hpc.trace.records import Header, JobEvent, NodeEvent, Pass
from dask_hpc.trace.replay import replay
from dask_hpc.trace.runs import job_runs
from dask_hpc.trace.state import snapshot_at
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision, RequestNodes, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView

RUNNING = JobView(
    id="r", state="running", kind="malleable", nodes=6, start_nodes=4, min_nodes=2, max_nodes=8, submit_s=1.0,
    start_s=40.0, walltime_s=110.0, remaining_s=50.0, expansions=1,
)  # fmt: skip
WAITING = JobView(
    id="w", kind="rigid", start_nodes=4, min_nodes=4, max_nodes=4, submit_s=90.0, walltime_s=10.0
)
VIEW = ClusterSnapshot(now_s=100.0, jobs=(RUNNING, WAITING), idle_nodes=2)


def ends(policy: str, view: ClusterSnapshot = VIEW) -> dict[str, tuple[float | None, float | None]]:
    engine = engine_from(view, policy)
    engine.run()
    return {run.id: (run.start_s, run.end_s) for run in engine.world.table.runs(engine.world.workload.jobs)}


def test_what_runs_goes_on_and_what_waits_starts_when_there_is_room() -> None:
    assert ends("fcfs") == {"r": (100.0, pytest.approx(150.0)), "w": (150.0, pytest.approx(160.0))}


def test_a_policy_may_shrink_what_runs_for_what_waits() -> None:
    found = ends("pwma-fpsma")
    assert found["w"] == (100.0, 110.0)
    # 300 node-seconds are left: 4 nodes for 10 s, then 8.
    assert found["r"][1] == pytest.approx(110 + (300 - 40) / 8)


def test_a_policy_is_told_of_communication_what_was_measured_and_nothing_where_nothing_was() -> None:
    """`performance-aware` shrinks nobody whose communication is not known, there as on the cluster."""
    assert ends("performance-aware")["w"] == (150.0, pytest.approx(160.0))
    measured = replace(RUNNING, mtct=0.5, mtct_previous=0.5)
    assert ends("performance-aware", replace(VIEW, jobs=(measured, WAITING)))["w"] == (100.0, 110.0)


def test_forks_compare_policies_from_the_same_moment() -> None:
    engine = engine_from(VIEW, "fcfs")
    other = engine.fork(registry.create("pwma-fpsma"))
    engine.run()
    other.run()
    last = [max(row.end_s or 0.0 for row in one.world.table.rows) for one in (engine, other)]
    assert last[1] < last[0]


def test_a_job_of_unknown_length_needs_a_default() -> None:
    view = ClusterSnapshot(now_s=0.0, jobs=(JobView(id="x", start_nodes=1),), idle_nodes=1)
    with pytest.raises(WorkloadError, match=r"'x'.*default_s"):
        engine_from(view, "fcfs")
    engine = engine_from(view, "fcfs", default_s=7.0)
    engine.run()
    assert engine.world.table.rows[0].end_s == 7.0
    with pytest.raises(WorkloadError, match="no job runs or waits there"):
        engine_from(ClusterSnapshot(now_s=0.0), "fcfs")


def test_nodes_may_be_added_but_not_those_taken_that_are_held() -> None:
    wide = simulate_from(VIEW, "fcfs", nodes=10)
    assert wide.runs[1].start_s == 100.0
    assert wide.from_s == 100.0
    # what waited before waits from the snapshot on
    assert [run.submit_s for run in wide.runs] == [100.0, 100.0]
    assert wide.metrics()["mean_wait_s"] == 0
    with pytest.raises(WorkloadError, match="jobs hold 6 nodes, a machine of 5 is too small"):
        simulate_from(VIEW, "fcfs", nodes=5)
    with pytest.raises(WorkloadError, match="here: no job waits or runs"):
        simulate_from(ClusterSnapshot(now_s=0.0, idle_nodes=1), "fcfs", name="here")


def test_a_run_that_goes_on_is_recorded_from_its_first_decision(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    result = simulate_from(VIEW, "pwma-fpsma", trace=path)
    trace = read_trace(path)
    assert replay(trace).ok
    assert trace.passes[0].snapshot.now_s == 100.0
    assert [action.TAG for action in trace.passes[0].decision.actions] == ["shrink", "start"]
    runs = {run.id: (run.start_s, run.end_s) for run in job_runs(trace.records)}
    assert runs == {run.id: (run.start_s, run.end_s) for run in result.runs}


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
@pytest.mark.parametrize("t_s", [0, 1, 300, 600, 905, 1500.5, 2500])
def test_from_any_moment_of_a_trace_the_same_policy_does_the_same(
    policy: str, t_s: float, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    work = load("builtin:esp-10")
    whole = simulate(work, policy, trace=path)
    view = snapshot_at(read_trace(path), t_s)
    assert view.idle_nodes + sum(job.nodes for job in view.jobs) == 16
    rest = {run.id: run for run in simulate_from(view, policy).runs}
    for run in whole.runs:
        if run.submit_s > t_s:
            assert run.id not in rest
        elif run.end_s is not None and run.end_s > t_s and all(r.submit_s <= t_s for r in whole.runs):
            assert run.start_s is not None
            assert rest[run.id].start_s == pytest.approx(max(run.start_s, t_s))
            assert rest[run.id].end_s == pytest.approx(run.end_s)


def test_a_moment_of_a_trace_with_resizes_and_failures(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    work = workload(
        rigid("a", 3, 20.0), malleable("b", 4, 1, 8, 30.0), nodes=8,
        failures=Failures(listed=(NodeFailure(t_s=8.0, node=0, downtime_s=6.0),)),
    )  # fmt: skip
    simulate(work, "pwma-fpsma", trace=path)
    trace = read_trace(path)
    for t_s in (0.0, 5.0, 8.0, 9.0, 14.0, 15.0):
        view = snapshot_at(trace, t_s)
        pool = 7 if 8 <= t_s < 14 else 8
        assert view.idle_nodes + sum(job.nodes for job in view.jobs) == pool, t_s
        assert simulate_from(view, "pwma-fpsma").counts.starts >= 1
    last = max(run.end_s or 0.0 for run in job_runs(trace.records))
    for wrong in (-1.0, last + 1):
        with pytest.raises(TraceError, match=rf"nothing is known of {wrong:g} s; the trace tells of 0 to"):
            snapshot_at(trace, wrong)
    with pytest.raises(TraceError, match="no policy was called"):
        snapshot_at(Trace("empty", Header()), 0.0)


def node(id: str, job: str | None = None, left_s: float | None = None, role: str = "compute") -> NodeView:
    return NodeView(id=id, job=job, walltime_left_s=left_s, role=role)


#: The job holds the nodes that are named last, and two are for something else.
NODES = (
    node("z", None, 30.0), node("y", None, None), node("s", None, None, "staging"),
    node("v", None, 40.0, "reserve"), *(node(f"a{i}", "r", 200.0 + i) for i in range(6)),
)  # fmt: skip


def test_nodes_keep_their_roles_and_walltimes() -> None:
    engine = engine_from(replace(VIEW, nodes=NODES), "fcfs")
    found = engine.enactor.asker.snapshot("tick")  # type: ignore[attr-defined]
    assert [(one.job, one.role, one.walltime_left_s) for one in found.nodes] == [
        *(("r", "compute", 200.0 + i) for i in range(6)),
        (None, "compute", 30.0), (None, "compute", None), (None, "reserve", 40.0), (None, "staging", None),
    ]  # fmt: skip
    assert (found.idle_nodes, found.pool_nodes, found.of_role("staging")) == (2, 8, 1)


#: As `NODES`, two nodes a host and hosts of one job in two racks; of one node nothing is known.
RACKS = tuple(
    one if one.id == "s" else replace(one, host=f"h{i // 2}", domain=f"rack {i % 4 // 2}")
    for i, one in enumerate(NODES)
)
WHERE = {one.id: (one.host, one.domain) for one in RACKS}


def test_hosts_and_failure_domains_are_those_of_the_nodes_there() -> None:
    engine = engine_from(replace(VIEW, nodes=RACKS), "fcfs", nodes=9, pool=Pool(initial_nodes=0))
    found = engine.enactor.asker.snapshot("tick")  # type: ignore[attr-defined]
    ids = [*(f"a{i}" for i in range(6)), "z", "y", "v", "s"]
    assert [(one.host, one.domain) for one in found.nodes] == [WHERE[id] for id in ids]
    assert len({one.host for one in found.nodes}) == 6, "five hosts, and one that is not known"
    # a node that is to come has no place yet, and nobody knows of one that is there
    assert engine.world.workload.notes[1:] == (
        "not known from there: the host of 2 nodes (such fail alone); the failure domain of 2 nodes (such "
        "fail alone); the bandwidth of the file system (reads and writes take no time)",
    )


def test_what_fails_together_there_fails_together_in_the_run() -> None:
    def after(severity: Any, nodes: tuple[NodeView, ...] = RACKS) -> tuple[tuple[float, int], ...]:
        failing = NodeFailure(t_s=120.0, node=0, downtime_s=1e3, severity=severity)
        engine = engine_from(replace(VIEW, nodes=nodes), "fcfs", failures=Failures(listed=(failing,)))
        engine.run()
        return engine.world.table.runs(engine.world.workload.jobs)[0].nodes

    assert after("process")[1][0] == 120.0
    assert after(None)[:2] == ((100.0, 6), (120.0, 5))
    # a0 and a1 are on one host; a2 and a3 are in another rack than a0, a1, a4 and a5
    assert WHERE["a0"][0] == WHERE["a1"][0] != WHERE["a2"][0]
    assert after("host")[:2] == ((100.0, 6), (120.0, 4))
    assert after("domain")[:2] == ((100.0, 6), (120.0, 2))
    assert after("host", NODES)[:2] == ((100.0, 6), (120.0, 5)), "each has a host for itself"
    with pytest.raises(WorkloadError, match="a domain fails, but no domains are given"):
        after("domain", NODES)


def test_the_file_system_is_as_fast_as_it_has_shown() -> None:
    known = replace(VIEW, nodes=RACKS, sections={"file_system": {"written_bytes_s": 3e9}})
    result = simulate_from(known, "fcfs")
    assert result.machine.file_system_bytes_s == 3e9
    assert "file system" not in " ".join(result.workload.notes)
    for wrong in ({}, 3, {"written_bytes_s": "fast"}, {"written_bytes_s": 0}, {"written_bytes_s": math.nan}):
        result = simulate_from(replace(known, sections={"file_system": wrong}), "fcfs")
        assert result.machine.file_system_bytes_s is None
    # and as tasks have shown it, if that is more
    both = {"file_system": {"written_bytes_s": 3e9}, "io": {"file_system_bytes_s": 4e9}}
    for sections, known_bytes_s in ((both, 4e9), ({"io": both["io"]}, 4e9), ({"io": {"x": 1}}, None)):
        found = simulate_from(replace(known, sections=sections), "fcfs")
        assert found.machine.file_system_bytes_s == known_bytes_s
        assert "the bandwidth of the file system (reads" in result.workload.notes[1]


def test_a_job_that_lasts_longer_than_its_nodes_is_seen_to() -> None:
    going = tuple(replace(one, walltime_left_s=20.0) if one.id == "a0" else one for one in NODES)
    engine = engine_from(replace(VIEW, nodes=going), "fcfs")
    engine.run()
    found = {run.id: run for run in engine.world.table.runs(engine.world.workload.jobs)}
    # 300 node-seconds are left: 6 nodes for 20 s, then 5
    assert found["r"].end_s == pytest.approx(100 + 20 + 180 / 5)
    assert found["r"].nodes[:2] == ((100.0, 6), (120.0, 5))


def test_nodes_that_go_come_back_only_where_a_pool_says_how() -> None:
    class Asking:
        name = "asking"
        params: ClassVar[dict[str, Any]] = {}

        def initial_state(self) -> None:
            return None

        def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
            return Decision(actions=(RequestNodes(nodes=8, reason=BECAUSE),)), None

    def moves(pool: Pool | None, section: Any = None, most: int | None = 8) -> tuple[int, int]:
        nodes = tuple(node(f"n{i}", "r" if i < 6 else None, None if i < 6 else 10.0) for i in range(8))
        view = replace(VIEW, nodes=nodes, sections={"pool": section})
        result = simulate_from(view, Asking(), pool=pool, nodes=most)
        assert result.moves is not None
        return result.moves.expired, result.moves.came

    assert moves(None) == (2, 0)
    assert moves(Pool(initial_nodes=0, wait_s=5.0)) == (2, 2)
    # as they have come so far
    assert moves(None, {"wait_s": 5.0, "most_nodes": 8}, None) == (2, 2)
    assert moves(None, {"wait_s": 5.0, "most_nodes": 4}, None) == (2, 2)
    assert moves(None, {"most_nodes": 8}, None) == moves(None, {"wait_s": 5.0}, None) == (2, 0)


def test_what_is_to_come_is_known_in_joules() -> None:
    result = simulate_from(replace(VIEW, nodes=NODES), "fcfs", power=NodePower(busy_w=10.0))
    # 6 nodes for 50 s, 4 for 10 s
    assert result.metrics()["energy_j"] == pytest.approx(10 * (300 + 40))
    assert result.energy is not None
    assert result.energy.from_s == 100.0


def test_walltimes_run_down_between_two_passes_of_a_trace(tmp_path: Path) -> None:
    work = workload(rigid("a", 2, 50.0), rigid("b", 2, 50.0, 40.0), nodes=4,
                    pool=Pool(initial_nodes=4, walltime_s=100.0))  # fmt: skip
    simulate(work, "fcfs", trace=tmp_path / "t.jsonl")
    view = snapshot_at(read_trace(tmp_path / "t.jsonl"), 60.0 - 10.0)
    assert {one.walltime_left_s for one in view.nodes} == {50.0}


def test_between_two_passes_of_a_trace_what_was_told_since_has_happened() -> None:
    runs = replace(RUNNING, restart_s=70.0, attained_node_s=300.0)
    seen = replace(
        VIEW, jobs=(runs, WAITING), returns_s=(110.0, 130.0),
        nodes=(node("n0", "r", 60.0), node("n7", None, 5.0)),
    )  # fmt: skip
    records = (
        NodeEvent(t_s=90.0, nodes=tuple(f"n{i}" for i in range(8))),
        Pass(policy={"policy": "fcfs", "params": {}}, snapshot=seen, decision=Decision()),
        # a node fails, and its job has to begin anew; two others come
        NodeEvent(t_s=104.0, nodes=("n0",), job="r", state="lost"),
        JobEvent(t_s=104.0, job="r", state="pending"),
        NodeEvent(t_s=105.0, nodes=("n8", "n9")),
        JobEvent(t_s=106.0, job="w", state="running", nodes=4),
        JobEvent(t_s=115.0, job="w", state="completed"),
    )
    view = snapshot_at(Trace("t", Header(), records), 110.0)
    stopped, runs = view.jobs
    assert (stopped.state, stopped.nodes, stopped.remaining_s) == ("pending", 0, 70.0)
    assert (stopped.restart_s, stopped.interrupted_s) == (None, 104.0)
    assert (runs.state, runs.nodes, runs.start_s, runs.remaining_s) == ("running", 4, 106.0, 6.0)
    assert (stopped.attained_node_s, runs.attained_node_s) == (300.0 + 4 * 6, 4 * 4)
    assert view.idle_nodes == 8 - 1 + 2 - 4
    assert [one.walltime_left_s for one in view.nodes] == [50.0, 0.0]
    assert view.returns_s == (130.0,)


def test_resizes_cost_what_the_snapshot_has_measured() -> None:
    told = {"resizes": {"r": {"expand_s": 3.0, "expands": 2, "shrink_s": 5.0, "shrinks": 1}}}
    view = replace(VIEW, sections=told)
    # r shrinks to 4 nodes for w at once, in 5 s, and grows again when w has ended
    found = ends("pwma-fpsma", view)
    assert found["w"] == (105.0, 115.0)
    assert found["r"][1] == pytest.approx(115 + 3 + (300 - 4 * 10) / 8)
    half = replace(VIEW, sections={"resizes": {"r": {"expand_s": 5.0, "expands": 2}}})
    assert ends("pwma-fpsma", half)["w"] == (105.0, 115.0), "a shrink is taken for as long"
    free = engine_from(view, "pwma-fpsma", adaptation=FREE)
    free.run()
    assert {row.resize_s for row in free.world.table.rows} == {0.0}, "what the caller says goes before"


@pytest.mark.parametrize(
    "told", [3, {"r": 1}, {"r": {"expand_s": "long"}}, {"r": {"expand_s": -1}}, {"x": {}}]
)
def test_what_is_no_measurement_is_not_taken_for_one(told: Any) -> None:
    assert ends("pwma-fpsma", replace(VIEW, sections={"resizes": told}))["w"] == (100.0, 110.0)


#: It waits again, with 20 s of its 50 s left to do; another one came before it.
ROBBED = JobView(
    id="v", kind="rigid", start_nodes=4, min_nodes=4, max_nodes=4, submit_s=20.0, walltime_s=50.0,
    start_s=30.0, remaining_s=20.0, interruption="theft", interrupted_s=80.0,
)  # fmt: skip
BEFORE = replace(WAITING, id="b", submit_s=10.0, walltime_s=50.0)


@pytest.mark.parametrize("jobs", [(BEFORE, ROBBED), (ROBBED, BEFORE)], ids=["as-live", "as-simulated"])
@pytest.mark.parametrize("policy", ["sfsj", "fcfs", "easy"])
def test_a_job_that_was_interrupted_is_served_when_the_policy_says_there(
    policy: str, jobs: tuple[JobView, ...]
) -> None:
    view = ClusterSnapshot(now_s=90.0, jobs=jobs, idle_nodes=4)
    there = registry.create(policy)
    (first,) = [
        action.job
        for action in there.decide(view, there.initial_state())[0].actions
        if isinstance(action, Start)
    ]
    # in the order in which the snapshot has them, but for a policy that has one of its own
    assert first == ("v" if policy == "sfsj" else jobs[0].id)
    # it does what was left to do
    times = {"v": (90.0, 110.0), "b": (110.0, 160.0)} if first == "v" else {"b": (90.0, 140.0)}
    found = ends(policy, view)
    assert {id: found[id] for id in times} == times


def test_a_policy_is_told_of_a_job_that_was_interrupted_what_it_is_told_there() -> None:
    seen: list[tuple[JobView, ...]] = []

    class Sees(Scripted):
        def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
            seen.append(view.jobs)
            return super().decide(view, state)

    simulate_from(ClusterSnapshot(now_s=90.0, jobs=(BEFORE, ROBBED), idle_nodes=4), Sees({}))
    # but for its start there, which is none of the run
    assert seen[0] == (BEFORE, replace(ROBBED, start_s=None))
