"""What the next commit of a job costs, where not every commit is of every level."""

from __future__ import annotations

from dataclasses import replace
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

from dask_hpc.sim.model.job import Compute, Job, Repeat, Transfer
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Checkpoint

#: To memory each time, in 2 s; to a partner each fourth time, in 8 s more: 4 s in the mean.
TWO_LEVELS = level("process", blocking_s=2.0), level("host", each=4, blocking_s=8.0)


def test_an_interval_is_of_what_commits_cost_in_the_mean() -> None:
    asked = rigid("a", 2, 1000.0, checkpoints=every(inf, *TWO_LEVELS))
    # Young's, with 2 nodes of which each fails in 225 s in the mean: sqrt(2 * 4 * 112.5) = 30
    young = run(workload(asked, nodes=4), registry.create("interval-young", node_mtbf_s=225.0), tick_s=1.0)
    itself = run(workload(replace(asked, checkpoints=every(30.0, *TWO_LEVELS)), nodes=4))
    assert ends(young) == ends(itself) == {"a": pytest.approx(1000 + 33 * 2 + 8 * 8)}
    assert young.metrics()["commits"] == itself.metrics()["commits"] == 33


@pytest.mark.parametrize("held", [False, True])
def test_what_a_policy_is_told_of_the_next_commit_is_what_it_takes(held: bool) -> None:
    class Sees(Scripted):
        def decide(self, view: Any, state: None) -> Any:
            seen[view.now_s] = view.sections["checkpoints"].get("a")
            return super().decide(view, state)

    seen: dict[float, Any] = {}
    job = rigid("a", 2, 1000.0, checkpoints=every(30.0, *TWO_LEVELS))
    # commits end at 32, 64, 96 and 136 s
    at = (31.0, 63.0, 95.0, 127.0) if held else (10.0, 40.0, 70.0, 100.0, 140.0)
    clocks = [rigid(f"b{at_s:g}", 1, 1.0, at_s) for at_s in at]
    run(workload(job, *clocks, nodes=4), Sees({}))
    found = [(seen[at_s]["cost_s"], seen[at_s]["held_up_s"], seen[at_s]["under_way"]) for at_s in at]
    if held:
        # it is the one after that under way
        assert found == [(2.0, 4.0, True), (2.0, 4.0, True), (10.0, 4.0, True), (2.0, 4.0, True)]
    else:
        assert found == [(cost, 4.0, False) for cost in (2.0, 2.0, 2.0, 10.0, 2.0)]


def test_a_victim_waits_for_the_levels_of_its_next_commit_alone() -> None:
    big = rigid("big", 6, 10.0, checkpoint_interval_s=5.0)
    levels = level("host", blocking_s=0.5), level("domain", each=4, blocking_s=2.0)
    small = rigid("small", 2, 50.0, checkpoints=every(5.0, *levels))
    work = workload(big, small, nodes=8, failures=failures((4.0, None), downtime_s=1000.0))
    result = run(work, registry.create("sfsj", timing="next-checkpoint"))
    # chosen at 4 s and robbed at 5.5 s, when its first commit is over; of the eight left two are of both
    assert ends(result) == {"big": pytest.approx(15.5), "small": pytest.approx(15.5 + 45 + 8 * 0.5 + 2 * 2)}


class Asks(Scripted):
    """Asks for versions: {time: level}."""

    def __init__(self, levels: dict[float, str | None]) -> None:
        super().__init__({})
        self.levels = dict(levels)
        self.costs: list[float] = []

    def decide(self, view: Any, state: None) -> Any:
        decision, state = super().decide(view, state)
        if view.now_s not in self.levels:
            return decision, state
        self.costs.append(view.sections["checkpoints"]["a"]["cost_s"])
        ask = Checkpoint(job="a", level=self.levels.pop(view.now_s), reason=BECAUSE)
        return replace(decision, actions=(*decision.actions, ask)), state


@pytest.mark.parametrize(
    ("level", "cost_s"), [(None, 2.0), ("L1", 2.0), ("L2", 10.0), ("L3", None), ("L4", None)]
)
def test_a_version_is_kept_where_the_policy_wants_it_at_least_or_is_refused(
    level: str | None, cost_s: float | None
) -> None:
    job = rigid("a", 2, 100.0, checkpoints=every(inf, *TWO_LEVELS))
    clocks = [rigid(f"b{at_s:g}", 1, 1.0, at_s) for at_s in (10.0, 50.0)]
    asks = Asks({10.0: level, 50.0: None})
    result = run(workload(job, *clocks, nodes=4), asks)
    # the one after it is of the lowest level again
    assert ends(result)["a"] == pytest.approx(100 + (cost_s or 0.0) + 2)
    assert result.metrics()["commits"] == (1 if cost_s is None else 2)
    said = [(one.t_s, one.kind, f"as good as {level!r}" in one.reason) for one in result.refusals]
    assert said == ([(10.0, "checkpoint", True)] if cost_s is None else [])
    if cost_s is None:
        assert "process, host" in result.refusals[0].reason
    assert asks.costs == [2.0, 2.0]


def test_a_level_that_is_still_being_moved_to_is_refused_and_the_reason_says_so() -> None:
    levels = level("process", blocking_s=1.0), level("several", each=9, blocking_s=1.0, node_bytes=1e9)
    job = rigid("a", 2, 200.0, checkpoints=every(inf, *levels))
    clocks = [rigid(f"b{at_s:g}", 1, 1.0, at_s) for at_s in (10.0, 50.0, 150.0)]
    work = workload(job, *clocks, nodes=4, file_system_bytes_s=2e7)
    result = run(work, Asks({10.0: "L3", 50.0: "L3", 150.0: "L3"}))
    # it is moved from 12 to 112 s
    assert [one.t_s for one in result.refusals] == [50.0]
    assert "still being moved" in result.refusals[0].reason
    assert ends(result)["a"] == pytest.approx(200 + 2 * 2)


def written(job: Job, **machine: Any) -> list[float]:
    """When a policy that leaves 60 s between two versions of a job asks for one, at ticks of 1 s."""
    asked: list[float] = []

    class Asking:
        def __init__(self) -> None:
            self.policy = registry.create("interval-fixed", every_s=60.0)
            self.name, self.params = self.policy.name, self.policy.params

        def initial_state(self) -> Any:
            return self.policy.initial_state()

        def decide(self, view: Any, state: Any) -> Any:
            found = self.policy.decide(view, state)
            asked.extend(view.now_s for action in found[0].actions if isinstance(action, Checkpoint))
            return found

    run(workload(job, nodes=4, file_system_bytes_s=1e9, **machine), Asking(), tick_s=1.0)
    return asked


def test_an_interval_is_from_the_end_of_all_that_is_written_of_a_version_to_the_next_one() -> None:
    # it holds the job up for 2 s and is then moved for 50 s, in which nobody asks for another one
    asked = every(inf, level(blocking_s=2.0, node_bytes=25e9), level("process"))
    job = rigid("a", 2, 350.0, checkpoints=asked)
    assert written(job) == [60.0, 172.0, 284.0]
    # also where that takes longer than the interval
    longer = every(inf, level(blocking_s=2.0, node_bytes=50e9), level("process"))
    assert written(rigid("a", 2, 350.0, checkpoints=longer)) == [60.0, 222.0]
    # what is cut off has come to its end, too: here at 100 s, by the loss of one of the nodes
    goes_on = malleable("a", 2, 1, 2, 200.0, checkpoints=asked)
    assert written(goes_on, failures=failures((100.0, "host"), downtime_s=1e6))[:2] == [60.0, 160.0]


def test_what_a_program_saves_by_itself_is_no_version_that_the_policy_counts() -> None:
    save = Transfer(size_bytes=20e9, purpose="checkpoint", beside="file-system")
    steps = Repeat(stages=(Compute(work=20.0), save), times=10)
    job = application("a", 2, steps, checkpoints=every(inf, level("process", blocking_s=2.0)))
    assert written(job) == [60.0]
