"""What goes wrong in one run, when, and with how much data: drawn from the run's seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

#: What can fail: a worker's process; all workers of a host, and its memory; scheduler and workers at once;
#: the newest version in the store, and a worker whose results would be read from it; nothing, but a worker
#: stands still for a while; a worker and its host's manager; nothing, but all of a host answers nobody for
#: longer than the scheduler waits; a worker in the middle of a write; the scheduler, after which the next one
#: takes over; a worker, while its host's manager hangs for longer than anybody waits for it.
FAULTS = (
    "worker", "host", "cluster", "store", "delay", "manager", "partition", "agent", "controller", "hang"
)  # fmt: skip
#: What is tried on clusters of their own, and so alone.
ALONE = ("cluster", "controller")
#: When: while results are computed, while they are written, while they are read back.
MOMENTS = ("compute", "commit", "restore")
#: Where versions are. Without the store, one host's memory may be lost once, and faults strike several times.
LEVELS = (("L3",), ("L1", "L2", "L3"), ("L1", "L2"))
#: What may be lost before protected results that hang on it.
KIN = ("", "scattered", "actor")
#: Elements of an array of 8 bytes each: from less than a page to a few MiB.
_SIZES = (10, 1_000, 30_000, 400_000)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    faults: tuple[str, ...]
    moment: str
    #: Results that are scattered, made from these, and computed from nothing; elements of each.
    scattered: int
    derived: int
    computed: int
    elements: int
    #: Seconds from the beginning of the moment to the failure.
    after_s: float
    levels: tuple[str, ...]
    #: For whatever else is drawn as the run goes on.
    draw: int
    #: What is lost a moment before results that hang on it: unprotected ``scattered`` data, an ``actor``;
    #: empty: nothing.
    kin: str = ""

    def chance(self) -> random.Random:
        """Further draws."""
        return random.Random(self.draw)


def plan(seed: int, faults: Sequence[str] = FAULTS) -> Plan:
    """The run of a seed: one or two of `faults`."""
    chance = random.Random(f"chaos-{seed}")
    first = faults[seed % len(faults)]
    more = [fault for fault in faults if fault not in (first, *ALONE)]
    second = [chance.choice(more)] if more and first not in ALONE and chance.random() < 0.4 else []
    made = Plan(
        seed=seed,
        faults=(first, *second),
        moment=chance.choice(MOMENTS),
        scattered=chance.randint(1, 8),
        derived=chance.randint(1, 8),
        computed=chance.randint(1, 24),
        elements=chance.choice(_SIZES),
        levels=chance.choice(LEVELS[:2] if {"host", "store"} & {first, *second} else LEVELS),
        after_s=chance.choice((0.0, 0.01, 0.05, 0.2, 0.5)),
        draw=chance.getrandbits(32),
    )
    kin = chance.choice(KIN)
    # workers that stand still cannot be told what to make
    still = made.moment == "compute" and {"delay", "partition"} & set(made.faults)
    alone = first in ALONE or "worker" not in faults
    return made if still or alone else replace(made, kin=kin)
