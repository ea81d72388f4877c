"""A Dask cluster on Slurm whose jobs come, end and are replaced without losing anything.

Every Slurm job is one node, however many worker processes it has. Its workers carry an agent
(`dask_hpc.agent`) that has them emptied before the walltime ends, on a notice and on SIGTERM. What has
become of the jobs is asked of `squeue`: jobs that have ended are replaced, and the successor of one
whose walltime runs out is asked for as long before as jobs have taken to come.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from distributed.core import Status

try:
    import dask_jobqueue.slurm
except ImportError as error:
    raise ImportError("SLURMCluster needs dask-jobqueue; pip install 'dask-hpc[slurm]'") from error

from dask_hpc.cluster import SafeScaling, logger
from dask_hpc.config import Settings, settings
from dask_hpc.errors import SlurmError
from dask_hpc.slurm import commands
from dask_hpc.slurm.rows import QueuedJob, is_over

#: After so many jobs in a row without a worker, no more are asked for.
_FAILURES = 3
_AGENT = "--preload dask_hpc.agent --preload-nanny dask_hpc.agent"


class SLURMJob(dask_jobqueue.slurm.SLURMJob):
    """A Slurm job with workers; `dask_jobqueue.slurm.SLURMJob` with the agent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # a shell between Slurm and the worker would keep Slurm's signals, or end on them
        self._command_template = f"exec {self._command_template} {_AGENT}"

    async def close(self) -> None:
        """Cancel the job."""
        await super().close()
        self.status = Status.closed


class SLURMCluster(SafeScaling, dask_jobqueue.slurm.SLURMCluster):
    """`dask_jobqueue.SLURMCluster` that loses nothing when it shrinks or its jobs end.

    Takes the same arguments and reads the same ``jobqueue.slurm`` configuration.

    Raises
    ------
    InstallError
        When the installed `distributed` is not one this release knows.

    Examples
    --------
    >>> cluster = SLURMCluster(cores=8, memory="16 GB", walltime="01:00:00")  # doctest: +SKIP
    >>> cluster.adapt(minimum_jobs=1, maximum_jobs=20)  # doctest: +SKIP
    """

    job_cls = SLURMJob
    _reconciling: asyncio.Task[None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Jobs (by specification) whose successor has been asked for.
        self._expiring: set[Any] = set()
        #: Seconds from the submission of a job to its first worker, the latest last.
        self.waits_s: deque[float] = deque(maxlen=20)
        #: How often Slurm was asked what has become of the jobs.
        self.asked = 0
        self._come: set[Any] = set()
        self._trouble = ""
        #: Jobs that have ended without a worker since one has come.
        self._failures = 0
        super().__init__(*args, **kwargs)

    def _settings(self) -> Settings:
        grouped = self._dummy_job.worker_processes > 1
        return settings().updated(node_by="job") if grouped else settings()

    async def _start(self) -> Any:
        result = await super()._start()
        self._reconciling = asyncio.ensure_future(self._reconcile())
        return result

    async def _close(self) -> None:
        if self._reconciling is not None:
            self._reconciling.cancel()
        await super()._close()

    def scale(  # type: ignore[override]
        self,
        n: int | None = None,
        jobs: int = 0,
        memory: Any = None,
        cores: int | None = None,
        dry_run: bool = False,
    ) -> Any:
        """Have `n` workers, or `jobs` jobs; see `SafeScaling.scale`. Only whole jobs leave."""
        if n is not None and jobs:
            raise ValueError(f"n is {n!r} (workers) and jobs is {jobs!r}; give one of them")
        if n is not None and not isinstance(n, int):
            raise ValueError(f"n is {n!r}; allowed: a whole number of workers, 0 or more")
        if n is not None:
            jobs = math.ceil(n / self._dummy_job.worker_processes)
        self._failures = 0
        return super().scale(jobs, memory=memory, cores=cores, dry_run=dry_run)

    def adapt(self, *args: Any, **kwargs: Any) -> Any:
        """Follow the load by whole jobs; takes ``minimum_jobs`` and ``maximum_jobs``, too."""
        processes = self._dummy_job.worker_processes
        for bound in ("minimum", "maximum"):
            if (jobs := kwargs.pop(f"{bound}_jobs", None)) is not None:
                kwargs[bound] = jobs * processes
        if processes > 1:
            kwargs.setdefault("worker_key", job_of)
        return super().adapt(*args, **kwargs)

    @property
    def _excess(self) -> int:
        # a job and its successor count once
        return super()._excess - (0 if self._wanted is None else len(self._expiring & set(self.worker_spec)))

    @property
    def expiring(self) -> set[Any]:
        """Names of workers of jobs whose successor has been asked for."""
        return {name for spec in self._expiring for name in self._workers_of(spec)}

    @property
    def workers_per_node(self) -> int:
        """Workers of a Slurm job."""
        return int(self._dummy_job.worker_processes)

    def new_worker_spec(self) -> Any:
        """The next job, under a name that no job has had before."""
        spec = super().new_worker_spec()
        self._i += 1
        return spec

    # ------------------------------------------------------------- reconcile

    async def _reconcile(self) -> None:
        """Ask Slurm what has become of the jobs, for as long as the cluster lives."""
        poll_s = settings().slurm_poll_s
        while self.status in (Status.created, Status.starting, Status.running):
            await asyncio.sleep(poll_s)
            jobs = {job.job_id: spec for spec, job in self.workers.items() if job.job_id}
            self.asked += 1
            try:
                rows = {str(row.number): row for row in await commands.squeue(jobs)}
                await self._compare(jobs, rows)
            except Exception as error:
                # whatever it is, it is said once and asked again: else jobs would silently stay unreplaced
                if repr(error) != self._trouble:
                    expected = isinstance(error, (SlurmError, OSError))
                    text = "What has become of the jobs is not known: %s"
                    logger.warning(text, error, exc_info=None if expected else error)
                self._trouble = repr(error)
            else:
                self._trouble = ""

    async def _compare(self, jobs: Mapping[str, Any], rows: Mapping[str, QueuedJob]) -> None:
        """Replace jobs (specifications by id) that Slurm has ended, or will end soon."""
        now_s, lead_s = time.time(), self._lead_s()
        there = await self._there()
        for id, spec in jobs.items():
            row = rows.get(id)
            if spec not in self.worker_spec:
                continue
            if row is None or is_over(row.state):
                self._ended(id, spec, row)
                del self.worker_spec[spec]
                if spec in self.workers:
                    self.workers.pop(spec).status = Status.closed
                continue
            connected = any(str(name) in there for name in self._workers_of(spec))
            if connected and spec not in self._come and row.submit_s is not None:
                self._come.add(spec)
                self._failures = 0
                self.waits_s.append(max(0.0, now_s - row.submit_s))
            if row.state == "RUNNING" and row.end_s is not None and row.end_s - now_s < lead_s:
                self._expiring.add(spec)
        self._expiring &= set(self.worker_spec)
        self._come &= set(self.worker_spec)
        while self._excess < 0:
            self.worker_spec.update(self.new_worker_spec())
        await self._open()

    def _ended(self, id: str, spec: Any, row: QueuedJob | None) -> None:
        """Say that a job has ended; after several that never had a worker, ask for no more."""
        how = "unknown to Slurm" if row is None else ", ".join(filter(None, (row.state, row.reason)))
        self._failures += spec not in self._come
        if self._failures < _FAILURES or self._wanted is None:
            logger.warning("Slurm job %s has ended (%s); it is replaced", id, how)
            return
        self._wanted = min(self._wanted, len(self.worker_spec) - 1)
        logger.error(
            "Slurm job %s has ended (%s): %d in a row without a worker; it is not replaced. What the jobs "
            "have printed is in %s; scale again when the cause is mended",
            id,
            how,
            self._failures,
            self._dummy_job.log_directory or "Slurm's output files",
        )

    def _lead_s(self) -> float:
        """How long before the end of a job its successor is asked for.

        The slowest of the latest jobs counts, not their median: a successor that comes late finds what
        it was to take over gone.
        """
        known = settings()
        wait_s = max(self.waits_s, default=0.0) + 2 * known.slurm_poll_s
        return known.walltime_notice_s + known.walltime_margin_s + wait_s


def job_of(worker: Any) -> str:
    """Name of the Slurm job that a worker of a job with several belongs to."""
    return str(worker.name).rpartition("-")[0]
