"""A producer of a flow: one process of a program outside Dask, without a client and without MPI."""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

import numpy as np
from distributed import Security
from distributed.comm import CommClosedError, connect
from distributed.core import send_recv
from distributed.protocol import to_serialize

from dask_hpc.coupling.given import (
    address_of,
    apart,
    blocks_of,
    calling,
    connect_s,
    connection_of,
    installed,
    let_go_at_exit,
    why_of,
)
from dask_hpc.coupling.kept import Kept
from dask_hpc.coupling.this_host import hosts
from dask_hpc.errors import CouplingError, InstallError
from dask_hpc.wire import COUPLE, RPC
from dask_hpc.worker.coupling.ring import RingEnd, needed_bytes
from dask_hpc_policies.coupling.contract import Field, checked_name, checked_number, checked_seconds

T = TypeVar("T")

#: How soon one asks again for what is not there yet, in seconds: later each time, up to a most; how long what
#: was interrupted may take to end; and how many ranks a flow may have.
_AGAIN_S, _LATER, _AGAIN_MOST_S, _ENDS_S, _RANKS = 0.05, 1.5, 2.0, 1.0, 2**20
#: Slots of a ring in the place of another are so many times larger, as blocks may grow each step; a worker
#: that had no memory for a ring is asked again after so many seconds.
_LARGER, _RING_AGAIN_S = 1.5, 10.0


class Source:
    """One producer; connects at once, and waits for the flow and the other producers.

    Each has a loop and connections of its own, which run only while it is called: no thread is started. It
    is for one thread at a time, and for the process that has made it.

    Parameters
    ----------
    name
        Of the flow (``rt.couple(name, ...)``).
    scheduler
        Address of the scheduler, or path of its file (``dask scheduler --scheduler-file``).
    rank, size
        Which one it is, of how many.
    security
        A `distributed.Security` for TLS. None: what Dask's configuration says.
    timeout
        Seconds to wait for the flow and the other producers; for the scheduler, or its file, no longer than
        Dask waits (``distributed.comm.timeouts.connect``).
    copies
        Whether blocks that go over the connection are copied here, and those in a ring that becomes too small
        for later ones, so that they can be sent again when their worker is lost: those of as many of the
        latest steps as the ring has slots.

    Raises
    ------
    TypeError
        For what is no address, no path and no `distributed.Security`.
    ValueError
        For a rank or size that cannot be, or that does not agree with other producers, and a file that is
        none of a scheduler's.
    CouplingError
        When the flow has failed, or does not come within `timeout`.
    InstallError
        When the scheduler, or the worker of this one's blocks, has no dask_hpc.
    OSError
        When the scheduler cannot be reached.
    """

    def __init__(
        self,
        name: str,
        scheduler: str | os.PathLike[str],
        *,
        rank: int = 0,
        size: int = 1,
        security: Security | None = None,
        timeout: float = 60.0,
        copies: bool = False,
    ) -> None:
        self.name, self.timeout_s = checked_name(name), checked_seconds("timeout", timeout)
        self.size = checked_number("size", size, 1, _RANKS)
        self.rank = checked_number("rank", rank, 0, self.size - 1)
        self._security, self._scheduler = connection_of(security), address_of(scheduler, self.timeout_s)
        self._token, self._process = uuid.uuid4().hex, os.getpid()
        # with epoll, a child that is forked and closes its copy of the connection closes it for us as well
        self._loop, self._calls = asyncio.SelectorEventLoop(selectors.PollSelector()), threading.Lock()
        #: With the worker, and with the scheduler, by which that knows that this process is there.
        self._comm: Any = None
        self._known: Any = None
        self._ring: RingEnd | None = None
        #: When the worker is asked for a ring: it had no memory for one, and may have by then.
        self._ring_due_s = 0.0
        self._fields: dict[str, Field] = {}
        #: Id of the flow, once it is joined: another one of its name is not gone on with.
        self._flow: str | None = None
        self._slots = 0
        self._last: int | None = None
        #: Whether the program exchanges data itself, and whether it was left while a thread was in a call.
        self._held = self._left = False
        #: Steps whose blocks went through the ring, and over the connection.
        self.by_ring = self.by_comm = 0
        #: Steps whose blocks are still there, and those of them that are to be sent again now.
        self._kept, self._again, self._copies = Kept(), deque[int](), bool(copies)
        try:
            self._run(self._join)
        except BaseException:
            self._abort()
            raise
        let_go_at_exit(self)

    def __repr__(self) -> str:
        return f"<Source {self.name} rank={self.rank} of {self.size}, last step={self._last}>"

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the flow, by name."""
        return self._fields

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, *where: Any) -> None:
        if kind is None:
            self.close()
        else:  # wherever it is called: nothing is to be raised in the place of what has ended the block
            apart(lambda: self._fail(error))

    def send(self, step: int, blocks: Mapping[str, Any], at: Mapping[str, int] | None = None) -> bool:
        """Hand over this process's blocks of a step; the arrays are the caller's again when it returns.

        Waits for room in the flow's queue when the flow says so.

        Parameters
        ----------
        step
            A number above that of the last one; all producers send the same ones.
        blocks
            An array of each field, the same indices of all. Together the producers' cover each field once.
        at
            Where they begin, by dimension; 0 along those that are not named.

        Returns
        -------
        bool
            Whether the step goes on; False: it was left out.

        Raises
        ------
        ValueError
            For a block or step that cannot be. Nothing is changed: the right one may be sent then.
        CouplingError
            When the flow has failed or is closed.
        """
        if self._comm is None:
            raise self._closed()
        if self._held:
            raise RuntimeError("send was called inside of communicating(); send before it, or afterwards")
        # of NumPy's kinds, too: what is sent is a plain number
        step = checked_number("step", step, -(2**62), 2**62)
        told, arrays = blocks_of(self._fields, blocks, {} if at is None else at)
        return self._run(lambda: self._send(step, told, arrays))

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """While the program exchanges data itself, no transfer of its steps begins: use it in a ``with``.

        Steps that were sent are told of afterwards. Held back for a second at most: ranks that wait for
        each other, one of them for room in the queue, would wait for ever.

        Raises
        ------
        RuntimeError
            By `send` inside of it.
        """
        within = self._held
        self._hold(True)
        try:
            yield
        finally:
            self._hold(within)

    def _closed(self) -> CouplingError:
        return CouplingError(f"source {self.rank} of {self.name!r} is closed")

    def _hold(self, held: bool) -> None:
        if self._comm is not None:
            with suppress(CommClosedError, OSError):  # the next `send` notices that it is lost
                self._run(lambda: self._comm.write({"op": "hold", "held": held}))
        self._held = held  # what is refused holds nothing

    def close(self) -> None:
        """Say that no step comes any more; a source that is closed stays so."""
        if self._comm is not None:
            self._run(self._leave, last=True)

    # ------------------------------------------------------------------------

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], last: bool = False) -> T:
        with calling(self._loop, self._calls, self._process):
            task = self._loop.create_task(work())
            try:
                return self._loop.run_until_complete(task)
            except BaseException as error:
                if not task.done() or isinstance(error, KeyboardInterrupt | SystemExit):
                    # what comes next over the connection would be taken for the answer to something else
                    task.cancel()
                    self._loop.run_until_complete(asyncio.wait([task], timeout=_ENDS_S))
                    self._abort()
                raise
            finally:
                if self._left or last:
                    self._abort()

    def _fail(self, error: BaseException) -> None:
        if self._comm is not None:
            with suppress(Exception):  # what is gone without a word has failed, too
                said = {"op": "fail", "why": why_of(error)}
                self._run(lambda: asyncio.wait_for(self._comm.write(said), _ENDS_S))
        self._abort()

    def _abort(self) -> None:
        if self._comm is not None:
            if self._loop.is_running():  # another thread is in a call, which ends
                self._left = True
                self._loop.call_soon_threadsafe(self._comm.abort)
                return
            self._comm.abort()
            self._comm = self._ring = None
            # else the memory of the ring would be there as long as this is
            self._kept.leave(())
        if not self._loop.is_closed():
            if self._known is not None:
                self._known.abort()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _join(self, lost: str | None = None) -> None:
        deadline_s, again_s = time.monotonic() + self.timeout_s, _AGAIN_S
        before = self._known
        self._known = await connect(self._scheduler, timeout=connect_s(self.timeout_s), **self._security)
        if before is not None:
            before.abort()
        while True:
            arguments = {
                "name": self.name, "rank": self.rank, "size": self.size, "token": self._token,
                "hosts": hosts(self._scheduler), "before": self._flow, "lost": lost,
                "last": self._last, "kept": list(self._kept),
                "within_s": max(0.0, deadline_s - time.monotonic()),
            }  # fmt: skip
            answer = await send_recv(self._known, op=RPC, method="flow_join", arguments=arguments)
            answer = installed(answer, f"the scheduler at {self._scheduler}")
            if "error" in answer:
                kind, text = answer["error"]
                raise (ValueError if kind == "ValueError" else CouplingError)(text)
            told = answer["result"]
            if "wait" not in told and await self._connected(told):
                return
            why = told.get("wait") or f"worker {told['worker']} cannot be reached"
            if time.monotonic() > deadline_s:
                raise CouplingError(f"source {self.rank} of {self.name!r}: {why}, for {self.timeout_s:g} s")
            await asyncio.sleep(told.get("again_s", again_s))
            again_s = min(again_s * _LATER, _AGAIN_MOST_S)

    async def _connected(self, told: Mapping[str, Any]) -> bool:
        self._worker = told["worker"]
        self._fields = {one[0]: Field(one[0], tuple(one[1]), tuple(one[2]), one[3]) for one in told["fields"]}
        self._slots = told["slots"]
        self._ring, self._ring_due_s = None, 0.0
        try:
            comm = await connect(self._worker, timeout=5, **self._security)
        except OSError:
            return False
        hello = {name: told[name] for name in ("flow", "place", "members", "worker", "again")}
        try:
            await comm.write({"op": COUPLE, **hello, "rank": self.rank, "last": self._last})
            answer = await comm.read()
        except CommClosedError:
            return False
        if answer is None or "error" in answer:
            comm.abort()
            raise CouplingError(installed(answer, f"worker {self._worker}")["error"])
        self._comm, self._flow = comm, told["flow"]
        self._again = deque(told["again"])
        self._kept.leave(told["again"])
        return True

    async def _send(self, step: int, told: list[dict[str, Any]], arrays: list[np.ndarray]) -> bool:
        # here nobody else sends one
        if self._last is not None and step <= self._last:
            raise ValueError(f"step is {step}; allowed: above {self._last}, the last one, and each step once")
        while True:
            try:
                await self._send_again()
                taken = await self._sent(step, told, arrays)
                self._last = step
                return taken
            except (CommClosedError, OSError):
                if self._left:
                    raise self._closed() from None
                self._comm.abort()
            try:
                await self._join(lost=self._worker)
            except OSError as error:
                text = f"flow {self.name!r} has failed: the scheduler cannot be reached: {error}"
                raise CouplingError(text) from error

    async def _send_again(self) -> None:
        """Give the worker that has come in the place of another what that one has taken with it."""
        while self._again:
            # where this fails it is over, or the next worker's list has it again
            step = self._again.popleft()
            await self._sent(step, *self._kept.blocks(step), again=True)

    async def _sent(
        self, step: int, told: list[dict[str, Any]], arrays: list[np.ndarray], again: bool = False
    ) -> bool:
        nbytes, slot = needed_bytes(arrays), None
        if time.monotonic() >= self._ring_due_s and (self._ring is None or self._ring.slot_bytes < nbytes):
            await self._make_ring(nbytes)
        message: dict[str, Any] = {"op": "step", "step": step, "again": again, "slot": None, "data": None}
        if self._ring is not None and self._ring.slot_bytes >= nbytes and self._ring.free:
            slot = self._ring.free.popleft()
            offsets, copies = self._ring.put(slot, arrays)
            self._kept.add(step, self._ring, slot, told, copies)
            blocks = [{**one, "offset": offset} for one, offset in zip(told, offsets, strict=True)]
            await self._comm.write({**message, "slot": slot, "blocks": blocks})
        else:
            # it is written before this returns, so it need not be a copy; within a process nothing is written
            made = np.copy if self._worker.startswith("inproc://") else np.ascontiguousarray
            data = [to_serialize(made(array)) for array in arrays]
            if self._copies:
                self._kept.copy(step, told, arrays, self._slots)
            await self._comm.write({**message, "blocks": told, "data": data})
        answer = await self._comm.read()
        if self._ring is not None:
            # also a slot that was not taken is told to be free
            self._ring.free.extend(answer["free"])
            self._kept.freed(self._ring, answer["free"])
        if slot is None and not (self._copies and answer.get("taken")):
            self._kept.drop(step)
        if "error" in answer:
            raise (ValueError if answer["user"] else CouplingError)(answer["error"])
        if not again:
            self.by_comm += slot is None
            self.by_ring += slot is not None
        return bool(answer["taken"])

    async def _make_ring(self, nbytes: int) -> None:
        if self._ring is not None:
            self._kept.replace(self._ring, self._slots if self._copies else 0)
            nbytes = max(nbytes, int(_LARGER * self._ring.slot_bytes))
        await self._comm.write({"op": "ring", "slots": self._slots, "nbytes": nbytes})
        answer = await self._comm.read()
        if "why" in answer:
            self._ring, self._ring_due_s = None, time.monotonic() + _RING_AGAIN_S
            return
        try:
            self._ring = RingEnd(answer["ring"])
        except OSError:  # the worker is on another host
            self._ring, self._ring_due_s = None, float("inf")
        await self._comm.write({"opened": self._ring is not None})

    async def _leave(self) -> None:
        while True:
            try:
                await self._send_again()
                await self._comm.write({"op": "close"})
                # the worker has told the scheduler all that it has of this one by then
                await self._comm.read()
                return
            except (CouplingError, ValueError):
                return  # it has failed, or a step that was sent again is not wanted any more
            except (CommClosedError, OSError):
                self._comm.abort()
            try:
                # whoever reads waits for the word that nothing comes any more
                await self._join(lost=self._worker)
            except (CouplingError, InstallError, OSError, ValueError):
                return  # nobody is there, or another one has come in the place of this one
