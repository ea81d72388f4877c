"""What a run comes to when slots that a job cannot fill run the tasks of others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.sim.what_if import engine_from, simulate_from
from dask_hpc_policies import registry
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView

LENDS = {"lending": {"limit_s": 5.0}}
#: One long task on four nodes, and forty of a second that wait for four.
CHAIN = JobView(
    id="chain", state="running", kind="rigid", nodes=4, start_nodes=4, min_nodes=4, max_nodes=4, start_s=90.0,
    walltime_s=20.0, remaining_s=10.0, unfinished_tasks=1,
)  # fmt: skip
WIDE = JobView(
    id="wide", kind="rigid", start_nodes=4, min_nodes=4, max_nodes=4, submit_s=95.0, remaining_s=10.0,
    unfinished_tasks=40,
)  # fmt: skip
VIEW = ClusterSnapshot(now_s=100.0, jobs=(CHAIN, WIDE), sections=LENDS)


def ends_s(view: ClusterSnapshot, policy: str = "fcfs", **more) -> dict[str, float]:
    return {run.id: run.end_s - view.now_s for run in simulate_from(view, policy, **more).runs}


def with_wide(**changes) -> ClusterSnapshot:
    return replace(VIEW, jobs=(CHAIN, replace(WIDE, **changes)))


def test_a_job_that_waits_runs_on_what_another_cannot_fill() -> None:
    # 30 of its tasks are done on three slots when the chain ends, the others on its four nodes
    assert ends_s(VIEW) == pytest.approx({"chain": 10.0, "wide": 12.5})
    assert ends_s(VIEW, lend_s=0) == pytest.approx({"chain": 10.0, "wide": 20.0})
    assert ends_s(replace(VIEW, sections={})) == ends_s(VIEW, lend_s=0)
    assert ends_s(replace(VIEW, sections={}), lend_s=1.0) == ends_s(VIEW)


@pytest.mark.parametrize(
    "view",
    [
        replace(VIEW, sections={"lending": {"limit_s": 0.5}}),
        replace(VIEW, sections={"lending": {"limit_s": 5.0, "keep": ["chain"]}}),
        with_wide(exclusive=True),
        with_wide(unfinished_tasks=0),
        replace(VIEW, jobs=(replace(CHAIN, exclusive=True), WIDE)),
    ],
    ids=["longer than is lent", "a producer", "exclusive borrower", "no tasks", "exclusive lender"],
)
def test_what_is_not_lent_is_as_before(view: ClusterSnapshot) -> None:
    assert ends_s(view) == pytest.approx({"chain": 10.0, "wide": 20.0})


def test_a_job_may_end_on_borrowed_slots_alone() -> None:
    result = simulate_from(with_wide(remaining_s=3.0, unfinished_tasks=12), "fcfs")
    wide = next(run for run in result.runs if run.id == "wide")
    assert wide.end_s == pytest.approx(104.0)
    assert wide.start_s == wide.end_s, "it never had a node"
    assert result.metrics()["makespan_s"] == pytest.approx(10.0)
    assert result.spans() is not None


def test_idle_nodes_are_lent_until_who_runs_and_who_waits_have_as_many_slots() -> None:
    running = replace(CHAIN, id="runs", nodes=1, start_nodes=1, min_nodes=1, max_nodes=1, unfinished_tasks=10)
    view = replace(VIEW, jobs=(running, replace(WIDE, unfinished_tasks=8, remaining_s=2.0)), idle_nodes=3)
    # two slots each; of the ten tasks the last two run side by side
    assert ends_s(view) == pytest.approx({"wide": 4.0, "runs": 5.0})


def test_nodes_of_several_threads_lend_each_of_them_and_forks_go_on_by_themselves() -> None:
    nodes = tuple(NodeView(id=f"n{i}", job="chain", nthreads=2) for i in range(4))
    view = replace(with_wide(unfinished_tasks=80), nodes=nodes)
    # 80 tasks of a second on eight slots take the 10 s: of them 70 are done on seven when the chain ends
    assert ends_s(view)["wide"] == pytest.approx(10 + 10 / 8)
    engine = engine_from(view, "fcfs")
    engine.run_until(105.0)
    other = engine.fork(registry.create("easy"))
    engine.run()
    other.run()
    assert [row.end_s for row in other.world.table.rows] == [row.end_s for row in engine.world.table.rows]


JOBS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 20), st.floats(0.5, 20.0)), min_size=1, max_size=6
)


def state(jobs: list[tuple[int, int, float]]) -> ClusterSnapshot:
    """Rigid jobs (nodes, tasks, seconds) on six nodes: the first that fit run, the others wait."""
    idle, views, queue = 6, [], False
    for i, (nodes, tasks, seconds) in enumerate(jobs):
        queue = queue or nodes > idle
        idle -= 0 if queue else nodes
        views.append(
            JobView(
                id=f"j{i}", state="pending" if queue else "running", kind="rigid",
                nodes=0 if queue else nodes, start_nodes=nodes, min_nodes=nodes, max_nodes=nodes,
                start_s=None if queue else 0.0, submit_s=float(i), remaining_s=seconds,
                unfinished_tasks=tasks,
            )
        )  # fmt: skip
    return ClusterSnapshot(
        now_s=50.0, jobs=tuple(views), idle_nodes=idle, sections={"lending": {"limit_s": 99.0}}
    )


@examples(150)
@given(JOBS)
def test_in_the_order_of_arrival_no_job_ends_later_because_slots_are_lent(jobs) -> None:
    view = state(jobs)
    lent, kept = ends_s(view), ends_s(view, lend_s=0)
    assert lent.keys() == kept.keys()
    assert all(lent[id] <= kept[id] * (1 + 1e-6) + 1e-6 for id in lent), (lent, kept)


@examples(100)
@given(JOBS, st.sampled_from(["easy", "pwma-fpsma", "equipartition"]))
def test_no_work_is_done_sooner_than_all_slots_could(jobs, policy) -> None:
    view = state(jobs)
    slot_s = sum(seconds * (min(nodes, tasks) if tasks else nodes) for nodes, tasks, seconds in jobs)
    assert max(ends_s(view, policy).values()) >= slot_s / 6 * (1 - 1e-6)
