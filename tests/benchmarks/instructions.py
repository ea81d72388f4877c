"""Instructions that a part of a process takes, counted by valgrind: what a busy machine does not change.

The process says when the part begins and ends (`part`), whoever started it switches the counter (`count`).
A benchmark that measures what tasks cost over stock starts itself so, once for each of its cases (`cases`),
and gives our share of stock's instructions of stock's time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine as machine_module
from harness import Measure, Options
from machine import Graph, Machine

_BEGINS, _ENDS = "the part begins", "the part ends"
#: Seconds after which a process that does not end is given up.
_PATIENCE_S = 1200
#: Tasks of the run that is not counted before one that is: the interpreter has seen its code.
WARM = 200
#: What a machine takes for graphs, in microseconds a task.
Work = Callable[[Machine, list[tuple[Graph, Any]]], Awaitable[float]]


def missing() -> list[str]:
    """Commands that counting takes and that are not there."""
    return [name for name in ("valgrind", "callgrind_control") if shutil.which(name) is None]


@contextmanager
def part() -> Iterator[None]:
    """What is in this block is counted, where `count` has started the process."""
    _switch(_BEGINS)
    yield
    _switch(_ENDS)


def count(arguments: Sequence[str]) -> tuple[int, str]:
    """Run this interpreter with `arguments`; instructions of its part, and the last line that it printed.

    Raises
    ------
    RuntimeError
        When the process fails, with what it said.
    """
    process = subprocess.Popen(
        [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null"),
            *(sys.executable, *arguments),
        ],
        # the same order of sets and dictionaries in each
        env=dict(os.environ, PYTHONHASHSEED="0"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for said, state in ((_BEGINS, "on"), (_ENDS, "off")):
        if process.stdout.readline().strip() != said:
            process.kill()
            break
        control = ["callgrind_control", "--instr=" + state, str(process.pid)]
        subprocess.run(control, check=True, capture_output=True, timeout=60)
        process.stdin.write("\n")
        process.stdin.flush()
    said, errors = process.communicate(timeout=_PATIENCE_S)
    found = [line.rpartition(":")[2] for line in errors.splitlines() if "Collected" in line]
    if process.returncode or not found:
        raise RuntimeError(f"{' '.join(arguments)} under valgrind: {errors[-2000:]}")
    return int(found[0]), said.splitlines()[-1]


def _switch(said: str) -> None:
    print(said, flush=True)
    _: Any = sys.stdin.readline()


def arguments(parser: argparse.ArgumentParser) -> None:
    """``--instructions``, and what is said to the processes in which they are counted."""
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="count instructions in place of time: what a busy machine does not change; needs valgrind",
    )
    parser.add_argument("--count", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--slower", type=float, help=argparse.SUPPRESS)


def wanted(options: Options) -> bool:
    """Whether instructions are to be counted; ends the process when what counts them is not there."""
    if options.given.instructions and (absent := missing()):
        script = Path(sys.argv[0]).name
        sys.exit(f"{script}: --instructions needs {' and '.join(absent)}; install valgrind")
    return bool(options.given.instructions)


def cases(
    script: str, names: Collection[str], options: Options, workers: int, base_us: float
) -> dict[str, int]:
    """Instructions of the cases of a script, by name; `base_us` is what the first takes a task uncounted."""
    counts, slower = {}, 1.0
    size = [] if options.size == "full" else [f"--{options.size}"]
    if tasks := getattr(options.given, "tasks", None):
        size.append(f"--tasks={tasks}")
    for name in names:
        said = (f"--count={name}", f"--workers={workers}", f"--slower={slower}", *size)
        counts[name], us = count((str(Path(script).resolve()), *said))
        if len(counts) == 1:
            slower = float(us) / base_us
    return counts


def measured(given: argparse.Namespace, measure: Measure) -> float:
    """What `measure` says in a process that `cases` has started, where its `warmed` work is counted.

    What the engine does every so often comes as often as where nothing is counted.
    """
    machine_module.slower, machine_module.DEADLINE_S = given.slower, 3600.0

    async def one() -> float:
        async with Machine(given.workers, 4) as machine:
            return await measure(machine)

    return asyncio.run(one())


async def warmed(machine: Machine, graphs: list[tuple[Graph, Any]]) -> float:
    """Microseconds a task of the graphs, counted, after small ones of the same kind in the same jobs."""
    there = len(machine.scheduler.tasks)
    small = [
        (Graph(graph.operand("kind"), WARM // len(graphs), graph.operand("name") + "-warm"), job)
        for graph, job in graphs
    ]
    await machine.us_per_task(small, there)
    with part():
        return await machine.us_per_task(graphs, there)
