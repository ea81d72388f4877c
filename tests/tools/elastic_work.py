"""Work that shows what happened to it, and counts that are taken where it happens.

A task that runs twice leaves no trace in the events of Dask when what it made was never in memory, or was
a shard of a shuffle. Here the workers count: each appends a line to one file for every task that it
starts or completes, and tasks with a side effect append a line of their own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Worker, WorkerPlugin
from waits import Gate


def append(path: str, line: str) -> None:
    """Append a line in one piece, whoever else is writing."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


class CountStarts(WorkerPlugin):
    """Appends every start and every completion of a task to a file."""

    name = "count-starts"

    def __init__(self, path: str) -> None:
        self.path = path

    def setup(self, worker: Worker) -> None:
        self._worker = worker

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "executing":
            append(self.path, f"start {self._worker.name} {key}")
        elif finish == "memory" and start in ("executing", "long-running"):
            append(self.path, f"done {self._worker.name} {key}")


class Tally:
    """Reads what workers and tasks have appended."""

    def __init__(self, folder: Path) -> None:
        self.counts = str(folder / "counts")
        #: The file that tasks with a side effect append to.
        self.effects = str(folder / "effects")
        for path in (self.counts, self.effects):
            Path(path).touch()

    @property
    def plugin(self) -> CountStarts:
        """What the workers need."""
        return CountStarts(self.counts)

    def _count(self, word: str) -> Counter[str]:
        lines = (line.split(" ", 2) for line in Path(self.counts).read_text().splitlines())
        return Counter(key for what, _, key in lines if what == word)

    def starts(self) -> Counter[str]:
        """How often each task was started."""
        return self._count("start")

    def completions(self) -> Counter[str]:
        """How often each task has ended with a result."""
        return self._count("done")

    def side_effects(self) -> Counter[str]:
        """How often each task with a side effect has had it."""
        return Counter(Path(self.effects).read_text().splitlines())

    def story(self, key: str) -> list[str]:
        """What was counted about a task, in order."""
        lines = Path(self.counts).read_text().splitlines()
        return [line for line in lines if line.endswith(f" {key}")]

    def twice(self) -> list[str]:
        """Tasks that were started, completed or had their effect more than once.

        Outputs of a shuffle that are started on the wrong worker ask for another one before they have
        done anything: of those only completions count.
        """
        started = {key for key, count in self.starts().items() if count > 1 and not _is_output(key)}
        completed = {key for key, count in self.completions().items() if count > 1}
        return sorted(started | completed | {key for key, n in self.side_effects().items() if n > 1})


def _is_output(key: str) -> bool:
    return key.lstrip("('").startswith(("rechunk-p2p", "shuffle-p2p"))


def result_of(number: int) -> bytes:
    """What `make` computes."""
    return bytes([number % 251]) * 10_000


def make(number: int) -> bytes:
    """A task: a result of ten kilobytes."""
    return result_of(number)


def work(number: int, seconds: float, effects: str) -> int:
    """A task with a side effect at its beginning, that takes a while."""
    append(effects, f"work-{number}")
    time.sleep(seconds)
    return number + 1


class Ledger:
    """An actor: state that exists nowhere else."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int) -> int:
        """Add and give the total."""
        self.total += amount
        return self.total


class MovingLedger(Ledger):
    """An actor that says what its state is."""

    def __getstate__(self) -> dict[str, int]:
        return {"total": self.total}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.total = state["total"]


class Late(Worker):
    """A worker whose start takes until the test lets it, if its name says so."""

    go: asyncio.Event

    async def start_unsafe(self) -> Worker:
        if self.name == "late":
            await self.go.wait()
        return await super().start_unsafe()


def _slowly(block: Any, seconds: float, effects: str, block_info: Any = None) -> Any:
    append(effects, f"source-{block_info[0]['shape'][0]}-{block_info[0]['chunk-location'][0]}")
    time.sleep(seconds)
    return block + block_info[0]["chunk-location"][0]


def shuffled(side: int, pieces: int, seconds: float, effects: str) -> tuple[Any, Any]:
    """An array that has to be shuffled from rows to columns, and what it must be.

    Every row block takes a while and leaves a line: inputs come one after the other, so that the
    shuffle is under way for long.
    """
    step = side // pieces
    base = np.arange(side * side, dtype="int64").reshape(side, side)
    rows = da.from_array(base, chunks=(step, side)).map_blocks(
        _slowly, seconds=seconds, effects=effects, dtype="int64", name=f"source-{side}"
    )
    # without the limit small blocks are put together first, and there is one transfer only
    columns = rows.rechunk((side, step), method="p2p", block_size_limit=base.itemsize * side * step)
    expected = base + (np.arange(side) // step)[:, None]
    return columns, expected


def through(number: int, gate: Gate, effects: str) -> int:
    """A task with a side effect that waits at a gate."""
    append(effects, f"through-{number}")
    return int(gate.wait(number))
