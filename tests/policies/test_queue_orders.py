"""Orders of service: what both bodies sort by, and that the table is open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dask_hpc_policies.jobs.queue_orders import QUEUE_ORDERS, in_order, place, register
from dask_hpc_policies.model import JobRequest, JobView


def job(id: str, priority: int = 0, submit_s: float = 0.0, deadline_s: float | None = None) -> JobView:
    return JobView(id=id, priority=priority, submit_s=submit_s, deadline_s=deadline_s)


@pytest.fixture
def earliest_deadline() -> Iterator[str]:
    register("earliest-deadline", _due_s)
    yield "earliest-deadline"
    del QUEUE_ORDERS["earliest-deadline"]


def _due_s(job: JobRequest) -> float:
    return job.submit_s + (float("inf") if job.deadline_s is None else job.deadline_s)


def test_larger_priorities_are_served_first_and_equal_ones_as_they_came() -> None:
    jobs = [job("a"), job("b", 2), job("c"), job("d", 2), job("e", -1)]
    assert [one.id for one in in_order(jobs)] == ["b", "d", "a", "c", "e"]
    assert place(jobs[1]) < place(jobs[0]) == place(jobs[2]) < place(jobs[4])


def test_others_can_add_orders(earliest_deadline: str) -> None:
    jobs = [job("none"), job("late", submit_s=0, deadline_s=50), job("soon", 9, submit_s=20, deadline_s=10)]
    assert [one.id for one in in_order(jobs, earliest_deadline)] == ["soon", "late", "none"]
    register(earliest_deadline, _due_s)
    with pytest.raises(ValueError, match="'fcfs' is there already"):
        register("fcfs", _due_s)
    with pytest.raises(ValueError, match=r"unknown queue order 'fifo'; orders are fcfs, earliest-deadline"):
        in_order(jobs, "fifo")
    with pytest.raises(ValueError, match="did you mean 'earliest-deadline'"):
        place(jobs[0], "earliest-deadlines")
