"""The workload of the I/O-intensity-aware scheduler: 4,000 jobs that compute and write checkpoints.

Source: ADMIRE (2023), deliverable D3.3 "Scheduling algorithms and policies", section 4.2.5 and table 4.3.
"""

from __future__ import annotations

import random

from dask_hpc.sim.generators.generator import generator
from dask_hpc.sim.model.job import Compute, Job, Program, Repeat, SchedulingPoint, Transfer
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.params import Float, Int

#: Operations per second of a node, bytes per second of its link and of the file system (section 4.2.5.1).
NODE_FLOPS = 100e9
LINK_BYTES_S = 100e9 / 8
FILE_SYSTEM_BYTES_S = 48e9
NODES = 500
#: Largest load of an iteration: operations, and bytes of the checkpoint.
PEAK_FLOPS = 200e12
PEAK_BYTES = 256 * 2.0**30
#: Sizes of jobs, in nodes; numbers of iterations.
SMALLEST, LARGEST = 2, 20
FEWEST, MOST = 10, 25
#: Numbers of the jobs at which a peak of I/O begins, and how many jobs it has, of 4,000.
PEAKS = (447, 1283, 2414, 3355)
PEAK_JOBS = 200
_ALL = 4000


@generator(
    "io-aware",
    Int("jobs", _ALL, lo=1, hi=1_000_000, label="Jobs", help="number of jobs; the peaks keep their shares"),
    Float("mean_gap_s", 10.0, lo=0.0, hi=1e6, unit="s", label="Mean gap",
          help="mean time between two submissions (exponential); 0: all at once"),
    Float("malleable", 0.2, lo=0.0, hi=1.0, label="Malleable share",
          help="share of the jobs that are malleable"),
    Float("share_bytes_s", 4e9, lo=1.0, hi=1e15, unit="bytes/s", label="Contended share",
          help="bandwidth that a job is expected to get, for its I/O intensity"),
)  # fmt: skip
def io_aware(*, seed: int, jobs: int, mean_gap_s: float, malleable: float, share_bytes_s: float) -> Workload:
    """Jobs that compute and write a checkpoint, 10 to 25 times, with four peaks of I/O.

    Published: 500 nodes of 100 GFLOP/s behind links of 100 Gbit/s, a file system of 48 GB/s; 4,000 jobs, 80 %
    rigid and 20 % malleable; per iteration a computing load of Beta(1, 1) times 200 TFLOP and a checkpoint of
    Beta(2, 8) times 256 GiB, in the peaks (200 jobs each, from jobs 447, 1283, 2414 and 3355 on) of
    Beta(1, 0.1) times 256 GiB; 10 to 25 iterations, uniform; 2 to 20 nodes, of rigid jobs after the combined
    load, of malleable ones any; a scheduling point after each checkpoint; the I/O intensity is an attribute
    that is estimated from the system.

    Ours, because nothing is published: arrivals (exponential gaps, 10 s in the mean); which jobs are
    malleable (each with the probability of the share); the loads are those of the whole job, not of a node;
    size = 2 + 18 times the mean of both loads in shares of their largest, also what a malleable job prefers;
    the intensity assumes a contended share of 4 GB/s for the job, whatever its size; the walltime is twice
    the time that this gives on the smallest size the job may have.
    """
    rng = random.Random(seed)
    made = []
    submit_s = 0.0
    for number in range(1, jobs + 1):
        # always the same draws in the same order, so that an option changes only what it is for
        gap = rng.expovariate(1.0)
        flops_share = rng.betavariate(1.0, 1.0)
        calm, peak = rng.betavariate(2.0, 8.0), rng.betavariate(1.0, 0.1)
        iterations = rng.randint(FEWEST, MOST)
        is_malleable = rng.random() < malleable
        if number > 1:
            submit_s += gap * mean_gap_s
        bytes_share = peak if in_peak(number, jobs) else calm
        work_s = flops_share * PEAK_FLOPS / NODE_FLOPS
        size_bytes = bytes_share * PEAK_BYTES
        preferred = SMALLEST + round((LARGEST - SMALLEST) * (flops_share + bytes_share) / 2)
        low, high = (SMALLEST, LARGEST) if is_malleable else (preferred, preferred)
        io_s = size_bytes / share_bytes_s
        shares = tuple((n, io_s / (io_s + work_s / n)) for n in range(low, high + 1))
        # the source's "after each checkpoint"; after the last one there is nothing left to resize
        step = (Compute(work=work_s), Transfer(size_bytes=size_bytes, purpose="checkpoint"))
        rest = Repeat(stages=(SchedulingPoint(), *step), times=iterations - 1.0)
        made.append(
            Job(
                id=f"{number:04d}",
                submit_s=submit_s,
                start_nodes=None if is_malleable else preferred,
                min_nodes=low,
                max_nodes=high,
                kind="malleable" if is_malleable else "rigid",
                walltime_s=2 * iterations * (work_s / low + io_s),
                program=Program(stages=(*step, rest), resize="points"),
                preferred_nodes=preferred,
                io_intensity=dict(shares)[preferred],
                io_by_nodes=shares,
            )
        )
    machine = Machine(nodes=NODES, link_bytes_s=LINK_BYTES_S, file_system_bytes_s=FILE_SYSTEM_BYTES_S)
    return Workload(name="", jobs=tuple(made), machine=machine)


def in_peak(number: int, jobs: int = _ALL) -> bool:
    """Does job `number` (from 1) of `jobs` belong to a peak of I/O?"""
    place = (number - 1) * _ALL / jobs + 1
    return any(first <= place < first + PEAK_JOBS for first in PEAKS)
