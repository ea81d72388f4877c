"""Redundancy in memory: speed of making parities and of making lost parts again, beside a copy of the parts.

Speeds count all parts of a stripe, also where some come back. Parities and copies are written to memory that
was written to before, parts that come back to new memory. All take turns in each round.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from harness import Options, Row, main, row, timed
from machine import SEED

from dask_hpc.checkpoint.redundancy import encode, recover
from dask_hpc_policies.resilience.redundancy_sets import parity_bytes

#: Parts and parities.
CODES = {"partner": (1, 1), "xor 4+1": (4, 1), "reed-solomon 4+2": (4, 2), "reed-solomon 6+2": (6, 2)}
#: The most of the time to encode over that of copying the parts.
BARS = {"partner": 2.0, "xor 4+1": 2.0, "reed-solomon 4+2": 4.0, "reed-solomon 6+2": 4.0}


class Stripe:
    """Parts, their parities, and all that is done with them."""

    def __init__(self, k: int, m: int, nbytes: int) -> None:
        chance = np.random.default_rng(SEED)
        self.m = m
        self.parts = [chance.integers(0, 256, nbytes, np.uint8) for _ in range(k)]
        self.lengths = [nbytes] * k
        self.bytes = k * nbytes
        self.parities = [np.zeros(parity_bytes(self.lengths, m), np.uint8) for _ in range(m)]
        self.copies = [np.zeros_like(part) for part in self.parts]

    def encode(self) -> None:
        encode(self.parts, self.m, self.parities)

    def recover_all(self) -> None:
        """The most parts that can be lost, by all parities."""
        lost = min(self.m, len(self.parts))
        left = {i: part for i, part in enumerate(self.parts) if i >= lost}
        found = recover(left, dict(enumerate(self.parities)), self.lengths, self.m)
        assert len(found) == lost

    def copy(self) -> None:
        for part, copy in zip(self.parts, self.copies, strict=True):
            copy[:] = part


def measure(stripe: Stripe, rounds: int) -> dict[str, list[float]]:
    """Seconds of each in each round; the first, which makes parities to recover with, is dropped."""
    calls = {"encode": stripe.encode, "recover": stripe.recover_all, "copy": stripe.copy}
    took_s: dict[str, list[float]] = {name: [] for name in calls}
    stripe.encode()
    chance = random.Random(SEED)
    for number in range(rounds + 1):
        for name in chance.sample(list(calls), len(calls)):
            took = timed(calls[name])
            if number:
                took_s[name].append(took)
    return took_s


def rows_of(name: str, mib: int, stripe: Stripe, took_s: dict[str, list[float]]) -> Iterator[Row]:
    """Speeds, and the time to encode over that of a copy, round by round."""
    for what, samples in took_s.items():
        speeds = [stripe.bytes / 1e9 / s for s in samples]
        note = f"least {min(speeds):.2f}, most {max(speeds):.2f}"
        yield row(f"{name}, {mib} MiB parts, {what}", speeds, "GB/s", note=note)
    ratios = [ours / copy for ours, copy in zip(took_s["encode"], took_s["copy"], strict=True)]
    yield row(f"{name}, {mib} MiB parts: time to encode over a copy, ratio", ratios, "", bar=BARS[name])


def run(options: Options) -> list[Row]:
    rounds = options.pick(15, 7, 1)
    rows: list[Row] = []
    for mib in options.pick((32, 64), (32, 64), (1,)):
        for name, (k, m) in CODES.items():
            stripe = Stripe(k, m, mib * 2**20)
            rows += rows_of(name, mib, stripe, measure(stripe, rounds))
    return rows


if __name__ == "__main__":
    main("redundancy", __doc__.splitlines()[0], run)
