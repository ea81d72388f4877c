"""A workload: jobs, the machine they were made for, and where they come from.

Rules of the file: no files here (see `sources`); every function returns a new workload.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dask_hpc.sim.job import Job
from dask_hpc.sim.machine import Machine


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

    def __deepcopy__(self, _: object) -> Workload:
        return self


def ordered(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """`jobs` by submission; jobs of one moment keep their order."""
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def with_malleable_share(workload: Workload, share: float, seed: int, nodes: int) -> Workload:
    """`workload` with a share of its rigid jobs declared malleable, from 1 to `nodes` nodes.

    Which ones is drawn from `seed`: the nearest whole number of jobs, each choice equally likely. They start
    at the size they asked for; their run time follows their speed-up model, linear unless the source says
    otherwise.

    Raises
    ------
    ValueError
        When `share` is not from 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"malleable share {share!r} must be from 0 to 1")
    rigid = [i for i, job in enumerate(workload.jobs) if job.kind == "rigid"]
    chosen = set(random.Random(seed).sample(rigid, round(share * len(rigid))))
    jobs = list(workload.jobs)
    for i in chosen:
        jobs[i] = replace(jobs[i], kind="malleable", min_nodes=1, max_nodes=max(nodes, jobs[i].max_nodes))
    note = f"{len(chosen)} of {len(rigid)} rigid jobs declared malleable (seed {seed})"
    return replace(workload, jobs=tuple(jobs), notes=(*workload.notes, note))
