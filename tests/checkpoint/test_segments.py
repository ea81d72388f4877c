"""Segments in memory: room is reserved first, used again, and never more than is allowed."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import psutil
import pytest

from dask_hpc.checkpoint import disk
from dask_hpc.checkpoint.blobs import Blob, Group, Home, Part, Range, Stripe
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.segments import (
    Segments,
    disk_bytes,
    held_bytes,
    opened,
    read_segment,
    segment_names,
    segment_path,
    write_piece,
    write_segment,
)
from dask_hpc.errors import CheckpointError

PAGE = 4096


def put(folder, name, content, offset=0):
    with opened(str(folder), name) as window:
        return write_segment(window, offset, [memoryview(content)])


def got(folder, name, offset, nbytes):
    found = np.empty(nbytes, np.uint8)
    read_segment(str(folder), name, offset, found)
    return found.tobytes()


def test_what_is_written_to_a_segment_is_read_from_it(tmp_path):
    segments = Segments(str(tmp_path), 10 * PAGE)
    name = segments.reserve(PAGE + 1)
    assert put(tmp_path, name, b"some bytes", 17) == crc32c(b"some bytes")
    assert got(tmp_path, name, 17, 10) == b"some bytes"
    # all of it is there already: a full memory would end a writer otherwise
    assert os.stat(segment_path(str(tmp_path), name)).st_blocks * 512 >= 2 * PAGE
    with pytest.raises(ValueError, match="ends 1 bytes early"):
        got(tmp_path, name, 2 * PAGE - 9, 10)


def test_the_checksum_is_of_all_pieces_of_all_parts_in_order(tmp_path):
    content = np.random.default_rng(1).integers(0, 256, 600_000, np.uint8).tobytes()
    name = Segments(str(tmp_path), 2**20).reserve(len(content) + 9)
    parts = [memoryview(content)[:5], memoryview(b""), memoryview(content)[5:]]
    with opened(str(tmp_path), name) as window:
        assert write_segment(window, 9, parts) == crc32c(content)
    assert got(tmp_path, name, 9, len(content)) == content


def test_a_piece_is_written_whole_also_where_the_system_takes_a_part_of_it(tmp_path, monkeypatch):
    content, write = np.frombuffer(os.urandom(1000), np.uint8), os.pwrite
    name = Segments(str(tmp_path), 2**20).reserve(1100)
    monkeypatch.setattr(os, "pwrite", lambda into, data, at: write(into, data[:300], at))
    files = psutil.Process().num_fds()
    write_piece(str(tmp_path), name, 100, content)
    assert psutil.Process().num_fds() == files
    assert got(tmp_path, name, 100, 1000) == content.tobytes()


def test_there_is_never_more_than_is_allowed_and_the_remedy_is_named(tmp_path):
    segments = Segments(str(tmp_path), 3 * PAGE)
    segments.reserve(2 * PAGE)
    with pytest.raises(CheckpointError, match=r"8192 of the 12288 bytes .*host-memory"):
        segments.reserve(2 * PAGE)
    segments.reserve(PAGE)
    assert held_bytes(tmp_path) == 3 * PAGE


def test_a_segment_that_nobody_needs_is_used_again_under_another_name(tmp_path):
    segments = Segments(str(tmp_path), 4 * PAGE)
    first = segments.reserve(2 * PAGE)
    put(tmp_path, first, b"old")
    inode = os.stat(segment_path(str(tmp_path), first)).st_ino
    segments.drop([first, uuid.uuid4().hex])
    assert held_bytes(tmp_path) == 0
    second = segments.reserve(2 * PAGE)
    assert second != first
    assert os.stat(segment_path(str(tmp_path), second)).st_ino == inode
    # whoever still knows the first must not take these bytes for it
    with pytest.raises(FileNotFoundError):
        got(tmp_path, first, 0, 3)


def test_a_segment_that_somebody_has_removed_keeps_no_other_and_takes_no_room(tmp_path):
    segments = Segments(str(tmp_path), 2 * PAGE)
    gone, other = segments.reserve(PAGE), segments.reserve(PAGE)
    os.unlink(segment_path(str(tmp_path), gone))
    segments.drop([gone, other])
    assert segments.names() == []
    names = [segments.reserve(PAGE) for _ in range(2)]
    assert set(names) == set(segments.names())
    os.unlink(segment_path(str(tmp_path), names[0]))
    segments.give_up(names)
    assert segments.names() == []


def test_a_file_that_nobody_needs_and_somebody_has_removed_keeps_nobody_from_room(tmp_path):
    segments = Segments(str(tmp_path), 2 * PAGE)
    segments.drop([segments.reserve(PAGE), segments.reserve(PAGE)])
    next(tmp_path.glob("*.unused")).unlink()
    names = [segments.reserve(PAGE) for _ in range(2)]
    assert sorted(segments.names()) == sorted(segment_names(str(tmp_path))) == sorted(names)


def test_a_segment_that_was_given_up_is_never_used_again_and_others_have_their_part_of_the_room(tmp_path):
    segments = Segments(str(tmp_path), 4 * PAGE, lambda: PAGE)
    name = segments.reserve(2 * PAGE)
    with opened(str(tmp_path), name) as window:
        segments.give_up([name, uuid.uuid4().hex])
        assert list(tmp_path.iterdir()) == []
        other = segments.reserve(2 * PAGE)
        # who comes late writes to what nobody reads
        write_segment(window, 0, [memoryview(b"late")])
    assert got(tmp_path, other, 0, 4) == bytes(4)
    with pytest.raises(
        CheckpointError, match=r"12288 of the 16384 bytes .* \(4096 of them those of other .*, 8192 more"
    ):
        segments.reserve(2 * PAGE)
    segments.reserve(PAGE)


def test_a_segment_that_is_made_shorter_keeps_whole_pages_and_its_beginning(tmp_path):
    segments = Segments(str(tmp_path), 4 * PAGE)
    name = segments.reserve(4 * PAGE)
    put(tmp_path, name, b"begins")
    segments.shrink(uuid.uuid4().hex, 0)
    segments.shrink(name, PAGE + 1)
    assert os.stat(segment_path(str(tmp_path), name)).st_size == 2 * PAGE
    assert got(tmp_path, name, 0, 6) == b"begins"
    segments.reserve(2 * PAGE)


def test_what_nobody_needs_makes_room_for_what_does_not_fit_into_it(tmp_path):
    segments = Segments(str(tmp_path), 4 * PAGE)
    small = [segments.reserve(PAGE) for _ in range(4)]
    segments.drop(small[:3])
    large = segments.reserve(3 * PAGE)
    assert held_bytes(tmp_path) == 4 * PAGE
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.segment" for name in (small[3], large)}


def test_another_process_goes_on_with_what_is_there(tmp_path):
    before = Segments(str(tmp_path), 4 * PAGE)
    kept, free = before.reserve(PAGE), before.reserve(2 * PAGE)
    before.drop([free])
    after = Segments(str(tmp_path), 4 * PAGE)
    assert held_bytes(tmp_path) == PAGE
    after.drop([kept])
    assert held_bytes(tmp_path) == 0
    after.reserve(4 * PAGE)


@pytest.mark.parametrize("name", ["../" + "0" * 29, "0" * 31, "A" * 32, "", "0" * 32 + "\n"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    with pytest.raises(CheckpointError, match="no name of a segment"):
        segment_path(str(tmp_path), name)


def test_a_link_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    name = uuid.uuid4().hex
    os.symlink(secret, segment_path(str(tmp_path), name))
    with pytest.raises(OSError, match="symbolic links"):
        got(tmp_path, name, 0, 6)


def test_what_somebody_else_has_made_is_neither_read_nor_taken_for_the_disk_of_a_host(tmp_path, monkeypatch):
    memory, name = tmp_path / "memory", uuid.uuid4().hex
    memory.mkdir(mode=0o700)
    os.mkfifo(segment_path(str(memory), name))
    with pytest.raises(OSError, match="it is no file of this user"):
        got(memory, name, 0, 6)
    place = disk.made(memory, tmp_path)
    assert disk.linked(memory) == place
    place.chmod(0o777)
    assert disk.linked(memory) is None
    other = Segments(str(memory), 4 * PAGE).reserve(PAGE)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    files = psutil.Process().num_fds()
    with pytest.raises(OSError, match="it is no file of this user"):
        got(memory, other, 0, 6)
    assert psutil.Process().num_fds() == files


def test_a_file_system_without_a_limit_has_room(tmp_path, monkeypatch):
    assert not disk.fits(tmp_path, 2**60)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=4096))
    assert disk.fits(tmp_path, 2**60)


HERE = Home("tcp://127.0.0.1:1", "/dev/shm/here")


def test_a_range_of_a_blob_is_found_in_its_segments():
    blob = Blob(HERE, (("a", 10), ("b", 5), ("c", 10)))
    assert blob.nbytes == 25
    assert [blob.start(name) for name in "abc"] == [0, 10, 15]
    assert blob.ranges(8, 17) == (Range("a", 8, 2), Range("b", 0, 5), Range("c", 0, 2))
    assert blob.ranges(24, 90) == (Range("c", 9, 1),)
    assert blob.ranges(30, 40) == ()


def test_a_range_is_in_the_stripes_of_its_parts_in_order():
    blobs = (Blob(HERE, (("a", 20),)), Blob(HERE, ()), Blob(HERE, ()))
    last = Stripe((Part(0, 10, 20), Part(1, 0, 0)), ())
    first = Stripe((Part(2, 0, 0), Part(0, 0, 10)), ())
    group = Group(blobs, (last, first))
    assert list(group.cover(0, 7, 12)) == [(first, 1, 7, 10), (last, 0, 0, 2)]
    assert list(group.cover(0, 3, 5)) == [(first, 1, 3, 5)]
    assert not list(group.cover(0, 5, 5))


def test_a_file_system_that_is_full_is_not_said_to_be_a_limit(tmp_path):
    segments = Segments(str(tmp_path), 1 << 62)
    with pytest.raises(CheckpointError, match=r"no room for .*; free some there, set hpc.node.memory-folder"):
        segments.reserve(1 << 61)
    assert segments.names() == []
    assert list(tmp_path.iterdir()) == []


def small(folder, base, leaves, limit=100 * PAGE):
    """Segments in a folder whose file system has room for so many bytes more, as far as they may take it."""
    found = os.statvfs(folder)
    spare = max(0, found.f_bavail * found.f_frsize - leaves)
    return Segments(str(folder), limit, base=str(base), spare_bytes=spare)


def test_what_the_memory_has_no_room_for_is_on_the_disk_and_found_there(tmp_path):
    memory, base = tmp_path / "memory", tmp_path / "base"
    memory.mkdir(mode=0o700)
    base.mkdir()
    segments = small(memory, base, 0)
    name = segments.reserve(3 * PAGE)
    (made,) = base.iterdir()
    assert [path.name for path in made.glob("*.segment")] == [f"{name}.segment"]
    assert "docker run --shm-size" in segments.note
    assert str(made) in segments.note
    assert put(memory, name, b"some bytes", PAGE) == crc32c(b"some bytes")
    assert got(memory, name, PAGE, 10) == b"some bytes"
    assert (held_bytes(str(memory)), disk_bytes(str(memory))) == (3 * PAGE, 3 * PAGE)
    # with room again it is the memory, and what is on the disk stays where it is
    other = small(memory, base, 10**12).reserve(PAGE)
    assert (memory / f"{other}.segment").exists()
    assert (held_bytes(str(memory)), disk_bytes(str(memory))) == (4 * PAGE, 3 * PAGE)
    # who is started anew has both, and drops, uses again and gives up as in memory
    segments = small(memory, base, 0, 4 * PAGE)
    assert set(segments.names()) == set(segment_names(str(memory))) == {name, other}
    with pytest.raises(CheckpointError, match=r"raise hpc.checkpoint.host-memory"):
        segments.reserve(PAGE)
    segments.drop([name])
    again = segments.reserve(2 * PAGE)
    assert got(memory, again, PAGE, 10) == b"some bytes"
    assert segments.note == ""
    segments.shrink(again, PAGE)
    assert disk_bytes(str(memory)) == PAGE
    segments.give_up([again])
    assert disk_bytes(str(memory)) == 0
    disk.remove(memory)
    assert not memory.exists()
    assert list(base.iterdir()) == []


def test_many_segments_on_the_disk_take_no_more_open_files_than_one(tmp_path):
    memory = tmp_path / "memory"
    memory.mkdir(mode=0o700)
    segments = small(memory, tmp_path, 0)
    segments.reserve(PAGE)
    before = psutil.Process().num_fds()
    assert len({segments.reserve(PAGE) for _ in range(5)}) == 5
    assert psutil.Process().num_fds() == before


def test_files_in_memory_that_nobody_needs_go_before_the_disk_is_taken(tmp_path):
    memory = tmp_path / "memory"
    memory.mkdir(mode=0o700)
    segments = small(memory, tmp_path, 10**12)
    segments.drop([segments.reserve(PAGE)])
    segments._spare_bytes = 2**60
    segments.reserve(20 * PAGE)
    assert list(memory.glob("*.unused")) == []
    assert disk_bytes(str(memory)) == 20 * PAGE


def test_no_more_files_that_nobody_needs_go_than_there_must(tmp_path, monkeypatch):
    memory = tmp_path / "memory"
    memory.mkdir(mode=0o700)
    segments = small(memory, tmp_path, 10**12)
    segments.drop([segments.reserve(PAGE), segments.reserve(2 * PAGE)])
    monkeypatch.setattr(disk, "fits", lambda place, *_: len(list(place.glob("*.unused"))) < 2)
    segments.reserve(20 * PAGE)
    assert [path.stat().st_size for path in memory.glob("*.unused")] == [2 * PAGE]
    assert disk_bytes(str(memory)) == 0


def test_what_is_left_on_the_disk_goes_when_no_memory_has_it_and_nothing_else(tmp_path):
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    base = tmp_path / "base"
    base.mkdir()
    made = {}
    for memory in (kept, gone):
        memory.mkdir(mode=0o700)
        made[memory] = disk.made(memory, base)
    half = Path(base / made[gone].name[:-1])  # its maker was killed before it had linked it
    half.mkdir(mode=0o700)
    foreign = base / f"{made[gone].name}-foreign"
    foreign.mkdir(mode=0o755)
    os.utime(foreign, (0, 0))
    shutil.rmtree(gone)
    assert disk.left(base) == []  # it may be about to be linked
    for path in base.iterdir():
        os.utime(path, (0, 0))
    assert set(disk.left(base, dry_run=True)) == {made[gone], half}
    assert set(disk.left(base)) == {made[gone], half}
    assert set(base.iterdir()) == {made[kept], foreign}
    shutil.rmtree(made[kept])  # by what cleans disks up: there is another one then
    assert disk.made(kept, base) == disk.linked(kept) != made[kept]


def test_what_a_manager_has_on_the_disk_stays_whoever_does_not_see_its_memory(tmp_path):
    """As in another job of the user, in a container whose memory is its own."""
    memory, base = tmp_path / "memory", tmp_path / "base"
    memory.mkdir(mode=0o700)
    base.mkdir()
    first = small(memory, base, 0)
    name = first.reserve(PAGE)
    put(memory, name, b"some bytes")
    place = disk.linked(memory)

    def left_by_another():
        os.utime(place, (0, 0))
        memory.rename(tmp_path / "not seen")
        found = disk.left(base)
        (tmp_path / "not seen").rename(memory)
        return found

    assert left_by_another() == []
    second = small(memory, base, 0)  # the manager was started anew
    del first
    assert left_by_another() == []
    assert got(memory, name, 0, 10) == b"some bytes"
    del second
    assert left_by_another() == [place]
    assert list(base.iterdir()) == []


def test_a_base_in_memory_is_none_and_the_disk_is_not_filled(tmp_path, monkeypatch):
    for base, usable in (("/dev/shm", None), ("/proc", Path("/proc"))):
        monkeypatch.setitem(dask.config.config, "temporary-directory", base)
        assert disk.usable_folder() == usable
    memory = tmp_path / "memory"
    memory.mkdir(mode=0o700)
    segments = small(memory, tmp_path, 0)
    segments.drop([segments.reserve(PAGE)])
    gib = 2**30
    assert (disk.spare_on_disk(gib), disk.spare_on_disk(100 * gib)) == (gib, 5 * gib)
    monkeypatch.setattr(disk, "spare_on_disk", lambda total_bytes: 10**6 * total_bytes)
    with pytest.raises(CheckpointError, match=r"neither .* has room for .* of a disk are left to other"):
        segments.reserve(20 * PAGE)
    assert segments.names() == []
    assert list(disk.linked(memory).glob("*.unused")) == []  # files that nobody needs went first


def test_a_file_that_is_much_larger_is_not_used_again(tmp_path):
    """It would have the room of many small ones."""
    segments = Segments(str(tmp_path), 100 * PAGE)
    segments.drop([segments.reserve(8 * PAGE)])
    names = [segments.reserve(3 * PAGE), segments.reserve(4 * PAGE)]
    assert [os.stat(segment_path(str(tmp_path), name)).st_size // PAGE for name in names] == [3, 8]
