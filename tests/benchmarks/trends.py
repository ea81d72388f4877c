"""Which trends that John (2024, section 9.4) found of checkpoints held in memory by agents hold here, live.

T2, T3, T4, T8, T10 and T11 of them. His agents are the managers of hosts here, the memory of staging nodes is
levels L1 and L2, the parallel file system level L3. What is compared takes turns; a row is the median of what
the rounds gave, and the trend holds when that is not above its bar.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import dask.array as da
import numcodecs
import numpy as np
from distributed import wait
from distributed.core import ConnectionPool
from harness import Options, Row, listed, main, row
from machine import SEED
from trend_cells import DISK, MEMORY, PATIENCE_S, TOLERANCE, Cell, cell, in_turns, over
from trend_fallback import fallback, overheads

from dask_hpc.checkpoint.blobs import Home, Range
from dask_hpc.worker import fetching
from dask_hpc.worker.managers import listening

#: Time between commits over that of one: it hides the transfer, or does not.
INTERVALS = (3.0, 0.3)


# ------------------------------------------------------------------ T2: asynchronous


def pause(length_s: float) -> None:
    """A step of the application, as one on an accelerator: it uses no processor here."""
    time.sleep(length_s)


def application(
    on: Cell,
    data: Any,
    levels: Sequence[str],
    interval_s: float,
    count: int,
    calls_s: list[float],
    waits: bool | None,
) -> float:
    """Seconds of a run with so many commits and a step after each; calls that do not wait are timed.

    Parameters
    ----------
    waits
        Whether a commit is waited for at once, or when its step has ended; None: there are none.
    """
    places, commit, began_s = on.workers(), None, time.perf_counter()
    for _ in range(count):
        before_s = time.perf_counter()
        if waits is not None:
            commit = on.runtime.checkpoint(data, "trend", levels=levels, wait=waits)
        if waits is False:
            calls_s.append(time.perf_counter() - before_s)
        wait([on.client.submit(pause, interval_s, workers=[place], pure=False) for place in places])
        if commit is not None:
            commit.wait(PATIENCE_S)
    return time.perf_counter() - began_s


def asynchronous(options: Options) -> Iterator[Row]:
    """T2: not waiting costs no more than waiting, and what equation 6.3 says."""
    nbytes, rounds = options.pick(2**28, 2**27, 2**22), options.pick(7, 5, 1)
    count = options.pick(8, 5, 2)
    with cell(2) as on:
        data = on.data(nbytes, 8, 2)
        for levels in (MEMORY, DISK):
            alone_s = statistics.median([on.commit(data, levels) for _ in range(5)][2:])
            for interval in INTERVALS:
                interval_s, calls_s = interval * alone_s, []
                timed = partial(application, on, data, levels, interval_s, count, calls_s)
                found = in_turns({str(waits): partial(timed, waits) for waits in (None, True, False)}, rounds)
                call_s, more, off = statistics.median(calls_s), [], []
                for none_s, sync_s, async_s in zip(found["None"], found["True"], found["False"], strict=True):
                    cost_s, waited_s = (async_s - none_s) / count, (sync_s - none_s) / count
                    said_s = call_s + max(0.0, waited_s - call_s - interval_s)
                    # over the time of one: what a run takes longer may be nothing but noise
                    more.append((cost_s - waited_s) / alone_s)
                    off.append(abs(cost_s - said_s) / alone_s)
                what = f"T2 {'+'.join(levels)} every {interval:g} times what one takes:"
                note = f"one takes {alone_s * 1e3:.0f} ms, the call {call_s * 1e3:.0f}"
                name = f"{what} cost not waited for less waited for, ratio"
                yield row(name, more, "", bar=0.0, note=note)
                yield row(f"{what} how far from equation 6.3, ratio", off, "", bar=TOLERANCE)


# ------------------------------------------------------------------ T3: push and pull


def push_and_pull(options: Options) -> Iterator[Row]:
    """T3: a push takes no longer than a pull, and with more agents they are nearer each other."""
    nbytes, rounds = options.pick(2**29, 2**27, 2**22), options.pick(9, 5, 1)
    note = "level L1; hpc.checkpoint.transfer says which; hosts share the cores of one machine"
    apart: dict[int, list[float]] = {}
    with cell(4) as on:

        def commit_s(data: Any, transfer: str) -> float:
            on.runtime.update(checkpoint_transfer=transfer)
            return on.commit(data, ["L1"])

        for hosts in (1, 4):
            data = on.data(nbytes, 16, hosts)
            found = in_turns({way: partial(commit_s, data, way) for way in ("push", "pull")}, rounds)
            apart[hosts] = [
                (push - pull) / push for push, pull in zip(found["push"], found["pull"], strict=True)
            ]
    yield row("T3 from one host: push less pull over push, ratio", apart[1], "", bar=0.0, note=note)
    yield row("T3 from four hosts: the same, ratio", apart[4], "")
    gaps = {hosts: [abs(one) for one in found] for hosts, found in apart.items()}
    yield row("T3 how far apart, four hosts over one, ratio", over(gaps[4], gaps[1]), "", bar=1.0)


# ------------------------------------------------------------------ T4: the first commit


def first(options: Options) -> Iterator[Row]:
    """T4: the first commit takes longer than later ones."""
    nbytes, rounds, commits = options.pick(2**28, 2**27, 2**22), options.pick(7, 5, 1), options.pick(8, 8, 5)
    of_first, of_second, times = [], [], []
    for _ in range(rounds):
        with cell(2) as on:
            data = on.data(nbytes, 8, 2)
            took_s = [on.commit(data, MEMORY) for _ in range(commits)]
        later_s = statistics.median(took_s[3:])
        times.append(took_s[0] / later_s)
        of_first.append(later_s / took_s[0])
        of_second.append(later_s / took_s[1])
    note = f"the first takes {statistics.median(times):.1f} times as long: managers start, memory is new"
    yield row("T4 a later commit over the first, ratio", of_first, "", bar=1.0, note=note)
    note = "memory is new, as the version before is held still; later ones have that of the last but one"
    yield row("T4 a later commit over the second, ratio", of_second, "", bar=1.0, note=note)


# ------------------------------------------------------------------ T10: pieces


class Counted(ConnectionPool):
    """Connections that count what is asked through them."""

    calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Something is asked."""
        self.calls += 1
        return super().__call__(*args, **kwargs)


async def reserved(address: str, nbytes: int) -> str:
    """A segment of a manager."""
    async with Counted() as pool:
        return str((await fetching.ask(pool, address, "reserve", nbytes=nbytes))["segment"])


async def fetched(home: Home, segment: str, nbytes: int, chunk_bytes: int) -> tuple[float, int]:
    """Seconds until bytes of a manager of another host are here, and calls that it took."""
    before, fetching.CHUNK = fetching.CHUNK, chunk_bytes
    try:
        async with Counted() as pool:
            await fetching.ask(pool, home.address, "records")
            pool.calls, began_s = 0, time.perf_counter()
            await fetching.fetch(pool, home, [Range(segment, 0, nbytes)])
            return time.perf_counter() - began_s, pool.calls
    finally:
        fetching.CHUNK = before


def pieces(options: Options) -> Iterator[Row]:
    """T10: more and smaller pieces take longer; there are as many as the bytes need."""
    nbytes, rounds = options.pick(2**26, 2**25, 2**22) + 1, options.pick(7, 5, 1)
    chunks = [fetching.CHUNK >> shift for shift in (0, 3, 6, 9)]
    off: list[float] = []
    with cell(2) as on:
        on.commit(on.data(2**20, 2, 2), MEMORY)
        address = listening(on.managers()[0])["address"]
        segment = asyncio.run(reserved(address, nbytes))
        # no folder of this host: it is asked for
        home = Home(address, os.devnull)

        def fetch_s(chunk_bytes: int) -> float:
            took_s, calls = asyncio.run(fetched(home, segment, nbytes, chunk_bytes))
            off.append(abs(calls + -nbytes // chunk_bytes))
            return took_s

        found = in_turns({str(chunk): partial(fetch_s, chunk) for chunk in chunks}, rounds)
        note = "a manager's memory over loopback, four calls at a time; there is no setting for it"
        for large, small in pairwise(chunks):
            name = f"T10 fetched in calls of {large >> 10} KiB over {small >> 10} KiB, ratio"
            yield row(name, over(found[str(large)], found[str(small)]), "", bar=1.0, note=note)
        yield row("T10 calls less bytes over bytes of a call, rounded up", off, "calls", bar=0.0)

        sizes, total = (2**24, 2**20, 2**16), options.pick(2**28, 2**27, 2**22) + 1
        fields = {size: da.ones(total, chunks=size, dtype=np.uint8).persist() for size in sizes}
        wait(list(fields.values()))
        commits = {str(size): partial(on.commit, field, ["L1"]) for size, field in fields.items()}
        found = in_turns(commits, rounds)
    for large, small in pairwise(sizes):
        name = f"T10 a commit (L1) of blocks of {large >> 10} KiB over {small >> 10} KiB, ratio"
        yield row(name, over(found[str(large)], found[str(small)]), "", bar=1.0)


# ------------------------------------------------------------------ T11: compression


def smooth(nbytes: int, number: int) -> np.ndarray:
    """Temperatures of a day in float32, to a hundredth of a degree."""
    chance = np.random.default_rng([SEED, number])
    hours = np.linspace(0.0, 24.0, nbytes // 4)
    return np.round(20 + 8 * np.sin(hours) + chance.normal(0, 0.1, hours.size), 2).astype(np.float32)


def compressed(block: np.ndarray, codec: str) -> np.ndarray:
    """The block as a library would send it."""
    return np.frombuffer(numcodecs.get_codec({"id": codec}).encode(block), np.uint8)


def compression(options: Options) -> Iterator[Row]:
    """T11: compressing it on the application's side takes longer than writing it as it is."""
    nbytes, rounds = options.pick(2**28, 2**27, 2**22), options.pick(7, 5, 1)
    smaller: dict[str, float] = {}
    with cell(2) as on:
        data = on.data(nbytes, 16, 2, smooth)

        def packed_s(codec: str) -> float:
            began_s = time.perf_counter()
            made = on.client.map(compressed, data, codec=codec, pure=False)
            wait(made)
            took_s = time.perf_counter() - began_s + on.commit(made, DISK)
            smaller[codec] = nbytes / sum(on.each(len, made))
            return took_s

        ways = {codec: partial(packed_s, codec) for codec in ("zstd", "lz4")}
        found = in_turns({"raw": partial(on.commit, data, DISK), **ways}, rounds)
    for codec in ways:
        note = f"{smaller[codec]:.1f} times smaller; numcodecs on the workers, then L3"
        name = f"T11 written as it is over compressed ({codec}) and written, ratio"
        yield row(name, over(found["raw"], found[codec]), "", bar=1.0, note=note)


#: By the number that John gives them.
TRENDS: dict[str, tuple[Callable[[Options], Iterator[Row]], ...]] = {
    "T2": (asynchronous,),
    "T3": (push_and_pull,),
    "T4": (first,),
    "T8": (fallback, overheads),
    "T10": (pieces,),
    "T11": (compression,),
}


def run(options: Options) -> list[Row]:
    chosen = getattr(options.given, "only", TRENDS)
    return [each for name in chosen for trend in TRENDS[name] for each in trend(options)]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark alone."""
    parser.add_argument("--only", type=listed(TRENDS), default=list(TRENDS), help=f"of {', '.join(TRENDS)}")


if __name__ == "__main__":
    main("trends", __doc__.splitlines()[0], run, arguments)
