"""Things that happen to one job at once: interruptions, failures and ends during resizes and at points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sim_worlds import BECAUSE, Scripted, application, ends, malleable, rigid, run, workload

from dask_hpc.sim import simulate
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.model.job import Compute, Delay, Job, Repeat, SchedulingPoint, Transfer
from dask_hpc.sim.model.machine import AdaptationCost, Failures, NodeFailure, Options
from dask_hpc.trace.files import read_trace
from dask_hpc.trace.records import JobEvent
from dask_hpc_policies.decision import Decision, Expand, Shrink, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot

SLOW = AdaptationCost(expand_base_s=10.0, shrink_base_s=10.0)


def fails(t_s: float, node: int) -> Failures:
    return Failures(listed=(NodeFailure(t_s=t_s, node=node, downtime_s=1000.0),))


def points(id: str, nodes: int, low: int, high: int, *stages: Any) -> Job:
    return application(id, nodes, *stages, kind="malleable", min_nodes=low, max_nodes=high, resize="points")


class Robbing(Scripted):
    """Interrupts a job at a given time, for one that waits."""

    def __init__(self, victim: str, thief: str, at_s: float) -> None:
        super().__init__({})
        self.theft = Steal(job=victim, thief=thief, stolen_nodes=1, reason=BECAUSE)
        self.at_s: float | None = at_s

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        if view.now_s == self.at_s and any(job.id == self.theft.job for job in view.running):
            self.at_s = None
            return Decision(actions=(self.theft,)), None
        return super().decide(view, state)


def test_a_job_that_is_robbed_at_a_point_and_starts_again_at_once_does_all_its_work_anew() -> None:
    job = points("a", 4, 1, 4, Repeat(stages=(Compute(work=40.0), SchedulingPoint()), times=2))
    # the thief is too wide to start: the victim has its nodes back in the same moment
    work = workload(job, rigid("wide", 8, 1.0, submit_s=1.0), rigid("other", 4, 50.0), nodes=8)
    result = run(work, Robbing("a", "wide", 10.0))
    assert result.rows[0].restarts == 1
    assert ends(result)["a"] == pytest.approx(10 + 20)


def test_a_job_that_fails_in_the_window_of_its_resize_has_not_computed_meanwhile() -> None:
    job = malleable("a", 4, 1, 8, 20.0, checkpoint_interval_s=2.0)
    work = workload(job, rigid("clock", 1, 5.0), nodes=12, adaptation=SLOW, failures=fails(12.0, 0))
    result = run(work, Scripted({5.0: {"a": 8}}))
    # held up from 5 on, with the checkpoint of 4 s; at the failure it has room to start again on 4 nodes
    assert result.rows[0].restarts == 1
    assert ends(result)["a"] == pytest.approx(12 + 16)


def test_a_job_that_fails_in_a_window_while_it_writes_begins_anew() -> None:
    job = application("a", 4, Transfer(size_bytes=40e9), kind="malleable", min_nodes=1, max_nodes=8)
    work = workload(
        job, rigid("clock", 1, 5.0), nodes=12, adaptation=SLOW, failures=fails(12.0, 0), link_bytes_s=1e9
    )
    result = run(work, Scripted({5.0: {"a": 8}}))
    assert result.rows[0].restarts == 1
    assert ends(result)["a"] == pytest.approx(12 + 10)


def test_an_expansion_whose_node_fails_before_the_point_is_refused_and_the_job_goes_on() -> None:
    job = points("a", 4, 1, 8, Compute(work=40.0), SchedulingPoint(), Compute(work=40.0))
    work = workload(job, rigid("clock", 1, 5.0), nodes=8, failures=fails(7.0, 7))
    result = run(work, Scripted({5.0: {"a": 8}}))
    assert ends(result)["a"] == pytest.approx(10 + 10)
    assert [(one.t_s, one.kind, one.job) for one in result.refusals] == [(10.0, "expand", "a")]
    assert "needs 4 more nodes, 3 are left" in result.refusals[0].reason


class Moving(Scripted):
    """Shrinks one job and expands another one in one decision."""

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        if view.now_s == 10.0 and all(job.state == "running" for job in view.jobs):
            expand = Expand(job="a", nodes=6, reason=BECAUSE)
            return Decision(actions=(Shrink(job="b", nodes=2, reason=BECAUSE), expand)), None
        return super().decide(view, state)


def test_a_job_at_a_point_goes_on_while_its_nodes_are_still_to_be_freed() -> None:
    stages = (
        Compute(work=40.0),
        SchedulingPoint(),
        Compute(work=60.0),
        SchedulingPoint(),
        Delay(seconds=1.0),
    )
    work = workload(points("a", 4, 1, 8, *stages), malleable("b", 4, 1, 4, 200.0), nodes=8, adaptation=SLOW)
    result = run(work, Moving({}))
    # b gives 2 nodes from 10 to 20; a goes on, has them at its next point at 25, and a window of 10 s then
    assert result.runs[0].nodes == ((0.0, 4), (25.0, 6), (36.0, 0))
    assert result.counts.refused == 0


class Yielding(Scripted):
    """Has one job give up a node for another one that waits, once."""

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        sizes = {job.id: job.nodes for job in view.jobs}
        if view.now_s == 5.0 and sizes.get("a") == 5:
            start = Start(job="b", nodes=1, reason=BECAUSE)
            return Decision(actions=(Shrink(job="a", nodes=4, reason=BECAUSE), start)), None
        return super().decide(view, state)


@pytest.mark.parametrize("kind", ["window", "point"])
def test_a_round_ends_when_a_failure_takes_as_many_nodes_as_its_job_was_to_give_up(kind: str) -> None:
    a = malleable("a", 5, 2, 5, 100.0)
    if kind == "point":
        a = points("a", 5, 2, 5, Repeat(stages=(Compute(work=100.0), SchedulingPoint()), times=5))
    work = workload(a, rigid("b", 1, 20.0, 5.0), nodes=5, adaptation=SLOW, failures=fails(7.0, 0))
    assert work.machine is not None
    engine = Engine(work, Yielding({}), work.machine, Options())
    engine.run_until(7.0)
    assert engine.nodes.reserved == 0
    engine.run()
    # b starts in the place of a, which is too wide now, and waits until the failed node is back
    assert [(row.start_s, row.end_s) for row in engine.world.table.rows if row.key == 1] == [(7.0, 27.0)]
    assert engine.world.table.rows[-1].end_s == pytest.approx(1007 + 100)


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_job_that_ends_with_its_resize_is_told_to_end_last(snapshots: bool, tmp_path: Path) -> None:
    job = points("a", 2, 1, 4, Compute(work=20.0), SchedulingPoint())
    work = workload(job, rigid("clock", 2, 5.0), nodes=4, adaptation=SLOW)
    result = run(work, "fcfs-malleable", snapshots=snapshots)
    assert ends(result)["a"] == pytest.approx(10 + 10)
    simulate(work, "fcfs-malleable", trace=tmp_path / "t.jsonl")
    told = [one for one in read_trace(tmp_path / "t.jsonl").records if isinstance(one, JobEvent)]
    assert [(one.state, one.nodes) for one in told if one.job == "a"] == [
        ("pending", 0), ("running", 2), ("adapting", 2), ("adapting", 4), ("running", 4), ("completed", 0),
    ]  # fmt: skip
