"""Encrypted versions: with the key they are as others are; without it nobody reads or forges them."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from saved import save, save_values, write_key

import dask_hpc
from dask_hpc.checkpoint import sealing
from dask_hpc.checkpoint.export import export
from dask_hpc.checkpoint.manifest import FILE
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.plan import Array, Plan
from dask_hpc.checkpoint.services import served
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError

BOTH = ("encrypt", "compress+encrypt")
#: What other readers say.
UNREADABLE = r"dask_hpc.open_checkpoint opens it with the key"
#: In values, and nowhere else.
SECRET = b"\x53\x45\x43\x52\x45\x54\x21\x21"


@pytest.fixture
def key_file(tmp_path: Path) -> Iterator[str]:
    path = write_key(tmp_path / "key")
    with dask.config.set({"hpc.checkpoint.key-file": path}):
        yield path


def content() -> xr.Dataset:
    """Every kind of array, each with the secret in it."""
    secret = np.frombuffer(SECRET * 12, "<i8")
    text = np.array([SECRET.decode()] * 12)
    return xr.Dataset(
        {
            "shard": ("y", da.from_array(secret, chunks=5)),
            "ragged": ("y", da.from_array(secret, chunks=((1, 11),))),
            "text": ("y", da.from_array(text.astype("T"), chunks=5)),
            "raw": ("y", da.from_array(secret.view("V8"), chunks=5)),
            "any": ("y", da.from_array(np.array([{"it": each} for each in text], object), chunks=7)),
            "objects": ("y", da.from_array(text.astype(object), chunks=7)),
        },
        {"y": secret, "name": ((), SECRET.decode())},
    )


def opened(path: str, **options: Any) -> xr.Dataset:
    return open_checkpoint(path, allow_pickle=True, **options).compute(scheduler="sync")


@pytest.mark.parametrize("services", BOTH)
def test_every_kind_of_array_comes_back_and_nothing_of_it_is_in_any_file(
    services: str, key_file: str, tmp_path: Path
) -> None:
    version = save(content(), tmp_path / "store", services=services)
    xr.testing.assert_identical(opened(version.path), content().compute(scheduler="sync"))
    assert verify(version) == []
    assert verify(version, key=sealing.read_key()) == []
    plain = save(content(), tmp_path / "plain")
    seen = {str(each.relative_to(plain.path)) for each in files(plain.path) if SECRET in each.read_bytes()}
    assert len(seen) >= 6
    for path in files(version.path):
        assert SECRET not in path.read_bytes(), path
    key = Path(key_file).read_text().strip()
    assert not any(key.encode() in path.read_bytes() for path in files(version.path))


def files(folder: str) -> list[Path]:
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


@pytest.mark.parametrize("services", BOTH)
def test_plain_tools_say_that_they_cannot_read_it_and_show_nothing(
    services: str, key_file: str, tmp_path: Path
) -> None:
    for obj in (content()[["shard"]], content()[["ragged"]], content()):
        path = save(obj, tmp_path / "store", services=services).path
        with pytest.raises(Exception, match=UNREADABLE):
            xr.open_zarr(path)
        with pytest.raises(Exception, match=UNREADABLE):
            zarr.open_group(path)
    for inner in ("shard", "text", "y", "ragged/0"):
        with pytest.raises(Exception, match=UNREADABLE):
            zarr.open_array(f"{path}/{inner}")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/shard"}}
    with pytest.raises(ValueError, match=UNREADABLE):
        tensorstore.open(spec).result()


def test_without_the_key_or_with_another_nothing_is_opened_and_the_message_says_what_to_do(
    key_file: str, tmp_path: Path
) -> None:
    version = save(content(), tmp_path / "store", services="encrypt")
    other = write_key(tmp_path / "other")
    with dask.config.set({"hpc.checkpoint.key-file": None}):
        with pytest.raises(CheckpointError, match=r"no key is named: give key_file=\.\.\., or set hpc"):
            opened(version.path)
        with pytest.raises(CheckpointError, match="the key is another one"):
            opened(version.path, key_file=other)
        xr.testing.assert_identical(opened(version.path, key_file=key_file), content().compute())
        told = [problem.path for problem in verify(version, key=sealing.read_key(other))]
        assert told[:1] == [FILE]
        assert {"y/c/0", "name/c", "shard/c/0", "any/0/0"} <= set(told)  # coordinates, too
        # what can be checked without it is
        assert verify(version) == []


def test_a_flipped_byte_in_any_file_is_noticed(key_file: str, tmp_path: Path) -> None:
    chance = random.Random(9)
    version = save(content(), tmp_path / "store", services="compress+encrypt")
    for path in files(version.path):
        raw = path.read_bytes()
        for place in (chance.randrange(len(raw)), len(raw) - 1):
            changed = bytearray(raw)
            changed[place] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            assert verify(version, key=sealing.read_key()), (path, place)
            with suppress(CheckpointError):
                xr.testing.assert_identical(opened(version.path), content().compute(scheduler="sync"))
        path.write_bytes(raw)


def resigned(path: Path, change: Any) -> None:
    """Change a manifest as one can who has no key: with the right digest."""
    from dask_hpc.checkpoint import manifest

    found = json.loads(path.read_text())
    change(found["content"])
    found["blake2b"] = manifest._digest(manifest._text(found["content"]))
    path.write_text(json.dumps(found))


def test_blocks_that_were_exchanged_with_a_manifest_that_fits_are_noticed(
    key_file: str, tmp_path: Path
) -> None:
    """Whoever can write to the store, and does not know the key, makes no version of their own."""
    array = da.from_array(np.arange(1024), chunks=512)
    version = save(array, tmp_path / "store", services="encrypt")
    key = sealing.read_key()

    def exchange(content: Any) -> None:
        first, second = content["blocks"]
        content["blocks"] = [[first[0], *second[1:]], [second[0], *first[1:]]]

    path = Path(version.path, "data/c/0")
    raw = path.read_bytes()
    slot = 8192
    path.write_bytes(raw[slot : 2 * slot] + raw[:slot] + raw[2 * slot :])
    resigned(Path(version.path, FILE), exchange)
    with pytest.raises(CheckpointError, match="somebody else has changed it"):
        open_checkpoint(version.path)
    told = [f"{problem.path}: {problem.text}" for problem in verify(version, key=key)]
    assert sum("cannot be decrypted" in each for each in told) == 2
    assert verify(version) == []


def test_a_block_of_another_version_or_name_is_noticed(key_file: str, tmp_path: Path) -> None:
    array, store = da.from_array(np.arange(600), chunks=600), tmp_path / "store"
    first, second = (save(array, store, services="encrypt") for _ in range(2))
    other = save(array, store, "other", services="encrypt")
    for source in (first, other):
        shutil.copy(f"{source.path}/data/c/0", f"{second.path}/data/c/0")
        block = source.manifest().blocks[0]
        resigned(Path(second.path, FILE), lambda content, block=block: content.update(blocks=[list(block)]))
        told = [problem.text for problem in verify(second, key=sealing.read_key())]
        assert any("cannot be decrypted" in text for text in told)


@pytest.mark.parametrize("services", BOTH)
def test_an_export_with_the_key_is_plain_zarr(services: str, key_file: str, tmp_path: Path) -> None:
    nothing = {"nothing": (("y", "none"), da.zeros((12, 0), chunks=(5, 0)))}
    save(content(), tmp_path / "store", services=services)
    version = save(content().assign(nothing), tmp_path / "store", services=services)
    assert version.version == 2
    export(version, tmp_path / "plain", key=sealing.read_key())
    export(version, tmp_path / "as-it-is")
    found = xr.open_zarr(tmp_path / "plain").compute()
    expected = content().assign(nothing).compute()
    for name in ("shard", "text", "y", "name", "nothing"):
        np.testing.assert_array_equal(found[name].values, expected[name].values)
    with dask.config.set({"hpc.checkpoint.key-file": None}):
        xr.testing.assert_identical(opened(str(tmp_path / "plain")), expected)
        with pytest.raises(CheckpointError, match="no key is named"):
            opened(str(tmp_path / "as-it-is"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["as-it-is", "key", "plain", "store"]


def test_values_of_futures_come_back_and_are_exported(key_file: str, tmp_path: Path) -> None:
    values = [{"a": SECRET}, SECRET, np.arange(2000), b"x" * 5000]
    path = save_values(Store(tmp_path / "store"), values, "compress+encrypt")
    assert not any(SECRET in each.read_bytes() for each in files(path))
    found = dask.compute(open_checkpoint(path, allow_pickle=True), scheduler="sync")[0]
    np.testing.assert_equal(found, values)
    export(Store(tmp_path / "store").newest("values"), tmp_path / "plain", key=sealing.read_key())
    with dask.config.set({"hpc.checkpoint.key-file": None}):
        found = dask.compute(open_checkpoint(tmp_path / "plain", allow_pickle=True), scheduler="sync")[0]
        np.testing.assert_equal(found, values)


def test_a_version_shares_no_files_with_one_that_another_key_opens(key_file: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = save_values(store, [SECRET], "encrypt")
    (pack,) = store.newest("values").manifest().packs.values()
    array = Array("data", "opaque", None, (1,), ((1,),))
    plan = Plan("values", "futures", (array,), {}, {})
    draft = store.begin(served(plan, "encrypt"))
    draft.link([(path, "data", pack)])
    draft.abandon()
    write_key(Path(key_file))
    draft = store.begin(served(plan, "encrypt"))
    with pytest.raises(CheckpointError, match="the key is another one"):
        draft.link([(path, "data", pack)])
    draft.abandon()


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (None, 0o640, "nobody else can read: chmod 600"),
        (None, 0o602, "nobody else can read: chmod 600"),
        ("secret words", 0o600, "holds no key of 64 hexadecimal digits"),
        ("ab" * 31, 0o600, "holds no key of 64 hexadecimal digits"),
        ("ab" * 33, 0o600, "holds no key of 64 hexadecimal digits"),
        ("", 0o600, "holds no key of 64 hexadecimal digits"),
    ],
)
def test_a_key_that_others_can_read_or_that_is_none_is_refused_and_not_shown(
    text: str | None, mode: int, said: str, tmp_path: Path
) -> None:
    path = write_key(tmp_path / "key", text)
    os.chmod(path, mode)
    with pytest.raises(CheckpointError, match=said) as raised:
        sealing.read_key(path)
    assert not text or text not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_key_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, said in ((tmp_path / "none", "No such file"), (tmp_path / "pipe", "must be a file of yours")):
        with pytest.raises(CheckpointError, match=said):
            sealing.read_key(path)


@given(content=st.binary(max_size=100), place=st.text(max_size=10), other=st.text(max_size=10))
def test_what_is_sealed_is_given_back_for_its_place_alone(content: bytes, place: str, other: str) -> None:
    key = bytes(range(32))
    made = sealing.seal([content[:3], content[3:]], place, key)
    assert len(made) == len(content) + sealing.ADDED
    assert sealing.unseal("it", made, place, key).tobytes() == content
    # never the same twice
    assert sealing.seal([content], place, key) != made
    if other != place:
        with pytest.raises(ValueError, match="it cannot be decrypted"):
            sealing.unseal("it", made, other, key)
    with pytest.raises(ValueError, match="it cannot be decrypted"):
        sealing.unseal("it", made[:-1], place, key)


def test_a_session_goes_on_from_an_encrypted_version(key_file: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with dask_hpc.CheckpointSession("heat", store=store, services="compress+encrypt") as session:
        session.add("field", np.arange(100))
        path = session.commit(step=3).path
    with pytest.raises(Exception, match=UNREADABLE):
        xr.open_zarr(path)
    with dask_hpc.CheckpointSession("heat", store=store) as session:
        field = session.add("field", np.zeros(100, int))
        session.restart_all()
        assert session.values == {"step": 3}
        np.testing.assert_array_equal(field, np.arange(100))
    write_key(Path(key_file))
    with dask_hpc.CheckpointSession("heat", store=store) as session:
        session.add("field", np.zeros(100, int))
        with pytest.raises(CheckpointError, match="the key is another one"):
            session.restart_all()


def test_several_processes_encrypt_one_version(key_file: str, tmp_path: Path) -> None:
    store = tmp_path / "store"

    def part(rank: int) -> str:
        options: dict[str, Any] = {"store": store, "rank": rank, "size": 2, "services": "encrypt"}
        with dask_hpc.CheckpointSession("heat", **options) as session:
            session.add("field", np.arange(100) + 100 * rank, start=100 * rank)
            return str(session.commit().path)

    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(part, range(2)))
    assert len(paths) == 1
    np.testing.assert_array_equal(open_checkpoint(paths.pop()).field.values, np.arange(200))


def test_commands_take_the_key(key_file: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    save(da.arange(10), store, services="encrypt")
    with dask.config.set({"hpc.checkpoint.key-file": None}):
        where = ["--store", str(store)]
        without = run("checkpoint", "verify", "field", *where)
        assert "it is encrypted, and stays so; its checksums alone are compared" in without.stderr
        run("checkpoint", "verify", "field", *where, "--key-file", key_file)
        run("checkpoint", "export", "field", str(tmp_path / "plain"), *where, "--key-file", key_file)
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "plain" / "data")[:], np.arange(10))
