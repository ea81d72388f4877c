"""Who submits what and when in the scenarios of `pays_off`: users, times, work.

Jobs are given with their work in node-seconds: what an expert who knows everything goes by when setting
priorities on stock Dask (shortest first).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import shapes
from machine import SEED

from dask_hpc.demo.users import Submission
from dask_hpc.sim.generators.toys import three_users

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

    def scaled(self, scale: float, tasks: int) -> Arrival:
        """The same in so much shorter a time, with at most so many tasks."""
        return replace(
            self,
            at_s=self.at_s * scale,
            task_s=self.task_s * scale,
            tasks=min(self.tasks, tasks),
        )

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
    _arrival(job.user, job.submit_s, shapes.sleeps, round(job.runtime_s * NODES / 0.5), 0.5)
    for job in three_users(seed=0).jobs
)

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

#: What is asked again and again beside a backlog: six tasks of 0.1 s.
_QUESTION_TASKS, _QUESTION_TASK_S = 6, 0.1


def _question(user: str, at_s: float) -> Arrival:
    return _arrival(user, at_s, shapes.sleeps, _QUESTION_TASKS, _QUESTION_TASK_S)


#: Users of the backlog scenarios: the questions on an empty cluster, and the backlog.
ALONE, BACKLOG = "alone", "backlog"
_BESIDE = (
    *(_question(ALONE, 0.8 * number) for number in range(4)),
    _arrival(BACKLOG, 4.0, shapes.sleeps, 4000, 0.05),
)

#: One user asks every five seconds while 4,000 tasks wait.
INTERACTIVE = (*_BESIDE, *(_question("asks", at_s) for at_s in (8.0, 13.0, 18.0, 23.0, 28.0)))


def _several(users: int, times_s: Sequence[float], within_s: float) -> tuple[Arrival, ...]:
    """Each user asks at a random moment after each of the times."""
    chance = random.Random(SEED)
    return tuple(
        _question(f"user{user}", round(at_s + chance.uniform(0, within_s), 2))
        for at_s in times_s
        for user in range(users)
    )


#: Ten users ask within two seconds, three times while 4,000 tasks wait.
TEN_INTERACTIVE = (*_BESIDE, *_several(10, (8.0, 15.0, 22.0), 2.0))

# ----- shapes that Dask users run; about 80 node-seconds each

#: All at once.
ARRAYS = tuple(
    _arrival(user, 0.0, shapes.array, tasks, 0.25)
    for user, tasks in (("ada", 160), ("bob", 96), ("eve", 48), ("dan", 24))
)

#: A long job first, then short ones.
DATAFRAMES = tuple(
    _arrival(user, at_s, shapes.dataframe, tasks, 0.3)
    for user, at_s, tasks in (
        ("ada", 0.0, 200), ("bob", 2.0, 24), ("eve", 3.0, 12), ("dan", 6.0, 24), ("fay", 8.0, 12)
    )
)  # fmt: skip

#: Two bursts of three users.
LEARNING = tuple(
    _arrival(user, at_s, shapes.learning, tasks, 0.3)
    for at_s, burst in (
        (0.0, (("ada", 96), ("bob", 48), ("eve", 24))), (6.0, (("dan", 60), ("fay", 24), ("gus", 12)))
    )
    for user, tasks in burst
)  # fmt: skip


def _studies(jobs: int, load: float) -> tuple[Arrival, ...]:
    """Random arrivals of four users; sizes that differ tenfold, half of the jobs compute a little.

    They bring so many times what the nodes can do, in the mean. Above 1, jobs that came before are still
    there: at 0.85 stock took no longer than with an oracle's priorities, for hardly any two of them met.
    """
    chance = random.Random(SEED)
    at_s, fewest, task_s = 0.0, 8, 0.25
    # the sizes are spread evenly over their logarithms
    mean_work_node_s = task_s * fewest * 9 / math.log(10)
    mean_between_s = mean_work_node_s / (load * NODES)
    made = []
    for number in range(jobs):
        tasks = round(fewest * 10 ** chance.random())
        shape = shapes.computing if number % 2 else shapes.sleeps
        made.append(_arrival(("ada", "bob", "eve", "dan")[number % 4], round(at_s, 2), shape, tasks, task_s))
        at_s += chance.expovariate(1 / mean_between_s)
    return tuple(made)


#: Poisson arrivals of twice what six nodes can do.
STUDIES = _studies(10, 2.0)
