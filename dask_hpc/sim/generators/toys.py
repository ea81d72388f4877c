"""Small workloads whose schedules can be drawn by hand."""

from __future__ import annotations

from dataclasses import replace

from dask_hpc.sim.generators.generator import generator, speed_of, speed_options
from dask_hpc.sim.model.job import Job, computing_s
from dask_hpc.sim.model.machine import Failures, Machine, NodeFailure
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.params import Float


def _rigid(number: int, nodes: int, runtime_s: float, submit_s: float = 0.0) -> Job:
    return Job(
        id=f"J{number}",
        name=f"J{number}",
        submit_s=submit_s,
        start_nodes=nodes,
        min_nodes=nodes,
        max_nodes=nodes,
        runtime_s=runtime_s,
        walltime_s=runtime_s,
    )


@generator("figure-5-1")
def figure_5_1(*, seed: int) -> Workload:
    """Four jobs of four seconds on ten nodes, that FCFS and EASY start at other times.

    Chadha (2019, section 5.1, figure 5.1): 10 processors, J1 and J4 need 8, every job runs 4 time units. The
    sizes of J2 (4) and J3 (2) follow from the idle processors that the text counts; the unit is a second
    (ours).
    """
    sizes = (8, 4, 2, 8)
    jobs = tuple(_rigid(number, nodes, 4.0) for number, nodes in enumerate(sizes, start=1))
    return Workload(name="", jobs=jobs, machine=Machine(nodes=10))


#: Size at the start, and run time on it.
_FIVE = ((4, 700.0), (16, 200.0), (6, 600.0), (10, 700.0), (8, 400.0))


@generator(
    "five-jobs",
    Float(
        "malleable",
        1.0,
        lo=0.0,
        hi=1.0,
        label="Malleable",
        help="1: all jobs are malleable; 0: all are rigid",
    ),
    *speed_options("power-law", 0.3),
)
def five_jobs(*, seed: int, malleable: float, speedup: str, speedup_parameter: float) -> Workload:
    """Five jobs on 16 nodes, one each 100 s: the case study of malleable batch scheduling.

    Chadha (2019, section 7.3): 16 nodes, start sizes 4, 16, 6, 10 and 8, one submission each 100 s, from 4
    to 16 nodes without constraint. The run times are not published. Ours, 700, 200, 600, 700 and 400 s with
    run times that fall with the power 0.3 of the size, satisfy every statement about the rigid run; the
    walltime of a job is its run time on its smallest size.
    """
    speed = speed_of(speedup, speedup_parameter)
    jobs = []
    for number, (nodes, runtime_s) in enumerate(_FIVE, start=1):
        job = replace(_rigid(number, nodes, runtime_s, 100.0 * (number - 1)), speed=speed)
        if malleable >= 0.5:
            job = replace(job, kind="malleable", min_nodes=4, max_nodes=16, walltime_s=computing_s(job, 4))
        jobs.append(job)
    notes = ("run times chosen by us: 700, 200, 600, 700 and 400 s; the source publishes none",)
    return Workload(name="", jobs=tuple(jobs), machine=Machine(nodes=16), notes=notes)


@generator("node-stealing")
def node_stealing(*, seed: int) -> Workload:
    """Five jobs on eight nodes, one of which fails after a second for five seconds.

    ADMIRE (2023, deliverable D3.3, section 3.1.1, figure 3.1 and table 3.1): sizes 1, 1, 6,
    6 and 1, lengths 8, 5, 10, 10 and 2, all released at 0 in this order; processor P3 fails at 1 and is back
    at 6; no checkpoints. The unit is a second (ours).
    """
    rows = ((1, 8.0), (1, 5.0), (6, 10.0), (6, 10.0), (1, 2.0))
    jobs = tuple(_rigid(number, nodes, length) for number, (nodes, length) in enumerate(rows, start=1))
    failure = NodeFailure(t_s=1.0, node=2, downtime_s=5.0)
    return Workload(name="", jobs=jobs, machine=Machine(nodes=8, failures=Failures(listed=(failure,))))


#: User, submission, and work in node-seconds: one large job, a middle one, then small ones.
_THREE_USERS = (
    ("ada", 0.0, 156.0), ("bob", 4.0, 12.0), ("eve", 6.0, 6.0), ("eve", 12.0, 6.0), ("eve", 18.0, 6.0)
)  # fmt: skip


@generator("three-users")
def three_users(*, seed: int) -> Workload:
    """Three users with unequal jobs on six nodes, who declare nothing but names.

    Many short tasks each, so that a job speeds up linearly and may have any size. Ours: in the order of
    submission the mean turnaround is 20.8 s; the least that any scheduler reaches, shortest remaining time
    first, is 7.2 s.
    """
    nodes = 6
    jobs = [
        Job(
            id=f"{user}-{number}",
            name=user,
            user=user,
            submit_s=submit_s,
            kind="malleable",
            start_nodes=None,
            min_nodes=1,
            max_nodes=nodes,
            runtime_s=work_node_s / nodes,
            reference_nodes=nodes,
        )
        for number, (user, submit_s, work_node_s) in enumerate(_THREE_USERS, start=1)
    ]
    return Workload(name="", jobs=tuple(jobs), machine=Machine(nodes=nodes))
