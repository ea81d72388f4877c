"""What parts of the runtime take part in: protocols of one method, collected once, asked from one place each.

A part is any object, and takes part in whatever of these methods it has, in the order of `Parts.add`. `slots`
and `lends` are asked for many tasks. A capability brings parts: installing makes those that it registers.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc_policies.codec import sendable
from dask_hpc_policies.combine.limits import AnyGuard
from dask_hpc_policies.decision import Action, Decision, Outcome, Reason, ReasonCode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.protocol import Policy

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

logger = logging.getLogger(__name__)

#: What clients may call: plain data in, plain data out.
Method = Callable[..., Awaitable[Any]]
#: Of one method of a part so many different failures are in the log: they may name a node each.
_LOGGED = 20
#: What carries out one kind of action that changes no allotment.
Enactor = Callable[[Any], Outcome]


class Vetoes(Protocol):
    """Has a say in what happens to a job or a node."""

    def veto(self, subject: JobRecord | Node, action: Action | None) -> Reason | None:
        """Why `action` may not be carried out on the job, or the node may not leave the pool (None)."""


class Costs(Protocol):
    """Knows what giving up a node costs."""

    def cost(self, node: Node) -> tuple[float, ...]:
        """Numbers, the weightiest first; all 0: nothing. The costs of earlier parts weigh more."""


class Ranks(Protocol):
    """Knows which nodes suit a job."""

    def rank(self, job: JobRecord, nodes: Sequence[Node]) -> tuple[Sequence[Node], Reason] | None:
        """The same nodes, the best first, and why; None when it does not mind."""


class Slots(Protocol):
    """Limits how many tasks a worker takes."""

    def slots(self, job: JobRecord, worker: WorkerState) -> int:
        """How many more tasks of the job the worker may get now."""


class Lends(Protocol):
    """Has a say in whether tasks of others may run on a node while its holder cannot fill it."""

    def lends(self, node: Node) -> bool:
        """Whether they may."""


class Leaves(Protocol):
    """Saves something of workers that have to go."""

    async def leave(self, departure: Departure) -> bool:
        """Save what can be saved now; whether more could be, were there more room. Called again then."""


class Reserves(Protocol):
    """Needs time at the end of a departure."""

    def reserved_s(self, departure: Departure) -> float:
        """Seconds before the end that are to be left to it."""


class Sections(Protocol):
    """Adds to the picture that a policy gets."""

    def section(self) -> Mapping[str, Any]:
        """Plain JSON data by name; or the value of the field of the picture that has this name."""


class Completes(Protocol):
    """Adds to the picture what can only be told of the whole of it, such as the plan of a solver."""

    def completed(self, view: ClusterSnapshot, policy: Policy) -> ClusterSnapshot:
        """The picture that `policy` gets; guards are then about that one."""


class Amends(Protocol):
    """Knows better than the policy what to do now and then."""

    def amended(self, view: ClusterSnapshot, decision: Decision) -> Decision:
        """What is done in place of a decision that guards have let through."""


class Guards(Protocol):
    """Has decisions kept within bounds."""

    def guards(self) -> Sequence[AnyGuard]:
        """Guards of the arbiter, as things are now."""


class Enactors(Protocol):
    """Carries out kinds of actions that change no allotment."""

    def enactors(self) -> Mapping[type[Any], Enactor]:
        """What carries each kind out."""


class Methods(Protocol):
    """Answers clients."""

    def methods(self) -> Mapping[str, Method]:
        """What clients may call, by name."""


class Status(Protocol):
    """Has something to tell about itself."""

    def status(self) -> Mapping[str, Any]:
        """Plain data by name, for ``rt.status()``."""


class Saves(Protocol):
    """Has workers write what is to be saved."""

    def saving(self) -> Collection[str]:
        """Addresses of those that write now."""


class Charts(Protocol):
    """Has a page of its own that draws what is too much for the status."""

    def charted(self) -> Mapping[str, Any]:
        """Plain data by name, for pages of the dashboard alone."""


class Claims(Protocol):
    """Knows better than to compute some of what clients ask for."""

    def claimed(self, keys: Collection[Any]) -> None:
        """Clients want these; their tasks belong to jobs, and none of them has been placed."""


class Needs(Protocol):
    """May need the runtime to be awake."""

    def needed(self) -> bool:
        """Whether it does now."""


class Ticks(Protocol):
    """Has something to do now and then."""

    def tick(self, now_s: float) -> None:
        """Called every ``hpc.tick`` while the runtime is awake."""


class Unwraps(Protocol):
    """Has put something of its own into the scheduler."""

    def unwrap(self) -> None:
        """Take it out again: the runtime is being uninstalled."""


@dataclass(slots=True)
class Departure:
    """Workers that will be gone at a moment that cannot be put off; it may turn out to be sooner."""

    #: Those that leave together.
    addresses: tuple[str, ...]
    why: str
    #: Seconds it had when that was said last, and when it ends, on the runtime's clock.
    within_s: float
    deadline_s: float
    #: Whether this is the last look: there is no more time to wait for room.
    last: bool = False
    #: How often there was nothing to do but to wait for a worker with room.
    waits: int = 0
    #: Those that end by themselves once they are out, and may start anew.
    ending: set[str] = field(default_factory=set)
    #: Keys that come back without the workers, by who has them now: let go of right before the first goes.
    kept: dict[str, list[Any]] = field(default_factory=dict)
    #: What parts remember of it, by their name.
    notes: dict[str, Any] = field(default_factory=dict)


_PROTOCOLS: tuple[type, ...] = (
    Vetoes, Costs, Ranks, Slots, Lends, Leaves, Reserves, Sections, Completes, Amends, Guards, Enactors,
    Methods, Status, Saves, Charts, Claims, Needs, Ticks, Unwraps,
)  # fmt: skip
#: The method of each protocol, and how many arguments it takes.
_KINDS: Mapping[str, int] = {
    name: len(inspect.signature(method).parameters) - 1
    for protocol in _PROTOCOLS
    for name, method in vars(protocol).items() if not name.startswith("_")
}


class Parts:
    """All parts of one scheduler, by what they take part in."""

    def __init__(self) -> None:
        self._of: dict[str, list[Callable[..., Any]]] = {kind: [] for kind in _KINDS}
        #: Why parts could not do what they were asked for last, by class and method; what the log has of it.
        self.failed: dict[tuple[str, str], str] = {}
        self._logged: dict[tuple[str, str], set[str]] = {}
        #: Admission asks these for every worker with room: the list itself, which only grows.
        self.slots: list[Callable[[JobRecord, WorkerState], int]] = self._of["slots"]

    def add(self, *parts: Any) -> None:
        """Collect parts; raises TypeError when a method takes other arguments than its protocol's."""
        for part in parts:
            for kind, count in _KINDS.items():
                if not callable(method := getattr(part, kind, None)):
                    continue
                if len(inspect.signature(method).parameters) != count:
                    text = f"{type(part).__name__}.{kind} takes other arguments than a part's ({count})"
                    raise TypeError(f"{text}; give it another name, or those of the protocol")
                # the latest is taken out first
                self._of[kind].insert(0 if kind == "unwrap" else len(self._of[kind]), method)

    def _asked(self, kind: str, *args: Any, instead: Callable[..., Any] | None = None) -> Iterator[Any]:
        """What each part answers, but for those that fail: they keep nothing from anybody."""
        for ask in self._of[kind]:
            try:
                answer = ask(*args)
            except Exception as error:
                self.note(kind, ask, error)
                if instead is not None:
                    yield instead(error)
            else:
                self.note(kind, ask, None)
                yield answer

    def note(self, kind: str, ask: Callable[..., Any], error: Exception | None) -> None:
        """A part has failed, or has not (None): the log has it once, the status as long as it is so."""
        if error is None:
            if self.failed:
                self.failed.pop((_class_of(ask), kind), None)
            return
        part, text = _class_of(ask), f"{type(error).__name__}: {error}"
        logged = self._logged.setdefault((part, kind), set())
        if (part, kind) not in self.failed and text not in logged and len(logged) < _LOGGED:
            logged.add(text)
            logger.error("%s has failed in %s", part, kind, exc_info=error)
        self.failed[part, kind] = text

    def veto(self, subject: JobRecord | Node, action: Action | None) -> Reason | None:
        """The first veto; None when nobody minds. As with a guard, what fails lets nothing through."""
        return next(filter(None, self._asked("veto", subject, action, instead=_vetoed)), None)

    def cost(self, node: Node) -> tuple[float, ...]:
        """What giving up the node costs: all costs, one behind the other."""
        return tuple([number for found in self._asked("cost", node) for number in found])

    def rank(self, job: JobRecord, nodes: Sequence[Node]) -> tuple[Sequence[Node], Reason | None]:
        """The nodes, the best for the job first, by the first part that minds, and why."""
        return next((found for found in self._asked("rank", job, nodes) if found is not None), (nodes, None))

    def lends(self, node: Node) -> bool:
        """Whether tasks of others may run on the node: nobody minds. Runs for many tasks."""
        for ask in self._of["lends"]:
            try:
                lent = ask(node)
                if self.failed:
                    self.note("lends", ask, None)
                if not lent:
                    return False
            except Exception as error:
                self.note("lends", ask, error)
        return True

    async def leave(self, departure: Departure) -> bool:
        """Have every part in turn save what it can; whether one of them could save more with more room."""
        more = False
        for save in self._of["leave"]:
            try:
                more |= await save(departure)
                self.note("leave", save, None)
            except Exception as error:
                self.note("leave", save, error)
        return more

    def reserved_s(self, departure: Departure) -> float:
        """Seconds before the end of a departure that are spoken for."""
        return float(sum(self._asked("reserved_s", departure)))

    def sections(self) -> dict[str, Any]:
        """What parts add to the picture, by name."""
        return {name: value for found in self._asked("section") for name, value in found.items()}

    def saving(self) -> set[str]:
        """Addresses of workers that write now what is to be saved."""
        return {address for found in self._asked("saving") for address in found}

    def completed(self, view: ClusterSnapshot, policy: Policy) -> ClusterSnapshot:
        """The picture with what parts can tell of the whole of it, before `policy` sees it."""
        for add in self._of["completed"]:
            view = add(view, policy)
        return view

    def amended(self, view: ClusterSnapshot, decision: Decision) -> Decision:
        """What is done in place of a decision, by every part in turn."""
        for amend in self._of["amended"]:
            decision = amend(view, decision)
        return decision

    def guards(self) -> list[AnyGuard]:
        """All guards, as things are now."""
        return [guard for ask in self._of["guards"] for guard in ask()]

    def enactors(self) -> dict[type[Any], Enactor]:
        """Who carries out each kind of action that changes no allotment."""
        return {kind: enactor for found in self._asked("enactors") for kind, enactor in found.items()}

    def methods(self) -> dict[str, Method]:
        """All that clients may call; raises ValueError when two parts have a method of one name."""
        found: dict[str, Method] = {}
        for ask in self._of["methods"]:
            brought = ask()
            if taken := found.keys() & brought.keys():
                raise ValueError(f"two parts have a method called {min(taken)!r}; choose another name")
            found |= brought
        return found

    def status(self, failed: Callable[[str, Exception], None]) -> dict[str, Any]:
        """What all parts tell about themselves; `failed` is told of a part that cannot, by its class."""
        found: dict[str, Any] = {}
        for ask in self._of["status"]:
            try:
                found |= sendable(ask())
            except Exception as error:
                failed(_class_of(ask), error)
        return found

    def charted(self) -> dict[str, Any]:
        """What parts have for pages of their own."""
        return {name: data for found in self._asked("charted") for name, data in found.items()}

    def claimed(self, keys: Collection[Any]) -> None:
        """Tell parts what clients want of jobs, before any of it is placed."""
        list(self._asked("claimed", keys))

    def needed(self) -> bool:
        """Whether any part needs the runtime to be awake."""
        return any(self._asked("needed"))

    def tick(self, now_s: float) -> None:
        """Let every part do what it does now and then."""
        list(self._asked("tick", now_s))

    def unwrap(self) -> None:
        """Have every part take out what it has put into the scheduler, the latest first."""
        list(self._asked("unwrap"))


def _vetoed(error: Exception) -> Reason:
    return Reason(ReasonCode.GUARD_FAILED, f"a veto failed: {type(error).__name__}: {error}")


def _class_of(method: Callable[..., Any]) -> str:
    return type(getattr(method, "__self__", method)).__name__


#: What makes the parts of capabilities, each from the engine of one scheduler.
_MAKERS: list[Callable[[Any], Any]] = []


def register(make: Callable[[Any], Any]) -> None:
    """Have ``make(engine)`` make a part of every runtime that is installed in this process from now on."""
    _MAKERS.append(make)


@contextmanager
def registered(make: Callable[[Any], Any]) -> Iterator[None]:
    """`register` for the length of a block."""
    register(make)
    try:
        yield
    finally:
        _MAKERS.remove(make)


def made(engine: Any) -> list[Any]:
    """A part from every maker that is registered."""
    return [make(engine) for make in _MAKERS]
