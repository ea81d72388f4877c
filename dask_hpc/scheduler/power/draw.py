"""What the nodes draw now: measured where their workers say so, else by the model, node by node.

Rules of the file: it reads; a sample costs one short look at every worker, and is added up as columns. The
model goes by the CPU time that a worker tells which has its host to itself, else by the threads that execute:
a node draws idle watts and a share of the way to the busy ones of the job that holds it (`load_curve`). What
a node does goes by its tasks alone. What nobody knows is None or left out, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dask_hpc.scheduler.power.heard import Heard, Workers
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.power.load_curve import LoadCurve
from dask_hpc_policies.power.states import NETWORKED, NODE_STATES, NodeState
from dask_hpc_policies.power.watts import mean_w

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

Label = Literal["measured", "modelled", "unavailable"]
#: States as numbers: their places among all.
_IDLE, _COMPUTE, _COMMUNICATE, _CHECKPOINT, _RESTART, _RECOVERY = map(
    NODE_STATES.index, ("idle", "compute", "communicate", "checkpoint", "restart", "recovery")
)
_IN_USE = np.array([state in NETWORKED for state in NODE_STATES])
#: What a node draws then is what its job draws; one that waits for tasks, data or a disk says nothing of it.
_AT_WORK = np.array([state in ("compute", "restart", "recovery") for state in NODE_STATES])
#: Who draws, as numbers: free nodes that do nothing, those that do plain work, and from then on jobs.
_FREE, _PLAIN, _JOBS = range(3)


@dataclass(slots=True)
class Sample:
    """What is drawn at one moment; watts."""

    t_s: float
    #: ``modelled`` as soon as one node is; ``unavailable``: of some node nothing is known.
    label: Label = "unavailable"
    #: All nodes, summed one by one.
    total_w: float = 0.0
    #: The same by what they do: nodes of each job by its id, nodes on which plain work executes, idle ones.
    jobs_w: dict[str, float] = field(default_factory=dict)
    plain_w: float = 0.0
    plain_nodes: int = 0
    idle_w: float = 0.0
    #: The same by what nodes do, and by node.
    states_w: dict[NodeState, float] = field(default_factory=dict)
    names: Sequence[str] = ()
    nodes_w: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    #: What is drawn beside the nodes of jobs, and beyond the idle watts of those that are free.
    beside_w: float = 0.0
    #: What nodes draw that are off or start: among those that are idle, and beside.
    away_w: float = 0.0
    nodes: int = 0
    measured_nodes: int = 0
    #: Of jobs with nodes that are measured and execute: all its nodes, and the mean watts of one that does.
    #: What they drew before the job had them is not the job's.
    seen_w: dict[str, tuple[int, float]] = field(default_factory=dict)
    #: When the last of that was heard of.
    seen_s: dict[str, float] = field(default_factory=dict)
    #: Jobs whose nodes are all measured.
    measured: set[str] = field(default_factory=set)
    #: What the model says of these sizes: nodes of jobs busy, all others idle; and whether sizes stand still.
    sized_w: float = 0.0
    settled: bool = True


@dataclass(slots=True)
class Host:
    """A host whose workers are all measured."""

    watts: float = 0.0
    #: Of which the part draws that caps are for; None: not known, or all of it.
    governed_w: float | None = None
    #: Of its workers.
    addresses: list[str] = field(default_factory=list)

    @property
    def capped_w(self) -> float:
        """What of its draw a cap changes."""
        return self.watts if self.governed_w is None else min(self.watts, max(0.0, self.governed_w))


class Draw:
    """Takes samples.

    Parameters
    ----------
    saving
        Addresses of workers that write now what is to be saved.
    nic_w
        Watts of the network card of a node that is not measured, while it is in use.
    """

    def __init__(
        self, state: State, saving: Callable[[], Collection[str]] = tuple, nic_w: Callable[[], float] = float
    ) -> None:
        self._state = state
        self._saving, self._nic_w = saving, nic_w
        self._heard: dict[str, Heard] = {}
        #: Those that carry nothing of power, in order.
        self._silent: dict[str, None] = {}
        #: Nodes that have threads, their names and their workers; and of what they were made.
        self._nodes: list[Node] = []
        self._names: list[str] = []
        self._workers = Workers(())
        self._made_of: tuple[Any, ...] = ()
        #: Of each node who has it and whether no job may, and ids of the jobs; and of what they were made.
        self._who, self._others = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
        self._holders: list[str] = []
        self._held_of: tuple[Any, ...] = ()
        #: Of each node by name its holder, and since when at the latest; and the latter as a column.
        self._had: dict[str, tuple[str | None, float]] = {}
        self._since = np.zeros(0)
        self._tops = _Tops()
        #: Whether `hear` is told of heartbeats.
        self.told_by_beats = False

    def sample(self, now_s: float, curve: LoadCurve | None) -> Sample:
        """What is drawn now; without a `curve` only what is measured is known."""
        self._look()
        workers = self._workers
        for heard in workers.listen(now_s, self.told_by_beats):
            self._note(heard)
        if not self._nodes:
            return self._with_away(Sample(now_s))
        self._hold(now_s)
        executing = workers.executing()
        busy = executing > 0
        doing = np.where(busy, _COMPUTE, np.where(workers.transfers(), _COMMUNICATE, _IDLE))
        self._special(doing)
        watts = workers.measured_w(now_s)
        measured, load = ~np.isnan(watts), None
        if not measured.all():
            told = workers.loads(now_s)
            load = np.where(np.isnan(told), executing / workers.threads, told)
        seen = _Seen(
            names=self._names,
            load=load,
            watts=watts,
            measured=measured,
            doing=doing,
            who=self._who + ((self._who == _FREE) & busy),
            others=self._others,
        )
        active = self._state.jobs.active
        jobs = [active[id] for id in self._holders]
        found = _added_up(now_s, seen, jobs, curve, self._tops, self._nic_w())
        self._see(found, seen, jobs)
        return self._with_away(found)

    def _see(self, found: Sample, seen: _Seen, jobs: Sequence[JobRecord]) -> None:
        """Put in what is seen of jobs by their nodes that are measured and at work."""
        working = np.flatnonzero(seen.measured & _AT_WORK[seen.doing] & (seen.who >= _JOBS))
        if not len(working):
            return
        began_s, heard_s = self._workers.drawn_s()
        since_s = self._since[working]
        # what it drew before the job had it is not the job's
        working = working[(began_s[working] > since_s) | np.isneginf(since_s)]
        places, who = _JOBS + len(jobs), seen.who[working]
        nodes, count = np.bincount(seen.who, minlength=places).tolist(), np.bincount(who, minlength=places)
        watts = (np.bincount(who, seen.watts[working], places) / np.maximum(1, count)).tolist()
        latest_s = np.full(places, -inf)
        np.maximum.at(latest_s, who, heard_s[working])
        told_s, at_work = latest_s.tolist(), count.tolist()
        for place, job in enumerate(jobs, _JOBS):
            if at_work[place]:
                found.seen_w[job.id] = nodes[place], watts[place]
                found.seen_s[job.id] = told_s[place]

    def _with_away(self, found: Sample) -> Sample:
        """Put in nodes that are off or start, where it is said what such a one draws."""
        away, settings = self._state.nodes.absent(), self._state.settings
        rows: tuple[tuple[NodeState, int, float | None], ...] = (
            ("off", away.off, settings.power_model_powered_off_w),
            ("boot", away.starting, settings.power_model_boot_w),
        )
        for state, nodes, node_w in rows:
            if not nodes or node_w is None:
                continue
            watts = found.states_w[state] = nodes * node_w
            found.away_w += watts
            found.total_w += watts
            found.idle_w += watts
            found.beside_w += watts
            if found.label == "measured" or not self._nodes:
                found.label = "modelled"
        return found

    def hear(self, ws: WorkerState) -> None:
        """A worker has just said something: read now, while it is at hand, it costs a tick nothing."""
        heard = self._heard.get(ws.address)
        if heard is not None and heard.ws is ws:
            self._workers.hear(heard, self._state.now_s())
            self._note(heard)

    def _note(self, heard: Heard) -> None:
        if heard.silent:
            self._silent[heard.ws.address] = None
        elif self._silent:
            self._silent.pop(heard.ws.address, None)

    def silent(self) -> list[str]:
        """Workers whose heartbeats carried nothing of power as the last sample was taken."""
        return list(self._silent)

    def hosts(self, now_s: float) -> dict[str, Host]:
        """Hosts of which all workers are measured, by name, as of the last sample."""
        found: dict[str, Host] = {}
        unknown: set[str] = set()
        for address, heard in self._heard.items():
            if heard.watts is None or heard.until_s < now_s:
                unknown.add(heard.host)
                continue
            host = found.setdefault(heard.host, Host())
            host.watts += heard.watts
            host.governed_w = heard.governed_w if host.governed_w is None else host.governed_w
            host.addresses.append(address)
        return {name: host for name, host in found.items() if name and name not in unknown}

    def _special(self, doing: NDArray[np.int64]) -> None:
        """Put in what nodes do beside computing what is asked for the first time, by their tasks."""
        saving, state = self._saving(), self._state
        if not (saving or state.read_back or state.missing):
            return
        for place, node in enumerate(self._nodes):
            its = [self._heard[address].ws for address in node.workers if address in self._heard]
            keys = [task.key for ws in its for task in islice(ws.processing, ws.nthreads)]
            if any(ws.address in saving for ws in its):
                doing[place] = _CHECKPOINT
            elif not state.read_back.isdisjoint(keys):
                doing[place] = _RESTART
            elif not state.missing.isdisjoint(keys):
                doing[place] = _RECOVERY

    def _look(self) -> None:
        """Have the nodes with those of their workers that are there; made anew when any has come or gone."""
        workers, table = self._state.scheduler.workers, self._state.nodes
        # lists of the same objects are compared fast
        made_of = list(dict.values(workers)), table.version
        if made_of == self._made_of and table.nodes:
            return
        self._made_of, self._held_of, before, self._heard = made_of, (), self._heard, {}
        rows: list[tuple[Node, list[Heard]]] = []
        for node in table.nodes.values() or _asleep(self._state):
            its: list[Heard] = []
            for address in node.workers:
                ws, heard = workers.get(address), before.get(address)
                if ws is not None:
                    self._heard[address] = heard if heard and heard.ws is ws else Heard(ws)
                    its.append(self._heard[address])
            if sum(heard.ws.nthreads for heard in its):
                rows.append((node, its))
        self._nodes = [node for node, _ in rows]
        self._names = [node.id for node in self._nodes]
        self._workers = Workers([its for _, its in rows])
        self._silent = {address: None for address, heard in self._heard.items() if heard.silent}

    def _hold(self, now_s: float) -> None:
        """Have who holds which nodes; made anew when any has another holder."""
        active = self._state.jobs.active
        held_of = self._state.nodes.version, list(active)
        if held_of == self._held_of:
            return
        places: dict[str, int] = {}
        who = [
            _FREE if id is None or id not in active else places.setdefault(id, _JOBS + len(places))
            for id in [node.job for node in self._nodes]
        ]
        self._held_of, self._holders = held_of, list(places)
        self._who = np.array(who, dtype=np.int64)
        others = [node.reserved != 0 or node.role != COMPUTE for node in self._nodes]
        self._others = np.array(others, dtype=bool)
        # of those that are there at first nobody knows since when
        had, begun_s = self._had, now_s if self._had else -inf
        self._had = {}
        for node in self._nodes:
            before = had.get(node.id)
            same = before is not None and before[0] == node.job
            self._had[node.id] = before if before is not None and same else (node.job, begun_s)
        self._since = np.array([since_s for _, since_s in self._had.values()])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Nodes as they are now, as columns: an item is a node."""

    names: list[str]
    #: The share of its CPU time that is used, else of its threads that execute; None: all were measured.
    load: NDArray[np.float64] | None
    #: What was measured (nan: it was not), and which were.
    watts: NDArray[np.float64]
    measured: NDArray[np.bool_]
    #: Places among `NODE_STATES`.
    doing: NDArray[np.int64]
    #: `_FREE`, `_PLAIN`, or from `_JOBS` on the jobs.
    who: NDArray[np.int64]
    #: Whether no job may have it now.
    others: NDArray[np.bool_]


class _Tops:
    """What a node of each job draws when all of its threads execute; found anew when it may be otherwise."""

    def __init__(self) -> None:
        self._made_of: tuple[Any, ...] = ()
        self._watts: list[float] = []

    def watts(self, jobs: Sequence[JobRecord], sizes: list[int], curve: LoadCurve) -> list[float]:
        """Of `jobs` on so many nodes each."""
        # lists of the same objects are compared fast
        made_of = [job.request for job in jobs], sizes, curve
        if made_of != self._made_of:
            pairs = zip(made_of[0], sizes, strict=True)
            self._watts = [mean_w(request, size, curve.busy_w) for request, size in pairs]
            self._made_of = made_of
        return self._watts


def _added_up(
    t_s: float,
    seen: _Seen,
    jobs: Sequence[JobRecord],
    curve: LoadCurve | None,
    tops: _Tops,
    nic_w: float,
) -> Sample:
    """The sample of these nodes."""
    who, watts, nodes = seen.who, seen.watts, np.bincount(seen.who, minlength=_JOBS + len(jobs)).tolist()
    measured = nodes
    if seen.load is not None:
        measured = np.bincount(who, seen.measured, len(nodes)).astype(np.int64).tolist()
    found = Sample(t_s, nodes=len(watts), measured_nodes=sum(measured))
    names, doing, others, tops_w = seen.names, seen.doing, seen.others, [0.0] * len(jobs)
    if curve is not None:
        tops_w = tops.watts(jobs, nodes[_JOBS:], curve)
        found.sized_w = (nodes[_FREE] + nodes[_PLAIN]) * curve.idle_w
        found.sized_w += sum(size * top_w for size, top_w in zip(nodes[_JOBS:], tops_w, strict=True))
    if seen.load is None:
        found.label = "measured"
    elif curve is not None:
        # the others get what the model says, which goes by what is known of the job
        found.label = "modelled"
        rest = np.flatnonzero(~seen.measured)
        busy_w = np.array([curve.busy_w] * _JOBS + tops_w)[who[rest]]
        watts[rest] = curve.column_w(seen.load[rest], busy_w) + nic_w * _IN_USE[doing[rest]]
    else:
        # of the others nothing is known
        at = np.flatnonzero(seen.measured)
        who, watts, doing, others = who[at], watts[at], doing[at], others[at]
        names = [names[i] for i in at.tolist()]
    found.names, found.nodes_w, found.total_w = names, watts, float(watts.sum())
    by_who = np.bincount(who, watts, len(nodes)).tolist()
    found.idle_w, found.plain_w = by_who[_FREE], by_who[_PLAIN]
    found.plain_nodes = nodes[_PLAIN] if curve is not None else measured[_PLAIN]
    by_state, seen_in = np.bincount(doing, watts, len(NODE_STATES)).tolist(), np.bincount(doing).tolist()
    found.states_w = {NODE_STATES[i]: by_state[i] for i, count in enumerate(seen_in) if count}
    beside = np.flatnonzero(who < _JOBS)
    beside_w = watts[beside]
    if curve is not None:
        beside_w = np.where(others[beside], beside_w, np.maximum(0.0, beside_w - curve.idle_w))
    found.beside_w = float(beside_w.sum())
    for place, job in enumerate(jobs, _JOBS):
        if curve is None and not measured[place]:
            continue
        found.jobs_w[job.id] = by_who[place]
        found.settled = found.settled and job.state == "running"
        if measured[place] == nodes[place]:
            found.measured.add(job.id)
    return found


def _asleep(state: State) -> Iterable[Node]:
    """While the runtime sleeps the table of nodes is empty: each worker is one, and none is a job's."""
    for address, ws in dict.items(state.scheduler.workers):
        node = Node(str(ws.name))
        node.workers[address] = (ws.nthreads, ws.memory_limit or 0)
        yield node
