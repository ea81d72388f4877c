"""What clients can ask about jobs, and have done with them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask_hpc.errors import UnknownJob
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import durations
from dask_hpc.scheduler.tables.job_table import some
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc_policies.decision import Action, Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobs.jobspec import check_nodes
from dask_hpc_policies.wording import counted

#: Held tasks of a job that are looked at to tell how long they take.
_LOOKED_AT = 20
#: A message on a client's stream is waited for so long, in seconds.
_MARK_S = 30.0


class JobMethods:
    """Jobs: their rows, their workers, waiting for them, resizing and cancelling them."""

    def __init__(self, engine: Engine, is_due: Callable[[str, str], bool]) -> None:
        self._engine = engine
        self._state = engine.state
        #: Whether the closing message of a job, of this token, is still to come.
        self._is_due = is_due
        #: The last mark that has come behind graphs of a job.
        self.marks: dict[str, int] = {}

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {
            "workers": self.workers,
            "jobs": self.jobs,
            "wait": self.wait,
            "cancel": self.cancel,
            "resize": self.resize,
        }

    async def workers(
        self, job: str, timeout_s: float, workers: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Addresses on which a job may run now, and its row; waits up to `timeout_s` seconds for one.

        Returns
        -------
        dict
            ``workers`` (those that are named, if any are) and ``row``. No workers: the job has ended, or
            has no node yet.
        """
        record = self._state.jobs.find(job)
        pause_s = self._state.settings.sweep_s / 10
        deadline_s = self._state.now_s() + timeout_s
        while not (held := self._held(record)) and self._state.now_s() < deadline_s:
            if record.ended.is_set():
                break
            await asyncio.sleep(pause_s)
        chosen = held if workers is None or not held else self._some_of(record.id, held, workers)
        return {"workers": chosen, "row": self.row(record)}

    def _held(self, record: JobRecord) -> list[str]:
        if record.ended.is_set():
            return []
        # not those that are being drained: what is put there stays there
        held = record.allotment
        if not len(held) and self._state.now_s() - record.submit_s >= self._state.settings.tick_s:
            held = record.reach  # it was not given any, and its tasks run where jobs share theirs
        return sorted(held)

    def _some_of(self, job: str, held: list[str], workers: Sequence[Any]) -> list[str]:
        """Addresses of the workers that the user names; raises `ValueError` unless all are the job's."""
        chosen, wrong = [], []
        for worker in workers:
            try:
                address = self._state.scheduler.coerce_address(worker)
            except (TypeError, ValueError, OSError):
                address = ""
            if address in held:
                chosen.append(address)
            else:
                wrong.append(worker)
        if wrong or not chosen:
            raise ValueError(
                f"workers is {list(workers)!r}; {wrong!r} are not workers of job {job}, which holds "
                f"{', '.join(held)}: name some of these, or leave workers out"
            )
        return chosen

    async def jobs(self, ended: int | None = None) -> list[dict[str, Any]]:
        """Rows of all jobs that are remembered (of the last `ended` that ended), in order of submission."""
        return self.rows(ended)

    def rows(self, ended: int | None = None) -> list[dict[str, Any]]:
        """See `jobs`."""
        table = self._state.jobs
        self._engine.lifecycle.forget_announced()
        begin = 0 if ended is None else max(0, len(table.ended) - ended)
        records = [
            *itertools.islice(table.ended, begin, None),
            *(job for job in table.active.values() if not job.is_default or job.unfinished),
            *table.announced.values(),
        ]
        executing_s = self._executing_s()
        return [self.row(job, executing_s) for job in sorted(records, key=lambda job: job.submit_s)]

    async def wait(self, job: str, timeout_s: float) -> dict[str, Any]:
        """Row of the job when it has ended, or after `timeout_s` seconds."""
        if (past := self._state.jobs.past(job)) is not None:
            return past
        record = self._state.jobs.find(job)
        try:
            await asyncio.wait_for(record.ended.wait(), timeout_s)
        except TimeoutError:
            return self.row(record)
        return self.row(record)

    def _only(self, job: str) -> JobRecord:
        """The job with that id, else the only one with that name, or the only one that has not ended.

        Raises
        ------
        UnknownJob
            When there is none, or several could be meant.
        """
        table = self._state.jobs
        alive = [*table.active.values(), *table.announced.values()]
        everything = [*table.ended, *alive]
        if any(record.id == job for record in everything):
            return table.find(job)
        for records, what in ((alive, "active"), (everything, "ended")):
            # plain work has a name, too, which a user may have given a job
            same = [record for record in records if record.name == job and not record.is_default]
            if len(same) == 1:
                return same[0]
            if same:
                ids = some([record.id for record in same])
                raise UnknownJob(f"{len(same)} {what} jobs are called {job!r}; say which by its id: {ids}")
        return table.find(job)

    async def cancel(
        self, job: str, reason: str = "", behind: Sequence[tuple[str, str, int]] = ()
    ) -> dict[str, Any]:
        """Cancel a job; returns its row.

        Parameters
        ----------
        behind
            Ids of jobs that are called so and their tokens, each with the number of a mark that comes on the
            stream of its client behind all graphs of the job, unless its closing message does so.
        """
        until_s = self._state.now_s() + _MARK_S
        for id, token, mark in behind:
            # others may have set later ones meanwhile
            while self._is_due(id, token) and self.marks.get(id, 0) < mark and self._state.now_s() < until_s:
                await asyncio.sleep(self._state.settings.sweep_s / 10)
        record = self._only(job)
        self._engine.lifecycle.cancel(record, ReasonCode.USER_REQUEST, reason or "cancelled by the user")
        return self.row(record)

    async def resize(self, job: str, nodes: int, wait: bool = True) -> dict[str, Any]:
        """Resize a running job on the user's request; see `enact`."""
        record = self._only(job)
        nodes = check_nodes(record.id, "nodes", nodes)
        until_s = self._state.now_s() + _MARK_S
        while record.id in self._state.jobs.announced and self._state.now_s() < until_s:
            # the message that opens it is on its way, unless it was lost with its client's connection
            self._engine.lifecycle.forget_announced()
            await asyncio.sleep(self._state.settings.sweep_s / 10)
        if record.state == "pending":
            # it may be starting, once the tasks of everybody else are taken over
            async with self._engine.kept_awake():
                pass
        if record.state == "pending" and record.reconfig_id:
            await self._engine.rounds.outcomes.wait(record.reconfig_id)
        now = self._state.nodes_up(record)
        reason = Reason(ReasonCode.USER_REQUEST, f"the user asked for {counted(nodes)}", {"nodes": nodes})
        kind = Shrink if nodes < now else Expand
        action: Action = kind(job=record.id, nodes=nodes, reason=reason)
        return await self._engine.controller.enact(action, wait)

    def _executing_s(self) -> dict[JobRecord, float]:
        return durations.executing_s(self._state.scheduler, self._state.owner)

    def row(self, job: JobRecord, executing_s: Mapping[JobRecord, float] | None = None) -> dict[str, Any]:
        """A job as plain data; `executing_s` of all jobs is looked for when it is not given."""
        state = self._state
        nodes = len(state.nodes.free()) if job in state.plain else state.nodes_up(job)
        row: dict[str, Any] = job.row(nodes)
        row |= {"user": job.request.user, "weight": job.request.weight, "exclusive": job.request.exclusive}
        row["target_nodes"] = self._engine.rounds.target(job) if job.reconfig_id else None
        row["held_task_s"] = durations.learned_task_s(job.first_held(_LOOKED_AT))
        row["executing_s"] = (self._executing_s() if executing_s is None else executing_s).get(job, 0.0)
        return row
