"""Values of a JSON or YAML file, each knowing where it stands.

Rules of the file: a `Field` is asked for what is expected (`number`, `mapping`, ...) and either gives it or
raises one `WorkloadError` with the file, the line (YAML), the path of the field (``jobs[3].nodes``), the
value and what is allowed. Numbers are finite and bounded. Keys that a mapping does not have are errors with
the nearest known one. `parsing` makes the first `Field` of a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from dask_hpc.errors import OptionError, WorkloadError
from dask_hpc_policies.codec import half_of_pair
from dask_hpc_policies.params import ParameterError, parse_duration, suggestion

#: Largest number that is taken for anything.
LARGEST = 1e18
#: Longest path of a field, and most choices, that a message repeats.
_LONGEST_PATH = 200
_MOST_CHOICES = 50
_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*")


class Lines(Protocol):
    """Knows lines (from 1) by the paths of fields."""

    def get(self, path: str, /) -> int | None:
        """The line of the field at `path`; None when it is not known."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class Field:
    """A value in a file."""

    value: Any
    file: str
    #: Such as ``jobs[3].nodes``; empty for the whole file.
    path: str = ""
    #: Line of each path, where the format has lines.
    lines: Lines = field(default_factory=dict[str, int], repr=False)

    def fail(self, message: str) -> NoReturn:
        """Raise the `WorkloadError` for this place."""
        raise failure(self.file, self.lines.get(self.path), self.path, message)

    def wrong(self, expected: str) -> NoReturn:
        """Raise the `WorkloadError` that says that `expected` should stand here."""
        self.fail(f"expected {expected}, got {short(self.value)}")

    def mapping(self, known: Collection[str] | None = None) -> Mapping[str, Any]:
        """The mapping that this is; with keys of `known` only, if given."""
        if not isinstance(self.value, dict):
            self.wrong("a mapping" + (f" with some of {listed(known)}" if known else ""))
        for key in self.value:
            if not isinstance(key, str):
                self.fail(f"the key {short(key)} is no text")
            if known is not None and key not in known:
                self[key].fail(f"unknown key; known keys: {listed(known)}{suggestion(key, known)}")
        return self.value

    def __getitem__(self, key: str) -> Field:
        """The value of `key`, whether it is there or not."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return Field(value, self.file, f"{self.path}.{key}" if self.path else key, self.lines)

    def replaced(self, value: Any) -> Field:
        """Another value at the same place."""
        return Field(value, self.file, self.path, self.lines)

    def get(self, key: str) -> Field | None:
        """The value of `key`, None when it is absent or null."""
        return None if self.mapping().get(key) is None else self[key]

    def need(self, key: str) -> Field:
        """The value of `key`, which must be there."""
        if self.mapping().get(key) is None:
            self.fail(f"{key!r} is missing; it must be given")
        return self[key]

    def items(self) -> Iterator[tuple[str, Field]]:
        """Keys and values of the mapping that this is."""
        for key in self.mapping():
            yield key, self[key]

    def sequence(self) -> Iterator[Field]:
        """The elements of the list that this is."""
        if not isinstance(self.value, list):
            self.wrong("a list")
        return (
            Field(value, self.file, f"{self.path}[{index}]", self.lines)
            for index, value in enumerate(self.value)
        )

    def text(self, choices: Collection[str] | None = None) -> str:
        """The text that this is; one of `choices`, if given."""
        if not isinstance(self.value, str) or not self.value.strip():
            self.wrong("a text" if choices is None else f"one of {listed(choices)}")
        if choices is not None and self.value not in choices:
            self.fail(f"{short(self.value)} is none of {listed(choices)}{suggestion(self.value, choices)}")
        return self.value

    def boolean(self) -> bool:
        """The truth value that this is."""
        if not isinstance(self.value, bool):
            self.wrong("true or false")
        return self.value

    def number(self, lowest: float = 0.0, highest: float = LARGEST, *, above: bool = False) -> float:
        """The number that this is, from `lowest` (or, with `above`, more than it) to `highest`."""
        expected = f"a number {'above' if above else 'from'} {lowest:g}{' and at most' if above else ' to'} "
        expected += f"{highest:g}"
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            self.wrong(expected)
        try:
            value = float(self.value)
        except OverflowError:
            self.wrong(expected)
        if not lowest <= value <= highest or (above and value == lowest):
            self.wrong(expected)
        return value

    def integer(self, lowest: int = 0, highest: int = 1_000_000_000) -> int:
        """The whole number that this is (``8`` or ``8.0``), from `lowest` to `highest`."""
        expected = f"a whole number from {lowest} to {highest}"
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            self.wrong(expected)
        if isinstance(self.value, float) and not self.value.is_integer():
            self.wrong(expected)
        if not lowest <= self.value <= highest:
            self.wrong(expected)
        return int(self.value)

    def duration_s(self, *, above_zero: bool = False, longest_s: float = LARGEST) -> float:
        """Seconds, at most `longest_s`: a number, or text such as ``5 min``."""
        try:
            seconds = parse_duration(self.value)
        except (ParameterError, OverflowError) as error:
            self.fail(f"{error}" if isinstance(error, ParameterError) else "the duration is too long")
        if seconds > longest_s or (above_zero and seconds == 0):
            least = "above 0 s" if above_zero else "of at least 0 s"
            self.wrong(f"a duration {least} and at most {longest_s:g} s")
        return seconds


def failure(file: str, line: int | None, path: str, message: str) -> WorkloadError:
    """The error that `message` is true of the field at `path`; `file` may be an option."""
    place = file if line is None else f"{file}, line {line}"
    if len(path) > _LONGEST_PATH:
        path = f"{path[: _LONGEST_PATH // 2]} ... {path[-_LONGEST_PATH // 2 :]}"
    kind = OptionError if file.startswith("--") else WorkloadError
    return kind(f"{place}: {path}: {message}" if path else f"{place}: {message}")


def text_number(text: str) -> float | None:
    """The number that a text is, such as ``-1.5e3``; None when it is none.

    What Python also takes for a number (``1_000``, ``nan``, digits of other scripts) is text.
    """
    return float(text) if _NUMBER.fullmatch(text) else None


def half_pair(text: str) -> str | None:
    """What is wrong with a text that is no valid Unicode; None when nothing is."""
    found = half_of_pair(text)
    if found is None:
        return None
    half = f"\\u{ord(found):04x}"
    return f"{short(text)} is no valid Unicode: {half} is half a pair; expected both halves, or neither"


def escaped(name: str) -> str:
    """The name of a file, which need be no valid Unicode, as a text that is."""
    return name.encode(errors="backslashreplace").decode()


def listed(choices: Collection[str]) -> str:
    """The choices as a message names them: not all of them when they are many."""
    shown = [choice if len(choice) <= _LONGEST_PATH else short(choice) for choice in choices]
    more = len(shown) - _MOST_CHOICES
    return ", ".join(shown[:_MOST_CHOICES]) + (f" and {more} more" if more > 0 else "")


def short(value: Any, longest: int = 60) -> str:
    """A value as a message repeats it."""
    if isinstance(value, (dict, list)):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        text = repr(value[: longest + 1])
    else:
        # an integer of a million digits has no text
        is_huge = isinstance(value, int) and abs(value) >= 10**40
        text = "a number of over 40 digits" if is_huge else repr(value)
    return text if len(text) <= longest else text[: longest - 4] + "...'"
