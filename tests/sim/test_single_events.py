"""One event at a time: the same starts as EASY over a plan of expected ends, with its order at equal times.

The reference below is a model of what pyss does, as far as its starts go: a queue of events ordered by time
and kind, and a plan of free nodes that the head of the queue is put into before anybody may pass it.
"""

from __future__ import annotations

import heapq
import random

import pytest
from sim_worlds import starts

from dask_hpc.sim import simulate
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies import registry

SUBMIT, END, START = range(3)


def rigid(id: str, submit_s: float, nodes: int, runtime_s: float, walltime_s: float) -> Job:
    return Job(
        id=id, submit_s=submit_s, start_nodes=nodes, min_nodes=nodes, max_nodes=nodes, runtime_s=runtime_s,
        walltime_s=walltime_s,
    )  # fmt: skip


class Plan:
    """Which nodes are expected to be free when."""

    def __init__(self, total: int) -> None:
        self.total = total
        #: Nodes, start and expected end, by job.
        self.held: dict[str, tuple[int, float, float]] = {}

    def free(self, t_s: float) -> int:
        return self.total - sum(n for n, start_s, end_s in self.held.values() if start_s <= t_s < end_s)

    def fits(self, job: Job, t_s: float) -> bool:
        until_s = t_s + (job.walltime_s or 0.0)
        steps = {t_s} | {start_s for _, start_s, _ in self.held.values() if t_s < start_s < until_s}
        return all(self.free(step) >= job.max_nodes for step in steps)

    def earliest(self, job: Job, t_s: float) -> float:
        ends = {end_s for _, _, end_s in self.held.values() if end_s > t_s}
        return min(step for step in {t_s} | ends if self.fits(job, step))

    def put(self, job: Job, t_s: float) -> None:
        self.held[job.id] = (job.max_nodes, t_s, t_s + (job.walltime_s or 0.0))


def reference(jobs: list[Job], nodes: int) -> dict[str, float]:
    """When each job starts."""
    plan, waiting, found = Plan(nodes), list[Job](), dict[str, float]()
    events = [(job.submit_s, SUBMIT, number, job) for number, job in enumerate(jobs)]
    heapq.heapify(events)
    while events:
        t_s, kind, number, job = heapq.heappop(events)
        if kind == START:
            heapq.heappush(events, (t_s + job.runtime_s, END, number, job))
            continue
        if kind == SUBMIT:
            waiting.append(job)
        else:
            del plan.held[job.id]
        for one in schedule(plan, waiting, t_s):
            found[one.id] = t_s
            heapq.heappush(events, (t_s, START, len(jobs) + len(found), one))
    return found


def schedule(plan: Plan, waiting: list[Job], t_s: float) -> list[Job]:
    started = []
    while waiting and plan.free(t_s) >= waiting[0].max_nodes:
        started.append(waiting.pop(0))
        plan.put(started[-1], t_s)
    for job in waiting[1:]:
        head = waiting[0]
        plan.put(head, plan.earliest(head, t_s))
        may_pass = plan.free(t_s) >= job.max_nodes and plan.fits(job, t_s)
        del plan.held[head.id]
        if may_pass:
            waiting.remove(job)
            plan.put(job, t_s)
            started.append(job)
    return started


def single(jobs: list[Job], nodes: int) -> dict[str, float]:
    policy = registry.create("easy", events="single")
    return starts(simulate(Workload(name="ties", jobs=tuple(jobs)), policy, nodes=nodes))


def test_a_job_that_comes_as_another_ends_is_asked_about_first() -> None:
    # at 10 s `long` ends early, and `late` comes: on the node that is still free, before the head takes all
    jobs = [rigid("long", 0, 3, 10, 20), rigid("head", 1, 4, 5, 5), rigid("late", 10, 1, 2, 2)]
    assert single(jobs, 4) == {"long": 0, "late": 10, "head": 12}
    # one pass for all of it looks at the head first
    grouped = simulate(Workload(name="ties", jobs=tuple(jobs)), "easy", nodes=4)
    assert starts(grouped) == {"long": 0, "head": 10, "late": 15}


@pytest.mark.parametrize("seed", range(40))
def test_every_job_starts_when_the_reference_starts_it(seed: int) -> None:
    draw = random.Random(seed)
    nodes, t_s = draw.choice([4, 8, 16]), 0
    jobs = []
    for number in range(60):
        # small whole numbers: many things happen at once
        t_s += draw.choice([0, 0, 1, 1, 2, 3])
        runtime_s = draw.randint(1, 12)
        walltime_s = runtime_s if draw.random() < 0.4 else runtime_s + draw.randint(1, 12)
        jobs.append(rigid(str(number), t_s, draw.randint(1, nodes), runtime_s, walltime_s))
    assert single(jobs, nodes) == reference(jobs, nodes)
