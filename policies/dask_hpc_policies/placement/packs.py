"""Several analyses at once: moves and swaps from sorted starts.

Rules of the file: an order that judges one analysis at a time cannot see that the first one in situ costs a
whole helper core on every node, which several would share (Honoré 2020, section 5.2, asks for packs). Here
every beginning of every sorted order is judged. From the best ones for each number of helper cores the split
goes downhill: the best of all single moves, and when none helps of all swaps, until neither does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dask_hpc_policies.placement.application import Application, Mode
from dask_hpc_policies.placement.many import Best, Masks, best

#: Most starts.
STARTS = 16
#: Splits that differ less, relative, count as equal: what rounding of sums makes of them.
_EQUAL = 1e-12

#: Says how many seconds a search has left.
Left = Callable[[], float]


def unlimited() -> float:
    """As many as it takes."""
    return math.inf


@dataclass(frozen=True, slots=True)
class Found:
    """A split with its best whole nodes and helper cores."""

    split: tuple[bool, ...]
    step_s: float
    tail_s: float
    nodes: int
    helper_cores: int


def packs(application: Application, mode: Mode, left_s: Left = unlimited) -> Found | None:
    """The best split that the search comes to; None when no start fits.

    Deterministic, unless it is cut short. At worst it judges a number of splits in the square of the analyses
    in each of its steps.

    Parameters
    ----------
    left_s
        Says how many seconds are left; without any it takes no step more.
    """
    found: Found | None = None
    for split in _starts(application, mode):
        splits = np.array([split], dtype=bool)
        start = taken(splits, best(application, splits, mode), 0)
        one = _downhill(application, start, mode, left_s)
        if found is None or (one.step_s, one.tail_s) < (found.step_s, found.tail_s):
            found = one
    return found


def taken(splits: Masks, judged: Best, at: int) -> Found:
    """One of the splits that were judged."""
    return Found(
        split=tuple(bool(one) for one in splits[at]),
        step_s=float(judged.step_s[at]),
        tail_s=float(judged.tail_s[at]),
        nodes=int(judged.nodes[at]),
        helper_cores=int(judged.helper_cores[at]),
    )


def _starts(application: Application, mode: Mode) -> list[tuple[bool, ...]]:
    """The best beginnings of each order for each number of helper cores, `STARTS` of them.

    The orders are by time, by peak and by time for a byte, both ways.
    """
    analyses, free = application.analyses, application.free
    first = np.array(application.split(), dtype=bool)
    found: dict[tuple[bool, ...], float] = {}
    for key in (
        lambda i: analyses[i].one_core_s,
        lambda i: analyses[i].memory_bytes,
        lambda i: analyses[i].one_core_s / analyses[i].memory_bytes if analyses[i].memory_bytes else np.inf,
    ):
        rising = sorted(free, key=key)
        for order in (rising, rising[::-1]):
            splits = np.tile(first, (len(order) + 1, 1))
            for length, i in enumerate(order):
                splits[length + 1 :, i] = True
            steps_s = best(application, splits, mode).with_helpers_s
            for at, step_s in zip(steps_s.argmin(axis=0), steps_s.min(axis=0), strict=True):
                if np.isfinite(step_s):
                    found[tuple(map(bool, splits[at]))] = float(step_s)
    return sorted(found, key=lambda split: found[split])[:STARTS]


def _downhill(application: Application, start: Found, mode: Mode, left_s: Left) -> Found:
    here = start
    while left_s() > 0:
        better = None
        for neighbours in (_moves, _swaps):
            splits = neighbours(np.array(here.split, dtype=bool), application.free)
            if not len(splits):
                continue
            judged = best(application, splits, mode)
            one = taken(splits, judged, judged.first())
            if _less(one, here):
                better = one
                break
        if better is None:
            break
        here = better
    return here


def _less(one: Found, other: Found) -> bool:
    if one.step_s < other.step_s * (1 - _EQUAL):
        return True
    return one.step_s <= other.step_s and one.tail_s < other.tail_s * (1 - _EQUAL)


def _moves(split: Masks, free: tuple[int, ...]) -> Masks:
    """Each free analysis goes to the other side."""
    splits = np.tile(split, (len(free), 1))
    splits[np.arange(len(free)), list(free)] ^= True
    return splits


def _swaps(split: Masks, free: tuple[int, ...]) -> Masks:
    """Each free analysis in situ changes places with each in transit."""
    pairs = [(i, j) for i in free if split[i] for j in free if not split[j]]
    splits = np.tile(split, (len(pairs), 1))
    if pairs:
        inside, outside = np.array(pairs).T
        splits[np.arange(len(pairs)), inside] = False
        splits[np.arange(len(pairs)), outside] = True
    return splits
