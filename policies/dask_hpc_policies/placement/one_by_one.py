"""Analyses go in situ one by one, in one of five orders (Honoré 2020, Algorithm 1).

Rules of the file: the source never updates the best time (its line 12), which is done here; and numbers of
nodes that memory does not allow are lifted to the least that it does, as the source's text says and its
algorithm does not, for the first plan too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from numpy.random import default_rng

from dask_hpc_policies.placement.application import Analysis, Application, Mode
from dask_hpc_policies.placement.closed_form import shares
from dask_hpc_policies.placement.times import load_of
from dask_hpc_policies.placement.whole import Rounding, Whole, rounded

#: What the analyses are sorted by, smallest first.
_SORTED: Mapping[str, Callable[[Analysis], float]] = {
    "increasing-time": lambda one: one.one_core_s,
    "decreasing-time": lambda one: -one.one_core_s,
    "increasing-peak": lambda one: one.memory_bytes,
    "decreasing-peak": lambda one: -one.memory_bytes,
}
#: The orders of Algorithm 1.
ORDERS = (*_SORTED, "random")


def ordered(application: Application, order: str, seed: int = 0) -> list[int]:
    """Indices of the free analyses in an order of `ORDERS`; `seed` draws the random one.

    Of equal ones the first comes first.
    """
    if order == "random":
        return [int(i) for i in default_rng(seed).permutation(application.free)]
    return sorted(application.free, key=lambda i: _SORTED[order](application.analyses[i]))


def one_by_one(
    application: Application, order: str, mode: Mode, rounding: Rounding, seed: int = 0
) -> tuple[tuple[bool, ...], Whole] | None:
    """The split that the order ends with, and its nodes and helper cores; None when it finds none that fits.

    Analyses begin in transit. Each goes in situ when the step gets shorter and memory allows it; while no
    plan has fitted yet (one node, little memory for staging), also when it does not.
    """
    chosen: list[int] = []
    found = _judged(application, chosen, mode, rounding)
    for i in ordered(application, order, seed):
        tried = _judged(application, [*chosen, i], mode, rounding)
        if found is None or (tried is not None and tried.step_s < found.step_s):
            chosen.append(i)
            found = tried
    return None if found is None else (application.split(chosen), found)


def _judged(application: Application, chosen: list[int], mode: Mode, rounding: Rounding) -> Whole | None:
    load = load_of(application, application.split(chosen))
    return rounded(application, load, shares(application, load, mode), mode, rounding)
