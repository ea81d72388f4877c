"""The consumer's end of a flow: `Runtime.couple` gives a `Flow`.

What is to be done with coming steps is on the scheduler before they are, so that a value costs no word of
the client. All that is here runs on the client's loop; of one turn after the other the values are handed to
whoever reads them, and only then is the scheduler told that the step is done.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import dask
from distributed import Future

from dask_hpc.channel import Channel
from dask_hpc.client.callbacks import call_all, call_soon, own_thread
from dask_hpc.client.datasets import kept_dataset
from dask_hpc.client.flow_graph import StepGraph
from dask_hpc.client.inside import Inside
from dask_hpc.client.readers import Reader, held_by, why_gone
from dask_hpc.client.turns import Analysis, Spawned, Turn, as_sent, hand_out, let_go, lose
from dask_hpc.errors import CouplingError, InstallError
from dask_hpc.show import line
from dask_hpc_policies.coupling import contract

#: Turns whose tasks are on the scheduler beyond what the queue may hold; more come half of them at a time.
_AHEAD = 16


class Flow:
    """Steps of a program outside Dask, and what is done with them. Made by `Runtime.couple`."""

    def __init__(
        self,
        channel: Channel,
        id: str,
        name: str,
        fields: tuple[contract.Field, ...],
        queue: int,
        when_full: str,
    ) -> None:
        self.name = name
        #: Takes the steps of a program on the cluster.
        self.inside = Inside(self, when_full)
        self._oldest_goes = when_full == "drop-oldest"
        self._channel, self._id, self._fields, self._queue = channel, id, fields, queue
        # as what is submitted where the flow is made: to the job there, if there is one
        self._annotations = dict(dask.get_annotations())
        self._places = 0
        self._layout: list[Any] = []
        self._turns: dict[int, Turn] = {}
        self._submitted = self._begun = self._called = self._done = 0
        #: Turns that had to make room, and those before them are not done.
        self._ousted: set[int] = set()
        self._calling, self._thread = False, own_thread(name)
        self._total: int | None = None
        self._analyses: dict[str, Analysis] = {}
        self._callbacks: list[Callable[[int, Any], Any]] = []
        self._callback_error = ""
        #: Why no value comes any more; None: some may.
        self._outcome: str | None = None
        self._bell = asyncio.Event()
        # held while an analysis is added: no turn begins meanwhile
        self._extending, self._joining = asyncio.Lock(), asyncio.Lock()
        self._spawn = Spawned(self._fail)
        self._loop = asyncio.get_running_loop()
        self._spawn.needed(self._listen())

    def __repr__(self) -> str:
        return line("Flow", name=self.name, steps=self._done, analyses=list(self._analyses))

    def analyse(
        self,
        function: Callable[[Any], Any],
        *,
        name: str,
        window: int = 1,
        every: int = 1,
        where: str = "auto",
        one_core_s: float | None = None,
        memory_bytes: float | None = None,
    ) -> Any:
        """Have a value computed of the last steps, from the next step on.

        Parameters
        ----------
        function
            Gets an `xarray.Dataset` of NumPy arrays, in a task on a worker; its first dimension, ``step``,
            has `window` steps. What it returns is the value. It is sent as it is now, with what it refers
            to.
        name
            What the value is called, for `results`.
        window
            Steps that it gets, from 1 to 1,024. The first value is there once so many have come.
        every
            One value for so many steps.
        where
            ``"in-situ"``: on the workers that the blocks come to; ``"in-transit"``: on nodes of the role
            ``staging``, to which they are fetched; ``"auto"``: where most of its blocks are.
        one_core_s, memory_bytes
            Hints for plans, until it is measured: seconds of a core that a value takes, and the most memory
            at once (no less than it reads is taken for granted). None: nothing is known.

        Raises
        ------
        ValueError, TypeError
            For what is not allowed, a name that another analysis has, a function that cannot be sent.
        CouplingError
            When the flow has ended, or no node has the role that `where` needs.
        """
        said = contract.said_of(name, window, every, where, one_core_s, memory_bytes)
        return self._channel.run(self._analyse, as_sent(function, name), name, said)

    def on_step(self, callback: Callable[[int, Any], Any]) -> Any:
        """Have ``callback(step, dataset)`` called here for every step, from the next one on.

        The data set is one of Dask arrays whose blocks lie where they came in. A step is done when the
        callback has returned; one that raises is logged, and counts as returned. They are called in the order
        of the steps, one after the other. Raises `CouplingError` when the flow has ended.
        """
        if not callable(callback):
            raise TypeError(f"callback is {callback!r}; needed: a function of a step and a data set")
        return self._channel.run(self._add, callback)

    def results(self, name: str, timeout: float | None = None) -> Reader:
        """The values of an analysis from now on: an iterator over ``(step, value)``, in order.

        It ends when all producers have left. A step is done when everybody who reads has got its value.

        Parameters
        ----------
        name
            Of the analysis.
        timeout
            Seconds that one value may take; None: as long as it takes.

        Raises
        ------
        ValueError
            When there is no such analysis. The iterator raises what the analysis has raised, `CouplingError`
            for a step that was lost and when the flow has failed, and `TimeoutError`; after any of them but
            the flow's failure it may be asked for the next one.
        """
        if name not in list(self._analyses):  # what has no hash is none either
            there = ", ".join(map(repr, self._analyses)) or "none"
            raise ValueError(f"name is {name!r}; allowed: an analysis of {self.name!r}, which are {there}")
        if timeout is not None:
            contract.checked_seconds("timeout", timeout)
        reader = Reader(self._channel, self, self._begun, timeout)
        weakref.finalize(reader, call_soon, self._loop, self._ring).atexit = False
        self._analyses[name].read_by(reader)
        return reader

    def status(self) -> Any:
        """State, steps in flight (``in_flight``), sources, workers, bytes, analyses."""
        return self._channel.run(self._status)

    def plan(self) -> Any:
        """The split as it is and the best one by what was measured: see the README of coupling.

        Raises `CouplingError` before the producers have come.
        """
        return self._channel.sync("flow_plan", flow=self._id)

    def close(self) -> Any:
        """End it: producers are told, and nothing is left on the cluster. One that is closed stays so."""
        return self._channel.end(self._close)

    @property
    def outcome(self) -> str | None:
        """Why no value comes any more, an empty text when all have; None: some may come."""
        return self._outcome

    def taken(self) -> None:
        """A reader has taken a value."""
        self._ring()

    def unread(self) -> str:
        """What the oldest step in flight waits for, if that is somebody who does not read; else empty."""
        return held_by(self._done, {name: each.readers for name, each in self._analyses.items()})

    # ----------------------------------------------------------- on the loop

    async def _status(self) -> dict[str, Any]:
        # what an ended flow was is still known here
        try:
            row: dict[str, Any] = await self._channel.ask("flow_status", flow=self._id)
        except CouplingError:
            row = {"name": self.name, "state": "closed", "reason": self._outcome, "in_flight": 0}
        return {**row, "done": self._done, "callback_error": self._callback_error}

    async def _analyse(self, function: Callable[..., Any], name: str, said: dict[str, Any]) -> None:
        async with self._joining, self._extending:  # one after the other, of those of one name too
            if self._outcome is not None:
                raise CouplingError(self._outcome or f"flow {self.name!r} has ended")
            if name in self._analyses:
                raise ValueError(f"name is {name!r}, which an analysis of {self.name!r} has; choose another")
            first = self._begun
            said, turns = {**said, "first": first}, (first, self._submitted)
            await self._channel.ask("flow_analyse", flow=self._id, analysis=name, said=said, turns=turns)
            made = Analysis(name, function, said["window"], said["every"], first, said["where"])
            graph = StepGraph(self._id, self._fields, self._places)
            graph.add_values(made, range(*turns))
            futures = await self._submit(graph) if graph.values else {}
            self._analyses[name] = made  # whoever was interrupted before may say it again
            self._await_values(graph, futures)

    async def _add(self, callback: Callable[[int, Any], Any]) -> None:
        if self._outcome is not None:
            raise CouplingError(self._outcome or f"flow {self.name!r} has ended")
        self._callbacks.append(callback)

    async def _close(self) -> None:
        if self._outcome is None:
            self._finished(f"flow {self.name!r} is closed")
        try:
            async with self._extending:  # what is being submitted is let go of then
                with suppress(InstallError, OSError):  # uninstalled, or no scheduler: nobody has it any more
                    await self._channel.ask("flow_close", flow=self._id, reason=self._outcome)
        finally:
            await self._spawn.end()

    def _finished(self, why: str) -> None:
        """No value comes any more."""
        self._outcome, self._thread = why, None
        for turn in self._turns.values():
            turn.release(why)
        self._turns.clear()
        self._ring()

    def _ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()

    def changes(self) -> Awaitable[Any]:
        """What waits for the next change of anything from this call on, whenever it is awaited."""
        return self._bell.wait()

    async def _listen(self) -> None:
        """Hear what happens on the scheduler."""
        after = 0
        while self._outcome is None:
            for number, event in await self._channel.ask("flow_events", flow=self._id, after=after):
                after = number
                await self._hear(**event)
            await asyncio.sleep(0)  # what it has begun goes first

    async def _fail(self, why: str) -> None:
        """It cannot go on; producers are told where that can be."""
        if self._outcome is None:
            self._finished(f"flow {self.name!r} has failed: {why}")
            with suppress(Exception):  # nobody may be there any more
                await self._channel.ask("flow_close", flow=self._id, reason=self._outcome)

    async def _hear(self, kind: str, **said: Any) -> None:
        turn = self._turns.get(said.get("turn", -1))
        if kind == "ready":
            self._places = said["places"]
            await self._extend()
        elif kind == "layout":
            self._layout = said["layout"]
        elif kind == "failed":
            self._finished(said["reason"])
        elif kind == "gone":
            # this has not let go of them, and steps may still come
            if self._total is None:
                await self._fail(why_gone(self._channel.client_or_none))
        elif kind == "ended":
            self._total = said["turns"]
            self._maybe_over()
        elif kind == "begun":
            async with self._joining:
                if self._outcome is None:
                    self._begun = said["turn"] + 1
                    self._turns[said["turn"]].step = said["step"]
                    self._spawn.needed(self._finish(said["turn"], tuple(self._callbacks)))
                    self._spawn.needed(self._extend())
        elif turn is not None and kind == "value":
            if not (along := turn.along[said["analysis"]]).done():
                along.set_result(said["content"])
        elif turn is not None:
            if kind == "lost":
                self.lose(said["turn"], said["reason"])
            elif kind == "ousted":
                self.oust(said["turn"])
            turn.layout = turn.layout or self._layout  # blocks of later steps may lie elsewhere
            turn.settled.set()

    def in_flight(self) -> list[int]:
        """Turns in flight, oldest first."""
        begun = range(self._done, self._begun)
        return [number for number, turn in self._turns.items() if number in begun and not turn.ousted]

    def lose(self, number: int, reason: str) -> None:
        """A step will never be whole."""
        lose(self._turns, number, reason, self._analyses.values())

    def oust(self, number: int) -> None:
        """A step has to make room."""
        if number >= self._done:
            self._turns[number].oust()
            self._ousted.add(number)
            for reader in self._readers():
                reader.drop(number)
            self._pass()
            self._maybe_over()

    def _pass(self) -> None:
        """Pass over what had to make room, and let go of what no step needs any more."""
        while self._done in self._ousted:
            self._ousted.remove(self._done)
            self._done += 1
        while not self._calling and (self._called < self._done or self._called in self._ousted):
            self._called += 1
        widest = max((each.window for each in self._analyses.values()), default=1)
        let_go(self._turns, self.in_flight(), self._begun, widest)
        self._ring()

    async def _extend(self) -> None:
        """Submit what is to be done with coming steps."""
        async with self._extending:
            upto = self._begun + self._queue + _AHEAD
            if self._outcome is not None or upto - self._submitted < _AHEAD / 2:
                return
            turns, graph = range(self._submitted, upto), StepGraph(self._id, self._fields, self._places)
            graph.add_sources(turns)
            self._submitted = upto
            for analysis in self._analyses.values():
                graph.add_values(analysis, turns)
            futures = await self._submit(graph)
            if self._outcome is not None:
                return
            self._turns |= (new := {turn: Turn([futures[key] for key in graph.keys(turn)]) for turn in turns})
            self._await_values(graph, futures)
            self._spawn.needed(new[turns[0]].read(new.values(), lambda: graph.forget(self._channel)))
            await self._channel.ask("flow_ahead", flow=self._id, turns=upto)

    async def _submit(self, graph: StepGraph) -> dict[str, Future]:
        with dask.annotate(**self._annotations):
            futures = await graph.submit(self._channel)
        for future in futures.values() if self._outcome is not None else ():  # it has ended meanwhile
            future.release()
        return futures

    def _await_values(self, graph: StepGraph, futures: Mapping[str, Future]) -> None:
        for value in graph.values if self._outcome is None else ():
            turn, analysis = self._turns[value.turn], self._analyses[value.analysis]
            turn.await_value(analysis, value.turn, futures[value.key], self._spawn)
            if any(self._turns[each].lost for each in value.window):
                turn.values[value.analysis].cancel()

    async def _finish(self, number: int, callbacks: Sequence[Callable[[int, Any], Any]]) -> None:
        """See one turn through."""
        if (turn := self._turns.get(number)) is None:
            return
        await turn.settled.wait()
        assert turn.step is not None
        while self._called < number and not turn.ousted:
            await self.changes()
        if turn.ousted:
            return
        if callbacks and not turn.lost:
            self._calling = True
            made = partial(kept_dataset, self._channel.client, self._fields, turn.layout or [], turn.sources)
            failed = await call_all(callbacks, turn.step, made, self.name, self._thread)
            self._callback_error, self._calling = failed or self._callback_error, False
        self._called = number + 1
        self._pass()
        if turn.values:
            await asyncio.wait(turn.values.values())
        while self._done < number and not turn.ousted:
            await self.changes()
        if turn.ousted:
            return
        hand_out(self.name, number, turn, self._turns, self._analyses)
        self._ring()
        if self._oldest_goes and any(reader.has(number) for reader in self._readers()):
            await self._channel.ask("flow_computed", flow=self._id, turn=number)
        while any(reader.has(number) for reader in self._readers()):
            await self.changes()
        if turn.ousted:
            return
        self._done = number + 1
        turn.done()
        self._pass()
        self._channel.send_now()
        await self._channel.ask("flow_done", flow=self._id, turn=number)
        self._maybe_over()

    def _readers(self) -> list[Reader]:
        return [reader for each in self._analyses.values() for reader in each.readers]

    def _maybe_over(self) -> None:
        if self._total is not None and self._done >= self._total and self._outcome is None:
            self._finished(self.inside.reason)
