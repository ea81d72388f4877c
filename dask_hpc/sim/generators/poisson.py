"""Random jobs that arrive as a Poisson process."""

from __future__ import annotations

import random

from dask_hpc.sim.generators.generator import generator, speed_of, speed_options
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload, with_malleable_share
from dask_hpc_policies.params import Duration, Float, Int


@generator(
    "poisson",
    Int("jobs", 1000, lo=1, hi=10_000_000, label="Jobs", help="number of jobs"),
    Int("nodes", 128, lo=1, hi=1_000_000, unit="nodes", label="Nodes", help="size of the machine"),
    Float("load", 0.8, lo=0.01, hi=100.0, label="Load",
          help="node-seconds that arrive over those that the machine has"),
    Duration("mean_runtime_s", 3600.0, lo=1e-3, hi=1e9, label="Mean run time", help="mean of the run times"),
    Float("walltime_factor", 2.0, lo=1.0, hi=100.0, label="Walltime", help="walltime over run time"),
    Float("malleable", 0.0, lo=0.0, hi=1.0, label="Malleable share",
          help="share of the jobs that are malleable"),
    Float("spread", 4.0, lo=1.0, hi=1e6, label="Spread",
          help="a malleable job of n nodes goes from n / spread to n * spread"),
    *speed_options(),
)  # fmt: skip
def poisson(
    *,
    seed: int,
    jobs: int,
    nodes: int,
    load: float,
    mean_runtime_s: float,
    walltime_factor: float,
    malleable: float,
    spread: float,
    speedup: str,
    speedup_parameter: float,
) -> Workload:
    """Random jobs: exponential gaps and run times, sizes that are powers of two.

    All of it is ours: sizes 1, 2, 4, ... up to half the machine, each as likely as the next; exponential run
    times; gaps whose mean gives the load. Real workloads are burstier and their run times vary more
    (Feitelson 2015, "Workload modeling for computer systems performance evaluation").
    """
    rng = random.Random(seed)
    sizes = [1 << power for power in range(max(1, nodes // 2).bit_length())]
    mean_gap_s = mean_runtime_s * sum(sizes) / len(sizes) / (load * nodes)
    speed = speed_of(speedup, speedup_parameter)
    made = []
    submit_s = 0.0
    for number in range(1, jobs + 1):
        size = rng.choice(sizes)
        runtime_s = rng.expovariate(1.0) * mean_runtime_s
        made.append(
            Job(
                id=str(number),
                submit_s=submit_s,
                start_nodes=size,
                min_nodes=size,
                max_nodes=size,
                runtime_s=runtime_s,
                walltime_s=runtime_s * walltime_factor,
                speed=speed,
            )
        )
        submit_s += rng.expovariate(1.0) * mean_gap_s
    workload = Workload(name="", jobs=tuple(made), machine=Machine(nodes=nodes))
    return with_malleable_share(workload, malleable, seed, nodes, spread=spread) if malleable else workload
