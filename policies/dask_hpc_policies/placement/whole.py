"""Whole nodes and helper cores that fit memory, made of real shares.

Rules of the file: `bounds_of` is VIABILITY (Honoré 2020, Algorithm 2) solved for the nodes, so that a number
of nodes that memory does not allow is lifted to the least that it does. Between its bounds every number of
nodes is allowed. An analysis in transit takes at least one staging node, one in situ at least one helper core
(asynchronous), and the simulation keeps at least one core.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from dask_hpc_policies.placement.application import Application, Mode, nodes_for
from dask_hpc_policies.placement.closed_form import Shares, helper_cores
from dask_hpc_policies.placement.times import Load, Phases, phases_of

#: How real shares become whole ones: section 4.2.3 rounds up; four looks at all neighbours.
Rounding = Literal["up", "down", "nearest", "four"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)
#: Real numbers so near to a whole one, relative, are that one.
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole nodes and helper cores, and how long the phases then take."""

    nodes: int
    helper_cores: int
    phases: Phases
    step_s: float

    @property
    def key(self) -> tuple[float, float]:
        """What is better is less: the step, then what follows the last one."""
        return self.step_s, self.phases.tail_s


def bounds_of(application: Application, load: Load) -> tuple[int, int]:
    """Fewest and most nodes of the simulation that memory allows for a split; fewest > most when none is."""
    platform = application.platform
    fewest = nodes_for(application.simulation.memory_bytes + load.in_situ_bytes, platform.memory_bytes)
    staging = 0
    if load.in_transit:
        staging = 1
        if platform.staging_memory_bytes is not None:
            staging = nodes_for(load.in_transit_bytes, platform.staging_memory_bytes)
        if platform.max_staging_nodes is not None:
            fewest = max(fewest, platform.nodes - platform.max_staging_nodes)
    most = platform.nodes - staging
    if platform.simulation_nodes is not None:
        return max(fewest, platform.simulation_nodes), min(most, platform.simulation_nodes)
    # without analyses in transit nobody else needs a node
    return (fewest if load.in_transit else max(fewest, platform.nodes)), most


def rounded(
    application: Application, load: Load, real: Shares, mode: Mode, rounding: Rounding
) -> Whole | None:
    """`real` as whole numbers that fit; None when no number of nodes does.

    Where memory moves the nodes, the helper cores follow before they are rounded.
    """
    fewest, most = bounds_of(application, load)
    cores, fixed = application.platform.cores, application.platform.helper_cores
    least = application.platform.least_helper_cores if mode == "asynchronous" else 0
    in_helpers = mode == "asynchronous" and load.in_situ > 0
    if fewest > most or (in_helpers and (cores < 2 or fixed == 0)):
        return None
    found: Whole | None = None
    for nodes in {min(max(n, fewest), most) for n in _neighbours(real.nodes, rounding)}:
        helpers = {least}
        if in_helpers:
            moved = not fewest <= real.nodes <= most
            share = helper_cores(application, load, nodes) if moved and load.in_situ_s else real.helper_cores
            helpers = {min(max(h, least, 1), cores - 1) for h in _neighbours(share, rounding)}
        if mode == "asynchronous" and fixed is not None:
            helpers = {fixed}
        for h in helpers:
            phases = phases_of(application, load, nodes, h, mode)
            one = Whole(nodes, h, phases, phases.step_s(mode))
            if found is None or (one.key, one.nodes, one.helper_cores) < (
                found.key,
                found.nodes,
                found.helper_cores,
            ):
                found = one
    return found


def _neighbours(share: float, rounding: Rounding) -> Iterable[int]:
    down, up = math.floor(share * (1 + _WHOLE)), math.ceil(share * (1 - _WHOLE))
    if rounding == "nearest":
        return (math.floor(share + 0.5),)
    return {"up": (up,), "down": (down,), "four": (down, up)}[rounding]
