"""What the runtime costs plain Dask code, in microseconds a task over stock Dask.

What it costs is less than what a machine's speed changes by from second to second: ``--instructions`` counts
(`instructions`), and gives our share of stock's instructions of stock's time.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from typing import Any

import instructions
from harness import PROTECTED, Measure, Options, Row, differences, interleave, main, our_cost, protect, row
from machine import Graph, Machine, until

BAR_US = 5.0
TASKS = 4000
#: What is compared with stock.
TEXTS = {
    "asleep": "installed, no job yet",
    "asleep again": "asleep again after a job",
    "protected": "no job, {kept} protected results",
    "awake": "an idle job, plain tasks",
}


async def _timed(machine: Machine, graphs: list[tuple[Graph, Any]]) -> float:
    return await machine.us_per_task(graphs, len(machine.scheduler.tasks))


def cases(tasks: int, kept: int, how: instructions.Work = _timed) -> dict[str, Measure]:
    """What is measured on a fresh machine, by name, and `how`."""

    async def work(machine: Machine) -> float:
        return await how(machine, [(Graph("roots", tasks, "plain"), None)])

    async def asleep(machine: Machine) -> float:
        engine = machine.install()
        sample = await work(machine)
        assert not engine.awake
        return sample

    async def asleep_again(machine: Machine) -> float:
        engine = machine.install()
        await machine.end_job(await machine.open_job("early", nodes=machine.size))
        await until(lambda: not engine.awake, "sleep")
        return await work(machine)

    async def protected(machine: Machine) -> float:
        machine.install()
        await protect(machine, kept)
        return await work(machine)

    async def awake(machine: Machine) -> float:
        machine.install()
        job = await machine.open_job("idle", nodes=1)
        sample = await work(machine)
        assert job.state == "running"
        return sample

    return {
        "stock": work,
        "stock again": work,
        "asleep": asleep,
        "asleep again": asleep_again,
        "protected": protected,
        "awake": awake,
    }


def run(options: Options) -> list[Row]:
    tasks = options.pick(TASKS, TASKS, 200)
    kept = options.pick(PROTECTED, PROTECTED, 200)
    if options.given.count is not None:
        # whoever counts reads the last line
        case = cases(tasks, kept, instructions.warmed)[options.given.count]
        print(instructions.measured(options.given, case))
        sys.exit()
    rows, measure = [], _by_instructions if instructions.wanted(options) else _by_time
    for workers in options.pick((16, 256), (16, 256), (16,)):
        rows += measure(options, workers, tasks, kept)
    return rows


def _by_time(options: Options, workers: int, tasks: int, kept: int) -> list[Row]:
    measures, where = cases(tasks, kept), f"{workers} workers x 4"
    samples = interleave(measures, options.pick(9, 5, 2), workers, 4)
    base = statistics.median(samples["stock"])
    noise = differences(samples, "stock again")
    rows = [row(f"{where}: noise (stock against itself)", noise, "us/task", stock=base)]
    for name, text in TEXTS.items():
        title, more = f"{where}: {text.format(kept=kept)}", differences(samples, name)
        figure = row(title, more, "us/task", bar=BAR_US, stock=base)
        rows.append(figure if figure.verdict != "fail" else _blame(figure, measures[name], workers, tasks))
        if options.profile and name == "awake":
            for function, us in our_cost(measures[name], workers, 4, tasks)[:12]:
                print(f"  {us:7.2f} us/task  {function}")
    return rows


def _by_instructions(options: Options, workers: int, tasks: int, kept: int) -> list[Row]:
    """Our share of stock's instructions, of the time that stock takes."""
    samples = interleave({"stock": cases(tasks, kept)["stock"]}, options.pick(9, 5, 2), workers, 4)["stock"]
    base = statistics.median(samples)
    names = ("stock", "stock again", *TEXTS) if options.size != "tiny" else ("stock", "awake")
    counts = instructions.cases(__file__, names, options, workers, base)
    stock = counts.pop("stock")
    texts = {"stock again": "noise (stock against itself)", **TEXTS}
    return [
        row(
            f"{workers} workers x 4: {texts[name].format(kept=kept)}",
            [(found / stock - 1) * base],
            "us/task",
            bar=BAR_US if name in TEXTS else None,
            stock=base,
            note=f"{(found - stock) / tasks:.0f} instructions a task more than {stock / tasks:.0f}",
        )
        for name, found in counts.items()
    ]


def _blame(figure: Row, measure: Measure, workers: int, tasks: int) -> Row:
    """Say which of our functions costs most."""
    found = our_cost(measure, workers, 4, tasks)
    text = ", ".join(f"{function} {us:.1f}" for function, us in found[:3]) or "none of our functions ran"
    return replace(figure, note=text)


if __name__ == "__main__":
    what = "Cost for plain Dask code: microseconds a task over stock, medians [quartiles]"
    main("hooks", what, run, instructions.arguments)
