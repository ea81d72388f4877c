"""What a task inside a job costs over stock Dask, and what a worker's arrival costs with many tasks held."""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Callable

from harness import Measure, Options, Row, differences, interleave, main, our_cost, row
from machine import Graph, Machine, run_async, turns, until, without_gc

BAR_US = 20.0
BAR_HELD_MS = 60.0
#: So many that what jobs do when they end, and lend each other then, is a small part of a graph.
TASKS = 20_000
HELD = 100_000
#: How many jobs there are, and under which policy.
JOBS = {"1 job": (1, "fcfs"), "4 jobs": (4, "fcfs"), "4 jobs that share nodes": (4, "fair")}


def run(options: Options) -> list[Row]:
    tasks = options.given.tasks or options.pick(TASKS, TASKS, 160)
    repetitions = options.pick(5, 3, 2)
    rows = []
    for workers in options.pick((16, 256, 1000), (16, 256, 1000), (16,)):
        samples = interleave(_cases(tasks), repetitions, workers, 4)
        for jobs in JOBS:
            roots = differences(samples, f"roots {jobs}", "stock roots")
            pairs = differences(samples, f"pairs {jobs}", "stock pairs")
            # half of the tasks of pairs are dependents, and their roots cost what roots cost
            dependents = [2 * both - root for both, root in zip(pairs, roots, strict=True)]
            where = f"{workers} workers x 4, {jobs}"
            for text, kind, figures, bar in (
                ("root tasks", "roots", roots, BAR_US),
                ("root/dependent pairs", "pairs", pairs, BAR_US),
                ("dependents (of pairs, less roots)", "pairs", dependents, BAR_US),
            ):
                stock = statistics.median(samples[f"stock {kind}"])
                rows.append(row(f"{where}: {text}", figures, "us/task", bar=bar, stock=stock))
        if options.profile:
            for kind in ("roots", "pairs"):
                print(f"{workers} workers, {kind}")
                for function, us in our_cost(_cases(tasks)[f"{kind} 1 job"], workers, 4, tasks)[:14]:
                    print(f"  {us:7.2f} us/task  {function}")
    held = options.pick(HELD, HELD, 1000)
    for event in ("joins", "pauses and resumes"):
        repetitions = options.pick(5, 3, 1)
        longest, total = _held(event, held, repetitions, install=True)
        stock_longest, stock_total = _held(event, held, repetitions, install=False)
        for text, figures, stock, bar in (
            ("longest turn", longest, stock_longest, BAR_HELD_MS),
            ("all turns", total, stock_total, None),
        ):
            name = f"{held} held tasks: a worker {event}, {text}"
            rows.append(row(name, figures, "ms", bar=bar, stock=statistics.median(stock)))
    return rows


def _cases(tasks: int) -> dict[str, Measure]:
    cases: dict[str, Measure] = {}
    for kind in ("roots", "pairs"):
        cases[f"stock {kind}"] = _case(kind, 0, tasks)
        for name, (jobs, policy) in JOBS.items():
            cases[f"{kind} {name}"] = _case(kind, jobs, tasks, policy)
    return cases


def _case(kind: str, jobs: int, tasks: int, policy: str = "") -> Measure:
    async def measure(machine: Machine) -> float:
        if not jobs:
            return await machine.us_per_task([(Graph(kind, tasks, "all"), None)])
        machine.install(policy)
        # under `fair` jobs that declare a name alone take turns on all nodes
        fields = {} if policy == "fair" else {"nodes": machine.size // jobs}
        opened = [await machine.open_job(f"job-{i}", **fields) for i in range(jobs)]
        return await machine.us_per_task([(Graph(kind, tasks // jobs, job.name), job) for job in opened])

    return measure


def _held(event: str, held: int, repetitions: int, *, install: bool) -> tuple[list[float], list[float]]:
    """Longest turn of the loop and the sum of all, milliseconds, from the event until all is quiet."""
    act = {"joins": _join, "pauses and resumes": _pause}[event]

    async def one() -> tuple[float, float]:
        async with Machine(16, 4) as machine:
            job = None
            if install:
                machine.install()
                job = await machine.open_job("large", nodes=16)
            await machine.submit(Graph("roots", held, "large"), job)
            await until(lambda: len(machine.inbox) == 16 * 5, "the first tasks on workers")
            assert job is None or job.held == held - 16 * 5
            with without_gc():
                await act(machine, turns().clear)
                # the passes of admission and policy that the event asks for, and two sweeps
                await asyncio.sleep(0.25)
                taken = list(turns())
            # what was asked back meanwhile, for threads that were idle, is owed an answer
            machine.give_back()
        return max(taken), sum(taken)

    samples = [run_async(one()) for _ in range(repetitions)]
    return [longest * 1e3 for longest, _ in samples], [total * 1e3 for _, total in samples]


async def _join(machine: Machine, begin: Callable[[], None]) -> None:
    await asyncio.sleep(0)
    begin()
    await machine.add_worker(len(machine.scheduler.workers))


async def _pause(machine: Machine, begin: Callable[[], None]) -> None:
    change = machine.scheduler.stream_handlers["worker-status-change"]
    worker = next(iter(machine.scheduler.workers))
    change(status="paused", worker=worker, stimulus_id="pause")
    await asyncio.sleep(0)
    begin()
    change(status="running", worker=worker, stimulus_id="resume")
    await asyncio.sleep(0)


def arguments(parser: argparse.ArgumentParser) -> None:
    """How large the graphs are."""
    parser.add_argument("--tasks", type=int, metavar="N", help=f"of a graph; {TASKS:,} if not said")


if __name__ == "__main__":
    main(
        "jobs",
        "Cost of tasks inside jobs: microseconds over stock; CPU of the loop with many held",
        run,
        arguments,
    )
