"""A byte that changed in any file is noticed: never another value, always a clear error."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from saved import save, save_values, written

from dask_hpc.checkpoint.blocks import write_blocks
from dask_hpc.checkpoint.export import export
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.plan import Array, Plan
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.checkpoint.versions import Version
from dask_hpc.errors import CheckpointError

#: Flips in each file.
EACH = 8


def content() -> xr.Dataset:
    mixed = np.array([{"a": 1}, None, "text"], object)
    return xr.Dataset(
        {
            "shard": (("y", "x"), da.arange(40.0, chunks=40).reshape(5, 8).rechunk((3, 5)), {"units": "K"}),
            "grid": ("y", da.from_array(np.array(list("abcdé"), "T"), chunks=3)),
            "apart": ("y", da.arange(5, chunks=((1, 3, 1),))),
            "opaque": ("z", da.from_array(mixed, chunks=2)),
        },
        {"y": np.arange(5), "when": ("x", np.arange(8).astype("M8[s]"))},
    )


@pytest.fixture
def version(tmp_path: Path) -> Version:
    return save(content(), tmp_path)


def opened(path: str) -> xr.Dataset:
    # one read after the other, with nothing kept from before
    return open_checkpoint(path, allow_pickle=True).compute(scheduler="sync")


def noticed(path: str) -> bool:
    """Whether opening a version is an error, a clear one; if not, its values must be what was written."""
    try:
        found = opened(path)
    except CheckpointError as error:
        said = str(error)
    else:
        # what changed lies between blocks, or is looked at by other readers alone
        xr.testing.assert_identical(found, content().compute())
        return False
    assert path in said
    assert "restore another version" in said or "open it" in said or "is no version" in said
    return True


def test_a_flipped_byte_in_any_file_is_never_another_value(version: Version) -> None:
    chance = random.Random(5)
    expected = content().compute()
    found_by_opening = 0
    files = sorted(path for path in Path(version.path).rglob("*") if path.is_file())
    assert len(files) > 20
    for path in files:
        raw = path.read_bytes()
        places = {0, len(raw) // 2, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(EACH))}
        for place in places:
            changed = bytearray(raw)
            changed[place] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            problems = verify(version)
            assert problems, (path, place)
            assert all(len(problem.text) < 500 for problem in problems)
            found_by_opening += noticed(version.path)
        path.write_bytes(raw)
    assert found_by_opening > EACH * 10
    assert verify(version) == []
    xr.testing.assert_identical(opened(version.path), expected)


@pytest.mark.parametrize("left", [0, 1, 0.5, -1])
def test_a_file_that_was_cut_is_noticed(version: Version, left: float) -> None:
    for path in sorted(path for path in Path(version.path).rglob("*") if path.is_file()):
        raw = path.read_bytes()
        path.write_bytes(raw[: int(left * len(raw)) if left == 0.5 else int(left)])
        assert verify(version), path
        noticed(version.path)
        path.write_bytes(raw)


def test_what_follows_the_end_of_a_shard_is_noticed(version: Version) -> None:
    shard = Path(version.path, "shard", "c", "0", "0")
    raw = shard.read_bytes()
    shard.write_bytes(raw + b"\0")
    assert [problem.text for problem in verify(version)] == ["its index differs"]
    shard.write_bytes(raw)


def test_a_file_that_is_gone_is_noticed(version: Version) -> None:
    for path in sorted(path for path in Path(version.path).rglob("*") if path.is_file()):
        raw = path.read_bytes()
        path.unlink()
        assert verify(version), path
        if path.name != "zarr.json":
            with pytest.raises(CheckpointError, match=r"another version|is no version of a checkpoint"):
                opened(version.path)
        path.write_bytes(raw)


def test_blocks_of_another_version_are_noticed(tmp_path: Path) -> None:
    first = save(content(), tmp_path)
    second = save(content().map(lambda v: v + 1 if v.dtype.kind in "if" else v), tmp_path)
    shutil.copy(f"{first.path}/shard/c/0/0", f"{second.path}/shard/c/0/0")
    assert verify(second)
    with pytest.raises(CheckpointError, match="is not what was written"):
        opened(second.path)
    assert Store(tmp_path).newest("field").version == 2


def test_a_flipped_byte_in_a_pack_is_never_another_value(tmp_path: Path) -> None:
    chance = random.Random(6)
    values = [{"a": 1}, "text" * 2000, np.arange(3.0), np.arange(3000), None]
    path = save_values(Store(tmp_path), values)
    version = Store(tmp_path).find("values")
    assert verify(version) == []
    for file in [file for file in Path(path).rglob("*") if file.is_file()]:
        raw = file.read_bytes()
        for place in {0, len(raw) // 2, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(4 * EACH))}:
            changed = bytearray(raw)
            changed[place] ^= 1 << chance.randrange(8)
            file.write_bytes(changed)
            assert verify(version), (file, place)
            with suppress(CheckpointError):
                found = dask.compute(open_checkpoint(path, allow_pickle=True), scheduler="sync")[0]
                np.testing.assert_equal(found, values)
        # and one that was cut
        file.write_bytes(raw[:-1])
        assert verify(version), file
        file.write_bytes(raw)
    export(version, tmp_path / "copy")
    np.testing.assert_equal(dask.compute(open_checkpoint(tmp_path / "copy", allow_pickle=True))[0], values)


def test_all_blocks_are_counted_and_what_is_wrong_with_a_pack_is_told_once(tmp_path: Path) -> None:
    path = save_values(Store(tmp_path), [{"a": 1}, "text", None])
    version = Store(tmp_path).find("values")
    told: list[tuple[int, int]] = []
    assert verify(version, lambda *counts: told.append(counts)) == []
    assert told == [(1, 3), (2, 3), (3, 3)]
    (pack,) = [file for file in Path(path, "data").rglob("*") if file.is_file() and file.name != "zarr.json"]
    (document,) = [parent / "zarr.json" for parent in pack.parents if (parent / "zarr.json").exists()][:1]
    document.write_text("{}")
    assert [problem.path for problem in verify(version)] == [str(document.relative_to(path))]
    pack.unlink()
    os.mkfifo(pack)
    assert verify(version)[0].path == str(document.relative_to(path))  # nobody waits for who writes to it


def test_a_copy_has_the_blocks_of_all_arrays(tmp_path: Path) -> None:
    values = xr.Dataset({"none": ("x", da.zeros(0)), "some": ("y", da.arange(3.0))})
    export(save(values, tmp_path), tmp_path / "copy")
    xr.testing.assert_identical(opened(str(tmp_path / "copy")), values.compute())


def test_a_copy_takes_the_place_of_nothing(version: Version, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    # somebody else makes it meanwhile, and then it is there
    for show in (lambda *_: target.mkdir(exist_ok=True), None):
        with pytest.raises(CheckpointError, match="copy exists; give a path where nothing is"):
            export(version, target, show)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "field"]
        assert list(target.iterdir()) == []


def test_packs_whose_writing_nobody_heard_of_are_not_in_the_version(tmp_path: Path) -> None:
    plan = Plan("values", "futures", (Array("data", "opaque", None, (2,), ((1, 1),)),), {}, {})
    draft = Store(tmp_path).begin(plan)
    write_blocks(draft.path, plan.arrays[0], [0, 1], ["first", "first"])
    version = draft.finish(written(draft, [["second", "second"]]))
    assert len(list(Path(version.path, "data").iterdir())) == 1
    assert verify(version) == []
    assert dask.compute(open_checkpoint(version.path, allow_pickle=True))[0] == ["second", "second"]


def test_a_flipped_byte_of_what_is_compressed_is_noticed(tmp_path: Path) -> None:
    chance = random.Random(8)
    version = save(content(), tmp_path, services="compress")
    assert verify(version) == []
    for path in sorted(path for path in Path(version.path).rglob("*") if path.is_file()):
        raw = path.read_bytes()
        for place in {0, len(raw) // 2, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(2))}:
            changed = bytearray(raw)
            changed[place] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            assert verify(version), (path, place)
            noticed(version.path)
        path.write_bytes(raw)
