"""Every dtype comes back as it was: dtype, values, shape; and plain tools read what has regular chunks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr
from dtypes import CHANCE, FIELDS, ORDERED, OTHERS, TEXTS, TIMES, WORDS, numbers
from saved import save

from dask_hpc.checkpoint.dtypes import unpickled
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert found.dtype.isnative == expected.dtype.isnative
    assert found.shape == expected.shape
    assert found.flags.writeable
    if found.dtype.kind in "VT":
        # of fields with a shape each value is an array
        assert str(found.tolist()) == str(expected.tolist())
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("chunks", [4, ((5, 20, 10),)], ids=["regular", "ragged"])
@pytest.mark.parametrize("dtype", [*ORDERED, *TIMES, *TEXTS, *FIELDS, *OTHERS, "T"], ids=str)
def test_a_dask_array_of_any_dtype_comes_back(dtype: Any, chunks: Any, tmp_path: Path) -> None:
    values = numbers(dtype)
    version = save(da.from_array(values, chunks=chunks), tmp_path)
    found = open_checkpoint(version.path)
    assert found.chunks == da.core.normalize_chunks(chunks, values.shape)
    assert found.dtype == values.dtype
    same(found.compute(scheduler="sync"), values)
    assert verify(version) == []


def test_text_with_gaps_comes_back_in_an_array_and_in_a_variable(tmp_path: Path) -> None:
    values = np.array(["abc", None, "d"], np.dtypes.StringDType(na_object=None))
    array = da.from_array(values, chunks=2)
    found = open_checkpoint(save(array, tmp_path).path, allow_pickle=True)
    variable = open_checkpoint(save(xr.DataArray(array, name="t"), tmp_path, "v").path, allow_pickle=True)
    for each in (found, variable.data):
        assert each.dtype == each.compute(scheduler="sync").dtype == values.dtype
        assert each.compute(scheduler="sync").tolist() == ["abc", None, "d"]


def test_records_with_python_values_among_their_fields_come_back(tmp_path: Path) -> None:
    values = np.array([(1, "a"), (2, None), (3, {})], [("n", "i4"), ("o", "O")])
    path = save(da.from_array(values, chunks=2), tmp_path).path
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        open_checkpoint(path)
    found = open_checkpoint(path, allow_pickle=True)
    assert found.dtype == values.dtype
    same(found.compute(scheduler="sync"), values)


def test_what_is_no_pickled_dtype_or_is_not_trusted_is_refused() -> None:
    for data, said in (({"other": ""}, "is no dtype"), ({"pickle": ""}, "allow_pickle=True")):
        with pytest.raises(ValueError, match=said):
            unpickled(data, trusted="other" in data)


@pytest.mark.parametrize("dtype", [*ORDERED, *TIMES, *TEXTS, *FIELDS, "T"], ids=str)
def test_plain_xarray_reads_the_same_values_and_dtype(dtype: Any, tmp_path: Path) -> None:
    values = numbers(dtype).reshape(5, 7)
    dataset = xr.Dataset({"t": (("y", "x"), da.from_array(values, chunks=(2, 3)))})
    path = save(dataset, tmp_path).path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = xr.open_zarr(path, chunks=None).t
    # which end comes first is no matter of Zarr's types
    assert found.dtype == (values.dtype if dtype == "T" else values.dtype.newbyteorder("="))
    np.testing.assert_array_equal(found.values, values)
    same(open_checkpoint(path).t.values, values)


@pytest.mark.parametrize("shape", [(35,), (5, 7), ()])
@pytest.mark.parametrize("services", ["plain", "compress"])
def test_plain_xarray_reads_an_array_without_labels(
    shape: tuple[int, ...], services: str, tmp_path: Path
) -> None:
    values = numbers("f4")[: np.prod(shape, dtype=int)].reshape(shape)
    path = save(da.from_array(values, chunks=3), tmp_path, services=services).path
    found = xr.open_zarr(path, chunks=None)
    assert found.data.dims == tuple(f"dim_{axis}" for axis in range(len(shape)))
    np.testing.assert_array_equal(found.data.values, values)
    back = open_checkpoint(path)
    assert isinstance(back, da.Array)
    same(back.compute(scheduler="sync"), values)


@pytest.mark.parametrize("dtype", ["M8[D]", "M8[25s]", "m8[25s]"])
def test_times_in_other_units_are_zarrs_own(dtype: str, tmp_path: Path) -> None:
    values = numbers(dtype)
    path = save(da.from_array(values, chunks=7), tmp_path).path
    found = zarr.open_array(f"{path}/data", mode="r")[:]
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("dtype", ORDERED)
def test_tensorstore_reads_the_same(dtype: str, tmp_path: Path) -> None:
    values = numbers(dtype).reshape(5, 7)
    path = save(da.from_array(values, chunks=(2, 3)), tmp_path).path
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/data"}}
    found = tensorstore.open(spec).result().read().result()
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((), ()),
        ((1,), 1),
        ((0,), 1),
        ((0, 4), (1, 2)),
        ((4, 0), (2, 1)),
        ((3, 4, 5, 6), (2, 4, 1, 5)),
        ((7,), ((3, 4),)),
        ((7,), ((3, 0, 4),)),
        ((7,), ((4, 3, 0),)),
        ((0, 0), ((0, 0), (0,))),
        ((5, 4), ((2, 3), (4,))),
    ],
)
@pytest.mark.parametrize("dtype", ["f8", "M8[ns]", "T", "O", "masked", "g"])
def test_any_shape_comes_back(dtype: str, shape: Any, chunks: Any, tmp_path: Path) -> None:
    count = int(np.prod(shape))
    if dtype in "TO":
        values = WORDS[CHANCE.integers(len(WORDS), size=count)].astype(dtype).reshape(shape)
    elif dtype == "masked":
        values = np.ma.MaskedArray(np.arange(count), np.arange(count) % 3 == 0, fill_value=-7).reshape(shape)
    else:
        values = numbers(dtype, count + 4)[:count].reshape(shape)
    array = da.from_array(values, chunks=chunks, asarray=False if dtype == "masked" else None)
    version = save(array, tmp_path)
    found = open_checkpoint(version.path)
    assert found.chunks == array.chunks
    same(np.asanyarray(found.compute(scheduler="sync")), values)
    assert verify(version) == []
    if dtype == "f8" and version.manifest().plan.arrays[0].kind == "shard":
        np.testing.assert_array_equal(da.from_zarr(f"{version.path}/data").compute(), values)


def test_masked_arrays_keep_mask_data_and_fill_value(tmp_path: Path) -> None:
    values = np.ma.MaskedArray([1.5, 2.5, np.nan, 4.5], [True, False, False, True], fill_value=-9.0)
    array = da.from_array(values, chunks=3, asarray=False)
    found = open_checkpoint(save(array, tmp_path).path)
    assert isinstance(found._meta, np.ma.MaskedArray)
    first = found.blocks[0].compute(scheduler="sync")
    np.testing.assert_array_equal(first.mask, values.mask[:3])
    np.testing.assert_array_equal(first.data, values.data[:3])
    assert first.fill_value == -9.0


def test_each_field_of_masked_records_keeps_its_mask(tmp_path: Path) -> None:
    rows, hidden = [(1, 2.0), (3, 4.0), (5, 6.0)], [(0, 1), (1, 0), (1, 1)]
    values = np.ma.array(rows, [("a", "i4"), ("b", "f8")], mask=hidden, fill_value=(-1, -2.0))
    version = save(da.from_array(values, chunks=2, asarray=False), tmp_path)
    found = open_checkpoint(version.path).compute(scheduler="sync")
    assert (found.mask.tolist(), found.data.tolist()) == (values.mask.tolist(), values.data.tolist())
    assert (found.dtype, found.fill_value.tolist()) == (values.dtype, (-1, -2.0))
    assert verify(version) == []


def test_objects_that_are_text_need_no_trust_and_others_do(tmp_path: Path) -> None:
    texts = np.array(["a", "ü", ""], object)
    same(open_checkpoint(save(da.from_array(texts, chunks=2), tmp_path, "texts").path).compute(), texts)
    mixed = np.array(["a", None, {"k": 1}, "only text here"], object)
    path = save(da.from_array(mixed, chunks=3), tmp_path, "mixed").path
    with pytest.raises(Exception, match="allow_pickle=True"):
        open_checkpoint(path).compute(scheduler="sync")
    assert open_checkpoint(path, allow_pickle=True).compute(scheduler="sync").tolist() == mixed.tolist()
    assert verify(Store(tmp_path).newest("mixed")) == []


def test_unknown_chunks_come_back(tmp_path: Path) -> None:
    array = da.arange(20, chunks=5)
    array = array[array % 3 == 0]
    path = save(array, tmp_path).path
    found = open_checkpoint(path)
    assert found.dtype == array.dtype
    assert found.compute(scheduler="sync").tolist() == list(range(0, 20, 3))


def test_arrays_in_any_order_in_memory_come_back_and_may_be_written_to(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(24.0).reshape(4, 6))[:, ::2]
    found = open_checkpoint(save(da.from_array(values, chunks=(3, 2)), tmp_path).path).compute()
    same(found, values.copy())
    found += 1


@pytest.mark.parametrize("chunks", [4, ((5, 20, 10),)], ids=["regular", "ragged"])
@pytest.mark.parametrize("dtype", ["b1", "f2", ">f8", "c16", ">m8[us]", "S10", ">U9", *FIELDS, *OTHERS, "T"])
def test_a_compressed_array_of_any_dtype_comes_back(dtype: Any, chunks: Any, tmp_path: Path) -> None:
    values = numbers(dtype)
    version = save(da.from_array(values, chunks=chunks), tmp_path, services="compress")
    same(open_checkpoint(version.path).compute(scheduler="sync"), values)
    assert verify(version) == []


def test_plain_xarray_and_tensorstore_read_compressed_arrays_of_every_dtype(tmp_path: Path) -> None:
    dtypes = [*ORDERED, *TIMES, *TEXTS, *FIELDS, "T"]
    values = {f"v{place}": numbers(dtype).reshape(5, 7) for place, dtype in enumerate(dtypes)}
    blocks = {name: (("y", "x"), da.from_array(each, chunks=(2, 3))) for name, each in values.items()}
    path = save(xr.Dataset(blocks, {"y": np.arange(5.0)}), tmp_path, services="compress").path
    found = xr.open_zarr(path, chunks=None)
    for name, each in values.items():
        np.testing.assert_array_equal(found[name].values, each)
        assert '"blosc"' in Path(path, name, "zarr.json").read_text()
    for name in list(values)[: len(ORDERED)]:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/{name}"}}
        np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), values[name])
