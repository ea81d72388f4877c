"""What all parts of the scheduler side share: jobs, nodes, who owns a task, who is served by a node.

`State` holds data and the few operations that keep its tables in agreement. It takes no decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from dask_hpc.clock import Clock
from dask_hpc.config import Settings
from dask_hpc.scheduler.internals import reads, remote
from dask_hpc.scheduler.internals.allotment import AllotmentSet, Lane
from dask_hpc.scheduler.internals.lingering import Lingering
from dask_hpc.scheduler.tables.at_work import at_work
from dask_hpc.scheduler.tables.job_table import JobTable
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node, NodeTable, node_id
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.trace.records import JobEvent, NodeEvent, Record
from dask_hpc_policies.jobs.queue_orders import in_order
from dask_hpc_policies.model import COMPUTE, ClusterSnapshot, Trigger
from dask_hpc_policies.rules.pool_range import PoolRange

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: Fields of the picture that parts fill; what else they have to say is in its sections.
_OF_PARTS = frozenset({"demand"})


class State:
    """The shared tables of one scheduler.

    Attributes
    ----------
    owner
        Lane of every task that belongs to a job, by key.
    plain
        Running jobs of plain work; they share the nodes that no named job holds.
    intake
        The job that new plain tasks belong to; running, or pending behind a job that waits for
        the whole pool.
    """

    def __init__(self, scheduler: Scheduler, settings: Settings, clock: Clock, parts: Parts) -> None:
        self.scheduler = scheduler
        self._parts = parts
        self.settings = settings
        self.clock = clock
        self.jobs = JobTable()
        self.nodes = NodeTable(settings.node_by)
        self.owner: dict[Any, Lane] = {}
        self.plain: list[JobRecord] = []
        self.intake: JobRecord | None = None
        #: After nodes of plain work could not be drained in time, no busy one is asked for until then.
        self.no_plain_shrink_before_s = 0.0
        self.pool_hint = 0  #: nodes the client says its cluster can have; see `pool_nodes`
        self.pool_range: PoolRange | None = None  #: what a power corridor leaves an adaptive cluster
        self.records: deque[Record] = deque(maxlen=settings.trace_keep)
        self.recorded = 0  #: how many there have been
        self.roles: dict[str, str] = {}  #: that nodes were given, by their ids, whatever their workers say
        self.awaited: set[Any] = set()  #: keys of tasks that wait for data somebody brings, or have got it
        #: Keys of lost results that are not there again yet, and those that come back from a checkpoint.
        self.missing: set[Any] = set()
        self.read_back: set[Any] = set()
        #: How often results were made plain data, which stock cannot make again, or were lost for good.
        self.made_plain = 0
        self.listeners: list[Callable[[Record], None]] = []  #: called with every record, as the trace file's
        #: Whether jobs with nodes take turns on each other's slots: the policy says so.
        self.in_turn = False
        #: Lanes of tasks that belong on one node of a job: by job, then by node id.
        self.pins: dict[JobRecord, dict[str, Lane]] = {}
        #: Workers of nodes that jobs hold together, whoever of them has the node; see `join_common`.
        self.common = AllotmentSet()
        self.lingering = Lingering(scheduler)  #: threads that execute what was cancelled
        self.serving: dict[str, JobRecord] = {}  #: who has the node of a worker: always this very object
        self.moved: Callable[[Collection[str]], None] = _nobody  #: told of addresses whose holder has changed

    def now_s(self) -> float:
        """Seconds on the runtime's clock."""
        return self.clock.now_s()

    def record(self, record: Record) -> None:
        """Append to the trace."""
        self.records.append(record)
        self.recorded += 1
        for listener in self.listeners:
            listener(record)

    # ---------------------------------------------------------------- nodes

    def served_by(self, address: str) -> list[JobRecord]:
        """The jobs whose held tasks may be admitted to the worker, first come first."""
        job = self.serving.get(address)
        if job is not None:
            return [job]
        node = self.nodes.at.get(address)
        return self.plain if node is not None and node.serves_plain else []

    def nodes_up(self, job: JobRecord) -> int:
        """Nodes the job holds that are connected."""
        nodes = self.nodes.nodes
        return sum([1 for id in job.nodes if id in nodes and nodes[id].workers])

    def nodes_of(self, job: JobRecord) -> list[Node]:
        """Nodes the job holds, lost ones included."""
        nodes = self.nodes.nodes
        return [nodes[id] for id in job.nodes if id in nodes]

    def pool_nodes(self) -> int:
        """Nodes the pool can ever have, as far as is known."""
        if self.settings.pool_max_nodes is not None:
            return self.settings.pool_max_nodes
        known = len(self.nodes.nodes)
        if not known:  # asleep, the table is empty
            by, workers = self.nodes.by, self.scheduler.workers.values()
            facts = (reads.worker_facts(ws) for ws in workers)
            known = len({node_id(by, fact["name"], fact["host"]) for fact in facts})
        else:
            known = sum(node.role == COMPUTE for node in self.nodes.nodes.values())
        return max(known, self.pool_hint)

    def add_worker(self, address: str) -> Node:
        """A worker has connected: it serves whom its node serves."""
        ws = self.scheduler.workers[address]
        node = self.nodes.join(address, **reads.worker_facts(ws))
        node.role = self.role_of(ws)
        self._serve(node, [address])
        self._nodes_changed()
        self._note([node])
        return node

    def role_of(self, ws: WorkerState) -> str:
        """The role of the node of a worker: the one it was given, else what its workers say."""
        facts = reads.worker_facts(ws)
        given = self.roles.get(node_id(self.nodes.by, facts["name"], facts["host"]))
        return given if given is not None else remote.role_said(ws)

    def set_role(self, node: Node, role: str) -> None:
        """Have a node that no job holds play a role, also when its workers come again."""
        self.roles[node.id] = node.role = role
        node.reserved = 0
        node.workers_changed()
        self.change([node])

    def drop_worker(self, address: str) -> Node | None:
        """A worker has gone: nobody is served by it any more."""
        node = self.nodes.leave(address)
        if node is None:
            return None
        self._revoke([address])
        self._nodes_changed()
        if not node.up and node.job is None and not node.reserved:
            self.nodes.forget(node)
            self.record(NodeEvent(t_s=self.now_s(), nodes=(node.id,), state="removed"))
        else:
            self._note([node])
        return node

    def reserve(self, nodes: Collection[Node], reconfig_id: int) -> None:
        """Let no further task run on these nodes; whoever holds them goes on holding them."""
        for node in nodes:
            node.reserved, node.leaves = reconfig_id, None
        self.change(nodes)

    def give(self, nodes: Iterable[Node], job: JobRecord | None, reconfig_id: int = 0) -> None:
        """Give nodes to a job, or (None) to plain work; or take them and keep them reserved."""
        active = self.jobs.active
        id = None if job is None else job.id
        given = [n for n in nodes if n.job != id or n.reserved != reconfig_id or not n.workers]
        for node in given:
            holder = active.get(node.job) if node.job is not None else None
            if holder is not None:
                holder.nodes.pop(node.id, None)
            node.reserved = reconfig_id
            node.job = id
        if job is not None:
            job.nodes.update(dict.fromkeys([node.id for node in given]))
        self.change(given)
        if job is None:
            for node in given:
                if not node.workers:
                    self.nodes.forget(node)

    def pinned(self, job: JobRecord, node: str) -> Lane:
        """The lane of the tasks of a job that belong on one of its nodes.

        They may run there also while the node is joining or leaving. Without that node (it was lost, or
        is not the job's) they run on any node of the job.
        """
        pins = self.pins.setdefault(job, {})
        lane = pins.get(node)
        if lane is None:
            lane = pins[node] = Lane(job, "rest", AllotmentSet())
            # what becomes of the tasks of an ended job becomes of these, too
            job.inherited.add(lane)
            self._place_pins(job)
        return lane

    def _place_pins(self, job: JobRecord) -> None:
        for id, lane in self.pins[job].items():
            node = self.nodes.nodes.get(id)
            there = node is not None and node.up and node.job == job.id
            allowed = set(node.workers) if node is not None and there else set(job.allotment)
            pin = lane.restriction
            assert pin is not None
            if pin != allowed:
                pin.revoke(pin - allowed)
                pin.grant(allowed - pin)

    def _nodes_changed(self) -> None:
        for job in list(self.pins):
            if job.active:
                self._place_pins(job)
            else:
                del self.pins[job]

    def start_plain(self, job: JobRecord) -> None:
        """Let a job of plain work use the nodes that no named job holds."""
        self.plain.append(job)
        nodes = [node for node in self.nodes.free() if node.serves_plain]
        nodes += [node for one in self.jobs.named for node in self.resting_nodes(one)]
        addresses = [address for node in nodes for address in node.workers]
        job.allotment.grant(addresses)
        self.moved(addresses)

    def change(self, nodes: Collection[Node]) -> None:
        """Bring all tables up to date with nodes that have one holder, and are reserved alike."""
        if not nodes:
            return
        self.nodes.touch(nodes)
        addresses = [address for node in nodes for address in node.workers]
        self._revoke(addresses)
        self._serve(next(iter(nodes)), addresses)
        self._nodes_changed()
        self._note(nodes)

    def _serve(self, node: Node, addresses: list[str]) -> None:
        """Let workers of nodes that are held as `node` is serve its holder."""
        if not node.serves:
            return
        job = self.jobs.active.get(node.job) if node.job is not None else None
        if job is not None:
            self.serving.update(dict.fromkeys(addresses, job))
            job.allotment.grant(addresses)
            lent = [address for address in addresses if self._parts.lends(self.nodes.at[address])]
            if len(lent) < len(addresses):
                self.leave_common(job)
            if job.reach is self.common:
                self.common.grant(lent)
            if job.resting:
                self._lend_whole(lent)
        else:
            self._lend_whole([address for address in addresses if self.nodes.at[address].serves_plain])

    def _revoke(self, addresses: list[str]) -> None:
        if not self.common.isdisjoint(addresses):
            self.common.revoke(addresses)
        served = {self.serving.pop(address, None) for address in addresses}
        if any(job is None or job.resting for job in served):
            served.update(self.plain)
        for job in served:
            if job is not None:
                job.allotment.revoke(addresses)
        self.moved(addresses)

    def _note(self, nodes: Collection[Node]) -> None:
        """Write nodes that have one holder into the trace, a record for each state they are in."""
        now_s, job = self.now_s(), next(iter(nodes)).job
        states: dict[str, list[str]] = {}
        for node in nodes:
            states.setdefault(node.state, []).append(node.id)
        for state, ids in states.items():
            self.record(NodeEvent(t_s=now_s, nodes=tuple(ids), job=job, state=state))

    # --------------------------------------------------------------- common

    def join_common(self, job: JobRecord) -> None:
        """Let the tasks of a job run on all nodes that such jobs hold, and theirs on its.

        What a scheduler of tasks can share out by itself needs no borders: dependent tasks go where their
        data is, a shuffle spans all these nodes, and a node changes hands without a wait. Only actors and
        what belongs on one node keep to the job's own.
        """
        guests = [lane for lane in job.inherited if lane.guest]
        self._move([*job.lanes.values(), *guests], job, job.allotment, self.common)
        self.common.grant(job.allotment)

    def leave_common(self, job: JobRecord) -> None:
        """Let the job have its nodes for itself again; what others execute there ends there."""
        if job.reach is self.common:
            self._move([*job.lanes.values(), *job.inherited], job, self.common, job.allotment)
            self.common.revoke(job.allotment)

    def _move(self, lanes: Iterable[Lane], job: JobRecord, old: AllotmentSet, new: AllotmentSet) -> None:
        """Have the tasks of a job in these lanes, and those on workers, run on other nodes than before."""
        for lane in lanes:
            if lane.restriction is old:
                lane.restriction = new
        # those that are done, too: they may have to be made again
        for key, lane in self.owner.items() if job.unfinished or job.expected.came_tasks else ():
            ts = self.scheduler.tasks.get(key) if lane.job is job and lane.restriction is not old else None
            if ts is not None and ts.worker_restrictions is old:
                ts.worker_restrictions = new

    # -------------------------------------------------------------- resting

    def set_resting(self, job: JobRecord, rests: bool) -> None:
        """Let plain work have the use of a job's nodes, or no more."""
        if rests:
            job.resting = True
            self._lend_whole([address for node in self.resting_nodes(job) for address in node.workers])
            return
        job.resting = False
        addresses = [address for node in self.nodes_of(job) for address in node.workers]
        for plain in self.plain:
            plain.allotment.revoke(addresses)
        self.moved(addresses)

    def resting_nodes(self, job: JobRecord) -> list[Node]:
        """Nodes of a job that plain work has the use of now."""
        if not job.resting:
            return []
        nodes = self.nodes_of(job)
        return [node for node in nodes if node.up and not node.reserved and self._parts.lends(node)]

    def _lend_whole(self, addresses: Collection[str]) -> None:
        for plain in self.plain:
            plain.allotment.grant(addresses)
        self.moved(addresses)

    # ----------------------------------------------------------------- jobs

    def note_job(self, job: JobRecord) -> None:
        """Write the job's state into the trace."""
        now_s, nodes = self.now_s(), self.nodes_up(job)
        job.sized(now_s, nodes)
        self.record(
            JobEvent(t_s=now_s, job=job.id, name=job.name, state=job.state, nodes=nodes, reason=job.reason)
        )

    def plain_allotment(self) -> AllotmentSet | None:
        """Where plain work may run; None before there is any."""
        return self.plain[0].allotment if self.plain else None

    def plain_busy(self) -> bool:
        """Whether running plain work has something to do now that a node helps with."""
        return any(at_work(job, self.scheduler.tasks, self.owner) for job in self.plain)

    def starving(self, job: JobRecord) -> bool:
        """Whether plain work, if it is to keep nodes, has something to do and no node for it."""
        keeps = self.settings.default_job_min_nodes > 0
        return keeps and self.unserved(job) and at_work(job, self.scheduler.tasks, self.owner)

    def unserved(self, job: JobRecord) -> bool:
        """Whether plain work has unfinished tasks, which may wait for others, and no node."""
        if job not in self.plain or not job.unfinished or any(one.resting for one in self.jobs.named):
            return False
        return not any(n.workers and n.job is None and n.role == COMPUTE for n in self.nodes.nodes.values())

    def reserve_for_plain(self) -> int:
        """Nodes that plain work keeps now."""
        return self.settings.default_job_min_nodes if self.plain_busy() else 0

    def idle_nodes(self) -> int:
        """Nodes that a decision may hand out."""
        return max(0, len(self.nodes.free()) - self.reserve_for_plain())

    def snapshot(self, trigger: Trigger) -> ClusterSnapshot:
        """The picture that a policy gets. Costs O(nodes held + jobs)."""
        now_s = self.now_s()
        views = []
        for job in self.jobs.active.values():
            waits = job.state == "pending" and not job.reconfig_id
            if not job.unfinished and (job.is_default or (job.closed and waits)):
                continue  # there is nothing to do for it; what it waits for others make
            if job in self.plain:  # without a node it queues like any other job
                view = job.view(now_s, len(self.nodes.free()), "pending" if self.starving(job) else None)
            else:
                view = job.view(now_s, self.nodes_up(job))
            views.append(view)
        sections = self._parts.sections()
        own = {name: sections.pop(name) for name in _OF_PARTS & sections.keys()}
        return ClusterSnapshot(
            now_s=now_s,
            trigger=trigger,
            nodes=self.nodes.views(now_s),
            jobs=tuple(in_order(views)),
            idle_nodes=self.idle_nodes(),
            lock=self.settings.lock,
            sections=sections,
            **own,
        )


def _nobody(addresses: Iterable[str]) -> None:
    """Nobody wants to know."""
