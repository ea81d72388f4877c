"""Who was asked to write, has not answered, and writes when nobody expects it: no version is damaged."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from helpers import live, until
from saved import computed, write_key, written

import dask_hpc
from dask_hpc.checkpoint import direct, metadata
from dask_hpc.checkpoint.blocks import write_blocks
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.services import served
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import writing

SERVICES = ("plain", "compress", "encrypt")


@pytest.fixture
def key_file(tmp_path: Path) -> Iterator[None]:
    with dask.config.set({"hpc.checkpoint.key-file": write_key(tmp_path / "key")}):
        yield


def content() -> xr.Dataset:
    """Every kind of array but packs, which nobody writes who was not heard."""
    numbers = np.arange(12)
    words = numbers.astype("T")
    return xr.Dataset(
        {
            "shard": ("y", da.from_array(numbers, chunks=5)),
            "ragged": ("y", da.from_array(numbers, chunks=((1, 11),))),
            "text": ("y", da.from_array(words, chunks=5)),
            "any": ("y", da.from_array(np.array([{"it": each} for each in words], object), chunks=7)),
        }
    )


def begun(folder: Path, services: str) -> tuple[Draft, list[list[Any]]]:
    """A draft, and what is to be written."""
    plan, keys = describe(content(), "field")
    draft = Store(folder).begin(served(plan, services))
    return draft, computed(plan, keys, content())


@pytest.mark.parametrize("services", SERVICES)
def test_who_has_files_and_folders_open_changes_nothing_once_it_is_whole(
    services: str, key_file: None, tmp_path: Path
) -> None:
    draft, values = begun(tmp_path, services)
    assert {array.kind for array in draft.plan.arrays} == {"shard", "grid", "apart"}
    found, before = written(draft, values), draft.path
    for array in (each for each in draft.plan.arrays if each.kind == "apart"):
        # somebody writes it again at this moment
        Path(before, metadata.block_folder(array, 0), metadata.DOCUMENT).write_text("{")
    with ExitStack() as opened:
        files, folders = [], []
        for path, _, names in os.walk(before):
            folders.append((os.open(path, os.O_RDONLY), names))
            opened.callback(os.close, folders[-1][0])
            for file in (os.path.join(path, name) for name in names):
                if os.path.relpath(file, before) not in draft.plan.files:  # those no worker writes
                    files.append(os.open(file, os.O_RDWR))
                    opened.callback(os.close, files[-1])
        version = draft.finish(found, unheard=range(draft.plan.count))
        for file in files:
            os.pwrite(file, b"late" * 10_000, 0)
        for folder, names in folders:
            for name in names:
                with pytest.raises(FileNotFoundError):
                    os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=folder)
        # nor does it find what it was told to write to
        for array, blocks in zip(draft.plan.arrays, values, strict=True):
            answers = write_blocks(before, array, range(array.count), blocks)
            assert all("No such file" in str(answer) for answer in answers)
    assert verify(version) == []
    again = open_checkpoint(version.path, allow_pickle=True).compute(scheduler="sync")
    xr.testing.assert_identical(again, content().compute(scheduler="sync"))
    assert [each.name for each in (tmp_path / "field").iterdir()] == ["000001"]


@pytest.mark.parametrize("name", ["shard", "ragged", "text"])
def test_what_was_written_again_meanwhile_is_no_version(name: str, key_file: None, tmp_path: Path) -> None:
    draft, values = begun(tmp_path, "encrypt")
    found = written(draft, values)
    # the same values: encrypted they are other bytes
    place = next(i for i, array in enumerate(draft.plan.arrays) if array.path == name)
    assert write_blocks(draft.path, draft.plan.arrays[place], [0], values[place][:1]) != [found[0]]
    with pytest.raises(CheckpointError, match=f"block 0 of {name} was written by a worker that had not"):
        draft.finish(found, unheard=range(draft.plan.count))
    draft.abandon()
    assert list((tmp_path / "field").iterdir()) == []


def test_what_nobody_writes_late_is_not_copied(tmp_path: Path) -> None:
    draft, values = begun(tmp_path, "plain")
    found, first = written(draft, values), 0
    inodes = {str(path.relative_to(draft.path)): path.stat().st_ino for path in Path(draft.path).rglob("*")}
    for array in draft.plan.arrays:
        if array.path == "text":
            break
        first += array.count
    version = draft.finish(found, unheard=[first])
    same = {path for path, inode in inodes.items() if (Path(version.path) / path).stat().st_ino == inode}
    assert {path.split("/")[0] for path in same} >= {"shard", "ragged", "any"}
    assert not [path for path in same if path.startswith("text/")]
    assert verify(version) == []


@live(workers=1)
async def test_a_call_that_hangs_longer_than_is_waited_for_damages_nothing(c, s, a, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_LEAST_S", 0.2)
    real, turn, first, going = direct.Writer._write, threading.Lock(), [], threading.Event()
    ended = threading.Event()

    def write(self: Any, *arguments: Any) -> None:
        with turn:
            first.append(threading.current_thread())
        if late := threading.current_thread() is first[0]:
            going.wait(30)
        real(self, *arguments)
        if late:
            ended.set()

    monkeypatch.setattr(direct.Writer, "_write", write)
    key_file = write_key(tmp_path / "key")
    try:
        with dask.config.set({"hpc.checkpoint.key-file": key_file}):
            rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path / "store"))
            [field] = c.persist([da.arange(80_000, chunks=40_000)])
            commit = await rt.checkpoint(field, "field", services="encrypt")
            going.set()
            await until(ended.is_set, "it has written")
            version = Store(tmp_path / "store").newest("field")
            assert (commit.version, verify(version)) == (1, [])
            back = await dask_hpc.restore("field", c)
            np.testing.assert_array_equal(await c.compute(back), np.arange(80_000))
    finally:
        going.set()
