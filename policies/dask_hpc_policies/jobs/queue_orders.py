"""Orders in which jobs are served, by name: an open table.

Rules of the file: an order is a sort key of what was asked for a job, so that a job's place does not change
while it waits. Smaller is served first, equal ones in order of submission. The live scheduler and the
simulator both list the jobs of a snapshot by `in_order` or `place`; in the simulator jobs that failed or were
robbed come before all others, in the same order among themselves. What a policy then makes of the order is
its own affair: see the orders of `rules.backfilling`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.params import suggestion

Key = Callable[[JobRequest], Any]
J = TypeVar("J", bound=JobRequest)

#: First come, first served, larger priorities first: the order unless another one is named.
FCFS = "fcfs"
#: The sort keys by name; see `register`.
QUEUE_ORDERS: dict[str, Key] = {FCFS: lambda job: -job.priority}


def register(name: str, key: Key) -> None:
    """Add an order to the table.

    Parameters
    ----------
    name
        Lower case, with hyphens.
    key
        Gives values that can be compared with each other, and the same for a job at any time.

    Raises
    ------
    ValueError
        When the name is taken.
    """
    if QUEUE_ORDERS.setdefault(name, key) is not key:
        raise ValueError(f"queue order {name!r} is there already; choose another name")


def place(job: JobRequest, order: str = FCFS) -> Any:
    """Where a job stands in the queue; smaller is served first.

    Raises
    ------
    ValueError
        When no order has that name.
    """
    return _key(order)(job)


def in_order(jobs: Iterable[J], order: str = FCFS) -> list[J]:
    """`jobs`, given in order of submission, as they are served.

    Raises
    ------
    ValueError
        When no order has that name.
    """
    return sorted(jobs, key=_key(order))


def _key(order: str) -> Key:
    key = QUEUE_ORDERS.get(order)
    if key is None:
        known = ", ".join(QUEUE_ORDERS)
        raise ValueError(
            f"unknown queue order {order!r}; orders are {known}{suggestion(order, QUEUE_ORDERS)}"
        )
    return key
