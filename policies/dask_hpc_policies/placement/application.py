"""A platform, a simulation and its analyses, as the planner is told of them (Honoré 2020, chapter 3).

Rules of the file: values only, checked in one place (`Application.check`), which names the field that is
wrong. A step is one iteration of the simulation, followed by all analyses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

#: Where an analysis is to run: wherever it is best, on the simulation's nodes, on staging nodes.
Where = Literal["auto", "in-situ", "in-transit"]
WHERE: tuple[Where, ...] = get_args(Where)
#: Whether analyses in situ run on helper cores beside the simulation, or on all cores while it pauses.
Mode = Literal["asynchronous", "synchronous"]
MODES: tuple[Mode, ...] = get_args(Mode)
#: What any number may be, and what one may that others are divided by.
LARGEST = 1e18
SMALLEST = 1e-9
#: What fits memory but for the rounding of sums, relative.
ROUNDING_ERROR = 1e-9


class InvalidApplication(ValueError):
    """An application that cannot be placed.

    Parameters
    ----------
    field
        Path of the field that is wrong, such as ``simulation.memory_bytes``.
    text
        What is wrong with it: the value, what is allowed, what to change.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Identical nodes (Honoré 2020, section 3.1)."""

    nodes: int
    #: Cores, memory and bandwidth of the network, of each node.
    cores: int
    memory_bytes: float
    bandwidth_bytes_s: float
    #: Memory of a node for what it is staged; None: without a limit, as in the source.
    staging_memory_bytes: float | None = None
    #: The most staging nodes; None for no limit but the platform.
    max_staging_nodes: int | None = None
    #: A simulation that is not to be moved: its nodes, and cores of each that it leaves (asynchronous); None:
    #: they are to be found.
    simulation_nodes: int | None = None
    helper_cores: int | None = None
    #: Cores of each node of a simulation that it cannot use (asynchronous): helper cores in any case.
    least_helper_cores: int = 0
    #: What several analyses in transit read is sent once, while they compute values of earlier steps; else,
    #: as in the source, each takes what it reads and then computes.
    pipelined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One step of the simulation (sections 3.2.2 and 4.3.1)."""

    #: Time of a step on one core.
    one_core_s: float
    #: Peak of a step, on all of its nodes together.
    memory_bytes: float
    #: Share of its work that no second core speeds up (Amdahl), 0 to 1.
    serial_fraction: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One analysis of every step."""

    name: str
    one_core_s: float
    #: Its peak on all nodes together.
    memory_bytes: float
    where: Where = "auto"
    #: What is sent when it runs in transit; None: its peak, as in the source.
    input_bytes: float | None = None
    #: Share of its work that no second core speeds up (Amdahl), 0 to 1; in the source (section 3.2.3) none.
    serial_fraction: float = 0.0

    @property
    def sent_bytes(self) -> float:
        """What is sent when it runs in transit."""
        return self.memory_bytes if self.input_bytes is None else self.input_bytes

    @property
    def serial_s(self) -> float:
        """What no second core speeds up of it."""
        return self.one_core_s * self.serial_fraction

    @property
    def parallel_s(self) -> float:
        """Time on one core of what further cores speed up."""
        return self.one_core_s - self.serial_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """What is to be placed."""

    platform: Platform
    simulation: Simulation
    analyses: tuple[Analysis, ...] = ()

    @property
    def free(self) -> tuple[int, ...]:
        """Indices of the analyses that may run anywhere."""
        return tuple(i for i, one in enumerate(self.analyses) if one.where == "auto")

    def split(self, in_situ: Iterable[int] = ()) -> tuple[bool, ...]:
        """Whether each analysis runs in situ: those that must, and the free ones with these indices."""
        chosen = set(in_situ)
        return tuple(
            one.where == "in-situ" or (one.where == "auto" and i in chosen)
            for i, one in enumerate(self.analyses)
        )

    def check(self, mode: Mode = "asynchronous") -> None:
        """See that every value is in its range, and that what must run somewhere can.

        Raises
        ------
        InvalidApplication
            For the first field that is wrong.
        """
        for field, value, lowest, highest in self._ranges():
            if value is not None and not lowest <= value <= highest:
                raise InvalidApplication(
                    field, f"{value!r} is not allowed; it must be a number from {lowest:g} to {highest:g}"
                )
        names: set[str] = set()
        for i, one in enumerate(self.analyses):
            if one.where not in WHERE:
                raise InvalidApplication(
                    f"analyses[{i}].where", f"{one.where!r} is none of {', '.join(WHERE)}"
                )
            if one.name in names:
                raise InvalidApplication(
                    f"analyses[{i}].name", f"{one.name!r} is the name of another analysis; give each its own"
                )
            names.add(one.name)
        self._check_room(mode)

    def _ranges(self) -> Iterable[tuple[str, float | None, float, float]]:
        platform, simulation = self.platform, self.simulation
        yield "platform.nodes", platform.nodes, 1, LARGEST
        yield "platform.cores", platform.cores, 1, LARGEST
        yield "platform.memory_bytes", platform.memory_bytes, SMALLEST, LARGEST
        yield "platform.bandwidth_bytes_s", platform.bandwidth_bytes_s, SMALLEST, LARGEST
        yield "platform.staging_memory_bytes", platform.staging_memory_bytes, SMALLEST, LARGEST
        yield "platform.max_staging_nodes", platform.max_staging_nodes, 0, LARGEST
        yield "platform.simulation_nodes", platform.simulation_nodes, 1, platform.nodes
        yield "platform.helper_cores", platform.helper_cores, 0, platform.cores - 1
        yield "platform.least_helper_cores", platform.least_helper_cores, 0, platform.cores - 1
        yield "simulation.one_core_s", simulation.one_core_s, SMALLEST, LARGEST
        yield "simulation.memory_bytes", simulation.memory_bytes, 0, LARGEST
        yield "simulation.serial_fraction", simulation.serial_fraction, 0, 1
        for i, one in enumerate(self.analyses):
            yield f"analyses[{i}].one_core_s", one.one_core_s, 0, LARGEST
            yield f"analyses[{i}].memory_bytes", one.memory_bytes, 0, LARGEST
            yield f"analyses[{i}].input_bytes", one.input_bytes, 0, LARGEST
            yield f"analyses[{i}].serial_fraction", one.serial_fraction, 0, 1

    def _check_room(self, mode: Mode) -> None:
        """The simulation and what is bound to a place have room there."""
        platform, memory_bytes = self.platform, self.simulation.memory_bytes
        room_bytes = platform.nodes * platform.memory_bytes
        if nodes_for(memory_bytes, platform.memory_bytes) > platform.nodes:
            raise InvalidApplication(
                "simulation.memory_bytes",
                f"{memory_bytes:g} bytes do not fit; the platform has {room_bytes:g} "
                f"({platform.nodes} x {platform.memory_bytes:g}): take more nodes",
            )
        bound = {where: [one for one in self.analyses if one.where == where] for where in WHERE}
        if bound["in-situ"] and mode == "asynchronous" and platform.cores < 2:
            raise InvalidApplication(
                "platform.cores",
                f"{platform.cores} is not enough; {bound['in-situ'][0].name!r} must run in situ, which "
                "takes a core beside the simulation's: at least 2, or the synchronous mode",
            )
        staging = 1 if bound["in-transit"] else 0
        if staging and (platform.nodes < 2 or platform.max_staging_nodes == 0):
            field = "nodes" if platform.nodes < 2 else "max_staging_nodes"
            raise InvalidApplication(
                f"platform.{field}",
                f"{getattr(platform, field)} is not enough; {bound['in-transit'][0].name!r} must run in "
                f"transit, which takes a staging node: at least {2 if field == 'nodes' else 1}",
            )
        in_situ_bytes = sum(one.memory_bytes for one in bound["in-situ"])
        if nodes_for(memory_bytes + in_situ_bytes, platform.memory_bytes) > platform.nodes - staging:
            raise InvalidApplication(
                "analyses",
                f"those that must run in situ take {in_situ_bytes:g} bytes beside the simulation's "
                f"{memory_bytes:g}; allowed: {room_bytes - staging * platform.memory_bytes:g} on "
                f"{platform.nodes - staging} nodes. Take more nodes, or let one run in transit",
            )


def nodes_for(memory_bytes: float, node_bytes: float) -> int:
    """The least nodes that hold so much memory, `ROUNDING_ERROR` apart; at least 1."""
    return max(1, math.ceil(memory_bytes / node_bytes * (1 - ROUNDING_ERROR)))
