"""The best whole nodes and helper cores of many splits at once.

Rules of the file: what `times` and `whole` say of one split, for arrays of them; the tests hold the two
against each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.placement.application import ROUNDING_ERROR, Application, Mode

#: Most numbers in one array.
_CHUNK = 1 << 18

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Masks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Best:
    """For each of some splits, the least step over all whole nodes and helper cores; inf where none fits."""

    step_s: Floats
    #: Of equal steps the one whose last analyses end first.
    tail_s: Floats
    nodes: Ints
    helper_cores: Ints
    #: The least step with each number of helper cores from 0: a column each.
    with_helpers_s: Floats

    def first(self) -> int:
        """Index of the best split."""
        return int(np.lexsort((self.tail_s, self.step_s))[0])


def best(application: Application, splits: Masks, mode: Mode) -> Best:
    """The best whole nodes and helper cores of each split, over all that fit.

    For every number of helper cores the phases on the simulation's nodes fall with their number and those in
    transit rise, so that the best number of nodes is beside the real one where they meet, or at a bound.

    Parameters
    ----------
    splits
        A row a split, of booleans: whether each analysis runs in situ.
    """
    rows = max(1, _CHUNK // application.platform.cores)
    parts = [_best(application, part, mode) for part in _parts(splits, rows)]
    return Best(*(np.concatenate([getattr(part, name) for part in parts]) for name in Best.__slots__))


def _parts(splits: Masks, rows: int) -> Iterator[Masks]:
    for first in range(0, max(1, len(splits)), rows):
        yield splits[first : first + rows]


def _best(application: Application, splits: Masks, mode: Mode) -> Best:
    platform, simulation = application.platform, application.simulation
    load = _loads(application, splits)
    fewest, most = _bounds(application, load)
    serial_s = simulation.one_core_s * simulation.serial_fraction
    parallel_s = simulation.one_core_s * (1 - simulation.serial_fraction)
    inside, outside = load["in_situ_s"][:, None], load["in_transit_s"][:, None]
    inside_serial_s = load["in_situ_serial_s"][:, None]
    outside_serial_s = load["in_transit_serial_s"][:, None]
    if mode == "synchronous":
        helpers = np.zeros((1, 1), dtype=np.int64)
        together = (parallel_s + inside) / platform.cores
        meets = _crossings(serial_s + inside_serial_s - outside_serial_s, together, outside, platform.nodes)
        usable = np.ones((len(splits), 1), dtype=bool)
    else:
        helpers = np.arange(platform.cores, dtype=np.int64)[None, :]
        usable = (load["in_situ"][:, None] > 0) == (helpers > 0)
        if platform.helper_cores is not None:
            enough = platform.helper_cores > 0 or load["in_situ"][:, None] == 0
            usable = enough & (helpers == platform.helper_cores)
        elif platform.least_helper_cores:
            usable = np.broadcast_to(helpers >= platform.least_helper_cores, usable.shape)
        per_node = np.divide(inside, helpers, out=np.zeros((len(splits), platform.cores)), where=helpers > 0)
        meets = np.maximum(
            _crossings(
                serial_s - outside_serial_s, parallel_s / (platform.cores - helpers), outside, platform.nodes
            ),
            _crossings(inside_serial_s - outside_serial_s, per_node, outside, platform.nodes),
        )
    fewest, most = fewest[:, None], most[:, None]
    usable = (usable & (fewest <= most))[:, :, None]
    near = np.stack([np.floor(meets), np.ceil(meets)], axis=2)
    nodes = np.clip(near, fewest[:, :, None], np.maximum(fewest, most)[:, :, None])
    step_s, tail_s = _times(application, load, nodes, helpers[:, :, None], mode)
    by_cell_s = np.where(usable, step_s, np.inf)
    step_s = by_cell_s.reshape(len(splits), -1)
    least = step_s.min(axis=1)
    tail_s = np.where(step_s == least[:, None], tail_s.reshape(len(splits), -1), np.inf)
    at = tail_s.argmin(axis=1)
    rows = np.arange(len(splits))
    return Best(
        step_s=least,
        tail_s=np.where(np.isinf(least), np.inf, tail_s[rows, at]),
        nodes=nodes.reshape(len(splits), -1)[rows, at].astype(np.int64),
        helper_cores=np.broadcast_to(helpers[:, :, None], nodes.shape)
        .reshape(len(splits), -1)[rows, at]
        .astype(np.int64),
        with_helpers_s=by_cell_s.min(axis=2),
    )


def _loads(application: Application, splits: Masks) -> dict[str, Any]:
    """The fields of `Load`, each an array over the splits."""
    analyses, platform = application.analyses, application.platform
    seconds = np.array([one.parallel_s for one in analyses], dtype=float)
    serial_s = np.array([one.serial_s for one in analyses], dtype=float)
    sizes = np.array([one.memory_bytes for one in analyses], dtype=float)
    inside, outside = splits.astype(float), (~splits).astype(float)
    compute_s = outside @ seconds / platform.cores
    sent_s = np.array([one.sent_bytes for one in analyses], dtype=float) / platform.bandwidth_bytes_s
    if platform.pipelined:
        outside_s = np.maximum(compute_s, (outside * sent_s).max(axis=1, initial=0.0))
    else:
        outside_s = compute_s + outside @ sent_s
    return {
        "in_situ": splits.sum(axis=1),
        "in_situ_s": inside @ seconds,
        "in_situ_bytes": inside @ sizes,
        "in_transit": (~splits).sum(axis=1),
        "in_transit_s": outside_s,
        "in_transit_bytes": outside @ sizes,
        "in_situ_serial_s": inside @ serial_s,
        "in_transit_serial_s": outside @ serial_s,
    }


def _bounds(application: Application, load: dict[str, Any]) -> tuple[Ints, Ints]:
    """`bounds_of` for many."""
    platform = application.platform
    fewest = _nodes_for(application.simulation.memory_bytes + load["in_situ_bytes"], platform.memory_bytes)
    outside = load["in_transit"] > 0
    staging = outside.astype(np.int64)
    if platform.staging_memory_bytes is not None:
        staging = np.where(outside, _nodes_for(load["in_transit_bytes"], platform.staging_memory_bytes), 0)
    if platform.max_staging_nodes is not None:
        fewest = np.where(outside, np.maximum(fewest, platform.nodes - platform.max_staging_nodes), fewest)
    most = platform.nodes - staging
    if platform.simulation_nodes is not None:
        return np.maximum(fewest, platform.simulation_nodes), np.minimum(most, platform.simulation_nodes)
    # without analyses in transit nobody else needs a node
    return np.where(outside, fewest, np.maximum(fewest, platform.nodes)), most


def _nodes_for(memory_bytes: Floats, node_bytes: float) -> Ints:
    return np.maximum(1, np.ceil(memory_bytes / node_bytes * (1 - ROUNDING_ERROR))).astype(np.int64)


def _crossings(serial_s: Floats, inside_s: Floats, outside_s: Floats, nodes: int) -> Floats:
    """`closed_form.crossing` for many, whose serial seconds may also be below 0: then the others wait."""
    serial_s, inside_s, outside_s = np.broadcast_arrays(serial_s, inside_s, outside_s)
    middle = serial_s * nodes - inside_s - outside_s
    # with serial seconds below 0 not below 0 either, rounding apart
    root = np.sqrt(np.maximum(middle * middle + 4 * serial_s * inside_s * nodes, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(middle > 0, (middle + root) / (2 * serial_s), 2 * inside_s * nodes / (root - middle))
    return np.where(outside_s == 0, float(nodes), np.where(np.isnan(found), 0.0, found))


def _times(
    application: Application, load: dict[str, Any], nodes: Floats, helpers: Ints, mode: Mode
) -> tuple[Floats, Floats]:
    """Steps and tails, as in `times.phases_of`."""
    platform, simulation = application.platform, application.simulation
    serial = simulation.serial_fraction
    synchronous = mode == "synchronous"
    beside = platform.cores if synchronous else platform.cores - helpers
    inside, outside = (load[name][:, None, None] for name in ("in_situ_s", "in_transit_s"))
    simulation_s = simulation.one_core_s * serial + simulation.one_core_s * (1 - serial) / (nodes * beside)
    in_situ_s = load["in_situ_serial_s"][:, None, None] + _over(
        inside, nodes * (platform.cores if synchronous else helpers)
    )
    in_transit_s = load["in_transit_serial_s"][:, None, None] + _over(outside, platform.nodes - nodes)
    tail_s = np.maximum(in_situ_s, in_transit_s)
    if synchronous:
        return np.maximum(simulation_s + in_situ_s, in_transit_s), tail_s
    return np.maximum(simulation_s, tail_s), tail_s


def _over(work_s: Floats, units: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(work_s == 0, 0.0, work_s / units)
