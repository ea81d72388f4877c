"""What the nodes draw now: measured where their workers say so, else by the model, node by node.

Rules of the file: it reads; a sample costs one look at every worker. The model goes by the threads that
execute: a node draws idle watts and a share of the way to the busy ones of the job that holds it
(`load_curve`). What nobody knows is None or left out, never 0. A worker's section of its heartbeat is
``{"watts", "label", "at_s", "host", "fresh_s"}``, the watts its own share of what its host draws; it holds
for ``fresh_s`` after ``at_s`` has changed, whatever the clocks of two machines say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.power.checks import MOST_NODE_W
from dask_hpc_policies.power.load_curve import LoadCurve
from dask_hpc_policies.power.view import SECTION
from dask_hpc_policies.power.watts import mean_w

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
    idle_w: float = 0.0
    #: What is drawn beside the nodes of jobs, and beyond the idle watts of those that are free.
    beside_w: float = 0.0
    nodes: int = 0
    measured_nodes: int = 0
    #: Mean watts of a node, of jobs whose nodes are all measured.
    measured_w: dict[str, float] = field(default_factory=dict)
    #: What the model says of these sizes: nodes of jobs busy, all others idle; and whether sizes stand still.
    sized_w: float = 0.0
    settled: bool = True


class Draw:
    """Takes samples."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: When each worker measured last by its clock, and when that was heard of.
        self._heard: dict[str, tuple[float, float]] = {}

    def sample(self, now_s: float, curve: LoadCurve | None) -> Sample:
        """What is drawn now; without a `curve` only what is measured is known."""
        state, found = self._state, Sample(now_s)
        tops: dict[str | None, float] = {}
        held: dict[str, list[int]] = {}
        known = True
        for node in self._nodes():
            load, watts = self._look_at(node, now_s)
            if load is None:
                continue
            found.nodes += 1
            measured = watts is not None
            found.measured_nodes += measured
            job = state.jobs.active.get(node.job) if node.job is not None else None
            holder = None if job is None else job.id
            if curve is not None and holder not in tops:
                tops[holder] = _busy_w(state, job, curve.busy_w)
            if curve is not None:
                found.sized_w += curve.idle_w if job is None else tops[holder]
            if watts is None:
                if curve is None:
                    known = False
                    continue
                watts = curve.watts(load, tops[holder])
            found.total_w += watts
            if job is not None:
                found.jobs_w[job.id] = found.jobs_w.get(job.id, 0.0) + watts
                found.settled = found.settled and job.state == "running"
                count = held.setdefault(job.id, [0, 0])
                count[0] += 1
                count[1] += measured
                continue
            if load > 0:
                found.plain_w += watts
            else:
                found.idle_w += watts
            free = node.role == COMPUTE and not node.reserved and curve is not None
            found.beside_w += max(0.0, watts - curve.idle_w) if free and curve is not None else watts
        found.measured_w = {id: found.jobs_w[id] / n for id, (n, sure) in held.items() if sure == n}
        if found.nodes and known:
            found.label = "measured" if found.measured_nodes == found.nodes else "modelled"
        return found

    def forget(self) -> None:
        """Keep nothing of workers that have gone."""
        workers = self._state.scheduler.workers
        self._heard = {address: row for address, row in self._heard.items() if address in workers}

    def _nodes(self) -> Iterable[Node]:
        nodes = self._state.nodes.nodes
        return nodes.values() if nodes else _asleep(self._state)

    def _look_at(self, node: Node, now_s: float) -> tuple[float | None, float | None]:
        """Share of the node's threads that execute (None: it is not there), and its measured watts."""
        workers = self._state.scheduler.workers
        threads = executing = 0
        watts: float | None = 0.0
        for address in node.workers:
            ws = workers.get(address)
            if ws is None:
                continue
            threads += ws.nthreads
            executing += min(ws.nthreads, len(ws.processing))
            if watts is not None:
                said = self._measured_w(address, remote.sections_of(ws).get(SECTION), now_s)
                watts = None if said is None else watts + said
        return (executing / threads, watts) if threads else (None, None)

    def _measured_w(self, address: str, section: Any, now_s: float) -> float | None:
        if not isinstance(section, dict) or section.get("label") != "measured":
            return None
        watts, at_s = _number(section.get("watts")), _number(section.get("at_s"))
        if watts is None or at_s is None or not 0 < watts <= MOST_NODE_W:
            return None
        told_s, heard_s = self._heard.get(address, (None, 0.0))
        if told_s != at_s:
            self._heard[address] = at_s, now_s
        elif now_s - heard_s > min(_number(section.get("fresh_s")) or FRESH_S, _MOST_FRESH_S):
            return None
        return watts


def _asleep(state: State) -> Iterable[Node]:
    """While the runtime sleeps the table of nodes is empty: each worker is one, and none is a job's."""
    for address, ws in dict.items(state.scheduler.workers):
        node = Node(str(ws.name))
        node.workers[address] = (ws.nthreads, ws.memory_limit or 0)
        yield node


def _busy_w(state: State, job: JobRecord | None, busy_w: float) -> float:
    """What a node of the job draws when all of its threads execute."""
    return busy_w if job is None else mean_w(job.request, max(1, state.nodes_up(job)), busy_w)


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value if isfinite(value) else None
    good = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if good else None
