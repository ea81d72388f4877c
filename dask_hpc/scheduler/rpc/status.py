"""What clients can ask about the runtime as a whole, and the sections that its parts add.

A part that has something to tell (`dask_hpc.scheduler.tables.parts.Status`) is asked twice a second while a
panel is open, so it has the answer ready. Who reads sections knows no part: a view of the panel names the one
it shows, ``dask hpc status`` lists them all.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.dashboard.pages import Panels
from dask_hpc.scheduler.internals import selfcheck
from dask_hpc.scheduler.rpc.jobs import JobMethods
from dask_hpc.scheduler.tables.nodes import node_id
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc.trace.records import POWER_KINDS, JobEvent, NodeEvent, Other, encode_line
from dask_hpc_policies import registry
from dask_hpc_policies.codec import encode, sendable
from dask_hpc_policies.numeric import whole

logger = logging.getLogger(__name__)


class StatusMethods:
    """State, decisions, trace and snapshot of one runtime."""

    def __init__(self, engine: Engine, jobs: JobMethods, panels: Panels) -> None:
        self.engine = engine
        #: Number of the record before the first: no number of one installation is one of another.
        self._before = 1 + secrets.randbelow(2**40)
        #: Parts whose failure is in the log.
        self._told: set[str] = set()
        self._state = engine.state
        self._jobs = jobs
        self._panels = panels

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {
            "decisions": self.decisions,
            "trace": self.trace,
            "snapshot": self.snapshot,
            "picture": self.picture,
            "status": self.whole,
        }

    async def decisions(self, job: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Rows of the decision feed, oldest first."""
        rows = list(self.engine.controller.decisions)
        if job is not None:
            id = self._state.jobs.find(job).id
            rows = [row for row in rows if row["job"] == id]
        last = None if limit is None else whole(limit)
        if limit is not None and (last is None or last < 0):
            raise ValueError(f"limit is {limit!r}; allowed: a whole number of decisions, 0 or more, or None")
        return rows if last is None else rows[-last:] if last > 0 else []

    async def trace(self) -> list[str]:
        """The trace that is kept in memory, as JSON lines."""
        records = list(self._state.records)
        return await asyncio.to_thread(
            lambda: [encode_line(r) for r in (self.engine.tracing.header(), *records)]
        )

    def happened(self, since: int = 0) -> dict[str, Any]:
        """What nodes and jobs have done since the record of that number, and drawn, as lines of the trace.

        Returns
        -------
        dict
            ``lines``; ``number`` to ask with the next time; ``whole``: these are all that are known, as what
            came after `since` is not kept any more, or `since` is of an earlier installation.
        """
        records, number = self._state.records, self._before + self._state.recorded
        kept_from = number - len(records)
        whole = not kept_from <= since <= number
        begin = 0 if whole else since - kept_from
        lines = []
        for one in itertools.islice(records, begin, None):
            if isinstance(one, Other) and one.kind in POWER_KINDS:
                # who has drawn it is not shown over time
                one = replace(one, data={name: one.data[name] for name in one.data if name != "bill"})
            elif not isinstance(one, NodeEvent | JobEvent):
                continue
            lines.append(encode_line(one))
        return {"lines": lines, "number": number, "whole": whole or since == 0}

    async def snapshot(self) -> dict[str, Any]:
        """The picture that a policy would get now, encoded."""
        snapshot: dict[str, Any] = sendable(encode(self.engine.controller.picture("request"), str))
        return snapshot

    async def picture(self, ended: int, decisions: int, since: int | None = None) -> dict[str, Any]:
        """What those who watch want at once: `status`, `jobs` and `decisions` (the last of these).

        With `since` what has `happened` since then, too: all of one moment. Costs no more after a thousand
        jobs than after one.
        """
        return {
            **({} if since is None else {"happened": self.happened(since)}),
            "status": await self.whole(),
            "jobs": await self._jobs.jobs(ended),
            "ended_jobs": len(self._state.jobs.ended),
            "decisions": await self.decisions(limit=decisions),
        }

    async def whole(self) -> dict[str, Any]:
        """State of the runtime as a whole."""
        engine, state = self.engine, self._state
        passes = sorted(engine.controller.pass_s)
        sections, failures = self.sections()
        return {
            **sections,
            "sections": list(sections),
            "section_failures": failures,
            **self.summary(),
            "versions": selfcheck.versions(),
            "settings": encode(state.settings),
            "nodes": [encode(view) for view in state.nodes.views(state.now_s())],
            "nodes_at_work": self._at_work(),
            "panels": list(self._panels.paths),
            "panels_problem": self._panels.problem,
            "held_tasks": sum(job.held for job in state.jobs.active.values()),
            "reconfiguring": engine.rounds.active,
            "pass_median_s": passes[len(passes) // 2] if passes else None,
            "pass_p99_s": passes[int(len(passes) * 0.99)] if passes else None,
        }

    def sections(self) -> tuple[dict[str, Any], dict[str, str]]:
        """What the parts tell about themselves by name, and why some cannot, by the name of the part."""
        failures = {part: why for (part, _), why in self.engine.parts.failed.items()}

        def failed(part: str, error: Exception) -> None:
            failures[part] = f"{type(error).__name__}: {error}"
            if part not in self._told:
                self._told.add(part)
                logger.error("%s has no section of the status to give", part, exc_info=error)

        return self.engine.parts.status(failed), failures

    def _at_work(self) -> int:
        """Nodes that are up and that a job holds, or on which tasks are: of plain work, or lent the node."""
        workers, nodes = self._state.scheduler.workers, self._state.nodes
        if not self.engine.awake:
            return self._nodes_of([ws for ws in workers.values() if ws.processing])
        return sum(
            node.job is not None or any(workers[one].processing for one in node.workers if one in workers)
            for node in nodes.nodes.values()
            if node.up
        )

    def _nodes_of(self, workers: Iterable[Any]) -> int:
        """How many nodes these workers are on, also while the table of nodes is empty."""
        by = self._state.nodes.by
        return len({node_id(by, ws.name, ws.host) for ws in workers})

    def summary(self) -> dict[str, Any]:
        """The part of `status` that is cheap whatever the size of the cluster."""
        engine, state = self.engine, self._state
        workers = state.scheduler.workers
        return {
            "awake": engine.awake,
            "policy": sendable(registry.spec_of(engine.controller.policy)),
            "policy_failure": engine.controller.failure,
            "policy_dropped": engine.controller.dropped,
            "now_s": state.now_s(),
            "pool_nodes": state.nodes.up() if engine.awake else self._nodes_of(workers.values()),
            "idle_nodes": state.idle_nodes() if engine.awake else None,
            "jobs_pending": sum(job.state == "pending" for job in state.jobs.named),
            "jobs_running": sum(job.state in ("running", "adapting") for job in state.jobs.named),
        }
