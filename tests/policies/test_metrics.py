"""Metrics on hand-computed runs."""

from __future__ import annotations

import json

import pytest

from dask_hpc_policies.metrics import JobRun, ended_in_all, mean_bounded_slowdown, summarize, utilization

#: Figure 5.1 of the source under FCFS on 10 nodes: starts 0, 4, 4, 8, each runs 4.
FIGURE = [
    JobRun(id=f"J{i}", submit_s=0.0, start_s=s, end_s=s + 4.0, nodes=((s, n), (s + 4.0, 0)))
    for i, (s, n) in enumerate(((0.0, 8), (4.0, 4), (4.0, 2), (8.0, 8)), start=1)
]


def test_figure_by_hand() -> None:
    summary = summarize(FIGURE, 10)
    assert summary["makespan_s"] == 12
    assert summary["mean_wait_s"] == 4
    assert summary["mean_turnaround_s"] == 8
    assert summary["utilization"] == pytest.approx((8 + 4 + 2 + 8) * 4 / 120)
    assert summary["throughput_per_h"] == 4 / 12 * 3600
    assert summary["jobs"][1]["nodes"] == [[4.0, 4], [8.0, 0]]
    json.dumps(summary, allow_nan=False)


def test_bounded_slowdown_counts_short_runtimes_as_ten_seconds_and_is_at_least_one() -> None:
    short = JobRun(id="a", submit_s=0.0, start_s=19.0, end_s=20.0)
    long = JobRun(id="b", submit_s=0.0, start_s=60.0, end_s=100.0)
    at_once = JobRun(id="c", submit_s=0.0, start_s=0.0, end_s=1.0)
    assert [r.bounded_slowdown for r in (short, long, at_once)] == [2.0, 2.5, 1.0]
    assert mean_bounded_slowdown((short, long, at_once)) == pytest.approx(5.5 / 3)


def test_95_percent_of_the_jobs_had_their_results_within_the_percentile() -> None:
    runs = [JobRun(id=str(s), submit_s=0.0, start_s=0.0, end_s=float(s)) for s in range(100, 0, -1)]
    assert summarize(runs, 1)["p95_turnaround_s"] == 95
    assert summarize(runs[-19:], 1)["p95_turnaround_s"] == 19
    assert summarize([], 1)["p95_turnaround_s"] is None


def test_utilization_follows_resizes_and_a_pool_that_changes() -> None:
    run = JobRun(id="a", submit_s=0.0, start_s=0.0, end_s=10.0, nodes=((0.0, 2), (5.0, 4), (10.0, 0)))
    assert utilization([run], 4) == pytest.approx(30 / 40)
    assert utilization([run], [(-3.0, 2), (5.0, 8)]) == pytest.approx(30 / (10 + 40))


def test_jobs_that_did_not_start_or_end_do_not_enter_the_means() -> None:
    waiting = JobRun(id="w", submit_s=1.0, state="pending")
    cancelled = JobRun(id="c", submit_s=1.0, end_s=99.0, state="cancelled")
    summary = summarize([*FIGURE, waiting, cancelled], 10)
    assert summary["makespan_s"] == 12
    assert summary["mean_wait_s"] == 4
    assert summary["cancelled"] == 1
    empty = summarize([waiting], 10)
    assert empty["makespan_s"] is None
    assert empty["utilization"] is None


def test_what_is_compared_over_are_the_jobs_that_started_and_ended_in_every_run() -> None:
    def ran(id: str, start_s: float | None, end_s: float | None) -> JobRun:
        return JobRun(id=id, submit_s=0, start_s=start_s, end_s=end_s)

    one = [ran("a", 0, 1), ran("b", 0, None), ran("c", 0, 9), ran("d", None, 5)]
    other = [ran("d", 0, 1), ran("c", 0, 2), ran("b", 0, 2), ran("a", 0, 3)]
    assert ended_in_all([one, other]) == ((one[0], one[2]), (other[1], other[3]))
    assert ended_in_all([one]) == ((one[0], one[2]),)
    assert ended_in_all([]) == ()


def test_means_are_rounded_once_so_that_every_python_gives_the_same() -> None:
    runs = [JobRun(id=str(i), submit_s=0.0, start_s=0.1, end_s=30.0) for i in range(10)]
    # added one by one, as Python 3.11 does, they are 0.9999999999999999
    assert summarize(runs, 10)["mean_wait_s"] == 0.1
