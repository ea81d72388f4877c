"""The most tasks a worker ever has in flight on root-heavy graphs, inside a job and in stock Dask.

Counted at every transition by a plugin, seceded (long-running) tasks apart. Workers answer in random
order, several answers a turn of the loop, which is how the figure would be exceeded if it could be.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass

import dask
from distributed.diagnostics.plugin import SchedulerPlugin
from harness import PROTECTED, Options, Row, gated, main, protect
from machine import DEADLINE_S, SEED, Graph, Machine

ROOTS = 5000
WORKERS = 8


@dataclass(frozen=True)
class Case:
    """One run: a graph, and what else happens."""

    text: str
    kind: str = "roots"
    lose: bool = False
    plain: bool = False
    #: No job: it is plain work beside `PROTECTED` results that a version of a checkpoint has.
    kept: bool = False
    #: So many of its tasks may be on workers at once: they read and write one target. None: any number.
    tokens: int | None = None


#: Fewer than all workers together could have in flight, and more than one for each.
TOKENS = 12

CASES = (
    Case("roots"),
    Case("roots that share a dependency", kind="shared"),
    Case("roots, two workers lost", lose=True),
    Case("roots, plain tasks alongside", plain=True),
    Case("roots that share a dependency, plain tasks alongside, two workers lost", "shared", True, True),
    Case(f"plain roots, no job, {PROTECTED} protected results", kept=True),
    Case(f"roots that wait for {TOKENS} tokens, two workers lost", lose=True, tokens=TOKENS),
)


class Watch(SchedulerPlugin):  # type: ignore[misc]
    """Keeps the maximum of tasks in flight on one worker, over every transition, and counts starts."""

    name = "watch-in-flight"

    def __init__(self, machine: Machine) -> None:
        self._scheduler = machine.scheduler
        #: On one worker, and on all of them.
        self.peak = self.together = 0
        self.starts = 0

    def transition(self, key: str, start: str, finish: str, *args: object, **kwargs: object) -> None:
        if finish == "processing":
            self.starts += 1
        loads = [len(ws.processing) - len(ws.long_running) for ws in self._scheduler.workers.values()]
        self.peak, self.together = max(self.peak, *loads), max(self.together, sum(loads))


def run(options: Options) -> list[Row]:
    roots = options.pick(ROOTS, ROOTS, 400)
    cases = options.pick(CASES, CASES, CASES)
    rows = []
    for nthreads in (1, 4):
        saturation = float(dask.config.get("distributed.scheduler.worker-saturation"))
        bound = max(math.ceil(saturation * nthreads), 1)
        for case in cases:
            ours, stock = (asyncio.run(_watch(case, nthreads, roots, install)) for install in (True, False))
            name = f"{nthreads} thread{'s' if nthreads > 1 else ''}: {case.text}"
            rows.append(Row(name=name, value=ours.peak, unit="tasks", bar=bound, stock=stock.peak))
            if case.tokens is not None:
                together = {"value": ours.together, "bar": case.tokens, "stock": stock.together}
                rows.append(Row(name=f"{name}: on all workers together", unit="tasks", **together))
    return rows


async def _watch(case: Case, nthreads: int, roots: int, install: bool) -> Watch:
    chance = random.Random(SEED)
    async with Machine(WORKERS, nthreads) as machine:
        scheduler = machine.scheduler
        job, graph = None, Graph(case.kind, roots, "job")
        if install:
            machine.install()
        if install and case.kept:
            await protect(machine, min(roots, PROTECTED))
        elif install:
            nodes = WORKERS // 2 if case.plain else WORKERS
            job = await machine.open_job("roots", nodes=nodes, max_nodes=WORKERS)
            if case.tokens is not None:
                gated(machine, job, graph, case.tokens)
        watch = Watch(machine)
        scheduler.add_plugin(watch)
        wanted = await machine.submit(graph, job)
        if case.plain:
            wanted += await machine.submit(Graph("roots", roots, "plain"))
        losses = {len(wanted) // 3, len(wanted) // 2} if case.lose else set()
        await _compute_in_any_order(machine, wanted, losses, chance)
        if job is None:
            assert not install or case.kept
        else:
            assert job.state == "running"
            assert sum(lane.job is job for lane in machine.engine.state.owner.values()) >= roots
        assert watch.starts >= len(wanted)
        return watch


async def _compute_in_any_order(
    machine: Machine, wanted: list[str], losses: set[int], chance: random.Random
) -> None:
    """Answer until all is computed; after so many answers as `losses` says a worker dies."""
    scheduler = machine.scheduler
    deadline_s = time.monotonic() + 2 * DEADLINE_S
    answers = 0
    while True:
        for _ in range(min(chance.randint(1, 12), len(machine.inbox))):
            machine.inbox.rotate(chance.randrange(len(machine.inbox)))
            machine.answer(*machine.inbox.popleft())
            answers += 1
            if answers in losses:
                await _lose(machine, chance)
                break
        machine.give_back()
        if not machine.inbox and all(scheduler.tasks[key].state == "memory" for key in wanted):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not computed within {2 * DEADLINE_S:g} s")
        await asyncio.sleep(0)


async def _lose(machine: Machine, chance: random.Random) -> None:
    address = chance.choice(list(machine.scheduler.workers))
    await machine.scheduler.remove_worker(address, stimulus_id="loss", close=False)
    machine.inbox = type(machine.inbox)(task for task in machine.inbox if task[1] != address)


if __name__ == "__main__":
    main("in_flight", "Most tasks in flight on one worker at any transition, in a job and in stock Dask", run)
