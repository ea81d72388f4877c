"""How values of each NumPy dtype are stored, and how Zarr calls that.

Dtypes that Zarr has keep their bytes. Times in nanoseconds and durations are integers with the units that
xarray decodes; times in other units have a Zarr type of their own, because xarray would make nanoseconds of
them. What Zarr has no type for is stored as bytes and known by the manifest alone.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

#: int64: times and durations as integers. masked: data, mask and fill value one after the other. raw: bytes.
#: text: text of any length. object: text of any length, or else opaque.
Encoding = Literal["int64", "masked", "raw", "text", "object"]

_CORE = {
    **{np.dtype(kind + size).str[1:]: name + str(8 * int(size)) for kind, name, sizes in (
        ("i", "int", "1248"), ("u", "uint", "1248"), ("f", "float", "248"),
    ) for size in sizes},
    "c8": "complex64", "c16": "complex128", "b1": "bool",
}  # fmt: skip
#: What a dtype that JSON has nothing for is called by.
_PICKLED = "pickle"
#: Units that xarray has, with their CF names.
_UNITS = {"ns": "nanoseconds", "us": "microseconds", "ms": "milliseconds", "s": "seconds"}


@dataclass(frozen=True, slots=True)
class Stored:
    """How a dtype is stored."""

    #: Zarr's name of the type, or name and configuration.
    data_type: Any
    fill_value: Any
    #: None where it means nothing.
    endian: Literal["little", "big"] | None
    encoding: Encoding | None = None
    #: What xarray decodes the integers with.
    attributes: Mapping[str, str] = field(default_factory=dict)


BYTES = Stored("uint8", 0, None, "raw")
TEXT = Stored("string", "", None, "text")


def to_json(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON: its text, or fields as NumPy describes them; None when that would not give it back."""
    if dtype.kind == "T":
        return "T" if dtype == np.dtype("T") else None
    try:
        described = np.lib.format.dtype_to_descr(dtype)
        return described if np.lib.format.descr_to_dtype(described) == dtype else None
    except (TypeError, ValueError, UserWarning):
        return None


def from_json(data: Any) -> np.dtype[Any]:
    """The dtype that `to_json` gave.

    Raises
    ------
    ValueError
        When it is none.
    """
    try:
        if data == "T":
            return cast("np.dtype[Any]", np.dtype("T"))
        return np.lib.format.descr_to_dtype(_tuples(data))
    except Exception as error:  # anything may have been made of it
        raise ValueError(f"{data!r} is no NumPy dtype: {error}") from None


def pickled(dtype: np.dtype[Any]) -> Any:
    """A dtype of any kind as JSON: one that `to_json` has nothing for as Dask serialises it."""
    told = to_json(dtype)
    if told is not None:
        return told
    from distributed.protocol.serialize import serialize_bytes

    return {_PICKLED: base64.b64encode(serialize_bytes(dtype, on_error="raise")).decode()}


def unpickled(data: Any, trusted: bool) -> np.dtype[Any]:
    """The dtype that `pickled` gave; that of Python values for one that nobody has written.

    Raises
    ------
    ValueError
        When it is none, or would have to be unpickled and is not trusted.
    """
    if data is None:
        return np.dtype(object)
    if not isinstance(data, dict):
        return from_json(data)
    if data.keys() != {_PICKLED}:
        raise ValueError(f"{data!r:.80} is no dtype")
    if not trusted:
        raise ValueError("a dtype that is pickled can run any code; open it with allow_pickle=True")
    from distributed.protocol.serialize import deserialize_bytes

    return np.dtype(deserialize_bytes(base64.b64decode(data[_PICKLED])))


def _tuples(data: Any) -> Any:
    """JSON has lists alone, and what Dask sends tuples; NumPy tells fields, titles and shapes, which are
    tuples, from lists of fields.
    """
    if not isinstance(data, list | tuple):
        return data
    return [
        tuple(
            tuple(part) if place == 2 or (place == 0 and not isinstance(part, str)) else _tuples(part)
            for place, part in enumerate(entry)
        )
        for entry in data
    ]


def stored(dtype: np.dtype[Any]) -> Stored:
    """How values of a dtype are stored when they are no masked array."""
    endian = _endian(dtype)
    if dtype.str[1:] in _CORE:
        fill = [0, 0] if dtype.kind == "c" else False if dtype.kind == "b" else 0
        return Stored(_CORE[dtype.str[1:]], fill, endian)
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] != "generic":
        return _time(dtype, endian)
    if dtype.kind == "S" and dtype.itemsize:
        return Stored(_sized("null_terminated_bytes", dtype), "", None)
    if dtype.kind == "U" and dtype.itemsize:
        return Stored(_sized("fixed_length_utf32", dtype), "", endian)
    if dtype.kind == "T":
        return TEXT
    if dtype.kind == "O":
        return Stored("string", "", None, "object")
    if (data_type := _structured(dtype)) is not None:
        # later releases of Zarr ask which end comes first in its fields; earlier ones take it for granted
        return Stored(data_type, base64.b64encode(bytes(dtype.itemsize)).decode(), "little")
    return BYTES


def _structured(dtype: np.dtype[Any]) -> dict[str, Any] | None:
    """Zarr's name of a type with fields; None when it has none that says all.

    Its bytes have one order for all fields, and no gaps.
    """
    if not dtype.fields:
        return None
    fields, end = [], 0
    for name in dtype.names or ():
        inner, offset, *title = dtype.fields[name]
        found = stored(inner)
        if title or offset != end or found.endian == "big" or found.encoding is not None:
            return None
        fields.append([name, found.data_type])
        end += inner.itemsize
    return {"name": "structured", "configuration": {"fields": fields}} if end == dtype.itemsize else None


def _sized(name: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    return {"name": name, "configuration": {"length_bytes": dtype.itemsize}}


def _time(dtype: np.dtype[Any], endian: Literal["little", "big"] | None) -> Stored:
    unit, step = np.datetime_data(dtype)
    plain = "datetime64" if dtype.kind == "M" else "timedelta64"
    if step == 1 and unit in _UNITS and (dtype.kind == "m" or unit == "ns"):
        attributes = (
            {"units": f"{_UNITS[unit]} since 1970-01-01", "calendar": "proleptic_gregorian"}
            if dtype.kind == "M"
            else {"units": _UNITS[unit], "dtype": f"timedelta64[{unit}]"}
        )
        return Stored("int64", 0, endian, "int64", attributes)
    data_type = {"name": f"numpy.{plain}", "configuration": {"unit": unit, "scale_factor": step}}
    return Stored(data_type, "NaT", endian)


def item_bytes(dtype: np.dtype[Any], encoding: str | None) -> int:
    """Bytes of the numbers that values of a dtype are made of; 1: they are no numbers."""
    if encoding not in (None, "int64") or dtype.kind not in "iufcmMU":
        return 1
    return 4 if dtype.kind == "U" else dtype.itemsize


def _endian(dtype: np.dtype[Any]) -> Literal["little", "big"] | None:
    if dtype.itemsize == 1 or dtype.byteorder == "|":
        return None
    return "big" if dtype.str[0] == ">" else "little"
