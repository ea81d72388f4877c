"""dask_hpc: a Dask cluster as a managed batch system.

``install(client)`` switches it on, ``runtime(client)`` finds it again, ``LocalCluster`` starts a
cluster that has it. Everything else is reached from the `Runtime` that these return.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dask_hpc.adaptive import PolicyAdaptive as PolicyAdaptive
    from dask_hpc.client import Job as Job
    from dask_hpc.client import Runtime as Runtime
    from dask_hpc.client import install as install
    from dask_hpc.client import runtime as runtime
    from dask_hpc.cluster import LocalCluster as LocalCluster
    from dask_hpc.explorer import explore as explore
    from dask_hpc.rows import policies as policies
    from dask_hpc.slurm.cluster import SLURMCluster as SLURMCluster
    from dask_hpc.slurm.runner import SLURMRunner as SLURMRunner

_PUBLIC = {
    "LocalCluster": "dask_hpc.cluster",
    "SLURMCluster": "dask_hpc.slurm.cluster",
    "SLURMRunner": "dask_hpc.slurm.runner",
    "PolicyAdaptive": "dask_hpc.adaptive",
    "Job": "dask_hpc.client",
    "Runtime": "dask_hpc.client",
    "explore": "dask_hpc.explorer",
    "install": "dask_hpc.client",
    "policies": "dask_hpc.rows",
    "runtime": "dask_hpc.client",
}
__all__ = [
    "Job",
    "LocalCluster",
    "PolicyAdaptive",
    "Runtime",
    "SLURMCluster",
    "SLURMRunner",
    "__version__",
    "explore",
    "install",
    "policies",
    "runtime",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = globals()[name] = getattr(importlib.import_module(_PUBLIC[name]), name)
        return value
    raise AttributeError(f"module 'dask_hpc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
