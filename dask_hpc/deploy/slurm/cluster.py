"""A Dask cluster on Slurm whose jobs come, end and are replaced without losing anything.

Every Slurm job is one node, however many worker processes it has. Its workers carry an agent
(`dask_hpc.agent`) that has them emptied before the walltime ends, on a notice and on SIGTERM. What has
become of the jobs is asked of `squeue`: jobs that have ended are replaced, and the successor of one
whose walltime runs out is asked for as long before as jobs have taken to come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from dask.utils import parse_bytes

from dask_hpc.config import settings
from dask_hpc.deploy.arguments import check_counts, check_flags, workers_of
from dask_hpc.deploy.scaling import ENDED, logger
from dask_hpc.deploy.slurm.jobs import SLURMJob, StockCluster
from dask_hpc.deploy.slurm.pools import OPTIONS, read_pools
from dask_hpc.deploy.slurm.reconcile import Reconciled
from dask_hpc.deploy.specified import DEFAULT_POOL
from dask_hpc.scheduler.leaving.releases import Releases
from dask_hpc_policies.numeric import whole


class SLURMCluster(Reconciled, StockCluster):
    """`dask_jobqueue.SLURMCluster` that loses nothing when it shrinks or its jobs end.

    Takes the same arguments and reads the same ``jobqueue.slurm`` configuration.

    Parameters
    ----------
    pools
        More kinds of jobs, by name: what is not as in the arguments of the cluster (``queue``, ``cores``,
        ``memory``, ``processes``, ``walltime``, ``job_extra_directives``, ...), ``resources`` (Dask's, of
        each worker), ``role`` (``compute``, ``staging`` or ``reserve``: jobs and plain work get compute nodes
        alone) and ``jobs`` to start with. Workers of a pool have its name in theirs, and as much of
        a resource of that name as they have threads. None: ``jobqueue.slurm.pools`` of the configuration.
    resources
        Abstract resources (Dask's) of each worker, by name.

    Raises
    ------
    InstallError
        When the installed `distributed` is not one this release knows.
    ValueError
        When a pool has a name or an option that is not allowed.

    Examples
    --------
    >>> staging = {"queue": "staging", "cores": 2, "memory": "8 GB"}
    >>> cluster = SLURMCluster(cores=8, memory="16 GB", pools={"staging": staging})  # doctest: +SKIP
    >>> cluster.scale(jobs=1, pool="staging")  # doctest: +SKIP
    >>> cluster.adapt(minimum_jobs=1, maximum_jobs=20)  # doctest: +SKIP
    """

    job_cls = SLURMJob

    def __init__(
        self, *args: Any, pools: Mapping[str, Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> None:
        #: Pools by name; the default pool has none.
        self.pools = read_pools(pools, kwargs.get("config_name") or "slurm", of_jobs(kwargs))
        super().__init__(*args, **kwargs)
        self._check_walltimes()
        for pool in self.pools.values():
            if pool.jobs:
                self.scale(jobs=pool.jobs, pool=pool.name)

    def _install(self) -> Releases:
        releases = super()._install()
        state = releases.engine.state
        # it is as is configured, and a preload or a client may have installed it
        if self._grouped and state.nodes.by != "job" and not releases.engine.awake:
            releases.engine.use_settings(state.settings.updated(node_by="job"))
        return releases

    def scale(  # type: ignore[override]
        self,
        n: int | None = None,
        jobs: int | None = None,
        memory: Any = None,
        cores: int | None = None,
        dry_run: bool = False,
        force: bool = False,
        pool: str | None = None,
    ) -> Any:
        """Have `n` workers, or `jobs` jobs, in a pool; see `SafeScaling.scale`. Only whole jobs leave.

        Parameters
        ----------
        n, jobs, memory, cores
            How many workers or jobs, or as many as have that memory or those cores together.
        dry_run
            Change nothing; return what would be done.
        force
            Let also those go that cannot be emptied; what is lost is named.
        pool
            Name of the pool; None: the default one.
        """
        if self.status in ENDED:
            return super().scale()
        if n is not None and jobs:
            raise ValueError(f"n is {n!r} (workers) and jobs is {jobs!r}; give one of them")
        if n is None and jobs is None and memory is None and cores is None:
            raise ValueError("scale got no size; allowed: n (workers), jobs, memory or cores")
        check_counts(n=n, jobs=jobs, cores=cores)
        check_flags(dry_run=dry_run, force=force)
        name = self._known(pool)
        job = self._job(name)
        wanted = max(
            math.ceil(jobs or 0),
            math.ceil((n or 0) / job.worker_processes),
            math.ceil((cores or 0) / (job.worker_cores or 1)),
            math.ceil(parse_bytes(memory or 0) / (job.worker_memory or 1)),
        )
        if not dry_run:
            wanted = self._sensible(name, wanted)
        return self._scale_pool(name, wanted, dry_run, force)

    def adapt(self, *args: Any, **kwargs: Any) -> Any:
        """Follow the load by whole jobs of the default pool; takes ``minimum_jobs`` and ``maximum_jobs``.

        What never gets a worker is asked for three times in a row, and then once in five minutes.
        """
        for bound in ("minimum", "maximum"):
            if (jobs := kwargs.pop(f"{bound}_jobs", None)) is not None:
                if kwargs.get(bound) is not None:
                    text = f"{bound} is {kwargs[bound]!r} (workers) and {bound}_jobs is {jobs!r}"
                    raise ValueError(f"{text}; give one of them")
                kwargs[bound] = workers_of(f"{bound}_jobs", jobs, self.workers_per_node)
        most, each = whole(kwargs.get("maximum")), self.workers_per_node
        if most is not None and 0 < most < each:  # for ever
            text = f"maximum is {most!r} (workers), less than the {each} of a job; none would come"
            raise ValueError(f"{text}: write maximum_jobs=1, or {each} or more")
        if self._grouped:
            kwargs.setdefault("worker_key", job_of)
        self._failures.clear()
        return super().adapt(*args, **kwargs)

    @property
    def workers_per_node(self) -> int:
        """Workers of a job of the default pool."""
        return self._processes[DEFAULT_POOL]

    def new_worker_spec(self, pool: str = DEFAULT_POOL) -> dict[Any, Any]:
        """The next job of a pool, under a name that no job has had before."""
        [(name, spec)] = super().new_worker_spec().items()
        if pool != DEFAULT_POOL:
            name = f"{self._name}-{pool}-{self._i}"
        self._i += 1
        options = self.pools[pool].job_options(spec["options"])
        processes = self._processes[pool]
        made = {"cls": spec["cls"], "options": options, "pool": pool}
        if self._grouped:
            made["group"] = [f"-{number}" for number in range(processes)]
            if processes == 1:
                # called like those of jobs with several: what comes before the number is the node
                options["name"] = f"{name}-0"
        return {name: made}

    def job_script(self, pool: str | None = None) -> str:
        """The script of the jobs of a pool."""
        return str(self._job(self._known(pool)).job_script())

    def _resources(self, pool: str) -> Mapping[str, Any]:
        return self.pools[pool].job_options(self._job_kwargs).get("resources") or {}

    # ----------------------------------------------------------------- pools

    def _job(self, pool: str) -> SLURMJob:
        """A job like those of the pool."""
        if pool == DEFAULT_POOL:
            return self._dummy_job
        return self.job_cls("tcp://scheduler", name="one", **self.pools[pool].job_options(self._job_kwargs))

    @cached_property
    def _processes(self) -> dict[str, int]:
        """Workers of a job of each pool; making a job to ask it is too much for every look."""
        return {pool: int(self._job(pool).worker_processes) for pool in self.pools}

    @property
    def _grouped(self) -> bool:
        """Whether jobs have several workers."""
        return max(self._processes.values()) > 1

    def _threads_per_worker(self) -> int:
        return int(self._dummy_job.worker_process_threads)

    def _memory_per_worker(self) -> int:
        return int(self._dummy_job.worker_memory // self._dummy_job.worker_processes)

    def _next_spec(self, pool: str) -> dict[Any, Any]:
        return self.new_worker_spec(pool)

    def _check_walltimes(self) -> None:
        known = settings()
        for pool in self.pools:
            walltime_s = self._job(pool).walltime_s
            if walltime_s is not None and walltime_s < known.walltime_notice_s + known.walltime_margin_s:
                logger.warning(
                    "The walltime of %s is %.0f s: less than hpc.walltime.notice (%.0f s) and "
                    "hpc.walltime.margin (%.0f s) together; workers take tasks for half of that time only",
                    f"pool {pool!r}" if pool else "the jobs",
                    walltime_s,
                    known.walltime_notice_s,
                    known.walltime_margin_s,
                )


def of_jobs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a cluster's arguments that are about its jobs."""
    return {name: value for name, value in options.items() if name in OPTIONS}


def job_of(worker: Any) -> str:
    """Name of the Slurm job that a worker of a job with several belongs to."""
    return str(worker.name).rpartition("-")[0]
