"""Locks on versions, as another host sees them: not what is locked of a folder, only what of a file."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dask.array as da
import pytest
from outside import PATHS
from saved import computed, save, written

from dask_hpc.checkpoint import passing
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.export import export
from dask_hpc.checkpoint.inside import rename
from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError

LOCKS = Path("/proc/locks")


def versions(folder: Path) -> list[str]:
    for _ in range(3):
        save(da.arange(6, chunks=3), folder)
    return [each.path for each in Store(folder).versions()]


def test_who_reads_a_version_on_another_host_keeps_it(tmp_path: Path) -> None:
    old, *_ = versions(tmp_path)
    # all that another host is told of its lock: one on a file that it may only read
    with open(Path(old, "manifest.json"), "rb") as read:
        fcntl.flock(read, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert Store(tmp_path).collect(dry_run=True) == Store(tmp_path).collect() == []
        also = Lock.shared(old)
        assert also is not None
        also.release()
    # nor does it take one away while this one reads
    lock = Lock.shared(old)
    assert lock is not None
    with lock, open(Path(old, "manifest.json"), "r+b") as removing:
        with pytest.raises(BlockingIOError):
            fcntl.flock(removing, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert Store(tmp_path).collect() == []
    assert Store(tmp_path).collect() == [old]


def test_who_excludes_others_may_write_the_file_that_other_hosts_see_locked(tmp_path: Path) -> None:
    old, *_ = versions(tmp_path)

    def modes() -> set[int]:
        manifest, mine = Path(old, "manifest.json"), Path("/proc/self/fd")
        opened = [int(each.name) for each in mine.iterdir() if each.exists() and each.samefile(manifest)]
        return {fcntl.fcntl(each, fcntl.F_GETFL) & os.O_ACCMODE for each in opened}

    # NFS refuses an exclusive lock on what is open for reading alone, and then nobody is excluded
    with Lock.take(old):
        assert modes() == {os.O_RDWR}
    lock = Lock.shared(old)
    assert lock is not None
    with lock:
        assert modes() == {os.O_RDONLY}


def test_who_reads_all_of_a_version_keeps_it(tmp_path: Path) -> None:
    old, *_ = versions(tmp_path)
    removed: list[str] = []
    found = next(each for each in Store(tmp_path).versions() if each.path == old)

    def others(count: int, of: int) -> None:
        removed.extend(Store(tmp_path).collect())

    assert verify(found, others) == []
    export(found, tmp_path / "copy", others)
    assert removed == []
    assert Store(tmp_path).collect() == [old]


FORKED = """
import os, sys
from dask_hpc.checkpoint.locks import Lock
ours, given = (Lock.take(folder) for folder in sys.argv[1:])
begin, go_on = os.pipe()
asked, answer = os.pipe()
if not (child := os.fork()):
    ours.release()  # whose it is not
    os.write(answer, b"1")
    os.close(go_on)
    os.read(begin, 1)  # until its parent ends
    os._exit(0)
os.read(asked, 1)
assert Lock.attempt(sys.argv[1]) is None, "what is locked stays so"
given.release()
assert Lock.attempt(sys.argv[2]) is not None, "what was let go of is free"
"""


def test_a_lock_is_that_of_who_has_taken_it_whoever_was_forked_meanwhile(tmp_path: Path) -> None:
    folders = [tmp_path / "ours", tmp_path / "given"]
    for folder in folders:
        folder.mkdir()
    run = [sys.executable, "-c", FORKED, *map(str, folders)]
    subprocess.run(run, env=dict(os.environ, PYTHONPATH=PATHS), check=True, timeout=60)


def test_what_has_gone_while_its_lock_was_waited_for_is_not_locked(tmp_path: Path) -> None:
    folder, errors = tmp_path / "folder", []
    folder.mkdir()

    def wait() -> None:
        try:
            Lock.take(folder).release()
        except FileNotFoundError as error:
            errors.append(error)

    lock = Lock.take(folder)
    waiting = threading.Thread(target=wait)
    with lock:
        waiting.start()
        end_s = time.monotonic() + 10
        # the lock that it waits for, as the system lists it
        while f":{folder.stat().st_ino} " not in "".join(re.findall("-> FLOCK.*", LOCKS.read_text())):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        folder.rename(tmp_path / "gone")
    waiting.join(10)
    assert not waiting.is_alive()
    assert [error.filename for error in errors] == [str(folder)]


def test_a_rename_whose_answer_was_lost_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = os.rename

    def again(source: Any, target: Any) -> None:
        done(source, target)
        done(source, target)  # as on NFS, where a request may be sent once more

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", again)
        version = save(da.zeros(4, chunks=2), tmp_path)
    assert (version.version, verify(version)) == (1, [])
    with pytest.raises(FileNotFoundError):
        rename(str(tmp_path / "nothing"), version.path)


def test_a_store_whose_folders_cannot_be_made_durable_apart_takes_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, sync = errno.EINVAL, os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(said, os.strerror(said))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    assert verify(save(da.zeros(4, chunks=2), tmp_path)) == []
    said = errno.EIO
    with pytest.raises(CheckpointError, match="Input/output"):
        save(da.zeros(4, chunks=2), tmp_path)


def test_what_was_removed_under_the_next_version_was_written_by_nobody_else(tmp_path: Path) -> None:
    versions(tmp_path)
    plan, keys = describe(obj := da.arange(6, chunks=3), "field")
    draft = Store(tmp_path).begin(plan)
    known = written(draft, computed(plan, keys, obj))
    Store(tmp_path).remove("field", 3)
    with pytest.raises(CheckpointError, match=r"version 3 of field was removed while .*; write again"):
        draft.finish(known)
    draft.abandon()
    assert save(obj, tmp_path).version == 1


def test_folders_that_have_gone_are_let_go_of_while_others_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned, lexists = passing.Owned(), os.path.lexists
    gone, came = [str(tmp_path / name) for name in ("1", "2")], str(tmp_path / "3")
    for folder in (*gone, came):
        Path(folder).mkdir()
    for folder in gone:
        owned.have(folder)
        Path(folder).rmdir()

    def meanwhile(path: str) -> bool:
        # as other threads may
        monkeypatch.setattr(os.path, "lexists", lexists)
        owned.have(came)
        owned.let_go()
        return lexists(path)

    monkeypatch.setattr(os.path, "lexists", meanwhile)
    owned.let_go()
    assert list(owned._locks) == [came]
    assert Lock.attempt(came) is None
    Path(came).rmdir()
    owned.let_go()
    assert not owned._locks
