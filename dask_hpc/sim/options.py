"""How a run is done, beside its workload, machine and policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dask_hpc_policies.model import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one run."""

    #: Seed of everything random in the run (failures).
    seed: int = 0
    #: Ask the policy every so many seconds as well, while any job waits or runs; None: at events alone.
    tick_s: float | None = None
    #: Seconds from asking the policy to its answer being carried out; it is not asked meanwhile.
    #: ``measured``: what `decide` really takes, so that the run is no function of its inputs any more.
    decision_s: float | Literal["measured"] = 0.0
    lock: Lock = "job"
    #: Which nodes a job holds is followed: for node maps and for failures.
    node_ids: bool = False
    #: Build snapshots for every call, also where the policy has an incremental form.
    snapshots: bool = False
    #: Note the rate of the file system over time.
    file_system_series: bool = False
