"""From a picture of a running cluster onwards: what would this policy do from here?

Rules of the file: a snapshot tells sizes and expected times, not work; what it expects is taken for what
happens. The clock goes on from the snapshot's; a job that runs begins at that moment, with the share of its
time that is left, so that waits and node-seconds of the run count from there. Plain work (the default job) is
left out, with the nodes that it holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.active import ActiveJob
from dask_hpc.sim.engine import Engine
from dask_hpc.sim.job import LINEAR, Job, SpeedUp
from dask_hpc.sim.machine import Machine
from dask_hpc.sim.options import Options
from dask_hpc.sim.workload import Workload
from dask_hpc_policies import registry
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.reservation import expected_s


def engine_from(
    view: ClusterSnapshot,
    policy: Any,
    *,
    default_s: float | None = None,
    speed: SpeedUp = LINEAR,
    options: Options | None = None,
) -> Engine:
    """A simulation that goes on from `view`; `run` it, or `fork` it for several policies.

    Parameters
    ----------
    policy
        Anything that `dask_hpc_policies.registry.create` takes. It begins with its initial state.
    default_s
        How long a job is taken to need of which the snapshot does not say; None: such a job is refused.
    speed
        How run times follow sizes.

    Raises
    ------
    WorkloadError
        When the time of a job is not known, or the snapshot has no node.
    """
    held = sum(job.nodes for job in view.jobs if not job.is_default)
    nodes = held + max(0, view.idle_nodes)
    if nodes < 1:
        raise WorkloadError("the snapshot has neither idle nodes nor jobs that hold any")
    views = sorted((job for job in view.jobs if not job.is_default), key=lambda job: job.submit_s)
    jobs = tuple(_job(job, view.now_s, default_s, speed) for job in views)
    workload = Workload(name="what-if", jobs=jobs, source="snapshot")
    chosen = replace(options or Options(), snapshots=True)
    engine = Engine(workload, registry.create(policy), Machine(nodes=nodes), chosen)
    engine.adopt(
        view.now_s, [_active(i, job, view.now_s) for i, job in enumerate(zip(jobs, views, strict=True))]
    )
    return engine


def _job(job: JobView, now_s: float, default_s: float | None, speed: SpeedUp) -> Job:
    left_s = expected_s(job)
    if left_s == float("inf"):
        if default_s is None:
            raise WorkloadError(
                f"job {job.id!r}: the snapshot does not say how long it takes; give default_s, or the job a "
                "walltime"
            )
        left_s = default_s
    size = job.nodes or job.start_nodes or job.max_nodes
    return Job(
        id=job.id,
        name=job.name,
        submit_s=job.submit_s,
        kind=job.kind,
        nodes=job.start_nodes,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        preferred_nodes=job.preferred_nodes,
        constraint=job.constraint,
        walltime_s=job.walltime_s,
        recorded_s=job.recorded_s,
        priority=job.priority,
        runtime_s=left_s + _elapsed_s(job, now_s),
        reference_nodes=size,
        speed=speed,
        io_intensity=job.io_intensity,
        io_by_nodes=job.io_by_nodes,
    )


def _elapsed_s(job: JobView, now_s: float) -> float:
    return 0.0 if job.start_s is None or not job.nodes else max(0.0, now_s - job.start_s)


def _active(key: int, item: tuple[Job, JobView], now_s: float) -> tuple[ActiveJob, int]:
    job, view = item
    active = ActiveJob(job, key)
    active.expansions = view.expansions
    if view.nodes and job.runtime_s > 0:
        active.kept = _elapsed_s(view, now_s) / job.runtime_s
    return active, view.nodes
