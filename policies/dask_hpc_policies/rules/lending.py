"""Who runs on slots that nobody fills: a rule for one task at a time, and what it comes to for many.

A slot is a thread of a node. A job fills those of its nodes first; what it has too few tasks for, and what
nodes of nobody have, is lent to who has more tasks than slots: to larger priorities, then to who has fewest
tasks on workers, then to who came first. So no slot is idle while a task could run on it (work conservation;
Kleinrock 1976, section 3.4), and nobody runs on fewer slots than of its own.

`turn` is the rule, which the scheduler asks for each slot that is idle. `slots` deals out all of them, as
asking again and again would: for forecasts and simulations, which know of no single task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil

from dask_hpc_policies.rules.fair.shares import common_level


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """A job with the slots of its nodes (0: it waits for nodes), and how many tasks could run at once."""

    own: int
    tasks: int
    priority: int = 0
    submit_s: float = 0.0
    #: Whether others may run on what it leaves, and whether it runs on what others leave.
    lends: bool = True
    borrows: bool = True
    #: Tasks sent ahead to its own nodes, which wait there behind those that run: they count as on workers.
    ahead: int = 0


def sent_ahead(threads: float, saturation: float | None) -> float:
    """Tasks that a node of so many threads is sent beyond those that it runs; None: stock queues nothing."""
    return 0.0 if saturation is None else max(0.0, max(1, ceil(threads * saturation)) - threads)


def turn(priority: int, on_workers: int, submit_s: float) -> tuple[int, int, float]:
    """The next slot goes to the job of which this is least; `on_workers` are its tasks that were sent."""
    return -priority, on_workers, submit_s


def slots(parties: Sequence[Party], idle: int) -> list[int]:
    """On how many slots each of them runs, its own and borrowed ones; `idle` slots are nobody's."""
    used = [min(one.own, one.tasks) for one in parties]
    spare = idle + sum(one.own - n for one, n in zip(parties, used, strict=True) if one.lends)
    able = [i for i, one in enumerate(parties) if one.borrows and one.tasks > used[i]]
    able.sort(key=lambda i: turn(parties[i].priority, 0, parties[i].submit_s))
    for _, group in groupby(able, key=lambda i: parties[i].priority):
        if spare <= 0:
            break
        equals = list(group)
        sent = [used[i] + parties[i].ahead for i in equals]
        room = [parties[i].tasks - used[i] for i in equals]
        for i, more in zip(equals, dealt(sent, room, spare), strict=True):
            used[i] += more
            spare -= more
    return used


def dealt(sent: Sequence[int], room: Sequence[int], spare: int) -> list[int]:
    """What each gets of `spare` beside the `sent` that it has, at most its `room`.

    Who has fewest is next, of equal ones the first.
    """
    if spare >= sum(room):
        return list(room)
    most = [n + more for n, more in zip(sent, room, strict=True)]
    level = int(common_level(sent, most, [1.0] * len(sent), sum(sent) + spare))
    got = [min(max(level - n, 0), more) for n, more in zip(sent, room, strict=True)]
    left = spare - sum(got)
    for i, n in enumerate(sent):
        if left > 0 and n + got[i] == level and got[i] < room[i]:
            got[i] += 1
            left -= 1
    return got
