"""What a run comes to when jobs that asked for no nodes of their own take turns, as they do live."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.sim.engine.turns import TurnTaking
from dask_hpc.sim.what_if import engine_from, simulate_from
from dask_hpc_policies import registry
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.rules.fair.turns import Work

#: Six jobs of 44 half seconds on a node each, and a question of twelve fifths of a second that has none.
SIX = tuple(
    JobView(
        id=f"j{i}", state="running", kind="malleable", nodes=1, start_nodes=1, min_nodes=1, max_nodes=6,
        start_s=90.0, submit_s=90.0 + i, user=f"u{i}", remaining_s=22.0, unfinished_tasks=44,
    )
    for i in range(6)
)  # fmt: skip
QUESTION = replace(SIX[0], id="question", state="pending", nodes=0, start_s=None, submit_s=99.0, user="q",
                   remaining_s=2.4, unfinished_tasks=12)  # fmt: skip


def view_of(jobs, ahead_s=(), **more) -> ClusterSnapshot:
    turns = {job.id: 0.0 for job in jobs} | dict(ahead_s)
    told = {"lending": {"limit_s": 5.0, "turns": turns} | more}
    return ClusterSnapshot(now_s=100.0, jobs=tuple(jobs), sections=told)


SEVEN = view_of((*SIX, QUESTION))


def ends_s(view: ClusterSnapshot, policy: str = "fair", **more) -> dict[str, float]:
    return {run.id: run.end_s - view.now_s for run in simulate_from(view, policy, **more).runs}


@pytest.mark.parametrize("policy", ["fair", "fcfs", "equipartition"])
def test_who_has_no_node_waits_for_none_and_the_others_go_on(policy: str) -> None:
    found = ends_s(SEVEN, policy)
    # twelve tasks on six slots, before any other
    assert found.pop("question") == pytest.approx(0.4)
    # those that have a node keep it to themselves but under `fair`, which serves one after the other
    behind = [0.4 + 22 * (i + 1) / 6 if policy == "fair" else 22.4 for i in range(6)]
    assert sorted(found.values()) == pytest.approx(behind)
    assert ends_s(SEVEN, policy, lend_s=0)["question"] > 22, "it waits for a node"


def test_jobs_whose_tasks_are_too_long_to_be_lent_keep_to_their_nodes() -> None:
    found = ends_s(view_of((*SIX, QUESTION), limit_s=0.3))
    assert found.pop("question") == pytest.approx(0.4)
    assert list(found.values()) == pytest.approx([22.4] * 6)


def test_what_a_job_was_served_ahead_of_its_share_counts_against_it() -> None:
    # equal work, one node each
    one, two = (replace(job, remaining_s=8.0, unfinished_tasks=16) for job in SIX[:2])
    assert ends_s(view_of((one, two))) == pytest.approx({"j0": 4.0, "j1": 8.0})
    assert ends_s(view_of((one, two), {"j0": 3.0})) == pytest.approx({"j0": 8.0, "j1": 4.0})
    assert ends_s(view_of((one, two), {"j1": -3.0})) == pytest.approx({"j0": 8.0, "j1": 4.0})
    assert ends_s(view_of((one, replace(two, priority=1)))) == pytest.approx({"j0": 8.0, "j1": 4.0})


def test_the_order_of_service_is_that_of_the_live_cluster_while_little_has_changed() -> None:
    one, two = (replace(job, remaining_s=8.0, unfinished_tasks=16) for job in SIX[:2])
    assert ends_s(view_of((one, two), ends={"j0": 8.3, "j1": 8.2})) == pytest.approx({"j0": 8.0, "j1": 4.0})
    # by much more than what is left of it
    assert ends_s(view_of((one, two), ends={"j0": 80.0, "j1": 8.2})) == pytest.approx({"j0": 4.0, "j1": 8.0})
    assert ends_s(view_of((one, two), ends={"j0": "soon"})) == ends_s(view_of((one, two)))


def test_forks_go_on_by_themselves_and_by_the_rule_of_their_policy() -> None:
    engine = engine_from(SEVEN, "fair")
    engine.run_until(100.2)
    same, other = engine.fork(registry.create("fair")), engine.fork(registry.create("equipartition"))
    for each in (engine, same, other):
        each.run()

    def ends(engine):
        jobs = engine.world.workload.jobs
        return {jobs[row.key].id: row.end_s - 100.0 for row in engine.world.table.rows}

    assert ends(same) == ends(engine) == pytest.approx(ends_s(SEVEN))
    assert ends(other) == pytest.approx(dict.fromkeys((job.id for job in SIX), 22.4) | {"question": 0.4})


def test_slots_that_come_later_have_served_nobody_before() -> None:
    one, two = (Work(id=id, done_s=0.0, left_s=10.0, width=9) for id in ("one", "two"))
    turns = TurnTaking({"one": 0.0, "two": 0.0, "late": 0.0})
    turns.advance(0.0, [one, two], 4)
    works = [replace(one, left_s=6.0), two, Work(id="late", done_s=0.0, left_s=7.0, width=9)]
    # two of the four slots each for a second: 8 s are left there of each
    assert turns.advance(1.0, works, 8) == ["late", "one", "two"]


@examples(60)
@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.5, 1.0, 2.0])), min_size=2, max_size=6))
def test_nobody_ends_later_than_in_equal_shares(jobs: list[tuple[int, float]]) -> None:
    """The guarantee of the fair sojourn protocol, for jobs that are there at once and can use every slot."""
    nodes = len(jobs)
    many = replace(SIX[0], unfinished_tasks=5000)
    views = [
        replace(many, id=f"j{i}", user=f"u{i}", weight=weight, remaining_s=float(work))
        for i, (work, weight) in enumerate(jobs)
    ]
    left = {view.id: view.remaining_s for view in views}
    weights = {view.id: view.weight for view in views}
    shared_s, clock_s = {}, 0.0
    while left:
        whole = sum(weights[id] for id in left)
        step_s = min(left[id] * whole / weights[id] for id in left) / nodes
        clock_s += step_s
        left = {id: work - step_s * nodes * weights[id] / whole for id, work in left.items()}
        shared_s |= {id: clock_s for id, work in left.items() if work <= 1e-9}
        left = {id: work for id, work in left.items() if id not in shared_s}
    found = ends_s(view_of(views))
    assert all(found[id] <= shared_s[id] * (1 + 1e-6) + 1e-6 for id in found), (found, shared_s)
    assert max(found.values()) == pytest.approx(sum(work for work, _ in jobs) / nodes)
