"""Random jobs on a machine whose nodes fail: for comparing what becomes of the jobs that fail."""

from __future__ import annotations

import random

from dask_hpc.sim.generators.generator import generator
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import Failures, Machine, NodeFailure
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.params import Duration, Float, Int

#: Sizes of jobs, in nodes; each as likely as the next.
SIZES = (1, 2, 4, 8, 16)


@generator(
    "node-failures",
    Int("jobs", 40, lo=1, hi=100_000, label="Jobs", help="number of jobs"),
    Int("nodes", 32, lo=16, hi=100_000, unit="nodes", label="Nodes", help="size of the machine"),
    Float("load", 1.0, lo=0.01, hi=100.0, label="Load",
          help="node-seconds that arrive over those that the machine has"),
    Float("malleable", 0.0, lo=0.0, hi=1.0, label="Malleable share",
          help="share of the jobs that can do with half their nodes"),
    Duration("mean_runtime_s", 600.0, lo=1.0, hi=1e7, label="Mean run time",
             help="mean of the run times, which are from a fifth to nine fifths of it (uniform)"),
    Duration("mean_gap_s", 500.0, lo=1.0, hi=1e9, label="Mean gap of failures",
             help="mean time between two failures in the machine (exponential); any node is as likely"),
    Duration("downtime_s", 300.0, hi=1e7, label="Downtime", help="how long a node that failed is down"),
)  # fmt: skip
def node_failures(
    *,
    seed: int,
    jobs: int,
    nodes: int,
    load: float,
    malleable: float,
    mean_runtime_s: float,
    mean_gap_s: float,
    downtime_s: float,
) -> Workload:
    """Random jobs without checkpoints on a machine whose nodes fail.

    All of it is ours. ADMIRE (2023, D3.3, section 3.1) announces malleable victims of node stealing and
    publishes no trace. Sizes of 1 to 16 nodes, gaps whose mean gives the load, walltimes of 1.2 times the run
    time, linear speed-up. The draws are the same whatever the malleable share, so that two shares compare
    the same jobs and failures.
    """
    rng = random.Random(seed)
    made = []
    submit_s = 0.0
    for number in range(jobs):
        size = rng.choice(SIZES)
        runtime_s = rng.uniform(0.2, 1.8) * mean_runtime_s
        shrinks = rng.random() < malleable and size > 1
        made.append(
            Job(
                id=f"{number + 1:03d}",
                submit_s=submit_s,
                start_nodes=size,
                min_nodes=size // 2 if shrinks else size,
                max_nodes=size,
                kind="malleable" if shrinks else "rigid",
                runtime_s=runtime_s,
                walltime_s=1.2 * runtime_s,
            )
        )
        submit_s += rng.expovariate(1.0) * mean_runtime_s * sum(SIZES) / len(SIZES) / (load * nodes)
    failures = []
    t_s = rng.expovariate(1.0) * mean_gap_s
    while t_s <= submit_s + 3 * mean_runtime_s:
        failures.append(NodeFailure(t_s=t_s, node=rng.randrange(nodes), downtime_s=downtime_s))
        t_s += rng.expovariate(1.0) * mean_gap_s
    machine = Machine(nodes=nodes, failures=Failures(listed=tuple(failures)))
    return Workload(name="", jobs=tuple(made), machine=machine)
