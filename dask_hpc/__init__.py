"""dask_hpc: a Dask cluster as a managed batch system.

``install(client)`` switches it on, ``runtime(client)`` finds it again, ``LocalCluster`` starts a
cluster that has it. Everything else is reached from the `Runtime` that these return.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_hpc._version import __version__

if TYPE_CHECKING:
    from dask_hpc.checkpoint.opening import open_checkpoint as open_checkpoint
    from dask_hpc.client.checkpoints import restore as restore
    from dask_hpc.client.runtime import Job as Job
    from dask_hpc.client.runtime import Runtime as Runtime
    from dask_hpc.client.runtime import install as install
    from dask_hpc.client.runtime import runtime as runtime
    from dask_hpc.coupling.source import Source as Source
    from dask_hpc.deploy.adaptive import PolicyAdaptive as PolicyAdaptive
    from dask_hpc.deploy.local import LocalCluster as LocalCluster
    from dask_hpc.deploy.slurm.cluster import SLURMCluster as SLURMCluster
    from dask_hpc.deploy.slurm.runner import SLURMRunner as SLURMRunner
    from dask_hpc.session.session import CheckpointSession as CheckpointSession
    from dask_hpc.show import explore as explore
    from dask_hpc.show import policies as policies
    from dask_hpc.worker.awaited import provide as provide
    from dask_hpc.worker.metered import metered as metered

# In the folder of a clone Python finds this package there, and the others where they were installed once:
# those beside this one come first.
_ROOT = Path(__file__).resolve().parents[1]
for _package in ("policies/dask_hpc_policies", "widgets/dask_hpc_widgets"):
    if (_ROOT / _package).is_dir():
        sys.path.insert(0, str((_ROOT / _package).parent))

_PUBLIC = {
    "CheckpointSession": "dask_hpc.session.session",
    "LocalCluster": "dask_hpc.deploy.local",
    "SLURMCluster": "dask_hpc.deploy.slurm.cluster",
    "SLURMRunner": "dask_hpc.deploy.slurm.runner",
    "PolicyAdaptive": "dask_hpc.deploy.adaptive",
    "Job": "dask_hpc.client.runtime",
    "Runtime": "dask_hpc.client.runtime",
    "Source": "dask_hpc.coupling.source",
    "explore": "dask_hpc.show",
    "install": "dask_hpc.client.runtime",
    "metered": "dask_hpc.worker.metered",
    "open_checkpoint": "dask_hpc.checkpoint.opening",
    "policies": "dask_hpc.show",
    "provide": "dask_hpc.worker.awaited",
    "restore": "dask_hpc.client.checkpoints",
    "runtime": "dask_hpc.client.runtime",
}
__all__ = [
    "CheckpointSession",
    "Job",
    "LocalCluster",
    "PolicyAdaptive",
    "Runtime",
    "SLURMCluster",
    "SLURMRunner",
    "Source",
    "__version__",
    "explore",
    "install",
    "metered",
    "open_checkpoint",
    "policies",
    "provide",
    "restore",
    "runtime",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = globals()[name] = getattr(importlib.import_module(_PUBLIC[name]), name)
        return value
    raise AttributeError(f"module 'dask_hpc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
