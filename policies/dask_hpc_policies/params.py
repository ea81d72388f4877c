"""Declared parameters: one declaration feeds validation, YAML, the command line, JSON and forms.

Rules of the file: a parameter is a row of data (`Parameter`), made by one of `Int`, `Float`, `Duration`,
`Power`, `Choice`, `Bool`, `Text`, `AbsolutePath` and `Table`. Inside the program durations are seconds and
power is watts; strings with units exist only where values enter (`parse_duration`, `parse_power`) and where
they are shown (`Parameter.format`, `duration_text`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from dask_hpc_policies.numeric import is_real, whole

_DURATIONS_S = {
    "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0,
}  # fmt: skip
_POWERS_W = {"mw": 1e-3, "w": 1.0, "watt": 1.0, "kw": 1e3, "MW": 1e6}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*")
#: More than any bound has, and fewer than Python refuses to read.
_MOST_DIGITS = 100
#: Characters of a wrong value that a message repeats.
_SHOWN = 80


class ParameterError(ValueError):
    """A value that a parameter cannot take, or a parameter that does not exist."""


class UnknownParameter(ParameterError):
    """A parameter that does not exist.

    Parameters
    ----------
    name
        What it was called.
    text
        The message.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def parse_duration(value: str | float) -> float:
    """Seconds from text such as ``"30 s"``, ``"5 min"``, ``"2 h"``, or a timedelta; a number is seconds.

    Raises
    ------
    ParameterError
        When `value` is no duration, has the unit of something else, is negative or is not finite.
    """
    # exactly that class: those of numpy and pandas may be no time at all
    if type(value).__name__ == "timedelta":
        value = value.total_seconds()  # type: ignore[union-attr]
    return _quantity(value, _DURATIONS_S, "a duration", "ms, s, min, h or d, as in '30 s'")


def parse_power(value: str | float) -> float:
    """Watts from text such as ``"200 W"``, ``"1.5 kW"``; a plain number is watts.

    Raises
    ------
    ParameterError
        When `value` is no power, has the unit of something else, is negative or is not finite.
    """
    return _quantity(value, _POWERS_W, "a power", "mW, W, kW or MW, as in '200 W'")


def shown(value: object) -> str:
    """A value that somebody gave, as a message repeats it: not all of it when it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _number(value: float) -> str:
    # whole numbers with all their digits
    return str(value) if isinstance(value, int) else f"{value:g}"


def duration_text(seconds: float) -> str:
    """A duration in the largest unit of which it is a whole number: ``"2 min"``, ``"100 ms"``."""
    for unit in ("d", "h", "min", "s") if seconds >= 1 else ("ms",):
        count = round(seconds / _DURATIONS_S[unit], 9)
        if count >= 1 and count.is_integer():
            return f"{count:.0f} {unit}"
    return f"{seconds:g} s"


def suggestion(word: object, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest of `known`, empty when nothing is close."""
    close = difflib.get_close_matches(str(word), list(known))
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _quantity(value: Any, units: Mapping[str, float], what: str, allowed: str) -> float:
    if not (isinstance(value, str) or is_real(value)):
        raise ParameterError(f"{shown(value)} is not {what}; give a number or text with a unit of {allowed}")
    if isinstance(value, str):
        if (match := _QUANTITY.fullmatch(value)) is None:
            raise ParameterError(f"{shown(value)} is not {what}; give a number and a unit of {allowed}")
        number = float(match[1]) * _factor(match[2], units, value, what, allowed)
    else:
        try:
            number = float(value)
        except OverflowError:  # an integer that no float holds
            number = math.inf
    if not math.isfinite(number) or number < 0:
        raise ParameterError(f"{shown(value)} is not {what}; it must be finite and at least 0")
    return number


def _factor(unit: str, units: Mapping[str, float], value: str, what: str, allowed: str) -> float:
    if not unit:
        return 1.0
    # Case matters for power alone: a milliwatt is not a megawatt.
    for spelling in (unit, unit.lower(), unit.lower().removesuffix("s")):
        if spelling in units:
            return units[spelling]
    raise ParameterError(f"{shown(value)} is not {what}: unknown unit {shown(unit)}; use {allowed}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One declared parameter. Make it with `Int`, `Float`, `Duration` and the others below."""

    name: str
    default: Any
    #: The words that a ``choice`` takes, and a list of words where there are any.
    choices: tuple[str, ...] = ()
    _: KW_ONLY
    #: A key of `_READERS`.
    kind: str
    #: Smallest and largest value, both allowed; None for no bound.
    lo: float | None = None
    hi: float | None = None
    #: Unit of the clean value, empty for a pure number.
    unit: str = ""
    #: Short text for a form.
    label: str = ""
    #: What it does, in a sentence or two.
    help: str = ""
    #: Whether None is a value.
    none_ok: bool = False
    #: The word for None, where it is a value.
    none: str = "none"
    #: What a text is, where "text" says too little.
    noun: str = ""
    #: Whether it may change while what it belongs to runs.
    live: bool = True

    def validate(self, value: Any) -> Any:
        """The clean value (seconds, watts, int, float, bool, str or None) that `value` stands for.

        Raises
        ------
        ParameterError
            Naming the value, the allowed range, the unit and the parameter.
        """
        written = isinstance(value, str) and value.strip().lower() in ("none", "null", self.none)
        if self.none_ok and (value is None or written):
            return None
        try:
            clean = _READERS[self.kind](self, value)
        except ParameterError as error:
            raise self._error(value, str(error)) from None
        if (self.lo is not None and clean < self.lo) or (self.hi is not None and clean > self.hi):
            raise self._error(value)
        return clean

    @property
    def allowed(self) -> str:
        """What the parameter takes, in words."""
        if self.choices:
            text = ("one of " if self.kind == "choice" else "a list of ") + ", ".join(self.choices)
        else:
            text = (self.noun or _NOUNS[self.kind]) + self._range()
        return text + (f", or {self.none}" if self.none_ok else "")

    def _range(self) -> str:
        """Bounds and unit in words, empty when there are none."""
        timed = self.kind == "duration"
        say: Callable[[float], str] = duration_text if timed else _number
        bounds = "" if self.lo is None else f" of at least {say(self.lo)}"
        if self.hi is not None:
            bounds = (" of at most " if self.lo is None else f" from {say(self.lo)} to ") + say(self.hi)
        return bounds + (f" {self.unit}" if self.unit and not timed else "")

    def format(self, value: Any) -> str:
        """Text for the command line or YAML that `validate` reads back as `value`."""
        if value is None:
            return self.none
        if self.kind == "bool":
            return "true" if value else "false"
        if self.kind in ("duration", "power"):
            whole = float(value).is_integer() and abs(value) < 2**53
            return f"{int(value) if whole else value!r} {self.unit}"
        return ", ".join(value) if self.kind == "words" and self.choices else str(value)

    def json_spec(self) -> dict[str, Any]:
        """The declaration as plain JSON data."""
        return {
            "name": self.name, "kind": self.kind, "default": self.default, "lo": self.lo, "hi": self.hi,
            "choices": list(self.choices), "unit": self.unit, "label": self.label, "help": self.help,
            "none_ok": self.none_ok, "allowed": self.allowed,
        }  # fmt: skip

    def told(self, value: Any) -> str:
        """`value` as messages show it: without the password that an address may hold."""
        if self.kind == "url" and isinstance(value, str):
            value = re.sub(r"//.*@", "//***@", value)
        return shown(value)

    def _error(self, value: Any, detail: str = "") -> ParameterError:
        text = f"parameter {self.name!r} cannot be {self.told(value)}: it must be {self.allowed}"
        return ParameterError(text + (f" ({detail})" if detail else ""))


# Each takes name and default, and by keyword whatever else `Parameter` has.

#: Declare a whole number.
Int = partial(Parameter, kind="int")
#: Declare a finite number.
Float = partial(Parameter, kind="float")
#: Declare a duration: seconds, or text such as ``"5 min"``.
Duration = partial(Parameter, kind="duration", unit="s", lo=0.0)
#: Declare a power: watts, or text such as ``"1.5 kW"``.
Power = partial(Parameter, kind="power", unit="W", lo=0.0)
#: Declare one word out of some, the third argument.
Choice = partial(Parameter, kind="choice")
#: Declare a switch.
Bool = partial(Parameter, kind="bool")
#: Declare a text that is not blank; `noun` says what it is.
Text = partial(Parameter, kind="text")
#: Declare an absolute path, which means the same to every process.
AbsolutePath = partial(Parameter, kind="path")
#: Declare an address that begins with http:// or https:// and holds no name or password.
Url = partial(Parameter, kind="url")
#: Declare a list of words: a program and its arguments, or some out of the third argument.
Words = partial(Parameter, kind="words")
#: Declare a mapping from names to values.
Table = partial(Parameter, kind="mapping")


def _read_int(_: Parameter, value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        if len(value) > _MOST_DIGITS:
            raise ParameterError("too many digits")
        return int(value)
    if (number := whole(value)) is None:
        raise ParameterError("not a whole number")
    return number


def _read_float(_: Parameter, value: Any) -> float:
    if not (isinstance(value, str) or is_real(value)):
        raise ParameterError("not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
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
    # that of NumPy, too: what was compared with a number of it
    if type(value).__name__ not in ("bool", "bool_"):
        raise ParameterError("neither true nor false")
    return bool(value)


def _read_text(_: Parameter, value: Any) -> str:
    value = value.__fspath__() if hasattr(value, "__fspath__") else value
    if not isinstance(value, str) or not value.strip():
        raise ParameterError("not a text")
    return value


def _read_path(parameter: Parameter, value: Any) -> str:
    text = _read_text(parameter, value)
    if not text.startswith("/") or "\0" in text:
        raise ParameterError("not absolute")
    return text


def _read_url(parameter: Parameter, value: Any) -> str:
    text = _read_text(parameter, value)
    if not re.fullmatch(r"https?://[^/@\s]+(/\S*)?", text):
        raise ParameterError("no address, or one with a name or password in it")
    return text


def _read_words(parameter: Parameter, value: Any) -> tuple[str, ...]:
    words = re.split(r"\s*,\s*", value) if parameter.choices and isinstance(value, str) else value
    good = isinstance(words, (list, tuple)) and all(isinstance(word, str) for word in words)
    if not good or not words or not words[0]:
        raise ParameterError("not a list of words")
    return tuple(_read_choice(parameter, word) if parameter.choices else word for word in words)


def _read_mapping(_: Parameter, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ParameterError("not a mapping")
    return dict(value)


_READERS: Mapping[str, Callable[[Parameter, Any], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "duration": lambda _, value: parse_duration(value),
    "power": lambda _, value: parse_power(value),
    "choice": _read_choice,
    "bool": _read_bool,
    "text": _read_text,
    "path": _read_path,
    "url": _read_url,
    "words": _read_words,
    "mapping": _read_mapping,
}
#: What each kind takes, before its bounds.
_NOUNS: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "duration": "a duration",
    "power": "a number",
    "bool": "true or false",
    "text": "text",
    "path": "an absolute path",
    "url": "an address that begins with http:// or https://, without name and password",
    "words": "a list of words",
    "mapping": "a mapping from names to values",
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
            raise UnknownParameter(
                name,
                f"unknown parameter {name!r}; known parameters: {known}{suggestion(name, self._by_name)}",
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
