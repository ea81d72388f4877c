"""The contract of a flow: its fields, where blocks lie, and when an analysis is due."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_hpc_policies import numeric

#: Bounds of the steps that an analysis gets, and of those that it has one value for.
WINDOW, EVERY = (1, 1024), (1, 2**31)
#: What may become of a step for which the queue has no room.
WHEN_FULL = ("wait", "drop-oldest", "drop-newest")
#: Where an analysis may be said to run.
WHERE = ("auto", "in-situ", "in-transit")
#: Dimensions that a field may have: whether blocks cover it costs as much as they have corners.
_DIMS = 8
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_DTYPE = re.compile(r"(bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128))")

#: Where a block begins, and how many indices it has, along each dimension.
Place = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Field:
    """One quantity, as all producers together hand it over at each step."""

    name: str
    dims: tuple[str, ...]
    #: Numbers of indices.
    shape: tuple[int, ...]
    dtype: str

    def placed(self, at: Mapping[str, int], shape: Sequence[int], dtype: str) -> Place:
        """Where a block lies that begins at `at`, by dimension; 0 along those that are not named.

        Raises
        ------
        ValueError
            For a block that is none of this field.
        """
        if dtype != self.dtype:
            raise ValueError(f"block of {self.name!r} is of type {dtype}; allowed: {self.dtype}")
        if len(shape) != len(self.dims):
            raise ValueError(
                f"block of {self.name!r} has {len(shape)} dimensions; allowed: {len(self.dims)}, {self.dims}"
            )
        begin = tuple([_index(dim, at.get(dim, 0)) for dim in self.dims])
        for dim, first, count, whole in zip(self.dims, begin, shape, self.shape, strict=True):
            if first < 0 or count < 1 or first + count > whole:
                raise ValueError(
                    f"block of {self.name!r} has indices {first} to {first + count} along {dim!r}; allowed: "
                    f"at least one, within 0 to {whole}"
                )
        return begin, tuple(shape)


def _index(dim: str, value: Any) -> int:
    if (number := numeric.whole(value)) is not None:
        return number
    raise ValueError(f"at has {value!r} along {dim!r}; allowed: whole numbers")


def checked_name(name: Any, what: str = "name") -> str:
    """A name of a flow, a field, a dimension or an analysis; raises `ValueError` for others."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} is {name!r}; allowed: up to 64 letters, digits, '_', '.', '-', first a letter or '_'"
        )
    return name


def checked_number(what: str, value: Any, lo: int, hi: int) -> int:
    """A whole number within bounds, also one that is written as a float; raises `ValueError` for others."""
    number = numeric.whole(value)
    if number is None or not lo <= number <= hi:
        raise ValueError(f"{what} is {value!r}; allowed: a whole number from {lo} to {hi}")
    return number


def checked_amount(what: str, value: Any, unit: str) -> float:
    """A finite number of units, 0 or more; raises `ValueError` for others."""
    if numeric.is_real(value):
        with suppress(OverflowError):
            number = float(value)
            if 0 <= number < math.inf:
                return number
    raise ValueError(f"{what} is {value!r}; allowed: a finite number of {unit}, 0 or more")


def checked_seconds(what: str, value: Any) -> float:
    """A finite number of seconds, 0 or more; raises `ValueError` for others."""
    return checked_amount(what, value, "seconds")


def checked_choice(what: str, value: Any, choices: Sequence[str]) -> str:
    """One of several words; raises `ValueError` for others."""
    if value not in choices:
        raise ValueError(f"{what} is {value!r}; allowed: {', '.join(map(repr, choices))}")
    return str(value)


def said_of(
    name: Any, window: Any, every: Any, where: Any, one_core_s: Any = None, memory_bytes: Any = None
) -> dict[str, Any]:
    """What is said of an analysis, as plain data; hints that are not given (None) are left out.

    Raises
    ------
    ValueError
        For what cannot be, with what is allowed.
    """
    checked_name(name)
    hints: dict[str, float] = {}
    for hint, value, unit in (("one_core_s", one_core_s, "seconds"), ("memory_bytes", memory_bytes, "bytes")):
        if value is not None:
            hints[hint] = checked_amount(hint, value, unit)
    return {
        "window": checked_number("window", window, *WINDOW),
        "every": checked_number("every", every, *EVERY),
        "where": checked_choice("where", where, WHERE),
    } | hints


def declared(fields: Any) -> tuple[Field, ...]:
    """The fields of a flow, from ``{name: (dims, shape, dtype)}``.

    Raises
    ------
    ValueError
        For what cannot be, with the field and what is allowed.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise ValueError(
            f"fields is {fields!r:.80}; needed: a dict such as "
            "{'T': (('y', 'x'), (512, 512), 'float64')}, with one field at least"
        )
    found = tuple(_field(checked_name(name, "name of a field"), said) for name, said in fields.items())
    # they are one data set, in which a dimension has one length and no other meaning
    lengths: dict[str, int] = {}
    for one in found:
        for dim, length in zip(one.dims, one.shape, strict=True):
            if lengths.setdefault(dim, length) != length:
                text = f"length of {one.name!r} along {dim!r} is {length}; allowed: {lengths[dim]}"
                raise ValueError(f"{text}, as another field has")
    for one in found:
        if one.name in lengths or one.name == "step":
            raise ValueError(f"name of a field is {one.name!r}, which is a dimension; choose another name")
    return found


def _field(name: str, said: Any) -> Field:
    if not isinstance(said, (tuple, list)) or len(said) != 3 or not isinstance(said[0], (tuple, list)):
        raise ValueError(f"field {name!r} is {said!r:.80}; needed: its dims, shape and dtype")
    dims, shape, dtype = said
    for dim in dims:
        if checked_name(dim, f"a dimension of {name!r}") == "step":
            raise ValueError(
                f"a dimension of {name!r} is 'step', which is the flow's own; choose another name"
            )
    if not 1 <= len(dims) <= _DIMS or len(set(dims)) < len(dims):
        raise ValueError(f"dims of {name!r} are {dims!r:.80}; needed: from 1 to {_DIMS}, each once")
    if not isinstance(shape, (tuple, list)) or len(shape) != len(dims):
        raise ValueError(f"shape of {name!r} is {shape!r}; needed: {len(dims)} numbers, as it has dims")
    lengths = tuple(checked_number(f"length of {name!r}", length, 1, 2**40) for length in shape)
    kind = ""
    with suppress(TypeError, ValueError, SyntaxError):  # what NumPy says of what is no dtype
        kind = "" if dtype is None else np.dtype(dtype).name
    if not _DTYPE.fullmatch(kind):
        raise ValueError(
            f"dtype of {name!r} is {dtype!r}; allowed: bool, int, uint, float, complex, with bits"
        )
    return Field(name, tuple(dims), lengths, kind)


def uncovered(field: Field, blocks: Iterable[Place]) -> str:
    """Why blocks do not cover a field, each index once; nothing when they do.

    The corners of a block count one more or one less, in turn along each dimension: summed up from the first
    index on, they tell how many blocks each index has. Those of blocks that cover the field leave the corners
    of the field; where one is left over, the first one is at the first index that has none, or several. It
    costs as much as there are corners, however the blocks lie.
    """
    signs = [math.prod(each) for each in itertools.product((1, -1), repeat=len(field.dims))]
    left: dict[tuple[int, ...], int] = {}
    whole: Place = tuple([0] * len(field.dims)), field.shape
    for weight, (at, shape) in itertools.chain([(-1, whole)], ((1, block) for block in blocks)):
        edges = [(first, first + count) for first, count in zip(at, shape, strict=True)]
        for sign, corner in zip(signs, itertools.product(*edges), strict=True):
            left[corner] = left.get(corner, 0) + weight * sign
    wrong = min((corner for corner, count in left.items() if count), default=None)
    if wrong is None:
        return ""
    what = "two blocks" if left[wrong] > 0 else "no block"
    return f"{field.name!r} has {what} at {_told(field, wrong)}"


def lacking(field: Field, blocks: Iterable[Place]) -> str:
    """The first index of a field that no block has, where they may overlap; nothing if there is none."""
    spans = [list(zip(at, shape, strict=True)) for at, shape in blocks]
    found = _gap(spans, field.shape)
    return "" if found is None else _told(field, found)


def _gap(blocks: Sequence[Sequence[tuple[int, int]]], shape: Sequence[int]) -> tuple[int, ...] | None:
    if not shape:
        return None if blocks else ()
    whole, *others = shape
    edges = {edge for (first, count), *_ in blocks for edge in (first, first + count)}
    coming = sorted(blocks, key=lambda block: block[0], reverse=True)
    there: list[Sequence[tuple[int, int]]] = []
    # between two edges all indices have the same blocks
    for begin in sorted({0} | {edge for edge in edges if 0 < edge < whole}):
        while coming and coming[-1][0][0] <= begin:
            there.append(coming.pop())
        there = [block for block in there if begin < sum(block[0])]
        if (found := _gap([block[1:] for block in there], others)) is not None:
            return begin, *found
    return None


def _told(field: Field, index: Iterable[int]) -> str:
    return ", ".join(f"{dim}={at}" for dim, at in zip(field.dims, index, strict=True))


def shared(field: Field, one: Place, other: Place) -> str:
    """The first index that two blocks of a field have both; nothing when they have none."""
    begin = []
    for first, count, its_first, its_count in zip(*one, *other, strict=True):
        if first >= its_first + its_count or its_first >= first + count:
            return ""
        begin.append(max(first, its_first))
    return _told(field, begin)


def chunks(field: Field, blocks: Sequence[Place]) -> tuple[tuple[int, ...], ...] | None:
    """Lengths of chunks along each dimension when blocks that cover a field are a grid; else None."""
    found = []
    for dim, whole in enumerate(field.shape):
        begins = [*sorted({at[dim] for at, _ in blocks}), whole]
        found.append(tuple(after - before for before, after in itertools.pairwise(begins)))
    return tuple(found) if math.prod(map(len, found)) == len(blocks) else None


def block_key(flow: str, turn: int, place: int) -> str:
    """Key of what one place has of a turn."""
    return f"{flow}-{turn}-{place}"


def value_key(flow: str, turn: int, analysis: str) -> str:
    """Key of what an analysis gives at a turn; users see its beginning on the dashboard."""
    return f"{analysis}-{flow.rpartition('-')[2]}-{turn}"


def is_due(turn: int, first: int, window: int, every: int) -> bool:
    """Whether an analysis that begins with the `first` turn has a value at a turn.

    The first one is due when its window is full, from then on one each `every` turns.
    """
    since = turn - (first + window - 1)
    return since >= 0 and since % every == 0
