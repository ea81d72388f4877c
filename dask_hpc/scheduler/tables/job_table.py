"""The job table: all jobs of a scheduler, live and ended, and how long those of each name took."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dask_hpc.errors import UnknownJob
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.jobs.estimates import RecordedRuns
from dask_hpc_policies.jobs.jobspec import JobSpec
from dask_hpc_policies.model import DEFAULT_JOB, JobRequest

#: Jobs that have ended and are remembered whole, and those before them of which the row is.
_ENDED_KEPT, _PAST_KEPT = 1000, 10_000
#: Names and sizes of completed jobs that are remembered.
_RECORDED_KEPT = 1000
#: Jobs that are named when one is not known.
_NAMED = 20


class JobTable:
    """All jobs of one scheduler by id, active ones apart."""

    def __init__(self) -> None:
        #: Checked, and about to be queued: their message on the client's stream is on its way.
        self.announced: dict[str, JobRecord] = {}
        self.active: dict[str, JobRecord] = {}
        self.ended: deque[JobRecord] = deque()
        self._ended_spans: set[str] = set()
        #: Rows of those that ended before these, as JSON, by id: a kilobyte each.
        self._past: dict[str, str] = {}
        #: What completed jobs took, by name and size: what the next ones of that name are expected to take.
        self.recorded = RecordedRuns()
        self._numbers = itertools.count(1)

    def add(self, spec: JobSpec, request: JobRequest, *, submit_s: float, client: str | None) -> JobRecord:
        """A new job that is announced; its id is its name and a number."""
        id = f"{spec.name}-{next(self._numbers)}"
        user = request.user or client or ""
        job = JobRecord(id, spec, replace(request, submit_s=submit_s, user=user), client=client)
        self.announced[job.id] = job
        return job

    def queue(self, id: str, submit_s: float) -> JobRecord | None:
        """Make an announced job pending; None when it was withdrawn meanwhile."""
        job = self.announced.pop(id, None)
        if job is not None:
            job.request = replace(job.request, submit_s=submit_s, recorded_s=self._recorded_s(job))
            self.active[id] = job
        return job

    def completed(self, job: JobRecord, nodes_up: int, now_s: float) -> None:
        """A job is about to complete: it is recorded when it ran, all of it, at one size all the time."""
        resized = job.expansions or job.shrinks or job.interrupted_s is not None
        if (
            job.is_default
            or job.start_s is None
            or resized
            or job.released_tasks
            or not 0 < nodes_up == len(job.nodes)
        ):
            return
        book = self.recorded.with_run(job.name, nodes_up, job.elapsed_s(now_s))
        self.recorded = book.latest(_RECORDED_KEPT)
        for other in self.named:
            if other.name == job.name and other is not job:
                other.request = replace(other.request, recorded_s=self._recorded_s(other))

    def _recorded_s(self, job: JobRecord) -> float | None:
        size = job.request.start_nodes or job.request.max_nodes
        found = self.recorded.estimate(job.name, size, job.request.walltime_s)
        return None if found is None or found.source == "walltime" else found.seconds

    def add_default(self, *, submit_s: float, min_nodes: int) -> JobRecord:
        """A job for plain work, not yet started."""
        number = next(self._numbers)
        request = JobRequest(
            name=DEFAULT_JOB,
            submit_s=submit_s,
            start_nodes=min_nodes,
            min_nodes=min_nodes,
            max_nodes=min_nodes,
        )
        spec = JobSpec(name=DEFAULT_JOB)
        job = JobRecord(f"{DEFAULT_JOB}-{number}", spec, request, client=None, is_default=True)
        self.active[job.id] = job
        return job

    def end(self, job: JobRecord) -> None:
        """Move a job that has ended out of the way."""
        known = self.active.pop(job.id, None) or self.announced.pop(job.id, None)
        if known is not None and not job.is_default:
            self.ended.append(job)
            self._ended_spans.add(job.span_id)
            if len(self.ended) > _ENDED_KEPT:
                self._put_away(self.ended.popleft())

    def has_ended(self, span_id: str) -> bool:
        """Whether that is the span of a job that has ended, of those that are remembered."""
        return span_id in self._ended_spans

    def _put_away(self, job: JobRecord) -> None:
        self._ended_spans.discard(job.span_id)
        request = job.request
        asked = {"user": request.user, "weight": request.weight, "exclusive": request.exclusive}
        nothing = dict.fromkeys(("forecast", "target_nodes", "held_task_s", "executing_s"))
        row = {**job.row(0), **asked, **nothing, "sizes": [], "phases": []}
        self._past[job.id] = json.dumps(row)
        if len(self._past) > _PAST_KEPT:
            del self._past[next(iter(self._past))]

    def past(self, id: str) -> dict[str, Any] | None:
        """Row of a job that ended so long ago that no more is known of it; None for any other."""
        row: dict[str, Any] | None = json.loads(self._past.get(id, "null"))
        return row

    @property
    def named(self) -> list[JobRecord]:
        """Active jobs that users declared, in order of submission."""
        return [job for job in self.active.values() if not job.is_default]

    def find(self, job: str) -> JobRecord:
        """The job with that id, else the latest with that name; raises `UnknownJob` when there is none."""
        if job in self.active:
            return self.active[job]
        everything = [*self.ended, *self.active.values(), *self.announced.values()]
        for record in reversed(everything):
            if record.id == job or record.name == job:
                return record
        if (row := self.past(job)) is not None:
            text = f"job {job} has ended ({row['state']}: {row['reason']}) and {_ENDED_KEPT} after it"
            raise UnknownJob(f"{text}: its status is all that is kept")
        known = some([record.id for record in everything]) or "none"
        raise UnknownJob(f"no job has the id or name {job!r}; known jobs: {known}")


def some(ids: Sequence[str]) -> str:
    """The last of these ids, for a message; how many there are before them, if there are."""
    more = f", and {len(ids) - _NAMED} before them" if len(ids) > _NAMED else ""
    return ", ".join(ids[-_NAMED:]) + more
