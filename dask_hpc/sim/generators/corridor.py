"""The workload of the power-aware scheduler: two applications on 14 nodes under a corridor that moves twice.

Source: John (2024), section 9.2.4, table 9.2 and figure 9.3.
"""

from __future__ import annotations

import random

from dask_hpc.sim.generators.generator import generator
from dask_hpc.sim.model.corridor import corridor as make_corridor
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.power import NodePower
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.params import Float, Int

#: Nodes that applications had of 16, and watts of a node: idle, and by application.
NODES = 14
IDLE_W = 71.0
WATTS = {"pi": 170.0, "heat": 250.0}
#: From when on, lower and upper bound.
CORRIDOR = ((0.0, 1700.0, 2500.0), (550.0, 1000.0, 1700.0), (800.0, 2500.0, 3500.0))
#: Jobs start on 1 to so many nodes; seconds between two submissions.
LARGEST, GAP_S = 4, 2.0
#: Shortest and longest run times in shares of the mean one.
SPREAD = (0.5, 1.5)


@generator(
    "corridor",
    Int("jobs", 20, lo=2, hi=10_000, label="Jobs", help="number of jobs, half of each application"),
    Float("mean_runtime_s", 193.0, lo=1.0, hi=1e6, unit="s", label="Mean run time",
          help="of a job on the nodes that it starts on"),
)  # fmt: skip
def corridor(*, seed: int, jobs: int, mean_runtime_s: float) -> Workload:
    """Jobs of two applications that draw unlike power, under a corridor that moves twice.

    Published: 20 jobs, 10 of each application, in one order for all scenarios; 14 nodes for applications, of
    71 W idle, 170 W with pi and 250 W with heat; 1 to 4 nodes at the start, from 1 to 14 later; a job every
    2 s; 1,700 to 2,500 W, from about 550 s on 1,000 to 1,700 W, from about 800 s on 2,500 to 3,500 W.

    Ours, because no lengths are published: uniform from half to one and a half times 193 s on the nodes that
    a job starts on, with which EASY takes as long as published (13.75 min); a linear speed-up; sizes and the
    order of applications drawn from the seed.
    """
    rng = random.Random(seed)
    names = [list(WATTS)[number % 2] for number in range(jobs)]
    rng.shuffle(names)
    made = []
    for number, name in enumerate(names):
        size = rng.randint(1, LARGEST)
        runtime_s = mean_runtime_s * rng.uniform(*SPREAD)
        made.append(
            Job(
                id=f"{name}-{number + 1}",
                name=name,
                application=name,
                submit_s=number * GAP_S,
                kind="malleable",
                start_nodes=size,
                min_nodes=1,
                max_nodes=NODES,
                runtime_s=runtime_s,
                walltime_s=2 * runtime_s * size,
                min_power_w=WATTS[name],
                max_power_w=WATTS[name],
            )
        )
    power = NodePower(idle_w=IDLE_W, busy_w=WATTS["pi"])
    machine = Machine(nodes=NODES, power=power, corridor=make_corridor(CORRIDOR))
    notes = ("run times, sizes and the order of applications are ours: the source publishes none",)
    return Workload(name="", jobs=tuple(made), machine=machine, notes=notes)
