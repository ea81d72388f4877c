"""Who submits what and when in the scenarios of `pays_off`: users, times, work.

Jobs are given with their work in node-seconds: what an expert who knows everything goes by when setting
priorities on stock Dask (shortest first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import shapes

from dask_hpc.demo.users import Submission

#: Worker processes with one thread each.
NODES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One job of a scenario."""

    user: str
    name: str
    at_s: float
    shape: Callable[..., Any]
    tasks: int
    task_s: float

    @property
    def work_node_s(self) -> float:
        """Seconds that its tasks take, all together."""
        return self.tasks * self.task_s

    def scaled(self, scale: float) -> Arrival:
        """The same in so much shorter a time: as many tasks, each shorter."""
        return replace(self, at_s=self.at_s * scale, task_s=self.task_s * scale)

    def arriving(self, at_s: float) -> Arrival:
        """The same at another time."""
        return replace(self, at_s=at_s)


def submissions(arrivals: Sequence[Arrival]) -> list[Submission]:
    """What the driver takes; the priority is that of shortest job first."""
    return [
        Submission(
            user=arrival.user,
            name=arrival.name,
            at_s=arrival.at_s,
            submit=partial(arrival.shape, tasks=arrival.tasks, task_s=arrival.task_s),
            priority=-round(1000 * arrival.work_node_s),
        )
        for arrival in arrivals
    ]


def _arrival(user: str, at_s: float, shape: Callable[..., Any], tasks: int, task_s: float) -> Arrival:
    name = f"{user}-{at_s:g}"
    return Arrival(user=user, name=name, at_s=at_s, shape=shape, tasks=tasks, task_s=task_s)


#: The workload `three-users` of the simulator, in tasks of half a second.
THREE_USERS = tuple(
    _arrival(user, at_s, shapes.sleeps, tasks, 0.5)
    for user, at_s, tasks in (
        ("ada", 0.0, 312), ("bob", 4.0, 24), ("eve", 6.0, 12), ("eve", 12.0, 12), ("eve", 18.0, 12)
    )
)  # fmt: skip

#: A job that uses one node at a time, then one that could use all.
CHAIN_AND_WIDE = (
    _arrival("chain", 0.0, shapes.chain, 8, 2.0),
    _arrival("wide", 1.0, shapes.sleeps, 120, 0.5),
)

#: Six equal jobs, and a short question of a seventh user.
SEVEN_USERS = (
    *(_arrival(user, 0.3 * number, shapes.sleeps, 44, 0.5) for number, user in enumerate("abcdef")),
    _arrival("question", 2.0, shapes.sleeps, 12, 0.2),
)
