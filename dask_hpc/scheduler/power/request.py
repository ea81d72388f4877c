"""What a user asks of the corridor: checked as a whole before anything is changed.

Rules of the file: pure, but for files that are read. Times of a schedule are seconds from when it is set;
what comes out is on the runtime's clock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from dask_hpc.config.file import Mark, mark, plain
from dask_hpc.errors import CorridorError
from dask_hpc.scheduler.power.tariff.read import read_series, read_text
from dask_hpc.scheduler.power.tariff.rules import parse_rules
from dask_hpc_policies.params import ParameterError, parse_duration, parse_power, shown, suggestion
from dask_hpc_policies.power.bounds import MOST_W, Bounds, BoundsError
from dask_hpc_policies.power.ramp import ramped
from dask_hpc_policies.power.tariff import Series, TariffError, shifted, steps_of
from dask_hpc_policies.power.view import Step

#: ``enforce``: decisions are held to the corridor. ``advise``: what would be done is told. ``monitor``: the
#: draw is looked at.
CorridorMode = Literal["enforce", "advise", "monitor"]
MODES: tuple[CorridorMode, ...] = get_args(CorridorMode)
#: The shortest and the longest time that a mean is taken over, and the most steps of a schedule.
LEAST_OVER_S, MOST_OVER_S, _MOST_STEPS = 1e-3, 86_400.0, 100_000
#: Longer files are not read.
_MOST_BYTES = 1 << 22
#: What a file may say.
_FIELDS = ("lower_w", "upper_w", "over", "schedule", "mode", "ramp_w_s", "series", "rules")
#: Arguments that name files.
_FILES = ("file", "series")
#: Paths, and what tells whether they are other files than when they were read.
Marks = tuple[tuple[str, Mark | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A corridor that can be."""

    #: As they were asked for, and led at `ramp_w_s`: these hold.
    asked: Bounds
    bounds: Bounds
    over_s: float = 0.0
    mode: CorridorMode = "enforce"
    ramp_w_s: float | None = None
    #: Files that it was read from, each with its mark from just before.
    marks: Marks = ()

    def led(self, now_s: float, draw_w: float | None) -> Wanted:
        """The same from now on, led from what is drawn (None: not known).

        Raises
        ------
        CorridorError
            Where nothing that changes so slowly stays inside.
        """
        if self.ramp_w_s is None:
            return self
        try:
            return replace(self, bounds=ramped(self.asked, self.ramp_w_s, now_s, draw_w))
        except BoundsError as error:
            raise CorridorError(str(error)) from None


def wanted(
    now_s: float,
    lower_w: Any = None,
    upper_w: Any = None,
    over: Any = None,
    schedule: Any = None,
    mode: Any = None,
    ramp_w_s: Any = None,
    rules: Any = None,
    series: Series | None = None,
    epoch_s: float = 0.0,
) -> Wanted:
    """The corridor that these arguments of ``rt.corridor`` describe, with a series that was read.

    Raises
    ------
    CorridorError
        Naming the argument, its value and what is allowed.
    """
    if mode is not None and mode not in MODES:
        raise CorridorError(f"mode is {shown(mode)}; allowed: {', '.join(MODES)}{suggestion(mode, MODES)}")
    over_s = 0.0 if over is None else _read("over", over, parse_duration)
    if over_s > MOST_OVER_S or 0 < over_s < LEAST_OVER_S:
        raise CorridorError(
            f"over is {shown(over)}; allowed: 0 s (each sample), and {LEAST_OVER_S:g} s to {MOST_OVER_S:g} s"
        )
    rate = None if ramp_w_s is None else _read("ramp_w_s", ramp_w_s, parse_power)
    if rate == 0:
        raise CorridorError(f"ramp_w_s is {shown(ramp_w_s)}; allowed: above 0 W/s")
    bounds_given = not (lower_w is None and upper_w is None and schedule is None)
    if series is not None and bounds_given:
        raise CorridorError("a series stands in place of lower_w, upper_w and schedule: leave these out")
    if series is None and rules is not None:
        raise CorridorError("rules say what a series means; give series, or leave rules out")
    if series is None and not bounds_given:
        raise CorridorError(
            "no bounds; give lower_w and upper_w (watts of all nodes), one of them, a schedule, a series or "
            "a file"
        )
    if series is None:
        steps = _steps(now_s, lower_w, upper_w, schedule)
    else:
        steps = _priced(now_s, epoch_s, series, rules)
    try:
        bounds = Bounds(steps=tuple(steps))
    except BoundsError as error:
        raise CorridorError(f"schedule: {error}") from None
    asked = Wanted(asked=bounds, bounds=bounds, over_s=over_s, mode=mode or "enforce", ramp_w_s=rate)
    return asked.led(now_s, None)


def read_wanted(given: Mapping[str, Any], now_s: float, epoch_s: float) -> Wanted:
    """The corridor that arguments of ``rt.corridor`` describe; files that they name are read here.

    Parameters
    ----------
    epoch_s
        1970 on the clock of `now_s`: series may have dates.

    Raises
    ------
    CorridorError
        For what cannot be read or be.
    """
    if given.get("file") is not None:
        if any(value is not None for name, value in given.items() if name != "file"):
            raise CorridorError(
                "file stands alone: it says bounds, schedule, series, rules, over, ramp_w_s, mode"
            )
        return from_file(given["file"], now_s, epoch_s)
    path, rest = given.get("series"), {name: value for name, value in given.items() if name not in _FILES}
    if path is None:
        return wanted(now_s, **rest)
    _require_path("series", path)
    found = mark(path)
    asked = wanted(now_s, series=read_series(path), epoch_s=epoch_s, **rest)
    return replace(asked, marks=((path, found),))


def from_file(path: Any, now_s: float, epoch_s: float) -> Wanted:
    """The corridor that a file describes: YAML with the arguments of ``rt.corridor``.

    Raises
    ------
    CorridorError
        When it cannot be read, is no such YAML, or describes no corridor.
    """
    _require_path("file", path)
    before = mark(path)
    text = read_text(path, _MOST_BYTES)
    try:
        found = plain(text)
    except ValueError as error:
        raise CorridorError(f"{path}: {error}") from None
    if not isinstance(found, Mapping):
        raise CorridorError(f"{path} holds {shown(found)}; allowed: a mapping with {', '.join(_FIELDS)}")
    for name in found:
        if name not in _FIELDS:
            raise CorridorError(
                f"{path} has {shown(name)}; allowed: {', '.join(_FIELDS)}{suggestion(name, _FIELDS)}"
            )
    try:
        asked = read_wanted(found, now_s, epoch_s)
    except CorridorError as error:
        raise CorridorError(f"{path}: {error}") from None
    return replace(asked, marks=((path, before), *asked.marks))


def _require_path(name: str, path: Any) -> None:
    if not isinstance(path, str) or not os.path.isabs(path):
        raise CorridorError(f"{name} is {shown(path)}; allowed: an absolute path on the scheduler's machine")


def _steps(now_s: float, lower_w: Any, upper_w: Any, schedule: Any) -> list[Step]:
    """The steps that bounds and a schedule make."""
    steps: list[Step] = []
    if lower_w is not None or upper_w is not None:
        steps.append((now_s, *_bounds(lower_w, upper_w)))
    for number, (t_s, low, high) in enumerate(_rows(schedule), start=1):
        where = f"schedule, step {number}: "
        at_s = now_s + _read(f"{where}t_s", t_s, parse_duration)
        if number > 1 and steps[-1][0] >= at_s:
            before_s = steps[-1][0] - now_s
            raise CorridorError(f"{where}t_s is {at_s - now_s:g} s, not after {before_s:g} s; times rise")
        if steps and at_s == now_s:
            # the schedule says what holds from now on
            steps.pop()
        steps.append((at_s, *_bounds(low, high, where)))
    return steps


def _priced(now_s: float, epoch_s: float, series: Series, rules: Any) -> list[Step]:
    """The steps that a series makes, on the runtime's clock."""
    try:
        steps = steps_of(series, None if rules is None else parse_rules(rules))
    except TariffError as error:
        raise CorridorError(f"series: {error}") from None
    return shifted(steps, epoch_s if series.absolute else now_s, now_s)


def _bounds(lower_w: Any, upper_w: Any, where: str = "") -> tuple[float, float]:
    low = 0.0 if lower_w is None else _read(f"{where}lower_w", lower_w, parse_power)
    high = MOST_W if upper_w is None else _read(f"{where}upper_w", upper_w, parse_power)
    for name, value in (("lower_w", low), ("upper_w", high)):
        if value > MOST_W:
            raise CorridorError(f"{where}{name} is {value:g} W; allowed: 0 to {MOST_W:g} W")
    if low > high:
        raise CorridorError(f"{where}lower_w is {low:g} W, above upper_w, which is {high:g} W; swap them")
    return low, high


def _rows(schedule: Any) -> list[Sequence[Any]]:
    if schedule is None:
        return []
    good = isinstance(schedule, Sequence) and not isinstance(schedule, str) and schedule
    if not good or len(schedule) > _MOST_STEPS:
        raise CorridorError(
            f"schedule is {shown(schedule)}; allowed: 1 to {_MOST_STEPS} rows [t_s, lower_w, upper_w]"
        )
    for number, row in enumerate(schedule, start=1):
        if not isinstance(row, Sequence) or isinstance(row, str | bytes) or len(row) != 3:
            raise CorridorError(f"schedule, step {number} is {shown(row)}; give [t_s, lower_w, upper_w]")
    return list(schedule)


def _read(name: str, value: Any, parse: Any) -> float:
    try:
        found: float = parse(value)
    except ParameterError as error:
        raise CorridorError(f"{name}: {error}") from None
    return found
