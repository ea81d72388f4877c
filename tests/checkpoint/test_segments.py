"""Segments in memory: room is reserved first, used again, and never more than is allowed."""

from __future__ import annotations

import os
import uuid

import numpy as np
import pytest

from dask_hpc.checkpoint.blobs import Blob, Group, Home, Part, Range, Stripe
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.segments import (
    Segments,
    held_bytes,
    open_segment,
    read_segment,
    segment_path,
    write_segment,
)
from dask_hpc.errors import CheckpointError

PAGE = 4096


def put(folder, name, content, offset=0):
    descriptor = open_segment(str(folder), name, os.O_WRONLY)
    try:
        return write_segment(descriptor, offset, [memoryview(content)])
    finally:
        os.close(descriptor)


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
    descriptor = open_segment(str(tmp_path), name, os.O_WRONLY)
    parts = [memoryview(content)[:5], memoryview(b""), memoryview(content)[5:]]
    assert write_segment(descriptor, 9, parts) == crc32c(content)
    os.close(descriptor)
    assert got(tmp_path, name, 9, len(content)) == content


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


def test_a_segment_that_was_given_up_is_never_used_again_and_others_have_their_part_of_the_room(tmp_path):
    segments = Segments(str(tmp_path), 4 * PAGE, lambda: PAGE)
    name = segments.reserve(2 * PAGE)
    descriptor = open_segment(str(tmp_path), name, os.O_WRONLY)
    segments.give_up([name, uuid.uuid4().hex])
    assert list(tmp_path.iterdir()) == []
    other = segments.reserve(2 * PAGE)
    # who comes late writes to what nobody reads
    write_segment(descriptor, 0, [memoryview(b"late")])
    os.close(descriptor)
    assert got(tmp_path, other, 0, 4) == bytes(4)
    with pytest.raises(CheckpointError, match=r"12288 of the 16384 bytes .* 8192 more"):
        segments.reserve(2 * PAGE)
    segments.reserve(PAGE)


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
