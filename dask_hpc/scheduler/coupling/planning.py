"""Plans of flows that take too long to plan in a pass of the policy: they are made in a thread, now and then.

What is measured changes with every step, and so do plans. A thread shares its core with the scheduler's loop:
between two plans of a flow lie some times as long as the last one took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import replace

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc_policies.placement.replan import application_of, is_quick, known, plan_of
from dask_hpc_policies.placement.view import FlowView, PlanView

#: A flow is planned again after so many times as long as its last plan took, at the earliest.
_PAUSES = 9


class Planning:
    """The plans of the flows of one scheduler, by name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._plans: dict[str, PlanView] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}
        #: When flows are planned again at the earliest.
        self._next_s: dict[str, float] = {}

    def keep(self, names: Container[str]) -> None:
        """Let go of all flows but these."""
        self._plans = {name: plan for name, plan in self._plans.items() if name in names}
        self._next_s = {name: at_s for name, at_s in self._next_s.items() if name in names}

    def planned(self, name: str, view: FlowView) -> FlowView:
        """With the latest plan, where one is needed; a new one is begun when that is due."""
        application = application_of(view)
        if application is None or is_quick(application):
            return view
        plan = self._plans.get(name)
        due = self._engine.state.now_s() >= self._next_s.get(name, 0.0)
        if due and name not in self._under_way and (plan is None or plan.found_for != known(view)):
            self._under_way[name] = asyncio.ensure_future(self._plan(name, view))
        return view if plan is None else replace(view, plan=plan)

    async def _plan(self, name: str, view: FlowView) -> None:
        state = self._engine.state
        began_s = state.now_s()
        try:
            plan = await asyncio.to_thread(plan_of, view)
        finally:
            del self._under_way[name]
        ended_s = state.now_s()
        self._next_s[name] = ended_s + _PAUSES * (ended_s - began_s)
        if plan is not None:
            self._plans[name] = plan
            self._engine.controller.request("answer")

    def unwrap(self) -> None:
        """The runtime is being uninstalled."""
        for task in self._under_way.values():
            task.cancel()
