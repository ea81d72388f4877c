"""What a live cluster has shown of the time that its jobs still take, and how sure that is."""

from __future__ import annotations

from math import inf

import pytest

from dask_hpc.sim.learned import FEW_TASKS, Knowledge, learn
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView

NODES = tuple(NodeView(id=f"n{i}", nthreads=2) for i in range(4))


def job(**fields) -> JobView:
    return JobView(**{"id": "a", "state": "running", "nodes": 2, "max_nodes": 4, "start_s": 90.0, **fields})


def row(id="a", ended=0, mean_s=0.0, **fields) -> dict:
    phases = [{"tasks": ended, "compute_s": ended * mean_s}]
    return {"id": id, "closed": True, "phases": phases, "held_task_s": None, **fields}


def known(view: JobView, *rows: dict, assumed_s: float = 77.0) -> Knowledge:
    snapshot = ClusterSnapshot(now_s=100.0, nodes=NODES, jobs=(view,))
    learned, (found,) = learn(snapshot, rows, assumed_s)
    # the simulator goes by this
    assert learned.jobs[0].remaining_s == found.remaining_s
    return found


def test_tasks_that_are_left_take_as_long_as_those_that_ended_and_those_on_workers_half_of_it():
    found = known(job(unfinished_tasks=30, processing_tasks=4), row(ended=40, mean_s=0.5))
    # 28 tasks of 0.5 s on 2 nodes of 2 threads
    assert found.remaining_s == pytest.approx(28 * 0.5 / 4)
    assert (found.source, found.confidence, found.nodes) == ("tasks", "good", 2)
    assert found.text == "30 tasks left; 40 took 0.5 s each"


def test_fewer_tasks_than_threads_take_as_long_as_on_so_many():
    found = known(job(unfinished_tasks=1), row(ended=40, mean_s=0.5))
    assert found.remaining_s == pytest.approx(0.5), "three of four threads have nothing to do"
    assert found.text == "1 task left; 40 took 0.5 s each"


def test_few_tasks_say_less_and_an_open_job_may_get_more():
    few = known(job(unfinished_tasks=8), row(ended=FEW_TASKS - 1, mean_s=0.5))
    assert (few.source, few.confidence) == ("tasks", "fair")
    open_ = known(job(unfinished_tasks=8), row(ended=FEW_TASKS, mean_s=0.5, closed=False))
    assert (open_.source, open_.confidence) == ("so-far", "fair")
    assert open_.text.endswith("more may be submitted")


def test_a_job_that_waits_is_timed_by_earlier_tasks_of_their_names_at_its_start_size():
    waits = job(state="pending", nodes=0, start_nodes=1, start_s=None, unfinished_tasks=10)
    found = known(waits, row(held_task_s=0.25))
    assert (found.source, found.confidence, found.nodes) == ("alike", "fair", 1)
    assert found.remaining_s == pytest.approx(10 * 0.25 / 2)


def test_a_few_tasks_of_its_own_are_weighed_against_those_like_what_is_left():
    runs = job(nodes=1, unfinished_tasks=10)
    few = known(runs, row(ended=FEW_TASKS - 1, mean_s=1.0, held_task_s=0.25))
    assert (few.source, few.confidence) == ("tasks", "fair")
    assert few.remaining_s == pytest.approx(10 * 0.25 / 2), "the first ones of a job are slow"
    assert few.text == "10 tasks left; 19 took 1 s each, those like what is left 0.25 s, 0.25 s is taken"
    disturbed = known(runs, row(ended=2, mean_s=0.25, held_task_s=0.4))
    assert disturbed.remaining_s == pytest.approx(10 * 0.25 / 2), "so are the first ones of their names"
    others = known(runs, row(ended=2, mean_s=0.25, held_task_s=60.0))
    assert others.remaining_s == pytest.approx(10 * 60.0 / 2), "two that loaded say nothing of ten that learn"
    many = known(runs, row(ended=FEW_TASKS, mean_s=1.0, held_task_s=0.25))
    assert many.remaining_s == pytest.approx(10 * 1.0 / 2)


def test_tasks_that_are_left_say_more_than_earlier_jobs_of_its_name():
    earlier = job(unfinished_tasks=10, recorded_s=30.0, remaining_s=20.0)
    alike = known(earlier, row(held_task_s=0.25))
    assert (alike.source, alike.remaining_s) == ("alike", pytest.approx(10 * 0.25 / 4))
    for closed, source, left_s in ((True, "tasks", 20.0), (False, "so-far", 1.0)):
        earlier = job(unfinished_tasks=10, recorded_s=30.0, remaining_s=left_s)
        own = known(earlier, row(ended=FEW_TASKS, mean_s=0.5, closed=closed))
        assert (own.source, own.remaining_s) == (source, pytest.approx(10 * 0.5 / 4))


def test_earlier_jobs_of_its_name_say_more_than_nothing_and_than_tasks_alike_while_more_may_come():
    earlier = job(unfinished_tasks=10, recorded_s=30.0, remaining_s=20.0)
    more = row(ended=FEW_TASKS, mean_s=0.5, closed=False)
    for found in (
        known(earlier, row()),
        known(earlier, row(held_task_s=0.25, closed=False)),
        known(earlier, more),
    ):
        assert (found.source, found.remaining_s) == ("recorded", 20.0)


def test_tasks_of_other_jobs_are_a_guess():
    snapshot = ClusterSnapshot(
        now_s=100.0, nodes=NODES, jobs=(job(unfinished_tasks=4), job(id="b", unfinished_tasks=12))
    )
    _, (first, second) = learn(snapshot, [row(ended=10, mean_s=2.0), row("b")], 77.0)
    assert first.source == "tasks"
    assert (second.source, second.confidence) == ("others", "poor")
    assert second.remaining_s == pytest.approx(12 * 2.0 / 4)


def test_a_job_whose_first_tasks_are_under_way_for_longer_than_tasks_of_others_has_other_ones():
    short = job(id="b", unfinished_tasks=4)
    rows = [row(), row("b", ended=10, mean_s=2.0)]
    for start_s, source in ((97.0, "others"), (90.0, "assumed")):
        runs = job(unfinished_tasks=4, processing_tasks=4, start_s=start_s)
        _, (first, _) = learn(ClusterSnapshot(now_s=100.0, nodes=NODES, jobs=(runs, short)), rows, 77.0)
        assert (first.source, first.confidence) == (source, "poor")
    assert first.remaining_s == 77.0


def test_then_the_walltime_and_then_what_the_caller_says():
    limited = known(job(walltime_s=60.0, remaining_s=50.0), row())
    assert (limited.source, limited.confidence, limited.remaining_s) == ("walltime", "poor", 50.0)
    unknown = known(job(), row())
    assert (unknown.source, unknown.confidence, unknown.remaining_s) == ("assumed", "poor", 77.0)
    # without its row, as of a job that has ended meanwhile
    assert known(job()).source == "assumed"


def test_plain_work_is_left_as_it_is():
    plain = JobView(id="default", is_default=True, nodes=1)
    view, found = learn(ClusterSnapshot(now_s=1.0, nodes=NODES, jobs=(plain,)), [], 1.0)
    assert found == ()
    assert view.jobs == (plain,)


def test_what_is_under_way_is_taken_as_done():
    # b is shrinking from 3 to 1 node, c waits for two of them; a had shrunk before, its node is set aside
    a = job(id="a", nodes=1, unfinished_tasks=4)
    b = job(id="b", state="adapting", nodes=3, unfinished_tasks=6)
    c = job(id="c", state="adapting", nodes=0, start_s=None, start_nodes=2, unfinished_tasks=8)
    nodes = tuple(NodeView(id=f"n{i}", state="draining" if i > 2 else "up") for i in range(5))
    # no job gets these
    nodes += (NodeView(id="s", role="staging", nthreads=64), NodeView(id="r", role="reserve"))
    plain = JobView(id="default", is_default=True, nodes=0, min_nodes=1)
    rows = [
        row("a", ended=10, mean_s=1.0, target_nodes=None),
        row("b", ended=10, mean_s=1.0, target_nodes=1),
        row("c", held_task_s=1.0, target_nodes=2),
    ]
    view, found = learn(ClusterSnapshot(now_s=100.0, nodes=nodes, jobs=(a, b, c)), rows, 77.0)
    assert [(one.state, one.nodes, one.start_s) for one in view.jobs] == [
        ("running", 1, 90.0),
        ("running", 1, 90.0),
        ("running", 2, 100.0),
    ]
    assert view.idle_nodes == 1
    assert [(one.nodes, one.remaining_s) for one in found] == [(1, 4.0), (1, 6.0), (2, 4.0)]
    view, _ = learn(ClusterSnapshot(now_s=100.0, nodes=nodes, jobs=(a, b, c, plain)), rows, 77.0)
    assert view.idle_nodes == 0, "what plain work keeps is nobody's"


@pytest.mark.parametrize("assumed_s", [0.0, -1.0, inf, float("nan")])
def test_an_assumption_is_a_time(assumed_s):
    with pytest.raises(ValueError, match="assumed_s"):
        learn(ClusterSnapshot(now_s=1.0), [], assumed_s)


def test_a_task_that_has_run_for_longer_than_all_that_is_left_was_to_take_is_half_done():
    late = job(unfinished_tasks=1, processing_tasks=1)
    found = known(late, row(ended=40, mean_s=1.0, executing_s=600.0))
    assert (found.remaining_s, found.source, found.confidence) == (600.0, "tasks", "poor")
    assert found.text.endswith("; one has run 10 min and is taken to be half done")
    for executing_s in (0.0, 1.9):
        found = known(late, row(ended=40, mean_s=1.0, executing_s=executing_s))
        assert (found.remaining_s, found.confidence) == (0.5, "good")
    many = known(job(unfinished_tasks=400), row(ended=40, mean_s=1.0, executing_s=99.0))
    assert (many.remaining_s, many.confidence) == (100.0, "good")
    unknown = known(job(unfinished_tasks=1, walltime_s=900.0), row(executing_s=600.0))
    assert unknown.source == "walltime"
