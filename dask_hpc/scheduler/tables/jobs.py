"""What the plugin knows about a job: plain state. Job states change by `JobRecord.step` alone."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast
from weakref import WeakSet

from dask_hpc.scheduler.internals.allotment import HOLD, AllotmentSet, Lane, LaneKind
from dask_hpc.scheduler.tables.expected import Expected
from dask_hpc.scheduler.tables.meter import Meter
from dask_hpc.wire import COUNTED_SPAN
from dask_hpc_policies import states
from dask_hpc_policies.jobs.constraints import is_legal
from dask_hpc_policies.jobs.estimates import remaining_s
from dask_hpc_policies.jobs.jobspec import JobSpec
from dask_hpc_policies.model import Interruption, JobRequest, JobState, JobView
from dask_hpc_policies.views import job_view

#: States in which a job may hold nodes or wait for them.
ACTIVE: frozenset[JobState] = frozenset({"pending", "running", "adapting", "completing"})
#: Changes of a job's size that are remembered.
_SIZES_KEPT = 200


class JobRecord:
    """One job: its request, state, nodes and counts of tasks.

    Attributes
    ----------
    spec, request
        What its user said, and what that means on this pool, with what is known of its name.
    unfinished, processing, held
        Tasks that are waiting, held or on workers; on workers; held or without a worker.
    nodes
        Ids of the nodes it holds, in the order it got them; lost ones included until the job ends.
    reason
        One sentence: why it is in its state.
    """

    def __init__(
        self, id: str, spec: JobSpec, request: JobRequest, *, client: str | None, is_default: bool = False
    ) -> None:
        self.id = id
        self.spec = spec
        self.request = request
        #: Whether it has asked for no nodes of its own.
        self.undeclared = spec.nodes is None and spec.min_nodes is None and not request.exclusive
        self.client = client
        #: Who has submitted into it, besides the one that has declared it: its tasks, through their worker's
        #: client, and clients that named it.
        self.clients: set[str] = set() if client is None else {client}
        self.is_default = is_default
        #: Id of its span (Dask's), in which its task groups are; workers see by it whether to count.
        self.span_id = f"{id}-{uuid.uuid4().hex}{COUNTED_SPAN if spec.measure_io else ''}"
        self.state: JobState = "pending"
        #: When it began to run, the first time.
        self.start_s: float | None = None
        self.interruption: Interruption = "none"
        #: When it was interrupted the last time, and how long it has waited since, together.
        self.interrupted_s: float | None = None
        self.paused_s = 0.0
        self.end_s: float | None = None
        self.reason = "submitted"
        #: The user has left the context; no further tasks come.
        self.closed = False
        self.client_gone_s: float | None = None
        #: Its client has gone, and its tasks with it.
        self.dropped = False
        #: Whether plain work has the use of its nodes while it has nothing to do; since when it has had no
        #: task (None: it has some); one that never had any has been quiet for ever.
        self.resting = False
        self.quiet_since_s: float | None = -math.inf
        self.unfinished = 0
        #: Those of them that it computes for others: it does not wait for them when it ends.
        self.guests = 0
        self.processing = 0
        self.held = 0
        #: What failed last, in words, and how many failures stand.
        self.failure = ""
        self.erred = 0
        #: Tasks of others on its nodes, and its own on nodes of others, with their time there.
        self.lent_tasks = self.borrowed_tasks = 0
        self.lent_s = self.borrowed_s = 0.0
        #: Why it lent or borrowed the last time.
        self.lending = ""
        self.expansions = 0
        self.shrinks = 0
        #: Since when it has had how many nodes, the latest changes.
        self.sizes: deque[tuple[float, int]] = deque(maxlen=_SIZES_KEPT)
        #: Node-seconds held before the present size.
        self.held_node_s = 0.0
        #: Time of its tasks in communication and computation, by phase.
        self.meter = Meter()
        #: What its unfinished tasks are expected to take.
        self.expected = Expected()
        #: What was last said of its run time, or, once it has ended, early on: see `tables.forecasts`.
        self.forecast: dict[str, Any] | None = None
        self.nodes: dict[str, None] = {}
        self.reconfig_id = 0
        #: After a shrink that had to be taken back, the next one waits until then.
        self.no_shrink_before_s = 0.0
        #: The same for nodes that could not join.
        self.no_grow_before_s = 0.0
        self.allotment = AllotmentSet()
        self.lanes: dict[LaneKind, Lane] = {
            "root": Lane(self, "root", HOLD),
            "queue": Lane(self, "queue", None),
            "rest": Lane(self, "rest", self.allotment),
            "p2p": Lane(self, "p2p", self.allotment),
            "free": Lane(self, "free", None),
        }
        self._rest = self.lanes["rest"]
        #: Lanes of ended jobs whose tasks are this job's now; those that no task is in any more go.
        self.inherited: WeakSet[Lane] = WeakSet()
        #: Held tasks: (priority, counter, task state). Entries may be stale; see `next_held`.
        self.queue: list[tuple[Any, int, Any]] = []
        #: Unheld tasks that found no worker: looked at again when the allotment grows.
        self.stranded: dict[Any, None] = {}
        #: Such tasks that are not lent a slot either: they belong on one node, or where their user has said.
        self.bound: dict[Any, None] = {}
        #: Of plain work: what it held when that was last looked at, and whether that is work.
        self.looked_at: tuple[Any, bool] = (None, False)
        #: Whether some of them have been held because it had no node; see `Lending.unheld`.
        self.nodeless = False
        #: Sets held tasks aside that have to wait for a token (`placing.gate.Gate`); None: none has.
        self.gate: Any = None
        self.held_since_s: float | None = None
        self.noticed = False
        self.ended = asyncio.Event()
        self._counter = itertools.count()

    def __repr__(self) -> str:
        return f"<JobRecord {self.id} {self.state} nodes={len(self.nodes)} unfinished={self.unfinished}>"

    @property
    def name(self) -> str:
        """The user's name for it."""
        return self.request.name

    @property
    def submit_s(self) -> float:
        """When it was submitted."""
        return self.request.submit_s

    @property
    def active(self) -> bool:
        """Whether it may still hold nodes or wait for them."""
        return self.state in ACTIVE

    @property
    def reach(self) -> AllotmentSet:
        """Where its tasks may run: on its nodes, or on all that it holds together with other jobs."""
        return self._rest.restriction  # type: ignore[return-value]

    @property
    def smallest_start(self) -> int:
        """Nodes it cannot start without."""
        return self.request.start_nodes or self.request.min_nodes

    def fits(self, nodes: int) -> bool:
        """Whether it may go on with that many nodes when one that it had lost is back."""
        request, constraint = self.request, self.request.constraint
        if nodes > request.max_nodes:
            return False
        return nodes < request.min_nodes or is_legal(constraint, nodes) or not is_legal(constraint, nodes - 1)

    def measured(
        self,
        *,
        io_intensity: float | None = None,
        io_by_nodes: Mapping[int, float] | None = None,
        power_by_nodes: Mapping[int, float] | None = None,
    ) -> None:
        """Have policies go by what was measured in place of what was declared; None: nothing was.

        Parameters
        ----------
        io_intensity
            Share of its time in file-system I/O, 0 to 1.
        io_by_nodes, power_by_nodes
            That share, and what one of its nodes draws in watts, by its size in nodes.

        Raises
        ------
        ValueError
            For a share or watts out of range, or a size below 1.
        """
        found: dict[str, Any] = {}
        if io_intensity is not None:
            found["io_intensity"] = _measure("io_intensity", io_intensity, 1.0)
        for name, table, most in (
            ("io_by_nodes", io_by_nodes, 1.0),
            ("power_by_nodes", power_by_nodes, math.inf),
        ):
            if table is not None:
                if any(nodes < 1 for nodes in table):
                    raise ValueError(f"{name} has sizes {sorted(table)}; allowed: 1 node and more")
                rows = ((int(nodes), _measure(name, value, most)) for nodes, value in table.items())
                found[name] = tuple(sorted(rows))
        self.request = replace(self.request, **found)

    def step(self, event: str) -> None:
        """Follow the job state table; raises `IllegalTransition` for what it does not hold."""
        self.state = cast(JobState, states.job_step(self.state, event))
        if self.state not in ACTIVE:
            self.ended.set()

    def sized(self, now_s: float, nodes: int) -> None:
        """Note how many nodes it has now; one that has ended has none."""
        nodes = nodes if self.active else 0
        if nodes != (self.sizes[-1][1] if self.sizes else 0):
            self.held_node_s = self.attained_node_s(now_s)
            self.sizes.append((now_s, nodes))

    def attained_node_s(self, now_s: float) -> float:
        """Node-seconds it has held so far."""
        since_s, nodes = self.sizes[-1] if self.sizes else (now_s, 0)
        return self.held_node_s + nodes * (now_s - since_s)

    def started(self, now_s: float) -> None:
        """It has its nodes, for the first time or again."""
        self.step("start")
        if self.start_s is None or self.interrupted_s is None:
            self.start_s = now_s
        else:
            self.paused_s += now_s - self.interrupted_s
        self.interruption = "none"

    def interrupted(self, now_s: float) -> None:
        """Another job has got its nodes: it waits again, and goes on where it was."""
        self.step("interrupted")
        self.interruption, self.interrupted_s = "theft", now_s

    @property
    def released_tasks(self) -> int:
        """Of a job that has completed: tasks that nobody wanted any more before they ran."""
        return max(0, self.expected.came_tasks - self.expected.ended_tasks)

    @property
    def done(self) -> bool:
        """Whether nothing of its own is unfinished."""
        return self.unfinished == self.guests

    def guest_lane(self, kind: LaneKind) -> Lane:
        """The lane of plain tasks that this job computes, because it needs them or they have no node."""
        for lane in self.inherited:
            if lane.guest and lane.kind == kind and lane.job is self:
                return lane
        lane = Lane(self, kind, self.lanes[kind].restriction)
        lane.guest = True
        lane.inherit(self)
        self.inherited.add(lane)
        return lane

    def own_lane(self) -> Lane:
        """The lane of tasks that keep to its own nodes."""
        for lane in self.inherited:
            if lane.restriction is self.allotment and not lane.guest:
                return lane
        lane = Lane(self, "rest", self.allotment)
        self.inherited.add(lane)
        return lane

    def park(self, ts: Any, first: bool = False) -> None:
        """Queue a held task; served in order of its Dask priority, or before those of the job's own."""
        if len(self.queue) > 1000 and len(self.queue) > 3 * max(self.held, 1):
            self.queue = [entry for entry in self.queue if is_parked(entry[2])]
            heapq.heapify(self.queue)
        own = ts.priority
        if len(own) > 3:  # a turn that it was sent with says nothing of its place in the job
            own = (own[0], *own[-2:])
        heapq.heappush(self.queue, ((-math.inf, *own) if first else own, next(self._counter), ts))

    def quiet_for(self, patience_s: float, now_s: float) -> bool:
        """Whether it has had nothing to do for so long; never when that is 0."""
        since_s = self.quiet_since_s
        return not self.unfinished and since_s is not None and 0 < patience_s <= now_s - since_s

    def next_held(self) -> Any | None:
        """Take the first held task from the queue; None when there is none."""
        queue = self.queue
        while queue:
            ts = heapq.heappop(queue)[2]
            # `is_parked`, written out: this runs for every task
            waits = ts.state == "no-worker" and ts.worker_restrictions is HOLD
            if waits and (self.gate is None or self.gate.passes(self, ts, take=True)):
                return ts
        return None

    def first(self) -> Any | None:
        """The first held task, which stays in the queue; None when there is none."""
        queue, gate = self.queue, self.gate
        while queue:
            ts = queue[0][2]
            waits = ts.state == "no-worker" and ts.worker_restrictions is HOLD
            if waits and (gate is None or gate.passes(self, ts, take=False)):
                return ts
            heapq.heappop(queue)
        return None

    def take(self) -> None:
        """Take what `first` has just given from the queue."""
        ts = heapq.heappop(self.queue)[2]
        if self.gate is not None:
            self.gate.passes(self, ts, take=True)

    def first_held(self, count: int) -> list[Any]:
        """Up to `count` held tasks, among them the next one; for a look at what waits."""
        return [entry[2] for entry in itertools.islice(self.queue, count) if is_parked(entry[2])]

    def elapsed_s(self, now_s: float) -> float:
        """How long it has run, without what it waited after it was interrupted."""
        if self.start_s is None:
            return 0.0
        until_s = self.interrupted_s if self.state == "pending" else None
        return (now_s if until_s is None else until_s) - self.start_s - self.paused_s

    def view(self, now_s: float, nodes_up: int, state: JobState | None = None) -> JobView:
        """The job as a policy sees it, in `state` if given; one that is about to start is adapting."""
        request = self.request
        # What is recorded is about runs of one size.
        recorded_s = None if self.expansions or self.shrinks else request.recorded_s
        left_s = remaining_s(self.elapsed_s(now_s), recorded_s, request.walltime_s)
        return job_view(
            request,
            id=self.id,
            state="adapting" if self.reconfig_id else state or self.state,
            nodes=nodes_up,
            start_s=self.start_s,
            remaining_s=left_s,
            interruption=self.interruption,
            interrupted_s=self.interrupted_s,
            restart_s=left_s,
            expansions=self.expansions,
            mtct=self.meter.mtct,
            mtct_previous=self.meter.mtct_previous,
            unfinished_tasks=self.unfinished,
            processing_tasks=self.processing,
            is_default=self.is_default,
            attained_node_s=self.attained_node_s(now_s),
        )

    def row(self, nodes_up: int) -> dict[str, Any]:
        """The job as plain data for users."""
        start_s, end_s = self.start_s, self.end_s
        return {
            "id": self.id,
            "name": self.name,
            "is_default": self.is_default,
            "state": self.state,
            "kind": self.request.kind,
            "nodes": nodes_up,
            "min_nodes": self.request.min_nodes,
            "max_nodes": self.request.max_nodes,
            "constraint": self.request.constraint,
            "priority": self.request.priority,
            "submit_s": self.submit_s,
            "start_s": start_s,
            "end_s": end_s,
            "wait_s": None if start_s is None else start_s - self.submit_s,
            "turnaround_s": None if end_s is None else end_s - self.submit_s,
            "closed": self.closed,
            "unfinished_tasks": self.unfinished,
            "processing_tasks": self.processing,
            "held_tasks": self.held,
            "below_minimum": self.state == "running" and nodes_up < self.request.min_nodes,
            "expansions": self.expansions,
            "shrinks": self.shrinks,
            "lent_tasks": self.lent_tasks,
            "lent_s": self.lent_s,
            "borrowed_tasks": self.borrowed_tasks,
            "borrowed_s": self.borrowed_s,
            "lending": self.lending,
            "sizes": list(self.sizes),
            "mtct": self.meter.mtct, "mtct_previous": self.meter.mtct_previous,
            "phases": self.meter.rows(),
            "forecast": self.forecast,
            "reason": self.reason,
        }


def _measure(name: str, value: float, most: float) -> float:
    if not 0.0 <= value <= most or math.isinf(value):
        raise ValueError(f"{name} is {value!r}; allowed: 0 to {most:g}, finite")
    return float(value)


def is_parked(ts: Any) -> bool:
    """Whether a task is held now (entries of a queue may be about the past)."""
    return ts.state == "no-worker" and ts.worker_restrictions is HOLD
