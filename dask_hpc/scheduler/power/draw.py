"""What the nodes draw now: measured where their workers say so, else by the model, node by node.

Rules of the file: it reads; a sample costs one short look at every worker, and what a heartbeat says is read
once. The model goes by the threads that execute: a node draws idle watts and a share of the way to the busy
ones of the job that holds it (`load_curve`). What nobody knows is None or left out, never 0. A worker's
section of its heartbeat is
``{"watts", "label", "at_s", "host", "fresh_s", "governed_w"}``, the watts its own share of what its host
draws; it holds for ``fresh_s`` after ``at_s`` has changed, whatever the clocks of two machines say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.power.checks import MOST_NODE_W
from dask_hpc_policies.power.load_curve import LoadCurve
from dask_hpc_policies.power.states import NETWORKED, NodeState
from dask_hpc_policies.power.view import SECTION
from dask_hpc_policies.power.watts import mean_w

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

Label = Literal["measured", "modelled", "unavailable"]
#: A measured figure holds for so long without a newer one where its worker says nothing of it; and at most.
FRESH_S, _MOST_FRESH_S = 30.0, 300.0


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
    names: list[str] = field(default_factory=list)
    nodes_w: list[float] = field(default_factory=list)
    #: What is drawn beside the nodes of jobs, and beyond the idle watts of those that are free.
    beside_w: float = 0.0
    nodes: int = 0
    measured_nodes: int = 0
    #: Of jobs whose nodes are all measured: these nodes, and the mean watts of one.
    measured_w: dict[str, tuple[int, float]] = field(default_factory=dict)
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


@dataclass(slots=True)
class _Heard:
    """What a worker has said last."""

    ws: WorkerState
    #: What it came in: while these are the same ones there is nothing new to read.
    metrics: Any = None
    silent: bool = True
    #: When it measured by its clock, when that was heard of, and until when it holds.
    at_s: float | None = None
    heard_s: float = 0.0
    until_s: float = 0.0
    #: Which of its workers share a sensor.
    host: str = ""
    #: None: it does not measure.
    watts: float | None = None
    #: What the part of its host draws that caps are for; None: it does not say.
    governed_w: float | None = None
    #: Whether data came or went as it said so.
    transfers: bool = False

    def hear(self, now_s: float) -> None:
        """Read what it says anew."""
        self.metrics, self.watts, self.governed_w = self.ws.metrics, None, None
        self.transfers = remote.transfers(self.ws)
        section = remote.sections_of(self.ws).get(SECTION)
        self.silent = section is None
        if not isinstance(section, dict) or section.get("label") != "measured":
            return
        watts, at_s, host = _number(section.get("watts")), _number(section.get("at_s")), section.get("host")
        if watts is None or at_s is None or not 0 < watts <= MOST_NODE_W:
            return
        if at_s != self.at_s:
            self.at_s, self.heard_s = at_s, now_s
        self.watts, self.host = watts, host if isinstance(host, str) else ""
        governed_w = section.get("governed_w")
        self.governed_w = None if governed_w is None else _number(governed_w)
        fresh_s = section.get("fresh_s")
        fresh_s = FRESH_S if fresh_s is None else _number(fresh_s) or FRESH_S
        self.until_s = self.heard_s + min(fresh_s, _MOST_FRESH_S)


#: A node as it is now: the share of its threads that execute, watts that were measured (None: they were
#: not), and what it does.
_Seen = tuple[Node, float, float | None, NodeState]


@dataclass(slots=True)
class _Held:
    """The nodes that a job holds."""

    job: JobRecord
    nodes: list[_Seen] = field(default_factory=list)
    #: How many of them are measured.
    measured: int = 0


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
        self._heard: dict[str, _Heard] = {}
        #: Those that carry nothing of power, in order.
        self._silent: dict[str, None] = {}
        #: Nodes with their workers, and of what they were made.
        self._rows: list[tuple[Node, tuple[_Heard, ...]]] = []
        self._made_of: tuple[Any, ...] = ()

    def sample(self, now_s: float, curve: LoadCurve | None) -> Sample:
        """What is drawn now; without a `curve` only what is measured is known."""
        active = self._state.jobs.active
        held: dict[str, _Held] = {}
        free: list[_Seen] = []
        saving = self._saving()
        special = bool(saving or self._state.read_back or self._state.missing)
        # plain loops: it is done for each of many thousand workers, again and again
        for node, workers in self._nodes():
            threads = executing = 0
            transfers = False
            watts: float | None = 0.0
            for heard in workers:
                ws = heard.ws
                threads += ws.nthreads
                if ws.processing:
                    executing += min(ws.nthreads, len(ws.processing))
                if heard.metrics is not ws.metrics:
                    self._hear(heard, now_s)
                if heard.watts is None or heard.until_s < now_s:
                    watts = None
                elif watts is not None:
                    watts += heard.watts
                if heard.transfers:
                    transfers = True
            if not threads:
                continue
            doing: NodeState = "compute" if executing else "communicate" if transfers else "idle"
            if special:
                doing = self._special(workers, saving) or doing
            one = node, executing / threads, watts, doing
            id = node.job
            if id is None or id not in active:
                free.append(one)
                continue
            its = held.get(id)
            if its is None:
                its = held[id] = _Held(active[id])
            its.nodes.append(one)
            if watts is not None:
                its.measured += 1
        found, nic_w = Sample(now_s), self._nic_w()
        known = _add_free(found, free, curve, nic_w)
        known = _add_held(found, held.values(), curve, nic_w) and known
        if found.nodes and known:
            found.label = "measured" if found.measured_nodes == found.nodes else "modelled"
        return found

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

    def _special(self, workers: Iterable[_Heard], saving: Collection[str]) -> NodeState | None:
        """What it does beside computing what is asked for the first time, by the tasks that execute there."""
        state = self._state
        keys = [task.key for heard in workers for task in islice(heard.ws.processing, heard.ws.nthreads)]
        if any(heard.ws.address in saving for heard in workers):
            return "checkpoint"
        if not state.read_back.isdisjoint(keys):
            return "restart"
        return None if state.missing.isdisjoint(keys) else "recovery"

    def _hear(self, heard: _Heard, now_s: float) -> None:
        heard.hear(now_s)
        if heard.silent:
            self._silent[heard.ws.address] = None
        elif self._silent:
            self._silent.pop(heard.ws.address, None)

    def _nodes(self) -> list[tuple[Node, tuple[_Heard, ...]]]:
        """The nodes with those of their workers that are there; made anew when any has come or gone."""
        workers = self._state.scheduler.workers
        nodes = list(self._state.nodes.nodes.values())
        # lists of the same objects are compared fast
        made_of = list(dict.values(workers)), nodes, sum([len(node.workers) for node in nodes])
        if made_of != self._made_of or not nodes:
            self._made_of, before, self._heard = made_of, self._heard, {}
            self._rows = []
            for node in nodes or _asleep(self._state):
                for address in node.workers:
                    ws, heard = workers.get(address), before.get(address)
                    if ws is not None:
                        self._heard[address] = heard if heard and heard.ws is ws else _Heard(ws)
                its = tuple(self._heard[address] for address in node.workers if address in self._heard)
                self._rows.append((node, its))
            self._silent = {address: None for address, heard in self._heard.items() if heard.silent}
        return self._rows


def _add_free(found: Sample, free: Sequence[_Seen], curve: LoadCurve | None, nic_w: float) -> bool:
    """Add the nodes that no job holds; whether the draw of each is known."""
    known, base_w = True, 0.0 if curve is None else curve.idle_w
    measured = plain = 0
    states_w, names, nodes_w = found.states_w, found.names, found.nodes_w
    # plain names: they are faster to add to than what an object has
    total_w = plain_w = idle_w = beside_w = 0.0
    for node, load, said_w, doing in free:
        watts = said_w
        if watts is not None:
            measured += 1
        elif curve is None:
            known = False
            continue
        else:
            watts = curve.watts(load)
            if doing in NETWORKED:
                watts += nic_w
        total_w += watts
        states_w[doing] = states_w.get(doing, 0.0) + watts
        names.append(node.id)
        nodes_w.append(watts)
        if load > 0:
            plain_w += watts
            plain += 1
        else:
            idle_w += watts
        if node.role != COMPUTE or node.reserved:
            beside_w += watts
        elif watts > base_w:
            beside_w += watts - base_w
    found.nodes, found.measured_nodes, found.plain_nodes = len(free), measured, plain
    found.total_w, found.plain_w, found.idle_w, found.beside_w = total_w, plain_w, idle_w, beside_w
    # without a curve it is of no use: the base is nothing then
    found.sized_w = len(free) * base_w
    return known


def _add_held(found: Sample, held: Iterable[_Held], curve: LoadCurve | None, nic_w: float) -> bool:
    """Add the nodes of jobs; whether the draw of each is known."""
    known = True
    states_w, names, nodes_w = found.states_w, found.names, found.nodes_w
    for its in held:
        job, measured, nodes = its.job, its.measured, len(its.nodes)
        found.nodes += nodes
        found.measured_nodes += measured
        top_w = 0.0
        if curve is not None:
            # what one of its nodes draws when all of its threads execute
            top_w = mean_w(job.request, nodes, curve.busy_w)
            found.sized_w += nodes * top_w
        elif measured < nodes:
            known = False
            if not measured:
                continue
        total_w = 0.0
        for node, load, said_w, doing in its.nodes:
            watts = said_w
            if watts is None:
                if curve is None:
                    continue
                watts = curve.watts(load, top_w)
                if doing in NETWORKED:
                    watts += nic_w
            total_w += watts
            # apart from the sum of the job: what it is made of must agree with the whole
            found.total_w += watts
            states_w[doing] = states_w.get(doing, 0.0) + watts
            names.append(node.id)
            nodes_w.append(watts)
        found.jobs_w[job.id] = total_w
        found.settled = found.settled and job.state == "running"
        if measured == nodes:
            found.measured_w[job.id] = nodes, total_w / nodes
    return known


def _asleep(state: State) -> Iterable[Node]:
    """While the runtime sleeps the table of nodes is empty: each worker is one, and none is a job's."""
    for address, ws in dict.items(state.scheduler.workers):
        node = Node(str(ws.name))
        node.workers[address] = (ws.nthreads, ws.memory_limit or 0)
        yield node


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value if isfinite(value) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer that no float holds
        return None
    return found if isfinite(found) else None
