"""Thefts that wait for a commit of their victim, in the simulator: figures by hand."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from sim_worlds import (
    BECAUSE,
    Scripted,
    application,
    ends,
    every,
    failures,
    level,
    malleable,
    rigid,
    run,
    workload,
)

from dask_hpc.sim.engine.engine import Engine, Options
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.model.job import Compute, Repeat
from dask_hpc.trace.records import Result
from dask_hpc_policies.decision import Decision, Reason, ReasonCode, Start, Steal

NEXT, PROACTIVE = "next-checkpoint", "proactive-checkpoint"


class Robbing(Scripted):
    """Starts the victim, has it robbed at given times, starts the thief first when it can."""

    def __init__(self, timing: Any, *at_s: float) -> None:
        super().__init__({})
        self.theft = Steal(job="v", thief="t", stolen_nodes=1, timing=timing, reason=BECAUSE)
        self.at_s = list(at_s)

    def decide(self, view: Any, state: None) -> Any:
        waiting = {job.id: job for job in view.pending}
        if "t" in waiting and view.idle_nodes >= 4:
            return Decision(actions=(Start(job="t", nodes=4, reason=BECAUSE),)), None
        if view.now_s in self.at_s and not (view.now_s in self.at_s and self.at_s.remove(view.now_s)):
            return Decision(actions=(self.theft,)), None
        return super().decide(view, state)


def robbed(victim: Any, timing: str, *at_s: float, **machine: Any) -> tuple[dict[str, Any], list[Any]]:
    """Ends of jobs, and what became of each theft: when, the result, the reason."""
    clocks = [rigid(f"c{t_s:g}", 1, 1.0, t_s) for t_s in at_s]
    work = workload(victim, rigid("t", 4, 10.0, 1.0), *clocks, nodes=5, **machine)
    options = Options(snapshots=True, node_ids=True)
    engine = Engine(work, Robbing(timing, *at_s), work.machine, options)
    records = list(recorded(engine))
    told = [
        (one.t_s, one.outcome.result, one.outcome.reason.code, one.outcome.reason.text)
        for one in records
        if isinstance(one, Result) and isinstance(one.outcome.action, Steal)
    ]
    return ends(run(work, Robbing(timing, *at_s))), told


@pytest.mark.parametrize(
    ("timing", "every_s", "taken_s", "end_s"),
    [
        # by itself at 20 s; 2 s that hold it up, then 8 GB at 1 GB/s
        (NEXT, 20.0, 30.0, 30 + 10 + 40 + 2),
        (PROACTIVE, 20.0, 15.0, 15 + 10 + 55 + 2 * 2),
        # only when it is asked: nobody waits for ever
        (NEXT, inf, 15.0, 15 + 10 + 55),
        (PROACTIVE, inf, 15.0, 15 + 10 + 55),
    ],
)
def test_a_theft_follows_a_commit_that_is_whole(
    timing: str, every_s: float, taken_s: float, end_s: float
) -> None:
    levels = level(blocking_s=2.0, node_bytes=2e9)
    victim = rigid("v", 4, 60.0, checkpoints=every(every_s, levels))
    found, told = robbed(victim, timing, 5.0, file_system_bytes_s=1e9)
    assert [row[:3] for row in told] == [(pytest.approx(taken_s), "done", ReasonCode.DONE)]
    assert found["t"] == pytest.approx(taken_s + 10)
    # it goes on from what it had when the commit began; what it has computed beside the moving is lost
    assert found["v"] == pytest.approx(end_s)


@pytest.mark.parametrize("timing", [NEXT, PROACTIVE])
def test_a_program_is_interrupted_after_the_commit_at_its_next_boundary(timing: str) -> None:
    steps = Repeat(stages=(Compute(work=40.0),), times=6)
    victim = application("v", 4, steps, checkpoints=every(inf, level(blocking_s=2.0)))
    found, told = robbed(victim, timing, 5.0)
    # a stage ends at 10 s
    assert [row[:2] for row in told] == [(12.0, "done")]
    assert (found["v"], found["t"]) == (12.0 + 10 + 50, 22.0)


@pytest.mark.parametrize(
    ("victim", "text"),
    [
        (rigid("v", 4, 60.0, checkpoint_interval_s=100.0), "ends before its next checkpoint"),
        (rigid("v", 4, 60.0, checkpoint_interval_s=55.0), None),
    ],
)
def test_what_ends_before_its_next_checkpoint_is_not_interrupted_and_the_trace_says_so(
    victim: Any, text: str | None
) -> None:
    found, told = robbed(victim, NEXT, 5.0)
    if text is None:
        assert [row[:2] for row in told] == [(55.0, "done")]
        assert found["v"] == 55 + 10 + 5
    else:
        [(at_s, result, code, said)] = told
        assert (at_s, result, code) == (5.0, "refused", ReasonCode.ALMOST_DONE)
        assert text in said
        assert found["v"] == 60.0


def test_one_that_saves_nothing_is_interrupted_at_once() -> None:
    found, told = robbed(rigid("v", 4, 60.0), NEXT, 5.0)
    assert [row[:2] for row in told] == [(5.0, "done")]
    assert found["v"] == 5 + 10 + 60


def test_a_theft_ends_with_a_reason_when_its_victim_fails_or_was_chosen_before() -> None:
    victim = rigid("v", 4, 60.0, checkpoints=every(20.0, level(blocking_s=2.0)))
    _, told = robbed(victim, NEXT, 5.0, 6.0, failures=failures((7.0, None)))
    assert [(t_s, result, code) for t_s, result, code, _ in told] == [
        (6.0, "refused", ReasonCode.STALE), (7.0, "refused", ReasonCode.STALE),
    ]  # fmt: skip
    assert "for t already" in told[0][3]
    assert "interrupted before its checkpoint" in told[1][3]


@pytest.mark.parametrize("how", [{"blocking_s": 2.0}, {"node_bytes": 9e9}])
def test_a_theft_happens_when_a_lost_node_breaks_the_commit_that_it_waits_for(how: dict[str, float]) -> None:
    victim = malleable("v", 4, 2, 4, 60.0, checkpoints=every(inf, level(**how)))
    lost = failures((6.0, "host"), downtime_s=1.0)
    found, told = robbed(victim, PROACTIVE, 5.0, failures=lost, link_bytes_s=1e9, file_system_bytes_s=1e10)
    assert [(t_s, result) for t_s, result, *_ in told] == [(6.0, "done")]
    # the thief has the four nodes that are up then; nothing was saved of the victim
    assert (found["t"], found["v"]) == (16.0, 76.0)


def test_a_theft_is_dropped_when_its_thief_has_got_nodes_meanwhile() -> None:
    victim = rigid("v", 1, 60.0, checkpoint_interval_s=30.0)
    first = rigid("first", 4, 10.0)
    work = workload(victim, first, rigid("t", 4, 100.0, 1.0), rigid("c5", 1, 1.0, 5.0), nodes=6)
    result = run(work, Robbing(NEXT, 5.0))
    assert ends(result)["v"] == 60.0
    assert [(one.t_s, one.kind, one.job) for one in result.refusals] == [(30.0, "steal", "v")]
    assert Reason(ReasonCode.STALE, "t does not wait for nodes any more").text in result.refusals[0].reason
