"""The least step of all: over all splits, whole nodes and helper cores that fit (Honoré 2020, Algorithm 3).

Rules of the file: the source takes the rounded shares of every split, which are up to 2 % above this; and it
tests the wrong sets and never updates its best time, which is done here. Up to `ENUMERATED` free analyses
every split is judged, beyond that `exact_lp` solves integer programs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_hpc_policies.placement.application import Application, InvalidApplication, Mode
from dask_hpc_policies.placement.many import Masks, best
from dask_hpc_policies.placement.packs import Found, Left, taken, unlimited

#: Most free analyses whose splits are all judged.
ENUMERATED = 12


@dataclass(frozen=True, slots=True)
class Solved:
    """The best that was found, and what nothing is faster than; the same when it was solved to the end."""

    found: Found | None
    bound_s: float


def exact(application: Application, mode: Mode, left_s: Left = unlimited) -> Solved:
    """The least step; of equal ones, up to `ENUMERATED` free analyses, the one with the shortest end.

    Parameters
    ----------
    left_s
        Says how many seconds are left for the search and the integer programs; without any the best so far is
        returned, with the bound that was reached. An enumeration is never cut short.

    Raises
    ------
    InvalidApplication
        For transfers beside computing with more free analyses than are enumerated: the programs add up.
    """
    if len(application.free) > ENUMERATED:
        if application.platform.pipelined:
            raise InvalidApplication(
                "platform.pipelined",
                f"transfers beside computing are solved for up to {ENUMERATED} free analyses, not for "
                f"{len(application.free)}; give more of them a place, or take `packs`",
            )
        from dask_hpc_policies.placement.exact_lp import solve

        found, bound_s = solve(application, mode, left_s)
        return Solved(found, bound_s)
    splits = all_splits(application)
    judged = best(application, splits, mode)
    found = taken(splits, judged, judged.first())
    return Solved(found if np.isfinite(found.step_s) else None, found.step_s)


def all_splits(application: Application) -> Masks:
    """Every split of the free analyses, a row each."""
    free = application.free
    splits = np.tile(np.array(application.split(), dtype=bool), (1 << len(free), 1))
    bits = np.arange(1 << len(free))[:, None] >> np.arange(len(free)) & 1
    splits[:, list(free)] = bits.astype(bool)
    return splits
