"""The store: versions, writers that meet, what is collected, and what it says when it cannot."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from saved import computed, save, written
from unchanged import unchanged

from dask_hpc.checkpoint import passing
from dask_hpc.checkpoint.blocks import stored_value, write_block, write_blocks
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.inside import sync_folder
from dask_hpc.checkpoint.plan import Written
from dask_hpc.checkpoint.store import ABANDONED_S, Store
from dask_hpc.clock import epoch_s
from dask_hpc.errors import CheckpointError, DaskHPCError, UnknownCheckpoint

FIELD = da.arange(20, chunks=6)


def begun(store: Store, name: str = "field", obj: Any = FIELD) -> tuple[Draft, dict[int, Written]]:
    plan, keys = describe(obj, name)
    draft = store.begin(plan)
    return draft, written(draft, computed(plan, keys, obj))


def test_versions_are_listed_oldest_first_then_drafts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.versions() == []
    for name in ("b", "a", "a"):
        save(FIELD, tmp_path, name)
    draft, _ = begun(store, "a")
    listed = store.versions()
    assert [(each.name, each.version, each.complete) for each in listed] == [
        ("a", 1, True), ("a", 2, True), ("a", 3, False), ("b", 1, True),
    ]  # fmt: skip
    assert store.newest("a") == listed[1]
    assert store.newest("a", 1) == listed[0]
    assert listed[1].levels == ("L3",)
    assert listed[2].created_s > listed[0].created_s - 1  # that of its files, which a clock of its own has
    on_disk = sum(path.stat().st_size for path in Path(listed[1].path).rglob("*") if path.is_file())
    assert listed[1].bytes == on_disk - Path(listed[1].path, "manifest.json").stat().st_size
    draft.abandon()
    assert [each.version for each in store.versions("a")] == [1, 2]


def test_an_unknown_name_or_version_says_which_there_are(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(UnknownCheckpoint, match="there are none"):
        store.newest("field")
    with pytest.raises(UnknownCheckpoint, match=r"in .*/away: this host has no such folder; mount it here"):
        Store(tmp_path / "away").newest("field")
    save(FIELD, tmp_path)
    with unchanged(tmp_path), pytest.raises(UnknownCheckpoint, match="there are field"):
        store.newest("filed")
    with unchanged(tmp_path), pytest.raises(KeyError, match=r"no version 7 .* there are 1"):
        store.newest("field", 7)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/x", "a/b", "-a", ".a", "a b", "ä", "a\n", "x" * 101, 3, None]
)
def test_a_name_that_could_be_another_folder_is_refused(tmp_path: Path, name: Any) -> None:
    store = Store(tmp_path / "store")
    for call in (lambda: describe(FIELD, name), lambda: store.newest(name)):
        with pytest.raises(ValueError, match="is no name for a checkpoint; allowed"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_the_second_of_two_writers_does_not_replace_what_it_has_not_seen(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(FIELD, tmp_path)
    first, first_written = begun(store)
    second, second_written = begun(store, obj=FIELD + 1)
    assert first.version == second.version == 2
    done = first.finish(first_written)
    with (
        unchanged(tmp_path, drafts=False),
        pytest.raises(CheckpointError, match="was finished by another writer"),
    ):
        second.finish(second_written)
    assert store.newest("field") == done
    # nor when the other one has gone on, and the first versions are collected
    save(FIELD, tmp_path)
    assert store.collect(keep=1, spare=[second.path], older_than_s=0) == [
        str(tmp_path / "field" / "000001"), str(tmp_path / "field" / "000002"),
    ]  # fmt: skip
    with (
        unchanged(tmp_path, drafts=False),
        pytest.raises(CheckpointError, match="version 3 of field was finished by another writer"),
    ):
        second.finish(second_written)
    second.abandon()
    assert [each.version for each in store.versions()] == [3]


def test_a_draft_that_is_being_finished_is_not_abandoned_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, known = begun(Store(tmp_path))
    abandoning, rename = threading.Thread(target=draft.abandon), os.rename

    def late(source: Any, target: Any) -> None:
        if abandoning.ident is None:
            abandoning.start()
            # it would have removed the draft by then
            abandoning.join(0.3)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    version = draft.finish(known)
    abandoning.join(30)
    assert version.path in Store(tmp_path).newest("field").path
    assert Path(version.path, "manifest.json").exists()


def test_a_version_whose_name_cannot_be_made_durable_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(FIELD, tmp_path)
    draft, known = begun(Store(tmp_path))

    def sync(path: str) -> None:
        if os.path.basename(path) == "field":
            raise OSError(errno.EIO, "Input/output error")
        sync_folder(path)

    with monkeypatch.context() as patched:
        patched.setattr("dask_hpc.checkpoint.draft.sync_folder", sync)
        with (
            unchanged(tmp_path, drafts=False),
            pytest.raises(CheckpointError, match=r"version 2 of field cannot be finished .*Input/output"),
        ):
            draft.finish(known)
    draft.abandon()
    # nobody else has written one
    assert save(FIELD, tmp_path).version == 2


def test_a_draft_is_finished_once(tmp_path: Path) -> None:
    draft, known = begun(Store(tmp_path))
    draft.finish(known)
    with pytest.raises(CheckpointError, match="finished or abandoned before"):
        draft.finish(known)
    draft.abandon()
    assert Store(tmp_path).newest("field").version == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda known: known.pop(2),
        lambda known: known.update({4: known[3]}),
        lambda known: known.update({1: known[2]}),
        lambda known: known.update({0: Written(0, 5, 1)}),
        lambda known: known.update({0: Written(0, known[0].nbytes, known[0].crc32c, "00")}),
        lambda known: known.clear(),
    ],
)
def test_a_version_that_is_not_whole_gets_no_name(tmp_path: Path, spoil: Any) -> None:
    draft, known = begun(Store(tmp_path))
    spoil(known)
    with unchanged(tmp_path, drafts=False), pytest.raises(CheckpointError, match="abandon"):
        draft.finish(known)
    assert not [each for each in Store(tmp_path).versions() if each.complete]


def test_collecting_keeps_the_newest_and_what_is_being_written_or_spared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(4):
        save(FIELD, tmp_path)
    draft, known = begun(store)
    # left by a process that is gone: nobody holds its lock
    left = tmp_path / "field" / (".000005-" + 32 * "0")
    left.mkdir()
    spared = str(tmp_path / "field" / "000001")
    would = store.collect(older_than_s=0, spare=[spared], dry_run=True)
    assert len(store.versions()) == 6
    assert store.collect(older_than_s=0, spare=[spared]) == would == [
        str(tmp_path / "field" / "000002"), str(left),
    ]  # fmt: skip
    left.mkdir()
    assert store.collect(spare=[spared]) == []
    draft.finish(known)
    assert [each.version for each in store.versions() if each.complete] == [1, 3, 4, 5]
    with pytest.raises(ValueError, match="allowed: 1 and more"):
        store.collect(keep=0)


def test_collecting_reads_no_manifest_which_may_be_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    for _ in range(4):
        save(FIELD, tmp_path)
    monkeypatch.setattr("dask_hpc.checkpoint.manifest.read", lambda folder: pytest.fail(f"{folder} is read"))
    old = store.collect(dry_run=True)
    assert old == [str(tmp_path / "field" / name) for name in ("000001", "000002")]
    # what became old since is not among it, and what has come to be read stays
    store.discard(old, spare=old[1:])
    assert store.collect(dry_run=True) == old[1:]


def test_a_damaged_version_does_not_count_among_those_that_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(5):
        save(FIELD, tmp_path)
    home = tmp_path / "field"
    (home / "000005" / "manifest.json").write_text("{}")
    (home / "000004" / "manifest.json").unlink()
    # one and two that is damaged below it
    (home / "000002" / "manifest.json").write_text("")
    assert store.collect(keep=1, dry_run=True) == [str(home / name) for name in ("000001", "000002")]
    assert store.collect(keep=2, dry_run=True) == []
    assert store.collect(keep=1) == [str(home / name) for name in ("000001", "000002")]
    # nor does a copy of one count that is called otherwise
    shutil.copytree(home / "000003", home / "000009")
    # whatever is the only whole one stays
    assert store.collect(keep=1) == []
    assert store.newest("field", 3).version == 3
    with pytest.raises(CheckpointError, match=r"000009 holds version 3 of .* \(whole are versions 3\)"):
        store.newest("field")


def test_a_version_of_which_nobody_can_tell_who_reads_it_stays(tmp_path: Path) -> None:
    for _ in range(3):
        save(FIELD, tmp_path)
    store, before = Store(tmp_path), resource.getrlimit(resource.RLIMIT_NOFILE)
    old = store.collect(dry_run=True)
    # no file can be opened any more
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        store.discard(old)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert store.collect(dry_run=True) == old == [str(tmp_path / "field" / "000001")]
    # while one that another collector had first is none
    store.discard([*old, *old])
    assert store.collect(dry_run=True) == []


def test_what_a_killed_scheduler_has_left_is_collected_when_it_is_old_and_unused(tmp_path: Path) -> None:
    store, owned = Store(tmp_path), passing.Owned()
    left, used, late, foreign = (Path(passing.drawn(str(tmp_path))) for _ in range(4))
    for folder in (left, used, late):
        (folder / "000001").mkdir(parents=True)
        (folder / "000001" / "data").write_bytes(b"x")
    foreign.symlink_to(tmp_path)
    owned.have(str(used))
    assert store.collect() == [], "they are too young"
    old_s = epoch_s() - 2 * ABANDONED_S
    for path in [each for folder in (left, used) for each in (folder, *folder.rglob("*"))]:
        os.utime(path, (old_s, old_s))
    os.utime(late, (old_s, old_s))
    assert store.collect(name="field") == []
    assert store.collect(dry_run=True) == store.collect() == [str(left)]
    # where there are no locks it is the time that says so
    owned.touch()
    assert epoch_s() - used.stat().st_mtime < ABANDONED_S
    assert (used / "000001" / "data").exists()
    assert late.exists()
    assert foreign.is_symlink()
    shutil.rmtree(used)
    owned.touch()  # of one that has gone there is nothing to say
    owned.let_go()


def test_what_is_not_a_checkpoint_is_neither_listed_nor_removed(tmp_path: Path) -> None:
    save(FIELD, tmp_path)
    (tmp_path / "field" / "notes").mkdir()
    (tmp_path / "field" / "000009").write_text("a file")
    (tmp_path / "my documents").mkdir()
    (tmp_path / "file").write_text("")
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    (tmp_path / "field" / "000010").symlink_to(outside)
    (tmp_path / "link").symlink_to(outside)
    store = Store(tmp_path)
    assert [each.version for each in store.versions()] == [1]
    assert store.collect(keep=1, older_than_s=0) == []
    assert len(list((tmp_path / "field").iterdir())) == 4


def test_files_may_be_written_by_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        version = save(FIELD, tmp_path)
    finally:
        os.umask(before)
    paths = [tmp_path / "field", *(tmp_path / "field").rglob("*")]
    assert len(paths) > 6
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o755, 0o644}
    assert version.complete


def test_a_name_of_somebody_else_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(FIELD, tmp_path), save(FIELD, tmp_path)
    assert len(Store(tmp_path).collect(keep=1, dry_run=True)) == 1
    plan, _ = describe(FIELD, "field")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with (
        unchanged(tmp_path),
        pytest.raises(CheckpointError, match=r"belongs to another user .* take another name"),
    ):
        Store(tmp_path).begin(plan)
    assert Store(tmp_path).collect(keep=1) == []
    monkeypatch.undo()
    os.chmod(tmp_path / "field", 0o777)
    with unchanged(tmp_path), pytest.raises(CheckpointError, match="chmod go-w"):
        Store(tmp_path).begin(plan)
    assert [each.version for each in Store(tmp_path).versions()] == [1, 2]


def test_python_values_of_somebody_else_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = save(da.from_array(np.array([{}, 1], object), chunks=2), tmp_path)
    found = version.manifest()
    array, known = found.plan.arrays[0], found.written(0)
    assert stored_value(version.path, array, 0, known, trusted=True)().tolist() == [{}, 1]
    with unchanged(tmp_path), pytest.raises(ValueError, match="allow_pickle=True"):
        stored_value(version.path, array, 0, known)()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ValueError, match="can be changed by others than you"):
        stored_value(version.path, array, 0, known, trusted=True)()
    monkeypatch.undo()
    os.chmod(Path(version.path, "data", "0", "0"), 0o666)
    with pytest.raises(ValueError, match="can be changed by others than you"):
        stored_value(version.path, array, 0, known, trusted=True)()


def test_a_store_that_cannot_be_written_to_says_why_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    no_folder = "it is no folder: a file, or a link to nothing"
    for where, what in (("file/store", "Not a directory"), ("file", no_folder), ("link", no_folder)):
        says = f"{what}; set hpc.checkpoint.store to a folder"
        assert says in str(Store(tmp_path / where).problem())
        with unchanged(tmp_path), pytest.raises(DaskHPCError, match=says):
            Store(tmp_path / where).begin(describe(FIELD, "field")[0])
    (tmp_path / "good" / "field").mkdir(parents=True)
    assert Store(tmp_path / "good").problem() is None
    assert sorted(path.name for path in (tmp_path / "good").iterdir()) == ["field"]
    (tmp_path / "good" / "other").write_text("")
    with unchanged(tmp_path), pytest.raises(CheckpointError, match="is no folder"):
        Store(tmp_path / "good").begin(describe(FIELD, "other")[0])


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may be larger than 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_is_an_error_before_anything_is_written(tmp_path: Path, small_files: None) -> None:
    with pytest.raises(CheckpointError, match=r"File too large; free some space there"):
        Store(tmp_path).begin(describe(da.zeros(10**6, chunks=10**5), "field")[0])
    assert list((tmp_path / "field").iterdir()) == []


def test_a_full_disk_while_writing_is_told_and_leaves_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = da.arange(10**5, chunks=10**4)
    plan, keys = describe(field, "field")
    draft = Store(tmp_path).begin(plan)
    (values,) = computed(plan, keys, field)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    answers = write_blocks(draft.path, plan.arrays[0], range(10), values)
    assert all(f"{tmp_path}/field: No space left on device; free some" in str(why) for why in answers)
    with pytest.raises(OSError, match="No space left"):
        write_block(draft.path, plan.arrays[0], 0, values[0])
    monkeypatch.undo()
    known = written(draft, [values])
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match="No space left on device; free some space"):
        draft.finish(known)
    monkeypatch.undo()
    # the same draft, once there is room
    assert draft.finish(known).complete
