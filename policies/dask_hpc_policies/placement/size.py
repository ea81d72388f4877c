"""On how many nodes a simulation that can be resized is to run.

Rules of the file: pure; the models are those of the planner.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from dask_hpc_policies.placement.replan import application_of, best_split, phases, with_nodes
from dask_hpc_policies.placement.view import FlowView, Split

#: Steps that differ by less are alike, relative.
_ALIKE = 1e-9


def best_size(
    flow: FlowView, sizes: Sequence[int], alike: float = _ALIKE, split: Split | None = None
) -> tuple[int, float] | None:
    """The fewest nodes of its simulation with which a step of a flow is shortest, and its seconds.

    Staging nodes stay as they are, so that a step takes no longer on more nodes. None: nothing fits on any,
    or too little is known.

    Parameters
    ----------
    sizes
        Numbers of nodes that may be, ascending.
    alike
        A step that is longer than the shortest by no more than this share is as short.
    split
        What runs where with each size; None: as with the best split of each.
    """
    if not sizes or (least_s := size_step_s(flow, sizes[-1], split)) == math.inf:
        return None
    enough_s = least_s * (1 + alike)
    first = bisect_left(sizes, True, key=lambda nodes: size_step_s(flow, nodes, split) <= enough_s)
    return sizes[first], size_step_s(flow, sizes[first], split)


def size_step_s(flow: FlowView, nodes: int, split: Split | None = None) -> float:
    """Seconds of a step with so many nodes of its simulation; infinite: nothing fits, or it is not known.

    `split` as in `best_size`.
    """
    staging = flow.platform.nodes - flow.nodes
    platform = replace(flow.platform, nodes=nodes + staging, nodes_fixed=True)
    resized = replace(flow, nodes=nodes, platform=platform)
    if (application := application_of(resized)) is None:
        return math.inf
    found = best_split(application, resized) if split is None else with_nodes(application, split, nodes)
    return math.inf if found is None else phases(application, resized, found).step_s(flow.mode)
