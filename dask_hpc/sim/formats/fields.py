"""Values of a JSON or YAML file, each knowing where it stands.

Rules of the file: a `Field` is asked for what is expected (`number`, `mapping`, ...) and either gives it or
raises one `WorkloadError` with the file, the line (YAML), the path of the field (``jobs[3].nodes``), the
value and what is allowed. Numbers are finite and bounded. Keys that a mapping does not have are errors with
the nearest known one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from dask_hpc.errors import WorkloadError
from dask_hpc_policies.params import ParameterError, parse_duration, suggestion

#: Largest number that is taken for anything.
LARGEST = 1e18
#: Most values that one file may hold, counting those of an anchor each time it is used.
MOST_VALUES = 5_000_000
#: Deepest nesting of lists and mappings.
DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Field:
    """A value in a file."""

    value: Any
    file: str
    #: Such as ``jobs[3].nodes``; empty for the whole file.
    path: str = ""
    #: Line (from 1) of each path, where the format has lines.
    lines: Mapping[str, int] = field(default_factory=dict, repr=False)

    def fail(self, message: str) -> NoReturn:
        """Raise the `WorkloadError` for this place."""
        line = self.lines.get(self.path)
        place = self.file if line is None else f"{self.file}, line {line}"
        raise WorkloadError(f"{place}: {self.path}: {message}" if self.path else f"{place}: {message}")

    def wrong(self, expected: str) -> NoReturn:
        """Raise the `WorkloadError` that says that `expected` should stand here."""
        self.fail(f"expected {expected}, got {_short(self.value)}")

    def mapping(self, known: Collection[str] | None = None) -> Mapping[str, Any]:
        """The mapping that this is; with keys of `known` only, if given."""
        if not isinstance(self.value, dict):
            self.wrong("a mapping" + (f" with some of {', '.join(known)}" if known else ""))
        for key in self.value:
            if not isinstance(key, str):
                self.fail(f"the key {_short(key)} is no text")
            if known is not None and key not in known:
                self[key].fail(f"unknown key; known keys: {', '.join(known)}{suggestion(key, known)}")
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
            self.wrong("a text" if choices is None else f"one of {', '.join(choices)}")
        if choices is not None and self.value not in choices:
            self.fail(
                f"{_short(self.value)} is none of {', '.join(choices)}{suggestion(self.value, choices)}"
            )
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

    def duration_s(self, *, above_zero: bool = False) -> float:
        """Seconds: a number, or text such as ``5 min``."""
        try:
            seconds = parse_duration(self.value)
        except (ParameterError, OverflowError) as error:
            self.fail(f"{error}" if isinstance(error, ParameterError) else "the duration is too long")
        if seconds > LARGEST or (above_zero and seconds == 0):
            least = "above 0 s" if above_zero else "of at least 0 s"
            self.wrong(f"a duration {least} and at most {LARGEST:g} s")
        return seconds


def parse_json(text: str, file: str) -> Field:
    """The value that a JSON text holds.

    Raises
    ------
    WorkloadError
        When it is no JSON, with line and column; a text that ends too early is said to be cut off.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as error:
        cut = " (the file may be cut off)" if not text[error.pos :].strip() else ""
        raise WorkloadError(
            f"{file}, line {error.lineno}, column {error.colno}: no JSON: {error.msg}{cut}"
        ) from None
    except RecursionError:
        raise WorkloadError(f"{file}: no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise WorkloadError(f"{file}: no JSON: {error}") from None
    return Field(value, file)


def parse_yaml(text: str, file: str) -> Field:
    """The value that a YAML text holds, with the line of each field.

    Only plain data: lists, mappings, texts, numbers, truth values and null.

    Raises
    ------
    WorkloadError
        When it is no YAML, holds anything else, a key twice, or too much.
    """
    lines: dict[str, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        value = None if node is None else _Reading(loader, file, lines).plain(node, "", 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise WorkloadError(f"{file}{line}: no YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise WorkloadError(f"{file}: no YAML that can be read: {_first_line(error)}") from None
    return Field(value, file, "", lines)


class _Loader(yaml.SafeLoader):
    """Reads `1e3` and `5e-1` as numbers, as JSON does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)

_SCALARS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))
_KEYS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:int"})


class _Reading:
    """One walk over the nodes of a text."""

    def __init__(self, loader: yaml.SafeLoader, file: str, lines: dict[str, int]) -> None:
        self.loader, self.file, self.lines = loader, file, lines
        self.values = 0

    def plain(self, node: yaml.Node, path: str, depth: int) -> Any:
        self.lines[path] = node.start_mark.line + 1
        self.values += 1
        if self.values > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES} values")
        if depth > DEEPEST:
            self._fail(node, path, f"nested more than {DEEPEST} deep")
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(part, f"{path}[{index}]", depth + 1) for index, part in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if node.tag not in _SCALARS:
            kind = node.tag.rpartition(":")[2]
            self._fail(node, path, f"{_short(node.value)} is a {kind}, which is not read")
        return self.loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            # a number is a key by its text, as in JSON
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in _KEYS:
                self._fail(key_node, path, f"the key {_short(key)} is no text")
            below = f"{path}.{key}" if path else key
            if key in result:
                self._fail(key_node, below, "the key is given twice")
            result[key] = self.plain(value_node, below, depth + 1)
            self.lines[below] = key_node.start_mark.line + 1
        return result

    def _fail(self, node: yaml.Node, path: str, message: str) -> NoReturn:
        Field(None, self.file, path, {path: node.start_mark.line + 1}).fail(message)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice in one object")
    return result


def _first_line(error: Exception) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"the character {chr(error.character)!r} at position {error.position} is not allowed"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).split("\n", 1)[0]


def _short(value: Any, longest: int = 60) -> str:
    if isinstance(value, (dict, list)):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # an integer of a million digits has no text
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of over 40 digits"
    return text if len(text) <= longest else text[: longest - 4] + "...'"
