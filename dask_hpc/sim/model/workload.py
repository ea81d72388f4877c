"""A workload: jobs, the machine they were made for, and where they come from.

Rules of the file: no files here (see `sources`); every function returns a new workload.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from dask_hpc.errors import OptionError, WorkloadError
from dask_hpc.sim.model.job import Job, SpeedUp
from dask_hpc.sim.model.machine import Machine
from dask_hpc_policies.jobs import constraints

#: What becomes of jobs that need more nodes than the machine has: the workload is refused, they are left out,
#: cut to the machine, or they wait for ever, as on a cluster that nodes have left.
Wide = Literal["refuse", "drop", "clip", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in order of submission (equal times: in the order of the source)."""

    name: str
    jobs: tuple[Job, ...]
    #: The machine to use when the user names none; None: not known.
    machine: Machine | None = None
    #: File or ``builtin:NAME``.
    source: str = ""
    #: Seed it was generated from; None for a recorded one.
    seed: int | None = None
    #: What the reader left out or changed, one counted sentence each.
    notes: tuple[str, ...] = ()
    #: What becomes of jobs that are wider than the machine where nobody says otherwise.
    wide: Wide = "refuse"

    def __repr__(self) -> str:
        return f"<Workload {self.name!r} jobs={len(self.jobs)} source={self.source!r}>"

    def __deepcopy__(self, _: object) -> Workload:
        return self

    @property
    def origin(self) -> str:
        """Where it is from, else its name."""
        return self.source or self.name

    def wrong(self, text: str) -> WorkloadError:
        """The error that `text` is true of it; of one that is generated, options are wrong and no file."""
        kind = WorkloadError if self.seed is None else OptionError
        return kind(f"{self.origin}: {text}")


def ordered(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """`jobs` by submission; jobs of one moment keep their order."""
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def fitted(workload: Workload, nodes: int, wide: Wide | None = None) -> Workload:
    """`workload` for a machine of `nodes` nodes.

    Upper bounds beyond the machine are cut to it. A job that cannot run on so few nodes is left out
    (``drop``), or needs as many nodes as there are, or its constraint allows, with its run time as it is
    (``clip``); either is counted in the notes. With ``wait`` it stays as it is, and so it does wherever the
    workload goes from here.

    Parameters
    ----------
    wide
        None: as the workload says.

    Raises
    ------
    WorkloadError
        For a job that cannot run, with ``refuse``; or when no job is left.
    """
    wide = wide or workload.wide
    jobs: list[Job] = []
    changed = 0
    for job in workload.jobs:
        need = max(job.start_nodes or 0, job.min_nodes)
        if need > nodes and wide != "wait":
            changed += 1
            if wide == "refuse":
                raise workload.wrong(
                    f"job {job.id!r} needs {need} nodes, the machine has {nodes}; "
                    "take a larger --nodes, or --wide drop or clip"
                )
            if wide == "drop":
                continue
            size = constraints.largest_at_most(job.constraint, nodes, 1)
            if size is None:
                raise workload.wrong(
                    f"job {job.id!r} may have no size up to {nodes} nodes (constraint {job.constraint}); "
                    "--wide drop leaves it out"
                )
            preferred = None if job.preferred_nodes is None else min(job.preferred_nodes, size)
            job = replace(
                job,
                start_nodes=None if job.start_nodes is None else size,
                min_nodes=min(job.min_nodes, size),
                max_nodes=size,
                preferred_nodes=preferred,
                reference_nodes=0 if job.program is not None or job.start_nodes is None else size,
            )
        elif need <= nodes < job.max_nodes:
            reference = job.reference_nodes or job.start_nodes or job.max_nodes
            preferred = None if job.preferred_nodes is None else min(job.preferred_nodes, nodes)
            job = replace(job, max_nodes=nodes, reference_nodes=reference, preferred_nodes=preferred)
        jobs.append(job)
    if not jobs:
        raise workload.wrong(f"no job fits on {nodes} nodes")
    notes = workload.notes
    if changed:
        done = "left out" if wide == "drop" else f"clipped to at most {nodes}"
        notes = (*notes, f"{changed} jobs wider than the machine {done}")
    # of the others none is left that is too wide
    stays: Wide = "wait" if wide == "wait" else workload.wide
    return replace(workload, jobs=tuple(jobs), notes=notes, wide=stays)


def with_malleable_share(
    workload: Workload,
    share: float,
    seed: int,
    nodes: int,
    *,
    spread: float | None = None,
    speed: SpeedUp | None = None,
) -> Workload:
    """`workload` with a share of its rigid jobs declared malleable.

    Which ones is drawn from `seed`: the nearest whole number of jobs, each choice equally likely; the same
    seed gives the same choice for every policy, and a larger share holds the jobs of a smaller one. They
    start at the size they asked for.

    Parameters
    ----------
    share
        From 0 to 1, of the rigid jobs.
    nodes
        Size of the machine; no job may grow beyond it.
    spread
        Bounds of a job of n nodes: from n / spread to n * spread; None: from 1 to `nodes`. Both are moved
        inwards to legal sizes under the job's constraint.
    speed
        Speed-up of the declared jobs; None: that of the source, which is linear unless it says otherwise.

    Raises
    ------
    ValueError
        When `share` is not from 0 to 1, or `spread` is below 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"malleable share {share!r} must be from 0 to 1")
    if spread is not None and not 1 <= spread < float("inf"):
        raise ValueError(f"spread {spread!r} must be at least 1")
    rigid = [i for i, job in enumerate(workload.jobs) if job.kind == "rigid"]
    order = random.Random(seed).sample(rigid, len(rigid))
    chosen = order[: round(share * len(rigid))]
    jobs = list(workload.jobs)
    for i in chosen:
        job = jobs[i]
        low, high = _bounds(job, nodes, spread)
        jobs[i] = replace(
            job, kind="malleable", min_nodes=low, max_nodes=high, speed=job.speed if speed is None else speed
        )
    note = f"{len(chosen)} of {len(rigid)} rigid jobs declared malleable (seed {seed})"
    return replace(workload, jobs=tuple(jobs), notes=(*workload.notes, note))


def _bounds(job: Job, nodes: int, spread: float | None) -> tuple[int, int]:
    """Smallest and largest legal size; both are the size itself when no other is legal."""
    size = job.max_nodes
    low = 1 if spread is None else math.ceil(size / spread)
    high = max(size, nodes if spread is None else min(nodes, math.floor(size * spread)))
    return (
        constraints.smallest_at_least(job.constraint, low, size) or size,
        constraints.largest_at_most(job.constraint, high, size) or size,
    )


def machine_for(workload: Workload, nodes: int | None, machine: Machine | None = None) -> Machine:
    """The machine to run on: `machine`, else the workload's own, with `nodes` nodes when that is given.

    Raises
    ------
    WorkloadError
        When nothing says how many nodes there are.
    """
    base = machine or workload.machine
    if base is None:
        if nodes is None:
            raise workload.wrong("the workload does not say how many nodes its machine has; give --nodes")
        return Machine(nodes=nodes)
    return base if nodes is None else replace(base, nodes=nodes)
