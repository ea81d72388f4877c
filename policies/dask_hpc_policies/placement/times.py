"""How long things take: the phases of a step, a step, a whole run (Honoré 2020, sections 3.3 and 4.2.1).

Rules of the file: a split says of every analysis whether it runs in situ; nodes and helper cores may be real
numbers. Analyses in transit have all nodes that the simulation has not, or so many as is said, with all their
cores, and pay for the transfer of what they read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dask_hpc_policies.placement.application import ROUNDING_ERROR, Application, Mode, nodes_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a split puts where. Times are of what further cores or nodes speed up, and of what they do not."""

    #: Analyses in situ; their time on one core (X in the source) and their peaks.
    in_situ: int
    in_situ_s: float
    in_situ_bytes: float
    #: Analyses in transit; their time on one node, transfer included (K; `in_transit_s`), and their peaks.
    in_transit: int
    in_transit_s: float
    in_transit_bytes: float
    in_situ_serial_s: float = 0.0
    in_transit_serial_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Times of the three phases of a step (Propositions 1 and 2)."""

    simulation_s: float
    in_situ_s: float
    in_transit_s: float

    def step_s(self, mode: Mode) -> float:
        """Time from step to step, the slowest phase; in synchronous mode the first two follow each other."""
        if mode == "synchronous":
            return max(self.simulation_s + self.in_situ_s, self.in_transit_s)
        return max(self.simulation_s, self.in_situ_s, self.in_transit_s)

    @property
    def tail_s(self) -> float:
        """Time of the analyses after the last step of the simulation."""
        return max(self.in_situ_s, self.in_transit_s)

    def run_s(self, steps: int, mode: Mode) -> float:
        """Time of a whole run of `steps` steps: the first simulation, the steps, the last analyses.

        Section 4.2.1; in synchronous mode likewise, in transit beginning with what the simulation hands over.
        """
        return self.simulation_s + (steps - 1) * self.step_s(mode) + self.tail_s


def load_of(application: Application, split: Sequence[bool]) -> Load:
    """What `split` puts where."""
    pairs = list(zip(application.analyses, split, strict=True))
    inside = [one for one, in_situ in pairs if in_situ]
    outside = [one for one, in_situ in pairs if not in_situ]
    platform = application.platform
    compute_s = math.fsum(one.parallel_s for one in outside) / platform.cores
    sent_s = [one.sent_bytes / platform.bandwidth_bytes_s for one in outside]
    return Load(
        in_situ=len(inside),
        in_situ_s=math.fsum(one.parallel_s for one in inside),
        in_situ_bytes=math.fsum(one.memory_bytes for one in inside),
        in_transit=len(outside),
        in_transit_s=staged_s(compute_s, sent_s, platform.pipelined),
        in_transit_bytes=math.fsum(one.memory_bytes for one in outside),
        in_situ_serial_s=math.fsum(one.serial_s for one in inside),
        in_transit_serial_s=math.fsum(one.serial_s for one in outside),
    )


def staged_s(compute_s: float, sent_s: Sequence[float], pipelined: bool) -> float:
    """How long staging nodes take for a step, what is serial left out.

    Parameters
    ----------
    compute_s, sent_s
        What the analyses compute, and what each of them is sent.
    pipelined
        As in `Platform`.
    """
    return max([compute_s, *sent_s]) if pipelined else compute_s + math.fsum(sent_s)


def phases_of(
    application: Application,
    load: Load,
    nodes: float,
    helper_cores: float,
    mode: Mode,
    staging_nodes: float | None = None,
) -> Phases:
    """Times of the phases with so many nodes for the simulation and helper cores on each.

    Staging nodes are all others where it is not said how many there are.
    In synchronous mode helper cores are not looked at: simulation and analyses in situ use all cores in turn.
    What has no node or no core to run on takes for ever.
    """
    platform, simulation = application.platform, application.simulation
    synchronous = mode == "synchronous"
    cores = platform.cores if synchronous else platform.cores - helper_cores
    staging = platform.nodes - nodes if staging_nodes is None else staging_nodes
    serial = simulation.serial_fraction
    return Phases(
        simulation_s=simulation.one_core_s * serial
        + _over(simulation.one_core_s * (1 - serial), nodes * cores),
        in_situ_s=load.in_situ_serial_s
        + _over(load.in_situ_s, nodes * (platform.cores if synchronous else helper_cores)),
        in_transit_s=load.in_transit_serial_s + _over(load.in_transit_s, staging),
    )


def least_staging(application: Application, load: Load, nodes: int, helper_cores: int, mode: Mode) -> int:
    """Fewest staging nodes with which a step is as short as with all; 0 where nothing runs in transit."""
    if not load.in_transit:
        return 0
    platform = application.platform
    most, least = platform.nodes - nodes, 1
    if platform.staging_memory_bytes is not None:
        least = nodes_for(load.in_transit_bytes, platform.staging_memory_bytes)
    others = replace(phases_of(application, load, nodes, helper_cores, mode), in_transit_s=0.0)
    room_s = others.step_s(mode) - load.in_transit_serial_s
    # what is serial alone takes as long on any number of them
    if load.in_transit_s > 0:
        if load.in_transit_s > most * room_s:
            return most
        least = max(least, math.ceil(load.in_transit_s / room_s * (1 - ROUNDING_ERROR)))
    return min(most, least)


def _over(work_s: float, units: float) -> float:
    if work_s == 0:
        return 0.0
    return work_s / units if units > 0 else math.inf
