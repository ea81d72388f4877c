"""What the runtime costs plain Dask code, in microseconds a task over stock Dask."""

from __future__ import annotations

import statistics
from dataclasses import replace

from harness import Measure, Options, Row, differences, interleave, main, our_cost, row
from machine import Graph, Machine, until

from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.saved import Copy

BAR_US = 5.0
TASKS = 4000
#: Results in memory that a version of a checkpoint has.
PROTECTED = 5000


def run(options: Options) -> list[Row]:
    tasks = options.pick(TASKS, TASKS, 200)
    kept = options.pick(PROTECTED, PROTECTED, 200)
    repetitions = options.pick(9, 5, 2)
    rows = []
    for workers in options.pick((16, 256), (16, 256), (16,)):

        async def plain(machine: Machine) -> float:
            there = len(machine.scheduler.tasks)
            return await machine.us_per_task([(Graph("roots", tasks, "plain"), None)], there)

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

        async def protected(machine: Machine) -> float:
            machine.install()
            wanted = await machine.submit(Graph("roots", kept, "kept"))
            await machine.compute(wanted)
            array = Array("data", "opaque", None, (kept,), ((1,) * kept,))
            copies = {
                key: (Copy("", array, number, Written(0, 1, 0)), "int") for number, key in enumerate(wanted)
            }
            of(machine.scheduler).commits.protected.add(copies)
            assert len(of(machine.scheduler).commits.protected) == kept
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
            "protected": protected,
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
            ("protected", f"no job, {kept} protected results", BAR_US),
            ("awake", "an idle job, plain tasks", BAR_US),
        ):
            figure = row(f"{where}: {text}", differences(samples, name), "us/task", bar=bar, stock=base)
            rows.append(figure if figure.verdict != "fail" else _blame(figure, cases[name], workers, tasks))
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
