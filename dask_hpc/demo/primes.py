"""Number of primes below a bound, by a segmented sieve over a dask bag: the plain work of the demo."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Numbers in one segment, sieved in parts that stay in the cache, and segments at scale 1.
SEGMENT = 60_000_000
PART = 400_000
SEGMENTS = 18


def small_primes(limit: int) -> list[int]:
    """All primes up to and including `limit` (sieve of Eratosthenes)."""
    prime = np.ones(limit + 1, dtype=bool)
    prime[:2] = False
    for number in range(2, int(limit**0.5) + 1):
        if prime[number]:
            prime[number * number :: number] = False
    return [int(number) for number in np.flatnonzero(prime)]


def count_segment(segment: int) -> int:
    """Number of primes from ``segment * SEGMENT`` up to, not including, the next segment: one task."""
    first, end = segment * SEGMENT, (segment + 1) * SEGMENT
    divisors = small_primes(int(end**0.5) + 1)
    count = 0
    buffer = np.empty(PART, dtype=bool)
    for low in range(first, end, PART):
        prime = buffer[: min(PART, end - low)]
        prime[:] = True
        prime[: max(0, 2 - low)] = False
        for divisor in divisors:
            if divisor * divisor >= low + len(prime):
                break
            prime[max(divisor * divisor, -(-low // divisor) * divisor) - low :: divisor] = False
        count += int(np.count_nonzero(prime))
    return count


def segments_at(scale: float) -> int:
    """Number of segments (tasks) at `scale`."""
    return max(2, round(SEGMENTS * scale))


def build(scale: float = 1.0) -> Any:
    """The count as a dask bag item; `scale` multiplies the number of segments."""
    import dask.bag as db

    segments = segments_at(scale)
    return db.from_sequence(range(segments), npartitions=segments).map(count_segment).sum()


def describe(result: int) -> str:
    """The result in one line."""
    return f"{result:,} primes"
