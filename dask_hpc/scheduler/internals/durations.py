"""Reads what Dask knows of how long tasks take, and workers say of each. Changes nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix, TaskState

    from dask_hpc.scheduler.internals.allotment import Lane

#: Actions of a worker's report, besides transfers, that count as communication.
_STORAGE = frozenset({"deserialize", "disk-read", "disk-write"})


def usual(ts: TaskState) -> tuple[str, float | None]:
    """Name of the task's kind, and how many seconds such tasks took lately; None when none has ended yet."""
    kind = ts.prefix
    seconds = kind.duration_average  # `of_kind`, written out: this runs for every task
    return kind.name, seconds if seconds >= 0 else None


def of_kind(kind: TaskPrefix) -> float | None:
    """How many seconds tasks of a kind took lately; None when none has ended yet."""
    return kind.duration_average if kind.duration_average >= 0 else None


def remembered_s(kind: TaskPrefix) -> float | None:
    """The same; where Dask has forgotten that, since one takes twice as long, what all took in the mean."""
    if kind.duration_average >= 0:
        return kind.duration_average
    ended = kind.state_counts["memory"]
    return kind.all_durations["compute"] / ended if ended else None


def expected_s(scheduler: Scheduler, kind: TaskPrefix) -> float:
    """The same; what stock assumes when none has ended yet.

    What executes says nothing of it: tasks of one name may be another job's, and have little in common.
    """
    seconds = remembered_s(kind)
    return scheduler.UNKNOWN_TASK_DURATION if seconds is None else seconds


def learned_task_s(tasks: Iterable[TaskState]) -> float | None:
    """How long these tasks take each, on average, going by earlier ones of their names or the configuration.

    None when nothing is known of any of them; of the others it is left open.
    """
    known = [seconds for ts in tasks if ts.prefix and (seconds := of_kind(ts.prefix)) is not None]
    return sum(known) / len(known) if known else None


def executing_s(scheduler: Scheduler, owner: Mapping[Any, Lane[Any]]) -> dict[Any, float]:
    """For how long the longest task of each job has been executed, by what workers said last.

    Tasks that have left their thread do not count: they may only wait.
    """
    found: dict[Any, float] = {}
    for ws in scheduler.workers.values():
        for ts, seconds in ws.executing.items():
            lane = owner.get(ts.key)
            # what has ended since is gone from there with the next word of the worker
            if lane is not None and ts in ws.processing and ts not in ws.long_running:
                found[lane.job] = max(seconds, found.get(lane.job, 0.0))
    return found


def spent_s(
    scheduler: Scheduler, keys: Iterable[Any], spared: Iterable[Any], most: int
) -> tuple[float, bool]:
    """Seconds that have gone into `keys` and what they are made from, and whether all of that was looked at.

    What has been computed counts as long as tasks of its kind take lately; what executes, as long as its
    worker has said.

    Parameters
    ----------
    keys
        Each once; the first are looked at first.
    spared
        Keys that do not count, nor does what only they are made from.
    most
        Tasks that are looked at, at most; each costs less than a microsecond.
    """
    seen = set(spared)
    # by distance from `keys`, all of one distance at once: that is faster than one task after the other
    known = filter(None, map(scheduler.tasks.get, filterfalse(seen.__contains__, keys)))
    layer: list[TaskState] = list(islice(known, most + 1))
    done: list[TaskPrefix] = []
    under_way_s, whole = 0.0, True
    while layer and whole:
        whole = len(layer) <= most
        looked = layer[:most]
        most -= len(looked)
        done += [ts.prefix for ts in looked if ts.who_has]
        for ts in [ts for ts in looked if not ts.who_has]:
            if ts.processing_on is not None:
                under_way_s += ts.processing_on.executing.get(ts, 0.0)
            elif ts.run_id is not None and ts.state == "released":
                # stock keeps what something depends on; what never ran was not needed
                done.append(ts.prefix)
        below = [ts.dependencies for ts in looked if ts.dependencies]
        if below:
            seen.update([ts.key for ts in looked])
        layer = list({dts.key: dts for some in below for dts in some if dts.key not in seen}.values())
    usual_s = sum(count * (of_kind(kind) or 0.0) for kind, count in Counter(done).items())
    return under_way_s + usual_s, whole


def taken_s(startstops: Sequence[Mapping[str, Any]]) -> float:
    """Seconds that one task took, from its worker's report (`spent`). Runs for every task."""
    if len(startstops) == 1 and (row := startstops[0])["action"] == "compute":  # most tasks
        seconds: float = row["stop"] - row["start"]
        return seconds if seconds > 0.0 else 0.0
    return sum(spent(startstops))


def spent(startstops: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds that one task spent in communication and in computation, from its worker's report.

    Communication is ``transfer`` (fetching what it depends on; transfers at the same time count once),
    ``deserialize``, ``disk-read`` and ``disk-write`` (spilled data).
    """
    comm_s = compute_s = 0.0
    transfers: list[tuple[float, float]] = []
    for row in startstops:
        start_s, stop_s = row["start"], row["stop"]
        if stop_s <= start_s:  # clocks of workers may be set back
            continue
        action = row["action"]
        if action == "compute":
            compute_s += stop_s - start_s
        elif action == "transfer":
            transfers.append((start_s, stop_s))
        elif action in _STORAGE:
            comm_s += stop_s - start_s
    # rows are nearly in the order in which they ended, which is not enough
    transfers.sort()
    reach_s = -math.inf
    for start_s, stop_s in transfers:
        if stop_s > reach_s:
            comm_s += stop_s - max(start_s, reach_s)
            reach_s = stop_s
    return comm_s, compute_s
