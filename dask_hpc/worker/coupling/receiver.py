"""A worker's end of flows: it takes blocks from producers, and has each step that is whole become data.

A producer has a connection of its own, which ends with it. Its blocks come in a slot of a ring (`ring`) where
it is on this host and a slot is free, else with the message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dask.utils import typename
from distributed.comm import CommClosedError
from distributed.core import Status
from distributed.sizeof import sizeof
from distributed.worker_state_machine import FreeKeysEvent

from dask_hpc.errors import DaskHPCError
from dask_hpc.worker.answers import answered
from dask_hpc.worker.awaited import landed, runs
from dask_hpc.worker.coupling.blocks import Bundle, came
from dask_hpc.worker.coupling.places import Place, Step
from dask_hpc.worker.coupling.ring import Ring
from dask_hpc.worker.coupling.room import left_of_limit
from dask_hpc_policies.coupling.contract import block_key

logger = logging.getLogger("distributed.dask_hpc")

_STIMULUS = "hpc-flow"
#: The longest time that steps are held back for a program that exchanges data itself, in seconds.
_HOLD_S = 1.0
#: Whether a producer is still there is looked at once it has waited for so long, in seconds.
_PROMPT_S = 0.05


class Receiver:
    """Takes blocks on one worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._places: dict[tuple[str, int], Place] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def serve(
        self, comm: Any, flow: str, place: int, members: Sequence[int], worker: str, rank: int,
        last: int | None = None, again: Sequence[int] = (),
    ) -> Any:  # fmt: skip
        """Take the blocks of one producer until it closes, or is gone.

        It calls this worker as the scheduler does, and has sent steps up to `last` elsewhere, of which it
        sends some again, before any other.
        """
        # the same for all of them
        there = self._places.setdefault((flow, place), Place(flow, place, frozenset(members), worker))
        there.worker = worker
        there.drop(last, rank, again)
        producer, closed, why = _Producer(comm, rank, last), False, ""
        there.left.discard(rank)
        try:
            await self._tell("flow_connected", flow=flow, rank=rank)
            await comm.write({"ok": True})
            while True:
                message = await producer.read()
                if message["op"] == "close":
                    closed = True
                    break
                if message["op"] == "fail":
                    why = message["why"]
                    break
                if message["op"] == "hold":
                    there.hold(rank, message["held"])
                    continue
                if message["op"] == "ring":
                    allowed_bytes = partial(left_of_limit, self._worker)
                    await producer.make_ring(message["slots"], message["nbytes"], allowed_bytes)
                    continue
                try:
                    taken = await self._step(there, producer, message)
                    sent = producer.sent
                    producer.sent = message["step"] if sent is None else max(sent, message["step"])
                    answer: dict[str, Any] = {"taken": taken}
                except (ValueError, DaskHPCError) as error:
                    answer = {"error": str(error), "user": not isinstance(error, DaskHPCError)}
                await self._decided(producer)
                await comm.write({**answer, "free": producer.freed()})
        except (CommClosedError, OSError):
            # also where it is the scheduler that cannot be reached: the producer is not to wait for an answer
            comm.abort()
        except DaskHPCError as error:
            await comm.write({"error": str(error), "user": False})
        finally:
            producer.end()
            there.hold(rank, False)
            there.left.add(rank)
            # one that goes on to another worker has not left
            going = producer.goes or await self._left(there, rank, closed, producer.sent, why)
            if not going:
                # others may not ask for long, and what they wait for refers to this
                there.steps.clear()
            # one that has not come yet may lack in a step of those that have left
            if (not going or there.left == there.members) and self._places.get((flow, place)) is there:
                del self._places[flow, place]
        if closed and going is None:
            # the source closes on the worker that comes in the place of this one: nobody else can say so
            comm.abort()
        elif closed:
            with suppress(CommClosedError, OSError):
                await comm.write({"ok": True})
        return Status.dont_reply

    @property
    def _stays(self) -> bool:
        """Whether this worker is not about to end."""
        return self._worker.status in (Status.running, Status.paused)

    @property
    def _leaves(self) -> bool:
        """Whether this worker is being emptied, and takes no results: it may be told to stay."""
        return bool(self._worker.status == Status.closing_gracefully)

    async def _decided(self, producer: _Producer) -> None:
        """Wait while this worker is being emptied: what it has taken, or freed, may go with it.

        Raises
        ------
        CommClosedError
            Once it ends, so that the producer sends its step elsewhere; and when that is gone meanwhile.
        """
        if self._leaves:
            await producer.until(asyncio.ensure_future(self._emptied()))
        if not self._stays:
            raise CommClosedError("the worker is closing")

    async def _emptied(self) -> None:
        while self._leaves:
            await asyncio.sleep(_PROMPT_S)

    async def _goes(self, place: Place, step: Step) -> bool:
        """Whether a place goes to another worker, as this one is needed otherwise: between two steps."""
        async with place.moving:
            # what is whole is told of while it still comes from here
            for task in list(self._running):
                await asyncio.wait([task])
            if any(each.stays or each.blocks for each in place.steps.values()):
                return False
            there = {"flow": place.flow, "place": place.number, "worker": place.worker}
            step.stays = not await self._tell("flow_moves", **there)
            place.next = place.next if step.stays else None
            return not step.stays

    async def over(self, flow: str) -> None:
        """A flow takes no steps any more."""
        for place in self._places.values():
            place.over |= place.flow == flow

    async def _left(self, place: Place, rank: int, closed: bool, sent: int | None, why: str) -> bool | None:
        """Say that a producer has left, and why if it has failed; whether its flow goes on.

        None: the scheduler does not know of it, as this worker is about to end, or none of its any more.
        """
        # whoever sends now has to ask: some steps can never be whole any more
        place.next = None
        # who is gone without a word has failed, whatever is still to be told
        for task in list(self._running) if closed else ():
            await asyncio.wait([task])
        if not (self._stays or self._leaves):
            return None
        try:
            arguments = {
                "rank": rank, "closed": closed, "sent": sent, "worker": place.worker,
                "unasked": place.unasked, "why": why,
            }  # fmt: skip
            going: bool | None = await self._tell("flow_left", flow=place.flow, **arguments)
            return going
        except (DaskHPCError, OSError) as error:
            name = place.flow
            logger.info("The scheduler could not be told that rank %d of %s has gone: %s", rank, name, error)
            return False if self._stays else None

    async def _tell(self, method: str, **arguments: Any) -> Any:
        try:
            answer = await self._worker.scheduler.hpc(method=method, arguments=arguments)
        except RuntimeError as error:  # so says the pool of a worker that is closing
            raise CommClosedError(str(error)) from error
        return answered(answer)

    async def _step(self, place: Place, producer: _Producer, message: Mapping[str, Any]) -> bool:
        """Take blocks of a step; whether it goes on."""
        number, rank = message["step"], producer.rank
        # what is refused gives its slot back, too
        blocks = came(message, producer.ring)
        layout = [[block.field, list(block.at), list(block.array.shape)] for block in blocks]
        if layout != producer.layout:
            # until the step is taken it may be refused, and blocks of others be laid there
            producer.layout = None
            try:
                why = await self._tell("flow_lie", flow=place.flow, rank=rank, step=number, layout=layout)
                if why:
                    raise ValueError(why)
            except (ValueError, DaskHPCError):
                del blocks
                raise
        for earlier in place.steps:
            # one that was left out may be open again, for others who come to it
            if earlier < number and (producer.sent is None or earlier > producer.sent):
                del blocks
                raise ValueError(
                    f"step is {number}; allowed: {earlier}, which other producers have sent, comes first"
                )
        if number in place.out and not place.over:
            # the scheduler may not know of it any more
            place.leave_out(number)
            return False
        step = place.steps.get(number)
        if step is None:
            verdict = self._verdict(place, number, message.get("again", False))
            step = place.steps[number] = Step(verdict)
        try:
            await producer.until(step.verdict)
            turn = step.verdict.result()
            if turn is not None and (place.moves or self._leaves):
                await producer.until(going := asyncio.ensure_future(self._goes(place, step)))
                producer.goes = going.result()
            if producer.goes:
                raise CommClosedError("its blocks go to another worker")
        except (ValueError, DaskHPCError, OSError):
            place.steps.pop(number, None)
            # what is raised refers to this frame, and the verdict to what is raised: blocks would stay
            del step, blocks
            raise
        if turn is None:
            place.steps.pop(number, None)
            place.leave_out(number)
            return False
        step.blocks[rank], step.layouts[rank], producer.layout = blocks, layout, layout
        step.held = step.held and message["slot"] is not None
        if step.blocks.keys() == place.members:
            place.steps.pop(number, None)
            task = asyncio.ensure_future(self._told(place, number, turn, step))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return True

    def _verdict(self, place: Place, number: int, again: bool) -> asyncio.Future[int | None]:
        """What becomes of a step whose first blocks have come; most are taken here and now."""
        turn = None if again else place.took(number)
        if turn is None:
            verdict: asyncio.Future[int | None] = asyncio.ensure_future(self._ask(place, number, again))
            # whoever waits for it may be gone when it fails
            verdict.add_done_callback(_seen)
        else:
            verdict = asyncio.get_running_loop().create_future()
            verdict.set_result(turn)
        return verdict

    async def _ask(self, place: Place, number: int, again: bool) -> int | None:
        async with place.telling:
            # what is sent again has its turn, which is not the next one
            turn = None if again else place.took(number)
        if turn is not None:
            return turn
        unasked = place.unasked
        arguments = {"flow": place.flow, "place": place.number, "step": number, "unasked": unasked}
        answer = await self._tell("flow_begin", **arguments)
        if place.unasked == unasked:
            place.unasked = None
        if "refused" in answer:
            raise ValueError(answer["refused"])
        turn = answer["turn"]
        place.next = None if turn is None or again else turn + 1
        place.room = answer["room"]
        return turn

    async def _told(self, place: Place, number: int, turn: int, step: Step) -> None:
        async with place.telling:
            if place.holding:
                with suppress(TimeoutError):
                    await asyncio.wait_for(place.going.wait(), _HOLD_S)
            await self._whole(place, number, turn, step)

    async def _whole(self, place: Place, number: int, turn: int, step: Step) -> None:
        """Have the blocks of a step become data."""
        worker = self._worker
        ranks = sorted(step.blocks)
        made = tuple(block for rank in ranks for block in step.blocks[rank])
        bundle = Bundle(number, made)
        key = block_key(place.flow, turn, place.number)
        await landed(worker, [key])
        if runs(worker, key):
            # the step has failed: its task was let run to say so
            logger.info("Step %d of %s is left out: it is not awaited any more", number, place.flow)
            return
        worker.update_data({key: bundle}, stimulus_id=_STIMULUS)
        layout = [lie for rank in ranks for lie in step.layouts[rank]]
        arguments = {
            "flow": place.flow, "turn": turn, "step": number, "place": place.number,
            "worker": place.worker, "nbytes": sizeof(bundle), "type_name": typename(Bundle),
            "layout": None if place.layout == (turn - 1, layout) else layout, "held": step.held,
        }  # fmt: skip
        kept = False
        try:
            answer = await self._tell("flow_whole", **arguments)
            kept, place.room = answer["kept"], answer["room"]
            place.moves = answer.get("moves", False)
            if kept:
                place.layout = turn, layout
            if place.unasked == (number, turn):
                place.unasked = None
        except (DaskHPCError, OSError) as error:
            # it may be a result by now: let go of before this worker is gone it would be lost for good, while
            # what goes with the worker is sent again
            kept = not self._stays
            logger.info("Step %d of %s is left out: %s", number, place.flow, error)
        finally:
            if not kept:
                worker.handle_stimulus(FreeKeysEvent(keys=[key], stimulus_id=_STIMULUS))


class _Producer:
    """One producer's connection, and its ring."""

    def __init__(self, comm: Any, rank: int, last: int | None) -> None:
        self._comm, self.rank = comm, rank
        #: The last step that it has sent, here or to a worker that is lost.
        self.sent = last
        #: What reads its next message, once it was begun before its turn.
        self._reading: asyncio.Task[Any] | None = None
        self.ring: Ring | None = None
        #: Where its blocks lay at the last step that was taken.
        self.layout: list[Any] | None = None
        #: Whether it goes on to another worker.
        self.goes = False

    async def read(self) -> Any:
        """Its next message."""
        reading, self._reading = self._reading, None
        return await (self._comm.read() if reading is None else reading)

    async def until(self, verdict: asyncio.Future[Any]) -> None:
        """Wait for a verdict; `CommClosedError` when the producer goes before it is there.

        While it waits for an answer it says nothing: what can be read then is that it has gone.
        """
        if not verdict.done():
            # most are there at once
            await asyncio.wait([verdict], timeout=_PROMPT_S)
        while not verdict.done():
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._comm.read())
            await asyncio.wait([verdict, self._reading], return_when=asyncio.FIRST_COMPLETED)
            if self._reading.done() and not verdict.done():
                if self._reading.exception() is not None:
                    # nobody may wait for it any more
                    verdict.add_done_callback(_seen)
                    raise CommClosedError("the producer is gone")
                await asyncio.wait([verdict])

    def end(self) -> None:
        """It is not connected any more."""
        self.drop_ring()
        if self._reading is not None:
            self._reading.add_done_callback(_seen)
            self._reading.cancel()
            self._reading = None

    async def make_ring(self, slots: int, nbytes: int, allowed_bytes: Callable[[], float]) -> None:
        """Have a ring in place of the one that is there, if this host and worker have room for it."""
        self.drop_ring()
        try:
            ring = await asyncio.to_thread(Ring, slots, nbytes, allowed_bytes)
        except OSError as error:
            await self._comm.write({"why": str(error)})
            return
        try:
            await self._comm.write({"ring": ring.told})
            answer = await self._comm.read()
        finally:
            ring.opened()
        if answer["opened"]:
            self.ring = ring

    def drop_ring(self) -> None:
        """Use it no more; its memory is there as long as arrays refer to it."""
        self.ring = None

    def freed(self) -> list[int]:
        """Slots that have become free."""
        return [] if self.ring is None else self.ring.freed()


def _seen(task: asyncio.Future[Any]) -> None:
    """What a task has raised is known: nobody else is to be told."""
    if not task.cancelled():
        task.exception()
