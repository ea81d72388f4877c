"""What is kept of the draw while a corridor is set: samples, the account, what jobs were measured to draw.

Rules of the file: a sample is added where it is taken, so that nothing between two is lost; the trace is told
of what the draw has come to, and of the bounds, here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from dask_hpc.config import Settings
from dask_hpc.scheduler.power.account import Account, History
from dask_hpc.scheduler.power.draw import Draw, Sample
from dask_hpc.scheduler.power.node_model import NodeModel
from dask_hpc.scheduler.power.noted import Noted
from dask_hpc.scheduler.power.recent import Recent
from dask_hpc.scheduler.power.runs import Runs
from dask_hpc.scheduler.tables.nodes import Away
from dask_hpc.scheduler.tables.state import State
from dask_hpc.trace.records import CORRIDOR, DRAW, Other
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.bill import Uses, bill
from dask_hpc_policies.power.view import PowerView, Step

#: Samples of passes that follow each other are not taken anew within this.
_SAMPLE_S = 0.02


class Books:
    """The samples of a cluster, and what they come to.

    Parameters
    ----------
    fitted
        Called on the loop when the model of a node is known that was asked for before.
    saving
        Addresses of workers that write now what is to be saved.
    """

    def __init__(
        self, state: State, fitted: Callable[[], None], saving: Callable[[], Collection[str]]
    ) -> None:
        self._state = state
        self.draw = Draw(state, saving, lambda: state.settings.power_model_nic_w or 0.0)
        self.model = NodeModel(state, fitted)
        self._history, self._ran = History(), Runs()
        #: Which history, of which jobs, their requests tell of.
        self._shown_of: tuple[int, list[str]] = 0, []
        #: When what was noted last of each job was heard of.
        self._heard_s: dict[str, float] = {}
        self._noted, self.recent = Noted(), Recent()
        #: None: nobody keeps one.
        self.account: Account | None = None
        #: The bounds of now, as they are in the trace.
        self._step: Step | None = None

    def sample(self, now_s: float) -> Sample:
        """What is drawn now; nothing is added up."""
        return self.draw.sample(now_s, self.model.curve())

    def open(self, now_s: float, over_s: float) -> None:
        """Keep an account from now on, or go on with the one there is with means over `over_s`."""
        if self.account is None:
            self.account, self._noted, self.recent = Account(now_s, over_s), Noted(), Recent()
        else:
            # what has been drawn so far was under the bounds before
            self.add(now_s)
            self.account.over_s = over_s

    def shut(self) -> None:
        """Keep none any more."""
        self._book()
        self.account = None

    def now(self, now_s: float) -> Account:
        """The account as of now; of what is drawn now alone where nobody keeps one."""
        if self.account is None:
            account = Account(now_s)
            account.add(self.sample(now_s), None)
            return account
        self.advance(now_s)
        return self.account

    def add(self, now_s: float, final: bool = False) -> Sample | None:
        """Take a sample into the account; None: nobody keeps one."""
        if self.account is None:
            return None
        sample = self.sample(now_s)
        self.account.add(sample, self._step)
        data = self._noted.due(self.account, self._tariff(), final)
        if data is not None:
            self._state.record(Other(kind=DRAW, data=data))
        return sample

    def advance(self, now_s: float) -> None:
        """Bring the account up to date, unless that has just been done."""
        account = self.account
        if account is not None and (account.last is None or now_s - account.last.t_s >= _SAMPLE_S):
            self.add(now_s)

    @property
    def settings(self) -> Settings:
        """As they are now."""
        return self._state.settings

    @property
    def away(self) -> Away:
        """Nodes of a cluster that follows the load which are not there."""
        return self._state.nodes.absent()

    def bill(self) -> dict[str, Any]:
        """Who has drawn what since the account was opened; of nobody anything is known without one."""
        return bill(Uses() if self.account is None else self.account.uses, **self._tariff())

    def history(self) -> dict[str, Any]:
        """What jobs took and drew on how many nodes, as far as an account was kept (`Runs.told`)."""
        self._book()
        return self._ran.told()

    def _book(self) -> None:
        if self.account is not None:
            self._ran.book(self._state.jobs.ended, self.account.uses.jobs)

    def _tariff(self) -> dict[str, Any]:
        settings = self._state.settings
        return {"price": settings.power_price, "carbon": settings.power_carbon}

    def note(self, sample: Sample, view: PowerView | None) -> None:
        """Note what was measured of jobs, and what charts show."""
        self._measure(sample)
        self._book()
        self.recent.add(sample, self._step, view)

    def note_bounds(self, step: Step | None, mode: str) -> None:
        """Other bounds hold from now on; None: none."""
        self._step = step
        lower_w, upper_w = (None, None) if step is None else step[1:]
        data = {"t_s": self._state.now_s(), "lower_w": lower_w, "upper_w": upper_w, "mode": mode}
        self._state.record(Other(kind=CORRIDOR, data=data))

    def _measure(self, sample: Sample) -> None:
        state, history = self._state, self._history
        for id, (nodes, watts) in sample.seen_w.items():
            job = state.jobs.active.get(id)
            # what was heard once counts once, however often it is sampled
            heard_s = sample.seen_s[id]
            if self._heard_s.get(id) == heard_s:
                continue
            # an adapting job has nodes that do nothing yet, or any more
            if job is not None and job.state == "running" and not job.is_default:
                history.add(id, job.name, nodes, watts, sample.t_s)
                self._heard_s[id] = heard_s
        history.keep(state.jobs.active)
        if not self._heard_s.keys() <= state.jobs.active.keys():
            self._heard_s = {id: at_s for id, at_s in self._heard_s.items() if id in state.jobs.active}
        self._tell()

    def recalled(self, view: ClusterSnapshot) -> ClusterSnapshot:
        """`view` with what is known of jobs that have come since the last tick: they may start at once."""
        if not self._tell():
            # the picture was made of what is told already
            return view
        told = {job.id: job.request.power_by_nodes for job in self._state.jobs.named}
        old = {job.id for job in view.jobs if told.get(job.id, job.power_by_nodes) != job.power_by_nodes}
        if not old:
            return view
        jobs = [replace(job, power_by_nodes=told[job.id]) if job.id in old else job for job in view.jobs]
        return replace(view, jobs=tuple(jobs))

    def _tell(self) -> bool:
        """Have the requests of jobs tell what was measured; whether any tells something else now."""
        named, history = self._state.jobs.named, self._history
        shown_of = history.version, [job.id for job in named]
        if shown_of == self._shown_of:
            return False
        self._shown_of, other = shown_of, False
        for job in named:
            table = history.holds(job.id, job.request)
            if table and tuple(table.items()) != job.request.power_by_nodes:
                job.measured(power_by_nodes=table)
                other = True
        return other
