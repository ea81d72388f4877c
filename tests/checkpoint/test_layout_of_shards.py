"""Where blocks lie: they never overlap, are aligned, and the index says so as Zarr reads it."""

from __future__ import annotations

import tempfile
from math import prod
from pathlib import Path

import dask.array as da
import numpy as np
import zarr
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from saved import save

from dask_hpc.checkpoint import layout
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.plan import Array

LENGTHS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5).map(tuple), max_size=4).map(tuple)


@given(chunks=LENGTHS)
def test_blocks_are_numbered_in_c_order(chunks: tuple[tuple[int, ...], ...]) -> None:
    array = Array("a", "apart", "<f8", tuple(map(sum, chunks)), chunks)
    shape = tuple(map(len, chunks))
    assert array.count == prod(shape)
    for number, index in enumerate(np.ndindex(shape)):
        assert array.block_index(number) == index
        expected = tuple(lengths[place] for lengths, place in zip(chunks, index, strict=True))
        assert array.block_shape(number) == expected
        assert array.nbytes(number) == 8 * prod(expected)


@given(chunks=LENGTHS)
def test_regular_are_chunks_that_zarr_can_have(chunks: tuple[tuple[int, ...], ...]) -> None:
    whole = layout.chunk_shape(chunks)
    # what a grid of such chunks cuts a length into
    grid = tuple(
        tuple(min(size, sum(lengths) - at) for at in range(0, sum(lengths), size)) or (0,)
        for lengths, size in zip(chunks, whole, strict=True)
    )
    assert layout.is_regular(chunks) == (grid == chunks)


@example(count=2, size=4096)
@given(count=st.integers(1, 200), size=st.integers(1, 20_000))
def test_slots_are_aligned_and_hold_chunk_and_checksum(count: int, size: int) -> None:
    slot = layout.slot_bytes(size)
    assert slot % 4096 == 0
    assert size + 4 <= slot < size + 4 + 4096
    raw = layout.index(slot, [size] * count)
    assert len(raw) == layout.index_bytes(count)
    assert layout.shard_bytes(count, slot) == count * slot + len(raw)
    entries = np.frombuffer(raw[:-4], "<u8").reshape(count, 2)
    ends = entries.sum(axis=1)
    assert (entries[1:, 0] >= ends[:-1]).all()
    assert ends[-1] <= count * slot


@examples(25)
@given(data=st.data())
def test_any_regular_array_comes_back_and_zarr_reads_it(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    chunks = tuple(data.draw(st.integers(1, max(1, length))) for length in shape)
    values = np.arange(prod(shape), dtype=data.draw(st.sampled_from(["u1", "<i4", ">f8"]))).reshape(shape)
    with tempfile.TemporaryDirectory() as folder:
        version = save(da.from_array(values, chunks=chunks), Path(folder))
        assert version.manifest().plan.arrays[0].kind == "shard"
        np.testing.assert_array_equal(open_checkpoint(version.path).compute(scheduler="sync"), values)
        np.testing.assert_array_equal(zarr.open(f"{version.path}/data")[...], values)
