"""What a task inside a job costs over stock Dask, and what a worker's arrival costs with many tasks held.

A shared machine's speed changes by more than what a task costs: ``--instructions`` counts (`instructions`).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace

import instructions
from harness import Measure, Options, Row, differences, gated, interleave, main, our_cost, row
from machine import Graph, Machine, run_async, turns, until, without_gc

BAR_US = 20.0
BAR_HELD_MS = 60.0
#: So many that what jobs do when they end, and lend each other then, is a small part of a graph.
TASKS = 20_000
#: So many where instructions are counted, which takes fifty times as long: all, fast, tiny.
COUNTED = (8_000, 2_000, 160)
HELD = 100_000
KINDS = ("roots", "pairs")
#: So many tasks of a job may be on workers at once where all read and write one target.
TOKENS = 12
#: How many jobs there are, under which policy, and of how many tokens each of their tasks needs one.
JOBS: dict[str, tuple[int, str, int | None]] = {
    "1 job": (1, "fcfs", None),
    f"1 job that waits for {TOKENS} tokens": (1, "fcfs", TOKENS),
    "4 jobs": (4, "fcfs", None),
    "4 jobs that share nodes": (4, "fair", None),
}


def run(options: Options) -> list[Row]:
    if options.given.count is not None:
        # whoever counts reads the last line
        tasks = options.given.tasks or options.pick(*COUNTED)
        print(instructions.measured(options.given, _cases(tasks, instructions.warmed)[options.given.count]))
        sys.exit()
    if instructions.wanted(options):
        sizes = options.pick((16, 256), (16,), (16,))
        return [row for workers in sizes for row in _by_instructions(options, workers)]
    tasks = options.given.tasks or options.pick(TASKS, TASKS, 160)
    repetitions = options.pick(5, 3, 2)
    rows = []
    for workers in options.pick((16, 256, 1000), (16, 256, 1000), (16,)):
        samples = interleave(_cases(tasks), repetitions, workers, 4)
        for jobs in JOBS:
            roots = differences(samples, f"roots {jobs}", "stock roots")
            pairs = differences(samples, f"pairs {jobs}", "stock pairs")
            stock = {kind: statistics.median(samples[f"stock {kind}"]) for kind in KINDS}
            rows += _rows(workers, jobs, roots, pairs, stock)
        if options.profile:
            for kind in KINDS:
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


def _rows(
    workers: int, jobs: str, roots: list[float], pairs: list[float], stock: dict[str, float]
) -> list[Row]:
    # half of the tasks of pairs are dependents, and their roots cost what roots cost
    dependents = [2 * both - root for both, root in zip(pairs, roots, strict=True)]
    where = f"{workers} workers x 4, {jobs}"
    return [
        row(f"{where}: {text}", figures, "us/task", bar=BAR_US, stock=stock[kind])
        for text, kind, figures in (
            ("root tasks", "roots", roots),
            ("root/dependent pairs", "pairs", pairs),
            ("dependents (of pairs, less roots)", "pairs", dependents),
        )
    ]


def _by_instructions(options: Options, workers: int) -> list[Row]:
    """Our share of stock's instructions, of the time that stock takes."""
    tasks = options.given.tasks or options.pick(*COUNTED)
    stock, share = {}, {}
    for kind in KINDS:
        name = f"stock {kind}"
        samples = interleave({name: _cases(tasks)[name]}, options.pick(9, 5, 2), workers, 4)[name]
        stock[kind] = statistics.median(samples)
        names = [name, *(f"{kind} {jobs}" for jobs in JOBS)]
        counts = instructions.cases(__file__, names, options, workers, stock[kind])
        share |= {each: found / counts[name] - 1 for each, found in counts.items()}
    rows = []
    for jobs in JOBS:
        roots, pairs = ([share[f"{kind} {jobs}"] * stock[kind]] for kind in KINDS)
        for each in _rows(workers, jobs, roots, pairs, stock):
            assert each.stock is not None
            rows.append(replace(each, note=f"{100 * each.value / each.stock:.1f} % more instructions"))
    return rows


def _cases(tasks: int, how: instructions.Work = Machine.us_per_task) -> dict[str, Measure]:
    cases: dict[str, Measure] = {}
    for kind in KINDS:
        cases[f"stock {kind}"] = _case(kind, 0, tasks, how)
        for name, (jobs, policy, tokens) in JOBS.items():
            cases[f"{kind} {name}"] = _case(kind, jobs, tasks, how, policy, tokens)
    return cases


def _case(
    kind: str, jobs: int, tasks: int, how: instructions.Work, policy: str = "", tokens: int | None = None
) -> Measure:
    async def measure(machine: Machine) -> float:
        if not jobs:
            return await how(machine, [(Graph(kind, tasks, "all"), None)])
        machine.install(policy)
        # under `fair` jobs that declare a name alone take turns on all nodes
        fields = {} if policy == "fair" else {"nodes": machine.size // jobs}
        opened = [await machine.open_job(f"job-{i}", **fields) for i in range(jobs)]
        graphs = [Graph(kind, tasks // jobs, job.name) for job in opened]
        if tokens is not None:
            for job, graph in zip(opened, graphs, strict=True):
                gated(machine, job, graph, tokens)
        return await how(machine, list(zip(graphs, opened, strict=True)))

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
    """How large the graphs are, and whether to count."""
    parser.add_argument("--tasks", type=int, metavar="N", help=f"of a graph; {TASKS:,} if not said")
    instructions.arguments(parser)


if __name__ == "__main__":
    main(
        "jobs",
        "Cost of tasks inside jobs: microseconds over stock; CPU of the loop with many held",
        run,
        arguments,
    )
