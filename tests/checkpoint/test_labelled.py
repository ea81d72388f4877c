"""Labelled data comes back identical: dimensions, coordinates, attributes, names and indexes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import cftime
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from saved import save

from dask_hpc.checkpoint import labelled
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointValueError

DAYS = pd.date_range("2000-01-01", periods=6, freq="36h")


def rich() -> xr.Dataset:
    """Coordinates of every kind, attributes of every type, some variables in memory."""
    field = da.arange(60.0, chunks=60).reshape(6, 10).rechunk((4, 3))
    return xr.Dataset(
        {
            "temperature": (("time", "x"), field, {"units": "K", "valid": [0.0, 400.0], "flag": np.int8(3)}),
            "when": (("time",), da.from_array(np.array(DAYS), chunks=4)),
            "took": (("time",), da.from_array(np.arange(6).astype("m8[ns]"), chunks=4)),
            "good": (("time", "x"), field > 20),
            "mean": ((), da.asarray(2.5)),
            "in_memory": (("x",), np.arange(10, dtype=">f4")),
            "nothing": (("time", "none"), da.zeros((6, 0), chunks=(4, 0))),
        },
        coords={
            "time": DAYS,
            "x": np.linspace(0, 1, 10),
            "lat": (("time", "x"), field * 2, {"long_name": "latitude"}),
            "station": ("x", np.array(list("abcdefghij"), object)),
            "code": ("x", np.array(list("abcdefghij"))),
            "run": 7,
            "began": np.datetime64("2020-02-02T02:02:02.5", "ns"),
            "days": ("time", DAYS.to_numpy().astype("M8[s]")),
            "lead": ("x", np.arange(10).astype("m8[s]")),
        },
        attrs={"title": "ä", "numbers": [1, 2], "nested": {"a": None}, "share": 0.5, "yes": True},
    )


def identical(found: xr.Dataset | xr.DataArray, expected: Any) -> None:
    found, expected = found.compute(scheduler="sync"), expected.compute(scheduler="sync")
    xr.testing.assert_identical(found, expected)
    assert list(found.coords) == list(expected.coords)
    assert set(found.xindexes) == set(expected.xindexes)
    for name in [*expected.coords, *getattr(expected, "data_vars", ())]:
        assert found[name].dtype == expected[name].dtype, name


def test_a_dataset_comes_back_identical(tmp_path: Path) -> None:
    version = save(rich(), tmp_path)
    identical(open_checkpoint(version.path), rich())
    assert verify(version) == []
    assert open_checkpoint(version.path).temperature.chunks == rich().temperature.chunks


def test_plain_xarray_opens_the_same_without_a_warning(tmp_path: Path) -> None:
    path = save(rich(), tmp_path).path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = xr.open_zarr(path, chunks=None).compute()
    expected = rich().compute()
    # Zarr's readers have one type for text of any length
    found["station"] = found.station.astype(object)
    xr.testing.assert_identical(found, expected)
    for name in set(expected.variables) - {"in_memory", "station"}:
        assert found[name].dtype == expected[name].dtype, name


@pytest.mark.parametrize("name", ["temperature", None, "x"])
def test_a_data_array_comes_back_with_its_name(name: str | None, tmp_path: Path) -> None:
    array = rich().temperature.rename(name)
    identical(open_checkpoint(save(array, tmp_path).path), array)


def test_a_data_array_called_as_its_dimension_comes_back_without_a_coordinate(tmp_path: Path) -> None:
    array = xr.DataArray(da.ones((4, 2), chunks=2), dims=("x", "y"), name="x")
    identical(open_checkpoint(save(array, tmp_path).path), array)


def test_indexes_come_back_as_they_were(tmp_path: Path) -> None:
    field = xr.DataArray(da.arange(6, chunks=3), dims="p")
    plain = field.to_dataset(name="f").assign_coords(p=list("abcdef"), q=("p", np.arange(6)))
    levels = pd.MultiIndex.from_product([["a", "b"], [1, 2, 3]], names=["letter", "number"])
    several = field.to_dataset(name="f").assign_coords(xr.Coordinates.from_pandas_multiindex(levels, "p"))
    several["p"].attrs["long_name"], several["number"].attrs["units"] = "profile", "km"
    one = plain.drop_vars("q").rename(p="letter").stack(p=["letter"])
    for number, dataset in enumerate((plain, plain.drop_indexes("p"), plain.set_xindex("q"), one, several)):
        found = open_checkpoint(save(dataset, tmp_path, f"d{number}").path)
        identical(found, dataset)
        assert {k: type(v) for k, v in found.xindexes.items()} == {
            k: type(v) for k, v in dataset.xindexes.items()
        }
    assert found.indexes["p"].equals(levels)


def test_coordinates_without_a_value_come_back(tmp_path: Path) -> None:
    texts = [np.array([], kind) for kind in (object, "T", "U3")]
    coords = {f"c{number}": ("none", text) for number, text in enumerate([*texts, DAYS[:0]])}
    field = da.zeros((3, 0), chunks=(2, 0))
    dataset = xr.Dataset({"a": (("x", "none"), field)}, {"none": texts[0], **coords})
    identical(open_checkpoint(save(dataset, tmp_path).path), dataset)


def test_times_of_other_calendars_come_back_and_plain_xarray_has_them_too(tmp_path: Path) -> None:
    days = xr.date_range("0850-02-27T01:02:03.000004", periods=6, calendar="360_day", use_cftime=True)
    field = xr.DataArray(da.arange(6, chunks=3), {"time": days, "began": days[2]}, "time", "field")
    field["began"].attrs["units"] = "of the user"
    dataset = field.to_dataset().assign(end=(("y", "time"), np.array([days, days])))
    path = save(dataset, tmp_path).path
    identical(found := open_checkpoint(path), dataset)
    assert type(found.indexes["time"]) is xr.CFTimeIndex
    xr.testing.assert_equal(xr.open_zarr(path), dataset)


def test_attributes_that_have_a_meaning_for_cf_are_only_attributes(tmp_path: Path) -> None:
    attrs = {
        "units": "days since 2000-01-01", "calendar": "noleap", "scale_factor": 2.0, "_FillValue": 3,
        "coordinates": "y", "not_a_number": float("nan"),
    }  # fmt: skip
    dataset = xr.Dataset(
        {"v": ("x", da.arange(5, chunks=2), attrs)}, {"y": ("x", range(5))}, {"coordinates": "z"}
    )
    found = open_checkpoint(save(dataset, tmp_path).path)
    identical(found.drop_attrs(), dataset.drop_attrs())
    assert str(found.v.attrs) == str(attrs)
    assert found.attrs == {"coordinates": "z"}


def test_a_coordinate_with_a_space_in_its_name_makes_none_of_other_variables(tmp_path: Path) -> None:
    one = ("x", da.arange(3))
    dataset = xr.Dataset({"a": one, "b": one, "x": ("x", [1, 2, 3])}, {"a b": one, "c": one})
    path = save(dataset, tmp_path).path
    identical(open_checkpoint(path), dataset)
    # stock xarray takes it for data, also of what it has written itself
    assert set(xr.open_zarr(path).coords) == {"x", "c"}


def test_plain_xarray_takes_a_fill_value_among_the_attributes_for_one(tmp_path: Path) -> None:
    for dtype in ("f4", "i2", ">f8"):
        array = da.from_array(np.array([1, 2, 3], dtype), chunks=2)
        dataset = xr.Dataset({"v": ("x", array, {"_FillValue": np.dtype(dtype).type(2)})})
        path = save(dataset, tmp_path, dtype.strip(">")).path
        assert xr.open_zarr(path, chunks=None).v.isnull().values.tolist() == [False, True, False]
        identical(open_checkpoint(path), dataset)


def test_plain_xarray_opens_a_dataset_whatever_type_a_fill_value_among_the_attributes_has(
    tmp_path: Path,
) -> None:
    told = {
        "f8": (2, [False, True, False]), "i4": (2.0, [False, True, False]), "u2": (0.5, [False] * 3),
        "c16": (2, [False] * 3), "M8[ns]": (np.nan, [False] * 3), "m8[D]": (2, [False] * 3),
        "U1": (1.0, [False] * 3), "?": (1, [False] * 3),
    }  # fmt: skip
    for number, (dtype, (fill, missing)) in enumerate(told.items()):
        values = np.array([1, 2, 3]).astype(dtype)
        for which, each in enumerate((values, da.from_array(values, chunks=2))):
            dataset = xr.Dataset({"v": ("x", each, {"_FillValue": fill}), "w": ("x", da.ones(3))})
            path = save(dataset, tmp_path, f"{number}-{which}").path
            assert xr.open_zarr(path, chunks=None).v.isnull().values.tolist() == missing, dtype
            assert str(open_checkpoint(path).v.attrs) == str(dataset.v.attrs)


def missing_level() -> xr.Dataset:
    """An index of whole numbers with a gap, of which xarray itself makes a number."""
    levels = pd.MultiIndex.from_arrays([[1, 1, 2], [0, 1, None]], names=["u", "v"])
    coordinates = xr.Coordinates.from_pandas_multiindex(levels, "x")
    return xr.Dataset({"a": ("x", da.arange(3))}, coordinates)


def test_what_is_too_large_for_the_scheduler_is_refused_before_it_is_read_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled, "MOST_IN_MEMORY", 1000)
    both = xr.Dataset({"large": ("x", np.ones(200)), "text": ("y", np.array(["a"] * 150, object))})
    both.to_zarr(tmp_path, consolidated=False, zarr_format=3)
    found = xr.open_zarr(tmp_path, chunks=None, consolidated=False).assign(a=("x", da.ones(200)))
    with pytest.raises(CheckpointValueError, match=r"^1600 bytes of this Dataset .*chunk\(\)"):
        describe(found, "field")
    assert not found.large.variable._in_memory
    # a text takes four bytes beside its own, which no dtype says
    plan, _ = describe(found.drop_vars("large"), "field")
    assert sum(len(content) for path, content in plan.files.items() if "/c/" in path) == 4 + 150 * 5 + 4


def over_two_coordinates() -> xr.Dataset:
    """An index that pandas has nothing like."""
    places = {name: (("y", "x"), np.arange(4.0).reshape(2, 2)) for name in ("lat", "lon")}
    dataset = xr.Dataset({"a": (("y", "x"), da.ones((2, 2)))}, places)
    return dataset.set_xindex(("lat", "lon"), xr.indexes.NDPointIndex)


def along_a_range() -> xr.Dataset:
    """An index of which pandas has none, though it gives one: its slices are of the nearest labels."""
    index = xr.indexes.RangeIndex.arange(0.0, 1.0, 0.25, dim="x")
    return xr.Dataset({"a": ("x", da.arange(4))}, xr.Coordinates.from_xindex(index))


def with_times(*times: cftime.datetime) -> xr.Dataset:
    """A coordinate of times of any calendar."""
    return xr.Dataset({"a": ("x", da.arange(len(times)))}, {"time": ("x", np.array(times, object))})


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (xr.Dataset({"a": ("x", np.arange(3))}), "chunk()"),
        (xr.Dataset({"a/b": ("x", da.arange(3))}), "rename"),
        (xr.Dataset({"..": ("x", da.arange(3))}), "rename"),
        (xr.Dataset({3: ("x", da.arange(3))}), "rename"),
        (xr.Dataset({"manifest.json": ("x", da.arange(3))}), "rename"),
        (xr.Dataset({"zarr.json": ("x", da.arange(3))}), "rename"),
        (xr.Dataset({".manifest.json": ("x", da.arange(3))}), "rename"),
        (xr.Dataset({"a": ("x", da.arange(3), {"k": object()})}), "attribute 'k' of a"),
        (xr.Dataset({"a": ("x", da.arange(3))}, attrs={"k": b"x"}), "attribute 'k' of the dataset"),
        (xr.Dataset({"a": ("x", da.arange(3), {"k": {1: 2}})}), "is of type dict with the key 1, which JSON"),
        (xr.Dataset({"a": ("x", da.arange(3), {1: 2})}), "attribute 1 of a is named by no text"),
        (
            xr.Dataset({"a": ("x", da.arange(3), {"k": np.datetime64(1, "ns")})}),
            "of type datetime64[ns], which",
        ),
        (
            xr.Dataset({"a": ("x", da.arange(3), {"k": np.ones(2, "m8[ns]")})}),
            "of type timedelta64[ns], which",
        ),
        (xr.Dataset({"a": ("x", da.arange(3), {"k": np.ones(2, "g")})}), "of type float128, which JSON"),
        (missing_level(), "the level 'v' of the index 'x' lacks values"),
        (over_two_coordinates(), "index of type NDPointIndex; allowed"),
        (along_a_range(), "index of type RangeIndex; allowed"),
        (xr.Dataset({"a": ((0,), da.arange(3))}), "0 is a dimension of the variable 'a'; allowed: text."),
        (xr.Dataset({"a": ("\udc80", da.arange(3))}), "is a dimension of the variable 'a'; allowed: text."),
        (xr.Dataset({"a": ("x", da.arange(3), {"k": {"\udc80": 2}})}), "'k' of a is text with half of a"),
        (xr.Dataset({"a": ("x", da.arange(3), {"\udc80": 2})}), "\\udc80' of a is text with half of a"),
        (xr.DataArray(da.arange(3), dims="x", name=("a", 1)), "rename"),
        (xr.Dataset({"a": ("x", da.arange(3)), "o": ("x", [1, None, "a"])}), "'o' is in memory"),
        (
            with_times(cftime.datetime(1, 1, 1, calendar="noleap"), cftime.datetime(1, 1, 1)),
            "'time' is in memory and holds Python objects",
        ),
        (
            with_times(cftime.datetime(-5, 1, 1, calendar="proleptic_gregorian", has_year_zero=False)),
            "'time' is in memory and holds Python objects",
        ),
        (
            xr.Dataset({"a": ("x", da.arange(3)), "c": ("x", pd.Categorical(["a", "b", "a"]))}),
            "dtype category, which Zarr does not have; convert it with astype(str) or the like",
        ),
        (xr.Dataset({"a": ("x", da.arange(3)), "g": ("x", np.zeros(3, "g"))}), "'g' is in memory"),
    ],
)
def test_what_cannot_be_stored_is_named_with_what_to_do(dataset: xr.Dataset, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        describe(dataset, "field")
    assert len(str(raised.value)) < 400
