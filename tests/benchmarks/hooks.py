"""What the runtime costs plain Dask code, in microseconds a task over stock Dask."""

from __future__ import annotations

import statistics
from dataclasses import replace

from harness import Measure, Options, Row, differences, interleave, main, our_cost, row
from machine import Graph, Machine, until

BAR_US = 5.0
LIMIT_US = 10.0
TASKS = 4000


def run(options: Options) -> list[Row]:
    tasks = options.pick(TASKS, TASKS, 200)
    repetitions = options.pick(9, 5, 2)
    rows = []
    for workers in options.pick((16, 256), (16, 256), (16,)):

        async def plain(machine: Machine) -> float:
            return await machine.us_per_task([(Graph("roots", tasks, "plain"), None)])

        async def asleep(machine: Machine) -> float:
            engine = machine.install()
            sample = await plain(machine)
            assert not engine.awake
            return sample

        async def asleep_again(machine: Machine) -> float:
            engine = machine.install()
            await machine.end_job(await machine.open_job("early", nodes=machine.size))
            await until(lambda: not engine.awake, "sleep")
            return await plain(machine)

        async def awake(machine: Machine) -> float:
            machine.install()
            job = await machine.open_job("idle", nodes=1)
            sample = await plain(machine)
            assert job.state == "running"
            return sample

        cases = {
            "stock": plain,
            "stock again": plain,
            "asleep": asleep,
            "asleep again": asleep_again,
            "awake": awake,
        }
        samples = interleave(cases, repetitions, workers, 4)
        where = f"{workers} workers x 4"
        base = statistics.median(samples["stock"])
        noise = differences(samples, "stock again")
        rows.append(row(f"{where}: noise (stock against itself)", noise, "us/task", stock=base))
        for name, text, bar in (
            ("asleep", "installed, no job yet", BAR_US),
            ("asleep again", "asleep again after a job", BAR_US),
            ("awake", "an idle job, plain tasks", BAR_US),
        ):
            figure = row(
                f"{where}: {text}", differences(samples, name), "us/task", bar=bar, limit=LIMIT_US, stock=base
            )
            rows.append(figure if figure.verdict != "short" else _blame(figure, cases[name], workers, tasks))
            if options.profile and name == "awake":
                for function, us in our_cost(cases[name], workers, 4, tasks)[:12]:
                    print(f"  {us:7.2f} us/task  {function}")
    return rows


def _blame(figure: Row, measure: Measure, workers: int, tasks: int) -> Row:
    """Say which of our functions costs most."""
    found = our_cost(measure, workers, 4, tasks)
    text = ", ".join(f"{function} {us:.1f}" for function, us in found[:3]) or "none of our functions ran"
    return replace(figure, note=text)


if __name__ == "__main__":
    main("hooks", "Cost for plain Dask code: microseconds a task over stock, medians [quartiles]", run)
