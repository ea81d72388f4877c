"""When jobs that share a cluster end: what one leaves goes to those that wait, then to those that run.

Rules of the file: pure; slots and seconds in, seconds out. Work is taken for a fluid (processor sharing;
Kleinrock 1976, section 4.4): each slot goes through one second of it a second. Slots that are free, or that a
job has too few tasks for, are shared evenly by those that may gain and have more tasks than slots, as lending
and growing do. Jobs that wait start in order, each as soon as it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: What is left of a job that has ended, for the rounding of sums.
_NOTHING_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A job: its work in seconds of one slot, the mean of its tasks, the slots that it has or waits for."""

    work_s: float
    task_s: float
    slots: float
    #: Whether it may use more than its own.
    gains: bool = True


def ends_s(running: Sequence[Share], waiting: Sequence[Share], idle: float) -> list[float]:
    """Seconds until each of the running jobs ends, in their order; `idle` slots are nobody's."""
    jobs = list(running)
    left = [max(0.0, job.work_s) for job in jobs]
    queue = list(waiting)
    ends = [0.0] * len(running)
    live = [i for i, work_s in enumerate(left) if work_s > _NOTHING_S]
    now_s = 0.0
    while any(i < len(running) for i in live):
        while queue and queue[0].slots <= idle:
            job = queue.pop(0)
            idle -= job.slots
            live.append(len(jobs))
            jobs.append(job)
            left.append(max(job.work_s, 2 * _NOTHING_S))
        rates = _rates([(jobs[i], left[i]) for i in live], idle)
        step_s = min(left[i] / rate for i, rate in zip(live, rates, strict=True))
        now_s += step_s
        still = []
        for i, rate in zip(live, rates, strict=True):
            left[i] -= rate * step_s
            if left[i] > _NOTHING_S:
                still.append(i)
                continue
            idle += jobs[i].slots
            if i < len(running):
                ends[i] = now_s
        live = still
    return ends


def _rates(live: list[tuple[Share, float]], idle: float) -> list[float]:
    """Slots that each job uses: its own as far as it has tasks for them, and its part of what is spare."""
    # the last tasks of a job run side by side on all that it has: at least one slot's worth counts
    most = [max(1.0, work_s / job.task_s) if job.task_s > 0 else job.slots for job, work_s in live]
    used = [max(min(job.slots, each), _NOTHING_S) for (job, _), each in zip(live, most, strict=True)]
    spare = idle + sum(max(0.0, job.slots - each) for (job, _), each in zip(live, used, strict=True))
    hungry = [i for i, (job, _) in enumerate(live) if job.gains and most[i] > used[i]]
    # the one that needs least first: what it leaves goes to the others
    for place, i in enumerate(sorted(hungry, key=lambda i: most[i] - used[i])):
        part = min(most[i] - used[i], spare / (len(hungry) - place))
        used[i] += part
        spare -= part
    return used
