"""How fast the simulator is: one core, the full engine, reading and writing apart.

Times are CPU seconds of the thread; figures are microseconds a job, whose bars are 20 (50,000 jobs per
second), 50 (20,000), and with malleable jobs 333 on 100 nodes (3,000) and 500 on 1,000 nodes (2,000). Eight
malleable jobs among 8,000 must not take three times as long as the same jobs rigid, whatever the policy.

Other simulators, on another machine of two cores: 60 (pyss, EASY on the KTH trace), 125 (pyss, deep queues),
53,000 to 82,000 (ElastiSim, malleable jobs on 64 nodes).
"""

from __future__ import annotations

import os
import statistics
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import Options as BenchmarkOptions
from harness import Row, main, row
from machine import without_gc

from dask_hpc.sim import Machine, Options, Workload, load
from dask_hpc.sim.engine.engine import Engine
from dask_hpc_policies import registry

SEED = 1
MALLEABLE = (
    "pwma-fpsma", "pwma-egs", "prma-fpsma", "equipartition", "performance-aware", "mebf", "sfsj", "fair"
)  # fmt: skip
#: Machines for malleable jobs: nodes, bar and limit in microseconds a job.
MACHINES = ((64, 1000.0, None), (100, 333.0, 1000.0), (1000, 500.0, 1500.0))
#: Malleable jobs in the trace of 8,000.
FEW = 8


def run(options: BenchmarkOptions) -> list[Row]:
    repeats = options.pick(5, 3, 1)
    jobs = options.pick(28_481, 28_481, 500)
    rows = []
    trace, note = _trace(jobs, options.pick(True, True, False))
    for events in ("grouped", "single"):
        policy = registry.create("easy", events=events)
        rows.append(row(f"EASY, events {events}", _us(trace, policy, repeats), "us/job", bar=20.0, note=note))
    rows += [
        row(name, _us(trace, registry.create(name), repeats), "us/job", note=note)
        for name in ("fcfs", "conservative")
    ]

    for load_factor in (1.1, 1.5):
        deep = load(
            "builtin:poisson", seed=SEED, jobs=options.pick(10_000, 10_000, 300), nodes=100, load=load_factor
        )
        depth = _mean_depth(deep)
        rows.append(
            row(
                f"EASY, load {load_factor}", _us(deep, registry.create("easy"), repeats), "us/job", bar=50.0,
                note=f"{depth:.0f} jobs wait in the mean; seed {SEED}",
            )
        )  # fmt: skip
    for nodes, bar, limit in MACHINES:
        mixed = load(
            "builtin:poisson",
            seed=SEED,
            jobs=options.pick(1450, 1450, 60),
            nodes=nodes,
            load=0.9,
            malleable=0.8,
        )
        for name in MALLEABLE:
            samples = _us(mixed, registry.create(name), repeats)
            rows.append(
                row(f"{name}, {nodes} nodes", samples, "us/job", bar=bar, limit=limit, note="80 % malleable")
            )
    rows += _few_malleable(options.pick(8_000, 8_000, 200), repeats)
    if options.pick(True, True, False):
        io = load("builtin:io-aware", seed=SEED)
        for name in ("fcfs-malleable", "io-aware"):
            samples = [us * len(io.jobs) / 1e6 for us in _us(io, registry.create(name), repeats)]
            rows.append(row(f"I/O workload, {name}", samples, "s", bar=2.0, note=f"{len(io.jobs)} jobs"))
    rows += _memory(options.pick((5_000, 40_000), (5_000, 40_000), (200, 400)))
    return rows


def _few_malleable(jobs: int, repeats: int) -> list[Row]:
    """How much longer a trace takes when a few of its jobs, which run for a tenth of it, are malleable."""
    trace = load("builtin:poisson", seed=SEED, jobs=jobs, nodes=100, load=0.7)
    lasting_s = 0.1 * trace.jobs[-1].submit_s
    both = []
    for low, high, kind in ((4, 4, "rigid"), (1, 16, "malleable")):
        changed = list(trace.jobs)
        for i in range(0, jobs, jobs // FEW):
            changed[i] = replace(
                changed[i], kind=kind, start_nodes=4, min_nodes=low, max_nodes=high, reference_nodes=4,
                runtime_s=lasting_s, walltime_s=2 * lasting_s,
            )  # fmt: skip
        both.append(replace(trace, jobs=tuple(changed)))
    rows = []
    for name in registry.names():
        rigid, mixed = (_us(work, registry.create(name), repeats) for work in both)
        ratios = [one / statistics.median(rigid) for one in mixed]
        note = f"{statistics.median(rigid):.0f} us a job without"
        rows.append(row(f"{FEW} malleable jobs, {name}", ratios, "times", bar=3.0, note=note))
    return rows


def _trace(jobs: int, real: bool) -> tuple[Workload, str]:
    """The real trace when it is there, else a seeded one of the same size."""
    here = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("DASK_HPC_DATA") or here) / "KTH-SP2-easy.swf.gz"
    if real and path.exists():
        return load(path), path.name
    made = load("builtin:poisson", seed=SEED, jobs=jobs, nodes=100, load=0.7)
    return made, f"no {path.name}: {jobs} seeded jobs, load 0.7"


def _us(workload: Workload, policy: Any, repeats: int) -> list[float]:
    machine = workload.machine or Machine(nodes=100)
    samples = []
    for _ in range(repeats):
        engine = Engine(workload, policy, machine, Options())
        with without_gc():
            began_s = time.thread_time()
            engine.run()
            samples.append((time.thread_time() - began_s) / len(workload.jobs) * 1e6)
    return samples


def _mean_depth(workload: Workload) -> float:
    engine = Engine(workload, registry.create("easy"), workload.machine or Machine(nodes=100), Options())
    depths = []
    for job in workload.jobs[:: max(1, len(workload.jobs) // 100)]:
        engine.run_until(job.submit_s)
        depths.append(sum(active.state == "pending" for active in engine.world.active.values()))
    return sum(depths) / len(depths)


def _memory(sizes: tuple[int, int]) -> list[Row]:
    """Peak bytes of the engine on a short and a long trace of the same load, the job table apart."""
    rows = []
    for jobs in sizes:
        trace = load("builtin:poisson", seed=SEED, jobs=jobs, nodes=100, load=0.5)
        engine = Engine(trace, registry.create("easy"), trace.machine or Machine(nodes=100), Options())
        engine.world.table.rows = _Nowhere()
        tracemalloc.start()
        engine.run()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rows.append(row(f"memory, {jobs} jobs, table apart", [peak / 1024], "KiB"))
    return rows


class _Nowhere(list[Any]):
    """A table that keeps nothing."""

    def append(self, _: Any) -> None:
        pass


if __name__ == "__main__":
    main("simulator", "Time the simulator takes for a job: CPU microseconds", run)
