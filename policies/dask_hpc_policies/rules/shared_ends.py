"""When jobs that share a cluster end: what one leaves goes to those that wait, then to those that run.

Rules of the file: pure; slots and seconds in, seconds out. Work is taken for a fluid (processor sharing;
Kleinrock 1976, section 4.4): each slot goes through one second of it a second. Jobs that wait start in order,
each as soon as it fits; slots that are free, or that a job has too few tasks for, are lent (`rules.lending`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from dask_hpc_policies.rules.lending import Party
from dask_hpc_policies.rules.lending import slots as slots_of

#: What is left of a job that has ended, for the rounding of sums.
_NOTHING_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A job: its work in seconds of one slot, the mean of its tasks, the slots that it has or waits for."""

    work_s: float
    task_s: float
    slots: float
    #: Whether it may use more than its own; also while it has none yet.
    gains: bool = True
    borrows: bool = False
    #: Tasks sent to a slot of its own ahead of time (`Party.ahead`).
    ahead: float = 0.0


def ends_s(running: Sequence[Share], waiting: Sequence[Share], idle: float) -> list[float]:
    """Seconds until each of the running jobs ends, in their order; `idle` slots are nobody's."""
    jobs = [*running, *waiting]
    left = [max(0.0, job.work_s) for job in running] + [max(job.work_s, 2 * _NOTHING_S) for job in waiting]
    queue = list(range(len(running), len(jobs)))
    ends = [0.0] * len(running)
    live = [i for i in range(len(jobs)) if left[i] > _NOTHING_S]
    used = [0] * len(jobs)
    now_s = 0.0
    while any(i < len(running) for i in live):
        while queue and jobs[queue[0]].slots <= idle:
            idle -= jobs[queue.pop(0)].slots
        waits = set(queue)
        parties = [_party(jobs[i], left[i], used[i], i in waits) for i in live]
        rates = slots_of(parties, int(idle + _NOTHING_S))
        step_s = min(left[i] / rate for i, rate in zip(live, rates, strict=True) if rate)
        now_s += step_s
        still = []
        for i, rate in zip(live, rates, strict=True):
            left[i] -= rate * step_s
            used[i] = rate
            if left[i] > _NOTHING_S:
                still.append(i)
                continue
            if i in waits:
                queue.remove(i)
            else:
                idle += jobs[i].slots
            if i < len(running):
                ends[i] = now_s
        live = still
    return ends


def _party(job: Share, left_s: float, used: int, waits: bool) -> Party:
    own = 0 if waits else max(1, round(job.slots))
    # the last tasks of a job run side by side on all that it has: those that have begun go on
    tasks = ceil(left_s / job.task_s - _NOTHING_S) if job.task_s > 0 else own
    return Party(
        own=own,
        tasks=max(1, tasks, used),
        borrows=job.borrows if waits else job.gains,
        ahead=0 if waits else max(0, min(round(job.ahead * own), tasks - own)),
    )
