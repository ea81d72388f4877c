"""What a key of a flow costs the scheduler's loop: the scheduler, the workers and the ranks, each on its own.

What the loop's thread takes is its time on a core, so that it waits for others costs it nothing. In one
process with the ranks it would still find what it needs gone from the caches, and ask for the interpreter's
lock again and again: that is no cost of a key.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from types import coroutine
from typing import Any, NamedTuple

import numpy as np
from coupling_ranks import PATIENCE_S
from distributed import Client, Future, Scheduler, Worker

import dask_hpc
from dask_hpc.wire import RPC

#: Messages of a step: of workers, then of the client.
METHODS = ("flow_begin", "flow_whole", "flow_events", "flow_done")
#: Processes that the ranks are shared by, and steps that are sent one after the other before stock's turn.
PROCESSES, TURN = 4, 5


class Keys(NamedTuple):
    """What was found."""

    steps: int
    #: Microseconds of each message, by what it is, and of each of stock's for a key that is scattered.
    took_us: dict[str, list[float]]
    stock_us: list[float]
    #: Microseconds of the loop's thread for a step, whatever it does meanwhile, turn by turn.
    loop_us: list[float]


def measured(ranks: int, workers: int, steps: int) -> Keys:
    """Steps of many ranks on a few workers, and in turns with them keys that stock scatters."""
    # what is loaded once is there in all of them
    multiprocessing.set_forkserver_preload(["dask_hpc", "distributed", "numpy"])
    forked = multiprocessing.get_context("forkserver")
    with _process(forked, _scheduler) as scheduler:
        address = scheduler.recv()
        with _processes(forked, _worker, [(address,)] * workers) as places, Client(address) as client:
            for place in places:
                place.recv()
            return _steps(forked, client, scheduler, ranks, steps)


def _steps(forked: Any, client: Client, scheduler: Any, ranks: int, steps: int) -> Keys:
    flow = dask_hpc.install(client).couple("many", {"T": (("y", "x"), (ranks, 8), "float64")})
    address = client.scheduler.address
    shares = [(address, list(range(first, ranks, PROCESSES)), ranks) for first in range(PROCESSES)]
    loop_us, number = [], 0

    def say(what: str) -> Any:
        scheduler.send(what)
        return scheduler.recv()

    with _processes(forked, _ranks, shares[:ranks]) as made:
        for turn in range(steps // TURN + 1):
            began_s = say("clock")
            for _ in range(TURN):
                number += 1
                for each in made:
                    each.send(1)
                for each in made:
                    each.recv()
            deadline_s = time.monotonic() + PATIENCE_S
            while flow._done < number and time.monotonic() < deadline_s:
                time.sleep(0.002)
            if turn == 0:
                # those of the first turn make connections and rings
                say("count")
                continue
            loop_us.append((say("clock") - began_s) * 1e6 / TURN)
            keys = client.run(_scattered, number=number, client=client.id).values()
            for future in [Future(key, client) for key in keys]:
                future.release()
        took_us, stock_us = say("counted")
        for each in made:
            each.send(0)
            each.recv()
    flow.close()
    return Keys(number - TURN, took_us, stock_us, loop_us)


async def _scattered(dask_worker: Any, number: int, client: str) -> str:
    """Have a worker tell its scheduler of data as stock's `scatter` does within a task; its key."""
    key, address = f"stock-{number}-{dask_worker.name}", dask_worker.address
    dask_worker.update_data({key: bytes(64)}, stimulus_id="benchmark")
    await dask_worker.scheduler.update_data(who_has={key: [address]}, nbytes={key: 64}, client=client)
    return key


# -------------------------------------------------------------------------- processes


@contextmanager
def _processes(
    forked: Any, main: Callable[..., None], arguments: list[tuple[Any, ...]]
) -> Iterator[list[Any]]:
    pipes, started = [], []
    for its in arguments:
        mine, other = forked.Pipe()
        started.append(forked.Process(target=main, args=(other, *its), daemon=True))
        started[-1].start()
        pipes.append(mine)
    try:
        yield pipes
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.join()


@contextmanager
def _process(forked: Any, main: Callable[..., None]) -> Iterator[Any]:
    with _processes(forked, main, [()]) as (pipe,):
        yield pipe


def _scheduler(pipe: Any) -> None:
    logging.getLogger("distributed").setLevel(logging.ERROR)
    asyncio.run(_scheduling(pipe))


async def _scheduling(pipe: Any) -> None:
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        pipe.send(scheduler.address)
        clock = time.pthread_getcpuclockid(threading.get_ident())
        loop = asyncio.get_running_loop()
        took_us: dict[str, list[float]] = {method: [] for method in METHODS}
        stock_us: list[float] = []

        def count() -> None:
            handler, stock = scheduler.handlers[RPC], scheduler.handlers["update_data"]

            async def timed(*args: Any, method: str, **more: Any) -> Any:
                work = handler(*args, method=method, **more)
                return await (stepped(work, took_us[method]) if method in took_us else work)

            def timed_stock(*args: Any, **more: Any) -> Any:
                began_s = time.thread_time()
                answer = stock(*args, **more)
                stock_us.append((time.thread_time() - began_s) * 1e6)
                return answer

            scheduler.handlers[RPC], scheduler.handlers["update_data"] = timed, timed_stock

        def answer() -> None:
            # in a thread of its own: the loop is not to be woken for it
            while (said := pipe.recv()) != "end":
                if said == "clock":
                    pipe.send(time.clock_gettime(clock))
                elif said == "count":
                    loop.call_soon_threadsafe(count)
                    pipe.send(True)
                else:
                    pipe.send((took_us, stock_us))

        threading.Thread(target=answer, daemon=True).start()
        await scheduler.finished()


@coroutine
def stepped(work: Coroutine[Any, Any, Any], took_us: list[float]) -> Generator[Any, Any, Any]:
    """Await `work`, and note how long its own steps have the thread."""
    own_s, step = 0.0, partial(work.send, None)
    while True:
        began_s = time.thread_time()
        try:
            waits_for = step()
        except StopIteration as end:
            took_us.append((own_s + time.thread_time() - began_s) * 1e6)
            return end.value
        own_s += time.thread_time() - began_s
        try:
            yield waits_for
            step = partial(work.send, None)
        except BaseException as error:
            step = partial(work.throw, error)


def _worker(pipe: Any, scheduler: str) -> None:
    async def run() -> None:
        async with Worker(scheduler, nthreads=1, dashboard=False) as worker:
            pipe.send(worker.address)
            await worker.finished()

    logging.getLogger("distributed").setLevel(logging.ERROR)
    asyncio.run(run())


def _ranks(pipe: Any, scheduler: str, ranks: list[int], size: int) -> None:
    """Some of the ranks, in threads; sends as many steps as it is told to, each time it is, 0 ends it."""
    made: dict[int, Any] = {}
    block, sent = np.ones((1, 8)), 0

    def each(function: Callable[[int], Any]) -> None:
        threads = [threading.Thread(target=function, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def send(rank: int) -> None:
        if rank not in made:
            made[rank] = dask_hpc.Source("many", scheduler, rank=rank, size=size)
        for step in range(sent, sent + count):
            made[rank].send(step, {"T": block}, at={"y": rank})

    while count := pipe.recv():
        each(send)
        sent += count
        pipe.send(sent)
    each(lambda rank: made[rank].close())
    pipe.send(sent)
