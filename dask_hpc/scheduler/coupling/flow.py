"""What the scheduler knows of one flow: producers, where their blocks go, what its client is to hear."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.coupling.bells import Bell
from dask_hpc.scheduler.coupling.measured import Measured
from dask_hpc.scheduler.coupling.steps import Steps
from dask_hpc_policies.coupling.contract import Field, Place, block_key, is_due, shared, uncovered
from dask_hpc_policies.coupling.turns import Turns
from dask_hpc_policies.placement.application import Where

#: Slots of a ring beyond those that queue and longest window need: it takes a moment until one is free.
_SPARE = 2
#: Nobody takes the place of one that was told of its worker before it has had so long to connect.
_ON_ITS_WAY_S = 10.0
#: A producer whose worker is lost notices that with its next `send`. It is taken for dead once it has had no
#: connection to the scheduler either for so many seconds.
_BACK_S = 60.0
#: News that more is about to follow is told of so much later at most, in seconds.
_MOMENT_S = 0.1
#: Blocks of so many producers are compared with one another as they come: a microsecond of the loop each.
_COMPARED = 1000
#: Where blocks lie: field, begin and shape of each.
Layout = Sequence[tuple[str, Sequence[int], Sequence[int]]]


@dataclass(slots=True)
class Rank:
    """One producer."""

    #: Drawn by the producer: one that is started anew has another.
    token: str
    #: Names and addresses of its host.
    hosts: Collection[str]
    place: int = -1
    #: Whether it is connected to its worker, and has been.
    connected: bool = False
    #: Whether it will send no more.
    left: bool = False
    #: Its place has a worker anew, maybe one of the same address, which it has not been told.
    moved: bool = False
    #: What serves its connection to the scheduler, which is there as long as the producer is.
    served: asyncio.Task[Any] | None = None


@dataclass(slots=True)
class Flow:
    """One flow."""

    name: str
    id: str
    fields: tuple[Field, ...]
    queue: int
    when_full: str
    client: str
    ranks: dict[int, Rank] = field(default_factory=dict)
    #: Those that have to come to their worker, and when each was last known to be there.
    awaited: dict[int, float] = field(default_factory=dict)
    #: The last step that each of those has sent that have left.
    gone: dict[int, int | None] = field(default_factory=dict)
    #: Whether a program on the cluster hands over its steps: no other may. Turns that it has begun, those of
    #: them in flight, and the most threads of a node that it computes a step on.
    inside: bool = False
    own_turns: int = 0
    own_flight: set[int] = field(default_factory=set)
    own_threads: int = 0
    #: Helper cores of a node that a policy has taken of that program; None: those that it cannot use.
    helper_cores: int | None = None
    #: Whether that program has begun its last step, and why there are no more if that was not to be.
    inside_over: bool = False
    inside_failed: str = ""
    #: How many producers there are; None: none has come.
    size: int | None = None
    #: Worker of each place, and the ranks of its producers, once all are there.
    places: list[str] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)
    #: Places whose worker has gone, and no other has come in its place; one may have its address.
    adrift: set[int] = field(default_factory=set)
    turns: Turns | None = None
    #: Tasks of so many turns are on the scheduler.
    ahead: int = 0
    #: Steps of the longest window, and what was said of analyses.
    window: int = 1
    analyses: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Where a policy has placed analyses from the next step on, on how many staging nodes (None: it has said
    #: nothing of that), and what was measured of all of them.
    sides: dict[str, Where] = field(default_factory=dict)
    staging: int | None = None
    measured: Measured = field(default_factory=Measured)
    steps: Steps = field(default_factory=Steps)
    #: Why it has failed, or that it is closed.
    failed: str = ""
    #: Where each place's blocks lie, by the turn from which on, and whether it is known that those of all
    #: cover the fields.
    layouts: dict[int, dict[int, tuple[tuple[str, Place], ...]]] = field(default_factory=dict)
    covered: bool = False
    #: Where each producer's blocks lie by field, and the step from which on.
    lies: dict[int, tuple[int, dict[str, Place]]] = field(default_factory=dict)
    bytes: int = 0
    #: Whether the client was told that tasks of coming steps are gone.
    gone_told: bool = False
    #: What the client has not heard: number and event.
    events: deque[tuple[int, dict[str, Any]]] = field(default_factory=deque)
    told: int = 0
    #: There may be room, or none any more: what producers and workers wait for, whom no other news concerns.
    bell: Bell = field(default_factory=Bell)
    #: What its client waits for, whether it is to hear something, and what says so after a moment.
    _news: Bell = field(default_factory=Bell)
    _due: bool = False
    _soon: asyncio.TimerHandle | None = None

    def key(self, turn: int, place: int) -> str:
        """Key of what a place has of a turn."""
        return block_key(self.id, turn, place)

    def say(self, kind: str, *, at_once: bool = True, **what: Any) -> None:
        """Have the client hear something, or within a moment: more is about to come, and is told with it."""
        self.told += 1
        self.events.append((self.told, {"kind": kind, **what}))
        if at_once:
            self._tell()
        elif self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_MOMENT_S, self._tell)

    def _tell(self) -> None:
        self._due = True
        self._news.ring()

    async def news(self, after: int, within_s: float) -> list[tuple[int, dict[str, Any]]]:
        """What the client has not heard, which is event number `after` and those before it.

        Waits until something is to be heard, for about so many seconds at most.
        """
        while self.events and self.events[0][0] <= after:
            self.events.popleft()
        # what was told to nobody who has heard it: the answer was lost on its way
        self._due = self._due or bool(self.events and self._soon is None)
        until_s = stopwatch_s() + within_s
        while not self._due and stopwatch_s() < until_s:
            await self._news.wait(within_s)
        self._due = False
        if self._soon is not None:
            # it is told with the others
            self._soon.cancel()
            self._soon = None
        return list(self.events)

    def check(self) -> None:
        """Raise `CouplingError` when it does not go on."""
        self.look()
        if self.failed:
            raise CouplingError(self.failed)

    def fail(self, reason: str) -> None:
        """Go on no more; the first reason counts."""
        if not self.failed:
            self.failed = reason
            # why tasks of coming steps are gone, too
            self.events = deque(each for each in self.events if each[1]["kind"] != "gone")
            self.say("failed", reason=reason)
            self.bell.ring()

    def admit(self, number: int, size: int, token: str, hosts: Collection[str]) -> None:
        """A producer has come; raises `ValueError` for one that cannot be."""
        there = self.ranks.get(number)
        if self.size not in (None, size):
            raise ValueError(f"size is {size}; allowed: {self.size}, as other sources of {self.name!r} say")
        if there is not None and (there.connected or there.left):
            raise ValueError(
                f"rank is {number}, which another source of {self.name!r} has or had; each has its own"
            )
        self.size = size
        self.ranks[number] = Rank(token, list(hosts), -1 if there is None else there.place)
        self.awaited.pop(number, None)
        if len(self.ranks) == size:
            # they wait for the last one: waking all of them for each would cost as many squared
            self.bell.ring()

    def on_its_way(self, number: int) -> bool:
        """Whether a producer was told of its worker a moment ago, and is not connected to it yet."""
        return stopwatch_s() - self.awaited.get(number, float("-inf")) < _ON_ITS_WAY_S

    def came(self, number: int) -> None:
        """A producer is connected to its worker."""
        self.ranks[number].connected = True
        self.awaited.pop(number, None)

    def await_all(self, members: Iterable[int]) -> None:
        """These producers have to come to their worker now."""
        now_s = stopwatch_s()
        self.awaited |= {number: now_s for number in members if not self.ranks[number].left}

    def look(self) -> None:
        """Fail when a producer does not come any more: it may have died with its worker, or on its way."""
        now_s = stopwatch_s()
        for number, there_s in self.awaited.items():
            served = self.ranks[number].served
            if served is not None and not served.done():
                self.awaited[number] = now_s
            elif now_s - there_s > _BACK_S:
                why = f"has not come for {_BACK_S:g} s, and has no connection to the scheduler"
                self.fail(f"flow {self.name!r} has failed: rank {number} has died: it {why}")

    def move(self, place: int, workers: Mapping[str, Collection[str]]) -> None:
        """Have another worker take what goes to a place whose worker is lost."""
        hosts = {host for number in self.members[place] for host in self.ranks[number].hosts}
        near = [address for address, its in workers.items() if hosts & set(its)]
        self.places[place] = min(near or workers, key=self.places.count)
        self.adrift.discard(place)
        for number in self.members[place]:
            self.ranks[number].moved = True

    @property
    def given(self) -> int:
        """Turns that have begun."""
        return self.own_turns if self.turns is None else self.turns.given

    def over(self) -> bool:
        """Whether all producers have left."""
        return self.inside_over or (
            self.size is not None
            and len(self.ranks) == self.size
            and all(rank.left for rank in self.ranks.values())
        )

    def spent(self) -> bool:
        """Whether no step comes any more, and all are done."""
        return self.over() and not self.flight()

    def room(self) -> int:
        """The turn from which on workers have to ask whether a step goes on."""
        return 0 if self.turns is None else min(self.turns.room, self.ahead)

    async def room_after(self, turn: int, within_s: float) -> int:
        """`room`, once it is beyond a turn where that can be: that is waited for, for about so long."""
        until_s: float | None = None
        while (room := self.room()) <= turn and self.when_full == "wait" and not self.failed:
            now_s = stopwatch_s()
            until_s = until_s or now_s + within_s
            if now_s >= until_s:
                break
            await self.bell.wait(within_s)
        return room

    def begun(self, given: int) -> None:
        """Tell the client of turns that have begun since so many were given."""
        assert self.turns is not None
        if self.turns.given == given:
            return
        for turn in range(given, self.turns.given):
            step = self.turns.flight[turn]
            self.steps.begun(turn, step, self.queue)
            # the other places have theirs, too, and the whole step is told of in one message
            self.say("begun", at_once=len(self.places) == 1, turn=turn, step=step)

    def done(self, turn: int) -> None:
        """Whoever is to have a turn has had it."""
        self.own_flight.discard(turn)
        if self.turns is not None:
            self.turns.done(turn)
        self.bell.ring()

    def forgotten(self, turn: int, place: int) -> None:
        """Nobody wants any more what a place has of a turn: tell the client, once, if it is still to come.

        The client knows whether it has let go of it itself, as it does when it closes the flow.
        """
        if self.turns is None or self.failed or self.gone_told:
            return
        if turn >= self.turns.given or (turn in self.turns.flight and not self.turns.has(place, turn)):
            self.gone_told = True
            self.say("gone")

    def lacked(self, step: int) -> int | None:
        """A rank that has left without sending a step; None: there is none."""
        if not self.gone:
            return None
        return next((rank for rank, sent in self.gone.items() if sent is None or sent < step), None)

    def widen(self, window: int) -> None:
        """An analysis has a window of so many steps: no fewer are remembered, nor have slots."""
        self.window = max(self.window, window)
        if self.turns is not None:
            self.turns.remember(self.queue + self.window)

    def took(self, place: int, step: int, turn: int) -> bool:
        """A place has taken a step without asking; whether that goes on."""
        turns = self.turns
        assert turns is not None
        given = turns.given
        try:
            goes_on = turns.took(place, step, turn)
        except ValueError as error:
            self.fail(f"flow {self.name!r} has failed: {error}")
            return False
        if turns.given != given:
            self.begun(given)
        if goes_on and self.gone and (gone := self.lacked(step)) is not None:
            self.fail(f"flow {self.name!r} has failed: rank {gone} has left without step {step}")
            return False
        return goes_on

    def lie(self, number: int, step: int, layout: Layout) -> str:
        """Note where a producer's blocks lie from a step on; why they cannot, when another's lie there then.

        Of others it is known whose blocks lie elsewhere from that very step on, as all do at the first one.
        Beyond so many producers nothing is said here: once the step is whole, the flow fails.
        """
        mine: dict[str, Place] = {name: (tuple(at), tuple(shape)) for name, at, shape in layout}
        for other, (since, its) in self.lies.items() if len(self.lies) < _COMPARED else ():
            if other == number or since != step:
                continue
            for one in self.fields:
                if where := shared(one, mine[one.name], its[one.name]):
                    return f"{one.name!r} has two blocks at {where}: one is that of rank {other}"
        self.lies[number] = step, mine
        return ""

    def laid_out(self, place: int, turn: int, layout: Layout | None) -> str:
        """Note where the blocks of a place lie from a turn on; None: they lie as before.

        Once it is the last one of that turn: why the blocks of all places do not cover the fields, if so.
        """
        assert self.turns is not None
        if layout is not None:
            lies = tuple((name, (tuple(at), tuple(shape))) for name, at, shape in layout)
            self.layouts.setdefault(place, {})[turn] = lies
            self.covered = False
        if self.covered or self.turns.left(place, turn) != 1:
            return ""
        placed = []
        for number in range(len(self.places)):
            its = self.layouts[number]
            # others may be ahead of that turn
            present = max((since for since in its if since <= turn), default=min(its))
            self.layouts[number] = {since: lies for since, lies in its.items() if since >= present}
            placed.append(its[present])
        for one in self.fields:
            blocks = [lie for each in placed for name, lie in each if name == one.name]
            if why := uncovered(one, blocks):
                return why
        self.covered = all(len(its) == 1 for its in self.layouts.values())
        self.say("layout", layout=[[[name, *lie] for name, lie in each] for each in placed])
        return ""

    def joined(self, place: int) -> dict[str, Any]:
        """What a producer of a place has to know."""
        return {
            "flow": self.id, "worker": self.places[place], "place": place, "members": self.members[place],
            "slots": self.queue + self.window + _SPARE,
            "fields": [[one.name, one.dims, one.shape, one.dtype] for one in self.fields],
        }  # fmt: skip

    def flight(self) -> list[int]:
        """Turns that have begun and are not done."""
        return sorted(self.own_flight) if self.turns is None else list(self.turns.flight)

    def kept_threads(self, threads: int) -> int:
        """Threads of a node that its program keeps, of so many that the node has; the others are helpers."""
        taken = self.helper_cores
        return self.own_threads if taken is None else max(1, min(self.own_threads, threads - taken))

    def side(self, analysis: str) -> Where:
        """Where an analysis runs from the next step on; ``auto``: where most of its blocks are."""
        said: Where = self.analyses[analysis]["where"]
        return self.sides.get(analysis, "auto") if said == "auto" else said

    def due(self, turn: int) -> int:
        """How many values a turn is to have."""
        said = self.analyses.values()
        return sum(is_due(turn, one["first"], one["window"], one["every"]) for one in said)

    def row(self) -> dict[str, Any]:
        """What is known of it, as plain data."""
        started, failed = self.turns is not None or self.inside, self.failed or self.inside_failed
        state = "ended" if self.over() else "running" if started else "waiting"
        return {
            "name": self.name,
            "state": "failed" if failed else state,
            "reason": failed,
            "sources": sum(rank.connected and not rank.left for rank in self.ranks.values()),
            "size": self.size,
            "workers": list(dict.fromkeys(self.places)),
            "in_flight": len(self.flight()),
            "queue": self.queue,
            "when_full": self.when_full,
            "steps": self.given,
            "bytes": self.bytes,
            "analyses": dict(self.analyses),
            "split": {name: self.side(name) for name in self.analyses},
            "latest": self.steps.rows(self.due),
        }
