"""Levels of checkpoints, as users name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: All levels: the host's memory, other hosts' memories, the file system.
LEVELS = ("L1", "L2", "L3")


def checked_levels(levels: Sequence[str]) -> tuple[str, ...]:
    """Levels in order.

    Raises
    ------
    ValueError
        For one that there is not, for none, or for parities of what no host holds (L2 without L1).
    """
    named = (levels,) if isinstance(levels, str) else tuple(levels) if isinstance(levels, Iterable) else ()
    if not named or any(level not in LEVELS for level in named) or ("L2" in named and "L1" not in named):
        raise ValueError(
            f"levels is {levels!r}; allowed: some of {', '.join(LEVELS)}, and L2 (parities of what "
            "hosts have in memory) with L1 alone"
        )
    return tuple(level for level in LEVELS if level in named)


def levels_of(store: str | None) -> tuple[str, ...]:
    """Levels of whoever names none: the store, and where there is none the memory of hosts."""
    return ("L1", "L2") if store is None else ("L3",)


def what_there_is(version: int | None, levels: Sequence[str]) -> str:
    """What a version that was not written everywhere it was asked to be leaves, in words."""
    return f"version {version} in memory alone ({', '.join(levels)})" if levels else "no new version"
