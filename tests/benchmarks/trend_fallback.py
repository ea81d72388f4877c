"""T8 of `trends`: memory that does not take a checkpoint, which the file system does then.

What a run loses by it stands beside what equations 6.13 and 6.14 of John (2024, section 6.5.2) say. Memory
is asked for once there; here each commit asks, which takes milliseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
from harness import Options, Row, row
from trend_cells import DISK, LEAST_BYTES, TOLERANCE, Cell, cell

import dask_hpc
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker import host_memory
from dask_hpc_policies.resilience.fallback import Fallback

#: What checkpoints may have of a host's memory, over what is written from both hosts.
ROOM = 1.3
#: How often managers are started anew in a run.
STARTS = 3


def digest(block: np.ndarray) -> str:
    """Of the bytes of a block."""
    return blake2b(block.data).hexdigest()


def full_bytes(options: Options) -> int:
    """Bytes of a field; a host that may have `ROOM` of them cannot have more than that."""
    return max(options.pick(2**28, 2**27, 2**22), int(LEAST_BYTES / ROOM))


def fallback(options: Options) -> Iterator[Row]:
    """T8: without memory it is the disk, slower, and the bytes are the same."""
    nbytes, blocks, rounds = full_bytes(options), 8, options.pick(5, 3, 1)
    ratios, differ, anew = [], [], []
    for _ in range(rounds):
        # a host holds half of the data: a version of it and of what is half as much again, and no more
        with cell(2, ROOM * nbytes) as on:
            data = on.data(nbytes, blocks, 2)
            expected = on.each(digest, data)
            memory_s = [on.commit(data, ["L1"]) for _ in range(3)][-1]
            on.lose(memory=False)
            read = [on.each(digest, data)]
            more = on.data(3 * nbytes // 2, blocks, 2)
            on.commit(more, ["L1"], name="more")
            disk_s = on.commit(data, ["L1", "L3"], reached=["L3"])
            on.client.cancel(more)
            on.lose(memory=True)
            read += [on.each(digest, data), on.each(digest, dask_hpc.restore("trend", on.client))]
            on.workers()
            anew.append(on.commit(data, ["L1", "L3"]) / disk_s)
            ratios.append(memory_s / disk_s)
            differ.append(float(sum(a != b for found in read for a, b in zip(found, expected, strict=True))))
            told = on.runtime.status()["checkpoints"]
            assert told["restored_results"] >= 2 * blocks, told
            assert not told["lost_results"] + told["recomputed_results"], told
    note = "memory of hosts is full: asked for L1 and L3, it is L3"
    yield row("T8 a commit to memory over one that falls back to disk, ratio", ratios, "", bar=1.0, note=note)
    note = f"of 3 times {blocks}: workers killed, then workers and managers, then dask_hpc.restore"
    yield row("T8 blocks that differ, from memory, from disk, restored", differ, "blocks", bar=0.0, note=note)
    yield row("T8 the next commit, managers started anew, over the fallback, ratio", anew, "")


# ------------------------------------------------------------------ equations 6.13 and 6.14


def wanted(dask_scheduler: Any) -> Any:
    """What workers are told about their manager."""
    return of(dask_scheduler).commits._memory.manager


def probe_s(on: Cell) -> float:
    """Seconds until all workers have a manager that listens."""
    manager = on.client.run_on_scheduler(wanted)
    began_s = time.perf_counter()
    on.client.run(host_memory.home, manager=manager)
    return time.perf_counter() - began_s


def anew_s(on: Cell, held: float) -> float:
    """The same after all managers were killed, which held no more bytes than that."""
    on.kill_managers(held)
    return probe_s(on)


def back_s(on: Cell, held: float, data: list[Any]) -> float:
    """Seconds of the first commit to memory after that."""
    on.kill_managers(held)
    return on.commit(data, ["L1"])


def overheads(options: Options) -> Iterator[Row]:
    """T8: what memory that refuses for some commits, and managers started anew, cost a run."""
    nbytes, blocks, rounds = full_bytes(options), 8, options.pick(5, 3, 1)
    count = options.pick(6, 4, 2)
    seconds: dict[str, list[float]] = {
        name: [] for name in ("6.13", "6.14", "measured 6.13", "measured 6.14")
    }
    parts, off = [], {"6.13": [], "6.14": []}
    for _ in range(rounds):
        with cell(2, ROOM * nbytes) as on:
            data = on.data(nbytes, blocks, 2)
            # as it is in a run that goes on: memory is not new, and from the third version on one is removed
            memory_s = statistics.median([on.commit(data, ["L1"]) for _ in range(5)][2:])
            disk_s = statistics.median([on.commit(data, DISK) for _ in range(5)][2:])
            asked_s = statistics.median(probe_s(on) for _ in range(3))
            on.let_go(data)
            # blocks of that size, so that memory that they have had is used again; no room for one is left
            more, data = on.data(20 * nbytes // blocks, 20, 2), on.data(nbytes, blocks, 2)
            on.commit(more, ["L1"], name="more")
            refused_s = sum(on.commit(data, ["L1", "L3"], reached=["L3"]) for _ in range(count))
            on.let_go(more, "more")
            # in turns: how long processes take to start differs more than all else; a host holds half of it
            held, back, again = 0.9 * nbytes, [], []
            for _ in range(STARTS):
                back.append(back_s(on, held, data))
                again.append(anew_s(on, held))
            told = Fallback(
                period_s=1.0,
                memory_s=memory_s,
                file_system_s=disk_s,
                probe_s=asked_s,
                connect_s=max(0.0, statistics.mean(again) - asked_s),
            )
            never_s = refused_s - count * memory_s
            measured_s = {"6.13": never_s + statistics.mean(back) - memory_s, "6.14": never_s}
            # who is never answered connects to nobody
            said_s = {
                "6.13": told.reconnected_s(count, told.period_s),
                "6.14": told.never_s(count * told.period_s) - told.connect_s,
            }
            for number, said in said_s.items():
                seconds[number].append(said)
                seconds[f"measured {number}"].append(measured_s[number])
                off[number].append(abs(measured_s[number] - said) / (count * disk_s))
            parts.append((memory_s, disk_s, asked_s, told.connect_s))
    took = (f"{1e3 * sorted(times)[rounds // 2]:.0f}" for times in zip(*parts, strict=True))
    note = "memory {} ms, disk {}, asking {}, managers started anew {}".format(*took)
    for number, what in (("6.13", "and then managers anew"), ("6.14", "to the end of the run")):
        name = f"T8 {count} commits that memory refuses, {what}"
        yield row(f"{name}: measured", seconds[f"measured {number}"], "s", note=note)
        yield row(f"{name}: equation {number}", seconds[number], "s")
        yield row(f"{name}: apart, over those to disk, ratio", off[number], "", bar=TOLERANCE)
