"""A job whose node goes at the end of its walltime commits in time, by the rule that live clusters use."""

from __future__ import annotations

from math import inf, nextafter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import application, ends, every, level, malleable, rigid, run, workload

from dask_hpc.sim import Result
from dask_hpc.sim.model.checkpoints import Level
from dask_hpc.sim.model.job import Compute, Delay, Job, Repeat
from dask_hpc.sim.model.pool import Pool
from dask_hpc_policies import registry
from dask_hpc_policies.codec import decode
from dask_hpc_policies.decision import Checkpoint
from dask_hpc_policies.resilience.commit_times import MARGIN, History, Rule, due

GB = 1e9


class Told:
    """A policy for intervals that notes what it was told of job ``a`` when, and when it asked why."""

    def __init__(self, **params: Any) -> None:
        self._policy = registry.create("interval-fixed", **{"every_s": 1e6, **params})
        self.name, self.params = self._policy.name, self._policy.params
        self.seen: list[tuple[float, History]] = []
        self.asked: list[tuple[float, str]] = []

    def initial_state(self) -> Any:
        return self._policy.initial_state()

    def decide(self, view: Any, state: Any) -> Any:
        known = view.sections["checkpoints"]
        if "a" in known:
            self.seen.append((view.now_s, decode(History, known["a"])))
        found = self._policy.decide(view, state)
        self.asked += [
            (view.now_s, one.reason.text) for one in found[0].actions if isinstance(one, Checkpoint)
        ]
        return found


def job(*levels: Level, every_s: float = inf) -> Job:
    return rigid("a", 1, 150.0, checkpoints=every(every_s, *levels))


def on_nodes(one: Job, *walltimes_s: float | None, **more: Any) -> tuple[Result, Told]:
    """The job on nodes that go then, those with the lowest numbers first, and one that stays."""
    policy = Told()
    nodes = len(walltimes_s) + 1
    pool = Pool(initial_nodes=nodes, initial_walltimes_s=(*walltimes_s, None))
    options = {name: more.pop(name) for name in ("tick_s", "decision_s") if name in more}
    return run(workload(one, nodes=nodes, pool=pool, **more), policy, **options), policy


@pytest.mark.parametrize("tick_s", [None, 7.0])
def test_a_commit_is_begun_at_the_last_moment_whenever_ticks_are(tick_s: float | None) -> None:
    found, policy = on_nodes(job(level("host", blocking_s=2.0)), 100.0, tick_s=tick_s)
    text = "a node is given up in 2.6 s, before its walltime ends; a version takes 2 s"
    assert policy.asked == [(pytest.approx(100 - MARGIN * 2), text)]
    # what was computed until then is kept: the rest is done on the other node
    assert ends(found) == {"a": pytest.approx(100 + 150 - 97.4)}
    assert found.metrics()["lost_node_s"] == pytest.approx(0.6)


def test_all_that_is_moved_beside_has_ended_by_then() -> None:
    # 2 s, then 10 s over the file system and 4 s over links at the same time
    levels = (
        level("process", blocking_s=2.0, node_bytes=4 * GB, path="link"),
        level("host", node_bytes=10 * GB),
    )
    rates = {"network_bytes_s": GB, "link_bytes_s": 2 * GB, "file_system_bytes_s": GB}
    found, policy = on_nodes(job(*levels), 100.0, **rates)
    assert [t for t, _ in policy.asked] == pytest.approx([100 - MARGIN * 12])
    assert ends(found) == {"a": pytest.approx(100 + 150 - (100 - MARGIN * 12))}


def test_who_commits_by_itself_gets_one_more_and_each_is_as_long_as_its_levels() -> None:
    levels = level("host", blocking_s=2.0), level("several", each=2, blocking_s=8.0)
    found, policy = on_nodes(job(*levels, every_s=30.0), 100.0)
    # its own end at 32 and 72 s; the third is of the one level alone
    assert [t for t, _ in policy.asked] == pytest.approx([100 - MARGIN * 2])
    assert policy.seen[-1][1].held_up_s == 6.0
    # 12 s are done twice without it: 85.4 s of work are kept, then commits at 30 s (both levels) and 60 s
    assert ends(found) == {"a": pytest.approx(100 + 150 - 85.4 + 10 + 2)}


def test_a_program_commits_at_its_last_boundary_in_time() -> None:
    steps = Repeat(stages=(Compute(work=4.0), Delay(seconds=6.0)), times=15)
    one = application("a", 1, steps, checkpoints=every(inf, level("host", blocking_s=2.0)))
    found, policy = on_nodes(one, 99.0)
    # asked for at 90.4 s, so that the longest stage ends before 96.4 s; it is there at 96 s
    assert [t for t, _ in policy.asked] == pytest.approx([99 - MARGIN * 2 - 6])
    # boundaries are at 90 and 94 s
    assert ends(found) == {"a": pytest.approx(99 + 150 - 94)}


def test_answers_that_take_their_time_are_asked_for_earlier() -> None:
    found, policy = on_nodes(job(level("host", blocking_s=2.0)), 100.0, decision_s=5.0)
    # it starts at 5 s; the commit begins 5 s after the policy was asked
    assert [t for t, _ in policy.asked] == pytest.approx([100 - MARGIN * 2 - 5])
    assert found.metrics()["lost_node_s"] == pytest.approx(0.6)


def test_each_node_of_a_job_counts_and_each_is_looked_at() -> None:
    one = malleable(
        "a", 3, 1, 3, 150.0, checkpoints=every(inf, level("host", blocking_s=1.0)), walltime_s=None
    )
    _, policy = on_nodes(one, 60.0, 30.0)
    assert [t for t, _ in policy.asked] == pytest.approx([30 - MARGIN, 60 - MARGIN])


def test_no_commit_where_there_is_no_time_for_it_and_no_look_without_an_end() -> None:
    _, policy = on_nodes(job(level("host", blocking_s=90.0)), 100.0)
    assert policy.asked == []
    _, policy = on_nodes(job(level("host", blocking_s=2.0)), None)
    assert policy.asked == []
    assert all(one.end_s is None for _, one in policy.seen)


@given(st.floats(0.01, 60), st.floats(5, 149))
def test_the_simulated_moment_is_the_one_that_the_live_rule_names(cost_s: float, end_s: float) -> None:
    _, policy = on_nodes(job(level("host", blocking_s=cost_s)), end_s)
    given = History(since_s=0.0, cost_s=cost_s, end_s=end_s)
    rule = Rule(1e6)
    if given.last_s is None:
        assert policy.asked == []
        return
    ((asked_s, why),) = policy.asked
    assert due(asked_s, given, rule, 1) == why
    assert due(nextafter(asked_s, -inf), given, rule, 1) is None
    # and what it was told is what a live cluster would tell: figures that give the same answer
    (told,) = [one for t, one in policy.seen if t == asked_s]
    assert (told.since_s, told.cost_s, told.end_s, told.ahead_s) == (0.0, cost_s, end_s, 0.0)
