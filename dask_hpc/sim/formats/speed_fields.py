"""Speed-ups and other values by number of nodes in a YAML workload."""

from __future__ import annotations

from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.job import LINEAR, SpeedUp, amdahl, power_law, speed_table

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
