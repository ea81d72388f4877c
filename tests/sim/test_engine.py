"""The engine: published schedules, order of events, conservation, forks."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import (
    Restless,
    Scripted,
    application,
    ends,
    malleable,
    malleable_workloads,
    rigid,
    rigid_workloads,
    run,
    starts,
    workload,
)

from dask_hpc.errors import SimulationError, WorkloadError
from dask_hpc.sim import Machine, Options, Workload, load, simulate
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.model.job import Compute, SchedulingPoint
from dask_hpc.sim.model.machine import PUBLISHED
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision, Expand, Shrink

# ------------------------------------------------------------------- published schedules


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize(
    ("policy", "expected"), [("fcfs", [0, 4, 4, 8]), ("easy", [0, 4, 0, 8]), ("conservative", [0, 4, 0, 8])]
)
def test_figure_5_1(policy: str, expected: list[float], snapshots: bool) -> None:
    result = run(load("builtin:figure-5-1"), policy, snapshots=snapshots)
    assert [one.start_s for one in result.runs] == expected
    assert result.metrics()["makespan_s"] == 12


def test_five_jobs_gives_the_published_makespans_within_five_per_cent() -> None:
    spans = {
        policy: run(load("builtin:five-jobs"), policy).metrics()["makespan_s"]
        for policy in ("pwma-fpsma", "pwma-egs", "prma-fpsma", "prma-egs")
    }
    whole = run(load("builtin:five-jobs", malleable=0), "fcfs").metrics()["makespan_s"]
    print(spans, whole)
    assert whole == 2000
    for kind in ("fpsma", "egs"):
        assert spans[f"pwma-{kind}"] == pytest.approx(1500, rel=0.05)
        assert spans[f"prma-{kind}"] == pytest.approx(1600, rel=0.05)
        assert spans[f"pwma-{kind}"] < spans[f"prma-{kind}"] < whole


def test_esp_10_under_fcfs() -> None:
    found = run(load("builtin:esp-10"), "fcfs").metrics()
    assert found["makespan_s"] / 60 == pytest.approx(47.85, abs=0.005)
    assert found["mean_wait_s"] / 60 == pytest.approx(16.2, abs=0.05)
    assert found["mean_turnaround_s"] / 60 == pytest.approx(27.9, abs=0.05)


def test_esp_10_with_one_malleable_job_stays_near_fcfs_in_the_mean() -> None:
    for policy in ("pwma-fpsma", "prma-fpsma", "pwma-egs", "prma-egs"):
        spans = [
            run(load("builtin:esp-10", which=i), policy).metrics()["makespan_s"] / 60 for i in range(1, 11)
        ]
        assert abs(sum(spans) / 10 - 47.85) <= 1.5
        # it does matter which job it is
        assert min(spans) < 42


def test_esp_10_all_malleable_all_strategies_beat_fcfs_and_none_beats_fpsma_with_pwma() -> None:
    work = load("builtin:esp-10", malleable=1)
    expected = {
        "pwma-fpsma": (37.41, 0.13), "pwma-egs": (37.41, 4.57), "prma-fpsma": (38.06, 9.09),
        "prma-egs": (42.44, 9.87), "fcfs": (47.85, 16.19),
    }  # fmt: skip
    found = {policy: run(work, policy).metrics() for policy in expected}
    minutes = {name: (one["makespan_s"] / 60, one["mean_wait_s"] / 60) for name, one in found.items()}
    assert minutes == {name: pytest.approx(pair, abs=0.005) for name, pair in expected.items()}
    assert minutes["pwma-fpsma"] == min(minutes.values())


def test_node_stealing_toy() -> None:
    work = load("builtin:node-stealing")
    for timing, flows in (("never", [8, 5, 15, 25, 3]), ("now", [8, 11, 11, 21, 10])):
        result = run(work, registry.create("sfsj", timing=timing))
        assert [one.turnaround_s for one in result.runs] == flows
        assert result.counts.refused == 0


# ------------------------------------------------------------------------ events


def test_a_job_that_ends_makes_room_for_one_that_is_submitted_at_that_moment() -> None:
    work = workload(rigid("a", 16, 10.0), rigid("b", 16, 5.0, submit_s=10.0))
    assert starts(run(work)) == {"a": 0, "b": 10}


def test_jobs_of_no_length_end_when_they_start_and_hold_up_nobody() -> None:
    work = workload(*(rigid(f"j{i}", 16, 0.0) for i in range(3)), rigid("last", 16, 1.0))
    for policy in ("fcfs", "easy", "conservative", "pwma-fpsma"):
        result = run(work, policy)
        assert set(starts(result).values()) == {0.0}
        assert result.metrics()["makespan_s"] == 1


def test_grouped_and_single_events_differ_where_two_jobs_end_together() -> None:
    # At 10 both ends come before the pass, or one of them alone: then the small job overtakes the head.
    jobs = (
        rigid("a", 8, 10.0, walltime_s=20.0), rigid("b", 8, 10.0, walltime_s=20.0),
        rigid("head", 16, 10.0, submit_s=1.0), rigid("small", 4, 5.0, submit_s=2.0),
    )  # fmt: skip
    work = workload(*jobs)
    assert starts(run(work, "easy"))["head"] == 10
    assert starts(run(work, registry.create("easy", events="single")))["head"] == 15


def test_with_single_events_what_ends_as_expected_is_free_from_the_first_event_on() -> None:
    jobs = (
        rigid("a", 8, 10.0), rigid("b", 8, 10.0), rigid("head", 16, 10.0, submit_s=1.0),
        rigid("small", 4, 5.0, submit_s=2.0),
    )  # fmt: skip
    assert starts(run(workload(*jobs), registry.create("easy", events="single")))["head"] == 10


def test_without_ticks_nothing_happens_between_events_and_ticks_are_events() -> None:
    work = workload(rigid("a", 16, 100.0), rigid("b", 16, 100.0, submit_s=1.0))
    calm = run(work, snapshots=True)
    assert calm.counts.policy_calls == 3
    assert calm.counts.idle_policy_calls == calm.counts.idle_queue_scans == 0
    ticked = run(work, tick_s=10.0)
    assert ticked.counts.policy_calls > 20
    assert starts(ticked) == starts(calm)


def test_ticks_end_when_a_policy_starts_nothing() -> None:
    class Idle(Scripted):
        def decide(self, view: Any, state: None) -> tuple[Decision, None]:
            return Decision(), None

    result = run(workload(rigid("a", 1, 1.0)), Idle({}), tick_s=1.0)
    assert result.runs[0].state == "pending"
    assert result.runs[0].start_s is None


def test_a_job_waits_at_no_scheduling_point_for_an_answer_that_is_on_its_way() -> None:
    # it starts at 2, when "b" comes and the policy is asked again, and passes two points before it computes
    stages = (SchedulingPoint(), SchedulingPoint(), Compute(work=40.0))
    work = workload(
        application("a", 4, *stages, resize="points", kind="malleable"), rigid("b", 4, 1.0, submit_s=2.0)
    )
    assert ends(run(work, decision_s=2.0)) == {"a": 12.0, "b": 5.0}


def test_decision_latency_delays_what_is_decided() -> None:
    work = workload(rigid("a", 16, 10.0), rigid("b", 16, 10.0, submit_s=1.0))
    assert starts(run(work, decision_s=0.5)) == {"a": 0.5, "b": 11.0}
    # while an answer is on its way the policy is not asked again
    work = workload(rigid("a", 4, 10.0), rigid("b", 4, 10.0, submit_s=1.0))
    assert starts(run(work, decision_s=2.0)) == {"a": 2.0, "b": 4.0}


@examples(60)
@given(rigid_workloads(), st.sampled_from(["fcfs", "easy", "conservative"]))
def test_every_job_runs_once_and_no_node_is_given_twice(work: Workload, policy: str) -> None:
    result = run(work, policy, node_ids=True)
    for one, job in zip(result.runs, work.jobs, strict=True):
        assert one.state == "completed"
        assert one.start_s is not None
        assert one.start_s >= job.submit_s
        assert one.end_s == pytest.approx(one.start_s + job.runtime_s)
    by_node: dict[int, float] = {}
    for node, _, from_s, to_s in sorted(result.node_log, key=lambda row: (row[0], row[2])):
        assert from_s >= by_node.get(node, 0.0)
        by_node[node] = to_s


# ------------------------------------------------------------------ malleable jobs


def test_a_resize_changes_the_rest_of_the_time_by_the_speed_up() -> None:
    work = workload(malleable("a", 4, 1, 16, 100.0), rigid("tick", 1, 50.0), nodes=17)
    assert ends(run(work, Scripted({50.0: {"a": 8}})))["a"] == pytest.approx(75.0)
    assert ends(run(work, Scripted({50.0: {"a": 2}})))["a"] == pytest.approx(150.0)


def test_who_starts_has_the_nodes_that_a_job_has_given_up_and_no_others() -> None:
    work = workload(malleable("a", 8, 1, 8, 100.0), rigid("b", 2, 5.0, submit_s=10.0), nodes=8)
    log = run(work, Scripted({10.0: {"a": 6}}), node_ids=True).node_log
    assert [(node, from_s, to_s) for node, key, from_s, to_s in log if key == 1] == [
        (6, 10.0, 15.0), (7, 10.0, 15.0),
    ]  # fmt: skip
    assert [to_s for node, key, _, to_s in log if key == 0 and node in (6, 7)] == [10.0, 10.0]


@examples(100)
@given(malleable_workloads(), st.lists(st.integers(0, 20), min_size=1, max_size=20))
def test_work_is_the_same_however_often_a_job_is_resized(work: Workload, numbers: list[int]) -> None:
    # The engine checks shares of work and node-seconds itself; here they are added up once more.
    for cost in (Machine(nodes=16), Machine(nodes=16, adaptation=PUBLISHED)):
        result = simulate(work, Restless(numbers), machine=cost)
        for one, job, row in zip(result.runs, work.jobs, result.rows, strict=True):
            assert one.end_s is not None
            reference = job.nodes or job.max_nodes
            done = 0.0
            for (from_s, nodes), (to_s, _) in zip(one.nodes, one.nodes[1:], strict=False):
                done += (to_s - from_s) * job.speed(nodes)
            needed = job.runtime_s * job.speed(reference)
            if row.resize_s == 0:
                assert done == pytest.approx(needed, rel=1e-6, abs=1e-6)
            else:
                assert done >= needed * (1 - 1e-9)


def test_expansions_wait_for_the_shrinks_of_the_same_decision() -> None:
    costly = Machine(nodes=16, adaptation=PUBLISHED)
    work = workload(malleable("old", 12, 4, 16, 100.0), rigid("wide", 8, 10.0, submit_s=5.0))
    result = simulate(work, "pwma-fpsma", machine=costly)
    shrunk_s = 5.0 + PUBLISHED.seconds(16, 8, 0.0, None)
    # It had grown to 16 nodes at once, with a window of its own.
    assert starts(result)["wide"] == pytest.approx(shrunk_s)
    assert result.counts.refused == 0, "it waited for its nodes and was not begun without them"
    assert result.metrics()["resize_s"] > 0
    assert result.metrics()["useful_utilization"] < result.metrics()["utilization"]


def test_published_latencies() -> None:
    seconds = {(a, b): PUBLISHED.seconds(a, b, 0.0, None) for a, b in ((1, 2), (15, 16), (2, 1), (16, 15))}
    assert seconds == pytest.approx({(1, 2): 0.11, (15, 16): 1.29, (2, 1): 0.05, (16, 15): 2.25})
    # Half of the data changes hands from 2 to 4 nodes, through two links.
    assert PUBLISHED.seconds(2, 4, 8e9, 1e9) - PUBLISHED.seconds(2, 4, 0.0, 1e9) == pytest.approx(2.0)


def test_what_cannot_be_done_is_refused_with_a_reason_and_changes_nothing() -> None:
    class Wrong(Scripted):
        def decide(self, view: Any, state: None) -> tuple[Decision, None]:
            decision, _ = super().decide(view, state)
            reason = decision.actions[0].reason if decision.actions else None
            if view.now_s == 5.0 and reason is None:
                reason = registry.create("fcfs").decide(view, None)[0].actions[0].reason
            if view.now_s != 5.0 or reason is None:
                return decision, None
            return Decision(
                actions=(
                    Expand(job="fixed", nodes=9, reason=reason), Shrink(job="soft", nodes=1, reason=reason),
                    Expand(job="nobody", nodes=9, reason=reason),
                )
            ), None  # fmt: skip

    work = workload(
        rigid("fixed", 8, 10.0), malleable("soft", 4, 2, 8, 10.0), rigid("later", 16, 1.0, submit_s=5.0)
    )
    result = run(work, Wrong({}))
    assert [(refused.kind, refused.job) for refused in result.refusals] == [
        ("shrink", "soft"), ("expand", "fixed"), ("expand", "nobody"),
    ]  # fmt: skip
    assert "outside 2 to 8" in result.refusals[0].reason
    assert ends(result)["soft"] == ends(result)["fixed"] == 10.0


def test_a_policy_that_resizes_for_ever_is_stopped() -> None:
    class Dizzy(Scripted):
        def decide(self, view: Any, state: None) -> tuple[Decision, None]:
            size = view.jobs[0].nodes
            return Scripted({view.now_s: {"a": 4 if size != 4 else 5}}).decide(view, state)

    with pytest.raises(SimulationError, match="resizes for ever at 0 s"):
        run(workload(malleable("a", 4, 1, 16, 10.0)), Dizzy({}))


# ------------------------------------------------------------------------- forks


@pytest.mark.parametrize("policy", ["easy", "pwma-fpsma", "sfsj"])
def test_a_fork_goes_on_exactly_as_the_original(policy: str) -> None:
    work = load("builtin:poisson", seed=3, jobs=120, nodes=32, malleable=0.0 if policy == "easy" else 0.5)
    failures = {} if policy != "sfsj" else {"failures": _often()}
    machine = Machine(nodes=32, **failures)
    engine = Engine(work, registry.create(policy), machine, Options(seed=5))
    half_s = work.jobs[60].submit_s
    assert engine.run_until(half_s)
    other = engine.fork()
    before = copy.deepcopy(engine.world.table.rows)
    other.run()
    assert engine.world.table.rows == before, "the original has not moved"
    engine.run()
    assert engine.world.table.rows == other.world.table.rows
    assert engine.world.counts == other.world.counts
    whole = simulate(work, policy, machine=machine, options=Options(seed=5))
    assert list(whole.rows) == sorted(engine.world.table.rows, key=lambda row: row.key)


def _often() -> Any:
    from dask_hpc.sim.model.machine import Failures

    return Failures(node_mtbf_s=200_000.0, downtime_s=500.0)


def test_nodes_do_not_fail_at_random_while_nothing_runs() -> None:
    from dask_hpc.sim.model.machine import Failures

    # far more nodes than 1 would be down at any time if they went on failing
    often = Failures(node_mtbf_s=640.0, downtime_s=2000.0)
    work = workload(rigid("narrow", 1, 60.0), rigid("wide", 64, 1.0), nodes=64)
    for seed in range(5):
        result = simulate(work, "fcfs", machine=Machine(nodes=64, failures=often), options=Options(seed=seed))
        wide = result.runs[1]
        assert wide.state == "completed"
        assert wide.start_s is not None
        assert wide.start_s < 3000, "all that failed beside the first are up again by then"


def test_a_fork_may_go_on_with_another_policy() -> None:
    work = load("builtin:poisson", seed=3, jobs=120, nodes=32)
    engine = Engine(work, registry.create("fcfs"), Machine(nodes=32), Options())
    engine.run_until(work.jobs[60].submit_s)
    other = engine.fork(registry.create("easy"))
    engine.run()
    other.run()

    def wait_s(rows: Any) -> float:
        return sum((row.start_s or 0.0) - work.jobs[row.key].submit_s for row in rows)

    assert len(engine.world.table.rows) == len(other.world.table.rows) == 120
    assert wait_s(other.world.table.rows) < wait_s(engine.world.table.rows)


def test_memory_of_the_engine_follows_what_waits_and_runs() -> None:
    work = load("builtin:poisson", jobs=2000, nodes=128, load=0.5)
    engine = Engine(work, registry.create("easy"), Machine(nodes=128), Options())
    most = 0
    t_s = 0.0
    while engine.run_until(t_s):
        t_s += 5000.0
        most = max(most, len(engine.world.active))
        assert len(engine.calendar) <= len(engine.world.active) + 1
    assert len(engine.world.table.rows) == 2000
    assert most < 200


def test_a_job_wider_than_the_machine_is_refused_dropped_clipped_or_waits() -> None:
    work = workload(rigid("wide", 20, 10.0), rigid("small", 1, 10.0), nodes=16)
    with pytest.raises(WorkloadError, match="'wide' needs 20 nodes, the machine has 16"):
        simulate(work, "fcfs")
    dropped = simulate(work, "fcfs", wide="drop")
    assert [one.id for one in dropped.runs] == ["small"]
    assert dropped.workload.notes == ("1 jobs wider than the machine left out",)
    clipped = simulate(work, "fcfs", wide="clip")
    assert clipped.runs[0].nodes == ((0.0, 16), (10.0, 0))
    assert clipped.workload.notes == ("1 jobs wider than the machine clipped to at most 16",)
    work = replace(work, jobs=work.jobs[::-1])
    for waits in (simulate(work, "fcfs", wide="wait"), simulate(replace(work, wide="wait"), "fcfs")):
        assert [one.end_s for one in waits.runs] == [10.0, None]
    # who says otherwise is heard
    with pytest.raises(WorkloadError, match="'wide' needs 20 nodes"):
        simulate(replace(work, wide="wait"), "fcfs", wide="refuse")


def test_a_job_is_clipped_to_a_size_that_it_may_have() -> None:
    squares = malleable("wide", 25, 16, 25, 10.0, constraint="square", preferred_nodes=25)
    for policy in ("fcfs", "easy", "pwma-fpsma"):
        clipped = simulate(workload(squares, nodes=15), policy, wide="clip")
        assert clipped.runs[0].nodes == ((0.0, 9), (10.0, 0)), policy
    pairs = rigid("pair", 2, 10.0, constraint="even")
    with pytest.raises(WorkloadError, match=r"'pair' may have no size up to 1 nodes .*--wide drop"):
        simulate(workload(pairs, nodes=1), "fcfs", wide="clip")


def test_a_measured_decision_latency_is_what_the_policy_took(monkeypatch: pytest.MonkeyPatch) -> None:
    # a clock that goes on by 0.25 s at every reading
    readings = iter(range(1000))
    monkeypatch.setattr("dask_hpc.sim.engine.asking.stopwatch_s", lambda: next(readings) * 0.25)
    work = workload(rigid("a", 16, 10.0), rigid("b", 16, 10.0), nodes=16)
    result = run(work, "fcfs", decision_s="measured")
    assert starts(result) == {"a": 0.25, "b": 10.5}
    calls = result.counts.policy_calls
    assert (
        f"({calls} calls of the policy took {calls * 0.25:.3g} s, the longest 0.25 s)"
        in result.workload.notes[-1]
    )
    assert result.to_json()["options"]["decision_s"] == "measured"
    assert run(work, "fcfs", decision_s=0.25).runs == result.runs
    assert not run(work, "fcfs", decision_s=0.25).workload.notes
