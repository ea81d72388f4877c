"""Between which bounds a machine is to draw power, over time; the same live and simulated.

Rules of the file: frozen dataclasses; seconds of one clock, watts of all nodes together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from dask_hpc_policies.power.checks import MOST_TOTAL_W
from dask_hpc_policies.power.view import Step

#: Most watts that a bound may have: what the program takes.
MOST_W = MOST_TOTAL_W
#: Steps to come that a picture has: it is made, and written, again and again; of them so many of the nearest
#: ones, at least, are told as they are.
MOST_ANNOUNCED, _NEAR = 100, 25


class BoundsError(ValueError):
    """Bounds that cannot be; the message names the step, its values and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower and upper bounds, each pair from its time on until the next one; before the first there is none.

    Raises
    ------
    BoundsError
        Without steps, when their times do not rise, or when bounds cannot be.
    """

    steps: tuple[Step, ...]
    #: The same without the stairs of slopes, nowhere looser (`ramp`); empty: there are no slopes.
    coarse: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if not self.steps:
            raise BoundsError("no steps; give at least one [t_s, lower_w, upper_w]")
        before_s = -1.0
        for number, (t_s, lower_w, upper_w) in enumerate(self.steps, start=1):
            where = f"step {number}"
            if not (isfinite(t_s) and t_s >= 0):
                raise BoundsError(f"{where}: t_s is {t_s!r}; allowed: at least 0 s")
            if t_s <= before_s:
                raise BoundsError(f"{where}: t_s is {t_s:g}, not after {before_s:g}; times rise")
            if not 0 <= lower_w <= upper_w <= MOST_W:
                raise BoundsError(
                    f"{where}: lower_w is {lower_w!r}, upper_w {upper_w!r}; allowed: from 0 to "
                    f"{MOST_W:g} W, lower_w not above upper_w"
                )
            before_s = t_s

    def at(self, t_s: float) -> Step | None:
        """The step that holds at `t_s`; None before the first one."""
        number = _begun(self.steps, t_s)
        return self.steps[number - 1] if number else None

    def after(self, t_s: float, most: int | None = None) -> tuple[Step, ...]:
        """The steps that are still to come at `t_s`, at `most` so many: there may be a year of them."""
        begun = _begun(self.steps, t_s)
        return self.steps[begun : None if most is None else begun + most]

    def announced(self, t_s: float) -> tuple[Step, ...]:
        """Those that pictures tell at `t_s`: at most `MOST_ANNOUNCED`.

        Stairs that are not near leave room for what comes after them: of a slope, or what is left of it,
        the bounds are told that hold all along. So they are nowhere looser than what will hold.
        """
        found, coarse = self.after(t_s, MOST_ANNOUNCED + 1), self.coarse
        if not coarse or len(found) <= MOST_ANNOUNCED:
            return found[:MOST_ANNOUNCED]
        near = max(_NEAR, MOST_ANNOUNCED - 1 - (len(coarse) - _begun(coarse, t_s)))
        begin_s = found[near][0]
        far = coarse[_begun(coarse, begin_s) :]
        end = _begun(self.steps, far[0][0]) - 1 if far else None
        left = self.steps[_begun(self.steps, begin_s) - 1 : end]
        slope = begin_s, max(step[1] for step in left), min(step[2] for step in left)
        return *found[:near], slope, *far[: MOST_ANNOUNCED - near - 1]


def _begun(steps: Sequence[Step], t_s: float) -> int:
    return bisect_right(steps, t_s, key=lambda step: step[0])
