"""From what a user asks for to a workload and its machine, for everything that simulates.

Rules of the file: no defaults of its own beyond those of what it calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.model.machine import PUBLISHED, Machine
from dask_hpc.sim.model.workload import Wide, Workload, fitted, machine_for, with_malleable_share
from dask_hpc.sim.workloads.recorded import read_recorded, with_recorded
from dask_hpc.sim.workloads.sources import load


def prepare(
    source: str | Path,
    *,
    nodes: int | None = None,
    malleable_share: float | None = None,
    seed: int = 0,
    wide: Wide = "refuse",
    adaptation: Literal["none", "published"] = "none",
    recorded: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Workload, Machine]:
    """The workload that `source` names, as it is asked for, and the machine to run it on.

    Parameters
    ----------
    source, options
        As `dask_hpc.sim.workloads.sources.load` takes them.
    nodes
        Size of the machine; None: that of the workload.
    malleable_share
        Share of the rigid jobs that is declared malleable, 0 to 1; None: jobs stay as they are.
    seed
        Of the workload and of the choice of malleable jobs.
    wide
        What becomes of jobs that need more nodes than there are.
    adaptation
        What a resize costs: nothing, or times that were published (`machine.PUBLISHED`).
    recorded
        File with earlier runs, for estimates.

    Raises
    ------
    WorkloadError
        As `load`; when the size of the machine is not known; when a job cannot run; as `read_recorded`.
    ValueError
        When `malleable_share` is not from 0 to 1.
    """
    given = dict(options or {})
    if "seed" in given:
        raise WorkloadError("seed is no option of a workload; give it as the seed of the run (--seed)")
    workload = load(source, seed=seed, **given)
    machine = machine_for(workload, nodes)
    if adaptation == "published":
        machine = replace(machine, adaptation=PUBLISHED)
    workload = fitted(workload, machine.nodes, wide)
    if malleable_share is not None:
        workload = with_malleable_share(workload, malleable_share, seed, machine.nodes)
    if recorded is not None:
        workload = with_recorded(workload, read_recorded(recorded, workload))
    return workload, machine
