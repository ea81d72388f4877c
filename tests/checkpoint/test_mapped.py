"""Files in memory: they have large pages, and are written through a mapping that moves along them."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.checkpoint import direct
from dask_hpc.checkpoint.segments import Segments, opened, read_segment, write_piece

PAGE, LARGE = 4096, 2**21
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: Older ones do not map at once what is there.
MAPS = MEMORY is not None and tuple(map(int, platform.release().split(".")[:2])) >= (5, 14)


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)


class System:
    """What the system is asked for. It may be too old for `madvise`, refuse to map, or tell nothing."""

    def __init__(self, patch: pytest.MonkeyPatch, refuses: str = "") -> None:
        self.asked: dict[str, list[tuple[Any, ...]]] = {}
        self._real, self._refuses = direct._system(), refuses
        patch.setattr(direct, "_system", lambda: self)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.asked.setdefault(name, []).append(arguments)
            if name == self._refuses:
                return {"madvise": -1, "mmap": 2**64 - 1, "fstatfs": 0}[name]
            return getattr(self._real, name)(*arguments)

        return call


writes = st.lists(st.tuples(st.integers(0, 30 * PAGE), st.integers(1, 12 * PAGE)), max_size=8)


@given(writes, st.sampled_from(["", "madvise", "mmap", "fstatfs"]), st.integers(0, 2**32 - 1))
def test_every_byte_is_where_it_is_to_be_however_it_is_written(memory, asked, refuses, seed):
    values, folder = np.random.default_rng(seed), str(memory)
    with pytest.MonkeyPatch.context() as patch:
        system = System(patch, refuses)
        patch.setattr(direct, "_LARGE", 2 * PAGE)
        patch.setattr(direct, "_MAPPED", 4 * PAGE)
        segments = Segments(folder, 2**30)
        name = segments.reserve(42 * PAGE)
        expected = np.zeros(42 * PAGE, np.uint8)
        with opened(folder, name) as window:
            for offset, nbytes in asked:
                content = values.integers(0, 256, nbytes, np.uint8)
                window.write(content.data, offset)
                expected[offset : offset + nbytes] = content
        found = np.empty_like(expected)
        read_segment(folder, name, 0, found)
        segments.give_up([name])
    # what may be on a disk is not mapped
    assert refuses != "fstatfs" or "mmap" not in system.asked
    np.testing.assert_array_equal(found, expected)


def test_what_is_mapped_is_a_small_part_at_large_pages_and_nothing_is_afterwards(memory, monkeypatch):
    size = 40 * 2**20 + PAGE
    name = Segments(str(memory), 2**30).reserve(size)
    system = System(monkeypatch)
    content = np.full(size, 7, np.uint8)
    with opened(str(memory), name) as window:
        window.write(content.data[PAGE:], PAGE)
        if MAPS:
            assert name in Path("/proc/self/maps").read_text()
    assert name not in Path("/proc/self/maps").read_text()
    mapped = system.asked.get("mmap", [])
    assert len(mapped) == len(system.asked.get("munmap", [])) == (6 if MAPS else 0)
    for address, nbytes, *_, offset in mapped:
        assert address % LARGE == offset % LARGE == 0
        assert nbytes <= 2**23
    # nothing is written by the system's own copy
    monkeypatch.setattr(os, "pwrite", None if MAPS else os.pwrite)
    write_piece(str(memory), name, PAGE - 1, content[: 2**20])


def test_a_file_in_memory_has_large_pages_and_no_byte_more(memory, monkeypatch):
    size = 3 * LARGE + 5 * PAGE
    system = System(monkeypatch)
    name = Segments(str(memory), 2**30).reserve(size)
    with opened(str(memory), name) as window:
        assert os.fstat(window._descriptor).st_size == size
        assert os.fstat(window._descriptor).st_blocks * 512 == size
    if MEMORY is not None:
        ((address, nbytes, advice),) = system.asked["madvise"]
        assert (address % LARGE, nbytes, advice) == (0, 3 * LARGE, 25)
        assert system.asked["munmap"] == [(address, nbytes)]


def test_where_memory_has_no_room_for_a_file_nothing_of_it_is_taken(memory, monkeypatch):
    monkeypatch.setattr(os, "pwrite", None)
    descriptor = os.open(memory, os.O_TMPFILE | os.O_RDWR, 0o600)
    with pytest.raises(OSError, match=r"No space left|too large"):
        direct.reserve(descriptor, 1 << 50)
    os.close(descriptor)
