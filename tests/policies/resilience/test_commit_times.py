"""When a job writes the next version of its state."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies import registry
from dask_hpc_policies.codec import encode
from dask_hpc_policies.decision import Checkpoint
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.resilience.commit_times import MARGIN, History, Rule, due, due_in_s, in_time
from dask_hpc_policies.resilience.intervals import METHODS, Costs, expected_s

SECONDS = st.floats(0.01, 1e6)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_the_first_is_due_at_once_the_next_after_the_interval_and_none_beside_another(now, ago, every, cost):
    rule = Rule(every)
    assert due(now, History(), rule, 1) == "it has no version yet"
    history = History(since_s=now - ago, cost_s=cost)
    assert (due(now, history, rule, 1) is not None) == (now - history.since_s >= every)
    under_way = History(since_s=now - ago, cost_s=cost, under_way=True, end_s=now + cost)
    assert due(now, under_way, rule, 1) is None


@given(SECONDS, SECONDS, SECONDS, st.floats(0, 100))
def test_one_version_has_time_to_end_before_the_node_is_given_up(since, cost, length, ahead):
    end = since + length
    latest = end - MARGIN * cost - ahead

    def at(now, since_s):
        history = History(since_s=since_s, cost_s=cost, end_s=end, ahead_s=ahead)
        return due(now, history, Rule(math.inf), 1)

    if latest > since:
        assert at(math.nextafter(latest, -math.inf), since) is None
        assert at(latest, since).startswith("a node is given up in")
        assert at(latest, latest) is None, "once"
    else:
        assert at(end - cost / 2, since) is None, "there is no time for another one"
    assert at(end, since) is None


@given(SECONDS, SECONDS)
def test_before_nodes_go_that_have_to_a_version_is_begun_if_it_will_be_whole(left, cost):
    assert in_time(left, cost) == (cost * 1.3 <= left)
    assert in_time(left, None), "what it does not save is lost without it, too"


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.one_of(st.none(), SECONDS), st.floats(0, 100))
def test_what_is_due_in_no_time_is_due(now, ago, every, cost, length, ahead):
    history = History(now - ago, cost, end_s=None if length is None else now + length, ahead_s=ahead)
    left = due_in_s(now, history, Rule(every), 1)
    assert (left == 0) == (due(now, history, Rule(every), 1) is not None)
    assert due_in_s(now, History(), Rule(every), 1) == 0
    # and not before
    if left > 1e-3 and (length is None or left < length):
        assert due(now + left - 1e-3, history, Rule(every), 1) is None
        assert due(now + left + 1e-3, history, Rule(every), 1) is not None or length is not None


@given(
    st.floats(0.1, 100), st.floats(1e5, 1e8), st.integers(1, 64), st.sampled_from(["young", "daly", "exact"])
)
def test_once_cost_and_failures_are_known_the_interval_is_nearly_the_best(cost, node_mtbf, nodes, method):
    rule = Rule(600, node_mtbf, method)
    assert rule.interval_s(None, nodes) == Rule(600).interval_s(cost, nodes) == 600
    costs = Costs(cost, node_mtbf / nodes)
    found = rule.interval_s(cost, nodes)
    assert found == METHODS[method](costs)
    if costs.mtbf_s > 100 * cost:
        work = 100 * costs.mtbf_s
        assert expected_s(costs, work, found) <= 1.001 * min(
            expected_s(costs, work, found * f) for f in (0.5, 0.8, 1.25, 2)
        )


def test_reasons_say_which_rule():
    history = History(since_s=0.0, cost_s=2.0)
    assert due(600, history, Rule(600), 4) == "the last one ended 600 s ago, interval 600 s (the setting)"
    assert due(600, history, Rule(600, 3600), 4).endswith("interval 58.7 s (daly, 4 nodes)")
    assert due(599, history, Rule(600), 4) is None
    # what it holds the job up counts, not what is written beside it; and a job without nodes as on one
    beside = History(since_s=0.0, cost_s=20.0, held_up_s=2.0)
    assert due(600, beside, Rule(600, 3600), 4).endswith("interval 58.7 s (daly, 4 nodes)")
    assert Rule(600, 3600).interval_s(2.0, 0) == Rule(600, 3600).interval_s(2.0, 1)
    near = History(since_s=0.0, cost_s=2.0, end_s=1000.0, ahead_s=1.0)
    text = "a node is given up in 3 s, before its walltime ends; a version takes 2 s"
    assert due(997, near, Rule(1e9), 4) == text


@pytest.mark.parametrize("name", ["interval-fixed", "interval-young", "interval-daly"])
def test_a_policy_asks_for_those_that_are_due_of_jobs_that_keep_state(name):
    params = {"every_s": 100} | ({} if name == "interval-fixed" else {"node_mtbf_s": 40_000})
    policy = registry.create(name, **params)
    jobs = tuple(
        JobView(id=id, state=state, nodes=4, min_nodes=1, max_nodes=4)
        for id, state in (
            ("due", "running"),
            ("young", "running"),
            ("plain", "running"),
            ("waits", "pending"),
        )
    )
    known = {
        "due": History(since_s=0.0, cost_s=1.0),
        "young": History(since_s=950.0, cost_s=1.0),
        "waits": History(since_s=0.0, cost_s=1.0),
        "gone": History(since_s=0.0, cost_s=1.0),
    }
    view = ClusterSnapshot(now_s=1000.0, jobs=jobs, sections={"checkpoints": encode(known)})
    decision, state = policy.decide(view, policy.initial_state())
    asked = [action for action in decision.actions if isinstance(action, Checkpoint)]
    assert [action.job for action in asked] == ["due"]
    interval = {
        "interval-fixed": "100 s (the",
        "interval-young": "141 s (young",
        "interval-daly": "141 s (daly",
    }
    assert f"interval {interval[name]}" in asked[0].reason.text
    assert policy.decide(view, state) == (decision, state)
    bare, _ = policy.decide(ClusterSnapshot(now_s=1000.0, jobs=jobs), policy.initial_state())
    assert not [action for action in bare.actions if isinstance(action, Checkpoint)]


def test_it_stands_beside_another_policy():
    policy = registry.create({"policy": "chain", "policies": ["fair", "interval-fixed"]})
    job = JobView(id="a", state="running", nodes=2, min_nodes=1, max_nodes=4)
    sections = {"checkpoints": encode({"a": History(since_s=0.0, cost_s=1.0)})}
    view = ClusterSnapshot(now_s=1000.0, jobs=(job,), sections=sections)
    decision, _ = policy.decide(view, policy.initial_state())
    assert [type(action) for action in decision.actions] == [Checkpoint]
