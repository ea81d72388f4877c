"""Reads what Dask knows of how long tasks take. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix, TaskState


def usual(ts: TaskState) -> tuple[str, float | None]:
    """Name of the task's kind, and how many seconds such tasks took lately; None when none has ended yet."""
    return ts.prefix.name, of_kind(ts.prefix)


def of_kind(kind: TaskPrefix) -> float | None:
    """How many seconds tasks of a kind took lately; None when none has ended yet."""
    return kind.duration_average if kind.duration_average >= 0 else None


def expected_s(scheduler: Scheduler, kind: TaskPrefix) -> float:
    """The same; what stock assumes when none has ended yet."""
    return scheduler._get_prefix_duration(kind)


def learned_task_s(tasks: Iterable[TaskState]) -> float | None:
    """How long these tasks take each, on average, going by earlier ones of their names or the configuration.

    None when nothing is known of any of them; of the others it is left open.
    """
    known = [seconds for ts in tasks if ts.prefix and (seconds := of_kind(ts.prefix)) is not None]
    return sum(known) / len(known) if known else None
