"""What counts of nodes and watts may be, and how one that may not is refused."""

from __future__ import annotations

import math
from typing import TypeGuard

from dask_hpc_policies.params import shown

#: More than any site draws.
MOST_TOTAL_W = 1e9
#: More nodes than any machine has.
MOST_NODES = 1_000_000


def slack_w(lower_w: float, upper_w: float) -> float:
    """A draw that is beyond a bound by less than this is on it: a millionth of the larger one there is."""
    return 1e-6 * max(1.0, lower_w if upper_w >= MOST_TOTAL_W else upper_w)


class ProgramError(ValueError):
    """What was asked cannot be; the message names the field, its value and what is allowed."""


def count(where: str, name: str, value: object, least: int) -> None:
    """Raise unless `value` is a whole number from `least` to `MOST_NODES`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_NODES:
        raise ProgramError(
            f"{where}{name} is {shown(value)}; allowed: a whole number from {least} to {MOST_NODES}"
        )


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number; a whole one that no float holds, and a truth value, is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def watts(where: str, name: str, value: object, most_w: float) -> None:
    """Raise unless `value` is a number of watts from 0 to `most_w`."""
    if not is_number(value) or not 0 <= value <= most_w:
        raise ProgramError(f"{where}{name} is {shown(value)}; allowed: watts from 0 to {most_w:g}")


def ordered(where: str, low: str, low_w: float, high: str, high_w: float) -> None:
    """Raise when what must be the lower of two is the higher."""
    if low_w > high_w:
        raise ProgramError(f"{where}{low} is {low_w:g}; allowed: 0 to {high}, which is {high_w:g}")
