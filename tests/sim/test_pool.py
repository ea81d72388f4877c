"""Nodes that are asked for, come, are given back and go, in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import BECAUSE, malleable, mixed_workloads, rigid, soon_given_up, workload

from dask_hpc.errors import SimulationError, WorkloadError
from dask_hpc.sim import Machine, Options, Result, Workload, simulate
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.model.machine import Failures
from dask_hpc.sim.model.pool import Pool
from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import Header, NodeEvent
from dask_hpc.trace.records import Result as Done
from dask_hpc.trace.replay import replay
from dask_hpc.trace.runs import pool_steps
from dask_hpc_policies.decision import (
    Action,
    Decision,
    Outcome,
    ReasonCode,
    ReleaseNodes,
    RequestNodes,
    Start,
)
from dask_hpc_policies.model import ClusterSnapshot


class Asking:
    """Starts what fits in order, and brings the pool to given sizes at given times: {time: nodes}."""

    name = "asking"

    def __init__(self, script: Mapping[float, int]) -> None:
        self.script = dict(script)
        self.params: dict[str, Any] = {}
        self.seen: list[ClusterSnapshot] = []

    def initial_state(self) -> float:
        return -1.0

    def decide(self, view: ClusterSnapshot, state: float) -> tuple[Decision, float]:
        self.seen.append(view)
        actions: list[Action] = []
        if view.now_s in self.script and view.now_s > state:
            target = self.script[view.now_s]
            grows = target > max([view.pool_nodes, *(self.script[t] for t in self.script if t < view.now_s)])
            kind = RequestNodes if grows else ReleaseNodes
            actions.append(kind(nodes=target, reason=BECAUSE))
        idle = view.idle_nodes
        for job in view.pending:
            need = job.start_nodes or job.min_nodes
            if need <= idle and not actions:
                idle -= need
                actions.append(Start(job=job.id, nodes=need, reason=BECAUSE))
        return Decision(actions=tuple(actions)), view.now_s if view.now_s in self.script else state


class Following:
    """The same, but asks for what the waiting jobs need whenever it is asked, and gives the rest back."""

    name = "following"

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}

    def initial_state(self) -> None:
        return None

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        idle, actions = view.idle_nodes, []
        held = sum(job.nodes for job in view.jobs)
        needs = [(job, job.start_nodes or job.min_nodes) for job in view.pending]
        for job, need in needs:
            if need <= idle:
                idle -= need
                actions.append(Start(job=job.id, nodes=need, reason=BECAUSE))
        wanted = held + sum(need for _, need in needs)
        kind = RequestNodes if wanted > view.pool_nodes else ReleaseNodes
        return Decision(actions=(kind(nodes=wanted, reason=BECAUSE), *actions)), None


def run(work: Workload, policy: Any, **options: Any) -> Result:
    return simulate(work, policy, options=Options(**options))


def outcomes(work: Workload, policy: Any) -> list[Outcome]:
    """What became of the pool's actions."""
    assert work.machine is not None
    engine = Engine(work, policy, work.machine, Options(snapshots=True, node_ids=True))
    return [
        record.outcome
        for record in recorded(engine)
        if isinstance(record, Done) and isinstance(record.outcome.action, (RequestNodes, ReleaseNodes))
    ]


def times(result: Result) -> dict[str, tuple[float | None, float | None]]:
    return {one.id: (one.start_s, one.end_s) for one in result.runs}


def test_nodes_that_are_asked_for_come_after_the_wait_and_the_boot() -> None:
    work = workload(rigid("a", 6, 100.0, 10.0), nodes=8, pool=Pool(initial_nodes=2, wait_s=30.0, boot_s=5.0))
    policy = Asking({10.0: 6})
    result = run(work, policy)
    assert times(result) == {"a": (45.0, 145.0)}
    assert result.pool == ((10.0, 2), (45.0, 6))
    assert next(view.trigger for view in policy.seen if view.now_s == 45.0) == "node-added"
    assert [len(view.nodes) for view in policy.seen if view.now_s < 45.0] == [2]


def test_utilization_is_of_the_nodes_that_were_there() -> None:
    work = workload(rigid("a", 6, 100.0), nodes=8, pool=Pool(initial_nodes=2, wait_s=50.0))
    found = run(work, Asking({0.0: 6})).metrics()
    # 2 nodes for 50 s, then 6 for 100 s, which the job holds
    assert found["utilization"] == pytest.approx(600 / 700)
    assert (found["nodes_requested"], found["nodes_came"]) == (4, 4)


def test_without_a_pool_the_actions_are_refused_with_the_words_of_a_live_cluster() -> None:
    work = workload(rigid("a", 2, 10.0), nodes=4)
    for target in (9, 1):
        (found,) = outcomes(work, Asking({0.0: target}))
        assert (found.result, found.reason.code) == ("refused", ReasonCode.POOL_NOT_MANAGED)


def test_without_a_wait_nothing_comes() -> None:
    work = workload(rigid("a", 2, 10.0), nodes=4, pool=Pool(initial_nodes=3, wait_s=None))
    (found,) = outcomes(work, Asking({0.0: 4}))
    assert (found.result, found.reason.code) == ("refused", ReasonCode.POOL_NOT_MANAGED)


def test_more_than_the_machine_has_is_cut_with_a_reason() -> None:
    work = workload(rigid("a", 2, 10.0), nodes=4, pool=Pool(initial_nodes=3))
    policy = Asking({0.0: 9})
    (found,) = outcomes(work, policy)
    assert (found.result, found.reason.code) == ("done", ReasonCode.CLAMPED)
    result = run(work, Asking({0.0: 9}))
    assert [one.reason for one in result.reductions] == [found.reason.text]
    assert "1 of 6 more asked for, the machine has 4 in all" in found.reason.text
    whole = workload(rigid("a", 2, 10.0), nodes=4, pool=Pool(initial_nodes=4))
    (found,) = outcomes(whole, Asking({0.0: 9}))
    assert (found.result, found.reason.code) == ("refused", ReasonCode.CLAMPED)


def test_requests_are_withdrawn_before_idle_nodes_are_given_back() -> None:
    jobs = (rigid("a", 1, 100.0), rigid("tick", 1, 1.0, 20.0))
    work = workload(*jobs, nodes=8, pool=Pool(initial_nodes=3, wait_s=50.0))
    result = run(work, Asking({0.0: 6, 20.0: 2}))
    assert result.moves is not None
    moves = result.moves
    # 3 there, 3 waited for, down to 2: the 3 that have not come, and one of the two idle ones
    assert (moves.requested, moves.withdrawn, moves.came, moves.released) == (3, 3, 0, 1)
    assert result.pool == ((0.0, 3), (20.0, 2))


def test_nodes_that_jobs_hold_are_never_given_back() -> None:
    jobs = (rigid("a", 3, 100.0), rigid("b", 4, 10.0, 20.0))
    work = workload(*jobs, nodes=4, pool=Pool(initial_nodes=4))
    found = outcomes(work, Asking({20.0: 1}))
    assert [(one.result, one.reason.code) for one in found] == [("done", ReasonCode.CLAMPED)]
    assert "1 given back of 3; jobs hold the others" in found[0].reason.text
    full = workload(rigid("a", 4, 100.0), rigid("b", 4, 10.0, 20.0), nodes=4, pool=Pool(initial_nodes=4))
    found = outcomes(full, Asking({20.0: 1}))
    assert [(one.result, one.reason.code) for one in found] == [("refused", ReasonCode.CLAMPED)]
    assert times(run(full, Asking({20.0: 1})))["a"] == (0.0, 100.0)


def test_the_node_with_the_least_walltime_left_is_given_back_first() -> None:
    pool = Pool(initial_nodes=4, initial_walltimes_s=(900.0, 700.0, None, 500.0))
    policy = Asking({20.0: 3})
    run(workload(rigid("a", 1, 100.0), rigid("b", 1, 100.0, 20.0), nodes=4, pool=pool), policy)
    before, after = policy.seen[0], [view for view in policy.seen if view.now_s == 20.0][-1]
    assert [(node.id, node.walltime_left_s) for node in before.nodes] == [
        ("n0", 900.0), ("n1", 700.0), ("n2", None), ("n3", 500.0)
    ]  # fmt: skip
    assert [(node.id, node.walltime_left_s) for node in after.nodes] == [
        ("n0", 880.0), ("n1", 680.0), ("n2", None)
    ]  # fmt: skip


def test_a_job_whose_node_goes_begins_again_as_after_a_failure() -> None:
    pool = Pool(initial_nodes=2, wait_s=20.0, walltime_s=60.0, initial_walltimes_s=(30.0, None))
    work = workload(rigid("a", 2, 40.0, checkpoint_interval_s=10.0), nodes=3, pool=pool)
    policy = Asking({30.0: 2})
    result = run(work, policy)
    # 30 s done and saved, a node is waited for from 30 to 50 s, 10 s are left
    assert times(result) == {"a": (0.0, 60.0)}
    assert result.rows[0].restarts == 1
    assert [view.trigger for view in policy.seen] == ["submit", "node-lost", "node-added"]


def test_a_malleable_job_goes_on_with_the_nodes_that_are_left() -> None:
    pool = Pool(initial_nodes=4, initial_walltimes_s=(None, None, 50.0))
    result = run(workload(malleable("a", 4, 1, 4, 100.0), nodes=4, pool=pool), Asking({}))
    assert times(result) == {"a": (0.0, pytest.approx(50 + 200 / 3))}
    assert result.runs[0].nodes[:2] == ((0.0, 4), (50.0, 3))


def test_a_job_ends_before_its_node_goes_at_the_same_moment() -> None:
    work = workload(rigid("a", 2, 50.0), nodes=2, pool=Pool(initial_nodes=2, walltime_s=50.0))
    result = run(work, Asking({}))
    assert (times(result), result.rows[0].restarts) == ({"a": (0.0, 50.0)}, 0)


def test_waits_are_drawn_from_the_seed_with_the_median_that_was_given() -> None:
    work = workload(rigid("a", 401, 10.0), nodes=401, pool=Pool(initial_nodes=0, wait_s=60.0, wait_sigma=1.0))

    def arrivals(seed: int) -> tuple[tuple[float, int], ...]:
        return run(work, Asking({0.0: 401}), seed=seed).pool

    found = arrivals(1)
    assert found == arrivals(1) != arrivals(2)
    assert found[201][0] == pytest.approx(60.0, rel=0.3)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "pwma-fpsma", "equipartition", "mebf"])
def test_a_whole_machine_that_never_goes_is_one_without_a_pool(policy: str) -> None:
    jobs = (malleable("a", 4, 1, 8, 50.0), rigid("b", 8, 20.0, 5.0), rigid("c", 2, 30.0, 6.0))
    failures = Failures(node_mtbf_s=200.0, downtime_s=20.0)
    plain = run(workload(*jobs, nodes=8, failures=failures), policy)
    pool = run(workload(*jobs, nodes=8, failures=failures, pool=Pool(initial_nodes=8)), policy)
    assert pool.runs == plain.runs
    assert plain.metrics()["utilization"] == pytest.approx(pool.metrics()["utilization"])


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "pwma-fpsma", "equipartition", "mebf"])
def test_a_job_that_needs_more_nodes_than_are_there_waits(policy: str) -> None:
    work = workload(rigid("wide", 8, 10.0), rigid("small", 2, 10.0, 1.0), nodes=8, pool=Pool(initial_nodes=4))
    found = {one.id: one.state for one in run(work, policy).runs}
    assert found["wide"] == "pending"


def test_what_was_asked_for_last_is_withdrawn_first_and_what_boots_last() -> None:
    class Steps(Asking):
        def decide(self, view: ClusterSnapshot, state: float) -> tuple[Decision, float]:
            self.seen.append(view)
            found = {0.0: RequestNodes(nodes=2, reason=BECAUSE), 5.0: RequestNodes(nodes=3, reason=BECAUSE),
                     12.0: ReleaseNodes(nodes=self.script[12.0], reason=BECAUSE)}  # fmt: skip
            return Decision(actions=(found[view.now_s],) if view.now_s in found else ()), state

    def came(target: int) -> tuple[tuple[float, int], ...]:
        jobs = [rigid(f"j{t_s}", 4, 1.0, float(t_s)) for t_s in (0, 5, 12)]
        pool = Pool(initial_nodes=1, wait_s=10.0, boot_s=20.0)
        return run(workload(*jobs, nodes=4, pool=pool), Steps({12.0: target})).pool

    # one node boots from 10 to 30 s, one waits from 5 to 15 s and would be there at 35 s
    assert came(3) == ((0.0, 1), (30.0, 2), (35.0, 3))
    assert came(2) == ((0.0, 1), (30.0, 2))
    assert came(1) == ((0.0, 1),)


def test_of_those_that_wait_the_one_that_was_asked_for_last_is_withdrawn() -> None:
    jobs = [rigid(f"j{t_s}", 4, 1.0, float(t_s)) for t_s in (0, 5, 12)]
    pool = Pool(initial_nodes=1, wait_s=20.0)
    result = run(workload(*jobs, nodes=4, pool=pool), Asking({0.0: 2, 5.0: 3, 12.0: 2}))
    assert result.pool == ((0.0, 1), (20.0, 2))


def test_walltimes_run_down_while_nothing_moves() -> None:
    policy = Asking({})
    jobs = (rigid("a", 4, 50.0), rigid("b", 4, 1.0, 10.0), rigid("c", 4, 1.0, 20.0))
    run(workload(*jobs, nodes=4, pool=Pool(initial_nodes=4, walltime_s=90.0)), policy)
    left = {view.now_s: view.nodes[0].walltime_left_s for view in policy.seen}
    assert (left[10.0], left[20.0]) == (80.0, 70.0)


@pytest.mark.parametrize("more", [{}, {"seed": 2}], ids=["ticks", "failures"])
def test_nodes_that_come_after_a_long_wait_are_told_to_the_policy(more: dict[str, Any]) -> None:
    """Tens of thousands of ticks, or of failures that concern nobody, pass before they are there."""
    failures = Failures(node_mtbf_s=2.0, downtime_s=0.001) if more else Failures()
    pool = Pool(initial_nodes=1, wait_s=30_000.0)
    result = run(
        workload(rigid("a", 3, 0.01), nodes=3, pool=pool, failures=failures),
        Following(),
        **(more or {"tick_s": 1.0}),
    )
    start_s, end_s = times(result)["a"]
    assert start_s is not None
    assert end_s is not None
    assert start_s >= 30_000.0


def test_who_asks_and_gives_back_for_ever_is_stopped() -> None:
    class Endless(Asking):
        def decide(self, view: ClusterSnapshot, state: float) -> tuple[Decision, float]:
            starts = [Start(job=job.id, nodes=1, reason=BECAUSE) for job in view.pending]
            kind = RequestNodes if view.pool_nodes < 4 else ReleaseNodes
            target = 4 if view.pool_nodes < 4 else 1
            return Decision(actions=(kind(nodes=target, reason=BECAUSE), *starts)), state

    with pytest.raises(SimulationError, match="for ever at 0 s"):
        run(workload(rigid("a", 1, 10.0), nodes=4, pool=Pool(initial_nodes=1)), Endless({}))


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine(nodes=4, pool=Pool(initial_nodes=5)), "initial_nodes is 5, the machine has 4"),
        (Machine(nodes=4, roles={"staging": 4}), "none computes"),
        (Machine(nodes=4, roles={"storage": 1}), "'storage'"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(machine: Machine, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        simulate(workload(rigid("a", 1, 1.0), nodes=4), "fcfs", machine=machine)


@pytest.mark.parametrize("given", [{"initial_nodes": -1}, {"wait_s": -1.0}, {"walltime_s": 0.0}])
def test_a_pool_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match="pool: "):
        Pool(**{"initial_nodes": 1, **given})


POOLS = st.builds(
    Pool,
    initial_nodes=st.integers(0, 8),
    wait_s=st.sampled_from([0.0, 1.0, 7.0]),
    wait_sigma=st.sampled_from([0.0, 0.0, 1.0]),
    boot_s=st.sampled_from([0.0, 2.0]),
    walltime_s=st.sampled_from([None, 20.0, 60.0]),
)
SCRIPTS = st.dictionaries(st.integers(0, 40).map(float), st.integers(0, 9), max_size=8)


def lasting(work: Workload) -> Workload:
    """The same jobs with checkpoints: they come to an end on nodes that go sooner than they are done."""
    return replace(work, jobs=tuple(replace(job, checkpoint_interval_s=1.0) for job in work.jobs))


@examples(40)
@given(mixed_workloads().map(lasting), POOLS, SCRIPTS)
def test_nodes_are_conserved_whatever_is_asked_for(
    work: Workload, pool: Pool, script: dict[float, int]
) -> None:
    failures = Failures(node_mtbf_s=150.0, downtime_s=4.0)
    machine = Machine(nodes=8, failures=failures, pool=pool)
    for policy in (Asking(script), Following()):
        engine = Engine(work, policy, machine, Options(node_ids=True))
        with soon_given_up():
            for _ in engine.moments():
                nodes = engine.nodes
                states = [nodes.state(node) for node in range(8)]
                assert {state: states.count(state) for state in nodes.counts()} == nodes.counts()
                assert sum(active.nodes for active in engine.world.active.values()) == nodes.held
        moves = engine.supply.moves
        there = engine.supply.steps[-1][1]
        assert pool.initial_nodes + moves.came - moves.released - moves.expired == there
        assert moves.requested == moves.came + moves.withdrawn


@examples(25)
@given(mixed_workloads().map(lasting), POOLS, SCRIPTS)
def test_a_run_with_a_pool_replays_and_its_trace_knows_the_nodes(
    work: Workload, pool: Pool, script: dict[float, int]
) -> None:
    engine = Engine(work, Asking(script), Machine(nodes=8, pool=pool), Options(snapshots=True, node_ids=True))
    header, *records = recorded(engine)
    assert isinstance(header, Header)
    trace = Trace("simulated", header, tuple(records))
    assert replay(trace, Asking(script)).ok
    there: set[str] = set()
    for record in records:
        if isinstance(record, NodeEvent):
            there = there - set(record.nodes) if record.state == "removed" else there | set(record.nodes)
    assert there == {f"n{node}" for node in range(8) if node not in engine.nodes.absent}
    steps = engine.supply.steps
    assert dict(pool_steps(records)).items() <= dict(steps).items()


def test_a_job_that_was_interrupted_and_never_runs_again_keeps_what_it_held() -> None:
    work = workload(rigid("a", 2, 40.0), nodes=2, pool=Pool(initial_nodes=2, walltime_s=30.0))
    (found,) = run(work, Asking({})).runs
    assert (found.state, found.start_s, found.end_s) == ("pending", 0.0, None)
    assert found.nodes == ((0.0, 2), (30.0, 0))


def test_a_copy_of_a_run_goes_on_with_nodes_of_its_own() -> None:
    work = workload(rigid("a", 4, 50.0), nodes=4, pool=Pool(initial_nodes=1, wait_s=10.0))
    assert work.machine is not None
    engine = Engine(work, Asking({0.0: 4}), work.machine, Options())
    engine.run_until(5.0)
    other = engine.fork()
    engine.run()
    assert len(other.nodes.absent) == 3
    other.run()
    assert other.supply.steps == engine.supply.steps
    assert other.world.table.rows == engine.world.table.rows
