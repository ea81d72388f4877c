"""Pools of a Slurm cluster: jobs of another kind, such as those on another partition.

Whatever a pool does not say is as in the default pool, the one that the cluster's own arguments describe.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask

from dask_hpc.deploy.adaptive import PolicyAdaptive
from dask_hpc.deploy.slurm.jobs import NAME, NAMES, SLURMJob, StockCluster
from dask_hpc.deploy.specified import DEFAULT_POOL

#: Arguments of the cluster as a whole: they are the same for all pools.
_OF_CLUSTER = set(inspect.signature(StockCluster).parameters) - {"interface"}
_OF_JOB = {name for cls in SLURMJob.__mro__[:-1] for name in inspect.signature(cls).parameters}
#: What a pool may say.
OPTIONS = frozenset(_OF_JOB - _OF_CLUSTER - {"args", "kwargs", "base_class_kwargs", "scheduler"} | {"jobs"})


@dataclass(frozen=True)
class Pool:
    """Jobs of one kind."""

    name: str
    #: What the jobs have that is not as in the default pool.
    options: Mapping[str, Any]
    #: Jobs that the cluster starts with.
    jobs: int = 0

    def job_options(self, common: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the pool's jobs; `common` are those of the default pool's."""
        if self.name == DEFAULT_POOL:
            return dict(common)
        # so that tasks can be placed there: client.submit(..., resources={"staging": 1})
        resources = {self.name: None, **(self.options.get("resources") or {})}
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
    if not isinstance(pools, Mapping):
        raise ValueError(f"{where} is {pools!r}; allowed: options by name of the pool")
    found = {DEFAULT_POOL: Pool(DEFAULT_POOL, {})}
    for name, given in pools.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{where} has the name {name!r}; allowed: {NAMES}")
        found[name] = _read(f"{where}[{name!r}]", name, given)
        try:
            options = found[name].job_options(common)
            SLURMJob("tcp://scheduler", name="one", config_name=config_name, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}[{name!r}]: {error}") from None
    return found


def _read(where: str, name: str, given: Any) -> Pool:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} is {given!r}; allowed: options, such as {{'queue': 'staging'}}")
    options = {str(key).replace("-", "_"): value for key, value in given.items()}
    for key in options:
        if key not in OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(sorted(OPTIONS))}"
            raise ValueError(f"{where} has the option {key!r}; {hint}")
    jobs = options.pop("jobs", 0)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 0:
        raise ValueError(f"{where}['jobs'] is {jobs!r}; allowed: a whole number, 0 or more")
    if any(str(word).startswith("--resources") for word in options.get("worker_extra_args") or ()):
        raise ValueError(f"{where}['worker_extra_args'] has --resources; give resources={{name: amount}}")
    if not isinstance(options.get("resources") or {}, Mapping):
        raise ValueError(f"{where}['resources'] is {options['resources']!r}; allowed: amounts by name")
    return Pool(name, options, jobs)


class PoolAdaptive(PolicyAdaptive):
    """Adaptive scaling of the default pool; workers of the others are neither counted nor let go."""

    def _mine(self, names: set[Any]) -> set[Any]:
        elsewhere = self.cluster.elsewhere()
        return {name for name in names if str(name) not in elsewhere}

    @property
    def plan(self) -> set[Any]:
        """Names of workers of the pool that there should be."""
        return self._mine(super().plan)

    @property
    def requested(self) -> set[Any]:
        """Names of workers of the pool that have been started."""
        return self._mine(super().requested)

    @property
    def observed(self) -> set[Any]:
        """Names of workers of the pool that are connected."""
        return self._mine(super().observed)

    @property
    def elsewhere(self) -> dict[str, list[str]]:
        """Workers of the other pools: they do their part of the work, and have their own."""
        cluster = self.cluster
        return {"elsewhere": sorted(cluster.elsewhere()), "resources": cluster.resources_elsewhere()}

    async def workers_to_close(self, target: int) -> list[Any]:
        """Names of workers of the pool that should go."""
        there = super().observed
        # left alone for ever, like those that could not go are for a while
        self._kept_until_s |= dict.fromkeys(there - self._mine(there), float("inf"))
        return await super().workers_to_close(target)
