"""The effective system performance benchmark (ESP), whole and cut to ten jobs.

Sources: Wong, Oliker, Kramer, Kaltz and Bailey (2000), "ESP: A system utilization benchmark"; the table as
John (2024, table 9.1) uses it; the ten jobs of Chadha (2019, section 7.4, table 7.2).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dask_hpc.sim.generators.generator import generator, speed_of, speed_options
from dask_hpc.sim.model.job import Job, SpeedUp, amdahl
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload, with_malleable_share
from dask_hpc_policies.jobs import constraints
from dask_hpc_policies.params import Bool, Choice, Duration, Float, Int


@dataclass(frozen=True, slots=True)
class JobType:
    """A type of job of the benchmark."""

    name: str
    #: Share of the machine.
    fraction: float
    count: int
    #: Run time on that share.
    runtime_s: float
    #: Which node counts are legal for it (John 2024; the benchmark itself has none).
    constraint: str = "any"


#: Fourteen types, 230 jobs (John 2024, table 9.1).
TYPES = (
    JobType("A", 0.03125, 75, 267), JobType("B", 0.0625, 9, 322, "pof2"), JobType("C", 0.5, 3, 534),
    JobType("D", 0.25, 3, 616, "even"), JobType("E", 0.5, 3, 315), JobType("F", 0.0625, 9, 1846, "pof2"),
    JobType("G", 0.125, 6, 1334, "even"), JobType("H", 0.15625, 6, 1067, "odd"),
    JobType("I", 0.03125, 24, 1432), JobType("J", 0.0625, 24, 725, "pof2"), JobType("K", 0.09375, 15, 487),
    JobType("L", 0.125, 36, 366, "even"), JobType("M", 0.25, 15, 187), JobType("Z", 1.0, 2, 100),
)  # fmt: skip
#: Nodes (of 16), number and run time of the types of the cut benchmark (Chadha 2019, table 7.2).
TEN = {"C": (8, 2, 1204.0), "D": (4, 2, 513.0), "G": (2, 3, 696.0), "J": (1, 2, 522.0), "Z": (16, 1, 458.0)}
#: Order of submission, ours: the source prints none, only that the second job is Z. With it FCFS needs as
#: long as the published gains imply, which few orders do.
TEN_ORDER = "DZCDJJCGGG"

_SHARE = Float(
    "malleable", 0.0, lo=0.0, hi=1.0, label="Malleable share", help="share of the jobs that are malleable"
)


@generator(
    "esp-10",
    _SHARE,
    Int("which", None, lo=1, hi=10, none_ok=True, label="The malleable job",
        help="makes this job alone malleable, by its place in the order of submission"),
    Choice("order", "fixed", ("fixed", "random"), label="Order",
           help="fixed, or drawn from the seed with Z second"),
    Float("time_scale", 1.0, lo=1e-6, hi=1e6, label="Scale of times", help="all times are multiplied by it"),
    Float("walltime_factor", 1.0, lo=1.0, hi=100.0, label="Walltime", help="walltime over run time"),
    *speed_options(),
)  # fmt: skip
def esp_10(
    *,
    seed: int,
    malleable: float,
    which: int | None,
    order: str,
    time_scale: float,
    walltime_factor: float,
    speedup: str,
    speedup_parameter: float,
) -> Workload:
    """Ten jobs of five types of ESP on 16 nodes, one each 60 s.

    Chadha (2019, section 7.4): types, sizes, numbers and run times of table 7.2; 60 s between submissions;
    the second job is Z; malleable jobs go from 1 to 16 nodes without constraint; shares of 10, 50 and 100 %.
    Ours: the order (`TEN_ORDER`), linear speed-up, and a walltime that is the run time on the start size.
    """
    rng = random.Random(seed)
    types = list(TEN_ORDER)
    if order == "random":
        types = [name for name, (_, count, _) in TEN.items() for _ in range(count) if name != "Z"]
        rng.shuffle(types)
        types.insert(1, "Z")
    speed = speed_of(speedup, speedup_parameter)
    jobs = []
    for place, name in enumerate(types):
        nodes, _, runtime_s = TEN[name]
        job = _job(name, place, nodes, runtime_s * time_scale, 60.0 * place * time_scale, speed)
        jobs.append(replace(job, walltime_s=job.runtime_s * walltime_factor))
    if which is not None:
        jobs[which - 1] = replace(jobs[which - 1], kind="malleable", min_nodes=1, max_nodes=16)
    workload = Workload(name="", jobs=tuple(jobs), machine=Machine(nodes=16))
    return with_malleable_share(workload, malleable, seed, 16) if malleable else workload


@generator(
    "esp",
    _SHARE,
    Int("nodes", 32, lo=1, hi=100_000, unit="nodes", label="Nodes", help="size of the machine"),
    Duration("interval_s", 30.0, label="Interval", help="time between two submissions"),
    Float("walltime_factor", 1.0, lo=1.0, hi=100.0, label="Walltime", help="walltime over run time"),
    Choice("z_order", "rule", ("rule", "random"), label="Jobs of type Z",
           help="where the two jobs of full size stand: after 10 and 80 % of the others, or anywhere"),
    Bool("z_first", False, label="Z first", help="serve a waiting job of full size before all others"),
    *speed_options("amdahl", 0.02),
)  # fmt: skip
def esp(
    *,
    seed: int,
    malleable: float,
    nodes: int,
    interval_s: float,
    walltime_factor: float,
    z_order: str,
    z_first: bool,
    speedup: str,
    speedup_parameter: float,
) -> Workload:
    """The whole benchmark: 230 jobs of 14 types, sizes in shares of the machine.

    Published (John 2024, section 9.1 and table 9.1, after Wong et al. 2000): types, shares, numbers, run
    times and constraints; 32 nodes for jobs; a pseudo-random order, the same for all policies, with 30 s
    between submissions; malleable jobs drawn with a fixed seed, with bounds at the lowest and highest legal
    size. A job of full size is submitted after 10 % of the jobs (Chadha 2019, section 7.4); in the original
    it has to run before any other job is started (`z_first`), and the second is not the last to end.

    Ours: the order itself (from the seed), the second Z after 80 % of the others, the walltime factor, and
    the speed-up: with ``amdahl`` the serial fractions of the types are half, once and one and a half times
    the parameter in turn, so that types scale differently.
    """
    rng = random.Random(seed)
    others = [kind for kind in TYPES if kind.name != "Z" for _ in range(kind.count)]
    full = [kind for kind in TYPES if kind.name == "Z" for _ in range(kind.count)]
    order = others if z_order == "rule" else [*others, *full]
    rng.shuffle(order)
    if z_order == "rule":
        order = _with_full_size(order, full)
    speeds = _speeds(speedup, speedup_parameter)
    jobs = []
    for place, kind in enumerate(order):
        size = legal_size(kind, nodes)
        job = _job(kind.name, place, size, kind.runtime_s, interval_s * place, speeds[kind.name])
        jobs.append(
            replace(
                job,
                constraint=kind.constraint,
                walltime_s=kind.runtime_s * walltime_factor,
                priority=int(z_first and kind.name == "Z"),
            )
        )
    workload = Workload(name="", jobs=tuple(jobs), machine=Machine(nodes=nodes))
    return with_malleable_share(workload, malleable, seed, nodes) if malleable else workload


def legal_size(kind: JobType, nodes: int) -> int:
    """The share of a machine of `nodes` nodes, at least 1, at the nearest legal size (the smaller of two)."""
    wanted = max(1, min(nodes, round(kind.fraction * nodes)))
    below = constraints.largest_at_most(kind.constraint, wanted, 1)
    above = constraints.smallest_at_least(kind.constraint, wanted, nodes)
    sizes = [size for size in (below, above) if size is not None]
    if not sizes:
        raise ValueError(f"a machine of {nodes} nodes has no {kind.constraint} size for type {kind.name}")
    return min(sizes, key=lambda size: (abs(size - wanted), size))


def _with_full_size(others: Sequence[JobType], full: Sequence[JobType]) -> list[JobType]:
    order = list(others)
    for done, share in enumerate((0.1, 0.8)[: len(full)]):
        order.insert(round(share * len(others)) + done, full[done])
    return order


def _speeds(speedup: str, parameter: float) -> dict[str, SpeedUp]:
    if speedup != "amdahl":
        return {kind.name: speed_of(speedup, parameter) for kind in TYPES}
    return {
        kind.name: amdahl(min(1.0, parameter * (0.5, 1.0, 1.5)[place % 3]))
        for place, kind in enumerate(TYPES)
    }


def _job(name: str, place: int, nodes: int, runtime_s: float, submit_s: float, speed: SpeedUp) -> Job:
    return Job(
        id=f"{place + 1:03d}{name}",
        name=name,
        application=name,
        submit_s=submit_s,
        start_nodes=nodes,
        min_nodes=nodes,
        max_nodes=nodes,
        runtime_s=runtime_s,
        walltime_s=runtime_s,
        speed=speed,
    )
