"""Flows: steps of programs outside Dask become data that tasks already wait for.

A client declares a flow and submits, some turns ahead, what is to be done with its steps; the sources of
these tasks are awaited data (`Awaited`). Producers ask here which worker takes their blocks. That worker asks
whether a step goes on, and says when it has all its blocks; then its part of the step is a result.

Rules of the file: nothing is kept for a step that is done, and nothing at all while there is no flow.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal

from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.again import Again
from dask_hpc.scheduler.coupling.bells import rung
from dask_hpc.scheduler.coupling.flow import Flow, Layout
from dask_hpc.scheduler.coupling.inside import Inside
from dask_hpc.scheduler.coupling.joining import Joining
from dask_hpc.scheduler.coupling.splits import Splits
from dask_hpc.scheduler.coupling.values import Values
from dask_hpc.scheduler.coupling.workers import Workers
from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.internals.copies import Copies
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.wire import FLOW_OVER
from dask_hpc_policies.codec import decode
from dask_hpc_policies.coupling import contract

#: How long it takes at most until what waits sees that a client has gone, in seconds.
_LOOK_S = 1.0
#: A client is answered by then, whether there is news or not, in seconds.
_NEWS_S = 10.0
#: Nobody who closes a flow waits longer for the workers of its blocks to hear of it, in seconds.
_TOLD_S = 1.0
#: Flows that are no more, of which it is known why.
_REMEMBERED = 100
#: What a worker is told of blocks that nobody wants.
_NOT_KEPT = {"kept": False, "room": 0}

#: What makes awaited data a result of a worker: its address, the key, size and type, whether it may be
#: brought again, and whether it is a part of a step that lacks others (`Awaited.bring`).
Bring = Callable[[str, Any, int, str, bool, bool], Literal["", "refused", "later"]]


class Flows:
    """The flows of one scheduler."""

    def __init__(
        self,
        engine: Engine,
        watched: Watched,
        bring: Bring,
        give_up: Callable[[Sequence[Any]], None],
    ) -> None:
        self._again = Again(engine, give_up)
        self._scheduler, self._watched = engine.scheduler, watched
        self._workers = Workers(engine)
        self._values = Values(engine.scheduler, watched)
        self._bring = bring
        self._named: dict[str, Flow] = {}
        self._by_id: dict[str, Flow] = {}
        #: Why the latest of those that are no more have ended, by id: who sends may ask later.
        self._ended: dict[str, str] = {}
        self.splits = Splits(engine, self._workers, self._found)
        self._inside = Inside(engine, watched, self._values, self._workers, self.splits)
        self._joining = Joining(engine, self._workers, self._again, self._named.get, self._found)
        # one that is fetched goes with its worker: those where blocks have come in are there until their end
        self._copies = Copies(engine.scheduler, lambda key: str(key).rsplit("-", 2)[0] in self._by_id)

    def methods(self) -> Mapping[str, Method]:
        """What clients, producers and workers may call."""
        ours = (
            self.couple, self.flow_analyse, self.flow_ahead, self.flow_events, self.flow_done, self.flows,
            self.flow_begun, self.flow_computed, self.flow_step, self.flow_ended, self.flow_status,
            self.flow_close, self.flow_workers, self._joining.flow_join, self._joining.flow_moves,
            self.flow_connected, self.flow_begin, self.flow_lie, self.flow_whole, self.flow_left,
        )  # fmt: skip
        return {method.__name__: method for method in ours}

    def needs_node(self) -> bool:
        """Whether producers hand over steps, or wait for a worker to do so: the pool is to have a node."""
        taking = (flow for flow in self._by_id.values() if not flow.failed)
        return self._joining.waits() or any(
            rank.connected and not rank.left for flow in taking for rank in flow.ranks.values()
        )

    def unwrap(self) -> None:
        """The runtime is being uninstalled."""
        for flow in list(self._by_id.values()):
            self._end(flow, f"flow {flow.name!r} is no more: dask_hpc was uninstalled")

    # ---------------------------------------------------------------- clients

    async def couple(
        self, name: str, fields: Sequence[Mapping[str, Any]], queue: int, when_full: str, client: str
    ) -> str:
        """Declare a flow; gives its id.

        Raises
        ------
        ValueError
            When there is a flow of that name.
        CouplingError
            When the client is gone.
        """
        if client not in self._scheduler.clients:
            raise CouplingError(f"flow {name!r} was not declared: its client is gone")
        if (there := self._named.get(name)) is not None:
            if not (there.failed or there.spent()):
                text = f"name is {name!r}, which an open flow has; close that one, or choose another"
                raise ValueError(text)
            self._end(there, f"flow {name!r} was declared anew")
        id = f"hpc-flow-{name}-{uuid.uuid4().hex[:8]}"
        decoded = tuple([decode(contract.Field, dict(one)) for one in fields])
        self._named[name] = self._by_id[id] = Flow(name, id, decoded, queue, when_full, client)
        self._watched.listen(self)
        self._copies.wrap()
        self._joining.ring()
        return id

    async def flow_analyse(
        self, flow: str, analysis: str, said: Mapping[str, Any], turns: tuple[int, int]
    ) -> None:
        """Note what was said of an analysis; its tasks of so many turns are about to be submitted."""
        found = self._found(flow)
        self._workers.check(analysis, said["where"])
        found.analyses[analysis] = dict(said)
        found.measured.said(analysis, said)
        found.widen(said["window"])
        self._values.expect(found, analysis, range(*turns))

    async def flow_ahead(self, flow: str, turns: int) -> None:
        """The client has submitted the tasks of so many turns."""
        found = self._found(flow)
        for turn in range(found.ahead, turns):
            for place in range(len(found.places)):
                self._watched.watch(found.key(turn, place), self._moved)
        for analysis in found.analyses:
            self._values.expect(found, analysis, range(found.ahead, turns))
        found.ahead = turns
        found.bell.ring()

    async def flow_events(self, flow: str, after: int) -> list[Any]:
        """What has happened since event number `after`, as soon as anything has."""
        if (found := self._by_id.get(flow)) is None:
            return [(after + 1, {"kind": "failed", "reason": self._ended.get(flow, "the flow is closed")})]
        found.look()
        return await found.news(after, _NEWS_S)

    async def flow_begun(self, turns: Sequence[tuple[int, Sequence[Any]]]) -> list[int]:
        """Turns, of those with keys of their values, of which a value is being computed, or there."""
        return sorted(self._values.begun(turns))

    async def flow_computed(self, flow: str, turn: int) -> None:
        """All values of a turn are there, and wait for whoever reads."""
        if (found := self._by_id.get(flow)) is not None and found.turns is not None:
            found.turns.computed(turn)

    async def flow_done(self, flow: str, turn: int) -> None:
        """Whoever is to have a turn has had it."""
        if (found := self._by_id.get(flow)) is not None:
            found.done(turn)

    async def flow_step(
        self, flow: str, turn: int, step: int, nodes: Sequence[str], analyses: Sequence[str]
    ) -> None:
        """A program on the cluster begins a turn: see `Inside.begin`."""
        self._inside.begin(self._found(flow), turn, step, nodes, analyses)

    async def flow_ended(self, flow: str, turns: int, reason: str) -> None:
        """The program on the cluster hands over no more steps: see `Inside.end`."""
        if (found := self._by_id.get(flow)) is not None:
            self._inside.end(found, turns, reason)

    async def flow_status(self, flow: str) -> dict[str, Any]:
        """What is known of a flow."""
        return self._found(flow).row()

    async def flow_workers(self, flow: str) -> dict[str, list[str]]:
        """Addresses of the workers that analyses run on, by where."""
        return self._workers.by_where(self._found(flow))

    async def flows(self) -> list[dict[str, Any]]:
        """What is known of all flows."""
        return [flow.row() for flow in self._by_id.values()]

    def status(self) -> Mapping[str, Any]:
        """The same for those who watch; nothing while there is no flow."""
        return {"coupling": [flow.row() for flow in self._by_id.values()]} if self._by_id else {}

    async def flow_close(self, flow: str, reason: str | None = None) -> None:
        """Its client has no more use for it, and why."""
        if (found := self._by_id.get(flow)) is not None:
            self._end(found, reason or f"flow {found.name!r} is closed")
            there = [address for address in set(found.places) if address in self._scheduler.workers]
            if there and not found.inside:
                # else they take steps without asking, and say that these go on
                telling = remote.tell(self._scheduler, there, FLOW_OVER, flow=flow)
                await asyncio.wait([asyncio.ensure_future(telling)], timeout=_TOLD_S)

    # -------------------------------------------------------------- producers

    def parted(self, client: str) -> None:
        """A client has gone: nobody else asks for its flows, and their producers may have left."""
        for flow in [flow for flow in self._by_id.values() if flow.client == client]:
            self._end(flow, f"flow {flow.name!r} has failed: its client is gone, or had no connection")

    def left(self, address: str) -> None:
        """A worker has gone."""
        self.splits.left(address)
        for flow in self._by_id.values():
            for place, there in enumerate(flow.places):
                if there == address:
                    self._again.left(flow, place)

    # ---------------------------------------------------------------- workers

    async def flow_connected(self, flow: str, rank: int) -> None:
        """A producer is connected to its worker."""
        self._found(flow).came(rank)

    async def flow_lie(self, flow: str, rank: int, step: int, layout: Layout) -> str:
        """A producer's blocks lie elsewhere from a step on: why they cannot, or nothing."""
        return self._found(flow).lie(rank, step, layout)

    async def flow_begin(
        self, flow: str, place: int, step: int, unasked: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        """Whether a step goes on of which a place has a block: its turn, None if not, or why it cannot.

        Waits until the tasks of its turn are there and, if the flow says so, until the queue has room.
        `unasked` is a step that the place has taken without asking, and its turn.
        """
        found = self._found(flow)
        if unasked is not None:
            found.took(place, *unasked)
        while True:
            found.check()
            assert found.turns is not None
            given = found.turns.given
            # who asks for a step that has begun gets its turn all the same
            gone = found.lacked(step)
            if gone is not None and step not in found.turns.flight.values():
                return {"refused": f"step {step} can never be whole: rank {gone} has left"}
            try:
                if found.turns.given < found.ahead:
                    verdict = found.turns.ask(place, step, self._values.begun_of(found))
                    if verdict is not None:
                        break
            except ValueError as error:
                return {"refused": str(error)}
            await found.bell.wait(_LOOK_S)
        if verdict.ousted is not None:
            found.say("ousted", turn=verdict.ousted)
        found.begun(given)
        return {"turn": verdict.turn, "room": found.room()}

    async def flow_whole(
        self, flow: str, turn: int, step: int, place: int, worker: str, nbytes: int, type_name: str,
        layout: Layout | None, held: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """A place has all its blocks of a turn: whether they are kept, and which turn it has to ask about.

        Parameters
        ----------
        worker, nbytes, type_name
            Who has them, their size, and the type of what holds them.
        layout
            Where they lie; None: where those of the turn before lay.
        held
            Whether its producers have all of them still, in slots of their rings.
        """
        found = self._by_id.get(flow)
        if found is None or (turns := found.turns) is None or found.failed or found.places[place] != worker:
            return _NOT_KEPT
        if not found.took(place, step, turn):
            return _NOT_KEPT
        key = contract.block_key(flow, turn, place)
        left: int | None = None
        while True:
            # which place is the last one of a turn may not be known before it can have its data
            before, left = left, turns.left(place, turn)
            if before != left and (why := found.laid_out(place, turn, layout)):
                found.fail(f"flow {found.name!r} has failed: {why}")
                return _NOT_KEPT
            if left < 2:
                # until all parts are there its values wait: the last one decides for the whole step
                self.splits.aim(found, turn)
            if not (answer := self._bring(worker, key, nbytes, type_name, held, left > 1)):
                break
            if answer == "refused":
                return _NOT_KEPT
            await rung(found.bell, 0.01)
        if left:  # sent again they are no more
            found.bytes += nbytes
        if turns.whole(place, turn):
            self.splits.whole(found, turn)
            found.say("whole", turn=turn)
        room = found.room()
        if room <= turn + 1:
            room = await found.room_after(turn + 1, _LOOK_S)
        return {"kept": True, "room": room, "moves": self._workers.moves(found, worker)}

    async def flow_left(
        self, flow: str, rank: int, closed: bool, sent: int | None, worker: str,
        unasked: tuple[int, int] | None = None, why: str = "",
    ) -> bool | None:  # fmt: skip
        """A producer is not connected any more; whether its flow goes on.

        None: its blocks go to another worker by now, and it has not said there that it has left.

        Parameters
        ----------
        sent, worker
            The last step that it has sent over this worker, and that.
        unasked
            A step that its place has taken without asking, and its turn.
        why
            What it has failed by, if it could say so.
        """
        if (found := self._by_id.get(flow)) is None or found.failed or found.turns is None:
            return False
        it = found.ranks[rank]
        if closed and (it.place in found.adrift or found.places[it.place] != worker):
            return None
        if unasked is not None:
            found.took(it.place, *unasked)
        it.left, found.gone[rank] = True, sent
        lacking = found.turns.lacking(it.place, sent)
        if not closed:
            said = f"has ended with {why}" if why else "is gone without a word"
            found.fail(f"flow {found.name!r} has failed: rank {rank} {said}")
        elif lacking is not None:
            found.fail(f"flow {found.name!r} has failed: rank {rank} has left without step {lacking}")
        elif found.over():
            found.say("ended", turns=found.turns.given)
        found.bell.ring()
        return not found.failed

    def _moved(self, key: Any, start: str, finish: str) -> None:
        """Nobody wants it any more; or what was there is lost, and somebody needs it."""
        if finish == "memory":
            return
        id, turn, place = key.rsplit("-", 2)
        flow = self._by_id.get(id)
        if finish == "forgotten":
            self._watched.unwatch(key, self._moved)
            if flow is not None:
                flow.forgotten(int(turn), int(place))
        elif finish == "no-worker":
            # also after its step is done: who has kept the step, or what was computed of it, waits for it
            if flow is None:
                self._again.over(key)
            elif flow.turns is not None and flow.turns.had(int(place), int(turn)):
                self._again.lost(flow, int(turn), int(place))

    # ------------------------------------------------------------------- both

    def _found(self, id: str) -> Flow:
        flow = self._by_id.get(id)
        if flow is None:
            name = id.removeprefix("hpc-flow-").rpartition("-")[0]
            raise CouplingError(self._ended.get(id) or f"flow {name!r} is closed")
        return flow

    def _end(self, flow: Flow, reason: str) -> None:
        flow.fail(reason)
        self._values.drop(flow)
        self._inside.drop(flow)
        # what has never come is never forgotten: the scheduler may not have been able to read it
        first = min([flow.given, *(flow.turns.flight if flow.turns is not None else ())])
        for turn, place in product(range(first, flow.ahead), range(len(flow.places))):
            if (key := flow.key(turn, place)) not in self._scheduler.tasks:
                self._watched.unwatch(key, self._moved)
        self._by_id.pop(flow.id, None)
        self._ended[flow.id] = flow.failed
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        if self._named.get(flow.name) is flow:
            del self._named[flow.name]
        if not self._by_id:
            self._watched.leave(self)
            self._copies.unwrap()
