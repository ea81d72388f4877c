"""Real numbers of nodes and helper cores for a split, in closed form (Honoré 2020, sections 4.2 and 4.3).

Rules of the file: what is best without memory and without whole numbers, for analyses that are perfectly
parallel; `whole` makes whole ones of it. All
phases then take the same time, since whichever were faster could give nodes or cores to the slowest.

Two things differ from the source. With a serial fraction, its cubic (Theorem 3) is replaced by the quadratic
that follows from equations 4.2 and 4.3; and a split that leaves one side empty has formulas of its own, since
Theorem 2 is 0/0 there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_hpc_policies.placement.application import Application, Mode
from dask_hpc_policies.placement.times import Load


@dataclass(frozen=True, slots=True)
class Shares:
    """How the platform is shared."""

    #: Nodes of the simulation and the analyses in situ; the others are staging nodes.
    nodes: float
    #: Cores of each of these nodes for analyses in situ; 0 in synchronous mode, where they take turns.
    helper_cores: float


def shares(application: Application, load: Load, mode: Mode) -> Shares:
    """The shares that make a step shortest: Theorems 1 and 2, the synchronous and Amdahl's forms.

    Parameters
    ----------
    load
        What the split puts where; either side may be empty.
    """
    platform, simulation = application.platform, application.simulation
    serial_s = simulation.one_core_s * simulation.serial_fraction
    parallel_s = simulation.one_core_s * (1 - simulation.serial_fraction)
    cores = platform.cores
    if mode == "synchronous" or load.in_situ_s == 0:
        # all that the simulation's nodes do, on one of them
        inside_s = (parallel_s + load.in_situ_s) / cores
        return Shares(crossing(serial_s, inside_s, load.in_transit_s, platform.nodes), 0.0)
    if load.in_transit_s == 0:
        return Shares(float(platform.nodes), helper_cores(application, load, platform.nodes))
    if serial_s == 0:
        helpers = load.in_situ_s * cores / (simulation.one_core_s + load.in_situ_s)
        nodes = load.in_situ_s * platform.nodes / (helpers * load.in_transit_s + load.in_situ_s)
        return Shares(nodes, helpers)
    helpers = _amdahl_helpers(serial_s, parallel_s, load, platform.nodes, cores)
    # where in situ and in transit take the same time, as in Theorem 2
    return Shares(load.in_situ_s * platform.nodes / (helpers * load.in_transit_s + load.in_situ_s), helpers)


def helper_cores(application: Application, load: Load, nodes: float) -> float:
    """Helper cores with which the simulation and the analyses in situ take the same time on `nodes` nodes.

    Theorem 1 without a serial fraction, where it does not depend on the nodes.
    """
    simulation, cores = application.simulation, application.platform.cores
    serial_s = simulation.one_core_s * simulation.serial_fraction
    parallel_s = simulation.one_core_s * (1 - simulation.serial_fraction)
    # serial_s + parallel_s / (nodes (cores - h)) = in_situ_s / (nodes h)
    middle = serial_s * nodes * cores + parallel_s + load.in_situ_s
    return _smaller_root(serial_s * nodes, middle, load.in_situ_s * cores)


def crossing(serial_s: float, inside_s: float, outside_s: float, nodes: float) -> float:
    """The n of 0 to `nodes` with serial_s + inside_s / n = outside_s / (nodes - n).

    Parameters
    ----------
    serial_s
        What n does not shorten.
    inside_s, outside_s
        Work on n nodes and on the others, as time on one node.
    """
    if outside_s == 0:
        return float(nodes)
    if inside_s == 0:
        return max(0.0, nodes - outside_s / serial_s)
    middle = serial_s * nodes - inside_s - outside_s
    root = math.sqrt(middle * middle + 4 * serial_s * inside_s * nodes)
    # two forms of one root; each is the one without cancellation
    return (middle + root) / (2 * serial_s) if middle > 0 else 2 * inside_s * nodes / (root - middle)


def _amdahl_helpers(serial_s: float, parallel_s: float, load: Load, nodes: int, cores: int) -> float:
    """The c* of 0 to `cores` at which all three phases take the same time.

    X C c* s (c - c*) = (c* K + X) (X (c - c*) - p c*), with s and p the serial and parallel seconds of the
    simulation: a quadratic of which exactly one root lies between 0 and c, since right less left is X² c at 0
    and not above 0 at c.
    """
    inside_s, outside_s = load.in_situ_s, load.in_transit_s
    square = inside_s * nodes * serial_s - outside_s * (inside_s + parallel_s)
    linear = (
        outside_s * inside_s * cores
        - inside_s * (inside_s + parallel_s)
        - inside_s * nodes * serial_s * cores
    )
    # in the form square h² - middle h + constant = 0
    return _smaller_root(square, -linear, inside_s * inside_s * cores)


def _smaller_root(square: float, middle: float, constant: float) -> float:
    """The root of square h² - middle h + constant = 0 above 0 that is nearest to it, without cancellation.

    `constant` is above 0, and there is such a root: either `square` is below 0 or `middle` is above.
    """
    root = math.sqrt(max(0.0, middle * middle - 4 * square * constant))
    # two forms of one root; each is the one without cancellation
    return 2 * constant / (middle + root) if middle > 0 else (middle - root) / (2 * square)
