"""What Slurm says of power and energy. A site that measures nothing has it say 0, ``n/s`` or ``n/a``."""

from __future__ import annotations

import re

_NODE_WATTS = re.compile(r"\b(?:CurrentWatts|ExtSensorsWatts)=(\S+)")
#: Factors of ``ConsumedEnergy``, which has them unless ``Raw`` is asked for.
_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_ENERGY = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)")
#: What Slurm keeps for "no value" in 32 bits; in 64 it is more than any job spends, in joules.
_NO_VALUE, _MOST_J = 2**32 - 2, 1e18


def parse_node_watts(text: str) -> float | None:
    """Watts of a node that ``scontrol show node`` tells; None: they are not measured."""
    for said in _NODE_WATTS.findall(text):
        if (watts := _measured(said)) is not None:
            return watts
    return None


def parse_step_joules(text: str) -> float | None:
    """Joules of all steps that ``sstat --parsable2 --format=JobID,ConsumedEnergyRaw`` tells; None: none."""
    rows = [line.split("|") for line in text.splitlines() if "|" in line]
    found = [joules for row in rows if (joules := _measured(row[-1].strip())) is not None]
    return sum(found) if found else None


def _measured(said: str) -> float | None:
    matched = _ENERGY.fullmatch(said)
    if matched is None:
        return None
    value = float(matched[1]) * _FACTORS[matched[2]]
    return value if 0 < value < _MOST_J and value != _NO_VALUE else None
