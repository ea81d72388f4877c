"""Keeping the jobs of a cluster in line with what Slurm says has become of them.

Jobs that have ended are replaced, and the successor of one whose walltime runs out is asked for as long
before as jobs have taken to come. After several in a row that never had a worker, no more are asked for.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from distributed.core import Status

from dask_hpc.config import Settings, settings
from dask_hpc.deploy.pooled import Pooled
from dask_hpc.deploy.scaling import logger
from dask_hpc.deploy.slurm.jobs import TOGETHER, SLURMJob
from dask_hpc.deploy.slurm.pools import Pool
from dask_hpc.deploy.specified import DEFAULT_POOL
from dask_hpc.errors import SlurmError
from dask_hpc.slurm import commands
from dask_hpc.slurm.rows import QueuedJob, is_over

#: After so many jobs in a row without a worker, no more are asked for.
FAILURES = 3
#: How long an adaptive cluster then asks for no more, before it tries one.
RETRY_S = 300.0
#: How long `squeue` may take.
SQUEUE_S = 30.0
#: A job that goes on without a worker for so long does so for ever: nannies have given up by then.
LOST_S = 300.0
#: Ends that differ by less are the same.
_SAME_S = 1.0


class Reconciled(Pooled):
    """A cluster whose specifications are Slurm jobs, in pools."""

    #: Pools by name; the default pool has none.
    pools: Mapping[str, Pool]
    #: Gives a job like those of a pool.
    _job: Callable[[str], SLURMJob]
    _reconciling: asyncio.Task[None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: When jobs end (by specification) whose successor has been asked for.
        self._expiring: dict[Any, float] = {}
        #: Seconds from the submission of a job to its first worker, by pool, the latest last.
        self.waits_s: dict[str, deque[float]] = {pool: deque(maxlen=20) for pool in self.pools}
        #: How often Slurm was asked what has become of the jobs.
        self.asked = 0
        self._come: set[Any] = set()
        #: Since when jobs that run have had no worker any more.
        self._lost_s: dict[Any, float] = {}
        #: Jobs that Slurm has begun.
        self._begun: set[Any] = set()
        self._trouble = ""
        #: Ids of jobs that were submitted, as long as Slurm may go on with them.
        self._submitted: set[str] = set()
        #: Jobs of each pool that have ended without a worker since one has come, and when the last one did.
        self._failures: Counter[str] = Counter()
        self._failed_s = 0.0
        #: Whether one job is asked for, and others once Slurm has taken it.
        self._trying = False
        super().__init__(*args, **kwargs)

    async def _start(self) -> Any:
        result = await super()._start()
        self._reconciling = asyncio.ensure_future(self._reconcile())
        return result

    async def _close(self) -> None:
        if self._reconciling is not None:
            self._reconciling.cancel()
        await super()._close()

    async def _correct_state_internal(self) -> None:
        TOGETHER.set({})
        try:
            await super()._correct_state_internal()
        finally:
            self._submitted |= {str(job.job_id) for job in list(self.workers.values()) if job.job_id}

    @property
    def expiring(self) -> set[Any]:
        """Names of workers of jobs whose successor has been asked for."""
        return {name for spec in self._expiring for name in self._workers_of(spec)}

    @property
    def queued(self) -> set[Any]:
        """Names of workers of jobs that wait in Slurm's queue, as far as it was asked."""
        waiting = set(self.worker_spec) - self._begun
        return {name for spec in waiting for name in self._workers_of(spec)}

    def _followed(self, pool: str) -> list[Any]:
        return [spec for spec in self._staying(pool) if spec in self._expiring]

    def _sensible(self, pool: str, jobs: int) -> int:
        """How many jobs to ask for: an adaptive cluster asks for as many again, whatever becomes of them."""
        if self._adaptive is None or self._adaptive.state != "running" or pool != DEFAULT_POOL:
            del self._failures[pool]
        elif self._failures[pool] or self._trying:
            there = len(self._specs(pool))
            if self._failures[pool] >= FAILURES and time.monotonic() > self._failed_s + RETRY_S:
                self._failures[pool] = FAILURES - 1
            may = self._failures[pool] < FAILURES and not self._trying
            return min(jobs, there + may)
        return jobs

    def _at_once(self, pool: str) -> float:
        return 1 if self._failures[pool] else math.inf  # after one that failed, one is tried

    def _grow(self, pool: str, most: float) -> None:
        # the successor of a job is wanted also where no more than there are were asked for
        if self._failures[pool] < FAILURES:
            super()._grow(pool, most)

    async def _replace(self) -> None:
        """Ask for what is missing: for one job of a pool, and for the others once Slurm has taken that."""
        before = self._failures.copy()
        self._trying = True
        try:
            for pool in self.pools:
                self._grow(pool, 1)
            await self._open(again=True)
        finally:
            self._trying = False
        for pool in self.pools:
            if self._failures[pool] == before[pool]:
                self._grow(pool, math.inf)
        await self._open()

    def _not_started(self, pools: Iterable[str]) -> None:
        self._failures.update(pools)
        self._failed_s = time.monotonic()

    async def _reconcile(self) -> None:
        """Ask Slurm what has become of the jobs, for as long as the cluster lives."""
        poll_s = settings().slurm_poll_s
        while self.status in (Status.created, Status.starting, Status.running):
            await asyncio.sleep(poll_s)
            jobs = {job.job_id: spec for spec, job in list(self.workers.items()) if job.job_id}
            # what is submitted from here on has no row yet
            asked = {*self._submitted, *jobs}
            self.asked += 1
            try:
                found = await commands.squeue(sorted(asked), timeout_s=SQUEUE_S)
                rows = {str(row.number): row for row in found}
                await self._cancel_again({id: rows.get(id) for id in asked - jobs.keys()})
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

    async def _cancel_again(self, closed: Mapping[str, QueuedJob | None]) -> None:
        """Cancel closed jobs that Slurm goes on with: it has not heard that they were cancelled."""
        there = {id for id, row in closed.items() if row is not None and not is_over(row.state)}
        self._submitted -= closed.keys() - there
        with suppress(SlurmError):  # that it cannot was said when they were closed
            await commands.scancel(sorted(there))

    async def _compare(self, jobs: Mapping[str, Any], rows: Mapping[str, QueuedJob]) -> None:
        """Replace jobs (specifications by id) that Slurm has ended, or will end soon."""
        now_s, known = time.time(), settings()
        there = self._there()
        extended: set[str] = set()
        for id, spec in jobs.items():
            row = rows.get(id)
            if spec not in self.worker_spec:
                continue
            connected = any(str(name) in there for name in self._workers_of(spec))
            if row is None and connected:
                continue  # whatever Slurm has forgotten, nothing has ended
            if row is None or is_over(row.state):
                self._ended(id, spec, row)
                del self.worker_spec[spec]
                if spec in self.workers:
                    self.workers.pop(spec).status = Status.closed
                continue
            if connected or row.state != "RUNNING" or spec not in self._come:
                self._lost_s.pop(spec, None)
            elif now_s - self._lost_s.setdefault(spec, now_s) > LOST_S:
                logger.warning("Slurm job %s runs without a worker; another one takes its place", id)
                del self.worker_spec[spec]
                continue
            if row.state != "PENDING":
                self._begun.add(spec)
            else:  # perhaps again: Slurm may put it back into its queue
                self._begun.discard(spec)
            if connected and spec not in self._come and row.submit_s is not None:
                self._come.add(spec)
                pool = self._pool_of(spec)
                del self._failures[pool]
                self.waits_s[pool].append(max(0.0, now_s - row.submit_s))
            if row.state == "RUNNING" and row.end_s is not None:
                pool = self._pool_of(spec)
                before_s = lead_s(row.time_limit_s, self.waits_s[pool], known)
                if is_followed(row.end_s, row.end_s - now_s < before_s, self._expiring.get(spec)):
                    self._expiring[spec] = row.end_s
                elif self._expiring.pop(spec, None) is not None:
                    # it counts again, and what was to follow it is one too many
                    extended.add(pool)
        self._expiring = {spec: end_s for spec, end_s in self._expiring.items() if spec in self.worker_spec}
        self._come &= set(self.worker_spec)
        self._lost_s = {spec: at_s for spec, at_s in self._lost_s.items() if spec in self.worker_spec}
        self._begun &= set(self.worker_spec)
        await self._replace()
        for pool in extended:
            await self._adjust(pool)

    def _ended(self, id: str, spec: Any, row: QueuedJob | None) -> None:
        """Say that a job has ended; after several that never had a worker, ask for no more."""
        how = "unknown to Slurm" if row is None else ", ".join(filter(None, (row.state, row.reason)))
        pool = self._pool_of(spec)
        if spec not in self._come:
            self._not_started([pool])
        elif spec in self._expiring:
            # its successor may have been refused because there were as many as there may be
            self._failures[pool] = min(self._failures[pool], FAILURES - 1)
        if self._failures[pool] < FAILURES or pool not in self._wanted:
            logger.warning("Slurm job %s has ended (%s); it is replaced", id, how)
            return
        self._wanted[pool] = min(self._wanted[pool], len(self._specs(pool)) - 1)
        logger.error(
            "Slurm job %s has ended (%s): %d in a row without a worker; it is not replaced. What the jobs "
            "have printed is in %s; scale or adapt again when the cause is mended",
            id,
            how,
            self._failures[pool],
            self._job(pool).log_directory or "Slurm's output files",
        )


def is_followed(end_s: float, is_due: bool, known_end_s: float | None) -> bool:
    """Whether a job needs a successor.

    Parameters
    ----------
    end_s
        When it ends, in seconds.
    is_due
        Whether that is so soon that a successor is asked for now.
    known_end_s
        When it was to end as its successor was asked for; it keeps that unless it was given more time.
    """
    return is_due or (known_end_s is not None and end_s <= known_end_s + _SAME_S)


def lead_s(limit_s: float | None, waits_s: Iterable[float], known: Settings) -> float:
    """How long before the end of a job, in seconds, its successor is asked for.

    Parameters
    ----------
    limit_s
        Time limit of the job; None: not known.
    waits_s
        How long the latest jobs have taken to come. The slowest counts, not their median: a successor
        that comes late finds what it was to take over gone.
    known
        When workers are emptied, and how often Slurm is asked.
    """
    wait_s = max(waits_s, default=0.0) + 2 * known.slurm_poll_s
    emptied_s = known.walltime_notice_s + known.walltime_margin_s
    if limit_s is None:
        return emptied_s + wait_s
    # as the agent does when there is less time than that
    emptied_s = min(emptied_s, (limit_s + known.walltime_margin_s) / 2)
    # else the successor would have one at once, and that one, too
    return emptied_s + min(wait_s, max(0.0, limit_s - emptied_s) / 2)
