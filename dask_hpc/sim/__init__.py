"""The simulator: what a policy would do to a workload on a machine, with the policy objects that run live.

Rules of the package: no Dask, no cluster, no clock but for profiles; chance only from a seed. Imports go
down: `run` over `engine` over `workload` over `job` and `machine`.

    from dask_hpc import sim

    result = sim.simulate(sim.load("trace.swf.gz"), "easy", nodes=100)
    result.metrics()["mean_wait_s"]
"""

from __future__ import annotations

from dask_hpc.sim.model.machine import Machine, Options
from dask_hpc.sim.model.workload import Workload
from dask_hpc.sim.run import Result, simulate
from dask_hpc.sim.workloads.sources import load

__all__ = ["Machine", "Options", "Result", "Workload", "load", "simulate"]
