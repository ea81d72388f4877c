"""Pools of a Slurm cluster: jobs of another kind, such as those on another partition.

Whatever a pool does not say is as in the default pool, the one that the cluster's own arguments describe.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask

from dask_hpc.deploy.pooled import checked, named, role_resources
from dask_hpc.deploy.slurm.jobs import SLURMJob, StockCluster
from dask_hpc.deploy.specified import DEFAULT_POOL
from dask_hpc_policies.model import COMPUTE

#: Arguments of the cluster as a whole: they are the same for all pools.
_OF_CLUSTER = set(inspect.signature(StockCluster).parameters) - {"interface"}
_OF_JOB = {name for cls in SLURMJob.__mro__[:-1] for name in inspect.signature(cls).parameters}
#: What a pool may say.
OPTIONS = frozenset(
    _OF_JOB - _OF_CLUSTER - {"args", "kwargs", "base_class_kwargs", "scheduler"} | {"jobs", "role"}
)


@dataclass(frozen=True)
class Pool:
    """Jobs of one kind."""

    name: str
    #: What the jobs have that is not as in the default pool.
    options: Mapping[str, Any]
    #: Jobs that the cluster starts with.
    jobs: int = 0
    #: What their nodes are for.
    role: str = COMPUTE

    def job_options(self, common: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the pool's jobs; `common` are those of the default pool's."""
        if self.name == DEFAULT_POOL:
            return dict(common)
        # so that tasks can be placed there: client.submit(..., resources={"staging": 1})
        resources = {
            self.name: None,
            **role_resources(self.role, None),
            **(self.options.get("resources") or {}),
        }
        return {**common, **self.options, "resources": resources}


def read_pools(
    pools: Mapping[str, Mapping[str, Any]] | None, config_name: str, common: Mapping[str, Any]
) -> dict[str, Pool]:
    """The pools of a cluster by name, the default one (no name) included.

    Parameters
    ----------
    pools
        Options by name of the pool, with ``-`` or ``_``; None: those of the configuration
        (``jobqueue.slurm.pools``).
    config_name
        Section of the ``jobqueue`` configuration, such as ``slurm``.
    common
        Arguments of the default pool's jobs.

    Raises
    ------
    ValueError
        When a name or an option is not allowed, or a job cannot be made of the options.
    """
    where = "pools"
    if pools is None:
        where = f"jobqueue.{config_name}.pools"
        pools = dask.config.get(where, None) or {}
    found = {DEFAULT_POOL: Pool(DEFAULT_POOL, {})}
    for name, given in named(where, pools):
        found[name] = _read(f"{where}[{name!r}]", name, given)
        try:
            options = found[name].job_options(common)
            SLURMJob("tcp://scheduler", name="one", config_name=config_name, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}[{name!r}]: {error}") from None
    return found


def _read(where: str, name: str, given: Any) -> Pool:
    options = checked(where, given, OPTIONS, "jobs")
    if any(str(word).startswith("--resources") for word in options.get("worker_extra_args") or ()):
        raise ValueError(f"{where}['worker_extra_args'] has --resources; give resources={{name: amount}}")
    return Pool(name, options, options.pop("jobs"), options.pop("role"))
