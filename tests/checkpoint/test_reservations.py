"""Nothing stays in the memory of a host of what was reserved for a version and is in none."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.core import ConnectionPool

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.segments import Segments
from dask_hpc.errors import CheckpointError
from dask_hpc.worker import fetching, managers, reservations
from dask_hpc.worker.fetching import ManagerSilentError, Patience, listens, silent
from dask_hpc.worker.reservations import Reservations

ONE, OTHER = "1" * 32, "2" * 32


def made(folder: Path, *versions: str) -> tuple[Segments, Reservations, list[str]]:
    segments = Segments(str(folder), 10**6)
    found, names = Reservations(segments), [segments.reserve(10) for _ in versions]
    for name, version in zip(names, versions, strict=True):
        found.add(name, version, 10)
    return segments, found, names


def test_a_version_takes_along_what_nobody_has_heard_of(tmp_path: Path) -> None:
    segments, there, (known, unheard, late, other) = made(tmp_path, ONE, ONE, ONE, OTHER)
    for name in (known, unheard, other):
        there.seal(name)
    # it may still be written to, so it is no file that is used again
    assert set(there.end(ONE, [known])) == {known, unheard}
    assert set(segments.names()) == {known, unheard, other}
    assert not (tmp_path / f"{late}.segment").exists()
    with pytest.raises(CheckpointError, match=f"segment {late} was given up"):
        there.seal(late)
    with pytest.raises(CheckpointError, match=f"version {ONE} is not written any more"):
        there.add(segments.reserve(10), ONE, 10)
    assert set(segments.names()) == {known, unheard, other}
    assert (there.over([ONE, OTHER]), there.over([ONE, OTHER])) == ([other], [])


def test_of_a_whole_version_stays_what_its_record_names(tmp_path: Path) -> None:
    segments, there, (named, unheard, late, other) = made(tmp_path, ONE, ONE, ONE, OTHER)
    for name in (named, unheard):
        there.seal(name)
    assert there.whole(ONE, [named]) == [unheard]
    assert set(segments.names()) == {named, unheard, other}
    # what was made again of a version has its segments from then on
    there.whole("3" * 32, [other])
    assert there.end(OTHER, []) == []
    with pytest.raises(CheckpointError, match=f"segment {late} was given up"):
        there.check([named, late])
    there.check([named])
    # it goes when nobody wants it
    assert there.end(ONE, [named]) == [named]


def test_what_is_reserved_for_nothing_is_known_by_its_name_alone(tmp_path: Path) -> None:
    _, there, (nameless,) = made(tmp_path, "")
    there.seal(nameless)
    assert (there.end(ONE, []), there.end(OTHER, [nameless])) == ([], [nameless])


def test_what_is_reserved_is_written_in_time_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "_WRITTEN_S", -1.0)
    segments, there, (sealed, _) = made(tmp_path, ONE, ONE)
    there.seal(sealed)
    made_here, large = segments.reserve(10), segments.reserve(10)
    # a parity takes as long as it takes, and so does much
    there.add(made_here, ONE, None)
    there.add(large, ONE, 10**12)
    there.give_up_late()
    assert set(segments.names()) == {sealed, made_here, large}


def test_the_next_manager_knows_what_the_last_one_has_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before, (done, half, late) = made(tmp_path, ONE, ONE, OTHER)
    before.seal(done)
    amid, adopted, answered = [before._segments.reserve(10) for _ in range(3)]
    before.add(amid, ONE, None)
    before.add(adopted, "", None)
    before.seal(adopted)
    # somebody else's
    (tmp_path / "one.open").touch()
    segments = Segments(str(tmp_path), 10**6)
    there = Reservations(segments)
    # nobody writes what that one was writing, or knows what it has not answered
    assert set(there.take_up()) == {amid, answered}
    there.give_up_late()
    segments.drop([amid, answered])
    assert set(segments.names()) == {done, half, late, adopted}
    assert set(there.end(ONE, [])) == {done}
    assert set(segments.names()) == {done, late, adopted}
    monkeypatch.setattr(reservations, "_WRITTEN_S", -1.0)
    # its writer was lost, too, and this one before what has ended was dropped
    again = Reservations(segments)
    assert again.take_up() == [done]
    segments.drop([done])
    again.give_up_late()
    assert set(segments.names()) == {adopted}
    assert again.whole(OTHER, [adopted]) == []
    left = {path.name for path in tmp_path.iterdir() if path.suffix != ".unused"}
    assert left == {f"{adopted}.segment", "one.open"}


def test_the_next_manager_keeps_what_records_name_and_nothing_else_of_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, before, (named, unheard, _, other) = made(tmp_path, ONE, ONE, ONE, OTHER)
    for name in (named, unheard):
        before.seal(name)
    old = segments.reserve(10)
    cut_off = tmp_path / f"{OTHER}.version.new"
    cut_off.touch()
    record = SimpleNamespace(id=ONE, segments=lambda: {"here": {named, old}})
    monkeypatch.setattr(reservations, "read_records", lambda folder: [record])
    monkeypatch.setattr(reservations, "parse", lambda text: text)
    segments = Segments(str(tmp_path), 10**6)
    there = Reservations(segments)
    assert there.take_up() == [unheard]
    assert set(segments.names()) == {named, old, unheard, other}
    assert not cut_off.exists()
    with pytest.raises(CheckpointError, match=f"version {ONE} is not written any more"):
        there.add(segments.reserve(10), ONE, 10)


def test_where_a_record_is_damaged_nobody_knows_what_is_needed(tmp_path: Path) -> None:
    segments, _, _ = made(tmp_path)
    named = segments.reserve(10)
    (tmp_path / f"{ONE}.version").write_text("damaged")
    assert Reservations(segments).take_up() == []
    assert segments.names() == [named]


@pytest.mark.parametrize("version", ["../other", "1" * 31, "1" * 33])
def test_what_no_version_is_called_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(CheckpointError, match="is no version; allowed: 32 hexadecimal digits"):
        made(tmp_path, version)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_held_and_given_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, there, (first, last) = made(tmp_path, ONE, OTHER)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "the disk has failed")

    now_s = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: now_s + 1e4)
        patched.setattr(Path, "unlink", refused)
        there.give_up_late()
    there.give_up_late()
    assert set(segments.names()) == {first, last}
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 2e4)
    there.give_up_late()
    assert (segments.names(), list(tmp_path.iterdir())) == ([], [])


def test_a_note_of_what_is_not_there_any_more_says_nothing(tmp_path: Path) -> None:
    segments, _, (there,) = made(tmp_path, ONE)
    gone = tmp_path / f"{'3' * 32}.{ONE}.open"
    gone.touch()
    again = Reservations(segments)
    assert again.take_up() == []
    assert not gone.exists()
    assert again.end(ONE, []) == []
    assert there not in segments.names()


def test_a_manager_that_hangs_before_it_is_connected_to_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_CONNECT_S", 0.1)
    monkeypatch.setattr(fetching._known, "patience", Patience(0.5, 60.0))

    async def asked(address: str) -> None:
        async def home() -> Home:
            return Home(address, "")

        pool = await ConnectionPool()
        try:
            await asyncio.wait_for(managers.reserved(pool, home, 1), 10.0)
        finally:
            await pool.close()

    # the system takes connections for a process that stands still
    with socket.create_server(("127.0.0.1", 0)) as hung:
        address = f"tcp://127.0.0.1:{hung.getsockname()[1]}"
        try:
            with pytest.raises(ManagerSilentError, match=f"{address} has not answered within 0.5 s"):
                asyncio.run(asked(address))
            assert address in silent()
        finally:
            listens(address)
