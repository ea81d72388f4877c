"""Values of every dtype that a checkpoint may have."""

from __future__ import annotations

from typing import Any

import numpy as np

CHANCE = np.random.default_rng(7)
WORDS = np.array(["", "a", "bb", "cüc", "wörter", "漢字", "x" * 40, "e\u0301"])


def numbers(dtype: Any, count: int = 35) -> np.ndarray:
    """Values of any bits, but for floats that are not numbers."""
    dtype = np.dtype(dtype)
    if dtype.kind in "fc":
        found = (CHANCE.normal(size=count) * 100).astype(dtype)
        if dtype.kind == "c":
            found = found + (1j * CHANCE.normal(size=count)).astype(dtype)
        found[:4] = [0, np.inf, -np.inf, np.nan]
        return found.astype(dtype)
    if dtype.kind == "b":
        return CHANCE.random(count) < 0.5
    if dtype.kind in "mM":
        found = CHANCE.integers(-(2**40), 2**40, count).view(f"{dtype.kind}8[{np.datetime_data(dtype)[0]}]")
        found = found.astype(dtype)
        found[3] = "NaT"
        return found
    if dtype.kind in "SUT":
        words = WORDS if dtype.kind in "UT" else np.array(["", "a", "bb", "with\0in", "longer one"])
        return words[CHANCE.integers(len(words), size=count)].astype(dtype)
    return np.frombuffer(CHANCE.integers(64, size=count * dtype.itemsize, dtype="u1").tobytes(), dtype).copy()


SIMPLE = [
    "b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
]  # fmt: skip
ORDERED = [*SIMPLE, ">i2", ">u4", ">i8", ">f2", ">f4", ">f8", ">c16"]
TIMES = [f"{order}{kind}8[{unit}]" for order in "<>" for kind in "mM" for unit in ("ns", "us", "ms", "s")]
TEXTS = ["S10", "U9", ">U9"]
FIELDS = [
    [("a", "<i4"), ("b", "<f8"), ("c", "S3")],
    [("a", "u1"), ("inner", [("x", "<f4"), ("y", "<f4")])],
]
#: Zarr has no type for them, or not one that says all.
OTHERS = [
    [("a", "<i4"), ("b", ">f8")],
    [("a", "<i4", (2, 3)), ("b", "u1")],
    [(("title", "a"), "<f4"), ("b", "u1")],
    np.dtype({"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [0, 8], "itemsize": 24}),
    "V6", "g", "M8[D]", "m8[h]", "M8[25s]",
]  # fmt: skip
