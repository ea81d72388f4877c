"""The chart of jobs draws sizes over time: nothing that is not known, and nothing outside of its bounds."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.scheduler.dashboard.chart import MAX_ROWS, chart

WAITS = "none: it waits"


def job(id="heat-1", submit_s=10.0, start_s=20.0, end_s=None, sizes=((20.0, 2),)):
    return SimpleNamespace(
        id=id, name=id.rpartition("-")[0], submit_s=submit_s, start_s=start_s, end_s=end_s, sizes=sizes
    )


def drawn(active, ended=(), now_s=60.0):
    """Stretches by job: ``(left, right, nodes)``."""
    columns = chart(active, ended, now_s, 100.0).columns
    found = {}
    bars = zip(*(columns[name] for name in ("job", "left", "right", "nodes")), strict=True)
    for name, left, right, nodes in bars:
        found.setdefault(name, []).append((left, right, nodes))
    return found


def test_a_job_is_drawn_from_its_submission_to_its_end():
    ended = job(end_s=50.0, sizes=((20.0, 2), (30.0, 4), (50.0, 0)))
    bars = [(-50, -40, WAITS), (-40, -30, "2"), (-30, -10, "4")]
    assert drawn([], [ended]) == {"A heat-1": bars}
    # what leaves the window is cut, then left out
    assert drawn([], [ended], 125.0) == {"A heat-1": [(-100, -95, "2"), (-95, -75, "4")]}
    assert drawn([], [ended], 150.0) == {}
    running = job(sizes=((20.0, 2), (30.0, 0), (40.0, 1)))
    bars = [(-50, -40, WAITS), (-40, -30, "2"), (-30, -20, WAITS), (-20, 0, "1")]
    assert drawn([running]) == {"A heat-1": bars}
    waiting = job("late-3", 30.0, None, sizes=())
    assert drawn([waiting]) == {"C late-3": [(-30, 0, WAITS)]}


def test_sizes_that_are_no_longer_known_are_not_made_up():
    # it started at 20 s; the first change that is remembered is of 40 s
    assert drawn([job(sizes=((40.0, 3),))]) == {"A heat-1": [(-50, -40, WAITS), (-20, 0, "3")]}


def test_a_job_that_was_withdrawn_before_it_was_queued_is_left_out():
    withdrawn, earlier = job("late-3", end_s=None), job(end_s=50.0, sizes=((20.0, 2), (50.0, 0)))
    assert list(drawn([], [withdrawn, earlier])) == ["A heat-1"]


def test_more_jobs_than_fit_are_counted_active_ones_first():
    active = [job(f"j-{i}") for i in range(3, MAX_ROWS + 2)]
    ended = [job(f"j-{i}", end_s=50.0 - i, sizes=((20.0, 1), (50.0 - i, 0))) for i in (1, 2)]
    found = chart(active, ended, 60.0, 100.0)
    assert found.hidden == 1
    assert len(found.labels) == MAX_ROWS
    assert found.labels[0] == "C j"
    assert found.labels[-1] == "A j"


@given(
    st.lists(
        st.builds(
            job,
            id=st.text(max_size=30),
            submit_s=st.floats(-200, 60),
            start_s=st.none() | st.floats(-200, 60),
            end_s=st.none() | st.floats(-200, 60),
            sizes=st.lists(st.tuples(st.floats(-200, 60), st.integers(0, 9)), max_size=5).map(sorted),
        ),
        max_size=20,
    )
)
def test_whatever_is_drawn_is_inside_of_the_chart(jobs):
    found = chart(jobs, jobs, 60.0, 100.0)
    columns = found.columns
    assert {len(column) for column in columns.values()} == {len(columns["left"])}
    rows = len(found.labels)
    for left, right, bottom, top in zip(
        *(columns[n] for n in ("left", "right", "bottom", "top")), strict=True
    ):
        assert -100 <= left <= right <= 0
        assert 0 <= top < bottom <= rows
    assert all(len(label) <= 20 for label in found.labels)
