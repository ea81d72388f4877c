"""What a corridor that is set costs: plain tasks, a tick of a large cluster, refits, sampling.

Tasks, ticks and sampling in CPU seconds; the gaps of the loop beside refits in seconds of the clock, with and
without in turns (A B B A), so that what else the machine does weighs on both. A gap is how late the loop
hears what another process sends each millisecond. What a sleep of the loop oversleeps is none: asyncio rounds
what is left of it up to whole milliseconds after whatever wakes it, and an answer does that once.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from functools import partial
from pathlib import Path
from typing import Any

from distributed.scheduler import heartbeat_interval
from harness import Options, Row, differences, interleave, listed, main, percentile, row
from machine import Graph, Machine, until, without_gc
from spinning import SPIN

from dask_hpc.config import Settings
from dask_hpc.processes import Process
from dask_hpc.scheduler.power.draw import Sample
from dask_hpc.scheduler.power.forecaster import MOST_SAMPLES, NICE, Forecaster
from dask_hpc.scheduler.rpc import service
from dask_hpc.worker.power import section, sources
from dask_hpc.worker.power.board import Member
from dask_hpc_policies.decision import Decision

from sensor_trees import Powercap, counting  # isort: skip
from power_worlds import series  # isort: skip

TASK_US, TICK_MS, GAP_RATIO, SAMPLING_SHARE = 20.0, 2.0, 1.5, 0.3
WATTS: dict[str, Any] = {"power_model_idle_w": 70.0, "power_model_busy_w": 200.0}
#: What may be asked for alone.
PARTS = ("tasks", "ticks", "gaps", "sampling")
#: Jobs on the large cluster, and those that wait while it is outside.
JOBS, WAITING = 50, 20
#: Something is sent to the loop each so many seconds: the time at which it is.
BEAT_S = 0.001
BEATS = """
import os, struct, time
while True:
    time.sleep({})
    os.write(1, struct.pack("d", time.monotonic()))
"""
HERE = Path(__file__).resolve().parent


def run(options: Options) -> list[Row]:
    """All rows, or those that ``--only`` names."""
    only = getattr(options.given, "only", None) or PARTS
    rows: list[Row] = []
    if "tasks" in only:
        rows += _tasks(options.pick(4000, 4000, 200), options.pick(9, 5, 2))
    if "ticks" in only:
        for outside, at_work in ((False, False), (True, False), (True, True)):
            size = options.pick((1000, 300), (1000, 100), (32, 5))
            rows += asyncio.run(_ticks(*size, outside=outside, at_work=at_work))
    if "gaps" in only:
        rows += asyncio.run(_gaps(*options.pick((50, 5), (50, 5), (2, 1))))
    if "sampling" in only:
        rows.append(_sampling(options.pick(10.0, 5.0, 1.0)))
    return rows


async def _set(machine: Machine, upper_w: float = 9e8) -> Any:
    """A corridor, in which everything fits unless said otherwise; the part of the runtime that keeps it."""
    for ws in machine.scheduler.workers.values():
        # as a worker tells it
        section = {"watts": 80.0, "label": "measured", "at_s": 1.0, "host": ws.address, "source": "rapl"}
        ws.metrics["hpc"] = {"power": {**section, "fresh_s": 8.0, "counted_s": 1.0, "energy_j": 80.0}}
    await service.of(machine.scheduler).call("corridor", {"lower_w": 1.0, "upper_w": upper_w})
    return machine.scheduler.extensions["hpc-corridor"]


def _tasks(tasks: int, repetitions: int) -> list[Row]:
    async def plain(machine: Machine) -> float:
        return await machine.us_per_task([(Graph("roots", tasks, "plain"), None)])

    async def held(machine: Machine) -> float:
        machine.install("power-aware", **WATTS)
        await _set(machine)
        return await plain(machine)

    samples = interleave({"stock": plain, "stock again": plain, "corridor": held}, repetitions, 16, 4)
    base = statistics.median(samples["stock"])
    return [
        row("noise (stock against itself)", differences(samples, "stock again"), "us/task", stock=base),
        row(
            "plain tasks, a corridor is set",
            differences(samples, "corridor"),
            "us/task",
            bar=TASK_US,
            stock=base,
        ),
    ]


async def _ticks(workers: int, ticks: int, *, outside: bool, at_work: bool) -> list[Row]:
    """What the corridor does at a tick and in the pass that follows.

    Parameters
    ----------
    outside
        The draw is outside all the time, and jobs wait that are all different.
    at_work
        All nodes of jobs execute something, so that what each job draws is learned.
    """
    took_ms: dict[str, list[float]] = {"tick": [], "picture": [], "decision": []}
    beat_us: list[float] = []
    async with Machine(workers, 1) as machine:
        engine = machine.install("power-aware", tick_s=3600.0, sweep_s=10.0, **WATTS)
        jobs = min(JOBS, workers // 4)
        nodes = workers // jobs // 2
        for number in range(jobs):
            job = await machine.open_job(f"job-{number}", nodes=nodes, min_nodes=1, max_nodes=2 * nodes)
            if at_work:
                await machine.submit(Graph("roots", nodes, job.id), job)
        if at_work:
            places = machine.scheduler.workers.values()
            await until(lambda: sum(bool(ws.processing) for ws in places) >= jobs * nodes, "all execute")
        # no passes but those that are measured
        engine.controller.enabled = False
        for number in range(WAITING if outside else 0):
            watts = 150.0 + number
            await machine.queue_job(f"waits-{number}", nodes=2, min_power_w=watts, max_power_w=watts)
        corridor = await _set(machine, 79.0 * workers if outside else 9e8)
        policy = engine.controller.policy
        beats_s = max(1, round(heartbeat_interval(workers)))
        beat = machine.scheduler.handlers["heartbeat_worker"]
        with without_gc():
            for number in range(ticks):
                # a heartbeat brings metrics that are new; a tick is a second, as it is by default
                for ws in list(machine.scheduler.workers.values())[number % beats_s :: beats_s]:
                    before = ws.metrics["hpc"]["power"]
                    said = {**before, "at_s": 2.0 + number, "watts": 80.0 + number % 7}
                    said |= {"counted_s": 2.0 + number, "energy_j": 80.5 * (2 + number)}
                    metrics = {**ws.metrics, "hpc": {"power": said}}
                    began_s = time.thread_time()
                    beat(address=ws.address, resolve_address=False, metrics=metrics)
                    beat_us.append((time.thread_time() - began_s) * 1e6)
                view = engine.state.snapshot("tick")
                began_s = time.thread_time()
                corridor.tick(engine.state.now_s())
                ticked_s = time.thread_time()
                corridor.completed(view, policy)
                shown_s = time.thread_time()
                corridor.amended(view, Decision())
                took_ms["decision"].append((time.thread_time() - shown_s) * 1e3)
                took_ms["tick"].append((ticked_s - began_s) * 1e3)
                took_ms["picture"].append((shown_s - ticked_s) * 1e3)
                await asyncio.sleep(0)
        await service.of(machine.scheduler).call("corridor", {"clear": True})
    both = [sum(pair) for pair in zip(*took_ms.values(), strict=True)]
    name = f"{workers} workers, {jobs} jobs{at_work * ' at work'}" + outside * f", outside, {WAITING} wait"
    parts = {what: statistics.median(took) for what, took in took_ms.items()}
    note = f"median {statistics.median(both):.2f}: " + ", ".join(f"{k} {v:.2f}" for k, v in parts.items())
    note += f"; a heartbeat, of Dask's handler and ours, {statistics.median(beat_us):.0f} us"
    return [Row(name=f"{name}: a tick, p99", value=percentile(both, 0.99), unit="ms", bar=TICK_MS, note=note)]


async def _gaps(refits: int, each: int) -> list[Row]:
    """Blocks of refits back to back, of a plain loop in such a process, and of neither, in turns."""
    forecaster = Forecaster(lambda: None)
    watts = series("seasonal", 7, MOST_SAMPLES + refits + 10)
    number = 0

    def add(due: bool) -> None:
        nonlocal number
        forecaster._due_s = -1.0 if due else float("inf")
        forecaster.add(Sample(float(number), "measured", float(watts[number])), 12.0, 1.0)
        number += 1

    async def refit() -> None:
        for _ in range(each):
            made = forecaster.made
            add(True)
            while forecaster.made == made:
                assert not forecaster.failure, forecaster.failure
                await asyncio.sleep(BEAT_S)

    async def spin(process: Process, cpu_s: float) -> None:
        loop = asyncio.create_task(asyncio.to_thread(process.call, SPIN, {"cpu_s": cpu_s}))
        while not loop.done():
            await asyncio.sleep(BEAT_S)
        await loop

    async def idle(length_s: float) -> None:
        # takes turns of the loop as those who wait for a refit do
        end_s = time.perf_counter() + length_s
        while time.perf_counter() < end_s:
            await asyncio.sleep(BEAT_S)

    def hear() -> None:
        sent = array("d")
        sent.frombytes(os.read(beats.fileno(), 2**12))
        heard.extend((time.monotonic() - at_s) * 1e3 for at_s in sent)

    found: dict[str, list[float]] = {"refits": [], "spin": [], "without": []}
    heard: list[float] = []
    beating = subprocess.Popen(
        [sys.executable, "-c", BEATS.format(BEAT_S)], stdout=subprocess.PIPE, bufsize=0
    )
    assert beating.stdout is not None
    beats, loop = beating.stdout, asyncio.get_running_loop()
    # the process has to find what it is to do
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    with Process(NICE) as process:
        try:
            for _ in range(MOST_SAMPLES):
                add(False)
            await refit()  # loads the models
            await spin(process, 0.0)
            loop.add_reader(beats, hear)
            first, length_s = forecaster.made, 0.0
            with without_gc():
                # what was sent before is late
                await asyncio.sleep(0.1)
                for block in range(refits // each):
                    turns = list(found) if block % 2 == 0 else list(found)[::-1]
                    for what in turns:
                        cpu_s = each * float((forecaster._found or {})["cpu_s"])
                        works = {"refits": refit, "spin": partial(spin, process, cpu_s)}
                        began_s, heard = time.perf_counter(), found[what]
                        await works.get(what, partial(idle, length_s or cpu_s))()
                        if what == "refits":
                            length_s = time.perf_counter() - began_s
        finally:
            forecaster.close()
            loop.remove_reader(beats)
            beating.kill()
            beating.wait()
            beats.close()
    alone, beside, plain = (percentile(found[what], 0.99) for what in ("without", "refits", "spin"))
    fits, count = forecaster.made - first, len(found["refits"])
    note = f"{beside:.2f} ms of {count} beside {fits} refits; without {alone:.2f}"
    name = "loop gap beside {}, p99, ratio to without"
    return [
        Row(name=name.format("refits"), value=beside / alone, unit="", bar=GAP_RATIO, note=note),
        # what of it is the machine's: the same process, and nothing but a loop in it
        Row(name=name.format("a plain loop"), value=plain / alone, unit="", note=f"{plain:.2f} ms"),
    ]


def _sampling(length_s: float) -> Row:
    """CPU of the thread that samples two processors, at ten samples a second, a tenth of that."""
    zones = {f"intel-rapl:{package}{part}" for package in (0, 1) for part in ("", ":0", ":1")}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tree = Powercap(root)
        for number, id in enumerate(sorted(zones)):
            name = {"": f"package-{id[11]}", ":0": "dram", ":1": "core"}[id[12:]]
            tree.zone(id, name, 10**9 * (1 + number))
        section.made = lambda settings: sources.made(settings, root)
        often = Settings(power_interval_s=0.1)
        sampler = section.Sampler("tcp://nowhere:1", Member("a", os.getpid(), 1), often, root)
        try:
            with counting(tree, dict.fromkeys(zones, 20.0), every_s=0.05):
                time.sleep(0.5)
                began_s, before_s = time.monotonic(), sampler.cpu_s
                time.sleep(length_s)
                share = (sampler.cpu_s - before_s) / (time.monotonic() - began_s)
            assert sampler.told.figure.label == "measured"
        finally:
            sampler.stop()
            sampler.thread.join(10)
    return Row(
        name="sampling, a sample a second", value=100 * share / 10, unit="% of a core", bar=SAMPLING_SHARE
    )


if __name__ == "__main__":
    main(
        "corridor_cost",
        "Power corridor: what it costs while it is set",
        run,
        lambda parser: parser.add_argument("--only", type=listed(PARTS)),
    )
