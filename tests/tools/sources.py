"""Producers of flows in processes of their own, told one by one what to do."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

#: Of the field.
SHAPE = (8, 6)


def whole(step: int) -> np.ndarray:
    """The field of one step."""
    return step + np.arange(48.0).reshape(SHAPE) / 1000


class Producer:
    """A `dask_hpc.Source` in a process; what it answers is read by `answer`.

    It is forked from the process that the tests' workers are forked from: what it loads is most of what one
    that starts anew takes.
    """

    def __init__(
        self, scheduler: str, rank: int = 0, size: int = 1, rows: tuple[int, int] = (0, 8), **more: Any
    ) -> None:
        told = {"scheduler": scheduler, "rank": rank, "size": size, "rows": rows, **more}
        self._pipe, other = multiprocessing.Pipe()
        forked = multiprocessing.get_context("forkserver")
        self.process = forked.Process(target=main, args=(other, told), daemon=True)
        self.process.start()
        other.close()

    def tell(self, op: str, **what: Any) -> None:
        """Have it do something."""
        self._pipe.send({"op": op, **what})

    def answer(self) -> Any:
        """What it has answered to the earliest word that was not asked about."""
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            return "gone"

    def ask(self, op: str, **what: Any) -> Any:
        """Both."""
        self.tell(op, **what)
        return self.answer()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()
        self._pipe.close()


@asynccontextmanager
async def producers(s: Any, *rows: tuple[int, int], **more: Any) -> AsyncIterator[list[Producer]]:
    """Producers that are told to connect, one for each range of rows."""
    made = [Producer(s.address, rank, len(rows), one, **more) for rank, one in enumerate(rows)]
    try:
        for one in made:
            one.tell("open")
        yield made
    finally:
        for one in made:
            one.end()


async def told(producer: Producer) -> Any:
    """The next answer of a producer."""
    return await asyncio.wait_for(asyncio.to_thread(producer.answer), 60)


async def asked(producer: Producer, op: str, **what: Any) -> Any:
    """What it answers when it is told something."""
    producer.tell(op, **what)
    return await told(producer)


async def nothing_left(s: Any, *workers: Any) -> None:
    """The flow has left no task, no data and nothing of ours."""
    from helpers import asleep, traces_of_ours, until  # a producer has no use for them

    await until(lambda: not s.tasks, f"no task is left of {list(s.tasks)[:5]}")
    await until(lambda: not any(w.data for w in workers), "no data is left")
    await asleep(s)
    assert traces_of_ours(s) == []


async def in_loop(function: Callable[[], Any]) -> Any:
    """What it returns, called where it may not block."""
    return function()


def forked(source: Any) -> int:
    """In how many ways a forked process could not use a source, before it has left."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    refused = 0
    try:
        for use in (source.close, lambda: source.send(9, {"T": whole(9)})):
            try:
                use()
            except RuntimeError as error:
                refused += "make one here" in str(error)
        source.__exit__(SystemExit, SystemExit(), None)
    finally:
        os._exit(refused)


def main(pipe: Any, told: dict[str, Any]) -> None:
    """Do what is said."""
    from distributed import Security

    import dask_hpc

    first, last = told["rows"]
    security = Security(**told["security"]) if "security" in told else None
    source = None
    while True:
        try:
            what = pipe.recv()
        except EOFError:
            return
        op = what.pop("op")
        try:
            if op == "open":
                source = dask_hpc.Source(
                    "heat", told["scheduler"], rank=told["rank"], size=told["size"], security=security,
                    timeout=told.get("timeout", 30.0), copies=told.get("copies", False),
                )  # fmt: skip
                found = "open"
            elif op == "send":
                field = whole(what["step"])
                rows = what.get("rows", (first, last))
                block = field[rows[0] : rows[1]].astype(what.get("dtype", "float64"))
                blocks = block if what.get("bare") else {what.get("field", "T"): block}
                # programs count with NumPy as well
                found = source.send(np.int64(what["step"]), blocks, at={what.get("dim", "y"): rows[0]})
                block[:] = -1  # the array is the caller's again
            elif op == "many":
                for step in range(what["first"], what["last"]):
                    source.send(step, {"T": whole(step)[first:last]}, at={"y": first})
                found = [source.by_ring, source.by_comm]
            elif op == "communicate":
                with source.communicating():
                    # as long as the other end of this pipe likes
                    pipe.send("communicating")
                    pipe.recv()
                found = "done"
            elif op == "inside":
                with source.communicating():
                    with source.communicating():
                        pass
                    source.send(0, {"T": whole(0)[first:last]}, at={"y": first})
            elif op == "fork":
                found = forked(source)
            elif op == "child":
                found = os.fork()
                if not found:
                    time.sleep(60)
                    os._exit(0)
            elif op == "loop":
                asyncio.run(in_loop(source.close))
            elif op == "ways":
                found = [source.by_ring, source.by_comm]
            else:
                source.close()
                found = "closed"
        except Exception as error:
            found = {"error": type(error).__name__, "text": str(error)}
        pipe.send(found)
