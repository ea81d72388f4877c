"""Instructions that a part of a process takes, counted by valgrind: what a busy machine does not change.

The process says when the part begins and ends (`part`), whoever started it switches the counter (`count`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_BEGINS, _ENDS = "the part begins", "the part ends"
#: Seconds after which a process that does not end is given up.
_PATIENCE_S = 1200


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
