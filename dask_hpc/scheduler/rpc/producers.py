"""What producers can ask the scheduler side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.rpc.jobs import JobMethods
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobs.constraints import largest_at_most, smallest_at_least
from dask_hpc_policies.jobs.jobspec import InvalidJob
from dask_hpc_policies.numeric import whole
from dask_hpc_policies.wording import counted


class ProducerMethods:
    """Windows of jobs that keep state, and what such a job asks for."""

    def __init__(self, engine: Engine, jobs: JobMethods) -> None:
        self._engine = engine
        self._state = engine.state
        self._jobs = jobs

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {
            "await_start": self.await_start,
            "produce": self.produce,
            "produced": self.produced,
            "phase": self.phase,
            "joined": self.joined,
            "begin": self.begin,
            "commit": self.commit,
            "abort": self.abort,
            "keep_copies": self.keep_copies,
            "request": self.request,
        }

    async def await_start(self, job: str, timeout_s: float) -> dict[str, Any]:
        """Row of a job once it runs or has ended, or after `timeout_s` seconds."""
        record, state = self._state.jobs.find(job), self._state
        deadline_s = state.now_s() + timeout_s
        while record.state in ("pending", "adapting") and state.now_s() < deadline_s:
            await asyncio.sleep(min(state.settings.sweep_s / 10, 0.01))
        return self._jobs.row(record)

    async def produce(self, job: str, client: str, topic: str) -> list[str]:
        """A running job keeps state on its nodes from now on; returns their ids.

        `client` is told about windows on `topic`, from this moment: its own message that it listens may come
        after the first of them.
        """
        members = self._engine.rounds.windows.register(self._state.jobs.find(job), topic, client)
        self._state.scheduler.subscribe_topic(topic, client)
        return members

    async def produced(self, job: str) -> None:
        """The job keeps no state any more."""
        self._engine.rounds.windows.forget(self._state.jobs.find(job))

    async def phase(self, job: str, name: str, elastic: bool) -> None:
        """A phase of the job begins; in one that is not elastic it is not resized."""
        record = self._state.jobs.find(job)
        self._engine.rounds.windows.phase(record, name, elastic)
        record.meter.begin_phase(self._state.now_s(), name, elastic=elastic)

    async def joined(self, job: str, reconfig_id: int) -> None:
        """The joining nodes of a window are ready."""
        self._engine.rounds.windows.joined(self._state.jobs.find(job), reconfig_id)

    async def begin(self, job: str, reconfig_id: int) -> dict[str, Any]:
        """The job is at a step boundary and changes its layout now; returns who stays, joins and leaves."""
        return self._engine.rounds.windows.begin(self._state.jobs.find(job), reconfig_id)

    async def commit(self, job: str, reconfig_id: int) -> list[str]:
        """The job's state lies on the new nodes; returns them."""
        return self._engine.rounds.windows.commit(self._state.jobs.find(job), reconfig_id)

    async def abort(self, job: str, reconfig_id: int, reason: str) -> None:
        """The job's layout stays as it is."""
        self._engine.rounds.windows.abort(self._state.jobs.find(job), reconfig_id, reason)

    async def keep_copies(self, job: str, copies: Sequence[tuple[Any, str]]) -> bool:
        """Make data of its own of copies of the job's blocks, each on its node and nowhere else.

        `copies` gives keys and nodes. Returns whether that was done: not unless all are there.
        """
        record, state = self._state.jobs.find(job), self._state
        places = {}
        for key, node in copies:
            if key not in state.owner or state.owner[key].job is not record or node not in state.nodes.nodes:
                return False
            places[key] = set(state.nodes.nodes[node].workers)
        kept = writes.keep_copies(self._state.scheduler, places, f"hpc-keep-{record.id}")
        if kept:
            self._engine.small.look_again()
        return kept

    async def request(self, job: str, nodes: int, wait: bool = True) -> dict[str, Any]:
        """A running job asks for so many nodes more (or, negative, fewer).

        Returns
        -------
        dict
            The outcome, with ``asked`` and ``granted`` (differences of nodes). What cannot be granted now is
            refused with a reason. Without `wait` it may be ``under way``: granted, and not carried out yet.

        Raises
        ------
        InvalidJob
            When the job could never have as many.
        """
        record, state = self._state.jobs.find(job), self._state
        now, low, high = state.nodes_up(record), record.request.min_nodes, record.request.max_nodes
        more = whole(nodes)
        if not more or not low <= now + more <= high:
            sizes = f"whole numbers from {low - now} to {high - now} without 0"
            raise InvalidJob(
                f"a request for {nodes!r} nodes more; allowed for {record.id}, which has {now}: "
                f"{sizes if low < high else 'none'} (min_nodes {low}, max_nodes {high})"
            )
        nodes = more
        size = _grantable(record, now, nodes, state.idle_nodes())
        if size is None:
            idle = counted(state.idle_nodes(), "idle node")
            constraint = record.request.constraint
            text = f"it asked for {nodes:+d} at {counted(now)}; there are {idle}, constraint {constraint}"
            return {"result": "refused", "reason": text, "asked": nodes, "granted": 0, "nodes": now}
        reason = Reason(
            ReasonCode.JOB_REQUEST, f"it asked for {nodes:+d} at {counted(now)}", {"nodes": nodes}
        )
        kind = Shrink if size < now else Expand
        answer = await self._engine.controller.enact(kind(job=record.id, nodes=size, reason=reason), wait)
        granted = size - now if answer["result"] in ("done", "under way") else 0
        return {**answer, "asked": nodes, "granted": granted}


def _grantable(record: JobRecord, now: int, nodes: int, idle: int) -> int | None:
    """The legal size nearest to what was asked for that can be had; None when there is none."""
    constraint = record.request.constraint
    if nodes > 0:
        return largest_at_most(constraint, now + min(nodes, idle), now + 1)
    return smallest_at_least(constraint, now + nodes, now - 1)
