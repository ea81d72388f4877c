"""``dask hpc checkpoint``: versions listed, checked, copied and removed; one line for errors."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
import xarray as xr
from command_line import refused, run
from saved import save
from unchanged import unchanged

from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.store import Store
from dask_hpc.clock import local_time
from dask_hpc.worker.host_process import HostProcess

FIELD = xr.Dataset({"t": (("y", "x"), da.arange(20, chunks=20).reshape(4, 5).rechunk((2, 3)))})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    for _ in range(3):
        save(FIELD, folder)
    save(FIELD, folder, "other")
    return folder


def told(store: Path, *arguments: str, code: int = 0) -> Any:
    result = run("checkpoint", *arguments, "--store", str(store), "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_ls_lists_versions_with_the_promised_columns(store: Path) -> None:
    draft = Store(store).begin(describe(FIELD, "other")[0])
    rows = told(store, "ls")
    assert [(row["name"], row["version"], row["complete"]) for row in rows] == [
        ("field", 1, True), ("field", 2, True), ("field", 3, True), ("other", 1, True), ("other", 2, False),
    ]  # fmt: skip
    assert {tuple(row) for row in rows} == {
        ("name", "version", "complete", "path", "bytes", "created_s", "levels")
    }
    assert rows[0]["path"] == str(store / "field" / "000001")
    assert rows[0]["levels"] == ["L3"]
    assert rows[0]["bytes"] > 4 * 4096
    assert [row["version"] for row in told(store, "ls", "other")] == [1, 2]
    draft.abandon()
    text = run("checkpoint", "ls", "--store", str(store)).stdout
    assert text.splitlines()[0].split()[:3] == ["NAME", "VERSION", "COMPLETE"]
    assert len(text.splitlines()) == 5
    assert local_time(rows[0]["created_s"]) in text.splitlines()[1]


def test_the_store_may_come_from_the_settings(store: Path) -> None:
    with dask.config.set({"hpc.checkpoint.store": str(store)}):
        assert len(json.loads(run("checkpoint", "ls", "--json").stdout)) == 4
    with dask.config.set({"hpc.checkpoint.store": None}):
        refused(run("checkpoint", "ls"), 2, "--store DIR", "hpc.checkpoint.store")
    # what no cluster would take is no store here either
    for wrong in (5, "store"):
        with dask.config.set({"hpc.checkpoint.store": wrong}):
            refused(run("checkpoint", "ls"), 1, f"hpc.checkpoint.store is {wrong!r}", "an absolute path")
    with dask.config.set({"hpc.checkpoint.key-file": 5}):
        refused(run("checkpoint", "verify", "field", "--store", str(store)), 1, "key-file is 5")
    refused(run("checkpoint", "ls", "--store", str(store / "no")), 2, "is not a folder")


def test_a_store_and_a_copy_whose_paths_begin_with_a_tilde_are_in_that_home(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in (["ls"], ["export", "field", "~/copy"]):
        assert run("checkpoint", *command, "--store=~/store").exit_code == 0
    assert open_checkpoint(tmp_path / "copy").sizes == FIELD.sizes
    refused(run("checkpoint", "ls", "--store=~no-such-user/store"), 2, "~no-such-user/store", "no such user")


def test_verify_says_which_file_is_damaged_and_exits_with_1(store: Path) -> None:
    assert told(store, "verify", "field")["ok"]
    path = store / "field" / "000002" / "t" / "c" / "0" / "0"
    raw = bytearray(path.read_bytes())
    raw[4096] ^= 1
    path.write_bytes(raw)
    assert told(store, "verify", "field")["version"] == 3
    found = told(store, "verify", "field", "--version", "2", code=1)
    assert not found["ok"]
    assert [problem["path"] for problem in found["problems"]] == ["t/c/0/0"]
    result = run("checkpoint", "verify", "field", "--version", "2", "--store", str(store))
    assert result.exit_code == 1
    assert "t/c/0/0" in result.stdout
    # also one whose manifest nobody can read
    (store / "field" / "000003" / "manifest.json").write_text("{")
    assert not told(store, "verify", "field", code=1)["ok"]
    assert [row["complete"] for row in told(store, "ls", "field")] == [True, True, False]


def test_gc_keeps_the_newest_and_asks_before(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    would = told(store, "gc", "--dry-run")
    assert would == {"removed": [], "would_remove": [str(store / "field" / "000001")]}
    with unchanged(store):
        refused(run("checkpoint", "gc", "--store", str(store)), 2, "--yes")
    monkeypatch.setattr(sys.modules["dask_hpc.cli.checkpoint"], "can_ask", lambda: True)
    assert run("checkpoint", "gc", "--store", str(store)).exit_code == 1
    assert len(told(store, "ls")) == 4
    assert told(store, "gc", "--yes")["removed"] == [str(store / "field" / "000001")]
    assert [row["version"] for row in told(store, "ls", "field")] == [2, 3]
    assert told(store, "gc", "--keep", "1", "--yes")["removed"] == [str(store / "field" / "000002")]
    assert told(store, "gc", "--keep", "1", "--yes")["removed"] == []
    with unchanged(store):
        refused(run("checkpoint", "gc", "--keep", "0", "--store", str(store)), 2, "--keep")


def test_gc_without_a_store_removes_what_killed_managers_left_in_memory(tmp_path: Path) -> None:
    made, new = (HostProcess("manager", "nobody:runs", f"tcp://{tmp_path}:{port}") for port in (1, 2))
    made.stop()
    new.stop()
    # as long ago as it takes; the other one within hpc.checkpoint.linger
    os.utime(made.folder / "workers.lock", (0, 0))
    os.utime(new.folder / "workers.lock", (time.time() - 300, time.time() - 300))
    with dask.config.set({"hpc.checkpoint.store": None}):
        would = run("checkpoint", "gc", "--dry-run", "--json")
        assert str(made.folder) in json.loads(would.stdout)["would_remove"]
        assert "memory alone is looked at" in would.stderr
        refused(run("checkpoint", "gc"), 2, "left in memory would be removed", "--yes")
        assert made.folder.exists()
        done = run("checkpoint", "gc", "--yes", "--json")
        assert str(made.folder) in json.loads(done.stdout)["removed"]
        assert not made.folder.exists()
        assert new.folder.exists()
        # what is named and is none is still refused
        refused(run("checkpoint", "gc", "--store", str(tmp_path / "no")), 2, "is not a folder")
    os.remove(new.folder / "workers.lock")
    new.folder.rmdir()


def test_export_copies_what_plain_xarray_opens(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copies" / "mine"
    found = told(store, "export", "field", str(copy), "--version", "2")
    assert found["path"] == str(copy)
    xr.testing.assert_identical(xr.open_zarr(copy, chunks=None).load(), FIELD.compute())
    xr.testing.assert_identical(open_checkpoint(copy).compute(), FIELD.compute())
    assert [path.name for path in copy.parent.iterdir()] == ["mine"]
    refused(run("checkpoint", "export", "field", str(copy), "--store", str(store)), 1, "exists")


@pytest.mark.parametrize(
    "place", ["field/000009", "field/000003/copy", "link/000009", "other/000009", "other/copy", "new/000009"]
)
def test_a_copy_among_versions_is_refused(store: Path, place: str) -> None:
    (store / "link").symlink_to(store / "field")
    with unchanged(store):
        result = run("checkpoint", "export", "field", str(store / place), "--store", str(store))
    refused(result, 1, "would be taken for one of its versions", "give a path elsewhere")


def test_a_copy_may_be_in_the_folder_of_a_store_where_no_versions_are(store: Path) -> None:
    told(store, "export", "field", str(store / "copies" / "mine"))
    assert {row["name"] for row in told(store, "ls")} == {"field", "other"}


def test_export_of_a_damaged_version_leaves_nothing(store: Path, tmp_path: Path) -> None:
    path = store / "field" / "000003" / "t" / "c" / "0" / "0"
    raw = bytearray(path.read_bytes())
    raw[1] ^= 1
    path.write_bytes(raw)
    target = tmp_path / "copies" / "mine"
    with unchanged(store):
        result = run("checkpoint", "export", "field", str(target), "--store", str(store))
    refused(result, 1, "is damaged", "t/c/0/0")
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, last = os.open, str(store / "field" / "000003" / "t" / "c" / "0" / "0")

    def refuse(path: Any, *arguments: Any, **more: Any) -> int:
        descriptor = opened(path, *arguments, **more)
        if os.readlink(f"/proc/self/fd/{descriptor}") == last:
            os.close(descriptor)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return descriptor

    monkeypatch.setattr(os, "open", refuse)
    texts = [problem["text"] for problem in told(store, "verify", "field", code=1)["problems"]]
    assert "block 0: Permission denied" in texts
    assert not any("Errno" in text for text in texts)
    result = run("checkpoint", "export", "field", str(tmp_path / "copy"), "--store", str(store))
    refused(result, 1, f"Permission denied ({last})")


def test_status_sums_up_each_name(store: Path) -> None:
    draft = Store(store).begin(describe(FIELD, "other")[0])
    (store / "field" / "000003" / "manifest.json").write_text("{}")
    found = told(store, "status")
    draft.abandon()
    assert found["store"] == str(store)
    assert found["problem"] is None
    field, other = found["names"]
    assert (field["name"], field["versions"], field["newest"]) == ("field", 2, 2)
    assert (field["damaged"], field["unfinished"]) == (1, 0)
    assert field["bytes"] == 2 * told(store, "ls", "field")[0]["bytes"]
    assert (other["versions"], other["damaged"], other["unfinished"]) == (1, 0, 1)
    assert "field" in run("checkpoint", "status", "--store", str(store)).stdout


@pytest.mark.parametrize("command", [["ls", "../x"], ["verify", ".."], ["export", "a/b", "copy"]])
def test_a_name_that_could_be_a_path_is_refused(store: Path, command: list[str]) -> None:
    with unchanged(store):
        refused(run("checkpoint", *command, "--store", str(store)), 2, "is no name for a checkpoint")


def test_what_others_let_nobody_read_hides_nothing_else(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = str(store / "other")
    owner, scandir, access = os.getuid(), os.scandir, os.access

    def read(path: Any) -> Any:
        if str(path) == private:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), private)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", read)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != private and access(path, mode))
    with monkeypatch.context() as another:
        # of a store that lets its names be read, and nothing be asked of them
        another.setattr(os, "lstat", lambda path: read(private))
        refused(run("checkpoint", "ls", "--store", str(store)), 1, f"the store {store} cannot be read")
    for command in ("ls", "status"):
        # ours, which we have closed ourselves
        refused(run("checkpoint", command, "--store", str(store)), 1, "other cannot be read")
        with monkeypatch.context() as another:
            another.setattr(os, "geteuid", lambda: owner + 1)
            rows = told(store, command)
            assert {row["name"] for row in (rows if command == "ls" else rows["names"])} == {"field"}
            refused(run("checkpoint", "verify", "none", "--store", str(store)), 1, "there are field")
            refused(run("checkpoint", "verify", "other", "--store", str(store)), 1, "look at its permissions")


def test_unknown_names_and_versions_say_which_there_are(store: Path) -> None:
    with unchanged(store):
        for command in ("verify", "ls"):
            result = run("checkpoint", command, "nothing", "--store", str(store))
            refused(result, 1, "no checkpoint is called 'nothing'", "there are field, other")
        result = run("checkpoint", "verify", "other", "--version", "9", "--store", str(store))
        refused(result, 1, "there are 1")
