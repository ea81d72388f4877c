"""Where the tasks of a job may run: one shared set of addresses a job, and lanes of tasks.

Dask restricts a task to workers through a set of addresses on the task. All tasks of a job share
one such set, so giving a node to a job is one insertion, however many tasks the job has.

Two properties of stock Dask shape this file. An empty set of restrictions means *anywhere* there; an
`AllotmentSet` is true also when it is empty, so that an empty allotment means *nowhere*. And a
restricted task loses root-task queuing; tasks of named jobs that stock would queue are therefore *held*
(restricted to `HOLD`, which is always empty) and admitted one slot at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Literal, Protocol, TypeVar

#: How a task of a job is treated.
#: ``root``: held and admitted slot by slot. ``queue``: plain work's, left to stock's queue. ``rest``:
#: placed by stock inside the allotment. ``p2p``: like ``rest``, and a shuffle may pin it to one worker for a
#: while. ``free``: the user restricted it, or it is an actor's host of choice; it is counted, never touched.
LaneKind = Literal["root", "queue", "rest", "p2p", "free"]


class AllotmentSet(set[str]):
    """Worker addresses that tasks may run on; true also when empty (then: nowhere).

    Change it through `grant` and `revoke` only: they keep the version that caches depend on.
    """

    __slots__ = ("cached", "cached_for", "version", "worker")

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        super().__init__(addresses)
        #: Counts changes.
        self.version = 0
        #: Worker states of the addresses, and the count of changes they were computed at.
        self.cached: set[Any] = set()
        self.cached_for = -1
        #: The worker that was chosen for tasks that are about to be sent; None: any of them will do.
        self.worker: Any = None

    def __bool__(self) -> bool:
        return True

    def copy(self) -> set[str]:
        """A plain set (it may be sent over the network, where this class means nothing)."""
        return set(self)

    def grant(self, addresses: Iterable[str]) -> None:
        """Let tasks run on these workers, too."""
        self.update(addresses)
        self.version += 1

    def revoke(self, addresses: Iterable[str]) -> None:
        """Let no further task run on these workers."""
        self.difference_update(addresses)
        self.version += 1


#: The restriction of every held task: nowhere, until it is admitted.
HOLD = AllotmentSet()
#: The restriction of tasks that are not run: somebody provides their data. No slot admits them.
AWAITED = AllotmentSet()


class Owner(Protocol):
    """Whose tasks a lane holds."""

    id: str
    #: Whether it is plain work.
    is_default: bool
    #: Workers of its nodes.
    allotment: AllotmentSet

    @property
    def reach(self) -> AllotmentSet:
        """Where they may run."""
        ...


OwnerT = TypeVar("OwnerT", bound=Owner)


class Lane(Generic[OwnerT]):
    """The tasks of one job that are treated alike.

    Tasks point to lanes and lanes to jobs, so that what a finished job leaves behind changes hands by
    changing its few lanes.
    """

    __slots__ = ("__weakref__", "guest", "inherited", "job", "kind", "own", "plain", "restriction")

    def __init__(self, job: OwnerT, kind: LaneKind, restriction: AllotmentSet | None) -> None:
        self.job = job
        self.kind: LaneKind = kind
        #: What tasks of the lane are restricted to while they are not on a worker; None: hands off.
        self.restriction = restriction
        #: Whether the lane has changed hands: its tasks may still be bound to what it was before.
        self.inherited = False
        #: Whether its tasks are a named job's that it did not get from another one: the usual ones.
        #: Kept, since it is asked at every step of every task.
        self.own = not job.is_default
        #: Whether they are plain work's, and wait in stock's queue or for nothing: the usual ones there.
        self.plain = job.is_default and kind in ("queue", "rest")
        #: Whether its tasks are plain work that a named job needed and made its own.
        self.guest = False

    def inherit(self, job: OwnerT) -> None:
        """Change hands: the tasks are `job`'s from now on."""
        self.job = job
        self.inherited = True
        self.own = False
        # what stock queues has no restriction, and whoever takes it over is plain work, too
        self.plain = self.plain and self.kind == "queue"

    def __repr__(self) -> str:
        return f"<Lane {self.job.id} {self.kind}>"
