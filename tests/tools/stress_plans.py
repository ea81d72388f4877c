"""A random sequence before it runs: plain data.

Operations carry random numbers that are applied to what is there when they run (the n-th job of
those that are open), so that a sequence from which operations were taken out still means something.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Operation:
    """One step: a name of `OPERATIONS`, a pause after it, and numbers that say which and how many."""

    name: str
    pause_s: float
    seed: int


@dataclass(frozen=True)
class Sequence:
    """Everything that a seed decides."""

    seed: int
    workers: int
    nthreads: int
    stealing: bool
    saturation: float
    #: Longest delay of a ``long-running`` message.
    late_s: float
    policy: str
    settings: dict[str, Any]
    operations: tuple[Operation, ...]
    #: No operation of it may make a task start again.
    calm: bool
    #: It ends by taking the runtime away instead of by closing its jobs.
    uninstalls: bool


def random_settings(rng: random.Random) -> dict[str, Any]:
    return {
        "lock": rng.choice(("job", "system")),
        "shrink_deadline_s": rng.choice((0.0, 0.02, 0.1, 5.0)),
        "default_job_min_nodes": rng.choice((0, 1, 1)),
        "lend_s": rng.choice((0.0, 5.0, 5.0, 5.0)),
    }


def without(sequence: Sequence, numbers: set[int]) -> Sequence:
    """The sequence without some of its operations: how a failing one is made small."""
    left = tuple(item for number, item in enumerate(sequence.operations) if number not in numbers)
    return replace(sequence, operations=left)
