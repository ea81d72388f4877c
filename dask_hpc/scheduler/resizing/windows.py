"""Cooperative windows: a job that keeps state on its nodes is asked before they change.

A job that iterates (a *producer*) lays its state out over its *members*. Before a node joins or leaves
them, a window is opened: joiners make themselves ready, then the producer is told, at a step boundary
of its own it begins, lays its state out anew and commits. Nobody old is told before all joiners are
ready; a window either grows or shrinks; a job has one window at most; who says nothing for too long
has the window aborted, and the old size goes on (Chadha 2019, section 3.1; John 2024, section on the
invasive resource manager). Its phase follows the reconfiguration table of `dask_hpc_policies.states`.

A member that was lost, or has come back, needs a window too; that one nobody has decided, and a loss
cannot be aborted: it waits until the producer is at a boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from dask_hpc.errors import WindowError
from dask_hpc.scheduler.tables.events import Event, WindowMoved
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies import states
from dask_hpc_policies.decision import Action, Reason, ReasonCode, Steal

#: Called when a window has ended: whether it was committed, and if not, why.
Done = Callable[[bool, Reason], None]
_COMMITTED = Reason(ReasonCode.DONE, "carried out")


class Window:
    """One change of a producer's members, from its opening to commit or abort."""

    def __init__(
        self,
        id: int,
        job: JobRecord,
        *,
        joining: Sequence[str],
        leaving: Sequence[str],
        now_s: float,
        lost: bool,
        done: Done,
    ) -> None:
        self.id = id
        self.job = job
        self.joining = tuple(joining)
        self.leaving = tuple(leaving)
        #: Whether the leaving nodes have gone already: then there is no old size to go back to.
        self.lost = lost
        self.phase = states.reconfig_step("steady", "begin")
        #: Whether the producer has been told; joiners are ready from then on.
        self.told = False
        #: When something last happened.
        self.since_s = now_s
        self.done = done

    def step(self, event: str) -> None:
        """Follow the reconfiguration table."""
        self.phase = states.reconfig_step(self.phase, event)


class Member:
    """What is known of a job that iterates."""

    def __init__(
        self, job: JobRecord, members: Iterable[str], topic: str, client: str, now_s: float
    ) -> None:
        self.job = job
        #: Its client, the event topic on which that listens, and when it was there last.
        self.client = client
        self.topic = topic
        self.seen_s = now_s
        #: Ids of the nodes its state is laid out over, in order.
        self.members: list[str] = list(members)
        self.window: Window | None = None
        #: After a window that nobody decided was aborted, the next one waits until then.
        self.again_s = 0.0
        #: Name of the phase in which it may not be resized; None in an elastic one.
        self.rigid: str | None = None
        #: Mean seconds from begin to commit, and number, of windows that have grown or shrunk it.
        self.held_up: dict[str, float] = {}

    def count(self, kind: Literal["expand", "shrink"], seconds: float) -> None:
        """A window has held it up for so long."""
        told = self.held_up
        number = told.get(f"{kind}s", 0) + 1
        mean_s = told.get(f"{kind}_s", 0.0)
        told |= {f"{kind}_s": mean_s + (seconds - mean_s) / number, f"{kind}s": number}


class Windows:
    """All producers of one scheduler and their windows.

    Parameters
    ----------
    new_id
        Gives the next reconfiguration id.
    handle
        Hears what producers have to be told.
    """

    def __init__(
        self,
        state: State,
        new_id: Callable[[], int],
        handle: Callable[[Event], None],
    ) -> None:
        self.state = state
        self._new_id = new_id
        self._handle = handle
        self.producers: dict[str, Member] = {}

    @property
    def active(self) -> bool:
        """Whether any window is open."""
        return any(producer.window is not None for producer in self.producers.values())

    # ------------------------------------------------------------- producers

    def register(self, job: JobRecord, topic: str, client: str) -> list[str]:
        """A running job says that it iterates; returns its nodes, over which it lays its state out.

        Once its client has been gone for ``hpc.client-timeout``, it iterates no more.

        Raises
        ------
        WindowError
            When it is not running, or has said so before.
        """
        if job.id in self.producers:
            raise WindowError(
                f"job {job.id} has a producer already; a job has one: stop that first (producer.stop())"
            )
        if job.state not in ("running", "adapting"):
            raise WindowError(f"job {job.id} is {job.state}; only a running job can become a producer")
        self.state.leave_common(job)
        members = (node.id for node in self._settled(job))
        producer = self.producers[job.id] = Member(job, members, topic, client, self.state.now_s())
        return list(producer.members)

    def section(self) -> Mapping[str, Any]:
        """How long windows have held producers up, in the mean, and how many there were, by job."""
        told = {id: dict(one.held_up) for id, one in self.producers.items() if one.held_up}
        return {"resizes": told} if told else {}

    def forget(self, job: JobRecord) -> None:
        """The job is no producer any more: its nodes change at task boundaries again."""
        producer = self.producers.pop(job.id, None)
        if producer is not None and producer.window is not None:
            why = Reason(ReasonCode.DONE, "its producer has ended")
            self._end(producer, not producer.window.joining, why)
        if producer is not None and not job.active:
            self._handle(WindowMoved(producer.topic, {"window": "over", "job": job.id, "reason": job.reason}))

    def cooperates(self, job: JobRecord | None) -> bool:
        """Whether the job has to be asked."""
        return job is not None and job.id in self.producers

    def cost(self, node: Node) -> tuple[int]:
        """Whether a producer has state on the node."""
        return (self._producer_on(node) is not None,)

    def will_leave(self, node: Node) -> bool:
        """Whether a producer has state on the node that it takes along at its next step boundary."""
        producer = self._producer_on(node)
        return producer is not None and producer.rigid is None and self._is_up(producer.job, node.id)

    def _producer_on(self, node: Node) -> Member | None:
        producer = self.producers.get(node.job) if node.job is not None else None
        return producer if producer is not None and node.id in producer.members else None

    def phase(self, job: JobRecord, name: str, elastic: bool) -> None:
        """The producer has entered a phase; in a rigid one it is not resized."""
        self._producer(job).rigid = None if elastic else name

    def veto(self, subject: JobRecord | Node, action: Action | None) -> Reason | None:
        """Why the job may not be resized, or interrupted, now; None when it may."""
        producer = self.producers.get(subject.id) if isinstance(subject, JobRecord) else None
        if producer is None:
            return None
        if isinstance(action, Steal):
            text = f"{subject.id} keeps state on its nodes: it is not interrupted"
            return Reason(ReasonCode.WRONG_STATE, text)
        if producer.rigid is None:
            return None
        return Reason(ReasonCode.RIGID_PHASE, f"{subject.id} is in its rigid phase {producer.rigid!r}")

    def lends(self, node: Node) -> bool:
        """Nothing of others comes to the nodes of a producer: between two steps they only look idle."""
        return node.job not in self.producers

    # --------------------------------------------------------------- windows

    def all_lost(self, job: JobRecord) -> bool:
        """Whether no member is left: then nobody can be asked, and new nodes compute the state again."""
        return not any(self._is_up(job, id) for id in self.producers[job.id].members)

    def open(
        self,
        job: JobRecord,
        id: int,
        *,
        joining: Sequence[str] = (),
        leaving: Sequence[str] = (),
        lost: bool = False,
        done: Done,
    ) -> Window:
        """Open a window; `done` is called exactly once, when it has ended."""
        producer = self.producers[job.id]
        assert producer.window is None, f"{job.id} has a window"
        window = producer.window = Window(
            id, job, joining=joining, leaving=leaving, now_s=self.state.now_s(), lost=lost, done=done
        )
        if joining:
            self._send(producer, "join")
        else:
            self._tell_producer(producer)
        return window

    def joined(self, job: JobRecord, id: int) -> None:
        """The joiners are ready: now the producer is told."""
        producer, window = self._expect(job, id, "preparing")
        if not window.told:
            self._tell_producer(producer)

    def begin(self, job: JobRecord, id: int) -> dict[str, Any]:
        """The producer is at a boundary and changes its layout now; returns who stays, joins, leaves."""
        producer, window = self._expect(job, id, "preparing")
        if not window.told:
            raise WindowError(f"window {id} of {job.id}: its joiners are not ready yet")
        window.step("ready")
        window.since_s = self.state.now_s()
        return self._picture(producer)

    def commit(self, job: JobRecord, id: int) -> list[str]:
        """The state lies on the new members; returns them."""
        producer, window = self._expect(job, id, "redistributing")
        producer.members = self._after(producer)
        if not window.lost:
            seconds = self.state.now_s() - window.since_s
            producer.count("expand" if window.joining else "shrink", seconds)
        self._end(producer, True, _COMMITTED)
        return list(producer.members)

    def abort(self, job: JobRecord, id: int, why: str) -> None:
        """The producer cannot change its layout: the old size goes on."""
        producer, _ = self._expect(job, id, None)
        self._end(producer, False, Reason(ReasonCode.ABORTED, why))

    def poll(self) -> None:
        """Abort windows that have lost a node or whose producer is silent; open those that are due.

        A loss cannot be aborted: a producer that is silent then is told of it again.
        """
        now_s = self.state.now_s()
        limit_s = self.state.settings.window_timeout_s
        for producer in list(self.producers.values()):
            window = producer.window
            if producer.client in self.state.scheduler.clients:
                producer.seen_s = now_s
            elif now_s - producer.seen_s >= self.state.settings.client_timeout_s:
                self.forget(producer.job)
                continue
            if window is None:
                self._reconcile(producer)
                continue
            gone = [id for id in self._needed(producer) if not self._is_up(producer.job, id)]
            if gone:
                text = f"node {', '.join(gone)} was lost during window {window.id}"
                self._end(producer, False, Reason(ReasonCode.NODES_GONE, text))
            elif now_s - window.since_s < limit_s:
                continue
            elif window.lost and window.told:
                if window.phase == "preparing":
                    # it may have been away when it was told
                    self._tell_producer(producer)
            else:
                what = {
                    "preparing": "its step boundary has not come" if window.told else "joiners are not ready",
                    "redistributing": "its layout has not changed",
                }[window.phase]
                text = f"{what} after {limit_s:g} s (hpc.window-timeout); the old size goes on"
                self._end(producer, False, Reason(ReasonCode.DEADLINE, text))

    def abandon(self, text: str) -> None:
        """Abort everything (the runtime is leaving)."""
        for producer in list(self.producers.values()):
            if producer.window is not None:
                self._end(producer, False, Reason(ReasonCode.ABORTED, text))
        self.producers.clear()

    # -------------------------------------------------------------- internals

    def _reconcile(self, producer: Member) -> None:
        """Open a window for members that were lost, or nodes of the job that are no members yet."""
        job = producer.job
        if job.state != "running" or job.reconfig_id:
            return
        settled = [node.id for node in self._settled(job)]
        missing = [id for id in producer.members if id not in settled]
        extra = [id for id in settled if id not in producer.members]
        if not settled or not (missing or extra) or self.state.now_s() < producer.again_s:
            return
        if missing and len(missing) < len(producer.members):
            extra = []  # first smaller, then larger
        job.reconfig_id = self._new_id()
        job.step("adapt")

        def done(committed: bool, why: Reason) -> None:
            job.reconfig_id = 0
            if job.state == "adapting":
                job.step("adapted")
            if not committed:
                settings = self.state.settings
                producer.again_s = self.state.now_s() + settings.tick_s
                if job.active and not missing:
                    # nodes that came back and cannot join are of use to others
                    self.state.give([self.state.nodes.nodes[id] for id in extra], None)
                    job.no_grow_before_s = self.state.now_s() + settings.shrink_deadline_s
            self.state.note_job(job)

        self.open(job, job.reconfig_id, joining=extra, leaving=missing, lost=bool(missing), done=done)

    def _tell_producer(self, producer: Member) -> None:
        window = producer.window
        assert window is not None
        window.told = True
        window.since_s = self.state.now_s()
        self._send(producer, "pending")

    def _send(self, producer: Member, event: str, **more: Any) -> None:
        assert producer.window is not None
        message = {"window": event, "job": producer.job.id, **self._picture(producer), **more}
        self._handle(WindowMoved(producer.topic, message))

    def _picture(self, producer: Member) -> dict[str, Any]:
        window = producer.window
        assert window is not None
        return {
            "reconfig_id": window.id,
            "staying": [id for id in producer.members if id not in window.leaving],
            "joining": list(window.joining),
            "leaving": list(window.leaving),
        }

    def _after(self, producer: Member) -> list[str]:
        picture = self._picture(producer)
        return [*picture["staying"], *picture["joining"]]

    def _needed(self, producer: Member) -> list[str]:
        """Nodes that a window cannot be committed without."""
        window = producer.window
        assert window is not None
        return self._after(producer) if window.lost else [*producer.members, *window.joining]

    def _end(self, producer: Member, committed: bool, why: Reason) -> None:
        window, producer.window = producer.window, None
        assert window is not None
        if not committed:
            message = {"window": "aborted", "job": producer.job.id, "reconfig_id": window.id}
            self._handle(WindowMoved(producer.topic, {**message, "reason": why.text}))
        window.done(committed, why)

    def _expect(self, job: JobRecord, id: int, phase: str | None) -> tuple[Member, Window]:
        producer = self._producer(job)
        window = producer.window
        if window is None or window.id != id:
            now = "no window is open" if window is None else f"window {window.id} is open"
            raise WindowError(f"window {id} of {job.id} is over or never was; {now}")
        if phase is not None and window.phase != phase:
            raise WindowError(f"window {id} of {job.id} is {window.phase}, must be {phase} for that")
        return producer, window

    def _producer(self, job: JobRecord) -> Member:
        producer = self.producers.get(job.id)
        if producer is None:
            raise WindowError(f"job {job.id} has no producer; make one with job.producer()")
        return producer

    def _is_up(self, job: JobRecord, id: str) -> bool:
        node = self.state.nodes.nodes.get(id)
        return node is not None and node.up and node.job == job.id

    def _settled(self, job: JobRecord) -> list[Node]:
        """Nodes of the job that are up and promised to nobody."""
        return [node for node in self.state.nodes_of(job) if node.up and not node.reserved]
