"""When jobs that share a cluster end: what one leaves goes to those that wait, then to those that run.

Rules of the file: pure; slots and seconds in, seconds out. Work is taken for a fluid (processor sharing;
Kleinrock 1976, section 4.4): each slot goes through one second of it a second. Jobs that wait start in order,
each as soon as it fits; slots that are free, or that a job has too few tasks for, are lent (`rules.lending`).
Jobs that take turns have their slots together, and are served one after the other (`rules.fair.turns`).
Under a policy that resizes jobs (`jobs.habits`) what is free goes to those that may grow before it is lent,
to the smallest first, and the largest give what the first that waits lacks. Whom the policy would choose is
not known here; what they have together is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from dask_hpc_policies.jobs.habits import NONE, Habits
from dask_hpc_policies.rules.lending import Party, dealt
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
    #: Place in the order in which jobs that take turns are served; None: its slots are its own.
    turn: int | None = None
    #: Slots that it may be resized to; None: it is not.
    least: float | None = None
    most: float | None = None


def ends_s(
    running: Sequence[Share], waiting: Sequence[Share], idle: float, habits: Habits = NONE
) -> list[float]:
    """Seconds until each of the running jobs ends, in their order; `idle` slots are nobody's."""
    jobs = [*running, *waiting]
    left = [max(0.0, job.work_s) for job in running] + [max(job.work_s, 2 * _NOTHING_S) for job in waiting]
    own = [max(1, round(job.slots)) for job in jobs]
    queue = list(range(len(running), len(jobs)))
    ends = [0.0] * len(running)
    live = [i for i in range(len(jobs)) if left[i] > _NOTHING_S]
    used = [0] * len(jobs)
    in_turn = sorted([i for i in live if jobs[i].turn is not None], key=lambda i: jobs[i].turn or 0)
    # a node of theirs stays with them while any of them is left
    common = sum(own[i] for i in in_turn)
    now_s = 0.0
    while any(i < len(running) for i in live):
        idle = _resized(jobs, own, queue, live, idle, habits)
        waits = set(queue)
        parties = {i: _party(jobs[i], 0 if i in waits else own[i], left[i], used[i]) for i in live}
        spare = common
        for i in in_turn:
            parties[i] = replace(parties[i], own=min(parties[i].tasks, spare), ahead=0)
            spare -= parties[i].own
        rates = slots_of(list(parties.values()), int(idle + spare + _NOTHING_S))
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
            elif i in in_turn:
                in_turn.remove(i)
                if not in_turn:
                    idle, common = idle + common, 0
            else:
                idle += own[i]
            if i < len(running):
                ends[i] = now_s
        live = still
    return ends


def _resized(
    jobs: Sequence[Share], own: list[int], queue: list[int], live: Sequence[int], idle: float, habits: Habits
) -> float:
    """Start those of the `queue` that fit, and resize others; gives the slots that stay idle."""
    while queue:
        lacks = own[queue[0]] - int(idle + _NOTHING_S)
        if lacks > 0:
            able = [i for i in live if i not in queue and own[i] > _least(jobs[i], own[i])]
            least = [_least(jobs[i], own[i]) for i in able]
            spare = sum(own[i] for i in able) - sum(least) - lacks
            if not habits.makes_room or spare < 0:
                break
            room = [own[i] - n for i, n in zip(able, least, strict=True)]
            for i, n, more in zip(able, least, dealt(least, room, spare), strict=True):
                own[i] = n + more
            idle += lacks
        idle -= own[queue.pop(0)]
    if habits.grows and idle >= 1:
        able = [i for i in live if i not in queue and (jobs[i].most or 0) > own[i]]
        room = [int((jobs[i].most or 0) - own[i] + _NOTHING_S) for i in able]
        for i, more in zip(able, dealt([own[i] for i in able], room, int(idle)), strict=True):
            own[i] += more
            idle -= more
    return idle


def _least(job: Share, own: int) -> int:
    return own if job.least is None else min(own, max(1, ceil(job.least - _NOTHING_S)))


def _party(job: Share, own: int, left_s: float, used: int) -> Party:
    """The job on slots of its own; without any it waits."""
    # the last tasks of a job run side by side on all that it has: those that have begun go on
    tasks = ceil(left_s / job.task_s - _NOTHING_S) if job.task_s > 0 else max(1, own)
    return Party(
        own=own,
        tasks=max(1, tasks, used),
        borrows=job.gains if own else job.borrows,
        ahead=max(0, min(round(job.ahead * own), tasks - own)) if own else 0,
    )
