"""What no placement can be faster than, for each number of nodes and helper cores.

Rules of the file: a *cell* is a number of nodes and of helper cores with analyses in transit beside it. Its
bound comes from filling the cell with parts of analyses, once under its memory and once under the time of its
cores (two fractional knapsacks, Dantzig 1957), and taking the larger; so no split is below it. What runs
without staging nodes, or without helper cores, is a split of its own and is judged as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_hpc_policies.placement.application import ROUNDING_ERROR, Application, Mode
from dask_hpc_policies.placement.many import Best, Floats, Ints, Masks, best
from dask_hpc_policies.placement.times import load_of

#: Most numbers in one array.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells by rising bound: arrays of one length."""

    nodes: Ints
    helper_cores: Ints
    bound_s: Floats
    #: The simulation's time.
    simulation_s: Floats
    #: What the free analyses in situ may take of memory.
    room_bytes: Floats
    #: Cores that the analyses in situ have on all nodes, and what passes before they begin.
    units: Floats
    before_s: Floats

    def __len__(self) -> int:
        return len(self.nodes)


def ends(application: Application, mode: Mode) -> tuple[Masks, Best]:
    """The splits that are no cell: as much as may be in transit, as much as may be in situ; judged."""
    splits = np.array([application.split(), application.split(application.free)], dtype=bool)
    return splits, best(application, splits, mode)


def bound_s(application: Application, mode: Mode, step_s: float) -> float:
    """A lower bound of the step over all splits and whole numbers; at most `step_s`, which is a step."""
    _, judged = ends(application, mode)
    cells = cells_below(application, mode, step_s)
    return float(min([step_s, *judged.step_s, *cells.bound_s[:1]]))


def cells_below(application: Application, mode: Mode, below_s: float) -> Cells:
    """The cells whose bound is below `below_s`, lowest first."""
    cores, fixed = application.platform.cores, application.platform.helper_cores
    least = max(1, application.platform.least_helper_cores)
    parts = [
        _below(application, helpers, mode, below_s)
        for helpers in (range(1) if mode == "synchronous" else range(1 if fixed else least, cores))
        if mode == "synchronous" or fixed in (None, helpers)
    ]
    whole = _joined(parts)
    return _chosen(whole, np.argsort(whole.bound_s, kind="stable"))


def _below(application: Application, helpers: int, mode: Mode, below_s: float) -> Cells:
    """The cells with so many helper cores, by rising nodes."""
    cells = _cells(application, helpers, mode, below_s)
    rows = max(1, _CHUNK // (len(application.free) + 1))
    parts = [
        _bounded(application, _chosen(cells, np.arange(first, min(first + rows, len(cells)))))
        for first in range(0, max(1, len(cells)), rows)
    ]
    whole = _joined(parts)
    return _chosen(whole, np.flatnonzero(whole.bound_s < below_s))


def _chosen(cells: Cells, at: Ints) -> Cells:
    return Cells(*(getattr(cells, name)[at] for name in Cells.__slots__))


def _joined(parts: Sequence[Cells]) -> Cells:
    if not parts:
        return Cells(*(np.empty(0, dtype) for dtype in (np.int64, np.int64, *[np.float64] * 5)))
    return Cells(*(np.concatenate([getattr(part, name) for part in parts]) for name in Cells.__slots__))


def _cells(application: Application, helpers: int, mode: Mode, below_s: float) -> Cells:
    """Cells in which the simulation fits and takes less time than `below_s`; without bounds."""
    platform, simulation = application.platform, application.simulation
    fixed = load_of(application, application.split())
    staging = platform.nodes if platform.max_staging_nodes is None else platform.max_staging_nodes
    nodes = np.arange(max(1, platform.nodes - staging), platform.nodes)
    if platform.simulation_nodes is not None:
        nodes = nodes[nodes == platform.simulation_nodes]
    serial = simulation.serial_fraction
    simulation_s = simulation.one_core_s * serial + simulation.one_core_s * (1 - serial) / (
        nodes * (platform.cores - helpers)
    )
    used_bytes = simulation.memory_bytes + fixed.in_situ_bytes
    room_bytes = nodes.astype(np.float64) * platform.memory_bytes * (1 + ROUNDING_ERROR) - used_bytes
    keep = np.flatnonzero((room_bytes >= 0) & (simulation_s < below_s))
    synchronous = mode == "synchronous"
    return Cells(
        nodes=nodes[keep],
        helper_cores=np.full(len(keep), helpers),
        bound_s=np.zeros(len(keep)),
        simulation_s=simulation_s[keep],
        room_bytes=np.asarray(room_bytes[keep], dtype=np.float64),
        units=(nodes * (platform.cores if synchronous else helpers))[keep].astype(float),
        before_s=simulation_s[keep] if synchronous else np.zeros(len(keep)),
    )


def _bounded(application: Application, cells: Cells) -> Cells:
    """The cells with their bounds."""
    platform = application.platform
    fixed = load_of(application, application.split())
    free = [application.analyses[i] for i in application.free]
    #: What no second core speeds up of analyses is left out, which makes no bound too high.
    seconds = np.array([one.parallel_s for one in free])
    sizes = np.array([one.memory_bytes for one in free])
    sent = np.array([one.sent_bytes for one in free])
    #: What each takes off the staging nodes when it goes in situ, as time on one of them.
    relief_s = seconds / platform.cores + sent / platform.bandwidth_bytes_s
    staging = (platform.nodes - cells.nodes).astype(float)
    by_memory = _filling(sizes, relief_s)
    left_s = fixed.in_transit_s - np.interp(cells.room_bytes, *by_memory)
    # rounding of sums may leave less than nothing
    by_memory_s = np.maximum(left_s, 0.0) / staging
    taken_s, off_s = _filling(seconds, relief_s)
    # least time T for free analyses in situ: off(T) + staging (before + (fixed + T) / units) >= all in
    # transit
    slope = (staging / cells.units)[:, None]
    reach = off_s + slope * (fixed.in_situ_s + taken_s) + (staging * cells.before_s)[:, None]
    at = np.minimum((reach < fixed.in_transit_s).sum(axis=1), len(taken_s) - 1)
    rows, low = np.arange(len(cells)), np.maximum(at - 1, 0)
    rise = reach[rows, at] - reach[rows, low]
    part = np.divide(
        fixed.in_transit_s - reach[rows, low], rise, out=np.zeros(len(cells)), where=(rise > 0) & (at > 0)
    )
    time_s = taken_s[low] + np.clip(part, 0.0, 1.0) * (taken_s[at] - taken_s[low])
    by_time_s = cells.before_s + (fixed.in_situ_s + time_s) / cells.units
    return replace(cells, bound_s=np.maximum(np.maximum(cells.simulation_s, by_memory_s), by_time_s))


def _filling(costs: Floats, gains: Floats) -> tuple[Floats, Floats]:
    """Costs and gains of the best fractional filling, piece by piece: the corners of a concave line.

    What costs nothing is in from the first.
    """
    free = costs == 0
    base = gains[free].sum()
    costs, gains = costs[~free], gains[~free]
    with np.errstate(over="ignore"):
        order = np.argsort(-gains / costs, kind="stable")
    return (
        np.concatenate([[0.0], np.cumsum(costs[order])]),
        np.concatenate([[base], base + np.cumsum(gains[order])]),
    )
