"""Node-count constraints: which sizes a job may have.

Rules of the file: sizes are positive whole numbers. Every function answers by arithmetic, never by
trying sizes one after the other, so that a policy pass over hundreds of jobs stays far below a
millisecond. The constraints are those of Chadha (2019, section 4.2: ``pof2``, ``even``, ``odd`` and
cubes) and of John (2024, section 1.2.1: squares).

==========  =============================
any         1, 2, 3, 4, ...
even        2, 4, 6, ...
odd         1, 3, 5, ...
pof2        1, 2, 4, 8, ... (powers of two)
square      1, 4, 9, 16, ...
cube        1, 8, 27, 64, ...
==========  =============================
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt


def _cube_root(n: int) -> int:
    root: int = round(n ** (1 / 3))
    # The float root may be one off for large n.
    while root**3 > n:
        root -= 1
    while (root + 1) ** 3 <= n:
        root += 1
    return root


#: For each constraint the largest legal size at most n, for n >= 1; 0 when there is none.
_FLOOR: dict[str, Callable[[int], int]] = {
    "any": lambda n: n,
    "even": lambda n: n & ~1,
    "odd": lambda n: n if n & 1 else n - 1,
    "pof2": lambda n: 1 << (n.bit_length() - 1),
    "square": lambda n: isqrt(n) ** 2,
    "cube": lambda n: _cube_root(n) ** 3,
}

#: For each constraint the smallest legal size at least n, for n >= 1.
_CEILING: dict[str, Callable[[int], int]] = {
    "any": lambda n: n,
    "even": lambda n: n + (n & 1),
    "odd": lambda n: n | 1,
    "pof2": lambda n: 1 << (n - 1).bit_length(),
    "square": lambda n: (isqrt(n - 1) + 1) ** 2,
    "cube": lambda n: (_cube_root(n - 1) + 1) ** 3,
}

#: Names of the constraints.
CONSTRAINTS: tuple[str, ...] = tuple(_FLOOR)


def legal_sizes(constraint: str, lo: int, hi: int) -> tuple[int, ...]:
    """Every legal size from `lo` to `hi` nodes (both included), ascending.

    Raises
    ------
    ValueError
        When `constraint` is none of :data:`CONSTRAINTS`.
    """
    sizes = []
    size = smallest_at_least(constraint, lo, hi)
    while size is not None:
        sizes.append(size)
        size = next_higher(constraint, size, hi)
    return tuple(sizes)


def is_legal(constraint: str, n: int) -> bool:
    """Whether a job under `constraint` may hold `n` nodes."""
    return n >= 1 and (constraint == "any" or _function(_FLOOR, constraint)(n) == n)


def largest_at_most(constraint: str, n: int, lo: int) -> int | None:
    """The largest legal size from `lo` to `n` nodes; None when there is none."""
    if n < 1:
        return None
    size = n if constraint == "any" else _function(_FLOOR, constraint)(n)
    return size if size >= lo and size >= 1 else None


def smallest_at_least(constraint: str, n: int, hi: int) -> int | None:
    """The smallest legal size from `n` to `hi` nodes; None when there is none."""
    size = n if n > 1 else 1
    if constraint != "any":
        size = _function(_CEILING, constraint)(size)
    return size if size <= hi else None


def next_higher(constraint: str, n: int, hi: int) -> int | None:
    """The next legal size above `n` and at most `hi` nodes; None when there is none."""
    return smallest_at_least(constraint, n + 1, hi)


def next_lower(constraint: str, n: int, lo: int) -> int | None:
    """The next legal size below `n` and at least `lo` nodes; None when there is none."""
    return largest_at_most(constraint, n - 1, lo)


def _function(table: dict[str, Callable[[int], int]], constraint: str) -> Callable[[int], int]:
    try:
        return table[constraint]
    except KeyError:
        raise ValueError(
            f"unknown constraint {constraint!r}; constraint must be one of {', '.join(CONSTRAINTS)}"
        ) from None
