"""A corridor made of a series: bounds as they stand in it, or what rules make of a price or of carbon.

Rules of the file: pure. Values are steps: each holds until the next one, over gaps and after the end too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dask_hpc_policies.power.bounds import MOST_W
from dask_hpc_policies.power.view import Step

#: Times and values, rising in time.
Points = tuple[tuple[float, float], ...]
#: Columns that rules go by, and those that are bounds.
SIGNALS, LIMITS = ("price", "carbon"), ("lower_w", "upper_w")


class TariffError(ValueError):
    """No corridor can be made of it; the message says what would be needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What a file says over time."""

    #: Points by column: ``price`` (money per MWh, may be below 0), ``carbon`` (g of CO2 per kWh),
    #: ``lower_w``, ``upper_w``.
    columns: Mapping[str, Points]
    #: Times are seconds since 1970; else seconds from when the corridor is set.
    absolute: bool
    #: Of the price, such as ``EUR``; empty: not said.
    currency: str = ""
    #: Values that were missing; each time the one before holds.
    gaps: int = 0
    #: When the last value was to hold until; None: not said.
    end_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Bounds where a signal is above one value and below another; without either, always."""

    of: str = SIGNALS[0]
    above: float | None = None
    below: float | None = None
    lower_w: float = 0.0
    upper_w: float = MOST_W

    def fits(self, value: float | None) -> bool:
        """Whether it holds at this value of its signal; None: there is none yet."""
        if self.above is None and self.below is None:
            return True
        if value is None:
            return False
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)


def steps_of(series: Series, rules: Sequence[Rule] | None) -> list[Step]:
    """The steps of the corridor, on the series' own times; what does not change is one step.

    Parameters
    ----------
    rules
        The first that fits counts; where none does, both sides are open. None: the series has the bounds.

    Raises
    ------
    TariffError
        When the series lacks what is asked of it, or its bounds cross.
    """
    limits = [name for name in LIMITS if name in series.columns]
    if rules is None:
        if not limits:
            raise TariffError(
                f"the series has {_names(series.columns)} and no bounds; give rules, or columns "
                "lower_w and upper_w"
            )
    elif limits:
        raise TariffError(f"the series has {_names(limits)}; rules stand in place of these: leave one out")
    for number, rule in enumerate(rules or (), start=1):
        if rule.of not in series.columns and (rule.above, rule.below) != (None, None):
            raise TariffError(f"rule {number} goes by {rule.of}; the series has {_names(series.columns)}")
    steps: list[Step] = []
    for time, row in _rows(series):
        if rules is None:
            pair = row.get("lower_w", 0.0), row.get("upper_w", MOST_W)
            if pair[0] > pair[1]:
                raise TariffError(
                    f"lower_w is {pair[0]:g} W, above upper_w, which is {pair[1]:g} W, at {time:.0f} s"
                )
        else:
            fits = next((rule for rule in rules if rule.fits(row.get(rule.of))), None)
            pair = (0.0, MOST_W) if fits is None else (fits.lower_w, fits.upper_w)
        if not steps or steps[-1][1:] != pair:
            steps.append((time, *pair))
    return steps


def _rows(series: Series) -> Iterable[tuple[float, dict[str, float]]]:
    """Each time at which anything changes, with the values that hold from then on."""
    events = sorted(
        ((time, name, value) for name, points in series.columns.items() for time, value in points),
        key=lambda event: event[0],
    )
    row: dict[str, float] = {}
    for number, (time, name, value) in enumerate(events):
        row[name] = value
        if number + 1 == len(events) or events[number + 1][0] > time:
            yield time, row


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "no column"


def shifted(steps: Sequence[Step], by_s: float, from_s: float) -> list[Step]:
    """`steps` on another clock, from a moment on: the one that holds then begins there."""
    moved = [(time + by_s, low, high) for time, low, high in steps]
    begun = [step for step in moved if step[0] <= from_s]
    later = [step for step in moved if step[0] > from_s]
    return [(from_s, *begun[-1][1:]), *later] if begun else later
