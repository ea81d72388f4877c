"""What is known of the time that jobs still take, and what would come of another policy from here."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import what_if as sim
from dask_hpc.sim.learned import FEW_TASKS, learn
from dask_hpc_policies import registry
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_widgets import comparison
from dask_hpc_widgets.live.what_if import what_if

ASSUMED_S = 77.0
EASY, MALLEABLE = (registry.spec_of(registry.create(name)) for name in ("easy", "pwma-fpsma"))
EVIL = "<script>alert('x')</script>"


def node(id, holder=None, nthreads=2, **more):
    return NodeView(id=id, job=holder, nthreads=nthreads, **more)


def job(id="j", **more):
    """A job that runs on two nodes since 20 s, with 12 tasks left, 4 of them on workers."""
    fields = {
        "name": id, "state": "running", "nodes": 2, "min_nodes": 1, "max_nodes": 4, "submit_s": 0.0,
        "start_s": 20.0, "unfinished_tasks": 12, "processing_tasks": 4,
    }  # fmt: skip
    return JobView(id=id, **{**fields, **more})


def row(id="j", tasks=0, compute_s=0.0, closed=False, held_task_s=None):
    phases = [{"tasks": tasks, "compute_s": compute_s}]
    return {"id": id, "closed": closed, "phases": phases, "held_task_s": held_task_s}


def view(*jobs, nodes=4, **more):
    return ClusterSnapshot(now_s=100.0, jobs=jobs, nodes=tuple(node(f"n{i}") for i in range(nodes)), **more)


#: 10 tasks (those on workers count half) on 4 threads; the tasks before took 3 s each: 7.5 s.
LEFT_S = 10 * 3.0 / 4


@pytest.mark.parametrize(
    ("source", "confidence", "remaining_s", "one", "known"),
    [
        ("tasks", "good", LEFT_S, job(), row(tasks=FEW_TASKS, compute_s=3.0 * FEW_TASKS, closed=True)),
        ("tasks", "fair", LEFT_S, job(), row(tasks=FEW_TASKS - 1, compute_s=57.0, closed=True)),
        # of few tasks the shorter of what they took and what Dask has learned: none is quicker than it can be
        ("tasks", "fair", 10 * 2.0 / 4, job(), row(tasks=2, compute_s=6.0, closed=True, held_task_s=2.0)),
        ("tasks", "fair", LEFT_S, job(), row(tasks=2, compute_s=6.0, closed=True, held_task_s=4.0)),
        # closed: what was recorded says less than its own tasks
        ("tasks", "fair", LEFT_S, job(recorded_s=500.0), row(tasks=2, compute_s=6.0, closed=True)),
        ("tasks", "fair", 0.0, job(unfinished_tasks=0, processing_tasks=0), row("j", 2, 6.0, True)),
        ("so-far", "fair", LEFT_S, job(), row(tasks=100, compute_s=300.0)),
        # more may come than was submitted: earlier runs know better
        ("recorded", "fair", 40.0, job(recorded_s=120.0, remaining_s=40.0), row(tasks=2, compute_s=6.0)),
        ("recorded", "fair", 0.0, job(recorded_s=120.0, remaining_s=-9.0), row()),
        ("alike", "fair", 10 * 2.0 / 4, job(), row(held_task_s=2.0)),
        ("alike", "fair", 10 * 2.0 / 4, job(walltime_s=900.0), row(held_task_s=2.0, closed=True)),
        ("others", "poor", 10 * 5.0 / 4, job(start_s=90.0), row()),
        ("others", "poor", 10 * 5.0 / 4, job(start_s=90.0, walltime_s=900.0), {}),
        ("walltime", "poor", 820.0, job(unfinished_tasks=0, remaining_s=820.0), row()),
        ("walltime", "poor", 900.0, job(state="pending", nodes=0, unfinished_tasks=0, walltime_s=900.0), {}),
        ("assumed", "poor", ASSUMED_S, job(unfinished_tasks=0, processing_tasks=0), row()),
        # nothing is left of what was submitted, and nobody knows whether more comes
        ("assumed", "poor", ASSUMED_S, job(unfinished_tasks=0), row("j", 2, 6.0)),
    ],
)  # fmt: skip
def test_where_the_remaining_time_comes_from(source, confidence, remaining_s, one, known):
    # another job, of whose tasks each took 5 s; it is not there where nobody is to be asked
    other = job("other", unfinished_tasks=0, processing_tasks=0)
    others = [row("other", 4, 20.0)] if source == "others" else []
    learned, found = learn(view(one, other), [{"id": "j", **known}, *others], ASSUMED_S)
    mine = found[0]
    assert (mine.source, mine.confidence) == (source, confidence)
    assert mine.remaining_s == pytest.approx(remaining_s)
    assert learned.jobs[0].remaining_s == mine.remaining_s
    assert (mine.job, mine.name) == ("j", "j")
    assert mine.text


def test_sizes_and_threads_divide_the_work():
    known = [row(tasks=30, compute_s=90.0, closed=True)]
    waiting = {"state": "pending", "nodes": 0, "processing_tasks": 0}
    for sizes, nodes in (({"start_nodes": 3}, 3), ({"start_nodes": None}, 4)):
        _, (found,) = learn(view(job(**waiting, **sizes)), known, ASSUMED_S)
        assert found.nodes == nodes
        assert found.remaining_s == pytest.approx(12 * 3.0 / (nodes * 2))
    # the threads of a node on average, of those that are up
    mixed = ClusterSnapshot(
        now_s=0.0,
        jobs=(job(),),
        nodes=(node("a", nthreads=1), node("b", nthreads=4), node("c", nthreads=90, state="lost")),
    )
    _, (found,) = learn(mixed, known, ASSUMED_S)
    assert found.remaining_s == pytest.approx(10 * 3.0 / (2 * 2.5))
    # at least one, also where no node says
    for none in ((), (node("a", nthreads=0),)):
        _, (found,) = learn(ClusterSnapshot(now_s=0.0, jobs=(job(),), nodes=none), known, ASSUMED_S)
        assert found.remaining_s == pytest.approx(10 * 3.0 / 2)


def test_plain_work_is_no_job_but_its_tasks_count_for_others():
    plain = job("plain", is_default=True)
    learned, found = learn(view(plain, job(start_s=96.0)), [row("plain", 10, 20.0), row()], ASSUMED_S)
    assert [one.job for one in found] == ["j"]
    assert found[0].source == "others"
    assert found[0].remaining_s == pytest.approx(10 * 2.0 / 4)
    assert learned.jobs[0] == plain


@pytest.mark.parametrize("assumed_s", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_assumed_must_be_a_time(assumed_s):
    with pytest.raises(ValueError, match=r"assumed_s is .*; needed: a number of seconds above 0"):
        learn(view(job()), [], assumed_s)


times = st.floats(0, 1e9)
counts = st.integers(0, 10**6)
jobs = st.builds(
    JobView,
    id=st.sampled_from(["a", "b", "c"]),
    state=st.sampled_from(["pending", "running", "adapting"]),
    nodes=st.integers(0, 64),
    start_nodes=st.none() | st.integers(1, 64),
    max_nodes=st.integers(1, 64),
    walltime_s=st.none() | times,
    remaining_s=st.none() | st.floats(-1e9, 1e9),
    recorded_s=st.none() | times,
    unfinished_tasks=counts,
    processing_tasks=counts,
    is_default=st.booleans(),
)
phases = st.fixed_dictionaries({"tasks": counts, "compute_s": times})
rows = st.fixed_dictionaries(
    {"id": st.sampled_from(["a", "b", "d"])},
    optional={
        "closed": st.booleans(),
        "phases": st.lists(phases, max_size=3),
        "held_task_s": st.none() | times,
    },
)


@given(
    st.lists(jobs, unique_by=lambda one: one.id, max_size=3),
    st.lists(rows, unique_by=lambda one: one["id"], max_size=3),
    st.lists(st.builds(node, st.just("n"), nthreads=st.integers(0, 8)), max_size=3),
)
def test_remaining_times_are_finite_and_not_negative_whatever_the_rows_are(jobs, rows, nodes):
    before = ClusterSnapshot(now_s=5.0, jobs=tuple(jobs), nodes=tuple(nodes))
    after, found = learn(before, rows, ASSUMED_S)
    assert [one.job for one in found] == [one.id for one in jobs if not one.is_default]
    assert all(isfinite(one.remaining_s) and one.remaining_s >= 0 for one in found)
    by_id = {one.job: one.remaining_s for one in found}
    assert [one.id for one in after.jobs] == [one.id for one in jobs]
    assert all(one.is_default or one.remaining_s == by_id[one.id] for one in after.jobs)


# ------------------------------------------------------------------ from here on

#: A job that could give two of its four nodes to one that waits for them.
STATE = ClusterSnapshot(
    now_s=100.0,
    nodes=tuple(node(f"n{i}", "heat-1", nthreads=1, host="h", domain="d") for i in range(4)),
    sections={"file_system": {"written_bytes_s": 1e9}},
    jobs=(
        job("heat-1", name="heat", nodes=4, unfinished_tasks=400, processing_tasks=0),
        job(
            "late-2", name="late", state="pending", kind="rigid", nodes=0, start_nodes=2, min_nodes=2,
            max_nodes=2, start_s=None, unfinished_tasks=20, processing_tasks=0,
        ),
    ),
)  # fmt: skip
#: 400 tasks of 1 s on 4 threads; the other's 20 tasks are taken to be as long.
KNOWN = [row("heat-1", 50, 50.0, closed=True), row("late-2")]


def test_what_is_chosen_beside_what_runs():
    found = what_if(STATE, KNOWN, EASY, MALLEABLE, ASSUMED_S)
    assert list(found.runs) == ["easy, as it runs", "pwma-fpsma, as chosen"]
    present, chosen = ({run.id: run.end_s - 100 for run in one.runs} for one in found.runs.values())
    assert present == {"heat-1": pytest.approx(100), "late-2": pytest.approx(110)}
    # two nodes go to the job that waits for its 10 s, then come back: 380 s of work are left for all four
    assert chosen == {"late-2": pytest.approx(10), "heat-1": pytest.approx(10 + 380 / 4)}
    assert found.notes == ()
    unknown = what_if(replace(STATE, sections={}), KNOWN, EASY, MALLEABLE, ASSUMED_S)
    assert unknown.notes == (
        "Not known from there: the bandwidth of the file system (reads and writes take no time).",
    )
    assert unknown.notes[0] in unknown.html()


def test_the_outcome_says_how_sure_it_is():
    html = what_if(STATE, KNOWN, EASY, MALLEABLE, ASSUMED_S).html()
    assert "run times of 1 of 2 jobs are learned from this cluster" in html
    assert "Of 1 job little is known: take times for a guess." in html
    assert "good: 400 tasks left; 50 took 1 s each" in html
    assert 'role="region" aria-label="When jobs end, rows"' in html, "many jobs are scrolled"
    assert "poor: 20 tasks left, as long as tasks of other jobs (1 s)" in html
    sure = [row("heat-1", 50, 50.0, closed=True), row("late-2", 5, 5.0, closed=True)]
    assert "a guess" not in what_if(STATE, sure, EASY, MALLEABLE, ASSUMED_S).html()


def test_what_is_told_of_the_outcome_is_made_once_and_with_it(monkeypatch):
    made, metrics = [], comparison.metrics
    monkeypatch.setattr(comparison, "metrics", lambda runs: made.append(runs) or metrics(runs))
    found = what_if(STATE, KNOWN, EASY, MALLEABLE, ASSUMED_S)
    assert len(made) == 1
    assert found.html() is found.html()
    assert len(made) == 1


def test_an_object_that_runs_is_not_simulated_and_that_is_said():
    custom = {"policy": f"mine:{EVIL}", "params": {}, "custom": True}
    found = what_if(STATE, KNOWN, custom, MALLEABLE, ASSUMED_S)
    assert list(found.runs) == ["pwma-fpsma, as chosen"]
    assert found.notes == (f"mine:{EVIL} is known to the cluster alone: it cannot be simulated here.",)
    assert "cannot be simulated here" in found.html()
    assert "<script" not in found.html()


def test_what_runs_and_cannot_be_simulated_is_named_and_what_is_chosen_is_predicted(monkeypatch):
    run = sim.simulate_from

    def failing(view, spec, **more):
        if spec["policy"] == "easy":
            raise ZeroDivisionError("by zero")
        return run(view, spec, **more)

    monkeypatch.setattr(sim, "simulate_from", failing)
    found = what_if(STATE, KNOWN, EASY, MALLEABLE, ASSUMED_S)
    assert list(found.runs) == ["pwma-fpsma, as chosen"]
    assert found.notes == ("easy cannot be simulated here: ZeroDivisionError: by zero.",)
    with pytest.raises(ZeroDivisionError):
        what_if(STATE, KNOWN, MALLEABLE, EASY, ASSUMED_S)


def test_progress_goes_up_from_run_to_run_and_can_end_it():
    shares = []
    what_if(STATE, KNOWN, EASY, MALLEABLE, ASSUMED_S, shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 0.5)

    def stop(share):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        what_if(STATE, KNOWN, EASY, MALLEABLE, ASSUMED_S, stop)


def test_without_jobs_there_is_nothing_to_go_on_from():
    with pytest.raises(WorkloadError, match="this cluster: no job runs or waits there"):
        what_if(ClusterSnapshot(now_s=0.0), [], EASY, MALLEABLE, ASSUMED_S)


def test_of_those_that_have_waited_longest_it_is_said_why_and_what_would_help():
    hog = job("hog", name=EVIL, kind="malleable", nodes=4, remaining_s=50.0, unfinished_tasks=0)
    late = [
        job(f"w{i}", state="pending", kind="rigid", nodes=0, start_nodes=2, min_nodes=2, max_nodes=2,
            start_s=None, submit_s=90.0 - i, unfinished_tasks=0)
        for i in range(5)
    ]  # fmt: skip
    found = what_if(view(hog, *late), [], EASY, MALLEABLE, ASSUMED_S)
    assert [one.job for one in found.waiting] == ["w4", "w3", "w2"]
    text = found.html()
    assert "Why jobs wait" in text
    assert EVIL not in text
    assert "starts at once: if &lt;script&gt;" in text
    assert "Why jobs wait" not in what_if(view(hog), [], EASY, MALLEABLE, ASSUMED_S).html()
