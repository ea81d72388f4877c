"""What policies are shown of power with each picture, and what their decisions are held to.

Rules of the file: nothing is awaited; a plan that is not known is not in the picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dask_hpc.scheduler.power.account import steady
from dask_hpc.scheduler.power.books import Books
from dask_hpc.scheduler.power.forecaster import Forecaster
from dask_hpc.scheduler.power.picture import power_of, widened
from dask_hpc.scheduler.power.planner import Planner
from dask_hpc.scheduler.power.request import Wanted
from dask_hpc_policies.combine import corridor as rules
from dask_hpc_policies.combine.limits import SumGuard, VetoGuard
from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.question import answered_to, asked_by, mode_of, shown
from dask_hpc_policies.power.unexplained import Unexplained, counted, noted
from dask_hpc_policies.power.view import PowerPlan, PowerView, between
from dask_hpc_policies.protocol import Policy

#: Samples of passes that follow each other within this share of a tick say nothing new.
_OFTEN = 0.9


class Shown:
    """The last picture's power.

    Parameters
    ----------
    tell
        Notes among the decisions what is advised: a job, a code, a text.
    """

    def __init__(self, books: Books, tell: Callable[[str, ReasonCode, str], Any]) -> None:
        self._books, self._tell = books, tell
        self._beside_w = 0.0
        #: What the last picture said, and what decisions about it are held to.
        self.view: PowerView | None = None
        self.guards: tuple[SumGuard | VetoGuard, ...] = ()
        self._advised = ""
        #: What is drawn beyond all that is known.
        self._unexplained = Unexplained()

    def forget(self) -> None:
        """There is no corridor any more."""
        self.view, self.guards, self._advised = None, (), ""
        self._unexplained = Unexplained()

    def completed(
        self,
        view: ClusterSnapshot,
        policy: Policy,
        asked: Wanted,
        planner: Planner | None,
        forecaster: Forecaster | None,
        free_nodes: int,
    ) -> ClusterSnapshot:
        """`view` with the section ``power``, and in it the plan where it is known."""
        books, account, curve = self._books, self._books.account, self._books.model.curve()
        # a decision that sees nothing of power, as this fails, is not held to what an earlier one saw
        self.view, self.guards = None, ()
        if account is None:
            return view
        books.advance(view.now_s)
        view = books.recalled(view)
        last, mode = account.last, "monitor" if curve is None else mode_of(policy, asked.mode)
        if curve is not None:
            # a plan is asked for anew whenever they change: noise of what is measured must not count
            self._beside_w = steady(self._beside_w, 0.0 if last is None else last.beside_w)
        settings = books.settings
        power = power_of(
            view, asked, mode, account, curve, self._beside_w, free_nodes, books.away, settings
        )
        if planner is None or planner.failure or planner.off_failure:
            # nobody answers which nodes would better be off
            power = replace(power, max_off_nodes=0)
        sampled = None if last is None or last.label == "unavailable" else last.total_w
        every_s = _OFTEN * settings.tick_s
        self._unexplained = noted(self._unexplained, view, power, sampled, every_s)
        power = counted(power, self._unexplained)
        if last is not None and forecaster is not None:
            power = widened(power, forecaster.range_w(last))
        if planner is not None:
            power = answered_to(view, power, asked_by(policy, power.mode), planner.solve)
            if planner.failure and power.plan is None:
                # without plans nobody would be let start, for as long as the solver fails
                power = replace(power, unsolved=True)
        else:
            # nobody plans where the draw is only looked at
            power = replace(power, mode="monitor")
        self.view, self.guards = power, rules.guards_of(view, power)
        if power.mode == "advise":
            self._advise(view, power.plan)
        return shown(view, power)

    def _advise(self, view: ClusterSnapshot, plan: PowerPlan | None) -> None:
        """Say what would be done, once."""
        sizes = {job.id: job.nodes for job in view.running}
        steps = {} if plan is None else {id: n for id, n in plan.nodes.items() if sizes.get(id) != n}
        text = ", ".join(f"{id} to {nodes}" for id, nodes in steps.items())
        if text and text != self._advised:
            assert plan is not None
            why = plan.reason or f"inside {between(plan.lower_w, plan.upper_w)}"
            self._tell("", ReasonCode.CORRIDOR, f"advised, not done: {text} nodes: {why}")
        self._advised = text
