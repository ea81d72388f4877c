"""Compression on the way to the store: all that holds of a version holds, and plain tools read it."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from saved import save, save_values, written

from dask_hpc.checkpoint import services
from dask_hpc.checkpoint.blocks import stored_value, write_blocks
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.export import export
from dask_hpc.checkpoint.inside import copy_inside
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.plan import Array, Plan, Written
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.values import form
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError, CheckpointValueError

#: All that zeros of 2 MB in blocks may take on disk.
SMALL = 100_000
#: A compressed block of a pack.
IN_PACK = Written(0, 1, 0, pack="0" * 32 + "-c")


@examples(25)
@given(data=st.data())
def test_what_is_wrapped_is_unwrapped(data: st.DataObject) -> None:
    """Any bytes of any kind of block, compressible or not, in any parts."""
    kind, encoding, dtype = data.draw(
        st.sampled_from(
            [("opaque", None, None), ("shard", None, "<f8"), ("apart", "raw", "V8"), ("grid", "text", "T")]
        )
    )
    array = Array("a", kind, dtype, (6,), ((6,),), encoding, compressed=True)
    raw = data.draw(st.sampled_from([bytes(48), os.urandom(48), b"ab" * 24]))
    if dtype is None:
        raw = raw * data.draw(st.integers(1, 5))
    cut = data.draw(st.integers(0, len(raw)))
    parts = [memoryview(part) for part in (raw[:cut], raw[cut:]) if part]
    stored = b"".join(services.wrapped(array, parts, None))
    told = form(array, 0, IN_PACK if dtype is None else None)
    assert services.unwrapped(told, np.frombuffer(stored, np.uint8), None).tobytes() == raw


def test_python_values_come_back_and_a_later_version_links_them_whatever_its_services_are(
    tmp_path: Path,
) -> None:
    """Results of a job that were written before stay in the file that they are in."""
    values = [{"a": 1}, "text" * 2000, os.urandom(5000), np.zeros(30_000)]
    store = Store(tmp_path)
    for first, second in (("plain", "compress"), ("compress", "plain")):
        save_values(store, values, first)
        old = store.newest("values")
        plan = services.served(old.manifest().plan, "plain")
        array = Array("data", "opaque", None, (5,), ((1,) * 5,))
        plan = services.served(Plan("values", "futures", (array,), {}, {}), second)
        draft = store.begin(plan)
        blocks = {number: old.manifest().written(number) for number in range(4)}
        draft.link({(old.path, "data", blocks[0].pack)})
        blocks[4] = write_blocks(draft.path, plan.arrays[0], [4], ["new"])[0]
        version = draft.finish(blocks)
        found = dask.compute(open_checkpoint(version.path, allow_pickle=True), scheduler="sync")[0]
        np.testing.assert_equal(found, [*values, "new"])
        read = stored_value(version.path, plan.arrays[0], 1, blocks[1], trusted=True)()
        assert read == values[1]
        assert verify(version) == []


def test_a_compressed_masked_array_keeps_mask_data_and_fill_value(tmp_path: Path) -> None:
    values = np.ma.MaskedArray(np.arange(300), np.arange(300) % 3 == 0, fill_value=-7)
    version = save(da.from_array(values, chunks=130, asarray=False), tmp_path, services="compress")
    found = open_checkpoint(version.path).blocks[0].compute(scheduler="sync")
    np.testing.assert_array_equal(found.mask, values.mask[:130])
    np.testing.assert_array_equal(found.data, values.data[:130])
    assert found.fill_value == -7
    assert verify(version) == []


def disk_bytes(folder: str) -> int:
    return sum(path.lstat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())


def test_what_compresses_takes_less_space_also_in_a_copy_and_noise_hardly_more(
    tmp_path: Path,
) -> None:
    zeros = save(da.zeros(250_000, chunks=25_000), tmp_path, "zeros", "compress")
    assert zeros.bytes < SMALL
    assert disk_bytes(zeros.path) < SMALL
    export(zeros, tmp_path / "copy")
    assert disk_bytes(str(tmp_path / "copy")) < SMALL
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "copy" / "data")[:], 0)
    noise = np.random.default_rng(1).integers(0, 2**63, 25_000)
    for name, each in (("ints", noise), ("values", noise.view("S8"))):
        plain = save(da.from_array(each, chunks=5000), tmp_path, f"{name}-plain")
        version = save(da.from_array(each, chunks=5000), tmp_path, name, "compress")
        assert version.bytes <= plain.bytes + 5 * 4096 + 500
        np.testing.assert_array_equal(open_checkpoint(version.path).compute(), each)


@pytest.mark.parametrize("holes", ["", "begin", "middle", "end", "all"])
def test_a_copy_has_the_same_bytes_wherever_holes_are(holes: str, tmp_path: Path) -> None:
    size = 3 << 20
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    with open(tmp_path / "from" / "file", "wb") as file:
        places = {"": [0, 1, 2], "begin": [2], "middle": [0, 2], "end": [0], "all": []}[holes]
        for place in places:
            file.seek(place << 20)
            file.write(os.urandom(1 << 20))
        file.truncate(size)
    copy_inside(str(tmp_path / "from"), str(tmp_path / "to"), "file")
    assert (tmp_path / "to" / "file").read_bytes() == (tmp_path / "from" / "file").read_bytes()


def test_compressed_bytes_that_lie_of_their_length_are_refused_and_not_believed() -> None:
    array = Array("a", "shard", "<f8", (600,), ((600,),), compressed=True)
    raw = b"".join(services.wrapped(array, [memoryview(bytes(4800))], None))
    for at, length in ((4, 4799), (4, 2**32 - 1), (4, 0), (12, len(raw) + 1), (12, 2**32 - 1), (12, 4)):
        lying = np.frombuffer(raw[:at] + struct.pack("<I", length) + raw[at + 4 :], np.uint8)
        with pytest.raises(ValueError, match="cannot be decompressed"):
            services.unwrapped(form(array, 0), lying, None)
    for cut in (0, 1, 15, 16, len(raw) - 1):
        told = form(array, 0)
        with pytest.raises(ValueError, match="cannot be decompressed"):
            services.unwrapped(told, np.frombuffer(raw[:cut], np.uint8), None)
    masked, fewer = (
        Array("a", "apart", "<f8", (count,), ((count,),), "masked", compressed=True) for count in (600, 599)
    )
    told = form(masked, 0)
    made = services.wrapped(masked, [memoryview(bytes(told.nbytes))], None)
    packed = np.frombuffer(b"".join(made), np.uint8)
    assert services.unwrapped(told, packed, None).size == told.nbytes
    with pytest.raises(ValueError, match="cannot be decompressed"):
        services.unwrapped(form(fewer, 0), packed, None)
    opaque = form(Array("a", "opaque", None, (1,), ((1,),)), 0, IN_PACK)
    with pytest.raises(ValueError, match="nothing compresses so"):
        services.unwrapped(opaque, np.frombuffer(b"values\7", np.uint8), None)


def test_a_block_that_is_longer_than_its_place_is_not_taken(tmp_path: Path) -> None:
    """Two writers never have the same bytes of a shard."""
    plan = services.served(describe(da.zeros(1000, chunks=500), "field")[0], "compress")
    draft = Store(tmp_path).begin(plan)
    found = written(draft, [[np.zeros(500), np.ones(500)]])
    for change in ({"nbytes": 4017}, {"nbytes": 0}, {"offset": 4096}):
        wrong = {**found, 0: replace(found[0], **change)}
        with pytest.raises(CheckpointError, match="not of this plan"):
            draft.finish(wrong)
    assert draft.finish(found).complete


def test_an_array_whose_chunks_are_too_large_to_compress_stays_as_it_is() -> None:
    plan = describe(da.zeros((2**29, 2), chunks=(2**28, 2)), "field")[0]
    assert services.served(plan, "compress") == plan


def test_services_that_there_are_not_are_refused() -> None:
    with pytest.raises(CheckpointValueError, match=r"services is 'zip'; allowed: plain, compress"):
        services.checked_services("zip")
