"""Workloads of malleable EASY backfilling (MEBF): compute-, read- and write-intensive jobs.

Source: ADMIRE (2023), deliverable D3.3 "Scheduling algorithms and policies", section 4.1.2. Published are the
platform (table 4.1: 500 nodes of 100 GFLOP/s, links of 100 Gbit/s, crossbar), the numbers of jobs (100, 200
and 300), that all are known at the start, and the shape of the applications: the first node reads from the
parallel file system and scatters; then iterations of computing, which ends with a gathering of data from all
nodes, and of a parallel write. Sizes, priorities, loads and the speed of the file system are not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dask_hpc.sim.formats.amounts import BySize
from dask_hpc.sim.generators.generator import Generator, generator
from dask_hpc.sim.model.job import Compute, Delay, Job, Program, Repeat, SchedulingPoint, Transfer
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.params import Choice, Int, Parameter

LINK_BYTES_S = 100e9 / 8
#: Ours: that of section 4.2.5 of the same source.
FILE_SYSTEM_BYTES_S = 48e9
#: Ours, by application: shares of its time on its preferred size that it reads, computes and writes, when
#: the machine is full and everybody reads, or everybody writes.
SHARES = {"compute": (0.05, 0.9, 0.05), "read": (0.5, 0.4, 0.1), "write": (0.05, 0.45, 0.5)}
#: Ours: preferred sizes in nodes (bounds are half and twice of it), time on it, and iterations.
PREFERRED = (2, 12)
LENGTH_S = (3_600.0, 21_600.0)
ITERATIONS = (10, 40)
#: Ours: share of the computing time that gathering takes on the preferred size.
GATHER = 0.05

_OPTIONS: tuple[Parameter, ...] = (
    Int("jobs", 300, lo=1, hi=100_000, label="Jobs", help="number of jobs; the source has 100, 200 and 300"),
    Choice(
        "start",
        "moldable",
        ("moldable", "preferred"),
        label="Start",
        help="with what fits, from the preferred size down, or with exactly the preferred size",
    ),
    Int("nodes", 500, lo=24, hi=100_000, unit="nodes", label="Nodes", help="size of the machine"),
)
_TEXT = """{said} jobs, all submitted at 0, malleable from half to twice their preferred size.

    Published: 500 nodes, 100, 200 or 300 jobs at the start, the shape of the application{mix}. Ours:
    preferred sizes of 2 to 12 nodes and 1 to 6 hours on them (uniform), 10 to 40 iterations with a
    scheduling point each, two priorities with equal probability, a file system of 48 GB/s, linear speed-up
    of the computing, and the shares of the time in `SHARES`. The walltime is the time on the smallest size,
    doubled; the recorded run time is that of the job alone on the machine, at its preferred size.
    """


def _generator(name: str, mix: Sequence[tuple[str, float]], said: str) -> Generator:
    """The generator of a mix: applications with their shares of the jobs."""

    def make(*, seed: int, jobs: int, start: str, nodes: int) -> Workload:
        rng = random.Random(seed)
        # exact shares in random order
        apps: list[str] = []
        for app, share in mix:
            apps += [app] * round(jobs * share)
        apps = (apps + [mix[-1][0]] * jobs)[:jobs]
        rng.shuffle(apps)
        machine = Machine(nodes=nodes, link_bytes_s=LINK_BYTES_S, file_system_bytes_s=FILE_SYSTEM_BYTES_S)
        made = tuple(
            _job(f"{number:03d}", app, rng, start == "preferred", nodes)
            for number, app in enumerate(apps, start=1)
        )
        return Workload(name="", jobs=made, machine=machine)

    make.__doc__ = _TEXT.format(said=said, mix="" if len(mix) == 1 else " and the mix")
    return generator(name, *_OPTIONS)(make)


def _job(id: str, application: str, rng: random.Random, exact: bool, nodes: int) -> Job:
    preferred = rng.randint(*PREFERRED)
    length_s = rng.uniform(*LENGTH_S)
    iterations = rng.randint(*ITERATIONS)
    priority = rng.randint(0, 1)
    low, high = max(1, preferred // 2), 2 * preferred
    reads, computes, writes = SHARES[application]
    # one node of each job reads, all of its nodes write
    readers = nodes / (sum(PREFERRED) / 2)
    read_bytes = reads * length_s * min(LINK_BYTES_S, FILE_SYSTEM_BYTES_S / readers)
    write_rate = preferred * min(LINK_BYTES_S, FILE_SYSTEM_BYTES_S / nodes)
    write_bytes = writes * length_s * write_rate / iterations
    gather_bytes = GATHER * computes * length_s * LINK_BYTES_S / iterations
    work_s = (1 - GATHER) * computes * length_s * preferred / iterations
    # on a machine of its own, as the source records its run times
    alone_s = (
        read_bytes / LINK_BYTES_S * (1 + (preferred - 1) / preferred)
        + computes * length_s * (1 - GATHER / preferred)
        + write_bytes * iterations / min(preferred * LINK_BYTES_S, FILE_SYSTEM_BYTES_S)
    )
    sizes = range(low, high + 1)
    # what the first node reads, all but its own part, goes on to the others
    scatter_s = BySize(low, tuple(read_bytes * (n - 1) / n / LINK_BYTES_S for n in sizes))
    gather_s = BySize(low, tuple(gather_bytes * (n - 1) / n / LINK_BYTES_S for n in sizes))
    step = (Compute(work=work_s), Delay(seconds=gather_s), Transfer(size_bytes=write_bytes, purpose="result"))
    program = Program(
        stages=(
            Transfer(size_bytes=read_bytes, direction="read", participants=1.0, purpose="input"),
            Delay(seconds=scatter_s),
            *step,
            Repeat(stages=(SchedulingPoint(), *step), times=iterations - 1.0),
        ),
        resize="points",
    )
    return Job(
        id=id,
        submit_s=0.0,
        start_nodes=preferred if exact else None,
        min_nodes=low,
        max_nodes=high,
        kind="malleable",
        walltime_s=2 * length_s * preferred / low,
        priority=priority,
        program=program,
        preferred_nodes=preferred,
        recorded_s=alone_s,
        application=application,
        name=application,
        io_intensity=reads + writes,
    )


mebf_compute = _generator("mebf-compute", (("compute", 1.0),), "Compute-intensive")
mebf_read = _generator("mebf-read", (("read", 1.0),), "Read-intensive")
mebf_write = _generator("mebf-write", (("write", 1.0),), "Write-intensive")
mebf_mixed = _generator(
    "mebf-mixed",
    (("compute", 0.5), ("read", 0.25), ("write", 0.25)),
    "Half compute-, a quarter read- and write-intensive",
)
