"""Answers what jobs read and write (``rt.io()``), and has policies and admission go by it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import remote, span_metrics
from dask_hpc.scheduler.io.accounts import Row, accounts, share
from dask_hpc.scheduler.io.learned import Learned, Run
from dask_hpc.scheduler.io.tokens import TokenLearning
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Method

#: After so many heartbeats of each worker all is told of the last tasks of a job.
_BEATS = 3
#: Seconds that tasks have to have executed before the share of them in I/O says something.
_LEAST_S = 1.0


class Io:
    """What was measured, and what is made of it.

    A job of a name of which others have completed at one size each is taken to spend the share of its time in
    I/O that they did, by a law of them at other sizes (`JobRequest.io_by_nodes`), in place of what was
    declared. One that runs, of which nothing else is known, the share that its own tasks have spent so far.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = state = engine.state
        self._learned = Learned()
        self._tokens = TokenLearning(state, engine.admission.gate)
        #: Ids of jobs that have been told what earlier ones of their name did, and how many those were.
        self._told: dict[str, int] = {}
        #: Ids of ended jobs that are among what is learned, of those that are remembered.
        self._booked: set[str] = set()
        #: What was told last; None: more may have been measured since.
        self._shown: dict[str, Any] | None = {"targets": [], "jobs": [], "other": {}}
        #: Whether workers count, and what tells them not to any more.
        self._counts = False
        self._telling: asyncio.Task[None] | None = None

    async def count(self) -> None:
        """Have workers count what tasks of jobs that ask for it read and write past metered stores."""
        if self._telling is not None:
            await asyncio.wait([self._telling])
        self._counts = True
        await remote.count_io(self._state.scheduler, on=True)

    def needed(self) -> bool:
        """Workers that count have to be told when nobody asks for it any more."""
        return self._counts

    def tick(self, now_s: float) -> None:
        """Learn from what has ended and from what runs."""
        self._count_no_more()
        self._book(now_s)
        named = self._state.jobs.named
        found = accounts(span_metrics.executed(self._state.scheduler, [job.span_id for job in named]))
        self._tokens.tick(now_s, named, found)
        spans = found.spans()
        if any(work.targets for work in found.work.values()):
            self._shown = None
        self._told = {job.id: self._told.get(job.id, -1) for job in named}
        for job in named:
            if self._told[job.id] != (count := self._learned.count(job.name)) and self._tell(job):
                self._told[job.id] = count
            elif not job.request.io_by_nodes and job.spec.io_intensity is None and job.span_id in spans:
                row, task_s = spans[job.span_id]
                if task_s >= _LEAST_S:
                    job.measured(io_intensity=share(row.busy_s, task_s))

    def announced(self, job: JobRecord) -> None:
        """A new job, before anybody decides about it: it is told what earlier ones of its name did."""
        self._book(self._state.now_s())
        self._tell(job)

    def _tell(self, job: JobRecord) -> bool:
        if shares := self._learned.shares(job.request):
            job.measured(io_by_nodes=shares)
        return bool(shares)

    def _count_no_more(self) -> None:
        jobs = self._state.jobs
        wanted = any(job.spec.measure_io for job in (*jobs.active.values(), *jobs.announced.values()))
        if self._counts and not wanted:
            self._counts = False
            stopping = remote.count_io(self._state.scheduler, on=False)
            self._telling = asyncio.get_running_loop().create_task(stopping)
            self._engine.rest()

    def _book(self, now_s: float) -> None:
        """Learn from jobs that have completed at one size since the last look."""
        ended = self._state.jobs.ended
        self._booked &= {job.id for job in ended}
        patience_s = _BEATS * span_metrics.heartbeat_s(self._state.scheduler)
        until_s = now_s - patience_s
        due = [job for job in ended if job.id not in self._booked and (job.end_s or 0.0) <= until_s]
        if not due:
            return
        found = accounts(span_metrics.executed(self._state.scheduler, [job.span_id for job in due])).spans()
        # heartbeats of busy workers come late
        due = [job for job in due if job.span_id in found or (job.end_s or 0.0) <= until_s - 9 * patience_s]
        self._booked.update(job.id for job in due)
        for job in due:
            sizes = {nodes for _, nodes in job.sizes if nodes}
            if job.state == "completed" and len(sizes) == 1 and job.span_id in found:
                row, task_s = found[job.span_id]
                self._learned.add(job.name, sizes.pop(), Run(row.busy_s, task_s, row.nbytes))

    def section(self) -> Mapping[str, Any]:
        """What the file system gives that most was learned of, in bytes a second."""
        known = self._tokens.best_bytes_s()
        return {"io": {"file_system_bytes_s": known}} if known else {}

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {"io": self.io}

    def status(self) -> Mapping[str, Any]:
        """The same for those who watch, at most once a tick; nothing while nothing was measured."""
        if self._shown is None:
            self._shown = self._now()
        return {"io": self._shown} if self._shown["targets"] else {}

    async def io(self) -> dict[str, Any]:
        """What metered stores and counters have measured, up to the last heartbeats of the workers.

        ``targets``: bytes, seconds in which tasks were busy with it, bytes a second that a task got;
        ``tokens``, as many tasks of jobs as may have it at once (None: any number), and ``writers``, those
        that are at it. ``jobs``: the same of each job that is active or remembered and has done any, the
        seconds that its tasks executed, those in I/O (``io_s``), the share of them (``intensity``, 0 to 1),
        ``law`` (of the jobs of its name, by nodes) and ``quality`` (metered, counted or estimated; see
        `accounts.Quality`). ``other``: of plain work, and of tasks that are in a span of the user's own.
        """
        self._book(self._state.now_s())
        self._shown = found = self._now()
        return found

    def _now(self) -> dict[str, Any]:
        found = accounts(span_metrics.executed(self._state.scheduler))
        spans = found.spans()
        table = self._state.jobs
        jobs = [
            self._job_row(job, *both)
            for job in (*table.ended, *table.active.values())
            if (both := spans.pop(job.span_id, None)) is not None
        ]
        other = Row()
        for row, _ in spans.values():
            other.join(row)
        return {
            "targets": [
                {
                    "target": name,
                    "kind": kind,
                    "read_bytes": row.read_bytes,
                    "write_bytes": row.write_bytes,
                    "busy_s": row.busy_s,
                    "bandwidth_bytes_s": row.bandwidth_bytes_s,
                    **self._tokens.row((kind, name)),
                }
                for (kind, name), row in sorted(found.targets().items())
            ],
            "jobs": jobs,
            "other": {
                "read_bytes": other.read_bytes, "write_bytes": other.write_bytes, "io_s": other.busy_s,
            },
        }  # fmt: skip

    def _job_row(self, job: JobRecord, row: Row, task_s: float) -> dict[str, Any]:
        return {
            "id": job.id,
            "name": job.name,
            "read_bytes": row.read_bytes,
            "write_bytes": row.write_bytes,
            "io_s": row.busy_s,
            "task_s": task_s,
            "intensity": share(row.busy_s, task_s),
            "quality": row.quality,
            "law": self._learned.laws(job.name),
        }
