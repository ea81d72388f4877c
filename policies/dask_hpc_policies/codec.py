"""JSON round trip for the frozen dataclasses of this package.

Rules of the file: only data goes in and comes out. ``encode`` gives plain lists, dicts, strings and
numbers; ``decode`` rebuilds the value from the type annotations of the class. Fields that are absent
from the data take their defaults and fields that the class does not know are ignored, so that traces
written by older and newer versions load. Bytes stay bytes: the network takes them, JSON does not.

A class may say in ``WRITTEN`` which fields are always written, in their order; its others follow, unless they
are at their default. So a class gets another field, or a base class, and what is written without the field
stays as it was to the byte.

A class with ``KINDS`` stands for the classes in that open table, which ``TAG`` names.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
#: Types that are written as they are.
_PLAIN = frozenset({str, int, bool, type(None)})
#: Types of fields that are read as they are.
_TAKEN = frozenset({str, int, bool, float})
_ABSENT = object()
_HALF = re.compile("[\ud800-\udfff]")


def _refused(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError(f"JSON cannot hold {value!r}; the model uses None for unknown or unlimited")
    raise TypeError(f"cannot encode {type(value).__name__}: {value!r}")


def encode(value: Any, instead: Callable[[Any], Any] = _refused) -> Any:
    """Plain JSON data for `value`.

    Parameters
    ----------
    value
        A dataclass instance, enum, mapping, sequence, string, bytes, number, bool or None.
    instead
        Gives what is written for what JSON cannot hold, in place of the errors.

    Raises
    ------
    ValueError
        For a float that JSON cannot hold (infinite or not a number): use None in the model instead.
    TypeError
        For any other type.
    """
    if value is None or isinstance(value, (bool, int, str, bytes)) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else instead(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        always, others = _layout(type(value))
        data = {
            name: item if type(item := getattr(value, name)) in _PLAIN else encode(item, instead)
            for name in always
        }
        for name, default in others:
            if (item := getattr(value, name)) != default:
                data[name] = encode(item, instead)
        tag = getattr(type(value), "TAG", None)
        return data if tag is None else {"kind": tag, **data}
    if isinstance(value, Mapping):
        return {str(k): v if type(v) in _PLAIN else encode(v, instead) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [v if type(v) in _PLAIN else encode(v, instead) for v in value]
    return instead(value)


def sendable(value: Any) -> Any:
    """`value` with what a message or JSON cannot hold in another form: as text, a large number as a float."""
    if isinstance(value, Mapping):
        # a name that is a tuple stays one: a list cannot be a name
        return {k if isinstance(k, tuple) else sendable(k): sendable(item) for k, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sendable(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        value = float(value) if abs(value) < 2**1023 else math.inf if value > 0 else -math.inf
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return ascii(value) if isinstance(value, str) and half_of_pair(value) else value


def decode(kind: type[T], data: Any) -> T:
    """The instance of `kind` that `data` (the output of :func:`encode`) describes.

    Raises
    ------
    ValueError
        When `data` does not fit `kind`; the message names the class and the field.
    """
    return typing.cast(T, _decode(kind, data, kind.__name__))


def half_of_pair(text: str) -> str | None:
    """The first half of a surrogate pair in a text, which neither UTF-8 nor JSON has; None: there is none."""
    found = _HALF.search(text)
    return None if found is None else found[0]


@functools.cache
def field_names(kind: type) -> tuple[str, ...]:
    """Names of the fields of the dataclass `kind` in the order in which they are written."""
    names = [field.name for field in dataclasses.fields(kind)]
    always = getattr(kind, "WRITTEN", ())
    return (*always, *(name for name in names if name not in always))


@functools.cache
def _layout(kind: type) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """Fields that are always written, and the others with their defaults."""
    defaults = {field.name: _default(field) for field in dataclasses.fields(kind)}
    always = getattr(kind, "WRITTEN", field_names(kind))
    return always, tuple((name, defaults[name]) for name in field_names(kind) if name not in always)


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(kind), data, where)
    if origin is typing.Literal:
        if data not in typing.get_args(kind):
            raise ValueError(f"{where}: {data!r} is not one of {typing.get_args(kind)}")
        return data
    if origin is tuple:
        # comms make tuples of lists
        if not isinstance(data, (list, tuple)):
            raise ValueError(f"{where}: expected a list, got {data!r}")
        (item, *rest) = typing.get_args(kind)
        if rest == [Ellipsis] and item in (int, str) and set(map(type, data)) <= {item}:
            return tuple(data)  # there may be one for each of many thousand blocks
        if rest == [Ellipsis]:
            return tuple(_decode(item, v, f"{where}[{i}]") for i, v in enumerate(data))
        return tuple(
            _decode(t, v, f"{where}[{i}]") for i, (t, v) in enumerate(zip((item, *rest), data, strict=True))
        )
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise ValueError(f"{where}: expected a mapping, got {data!r}")
        (_, item) = typing.get_args(kind)
        return {k: _decode(item, v, f"{where}.{k}") for k, v in data.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    if isinstance(kind, type) and "KINDS" in vars(kind):
        return _decode_kind(vars(kind)["KINDS"], data, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), data, where)
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise ValueError(f"{where}: expected a number that a float holds, got one too large") from None
    if kind is type(None) and data is None:
        return None
    if isinstance(kind, type) and isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    raise ValueError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {data!r}")


def _decode_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    if isinstance(data, Mapping) and "kind" in data:
        for option in options:
            if getattr(option, "TAG", None) == data["kind"]:
                return _decode_dataclass(option, data, where)
        raise ValueError(f"{where}: unknown kind {data['kind']!r}")
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, data, where)
        except ValueError as error:
            errors.append(str(error))
    raise ValueError("; ".join(errors) or f"{where}: {data!r} fits nothing")


def _decode_kind(kinds: Mapping[str, type], data: Any, where: str) -> Any:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(
            f"{where}: unknown kind {kind!r}; known are {', '.join(kinds)}. Another one is known once the "
            "module that registers it is imported"
        )
    return _decode_dataclass(kinds[kind], data, where)


def _decode_dataclass(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected an object, got {data!r}")
    hints = _hints(kind)
    values = {}
    for name in field_names(kind):
        item, hint = data.get(name, _ABSENT), hints[name]
        if item is not _ABSENT:
            # what fits is taken as it is: most of the time would go into words of where it stands
            fits = hint in _TAKEN and type(item) is hint
            values[name] = item if fits else _decode(hint, item, f"{where}.{name}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
