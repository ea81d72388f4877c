"""A flow's end for programs on the cluster: their steps are handed over on the client, the data stays."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dask_hpc.client.turns import Turn, all_there
from dask_hpc.errors import CouplingError, DaskHPCError
from dask_hpc.program.coupled import Due
from dask_hpc_policies.coupling.contract import Field, is_due
from dask_hpc_policies.coupling.turns import makes_room

if TYPE_CHECKING:
    from distributed import Future


class Inside:
    """Takes steps for a flow; made by `Flow.inside`."""

    def __init__(self, flow: Any, when_full: str) -> None:
        self._flow, self._when_full = flow, when_full
        self._last: int | None = None
        self._told = self._refused = False
        #: Whose steps these are; it holds on to its whole state, and flows may be kept for longer.
        self._program: weakref.ref[object] | None = None
        #: The values that are due at the turn that has begun.
        self._due: list[Due] = []
        #: Analyses whose value of that turn can never be, as blocks of its window are lost.
        self._lost: list[str] = []
        #: Why the program has ended too soon; empty: it has not.
        self.reason = ""

    @property
    def fields(self) -> Sequence[Field]:
        """The fields of the flow."""
        fields: Sequence[Field] = self._flow._fields
        return fields

    @property
    def id(self) -> str:
        """Of the flow."""
        id: str = self._flow._id
        return id

    async def begin(self, program: object, step: int, nodes: Sequence[str]) -> int | None:
        """Wait for room in the queue; the turn of a step, None when it is left out or came before.

        The scheduler is told of it, with the nodes of its blocks.

        Raises
        ------
        CouplingError
            When the flow has failed or is closed, or another program has it.
        """
        flow = self._flow
        if not self._is_of(program):
            # its steps would be taken for those of the other one
            raise CouplingError(f"flow {flow.name!r} has or had another program; couple this one to another")
        self._program = weakref.ref(program)
        if self._last is not None and step <= self._last:
            return None
        while self._is_full():
            if self._when_full == "wait":
                await flow.changes()
            elif self._when_full == "drop-newest" or not await self._made_room():
                return None
        # no analysis is added meanwhile
        async with flow._joining:
            self._check()
            turn: int = flow._begun
            self._due = self._due_at(turn)
            told = {"turn": turn, "step": step, "nodes": list(nodes)}
            analyses = [one.analysis for one in self._due]
            try:
                await flow._channel.ask("flow_step", flow=flow._id, **told, analyses=analyses)
            except CouplingError:
                # somebody else has it
                self._refused = not self._told
                raise
            self._told = True
            # it may have been closed meanwhile: nobody would let go of what is submitted now
            self._check()
        return turn

    def _is_full(self) -> bool:
        flow = self._flow
        # before the first one is told, what is in flight is somebody else's: this program will be refused
        return self._told and flow._outcome is None and len(flow.in_flight()) >= flow._queue

    def full(self, step: int) -> bool:
        """Whether a step has to wait until there is room for it in the queue."""
        came = self._last is not None and step <= self._last
        return self._when_full == "wait" and not came and self._is_full()

    async def room(self, step: int) -> None:
        """Wait until there is, or the flow is over."""
        while self.full(step):
            await self._flow.changes()

    def _is_of(self, program: object) -> bool:
        """Whether no other program has or had the flow."""
        return self._program is None or self._program() is program

    def _check(self) -> None:
        """Raise `CouplingError` when the flow takes no step any more."""
        flow = self._flow
        if flow._outcome is not None:
            raise CouplingError(flow._outcome or f"flow {flow.name!r} has ended")

    async def _made_room(self) -> bool:
        """Have a step in flight make room for the next one; whether there is any now."""
        flow = self._flow
        keys = [(at, [one.key for one in flow._turns[at].futures]) for at in flow.in_flight()]
        begun = set(await flow._channel.ask("flow_begun", turns=keys))
        # some may have come to their end meanwhile
        flight = flow.in_flight()
        if flow._outcome is None and len(flight) >= flow._queue:
            computed = {at for at in flight if flow._turns[at].computed}
            if (ousted := makes_room(flight, begun, computed)) is None:
                return False
            flow.oust(ousted)
            # it is not in flight any more, for those who watch either
            await flow._channel.ask("flow_done", flow=flow._id, turn=ousted)
        return True

    def due(self) -> list[Due]:
        """The values that are due at the turn that has begun."""
        return self._due

    def _due_at(self, turn: int) -> list[Due]:
        turns = self._flow._turns
        found = []
        self._lost = []
        for one in self._flow._analyses.values():
            if is_due(turn, one.first, one.window, one.every):
                window = [turns[at] for at in range(turn - one.window + 1, turn)]
                if lost := [each for each in window if any(source.cancelled() for source in each.sources)]:
                    # Dask would take the whole step for lost with it
                    lost[0].lost = lost[0].lost or "blocks of it were lost with their node"
                    self._lost.append(one.name)
                else:
                    earlier = [source for each in window for source in each.sources]
                    found.append(Due(one.name, one.function, earlier))
        return found

    def handed(
        self,
        turn: int,
        step: int,
        layout: Sequence[Any],
        sources: Sequence[Future],
        values: Mapping[str, Future],
    ) -> None:
        """The tasks of a turn are submitted."""
        flow = self._flow
        one = flow._turns[turn] = Turn(list(sources), step=step, layout=list(layout))
        for name, future in values.items():
            one.await_value(flow._analyses[name], turn, future, flow._spawn)
        for name in self._lost:
            one.values[name] = flow._loop.create_future()
            one.values[name].cancel()
        flow._begun = turn + 1
        self._last = step
        flow._spawn.needed(self._settle(turn, one))
        flow._spawn.needed(flow._finish(turn, tuple(flow._callbacks)))

    async def _settle(self, turn: int, one: Turn) -> None:
        if why := await all_there(one.sources):
            flow = self._flow
            if turn in flow._turns:
                flow.lose(turn, why)
        one.settled.set()

    async def end(self, program: object, reason: str, again: bool) -> None:
        """No step comes any more of a program; why, if that was not to be, and whether it may run again.

        One that has not begun and may run again is waited for.
        """
        flow = self._flow
        if self._refused or not self._is_of(program) or (reason and again and not self._told):
            return
        # what is in flight comes to its end first
        self.reason = f"flow {flow.name!r} has failed: {reason}" if reason else ""
        flow._total = flow._begun
        flow._maybe_over()
        if self._told:
            # no policy is to place it any more; where the scheduler is gone there is nobody to tell
            with suppress(DaskHPCError, OSError):
                ended = {"turns": flow._begun, "reason": self.reason}
                await flow._channel.ask("flow_ended", flow=flow._id, **ended)
