"""What clients can ask about the runtime as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.dashboard.pages import Panels
from dask_hpc.scheduler.internals import selfcheck
from dask_hpc.scheduler.rpc.jobs import JobMethods
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc.trace.records import encode_line
from dask_hpc_policies import registry
from dask_hpc_policies.codec import encode


class StatusMethods:
    """State, decisions, trace and snapshot of one runtime."""

    def __init__(self, engine: Engine, jobs: JobMethods, panels: Panels) -> None:
        self.engine = engine
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
            "status": self.status,
        }

    async def decisions(self, job: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Rows of the decision feed, oldest first."""
        rows = list(self.engine.controller.decisions)
        if job is not None:
            id = self._state.jobs.find(job).id
            rows = [row for row in rows if row["job"] == id]
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ValueError(f"limit is {limit!r}; allowed: a whole number of decisions, 0 or more, or None")
        return rows if limit is None else rows[-limit:] if limit > 0 else []

    async def trace(self) -> list[str]:
        """The trace that is kept in memory, as JSON lines."""
        records = list(self._state.records)
        return await asyncio.to_thread(
            lambda: [encode_line(r) for r in (self.engine.tracing.header(), *records)]
        )

    async def snapshot(self) -> dict[str, Any]:
        """The picture that a policy would get now, encoded."""
        snapshot: dict[str, Any] = encode(self._state.snapshot("request"))
        return snapshot

    async def picture(self, ended: int, decisions: int) -> dict[str, Any]:
        """What those who watch want at once: `status`, `jobs` and `decisions` (the last of these).

        Costs no more after a thousand jobs than after one.
        """
        return {
            "status": await self.status(),
            "jobs": await self._jobs.jobs(ended),
            "ended_jobs": len(self._state.jobs.ended),
            "decisions": await self.decisions(limit=decisions),
        }

    async def status(self) -> dict[str, Any]:
        """State of the runtime as a whole."""
        engine, state = self.engine, self._state
        passes = sorted(engine.controller.pass_s)
        return {
            **self.summary(),
            "versions": selfcheck.versions(),
            "settings": encode(state.settings),
            "nodes": [encode(view) for view in state.nodes.views()],
            "panels": list(self._panels.paths),
            "panels_problem": self._panels.problem,
            "held_tasks": sum(job.held for job in state.jobs.active.values()),
            "reconfiguring": engine.rounds.active,
            "pass_median_s": passes[len(passes) // 2] if passes else None,
            "pass_p99_s": passes[int(len(passes) * 0.99)] if passes else None,
        }

    def summary(self) -> dict[str, Any]:
        """The part of `status` that is cheap whatever the size of the cluster."""
        engine, state = self.engine, self._state
        return {
            "awake": engine.awake,
            "policy": registry.spec_of(engine.controller.policy),
            "policy_failure": engine.controller.failure,
            "policy_dropped": engine.controller.dropped,
            "now_s": state.now_s(),
            "pool_nodes": state.nodes.up() if engine.awake else len(self._state.scheduler.workers),
            "idle_nodes": state.idle_nodes() if engine.awake else None,
            "jobs_pending": sum(job.state == "pending" for job in state.jobs.named),
            "jobs_running": sum(job.state in ("running", "adapting") for job in state.jobs.named),
        }
