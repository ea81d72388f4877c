"""The world of one run: the data that all its parts look at.

Rules of the file: data and notes on it, no decision and no event. Parts of the engine hold the world and
parts that are listed before them, never the engine: they change what is theirs, and return what happened.

=============================  =======================================================================
`calendar`                     what will happen and when
`nodes`                        who holds which node
`progress`, `file_system`      how applications get on
`transfers`, `lanes`           what is moved while jobs compute
`coupled`, `pipeline`          simulations that hand over their steps to analyses; `phases`: how long it
                               takes, `steps`: what is told of it
`commits`, `saving`            what jobs save of their state; `checkpoints`: when, and what is saved
`life`                         jobs are submitted, start, change size, are interrupted, end
`rounds`, `thefts`             what becomes of a decision
`lending`                      how fast jobs get on by what they borrow: by default nothing is lent
`failures`, `losses`           what fails, and what is told of that
`energy`, `draw`               what nodes draw, and jobs; `outside`: how far outside the corridor
`supply`, `roles`              which nodes come and go, and what they are for
`asking`, `views`              what a policy is shown and answers; `news`: whether it is to be asked
`listening`                    who is told of all this: by default nobody
`twins`, `corridor`            what capabilities add to it: by default nothing; the power corridor
`enactor`                      acts on what the parts return
`engine`                       takes entries from the calendar, and asks the policy
=============================  =======================================================================
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.listening import Listener
from dask_hpc.sim.engine.news import News
from dask_hpc.sim.engine.pipeline import Pipeline
from dask_hpc.sim.engine.table import Counts, Refused, Table
from dask_hpc.sim.engine.twins import Twins
from dask_hpc.sim.model.machine import Machine, Options
from dask_hpc.sim.model.power import State
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.decision import Action, Reason, Steal

#: Refusals that are kept.
_KEPT = 1000


class World:
    """What is given to a run, and where it is."""

    __slots__ = (
        "absent", "active", "by_id", "counts", "file_system_series", "flow_reports", "flows", "from_s",
        "listener", "longest_latency_s", "machine", "news", "now_s", "options", "reductions", "refusals",
        "table", "total_latency_s", "twins", "workload",
    )  # fmt: skip

    def __init__(self, workload: Workload, machine: Machine, options: Options, news: News) -> None:
        self.workload = workload
        self.machine = machine
        self.options = options
        self.now_s = 0.0
        #: Time of the picture that the run goes on from; None: it begins with an empty machine.
        self.from_s: float | None = None
        #: Jobs that wait or run, by their place in the workload and by their id.
        self.active: dict[int, ActiveJob] = {}
        self.by_id: dict[str, ActiveJob] = {}
        #: How many nodes are not there, by what they are (`nodes.NodePool`).
        self.absent: Counter[State] = Counter()
        self.news = news
        self.listener = Listener()
        self.counts = Counts()
        self.table = Table()
        self.refusals: list[Refused] = []
        #: Actions of which a part was done.
        self.reductions: list[Refused] = []
        #: (time, bytes read per second from then on, bytes written).
        self.file_system_series: list[tuple[float, float, float]] = []
        #: Seconds that the answers of the policy took, together and at most.
        self.total_latency_s = 0.0
        self.longest_latency_s = 0.0
        #: Coupled runs under way by the names of their flows, and what became of others.
        self.flows: dict[str, Pipeline] = {}
        self.flow_reports: list[dict[str, Any]] = []
        self.twins = Twins()
        self.twins.join(self)

    def refuse(self, action: Action, why: Reason) -> None:
        """Note that an action could not be carried out."""
        self.counts.refused += 1
        self._keep(self.refusals, action, why)
        self.listener.refused(action, why)

    def reduce(self, action: Action, why: Reason) -> None:
        """Note that only a part of an action could be carried out."""
        self._keep(self.reductions, action, why)

    def _keep(self, kept: list[Refused], action: Action, why: Reason) -> None:
        nodes = action.stolen_nodes if isinstance(action, Steal) else getattr(action, "nodes", 0)
        job = getattr(action, "job", "")
        if len(kept) < _KEPT:
            kept.append(Refused(t_s=self.now_s, kind=action.TAG, job=job, nodes=nodes, reason=why.text))
