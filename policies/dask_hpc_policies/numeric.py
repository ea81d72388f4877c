"""Numbers that somebody gives: of Python, NumPy or any type that says it is one; a truth value is none."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeGuard


def is_real(value: object) -> TypeGuard[float]:
    """Whether it is a real number; it may be infinite, or a whole one that no float holds."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(value: Any) -> int | None:
    """The whole number that it is, also one that is written as a float; None: it is none."""
    if not is_real(value):
        return None
    try:
        number = int(value)
    except (OverflowError, ValueError):  # infinite, or not a number
        return None
    return number if number == value else None


def between(table: Sequence[tuple[int, float]], size: int) -> float:
    """The value at `size`: straight lines between the sizes of `table`, the nearest value outside them."""
    if len(table) == 1:
        # as most are, and it is asked of each job again and again
        return table[0][1]
    i = bisect_left(table, size, key=lambda row: row[0])
    if i == len(table):
        return table[-1][1]
    if i == 0 or table[i][0] == size:
        return table[i][1]
    (low, below), (high, above) = table[i - 1], table[i]
    return below + (above - below) * (size - low) / (high - low)
