"""Jobs of a workload as live jobs whose tasks sleep.

Rules of the file: what is made of a job is decided here, without a cluster; what cannot be made of tasks is
refused with a reason, never made in another way.

The work of a job is cut into equal, independent tasks that occupy a node and do nothing. A job that takes
`T` seconds on `n` nodes becomes `n` times `ceil(T / task length)` of them, each a little shorter than that
or just as long, so that it takes exactly `T` on `n` nodes but for what Dask itself costs. With linear
speed-up the same tasks take `n T / m` on `m` nodes: the speed-up of the model comes from real parallelism.
With another model each node of a larger job gets less done, for which there are as many reasons as there are
applications. Here every task then takes longer, as long as the model says for the size that the job has when
the task begins, which it asks the scheduler for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import WorkloadError
from dask_hpc.sim.model.job import Job, computing_s
from dask_hpc.sim.model.machine import FREE, Failures
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.jobs.jobspec import (
    DURATIONS,
    InvalidJob,
    arguments,
    job_spec_from_mapping,
    resolve,
)

#: More than a scheduler should be given for a comparison.
MOST_TASKS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """One job as it is declared and submitted."""

    job: str
    submit_s: float
    #: Arguments of `Runtime.job`.
    fields: Mapping[str, Any]
    tasks: int
    #: Seconds that a task takes, by the size of the job when it begins: one number for any size, or one
    #: for each size up to the largest.
    length_s: float | tuple[float, ...]


def scaled(workload: Workload, speed: float) -> Workload:
    """`workload` from its first submission on, with all times divided by `speed`.

    Raises
    ------
    WorkloadError
        When `speed` is not above 0, or there is no job.
    """
    if not 0 < speed < math.inf:
        raise WorkloadError(f"a speed of {speed!r} must be above 0")
    if not workload.jobs:
        raise workload.wrong("there is no job to run")
    first_s = workload.jobs[0].submit_s
    jobs = []
    for job in workload.jobs:
        asked = {f"{name}_s": getattr(job, f"{name}_s") for name in DURATIONS}
        times: dict[str, Any] = {name: s if s is None else s / speed for name, s in asked.items()}
        submit_s, runtime_s = (job.submit_s - first_s) / speed, job.runtime_s / speed
        jobs.append(replace(job, submit_s=submit_s, runtime_s=runtime_s, **times))
    return replace(workload, jobs=tuple(jobs))


def plan(workload: Workload, nodes: int, task_length_s: float) -> list[TaskPlan]:
    """The tasks of every job of `workload` on a cluster of `nodes` nodes; none is longer than asked.

    Raises
    ------
    WorkloadError
        For a job that tasks cannot stand for, or that cannot be declared as it is; or when there would be
        too many tasks.
    """
    machine = workload.machine
    if machine is not None and machine.failures != Failures():
        raise workload.wrong("its nodes fail, which no live run imitates")
    if machine is not None and (machine.pool is not None or machine.roles):
        raise workload.wrong(
            "its nodes come and go, or play roles, which no live run imitates; "
            "leave pool and roles of the machine out"
        )
    beside = () if machine is None else (machine.domains, machine.hosts, machine.network_bytes_s)
    if any(one is not None for one in beside):
        raise workload.wrong(
            "its nodes have failure domains, or hosts, or links to one another, which no live run imitates; "
            "leave domains, hosts and network_bytes_s of the machine out"
        )
    if machine is not None and machine.adaptation != FREE:
        raise workload.wrong(
            "its resizes take as long as a model says, which no live run imitates; "
            "leave the adaptation of the machine out"
        )
    plans = [_plan(job, workload, nodes, task_length_s) for job in workload.jobs]
    tasks = sum(plan.tasks for plan in plans)
    if tasks > MOST_TASKS:
        raise WorkloadError(
            f"{workload.origin} would be {tasks} tasks, at most {MOST_TASKS} are allowed; "
            "take a longer --task-length or a larger --speed"
        )
    return plans


def _plan(job: Job, workload: Workload, nodes: int, task_length_s: float) -> TaskPlan:
    why = _why_not(job)
    if why:
        raise workload.wrong(
            f"job {job.id!r} {why}; a job that is compared with a live one is one stretch of computing with "
            "a size, bounds, a constraint and a walltime"
        )
    fields = _fields(job)
    try:
        resolved = resolve(job_spec_from_mapping(fields), nodes)
    except InvalidJob as error:
        raise workload.wrong(str(error)) from None
    wanted = (job.kind, job.nodes, job.min_nodes, job.max_nodes)
    declared = (resolved.kind, resolved.start_nodes, resolved.min_nodes, resolved.max_nodes)
    if declared != wanted:
        raise workload.wrong(
            f"job {job.id!r} (kind, start, minimum, maximum) is {wanted} and would be {declared} live"
        )
    reference = job.reference_nodes or job.nodes or job.max_nodes
    #: Work in node-seconds by size, over that at the reference size.
    growth = [n * computing_s(job, n) / (reference * job.runtime_s) for n in range(1, job.max_nodes + 1)]
    sizes = range(job.min_nodes, job.max_nodes + 1)
    longest = max(growth[n - 1] for n in sizes)
    rounds = max(1, math.ceil(job.runtime_s * longest / task_length_s - 1e-9))
    length_s = job.runtime_s / rounds
    alike = all(math.isclose(growth[n - 1], 1.0, rel_tol=1e-9) for n in sizes)
    return TaskPlan(
        job=job.id,
        submit_s=job.submit_s,
        fields=fields,
        tasks=reference * rounds,
        length_s=length_s if alike else tuple(length_s * share for share in growth),
    )


def _why_not(job: Job) -> str:
    if job.program is not None:
        return "has an application model (stages)"
    if job.kind == "evolving":
        return "is evolving"
    if not 0 < job.runtime_s < math.inf:
        return f"has a run time of {job.runtime_s!r} s"
    if job.preferred_nodes is not None:
        return "has a preferred size"
    if job.recorded_s is not None or job.io_by_nodes:
        return "has recorded run times"
    if job.adaptation is not None:
        return "has resizes that take as long as a model says"
    if job.checkpoints is not None:
        return "has checkpoints that cost something"
    return ""


def _fields(job: Job) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": job.id,
        "constraint": job.constraint,
        "walltime": job.walltime_s,
        "priority": job.priority,
        "io_intensity": job.io_intensity,
        **arguments(job),
    }
    if job.kind == "rigid":
        return {**fields, "nodes": job.nodes}
    bounds = {"min_nodes": job.min_nodes, "max_nodes": job.max_nodes}
    return {**fields, **bounds, "nodes": job.nodes, "rigid": job.kind == "moldable"}


# ---------------------------------------------------------------- on workers


def occupy(length_s: float) -> tuple[float, float]:
    """A task: take a node for `length_s` seconds; returns these, and how long it has taken indeed."""
    began_s = stopwatch_s()
    time.sleep(length_s)
    return length_s, stopwatch_s() - began_s


def occupy_by_size(job: str, lengths_s: tuple[float, ...]) -> tuple[float, float]:
    """A task of a job whose nodes slow each other down: take a node for as long as its size means.

    Returns the same as `occupy`.
    """
    from distributed import get_worker
    from distributed.utils import sync

    began_s = stopwatch_s()
    worker: Any = get_worker()

    async def nodes() -> int:
        answer = await worker.scheduler.hpc(method="job", arguments={"job": job})
        return int(answer["result"]["nodes"])

    size = sync(worker.loop, nodes)
    length_s = lengths_s[min(max(size, 1), len(lengths_s)) - 1]
    # asking is part of it
    time.sleep(max(0.0, length_s - (stopwatch_s() - began_s)))
    return length_s, stopwatch_s() - began_s
