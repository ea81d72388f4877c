"""What the next commit of a job costs, where not every commit is of every level."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from sim_worlds import Scripted, ends, every, failures, level, rigid, run, workload

from dask_hpc_policies import registry

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
