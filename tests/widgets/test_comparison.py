"""Runs side by side: the numbers are right, a word stands beside each difference, names are text."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_hpc.sim import Machine, Options, Result, Workload
from dask_hpc.sim.engine.table import Counts
from dask_hpc_policies.metrics import JobRun
from dask_hpc_widgets import comparison
from dask_hpc_widgets.comparison import _METRICS, _difference

EVIL = "<script>alert('x')</script>\"&"


def ran(id, submit_s, start_s, end_s, nodes=2, **more):
    held = () if start_s is None else ((start_s, nodes), *(() if end_s is None else ((end_s, 0),)))
    return JobRun(id=id, submit_s=submit_s, start_s=start_s, end_s=end_s, nodes=held, **more)


def result(*runs, nodes=4, from_s=None, notes=()):
    return Result(
        workload=Workload(name="test", jobs=(), notes=notes),
        machine=Machine(nodes=nodes),
        policy={"policy": "fcfs"},
        options=Options(),
        runs=runs,
        rows=(),
        counts=Counts(),
        refusals=(),
        from_s=from_s,
    )


def rows(html):
    """The cells of each row of a table, as text, the heading first."""
    found = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in found]
    return [[unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in cells]


#: Two jobs one after the other on two of four nodes, and side by side on all of them.
AFTER = result(ran("a", 0, 0, 100), ran("b", 0, 100, 200))
BESIDE = result(ran("a", 0, 0, 100), ran("b", 0, 0, 100, expansions=3, shrinks=1))


def test_each_metric_of_each_run_with_the_difference_from_the_first():
    head, *body = rows(comparison.metrics({"after": AFTER, "beside": BESIDE}))
    assert head == ["Metric", "after", "beside"]
    assert body == [
        ["Makespan", "3.33 min", "100 s (-50.0 %, better)"],
        ["Mean turnaround", "2.5 min", "100 s (-33.3 %, better)"],
        ["Mean wait", "50 s", "0 s (-100.0 %, better)"],
        ["Mean bounded slowdown", "1.5", "1 (-33.3 %, better)"],
        ["Utilization", "50.0 %", "100.0 % (+50.0 points, better)"],
        ["Expansions", "0", "3 (3 more)"],
        ["Shrinks", "0", "1 (1 more)"],
    ]


def test_the_first_run_is_the_measure():
    _, *body = rows(comparison.metrics({"beside": BESIDE, "after": AFTER, "again": BESIDE}))
    assert {label: (one, two) for label, _, one, two in body} == {
        "Makespan": ("3.33 min (+100.0 %, worse)", "100 s (same)"),
        "Mean turnaround": ("2.5 min (+50.0 %, worse)", "100 s (same)"),
        # from none there is no percentage
        "Mean wait": ("50 s (worse)", "0 s (same)"),
        "Mean bounded slowdown": ("1.5 (+50.0 %, worse)", "1 (same)"),
        "Utilization": ("50.0 % (-50.0 points, worse)", "100.0 % (same)"),
        "Expansions": ("0 (3 fewer)", "3 (same)"),
        "Shrinks": ("0 (1 fewer)", "1 (same)"),
    }


def test_what_a_run_does_not_have_is_not_available():
    never = result(ran("a", 0, None, None, state="pending"))
    _, *body = rows(comparison.metrics({"never": never, "after": AFTER}))
    assert ["Makespan", "n/a", "3.33 min"] in body
    assert not [row for row in rows(comparison.metrics({"never": never})) if row[0] == "Makespan"]


def test_times_of_other_jobs_are_not_compared():
    stuck = result(ran("a", 0, 0, 100), ran("b", 0, None, None, state="pending"))
    _, *body = rows(comparison.metrics({"after": AFTER, "stuck": stuck}))
    assert body[:3] == [
        ["Jobs that never end", "0", "1 (worse)"],
        ["Makespan", "3.33 min", "100 s (same over the 1 job that ends in both)"],
        ["Mean turnaround", "2.5 min", "100 s (same over the 1 job that ends in both)"],
    ]


def test_runs_that_leave_other_jobs_are_compared_over_those_that_end_in_both():
    # the short one waits for ever under the one, the long one under the other
    long = result(ran("a", 0, 0, 100), ran("b", 0, 0, 900), ran("c", 0, None, None, state="pending"))
    short = result(ran("a", 0, 0, 110), ran("b", 0, None, None, state="pending"), ran("c", 0, 0, 10))
    found = {row[0]: row[2] for row in rows(comparison.metrics({"long": long, "short": short}))}
    assert found["Jobs that never end"] == "1 (same)"
    # a mean of 60 s is no gain over one of 500 s
    assert found["Mean turnaround"] == "60 s (+10.0 %, worse over the 1 job that ends in both)"
    other = result(ran("a", 0, None, None), ran("b", 0, 0, 1), ran("c", 0, 0, 10))
    only = result(ran("a", 0, 0, 1), ran("b", 0, None, None), ran("c", 0, None, None))
    found = {row[0]: row[2] for row in rows(comparison.metrics({"only": only, "other": other}))}
    assert found["Mean turnaround"] == "5.5 s (of other jobs)"


def test_large_numbers_are_written_out():
    waited = result(ran("a", 0, 98_765, 98_775, expansions=1_234))
    _, *body = rows(comparison.metrics({"x": waited}))
    assert ["Mean bounded slowdown", "9,878"] in body
    assert ["Expansions", "1,234"] in body


def test_when_each_job_ends():
    stuck = result(ran("b", 0, 0, 150), ran("a", 0, None, None, state="pending"))
    head, *body = rows(comparison.jobs({"after": AFTER, "beside": BESIDE, "stuck": stuck}, {}))
    assert head == ["Job", "Ends, after", "Ends, beside", "Ends, stuck"]
    assert body == [
        ["A a", "in 100 s", "in 100 s (same)", "never"],
        ["B b", "in 3.33 min", "in 100 s (100 s sooner)", "in 2.5 min (50 s sooner)"],
    ]
    _, first, _ = rows(comparison.jobs({"stuck": stuck, "after": AFTER}, {}))
    assert first == ["A b", "in 2.5 min", "in 3.33 min (50 s later)"]
    *_, last = rows(comparison.jobs({"stuck": stuck, "after": AFTER}, {}))
    assert last == ["B a", "never", "in 100 s"]


@pytest.mark.parametrize(("from_s", "text"), [(None, "in 30 s"), (1e6 + 20, "in 10 s")])
def test_ends_count_from_the_picture_or_else_from_the_first_submission(from_s, text):
    one = result(ran("a", 1e6, 1e6, 1e6 + 30), from_s=from_s)
    assert rows(comparison.jobs({"x": one}, {}))[1] == ["A a", text]


def test_what_is_known_of_a_job_has_a_column_when_there_is_any():
    head, first, second = rows(comparison.jobs({"x": AFTER}, {"a": "good: counted"}))
    assert head == ["Job", "Ends, x", "Known from"]
    assert [first[2], second[2]] == ["good: counted", ""]


def test_jobs_beyond_fifty_are_counted():
    many = result(*(ran(f"j{i}", 0, 0, 10) for i in range(53)))
    html = comparison.jobs({"x": many}, {})
    assert len(rows(html)) == 51
    assert "3 more jobs not shown." in html
    assert "not shown" not in comparison.jobs({"x": AFTER}, {})


def test_jobs_that_differ_most_come_first_and_the_others_are_counted():
    one = result(*(ran(f"j{i}", 0, 0, 100) for i in range(20)), ran("stuck", 0, None, None))
    other = result(*(ran(f"j{i}", 0, 0, 100 + max(0, i - 4)) for i in range(20)), ran("stuck", 0, 0, 1))
    html = comparison.differing({"one": one, "other": other})
    # 0.5 s of 100 and less is none; what ends in one run alone differs most
    assert "16 jobs of 21 end at different times." in html
    names = [row[0].split()[-1] for row in rows(html)[1:]]
    assert names == ["stuck", *(f"j{i}" for i in range(19, 8, -1))]
    assert "All 21 jobs end alike." in comparison.differing({"one": one, "again": one})


def test_many_times_as_long_is_said_in_words():
    short, long = result(ran("a", 0, 10, 20)), result(ran("a", 0, 520, 530))
    (wait,) = [row for row in rows(comparison.metrics({"x": short, "y": long})) if row[0] == "Mean wait"]
    assert wait[2] == "8.67 min (52 times as long, worse)"


def test_what_users_name_is_text_and_never_markup():
    evil = result(ran(EVIL, 0, 0, 10, name=f"{EVIL}2"))
    for html in (comparison.metrics({EVIL: evil}), comparison.jobs({EVIL: evil}, {EVIL: EVIL})):
        assert "<script" not in html
        assert EVIL in " ".join(" ".join(row) for row in rows(html))


def test_a_name_stands_before_the_id_unless_it_is_the_id():
    one = result(ran("heat-1", 0, 0, 10, name="heat"), ran("solo", 0, 0, 10, name="solo"))
    assert [row[0] for row in rows(comparison.jobs({"x": one}, {}))[1:]] == ["A heat heat-1", "B solo"]


def test_notes_are_said_once():
    one, two = result(notes=("dropped 3", "clipped")), result(notes=("clipped", "other"))
    assert comparison.any_note([one, two]) == ["dropped 3", "clipped", "other"]


values = st.floats(0, 1e9) | st.sampled_from([0.0, 1.0])


@given(st.sampled_from(_METRICS), values, values)
@example(_METRICS[0], 0.0, 0.0)
@example(_METRICS[0], 1000.0, 1004.9)
@example(_METRICS[0], 1000.0, 1006.0)
def test_the_word_and_the_number_say_the_same(one, first, value):
    text = _difference(one, first, value)
    near = abs(value - first) <= 0.005 * first
    assert (text == "same") == near
    if near:
        return
    if one.less_is_better is None:
        assert text.endswith("more" if value > first else "fewer")
    else:
        assert text.endswith("better" if (value < first) == one.less_is_better else "worse")
    signs = re.findall(r"^([+-])", text)
    assert signs in ([], ["+" if value > first else "-"])
