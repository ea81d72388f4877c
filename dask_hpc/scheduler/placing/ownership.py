"""Which job a task belongs to, and how it is treated there.

A task belongs to the job its ``hpc_job`` annotation names (when that job has ended, it is plain work);
without one to the job of the task or actor that submitted it; without either to the job that its client
is bound to; else it is plain work. What a task of the user's own restricted stays where the user said.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from dask.utils import key_split

from dask_hpc.scheduler.internals import actor_homes, reads, writes
from dask_hpc.scheduler.internals.allotment import AllotmentSet, Lane, LaneKind
from dask_hpc.scheduler.internals.origins import WorkerClients
from dask_hpc.scheduler.placing.guests import Guests
from dask_hpc.scheduler.tables.events import GraphArrived
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.parts import Parts
from dask_hpc.scheduler.tables.state import State

if TYPE_CHECKING:
    from distributed.scheduler import TaskGroup, TaskState

#: The job that the graph being taken in names as a whole (whatever the user has annotated), or belongs to.
GRAPH_JOB: ContextVar[Any] = ContextVar("hpc_graph_job", default=None)
#: States of a task that nobody computes: whoever asks for it anew may make it its own.
_NOT_SENT = ("released", "waiting", "queued", "no-worker")
#: State and kind of a task that is in stock's queue, and stays there.
_QUEUED = ("queued", "queue")
#: Tasks converted in one turn of the event loop: a few tens of milliseconds.
_CHUNK = 500


class Ownership:
    """Puts tasks into lanes, and takes them out again."""

    def __init__(self, state: State, parts: Parts, guests: Guests) -> None:
        self.state = state
        #: Parts that limit how many tasks a worker takes, of which stock's queue knows nothing.
        self._limits = parts.slots
        self.guests = guests
        #: Id of the active job that a client is bound to, by client.
        self._bound: dict[str, str] = {}
        self.worker_clients = WorkerClients(state.scheduler)

    # -------------------------------------------------------------- bindings

    def bind(self, job: str, client: str) -> None:
        """Let what `client` submits belong to a job, in place of the one it is bound to.

        Does nothing when the job is not active.
        """
        if job in self.state.jobs.active:
            self._bound[client] = job

    def unbind(self, job: str, client: str | None = None) -> None:
        """Undo `bind` for that client, or for all; clients that are bound to another job stay so."""
        for bound, id in list(self._bound.items()):
            if id == job and client in (None, bound):
                del self._bound[bound]

    def implied(self, submitter: Any, client: str) -> str | None:
        """The job of a graph that names none: of what submits it, else of its client; None: plain."""
        # without the submitter's, a job that holds every node would wait for itself
        lane = self.state.owner.get(submitter) if submitter is not None else None
        if lane is not None:
            return lane.job.id
        job = self._job_on(self.worker_clients.worker(client), submitter)
        if job is None and submitter is None:
            job = self._bound.get(client)
        return job if job in self.state.jobs.active else None

    def _job_on(self, worker: str | None, submitter: Any) -> str | None:
        """The job of a coroutine, an actor's method or a thread that submits through its worker's client.

        A method that runs in a thread gives the name of its actor and its own, ``Name.method``. Others give
        none: it is the job of what is on the worker, which may not be who has the node. Where several have
        something there, it is the one that has the node, that of the only actors, or plain work.
        """
        node = self.state.nodes.at.get(worker) if worker is not None else None
        if worker is None or node is None:
            return None
        owner, scheduler = self.state.owner, self.state.scheduler
        actors = {key: owner[key].job.id for key in actor_homes.actors_on(scheduler, worker) if key in owner}
        name = submitter.rpartition(".")[0] if isinstance(submitter, str) else None
        there = {job for key, job in actors.items() if key_split(key) == name}
        if not there:
            tasks = [owner[key].job.id for key in reads.keys_on(scheduler, worker) if key in owner]
            there = {*actors.values(), *tasks}
        if len(there) < 2:  # without any it is a thread that its task has left behind
            return there.pop() if there else node.job
        only = actors.values() if len(set(actors.values())) == 1 else ()
        likely = (node.job, *only, *[job.id for job in self.state.plain])
        return next((job for job in likely if job in there), None)

    # ------------------------------------------------------------ new tasks

    def claim(self, graph: GraphArrived) -> set[JobRecord]:
        """Put the new tasks of a graph into lanes; returns the jobs that got some.

        Runs after the tasks were made and before any of them is placed, which is the only moment at
        which this is free of races.
        """
        keys, declared, client, nodes = graph.keys, graph.declared, graph.client, graph.nodes
        state = self.state
        owner = state.owner
        tasks = state.scheduler.tasks
        shuffles = reads.shuffle_tasks(state.scheduler, keys)
        groups: dict[Any, bool] = {}
        jobs: dict[Any, JobRecord] = {}
        of_job: dict[JobRecord, set[TaskGroup]] = {}
        active, awaited = state.jobs.active, state.awaited
        # also where plain work is to keep no node: what a job needs of it would wait for that very job
        starving = any(state.unserved(job) for job in state.plain)
        whole = GRAPH_JOB.get()
        #: Lanes of tasks without dependencies and of others, by task group, and how many more tasks they got:
        #: the other tasks of a group are like its first.
        bare: dict[Any, list[Any]] = {}
        alike: dict[Any, list[Any]] = {}
        #: Tasks that another job was first to submit, by the job of this graph.
        asked: dict[Any, list[TaskState]] = {}
        one_kind = not (declared or nodes or shuffles)
        for key in declared:
            writes.unannotate(tasks[key])
        for key in keys:
            ts = tasks[key]
            if awaited and key in awaited:
                writes.await_data(ts)
                continue
            known = owner.get(key)
            #: Where the others of its group are, if it stands for them.
            rows = None
            # a new one of which nothing was said alone that decides how it is treated; for every task, so
            # `reads.user_restricted` is written out
            if (
                one_kind
                and known is None
                and ts.state == "released"
                and not (ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions)
                and not (ts.actor or (ts.dependencies and reads.is_producer(ts)))
            ):
                rows = alike if ts.dependencies else bare
                row = rows.get(ts.group)
                if row is not None:
                    lane = owner[key] = row[0]
                    row[1] += 1
                    if lane.restriction is not None:
                        ts.worker_restrictions = lane.restriction
                    continue
            # as in stock: what is said of a task comes before what is said of the graph
            name = declared.get(key, whole) if known is None else whole
            if not isinstance(name, str):
                name = None  # as a row of `Runtime.jobs`, which cannot even be looked up
            if known is not None:
                if ts.state not in ("processing", "erred") and ts.state not in _NOT_SENT:
                    continue
                if known.job.id != name and (name in active or not known.job.is_default):
                    asked.setdefault(name, []).append(ts)
                if ts.state in ("processing", "erred") or name not in active or not known.job.is_default:
                    continue
            elif ts.state != "released":
                continue
            job = jobs.get(name)
            if job is None:
                job = jobs[name] = self._job(name, client)
            if known is not None and ts.state != "released":
                if not job.is_default and (starving or known.job not in state.plain):
                    self.guests.invite([ts], job)
                continue
            if known is not None and known.kind != "free":
                writes.unrestrict(ts)
            lane = owner[key] = self._lane(ts, job, ts in shuffles, groups, nodes.get(key))
            if lane.restriction is not None:
                ts.worker_restrictions = lane.restriction
            if not job.is_default:
                job.expected.came(ts.prefix)
                of_job.setdefault(job, set()).add(ts.group)
                if starving or state.intake not in state.plain:  # plain work of this graph may have made one
                    self.guests.invite(list(ts.dependencies), job)
                elif rows is not None and lane is job.lanes[lane.kind]:
                    rows[ts.group] = [lane, 0]
            elif rows is not None and (groups.get(ts.group) if lane.kind == "queue" else lane.plain):
                rows[ts.group] = [lane, 0]
        for group, (lane, more) in chain(bare.items(), alike.items()):
            if more and not lane.job.is_default:
                lane.job.expected.came(group.prefix, more)
        for job, its_groups in of_job.items():
            # results of an earlier job that are still held keep the group of tasks of their name
            writes.put_in_span(state.scheduler, its_groups, job.name, job.span_id, state.jobs.has_ended)
        return {*jobs.values(), *self.guests.ask(asked, client, graph.wanted)}

    def _job(self, name: str | None, client: str) -> JobRecord:
        job = self.state.jobs.active.get(name) if name is not None else None
        if job is None:
            job = self.plain_intake()
            job.client = client
        else:
            job.clients.add(client)
            job.quiet_since_s = None
        return job

    def declared_job(self, name: Any) -> JobRecord | None:
        """The active job that a graph names."""
        return self.state.jobs.active.get(name) if isinstance(name, str) else None

    def plain_intake(self) -> JobRecord:
        """The job that new plain tasks belong to.

        Plain work that is running goes on taking tasks in, with two exceptions: a job waits for so
        much of the pool that it can only start once plain work has ended, or no node is left for
        plain work. Then new plain tasks form a job of their own that waits its turn. What asks for
        more nodes than there are could not start then either, and plain work does not wait for those.
        """
        state = self.state
        intake = state.intake
        assert intake is not None
        if intake not in state.plain:
            return intake
        keep = state.settings.default_job_min_nodes
        there = state.nodes.computing()
        needs = [job.smallest_start for job in state.jobs.named if job.state == "pending"]
        blocked = any(there - keep < need <= there for need in needs)
        if not blocked:
            if intake.unfinished:
                return intake
            nodes = len(state.nodes.free()) + sum([len(state.resting_nodes(job)) for job in state.jobs.named])
            if nodes >= keep:
                return intake
        intake = state.jobs.add_default(submit_s=state.now_s(), min_nodes=keep)
        state.intake = intake
        return intake

    def _lane(
        self, ts: TaskState, job: JobRecord, in_shuffle: bool, groups: dict[Any, bool], node: Any
    ) -> Lane:
        """The lane of a new task of a job; `node` is what was said of where it belongs."""
        lane = job.lanes[self._kind(ts, in_shuffle, groups, job)]
        if ts.actor and lane.kind != "free" and job.undeclared and not job.is_default:
            lane = job.own_lane()
        if isinstance(node, str) and lane.kind in ("root", "rest") and not job.is_default:
            lane = self.state.pinned(job, node)
        return lane

    def _kind(self, ts: TaskState, in_shuffle: bool, groups: dict[Any, bool], job: JobRecord) -> LaneKind:
        if reads.user_restricted(ts):
            return "free"
        if in_shuffle:
            return "p2p"
        scheduler = self.state.scheduler
        if ts.actor:
            return "rest"
        if job in self.state.plain and not self._limits and reads.is_queued(scheduler, ts, groups):
            return "queue"
        if not reads.queuing(scheduler):
            return "rest"
        return "root" if reads.is_root(scheduler, ts, groups) else "rest"

    def let_run_anywhere(self, key: Any) -> None:
        """Treat a lost task that was restricted by its user, and is not any more, as others of its job."""
        lane = self.state.owner.get(key)
        if lane is not None and lane.kind == "free":
            kind: LaneKind = "root" if reads.queuing(self.state.scheduler) else "rest"
            lane = self.state.owner[key] = lane.job.lanes[kind]
            writes.restrict(self.state.scheduler.tasks[key], lane)

    # ------------------------------------------------------- existing tasks

    async def adopt(self, job: JobRecord) -> None:
        """Make every task that belongs to no job a task of plain work, a chunk a turn of the loop."""
        state = self.state
        scheduler = state.scheduler
        tasks = reads.all_tasks(scheduler)
        groups: dict[Any, bool] = {}
        while chunk := list(islice(tasks, _CHUNK)):
            shuffles = reads.shuffle_tasks(scheduler, [ts.key for ts in chunk])
            unplaced = []
            for ts in chunk:
                if scheduler.tasks.get(ts.key) is not ts or ts.key in state.owner or ts.key in state.awaited:
                    continue
                in_shuffle = ts in shuffles or any(reads.is_barrier(dts.key) for dts in ts.dependencies)
                self._adopt_one(ts, job, in_shuffle or reads.pinned_by_shuffle(ts), groups)
                kind = state.owner[ts.key].kind
                if ts.state in ("queued", "no-worker") and kind != "free" and (ts.state, kind) != _QUEUED:
                    unplaced.append(ts)
            writes.requeue(scheduler, unplaced, f"hpc-adopt-{state.now_s()}")
            await asyncio.sleep(0)

    def _adopt_one(self, ts: TaskState, job: JobRecord, in_shuffle: bool, groups: dict[Any, bool]) -> None:
        kind: LaneKind = "p2p" if in_shuffle else self._kind(ts, False, groups, job)
        writes.unannotate(ts)
        lane = self.state.owner[ts.key] = job.lanes[kind]
        now = ts.state
        if now in reads.IN_PLAY:
            job.unfinished += 1
            job.processing += now == "processing"
            job.held += now in ("queued", "no-worker")
            if now == "no-worker" and kind == "free":
                job.stranded[ts.key] = None
        if now == "processing":
            if kind in ("root", "rest"):
                ts.worker_restrictions = job.allotment
        elif now not in ("queued", "no-worker"):
            writes.restrict(ts, lane)

    def inherit(self, job: JobRecord, heir: JobRecord) -> list[AllotmentSet]:
        """Give what an ended job leaves behind to another one; costs nothing per task.

        Returns the sets that unfinished tasks of the job are bound to (see `rebind`).
        """
        self.unbind(job.id)
        if job.gate is not None:
            job.gate.drop(job)
        pins = self.state.pins.pop(job, {}).values()
        bound = [
            job.allotment,
            job.reach,
            *(lane.restriction for lane in pins if lane.restriction is not None),
        ]
        for lane in (*job.lanes.values(), *job.inherited):
            lane.inherit(heir)
            lane.restriction = heir.lanes[lane.kind].restriction
            lane.guest = lane.guest and not heir.is_default
            heir.inherited.add(lane)
        job.inherited.clear()
        heir.unfinished += job.unfinished
        heir.processing += job.processing
        heir.held += job.held
        job.unfinished = job.processing = job.held = job.guests = 0
        while (ts := job.next_held()) is not None:
            heir.park(ts)
        heir.stranded.update({**job.stranded, **job.bound})
        job.stranded, job.bound = {}, {}
        heir.nodeless |= job.nodeless
        return bound

    def rebind(self, bound: list[AllotmentSet]) -> list[TaskState]:
        """Let the unfinished tasks of an ended job, now its heir's, run where the heir's do."""
        moved = []
        for key, lane in self.state.owner.items():
            ts = self.state.scheduler.tasks.get(key)
            if ts is not None and any(ts.worker_restrictions is one for one in bound):
                ts.worker_restrictions = lane.job.reach
                if ts.state == "no-worker":
                    moved.append(ts)
        return moved

    def unfinished_keys(self, job: JobRecord) -> list[Any]:
        """Keys of the job's tasks that are not finished."""
        tasks = self.state.scheduler.tasks
        return [
            key
            for key, lane in self.state.owner.items()
            if lane.job is job and not lane.guest and key in tasks and tasks[key].state in reads.IN_PLAY
        ]

    def unplaced_by_users(self) -> list[TaskState]:
        """Tasks without a worker that the user has restricted."""
        tasks, owner = self.state.scheduler.tasks, self.state.owner
        stranded = chain.from_iterable((*job.stranded, *job.bound) for job in self.state.jobs.active.values())
        found = {key: tasks[key] for key in stranded if key in owner and owner[key].kind == "free"}
        return [ts for ts in found.values() if ts.state == "no-worker"]

    def unplaced_plain(self) -> list[TaskState]:
        """Other tasks of plain work without a worker."""
        owner = self.state.owner
        return [
            ts
            for ts in reads.unplaced(self.state.scheduler)
            if (lane := owner.get(ts.key)) is not None and lane.job.is_default and lane.kind != "free"
        ]

    # ------------------------------------------------------------ hand back

    async def hand_back(self) -> None:
        """Give every task back to stock scheduling, a chunk a turn of the loop."""
        state = self.state
        scheduler = state.scheduler
        self._bound.clear()
        self.guests.clear()
        while state.owner:
            unplaced = []
            for key in list(islice(state.owner, _CHUNK)):
                del state.owner[key]
                ts = scheduler.tasks.get(key)
                if ts is None:
                    continue
                writes.unrestrict(ts)
                writes.unorder(ts)
                if ts.state == "no-worker" and not reads.user_restricted(ts):
                    unplaced.append(ts)
            writes.requeue(scheduler, unplaced, f"hpc-hand-back-{state.now_s()}")
            await asyncio.sleep(0)
