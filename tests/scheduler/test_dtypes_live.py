"""Every dtype, ragged, without dimensions and empty, with all coordinates: identical on 1, 3, 8 workers."""

from __future__ import annotations

from functools import cache

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dtypes import FIELDS, ORDERED, OTHERS, TEXTS, TIMES, numbers
from helpers import live, without_validation
from losses import kill

import dask_hpc

RAGGED = (1, 4, 2)
MASKED = np.ma.MaskedArray(np.arange(12.0), np.arange(12) % 3 == 0, fill_value=-7.0)


@cache
def content() -> xr.Dataset:
    """A variable of each dtype in regular chunks, one in ragged ones; coordinates of every kind."""
    # xarray has no times in other units
    others = [dtype for dtype in OTHERS if np.dtype(dtype).kind not in "mM"]
    dtypes = [*ORDERED, *TIMES, *TEXTS, *FIELDS, *others, "T"]
    every = {f"v{place}": numbers(dtype).reshape(5, 7) for place, dtype in enumerate(dtypes)}
    return xr.Dataset(
        {
            **{name: (("y", "x"), da.from_array(each, chunks=(3, 4))) for name, each in every.items()},
            **{
                f"r{name}": ("x", da.from_array(each[0], chunks=((1, 4, 2),))) for name, each in every.items()
            },
            "one": ((), da.asarray(2.5)),
            "nothing": (("y", "none"), da.zeros((5, 0), chunks=(2, 0))),
        },
        {
            "y": np.arange(5.0),
            "x": np.arange("2026-01-01", "2026-01-08", dtype="M8[D]").astype("M8[ns]"),
            "where": (("y", "x"), da.ones((5, 7), chunks=(5, 2)), {"units": "m"}),
            "station": ("y", np.array(list("abcde"))),
            "began": np.datetime64("2026-02-02T02:02:02.5", "ns"),
            "took": np.timedelta64(5, "ns"),
        },
        {"title": "ä", "numbers": [1, 2]},
    )


def assert_identical(found, masked):
    expected = content().compute(scheduler="sync")
    xr.testing.assert_identical(found, expected)
    # plain Dask gives some blocks in the byte order of this machine; test_dtype_zoo looks at that
    for name, each in expected.variables.items():
        assert np.can_cast(found[name].dtype, each.dtype, "equiv"), name
    np.testing.assert_array_equal(masked.mask, MASKED.mask)
    np.testing.assert_array_equal(masked.data, MASKED.data)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with a version of each, written by two workers; one is lost then, and all is read back."""
    folder = tmp_path_factory.mktemp("store")

    @live(workers=2)
    async def written(c, s, a, b):
        without_validation(s, [a, b])  # of hundreds of blocks
        rt = await dask_hpc.install(c)
        collections = {"field": content(), "masked": da.from_array(MASKED, chunks=5, asarray=False)}
        kept = c.persist(list(collections.values()))
        for name, each in zip(collections, kept, strict=True):
            await rt.checkpoint(each, name, store=folder, levels=("L1", "L3"))
        await kill(s, [a])
        # the memory of its host comes first
        assert_identical(*[await c.compute(each) for each in kept])

    written()
    return folder


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_every_dtype_is_restored_on_any_number_of_workers(workers, store):
    @live(workers=workers)
    async def restored(c, s, *there):
        without_validation(s, there)
        back = [await dask_hpc.restore(name, c, store=store) for name in ("field", "masked")]
        for name, each in content().variables.items():
            assert back[0][name].chunks == each.chunks, name
        assert_identical(*[await c.compute(each) for each in back])

    restored()
