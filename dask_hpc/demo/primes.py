"""Number of primes in a range, by a segmented sieve."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: Numbers in one segment, sieved in parts that stay in the cache.
SEGMENT = 2_000_000
PART = 400_000


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


def functions() -> tuple[Callable[[int], int], Callable[[list[int]], int]]:
    """What one task computes, by its number, and what is made of all their results."""
    return count_segment, sum


def describe(result: int) -> str:
    """The result in one line."""
    return f"{result:,} primes"
