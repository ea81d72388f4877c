"""A manifest that was edited, cut or is absurd: one clear error, and nothing opened outside."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from saved import save, save_values
from unchanged import unchanged

from dask_hpc.checkpoint import manifest
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.checkpoint.versions import Version
from dask_hpc.errors import CheckpointError


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    dataset = xr.Dataset(
        {
            "a": (("y", "x"), da.arange(12, chunks=12).reshape(3, 4).rechunk((2, 3))),
            "o": ("y", da.from_array(np.array([1, "b", None], object), chunks=2)),
        },
        {"y": [1, 2, 3]},
    )
    return save(dataset, tmp_path_factory.mktemp("store"))


def write(path: Path, content: Any, change: Callable[[Any], Any]) -> None:
    """Write a manifest with a content that fits its digest."""
    content = change(content) or content
    text = json.dumps(content, separators=(",", ":")).encode()
    digest = blake2b(text, digest_size=32).hexdigest()
    path.write_text(json.dumps({"schema": manifest.SCHEMA, "blake2b": digest, "content": content}))


@pytest.fixture
def edited(version: Version) -> Any:
    """Writes a manifest with a content that fits its digest."""
    path = Path(version.path, manifest.FILE)
    raw = path.read_bytes()
    yield lambda change: write(path, json.loads(raw)["content"], change)
    path.write_bytes(raw)


def refused(version: Version) -> str:
    """The one clear error, whoever reads the version; the store stays as it is."""
    with unchanged(Path(version.path).parents[1]), pytest.raises(CheckpointError) as raised:
        open_checkpoint(version.path, allow_pickle=True).compute(scheduler="sync")
    said = str(raised.value)
    assert version.path in said
    assert "\n" not in said
    assert len(said) < 700
    assert any(word in said for word in ("restore another", "install", "give the folder", "export"))
    return said


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"schema": 1}',
        b"[" * 100_000,
        b"1" * 5000,
        b'{"a": 1' + b"}" * 9,
    ],
)
def test_what_is_no_manifest_is_refused(version: Version, edited: Any, content: bytes) -> None:
    Path(version.path, manifest.FILE).write_bytes(content)
    assert "is not a manifest as it was written" in refused(version)
    assert not [each.complete for each in Store(Path(version.path).parents[1]).versions() if each.complete]
    assert verify(version)


def test_an_edited_value_is_refused(version: Version, edited: Any) -> None:
    path = Path(version.path, manifest.FILE)
    text = path.read_text()
    path.write_text(text.replace('"<i8"', '"<f8"'))
    assert text != path.read_text()
    assert "changed after it was written" in refused(version)


def test_a_newer_layout_is_refused_with_what_to_install(version: Version, edited: Any) -> None:
    path = Path(version.path, manifest.FILE)
    path.write_text(path.read_text().replace('"schema": 3', '"schema": 99'))
    assert "99" in (said := refused(version))
    assert "install" in said


PATHS = ["../../secret", "/etc/passwd", "a/../../x", "", ".", "a//b", "a\0b", "..", "./a"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("place", ["array", "file", "variable"])
def test_no_path_leads_out(version: Version, edited: Any, path: str, place: str) -> None:
    def change(content: Any) -> None:
        if place == "array":
            content["plan"]["arrays"][0]["path"] = path
        elif place == "file":
            content["files"][path] = [3, 4]
        else:
            content["plan"]["extra"]["variables"][-1]["path"] = path

    edited(change)
    refused(version)


ABSURD = {
    "negative version": lambda c: c.update(version=-1),
    "other name": lambda c: c["plan"].update(name="../x"),
    "no arrays": lambda c: c["plan"].update(arrays=[]),
    "arrays are text": lambda c: c["plan"].update(arrays="abc"),
    "missing blocks": lambda c: c["blocks"].pop(),
    "huge offset": lambda c: c["blocks"][0].__setitem__(0, 2**62),
    "misplaced offset": lambda c: c["blocks"][1].__setitem__(0, 0),
    "negative length": lambda c: c["blocks"][0].__setitem__(1, -5),
    "huge length": lambda c: c["blocks"][0].__setitem__(1, 2**62),
    "no number": lambda c: c["blocks"][0].__setitem__(2, "x"),
    "huge shape": lambda c: c["plan"]["arrays"][0].update(shape=[2**60, 4]),
    "no chunks": lambda c: c["plan"]["arrays"][0].update(chunks=[[], []]),
    "negative chunks": lambda c: c["plan"]["arrays"][0].update(chunks=[[-3, 6], [4]]),
    "other dtype": lambda c: c["plan"]["arrays"][0].update(dtype="<f4"),
    "object dtype": lambda c: c["plan"]["arrays"][0].update(dtype="|O"),
    "no dtype": lambda c: c["plan"]["arrays"][0].update(dtype="quux"),
    "fields no dtype": lambda c: c["plan"]["arrays"][0].update(dtype=[["a", {"x": 1}]]),
    "objects in fields": lambda c: c["plan"]["arrays"][0].update(dtype=[["a", "|O"]]),
    "other encoding": lambda c: c["plan"]["arrays"][0].update(encoding="pickle"),
    "other kind": lambda c: c["plan"]["arrays"][0].update(kind="pickle"),
    "shard as opaque": lambda c: c["plan"]["arrays"][0].update(kind="opaque", dtype=None),
    "object of no kind": lambda c: c["plan"].update(kind="os.system"),
    "dataset as array": lambda c: c["plan"].update(kind="dask.array", arrays=[]),
    "no variables": lambda c: c["plan"].update(extra={}),
    "variables no dicts": lambda c: c["plan"]["extra"].update(variables=[1]),
    "wrong dims": lambda c: c["plan"]["extra"]["variables"][0].update(dims=["y", "x", "z"]),
    "digest of a shard": lambda c: c["digests"].update({"0": "00"}),
    "pack of a shard": lambda c: c["packs"].update({"0": "0" * 32}),
    "no digest": lambda c: c.update(digests={}),
    "other digest": lambda c: c["digests"].update(dict.fromkeys(c["digests"], "00")),
    "a field less": lambda c: c.pop("levels"),
    "content a list": lambda c: [c],
    "infinite time": lambda c: c.update(created_s=1e999),
    "memory of no shape": lambda c: c["plan"]["extra"]["variables"][-1].update(memory={"dtype": "<i8"}),
    "memory of objects": lambda c: c["plan"]["extra"]["variables"][-1]["memory"].update(dtype="|O"),
    "memory larger": lambda c: c["plan"]["extra"]["variables"][-1]["memory"].update(shape=[2**61]),
}


@pytest.mark.parametrize("what", ABSURD)
def test_an_absurd_manifest_that_fits_its_digest_is_refused(version: Version, edited: Any, what: str) -> None:
    edited(ABSURD[what])
    refused(version)


#: What other checks of who reads the version would refuse as well, and verify and export need not have.
MEANT = {
    "a block more": lambda c: c["blocks"].append([0, 0, 0]),
    "uneven chunks": lambda c: c["plan"]["arrays"][0].update(chunks=[[1, 2], [1, 3]]),
    "a masked shard": lambda c: c["plan"]["arrays"][0].update(encoding="masked"),
    "opaque and encoded": lambda c: c["plan"]["arrays"][0].update(kind="opaque", dtype=None, encoding="raw"),
    "a file of less than nothing": lambda c: c["files"].update({"zarr.json": [-1, 0]}),
    "no checksum of a file": lambda c: c["files"].update({"zarr.json": [3, 2**32]}),
}


@pytest.mark.parametrize("what", MEANT)
def test_what_no_writer_can_have_meant_is_no_manifest(version: Version, edited: Any, what: str) -> None:
    edited(MEANT[what])
    with pytest.raises(CheckpointError, match="is not a manifest as it was written"):
        version.manifest()


PACKS: dict[str, Callable[[Any], Any]] = {
    "elsewhere": lambda c: c.update(packs=dict.fromkeys(c["packs"], "../../other")),
    "not there": lambda c: c.update(packs=dict.fromkeys(c["packs"], "0" * 32)),
    "none": lambda c: c.update(packs={}),
    "of one less": lambda c: c["packs"].popitem() and None,
    "misplaced": lambda c: c["blocks"][1].__setitem__(0, 1),
    "the place of another": lambda c: c["blocks"][1].__setitem__(0, c["blocks"][0][0]),
    "empty": lambda c: c["blocks"][0].__setitem__(slice(1, 3), [0, 0]),
}


@pytest.mark.parametrize("what", PACKS)
def test_an_absurd_pack_is_refused(tmp_path: Path, what: str) -> None:
    path = save_values(Store(tmp_path), [{"a": 1}, "text"])
    file = Path(path, manifest.FILE)
    assert open_checkpoint(path, allow_pickle=True)[1].compute(scheduler="sync") == "text"
    write(file, json.loads(file.read_bytes())["content"], PACKS[what])
    with unchanged(tmp_path), pytest.raises(CheckpointError) as raised:
        dask.compute(open_checkpoint(path, allow_pickle=True), scheduler="sync")
    assert path in str(raised.value)
    assert verify(Store(tmp_path).find("values"))


def test_links_in_a_version_are_not_followed(version: Version, tmp_path: Path) -> None:
    for name in ("a/c/0/0", "a/zarr.json", "y/c/0", "a/c", "manifest.json"):
        path = Path(version.path, name)
        kept = tmp_path / name.replace("/", "-")
        os.rename(path, kept)
        path.symlink_to(kept)
        try:
            refused(version)
            assert verify(version)
        finally:
            path.unlink()
            os.rename(kept, path)
    assert verify(version) == []


def test_a_pipe_in_place_of_a_file_stops_nobody(version: Version, tmp_path: Path) -> None:
    for name in ("a/c/0/0", "a/zarr.json", "manifest.json"):
        path, kept = Path(version.path, name), tmp_path / "kept"
        os.rename(path, kept)
        os.mkfifo(path)
        try:
            refused(version)
        finally:
            path.unlink()
            os.rename(kept, path)


def test_a_version_that_was_moved_is_no_version_of_its_new_name(version: Version, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    os.symlink(version.path, tmp_path / "link")
    os.rename(version.path, tmp_path / "other" / "000001")
    try:
        with pytest.raises(CheckpointError, match="holds version 1 of 'field'"):
            Store(tmp_path).newest("other")
        assert open_checkpoint(tmp_path / "other" / "000001", allow_pickle=True).y.values.tolist() == [
            1,
            2,
            3,
        ]
    finally:
        os.rename(tmp_path / "other" / "000001", version.path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@examples(60)
@given(data=st.data())
def test_anything_in_place_of_anything_is_one_clear_error(version: Version, data: st.DataObject) -> None:
    raw = Path(version.path, manifest.FILE).read_bytes()
    content = json.loads(raw)["content"]
    at, holder = content, None
    # down to some place
    for _ in range(data.draw(st.integers(1, 6))):
        if not isinstance(at, (dict, list)) or not at:
            break
        holder, key = (
            at,
            data.draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at))))),
        )
        at = at[key]
    holder[key] = data.draw(JSON)
    text = json.dumps(content, separators=(",", ":")).encode()
    digest = blake2b(text, digest_size=32).hexdigest()
    try:
        Path(version.path, manifest.FILE).write_text(
            json.dumps({"schema": 1, "blake2b": digest, "content": content})
        )
        said = version.path
        try:
            open_checkpoint(version.path, allow_pickle=True).compute(scheduler="sync")
        except CheckpointError as error:
            said = str(error)
        assert version.path in said
        verify(version)
    finally:
        Path(version.path, manifest.FILE).write_bytes(raw)


@pytest.mark.parametrize("damaged", [(1, 2), (1, 2, 3)])
def test_nothing_is_collected_while_fewer_versions_are_whole_than_are_to_stay(tmp_path, damaged):
    for _ in range(3):
        path = save(da.zeros(4, chunks=2), tmp_path).path
    for number in damaged:
        Path(path).with_name(f"00000{number}").joinpath("manifest.json").write_text("{}")
    assert Store(tmp_path).collect(keep=2 if len(damaged) == 2 else 1) == []
