"""The state of a program as one labelled object, and blocks back from it."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import dask_hpc
from dask_hpc.checkpoint.blocks import write_blocks
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.store import Store
from dask_hpc.program import outlines
from dask_hpc_policies.layout import LayoutError, Part


def _parts(block, dim, lengths):
    stops = np.cumsum(lengths)
    return [block.isel({dim: slice(stop - n, stop)}) for stop, n in zip(stops, lengths, strict=True)]


def _rich():
    y = xr.date_range("2026-01-01", periods=7)
    return xr.Dataset(
        {
            "u": (("y", "x"), np.arange(21.0).reshape(7, 3), {"units": "m/s"}),
            "w": (("t", "y"), np.arange(14).reshape(2, 7).astype("i2")),
            "level": ((), 4.5),
            "names": (("x",), ["a", "b", "c"]),
            "when": (("y",), y.values + np.timedelta64(1, "h")),
        },
        {"y": y, "lat": (("y", "x"), np.ones((7, 3), "f4")), "run": 3},
        {"title": "rich"},
    )


@pytest.mark.parametrize("lengths", [[7], [3, 3, 1], [1, 2, 4]])
@pytest.mark.parametrize(
    "state",
    [
        _rich(),
        _rich()["u"],
        _rich()["u"].rename(None),
        _rich()["lat"].drop_vars("y"),
        xr.Dataset({"u": ("y", np.arange(7))}),
    ],
    ids=["dataset", "array", "unnamed", "coordinate", "bare"],
)
def test_what_blocks_make_up_and_what_is_read_back_is_the_state(tmp_path, state, lengths):
    blocks = _parts(state, "y", lengths)
    made, places = outlines.whole([outlines.outline(block, "y") for block in blocks], "y", 7)
    arrays = {name: [outlines.values(blocks[i], field) for i, field in of] for name, of in places.items()}
    plan, keys = describe(made, "state")
    draft = Store(tmp_path).begin(plan)
    written, at = {}, 0
    for array in plan.arrays:
        numbers = range(array.count)
        given = [arrays[keys[at + n][0]][sum(keys[at + n][1:])] for n in numbers]
        for n, one in zip(numbers, write_blocks(draft.path, array, list(numbers), given), strict=True):
            assert not isinstance(one, str), one
            written[at + n] = one
        at += array.count
    path = draft.finish(written).path
    opened = dask_hpc.open_checkpoint(path).compute(scheduler="synchronous")
    assert opened.identical(state)
    for start_, stop in ((0, 7), (2, 5), (6, 7)):
        block = outlines.read(path, "y", Part("n", start_, stop))
        assert block.identical(state.isel(y=slice(start_, stop)))
    with pytest.raises(LayoutError, match="block of 1 indices"):
        outlines.read(path, "y", Part("n", 6, 8))
