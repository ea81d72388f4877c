"""The machine of a YAML workload: nodes, how they come and go, bandwidths, failures, costs, power, roles."""

from __future__ import annotations

import dataclasses
from typing import Any

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.model.corridor import Corridor
from dask_hpc.sim.model.domains import Domains
from dask_hpc.sim.model.job import LINEAR, SpeedUp, amdahl, power_law, speed_table
from dask_hpc.sim.model.machine import (
    FAILING,
    FREE,
    PUBLISHED,
    AdaptationCost,
    Failures,
    Machine,
    NodeFailure,
)
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.power import NodePower
from dask_hpc_policies.model import ROLES
from dask_hpc_policies.ranges import MOST_NODE_W

MACHINE_KEYS = (
    "nodes", "link_bytes_s", "file_system_bytes_s", "failures", "node_mtbf", "downtime", "adaptation",
    "pool", "roles", "power", "process_mtbf", "domain_mtbf", "domains", "network_bytes_s", "hosts",
    "corridor",
)  # fmt: skip
COST_KEYS = tuple(field.name for field in dataclasses.fields(AdaptationCost))
POOL_KEYS = tuple(field.name for field in dataclasses.fields(Pool))
POWER_KEYS = tuple(field.name for field in dataclasses.fields(NodePower))
#: What stands for a wait or a walltime without an end.
NEVER = "never"
#: Costs of a resize by name.
COSTS = {"none": FREE, "published": PUBLISHED}
#: Largest deviation of waits: e ** 10 is more than 20,000 times the median.
_LARGEST_SIGMA = 10.0
#: Largest number of nodes.
MOST_NODES = 10_000_000


def read_machine(whole: Field) -> Machine | None:
    """The machine that the file names; None when it names none.

    Raises
    ------
    WorkloadError
        For whatever is missing, unknown or out of range, with file, line and field.
    """
    place = whole.get("machine")
    if place is None:
        return None
    place.mapping(MACHINE_KEYS)
    nodes = place.need("nodes").integer(1, MOST_NODES)
    link, file_system = place.get("link_bytes_s"), place.get("file_system_bytes_s")
    network = place.get("network_bytes_s")
    machine = Machine(
        nodes=nodes,
        link_bytes_s=None if link is None else link.number(above=True),
        file_system_bytes_s=None if file_system is None else file_system.number(above=True),
        failures=_failures(place, nodes),
        adaptation=read_adaptation(place.get("adaptation")) or FREE,
        pool=read_pool(place.get("pool"), nodes),
        roles=read_roles(place.get("roles"), nodes),
        power=read_power(place.get("power")),
        domains=_domains(place.get("domains"), nodes),
        hosts=_domains(place.get("hosts"), nodes, "host"),
        network_bytes_s=None if network is None else network.number(above=True),
        corridor=read_corridor(place.get("corridor")),
    )
    try:
        machine.check()
    except WorkloadError as error:
        place.fail(str(error))
    return machine


def read_pool(place: Field | None, nodes: int) -> Pool | None:
    """How nodes of a machine of `nodes` nodes come and go; None when nothing is said of it.

    Raises
    ------
    WorkloadError
        As `read_machine`.
    """
    if place is None:
        return None
    place.mapping(POOL_KEYS)
    defaults = Pool(initial_nodes=0)
    sigma, boot, initial = place.get("wait_sigma"), place.get("boot_s"), place.get("initial_walltimes_s")
    return Pool(
        initial_nodes=place.need("initial_nodes").integer(0, nodes),
        wait_s=_until(place.get("wait_s"), defaults.wait_s),
        wait_sigma=defaults.wait_sigma if sigma is None else sigma.number(highest=_LARGEST_SIGMA),
        boot_s=defaults.boot_s if boot is None else boot.duration_s(),
        walltime_s=_until(place.get("walltime_s"), None, above_zero=True),
        initial_walltimes_s=()
        if initial is None
        else tuple(_until(item, None, above_zero=True) for item in initial.sequence()),
    )


def _until(place: Field | None, default_s: float | None, *, above_zero: bool = False) -> float | None:
    """A duration, or None for one without an end."""
    if place is None:
        return default_s
    return None if place.value == NEVER else place.duration_s(above_zero=above_zero)


def read_roles(place: Field | None, nodes: int) -> dict[str, int] | None:
    """How many of `nodes` nodes play which role; None when nothing is said of it.

    Raises
    ------
    WorkloadError
        As `read_machine`.
    """
    if place is None:
        return None
    place.mapping(ROLES)
    return {role: count.integer(0, nodes) for role, count in place.items()}


def read_power(place: Field | None) -> NodePower | None:
    """What nodes draw; None when nothing is said of it.

    Raises
    ------
    WorkloadError
        As `read_machine`.
    """
    if place is None:
        return None
    place.mapping(POWER_KEYS)
    return NodePower(**{state: watts.number(0.0, MOST_NODE_W) for state, watts in place.items()})


def read_corridor(place: Field | None) -> Corridor | None:
    """Between which bounds the machine is to draw power; None when nothing is said of it.

    Raises
    ------
    WorkloadError
        As `read_machine`.
    """
    if place is None:
        return None
    rows = []
    for row in place.sequence():
        cells = list(row.sequence())
        if len(cells) != 3:
            row.wrong("a time, a lower and an upper bound in watts: [0 s, 1700, 2500]")
        rows.append((cells[0].duration_s(), cells[1].number(), cells[2].number()))
    try:
        return Corridor(steps=tuple(rows))
    except WorkloadError as error:
        place.fail(str(error))


def _failures(place: Field, nodes: int) -> Failures:
    listed, downtime = place.get("failures"), place.get("downtime")
    rows = []
    for row in () if listed is None else listed.sequence():
        row.mapping(("at", "node", "down", "class"))
        given, down = row.get("class"), row.get("down")
        what: Any = None if given is None else given.text(FAILING)
        if what == "process" and down is not None:
            down.fail("a node whose process fails stays usable; leave down out")
        rows.append(
            NodeFailure(
                t_s=row.need("at").duration_s(),
                node=row.need("node").integer(0, nodes - 1),
                downtime_s=0.0 if what == "process" else row.need("down").duration_s(above_zero=True),
                severity=what,
            )
        )
    mtbf_s = {
        name: None if (given := place.get(name)) is None else given.duration_s(above_zero=True)
        for name in ("node_mtbf", "process_mtbf", "domain_mtbf")
    }
    return Failures(
        listed=tuple(rows),
        downtime_s=Failures().downtime_s if downtime is None else downtime.duration_s(above_zero=True),
        **{f"{name}_s": value for name, value in mtbf_s.items()},
    )


def _domains(place: Field | None, nodes: int, what: str = "domain") -> Domains | None:
    if place is None:
        return None
    if isinstance(place.value, list):
        if not place.value:
            place.fail("is empty; give one name for each node, or {size: nodes in each}")
        return Domains(names=tuple(None if one.value is None else one.text() for one in place.sequence()))
    if not isinstance(place.value, dict):
        place.wrong("{size: nodes in each}, or a list with the " + what + " of each node")
    place.mapping(("size",))
    return Domains(size=place.need("size").integer(1, nodes))


def read_adaptation(place: Field | None) -> AdaptationCost | None:
    """What resizes cost; None when nothing is said of it.

    Raises
    ------
    WorkloadError
        As `read_machine`.
    """
    if place is None or place.value is None:
        return None
    if not isinstance(place.value, dict):
        return COSTS[place.text(COSTS)]
    place.mapping(COST_KEYS)
    return AdaptationCost(**{key: value.duration_s() for key, value in place.items()})


_SPEEDUPS = ("amdahl", "power-law", "runtimes")


def read_speed(place: Field | None) -> SpeedUp:
    """The speed-up at `place`; linear when there is none."""
    if place is None or place.value == "linear":
        return LINEAR
    if not isinstance(place.value, dict) or len(place.value) != 1:
        place.wrong("linear, {amdahl: serial fraction}, {power-law: exponent} or {runtimes: {nodes: time}}")
    place.mapping(_SPEEDUPS)
    if (fraction := place.get("amdahl")) is not None:
        return amdahl(fraction.number(0.0, 1.0))
    if (exponent := place.get("power-law")) is not None:
        return power_law(exponent.number(0.0, 1.0))
    return speed_table(
        {nodes: time.duration_s(above_zero=True) for nodes, time in _by_nodes(place.need("runtimes"))}
    )


def read_io_by_nodes(place: Field) -> tuple[tuple[int, float], ...]:
    """Shares of time in I/O by size, sizes ascending."""
    return tuple(sorted((nodes, share.number(0.0, 1.0)) for nodes, share in _by_nodes(place)))


def read_power_by_nodes(place: Field) -> tuple[tuple[int, float], ...]:
    """Watts of one node by size, sizes ascending."""
    return tuple(sorted((nodes, watts.number(0.0, MOST_NODE_W)) for nodes, watts in _by_nodes(place)))


def _by_nodes(place: Field) -> list[tuple[int, Field]]:
    """Entries of a mapping whose keys are numbers of nodes."""
    rows = []
    for key, value in place.items():
        if not (key.isascii() and key.isdigit() and int(key[:9]) > 0 and len(key) < 9):
            value.fail(f"the key {key!r} is no number of nodes")
        rows.append((int(key), value))
    if not rows:
        place.fail("is empty; give at least one size")
    return rows
