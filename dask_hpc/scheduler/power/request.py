"""What a user asks of the corridor: checked as a whole before anything is changed.

Rules of the file: pure, but for the file that is read. Times of a schedule are seconds from when it is set;
what comes out is on the runtime's clock.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import yaml

from dask_hpc.errors import CorridorError
from dask_hpc_policies.params import ParameterError, parse_duration, parse_power, shown, suggestion
from dask_hpc_policies.power.bounds import MOST_W, Bounds, BoundsError

#: ``enforce``: decisions are held to the corridor. ``advise``: what would be done is told. ``monitor``: the
#: draw is looked at.
CorridorMode = Literal["enforce", "advise", "monitor"]
MODES: tuple[CorridorMode, ...] = get_args(CorridorMode)
#: The longest time that a mean is taken over, and the most steps of a schedule.
MOST_OVER_S, _MOST_STEPS = 86_400.0, 100_000
#: Longer files are not read.
_MOST_BYTES = 1 << 22
#: What a file may say.
_FIELDS = ("lower_w", "upper_w", "over", "schedule", "mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A corridor that can be."""

    bounds: Bounds
    over_s: float = 0.0
    mode: CorridorMode = "enforce"


def wanted(
    now_s: float,
    lower_w: Any = None,
    upper_w: Any = None,
    over: Any = None,
    schedule: Any = None,
    mode: Any = None,
) -> Wanted:
    """The corridor that these arguments of ``rt.corridor`` describe.

    Raises
    ------
    CorridorError
        Naming the argument, its value and what is allowed.
    """
    if mode is not None and mode not in MODES:
        raise CorridorError(f"mode is {shown(mode)}; allowed: {', '.join(MODES)}{suggestion(mode, MODES)}")
    over_s = 0.0 if over is None else _read("over", over, parse_duration)
    if over_s > MOST_OVER_S:
        raise CorridorError(f"over is {shown(over)}; allowed: 0 s to {MOST_OVER_S:g} s")
    if lower_w is None and upper_w is None and schedule is None:
        raise CorridorError(
            "no bounds; give lower_w and upper_w (watts of all nodes), one of them, a schedule or a file"
        )
    steps: list[tuple[float, float, float]] = []
    if lower_w is not None or upper_w is not None:
        steps.append((now_s, *_bounds(lower_w, upper_w)))
    for number, (t_s, low, high) in enumerate(_rows(schedule), start=1):
        where = f"schedule, step {number}: "
        at_s = now_s + _read(f"{where}t_s", t_s, parse_duration)
        if number == 1 and steps and at_s == now_s:
            # the schedule says what holds from now on
            steps.pop()
        steps.append((at_s, *_bounds(low, high, where)))
    try:
        return Wanted(bounds=Bounds(steps=tuple(steps)), over_s=over_s, mode=mode or "enforce")
    except BoundsError as error:
        raise CorridorError(f"schedule: {error}") from None


def from_file(path: Any, now_s: float) -> Wanted:
    """The corridor that a file describes: YAML with the arguments of ``rt.corridor``.

    Raises
    ------
    CorridorError
        When it cannot be read, is no such YAML, or describes no corridor.
    """
    if not isinstance(path, str) or not os.path.isabs(path):
        raise CorridorError(f"file is {shown(path)}; allowed: an absolute path on the scheduler's machine")
    try:
        # a pipe would have the reader wait for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CorridorError(f"{path} is no file")
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise CorridorError(f"{path} is longer than {_MOST_BYTES} bytes")
        found = yaml.safe_load(raw.decode())
    except OSError as error:
        raise CorridorError(f"{path} cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise CorridorError(f"{path} is no YAML: {' '.join(str(error).split()):.200}") from None
    if not isinstance(found, Mapping):
        raise CorridorError(f"{path} holds {shown(found)}; allowed: a mapping with {', '.join(_FIELDS)}")
    for name in found:
        if name not in _FIELDS:
            raise CorridorError(
                f"{path} has {shown(name)}; allowed: {', '.join(_FIELDS)}{suggestion(name, _FIELDS)}"
            )
    try:
        return wanted(now_s, **found)
    except CorridorError as error:
        raise CorridorError(f"{path}: {error}") from None


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
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 3:
            raise CorridorError(f"schedule, step {number} is {shown(row)}; give [t_s, lower_w, upper_w]")
    return list(schedule)


def _read(name: str, value: Any, parse: Any) -> float:
    try:
        found: float = parse(value)
    except ParameterError as error:
        raise CorridorError(f"{name}: {error}") from None
    return found
