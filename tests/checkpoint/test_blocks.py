"""Blocks on disk: what does not fit the plan is refused, and what is written is written as it should be."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed.protocol.pickle import dumps, loads
from outside import PATHS
from saved import save

from dask_hpc.checkpoint import direct
from dask_hpc.checkpoint.blocks import check_written, stored_value, write_block, write_blocks
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.plan import Array, Written
from dask_hpc.checkpoint.store import Store
from dask_hpc.worker.saved import Copy

FIELD = da.zeros((5, 6), chunks=(2, 3), dtype="f8")


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    return Store(tmp_path).begin(describe(FIELD, "field")[0])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((3, 2)), "has the shape (3, 2); its collection says (2, 3)"),
        (np.zeros((2, 3), "f4"), "has the dtype float32; its collection says float64"),
        (np.zeros((2, 3), "i8"), "dtype=..."),
        (np.ma.zeros((2, 3)), "masked array"),
        ([[0.0] * 3] * 2, "is of type list; allowed: a NumPy array"),
        (3.5, "is of type float"),
        (None, "is of type NoneType"),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_refused(draft: Draft, value: Any, said: str) -> None:
    array = draft.plan.arrays[0]
    with pytest.raises(ValueError, match="block 1 of data") as raised:
        write_block(draft.path, array, 1, value)
    assert said in str(raised.value)
    # and keeps no other from being written
    answers = write_blocks(draft.path, array, [0, 1, 2], [np.ones((2, 3)), value, np.ones((2, 3))])
    assert answers[1] == f"ValueError: {raised.value}"
    for number in (0, 2):
        known = answers[number]
        assert isinstance(known, Written)
        assert (stored_value(draft.path, array, number, known)() == 1).all()


def test_there_is_no_block_beyond_the_last(draft: Draft) -> None:
    for number in (-1, 6):
        with pytest.raises(ValueError, match=r"no block .*; allowed: 0 to 5"):
            write_block(draft.path, draft.plan.arrays[0], number, np.zeros((2, 3)))


def test_what_is_not_of_its_plan_is_refused() -> None:
    shard, values = describe(FIELD, "field")[0].arrays[0], Array("v", "opaque", None, (1,), ((1,),))
    pack = "0" * 32
    check_written(shard, 0, Written(0, 48, 7))
    check_written(values, 0, Written(0, 5, 7, pack=pack))
    for array, written in (
        (shard, Written(1, 48, 7)),
        (shard, Written(0, 47, 7)),
        (shard, Written(0, 48, 7, digest="00")),
        (shard, Written(0, 48, 7, pack=pack)),
        (values, Written(0, 5, 7)),
        (values, Written(1, 5, 7, pack=pack)),
        (values, Written(0, 0, 0, pack=pack)),
        (values, Written(0, 5, 7, pack="x")),
    ):
        with pytest.raises(ValueError, match=r"block 0 of .* cannot be"):
            check_written(array, 0, written)


def test_either_order_of_bytes_is_taken(draft: Draft) -> None:
    value = np.arange(6, dtype=">f8").reshape(2, 3)
    known = write_block(draft.path, draft.plan.arrays[0], 1, value)
    found = stored_value(draft.path, draft.plan.arrays[0], 1, known)()
    assert found.dtype == "<f8"
    np.testing.assert_array_equal(found, value)


def test_a_block_may_be_written_again(draft: Draft) -> None:
    array = draft.plan.arrays[0]
    write_block(draft.path, array, 3, np.ones((2, 3)))
    known = write_block(draft.path, array, 3, np.full((2, 3), 2.0))
    assert (stored_value(draft.path, array, 3, known)() == 2).all()
    opaque, _ = describe(da.from_array(np.array([{}, "long" * 9000], object), chunks=1), "other")
    other = Store(Path(draft.path).parents[1]).begin(opaque)
    write_block(other.path, opaque.arrays[0], 0, np.array(["long" * 9000, 3], object)[:1])
    known = write_block(other.path, opaque.arrays[0], 0, np.array([{}], object))
    assert stored_value(other.path, opaque.arrays[0], 0, known, trusted=True)().tolist() == [{}]


def sizes() -> list[int]:
    """Bytes around those at which buffers and pieces end."""
    around = [4096, direct.BUFFER, 2 * direct.BUFFER]
    return sorted({1, *(size + more for size in around for more in (-9, -4, -3, -1, 0, 1, 5))})


def aligned(size: int, chance: np.random.Generator) -> np.ndarray:
    memory = np.empty(size + 4096, "u1")
    found = memory[-memory.ctypes.data % 4096 :][:size]
    found[:] = chance.integers(256, size=size, dtype="u1")
    return found


@pytest.mark.parametrize("size", sizes())
def test_blocks_of_any_size_come_back_from_memory_aligned_or_not(tmp_path: Path, size: int) -> None:
    plan, _ = describe(da.zeros(3 * size, chunks=size, dtype="u1"), "field")
    draft = Store(tmp_path).begin(plan)
    chance = np.random.default_rng(size)
    # one that is aligned, first behind a gap and then behind another one
    values = [chance.integers(256, size=size, dtype="u1"), *(aligned(size, chance) for _ in range(2))]
    # in any order
    answers = dict(zip((2, 0, 1), write_blocks(draft.path, plan.arrays[0], (2, 0, 1), values), strict=True))
    version = draft.finish({number: each for number, each in answers.items() if isinstance(each, Written)})
    for number, value in zip((2, 0, 1), values, strict=True):
        found = stored_value(version.path, plan.arrays[0], number, version.manifest().written(number))()
        assert (found == value).all()


@pytest.mark.parametrize("refused", ["when it is switched on", "at the first write"])
def test_a_file_system_without_direct_writing_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    field = da.arange(10**6, chunks=10**5)
    expected = Path(save(field, tmp_path / "direct").path, "data", "c", "0").read_bytes()
    switch, write, seen = fcntl.fcntl, os.pwrite, []

    def no_switch(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            seen.append("refused")
            raise OSError(errno.EINVAL, "no such flag")
        return switch(descriptor, command, flags)

    def no_write(descriptor: int, content: Any, offset: int) -> int:
        if switch(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            seen.append("refused")
            raise OSError(errno.EINVAL, "not aligned enough")
        return write(descriptor, content, offset)

    if refused == "at the first write":
        monkeypatch.setattr(os, "pwrite", no_write)
    else:
        monkeypatch.setattr(fcntl, "fcntl", no_switch)
    assert Path(save(field, tmp_path / "other").path, "data", "c", "0").read_bytes() == expected
    assert seen
    assert not direct.taken_by(str(tmp_path))
    monkeypatch.undo()
    try:
        os.close(os.open(tmp_path / "flag", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
        takes = True
    except OSError:
        takes = False
    assert direct.taken_by(str(tmp_path)) == takes
    assert not list(tmp_path.glob(".probe*"))


def test_short_writes_go_on_where_they_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    field = da.arange(10**5, chunks=10**4)
    expected = Path(save(field, tmp_path / "whole").path, "data", "c", "0").read_bytes()
    write, append = os.pwrite, os.write
    # past the page cache it is whole blocks of the disk; the index goes through it
    monkeypatch.setattr(os, "pwrite", lambda d, content, offset: write(d, content[:8192], offset))
    monkeypatch.setattr(os, "write", lambda d, content: append(d, content[:7]))
    version = save(field, tmp_path / "short")
    monkeypatch.undo()
    assert Path(version.path, "data", "c", "0").read_bytes() == expected
    assert (zarr.open_group(version.path)["data"][:] == field.compute()).all()


def test_many_small_blocks_are_made_durable_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = describe(da.zeros(100 * 1000, chunks=1000), "field")
    draft = Store(tmp_path).begin(plan)
    calls: list[str] = []
    for name in ("pwrite", "fdatasync"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, call=call, name=name: (calls.append(name), call(*a))[1])
    write_blocks(draft.path, plan.arrays[0], range(100), [np.zeros(1000)] * 100)
    assert calls == ["pwrite", "fdatasync"]


FORKED = """
import os
from dask_hpc.checkpoint import direct
mine = direct._buffer()
mine[0] = 1
child = os.fork()
if child == 0:
    direct._buffer()[0] = 2
    os._exit(0)
os.waitpid(child, 0)
print(mine[0])
"""


def test_a_forked_process_has_a_buffer_of_its_own() -> None:
    # else each writes what the other has put there, with its own checksum
    environment = dict(os.environ, PYTHONPATH=PATHS)
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "1\n"


def test_a_task_that_reads_a_block_is_as_small_as_that_however_many_there_are() -> None:
    for chunks in (
        ((1,) * 30_000,),
        ((4,) * 9_999 + (3,), (5,) * 100),
        (tuple(range(50)), (-1,) * 7, (), (0, 0), (2,)),
    ):
        array = Array("v", "opaque", None, tuple(map(sum, chunks)), chunks, encoding="text", sealed="0a")
        told = dumps(Copy("/store/v/000001", array, 5, Written(0, 8, 1)))
        assert loads(told).array == array
        assert loads(dumps(loads(told))).array.chunks == chunks
        assert len(told) < 700
