"""Declared parameters: one declaration feeds validation, YAML, the command line, JSON and forms.

Rules of the file: a parameter is a row of data (`Parameter`), made by one of `Int`, `Float`,
`Duration`, `Power`, `Choice` and `Bool`. Inside the program durations are seconds and power is watts;
strings with units exist only where values enter (`parse_duration`, `parse_power`) and where they are
shown (`Parameter.format`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_DURATIONS_S = {
    "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0,
}  # fmt: skip
_POWERS_W = {"mw": 1e-3, "w": 1.0, "watt": 1.0, "kw": 1e3, "MW": 1e6}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*")


class ParameterError(ValueError):
    """A value that a parameter cannot take, or a parameter that does not exist."""


def parse_duration(value: str | float) -> float:
    """Seconds from text such as ``"30 s"``, ``"5 min"``, ``"2 h"``; a plain number is seconds.

    Raises
    ------
    ParameterError
        When `value` is no duration, has the unit of something else, is negative or is not finite.
    """
    return _quantity(value, _DURATIONS_S, "a duration", "ms, s, min, h or d, as in '30 s'")


def parse_power(value: str | float) -> float:
    """Watts from text such as ``"200 W"``, ``"1.5 kW"``; a plain number is watts.

    Raises
    ------
    ParameterError
        When `value` is no power, has the unit of something else, is negative or is not finite.
    """
    return _quantity(value, _POWERS_W, "a power", "mW, W, kW or MW, as in '200 W'")


def _number(value: float) -> str:
    # whole numbers with all their digits
    return str(value) if isinstance(value, int) else f"{value:g}"


def _duration(seconds: float) -> str:
    """In the largest unit of which it is a whole number."""
    for unit in ("d", "h", "min"):
        count = seconds / _DURATIONS_S[unit]
        if count >= 1 and count.is_integer():
            return f"{count:g} {unit}"
    return f"{seconds:g} s"


def suggestion(word: object, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest of `known`, empty when nothing is close."""
    close = difflib.get_close_matches(str(word), list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _quantity(value: Any, units: Mapping[str, float], what: str, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ParameterError(f"{value!r} is not {what}; give a number or text with a unit of {allowed}")
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None:
            raise ParameterError(f"{value!r} is not {what}; give a number and a unit of {allowed}")
        number = float(match[1]) * _factor(match[2], units, value, what, allowed)
    else:
        number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ParameterError(f"{value!r} is not {what}; it must be finite and at least 0")
    return number


def _factor(unit: str, units: Mapping[str, float], value: str, what: str, allowed: str) -> float:
    if not unit:
        return 1.0
    # Case matters for power alone: a milliwatt is not a megawatt.
    for spelling in (unit, unit.lower(), unit.lower().removesuffix("s")):
        if spelling in units:
            return units[spelling]
    raise ParameterError(f"{value!r} is not {what}: unknown unit {unit!r}; use {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One declared parameter. Make it with `Int`, `Float`, `Duration`, `Power`, `Choice` or `Bool`."""

    name: str
    #: ``int``, ``float``, ``duration``, ``power``, ``choice`` or ``bool``.
    kind: str
    default: Any
    #: Smallest and largest value, both allowed; None for no bound.
    lo: float | None = None
    hi: float | None = None
    choices: tuple[str, ...] = ()
    #: Unit of the clean value, empty for a pure number.
    unit: str = ""
    #: Short text for a form.
    label: str = ""
    #: One sentence: what it does.
    help: str = ""
    #: Whether None is a value.
    none_ok: bool = False

    def validate(self, value: Any) -> Any:
        """The clean value (seconds, watts, int, float, bool, str or None) that `value` stands for.

        Raises
        ------
        ParameterError
            Naming the value, the allowed range, the unit and the parameter.
        """
        if value is None or (self.none_ok and isinstance(value, str) and value.strip().lower() == "none"):
            if self.none_ok:
                return None
            raise self._error(value)
        try:
            clean = _READERS[self.kind](self, value)
        except ParameterError as error:
            raise self._error(value, str(error)) from None
        outside = self.kind not in ("choice", "bool") and (
            (self.lo is not None and clean < self.lo) or (self.hi is not None and clean > self.hi)
        )
        if outside:
            raise self._error(value)
        return clean

    @property
    def allowed(self) -> str:
        """What the parameter takes, in words."""
        if self.kind == "choice":
            text = "one of " + ", ".join(self.choices)
        elif self.kind == "bool":
            text = "true or false"
        else:
            noun = "a whole number" if self.kind == "int" else "a number"
            say: Callable[[float], str] = _number
            unit = f" {self.unit}" if self.unit else ""
            if self.kind == "duration":
                noun, unit, say = "a duration", "", _duration
            bounds = "" if self.lo is None else f" of at least {say(self.lo)}"
            if self.hi is not None:
                high = say(self.hi)
                bounds = f" of at most {high}" if self.lo is None else f" from {say(self.lo)} to {high}"
            text = noun + bounds + unit
        return text + (", or none" if self.none_ok else "")

    def format(self, value: Any) -> str:
        """Text for the command line or YAML that `validate` reads back as `value`."""
        if value is None:
            return "none"
        if self.kind == "bool":
            return "true" if value else "false"
        if self.kind in ("duration", "power"):
            whole = float(value).is_integer() and abs(value) < 2**53
            return f"{int(value) if whole else value!r} {self.unit}"
        return str(value)

    def json_spec(self) -> dict[str, Any]:
        """The declaration as plain JSON data."""
        return {
            "name": self.name, "kind": self.kind, "default": self.default, "lo": self.lo, "hi": self.hi,
            "choices": list(self.choices), "unit": self.unit, "label": self.label, "help": self.help,
            "none_ok": self.none_ok, "allowed": self.allowed,
        }  # fmt: skip

    def _error(self, value: Any, detail: str = "") -> ParameterError:
        text = f"parameter {self.name!r} cannot be {value!r}: it must be {self.allowed}"
        return ParameterError(text + (f" ({detail})" if detail else ""))


def Int(
    name: str, default: int | None, *, lo: int | None = None, hi: int | None = None, unit: str = "",
    label: str = "", help: str = "", none_ok: bool = False,
) -> Parameter:  # fmt: skip
    """Declare a whole number."""
    return Parameter(
        name=name,
        kind="int",
        default=default,
        lo=lo,
        hi=hi,
        unit=unit,
        label=label,
        help=help,
        none_ok=none_ok,
    )


def Float(
    name: str, default: float | None, *, lo: float | None = None, hi: float | None = None, unit: str = "",
    label: str = "", help: str = "", none_ok: bool = False,
) -> Parameter:  # fmt: skip
    """Declare a finite number."""
    return Parameter(
        name=name,
        kind="float",
        default=default,
        lo=lo,
        hi=hi,
        unit=unit,
        label=label,
        help=help,
        none_ok=none_ok,
    )


def Duration(
    name: str, default: float | None, *, lo: float = 0.0, hi: float | None = None,
    label: str = "", help: str = "", none_ok: bool = False,
) -> Parameter:  # fmt: skip
    """Declare a duration: seconds, or text such as ``"5 min"``."""
    return Parameter(
        name=name,
        kind="duration",
        default=default,
        lo=lo,
        hi=hi,
        unit="s",
        label=label,
        help=help,
        none_ok=none_ok,
    )


def Power(
    name: str, default: float | None, *, lo: float = 0.0, hi: float | None = None,
    label: str = "", help: str = "", none_ok: bool = False,
) -> Parameter:  # fmt: skip
    """Declare a power: watts, or text such as ``"1.5 kW"``."""
    return Parameter(
        name=name,
        kind="power",
        default=default,
        lo=lo,
        hi=hi,
        unit="W",
        label=label,
        help=help,
        none_ok=none_ok,
    )


def Choice(
    name: str,
    default: str | None,
    choices: tuple[str, ...],
    *,
    label: str = "",
    help: str = "",
    none_ok: bool = False,
) -> Parameter:
    """Declare one word out of `choices`."""
    return Parameter(
        name=name, kind="choice", default=default, choices=choices, label=label, help=help, none_ok=none_ok
    )


def Bool(
    name: str, default: bool | None, *, label: str = "", help: str = "", none_ok: bool = False
) -> Parameter:
    """Declare a switch."""
    return Parameter(name=name, kind="bool", default=default, label=label, help=help, none_ok=none_ok)


def _read_int(_: Parameter, value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError("not a whole number")
    return value


def _read_float(_: Parameter, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ParameterError("not a number")
    try:
        number = float(value)
    except ValueError:
        raise ParameterError("not a number") from None
    if not math.isfinite(number):
        raise ParameterError("not finite")
    return number


def _read_choice(parameter: Parameter, value: Any) -> str:
    if not isinstance(value, str) or value not in parameter.choices:
        raise ParameterError("no such choice" + suggestion(value, parameter.choices))
    return value


def _read_bool(_: Parameter, value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "yes", "no", "on", "off"):
        return value.strip().lower() in ("true", "yes", "on")
    if not isinstance(value, bool):
        raise ParameterError("neither true nor false")
    return value


_READERS: Mapping[str, Callable[[Parameter, Any], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "duration": lambda _, value: parse_duration(value),
    "power": lambda _, value: parse_power(value),
    "choice": _read_choice,
    "bool": _read_bool,
}


class Parameters:
    """The declared parameters of one thing, in order, by name."""

    __slots__ = ("_by_name",)

    def __init__(self, declared: Iterable[Parameter] = ()) -> None:
        self._by_name = {p.name: p for p in declared}

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def validate(self, name: str, value: Any) -> Any:
        """The clean value of parameter `name`.

        Raises
        ------
        ParameterError
            For an unknown name (with close matches) or a value it cannot take.
        """
        if name not in self._by_name:
            known = ", ".join(self._by_name) or "none"
            raise ParameterError(
                f"unknown parameter {name!r}; known parameters: {known}{suggestion(name, self._by_name)}"
            )
        return self._by_name[name].validate(value)

    def resolve(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Clean values of all parameters: those in `values`, defaults for the rest.

        Raises
        ------
        ParameterError
            As :meth:`validate`.
        """
        given = {name: self.validate(name, value) for name, value in values.items()}
        return {p.name: given.get(p.name, p.default) for p in self}

    def format(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Text for each of `values`, as the command line and YAML take it."""
        return {name: self._by_name[name].format(value) for name, value in values.items()}

    def json_spec(self) -> list[dict[str, Any]]:
        """All declarations as plain JSON data."""
        return [p.json_spec() for p in self]
