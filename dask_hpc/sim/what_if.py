"""From a picture of a running cluster onwards: what would this policy do from here?

Rules of the file: a snapshot tells sizes and expected times, not work; what it expects is taken for what
happens. The clock goes on from the snapshot's; a job that runs begins at that moment, with the share of its
time that is left, so that waits and node-seconds of the run count from there. Plain work (the default job) is
left out, with the nodes that it holds. Nodes keep their roles, hosts and failure domains, and go when their
walltimes end; the file system is as fast as it has shown. What the snapshot does not tell of the machine is
left out, and a note of the workload says so. A job that needs more nodes than there are waits to the end of
the run, and has those wait that the policy keeps behind it. Metrics count from the snapshot on: what was
submitted before is taken as submitted then.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.life import RANKS
from dask_hpc.sim.model.domains import Domains
from dask_hpc.sim.model.job import LINEAR, Job, SpeedUp
from dask_hpc.sim.model.lending import EXTRA, lent_from
from dask_hpc.sim.model.machine import FREE, AdaptationCost, Failures, Machine, Options
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.power import NodePower
from dask_hpc.sim.model.workload import Workload
from dask_hpc.sim.run import Result, finished
from dask_hpc_policies import registry
from dask_hpc_policies.model import COMPUTE, ClusterSnapshot, JobRequest, JobView, NodeView
from dask_hpc_policies.rules.reservation import expected_s
from dask_hpc_policies.views import values_of
from dask_hpc_policies.wording import counted

#: Seconds until a node goes whose walltime has run out already.
_SOON_S = 1e-3


def engine_from(
    view: ClusterSnapshot,
    policy: Any,
    *,
    default_s: float | None = None,
    speed: SpeedUp = LINEAR,
    nodes: int | None = None,
    adaptation: AdaptationCost | None = None,
    pool: Pool | None = None,
    power: NodePower | None = None,
    failures: Failures | None = None,
    options: Options | None = None,
    lend_s: float | None = None,
    name: str = "what-if",
) -> Engine:
    """A simulation that goes on from `view`; `run` it, or `fork` it for several policies.

    The policy has not been asked yet.

    Parameters
    ----------
    policy
        Anything that `dask_hpc_policies.registry.create` takes. It begins with its initial state.
    default_s
        How long a job is taken to need of which the snapshot does not say; None: such a job is refused.
    speed
        How run times follow sizes.
    nodes
        Compute nodes; None: those that are idle or held by jobs, or as many as the pool of the snapshot may
        have. With `pool` the most there can be.
    adaptation
        What resizes cost; None: of each job what the snapshot has measured (how long windows of its producer
        took), nothing of the others.
    pool
        How further nodes come, and how long they stay; how many are there, and for how long yet, says the
        snapshot. None: as nodes have come so far, where the snapshot says that the cluster follows the load
        and for how long nodes were waited for; else none comes. Those that are there go at the ends of their
        walltimes, those that come stay.
    power
        What nodes draw; None: energy is not accounted for.
    failures
        What fails; None: nothing does. Nodes are numbered as `machine_of` says.
    lend_s
        Tasks up to so many seconds run on slots of other jobs that these cannot fill (``hpc.lend``); 0: none
        does. None: as the snapshot says, none where it does not.
    name
        Of the workload, for messages and results.

    Raises
    ------
    WorkloadError
        When the time of a job is not known, the snapshot has no node or no job, `nodes` are fewer than its
        jobs hold, or a failure is of a node that there is not, or of a domain where none is known.
    """
    held = sum(job.nodes for job in view.jobs if not job.is_default)
    machine_nodes = held + max(0, view.idle_nodes) if nodes is None else nodes
    if pool is None and (measured := _pool(view.sections.get("pool"))) is not None:
        pool, most = measured
        machine_nodes = max(machine_nodes, most) if nodes is None else nodes
    if not view.jobs and machine_nodes < 1:
        raise WorkloadError(f"{name}: no job runs or waits there, so there is nothing to go on from")
    if machine_nodes < 1:
        raise WorkloadError(f"{name}: the snapshot has neither idle nodes nor jobs that hold any")
    if machine_nodes < held:
        raise WorkloadError(f"{name}: jobs hold {held} nodes, a machine of {machine_nodes} is too small")
    views = sorted((job for job in view.jobs if not job.is_default), key=lambda job: job.submit_s)
    if not views:
        raise WorkloadError(f"{name}: no job waits or runs")
    costs = view.sections.get("resizes") if adaptation is None else None
    jobs = tuple(
        replace(_job(job, view.now_s, default_s, speed), adaptation=_measured(costs, job.id)) for job in views
    )
    running = sum(job.nodes > 0 for job in views)
    note = (
        f"state at {view.now_s:g} s: {running} jobs running, {len(views) - running} waiting, {machine_nodes} "
        "nodes; metrics count from there"
    )
    chosen = replace(options or Options(), snapshots=True, lock=view.lock)
    if (lent := lent_from(view, views, lend_s)) is not None:
        chosen = replace(chosen, extra={**chosen.extra, EXTRA: asdict(lent)})
    machine = machine_of(view, machine_nodes, held, views, pool)
    machine = replace(machine, adaptation=adaptation or FREE, power=power, failures=failures or Failures())
    told = (note, *filter(None, [unknowns(machine)]))
    workload = Workload(name=name, jobs=jobs, source=name, notes=told, wide="wait")
    engine = Engine(workload, registry.create(policy), machine, chosen)
    ranked = _ranked(view)
    active = [_active(i, job, view.now_s, ranked) for i, job in enumerate(zip(jobs, views, strict=True))]
    if speed == LINEAR:
        # which is assumed: a policy is told what it would be told there
        for (one, _), job in zip(active, views, strict=True):
            one.measured, one.mtct_previous = (job.mtct,), job.mtct_previous
    engine.adopt(view.now_s, active)
    return engine


def machine_of(
    view: ClusterSnapshot, nodes: int, held: int, views: Sequence[JobView], pool: Pool | None
) -> Machine:
    """The machine of `nodes` compute nodes, `held` of them by `views`, with the nodes of other roles beside.

    A run gives jobs nodes in the order of their numbers, so the nodes that jobs hold come first, job by job;
    then idle nodes, those of other roles, and those that are to come.
    """
    up = [node for node in view.nodes if node.state != "lost"]
    named = {job.id for job in views}
    free = [node for node in up if node.job not in named and node.role == COMPUTE]
    order: list[NodeView | None] = []
    for job in views:
        order += _exactly([node for node in up if node.job == job.id], job.nodes)
    # with a pool, what is beyond those of the snapshot has yet to come
    there = nodes if pool is None else min(nodes, held + max(0, view.idle_nodes))
    order += _exactly(free, there - held)
    others = [node for node in up if node.job not in named and node.role != COMPUTE]
    roles = Counter(node.role for node in others)
    for role in reversed(roles):
        # the first role has the highest numbers
        order += [node for node in others if node.role == role]
    left_s = [None if node is None else node.walltime_left_s for node in order]
    known = pool is not None or any(time_s is not None for time_s in left_s)
    if known:
        # a walltime that is over is about to end
        ends = tuple(None if time_s is None else max(time_s, _SOON_S) for time_s in left_s)
        law = Pool(initial_nodes=0, wait_s=None) if pool is None else pool
        pool = replace(law, initial_nodes=len(left_s), initial_walltimes_s=ends)
    order += [None] * (nodes - there)
    return Machine(
        nodes=nodes + len(others),
        pool=pool,
        roles=dict(roles) if view.nodes else None,
        hosts=_labels(None if node is None else node.host for node in order),
        domains=_labels(None if node is None else node.domain for node in order),
        file_system_bytes_s=_rate(view.sections),
    )


def unknowns(machine: Machine) -> str:
    """What the snapshot did not tell of a machine that was made from it; empty: it told all."""
    told = []
    for what, labels in (("host", machine.hosts), ("failure domain", machine.domains)):
        names = (None,) * machine.nodes if labels is None else labels.names
        if missing := names.count(None):
            told.append(f"the {what} of {counted(missing)} (such fail alone)")
    if machine.file_system_bytes_s is None:
        told.append("the bandwidth of the file system (reads and writes take no time)")
    return f"not known from there: {'; '.join(told)}" if told else ""


def _exactly(nodes: list[NodeView], count: int) -> list[NodeView | None]:
    """So many of these nodes; of those that are missing nothing is known."""
    return [*nodes[:count], *[None] * (count - len(nodes))]


def _labels(names: Iterable[str | None]) -> Domains | None:
    """The labels of nodes; None when none has one."""
    found = tuple(names)
    return Domains(names=found) if any(found) else None


def _pool(section: Any) -> tuple[Pool, int] | None:
    """How nodes come, and how many there may be, as far as the section of the snapshot says both."""
    found = section if isinstance(section, Mapping) else {}
    wait_s, most = found.get("wait_s"), found.get("most_nodes")
    if not isinstance(wait_s, (int, float)) or not isinstance(most, int) or not 0 <= wait_s < inf:
        return None
    return Pool(initial_nodes=0, wait_s=float(wait_s)), most


def _rate(sections: Mapping[str, Any]) -> float | None:
    """Bytes per second of the file system, the most that versions or tasks have shown; None: not said."""
    told = [
        section.get(name)
        for section, name in (
            (sections.get("file_system"), "written_bytes_s"),
            (sections.get("io"), "file_system_bytes_s"),
        )
        if isinstance(section, Mapping)
    ]
    known = [float(one) for one in told if isinstance(one, (int, float)) and 0 < one < inf]
    return max(known, default=None)


def simulate_from(
    view: ClusterSnapshot,
    policy: Any,
    *,
    options: Options | None = None,
    profile: bool = False,
    progress: Callable[[int], None] | None = None,
    trace: str | os.PathLike[str] | None = None,
    **more: Any,
) -> Result:
    """What `policy` would do from `view` on, to the end of all its jobs.

    ``result.from_s`` is the time of the snapshot, on its clock; all times of the result are on that clock.

    Parameters
    ----------
    view
        What ``Runtime.snapshot()`` gives, or the snapshot of a pass in a trace.
    profile, progress, trace
        As `dask_hpc.sim.simulate` takes them.
    **more
        As `engine_from` takes them.

    Raises
    ------
    WorkloadError
        As `engine_from`, or when `trace` cannot be written.
    """
    if trace is not None:
        options = replace(options or Options(), node_ids=True)
    engine = engine_from(view, policy, options=options, **more)
    return finished(engine, profile=profile, progress=progress, trace=trace)


def _job(job: JobView, now_s: float, default_s: float | None, speed: SpeedUp) -> Job:
    left_s = expected_s(job)
    if left_s == float("inf"):
        if default_s is None:
            raise WorkloadError(
                f"job {job.id!r}: the snapshot does not say how long it takes; give the job a "
                "walltime, or a time for all such jobs (--default-time, in Python default_s)"
            )
        left_s = default_s
    size = job.nodes or job.start_nodes or job.max_nodes
    return Job(
        **values_of(JobRequest, job),
        id=job.id,
        runtime_s=left_s + _done_s(job, now_s),
        reference_nodes=size,
        speed=speed,
    )


def _measured(costs: Any, id: str) -> AdaptationCost | None:
    """What the resizes of a job have cost, as far as the section of the snapshot says that."""
    found = costs.get(id) if isinstance(costs, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    given = {kind: found.get(f"{kind}_s") for kind in ("expand", "shrink")}
    known = {kind: float(s) for kind, s in given.items() if isinstance(s, (int, float)) and 0 <= s < inf}
    if not known:
        return None
    # which of the two was not seen is taken for as long as the other
    either_s = next(iter(known.values()))
    return AdaptationCost(
        expand_base_s=known.get("expand", either_s), shrink_base_s=known.get("shrink", either_s)
    )


def _done_s(job: JobView, now_s: float) -> float:
    """Seconds of what a job has to do that it has done, as far as it need not do that again."""
    if job.nodes:
        return 0.0 if job.start_s is None else max(0.0, now_s - job.start_s)
    if job.interruption == "none" or job.walltime_s is None or job.remaining_s is None:
        return 0.0
    return max(0.0, job.walltime_s - job.remaining_s)


def _ranked(view: ClusterSnapshot) -> bool:
    """Whether those that were interrupted are served first there: in a simulation; not on a live cluster."""
    ranks = [RANKS[job.interruption] for job in view.jobs if not job.nodes and not job.is_default]
    return ranks == sorted(ranks)


def _active(key: int, item: tuple[Job, JobView], now_s: float, ranked: bool) -> tuple[ActiveJob, int]:
    job, view = item
    active = ActiveJob(job, key)
    active.expansions = view.expansions
    active.before_node_s = view.attained_node_s
    active.interruption, active.interrupted_s = view.interruption, view.interrupted_s
    if ranked and not view.nodes:
        active.rank = RANKS[view.interruption]
    done_s = _done_s(view, now_s)
    if (view.nodes or done_s) and job.runtime_s > 0:
        active.kept = done_s / job.runtime_s
    return active, view.nodes
