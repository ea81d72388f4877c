"""Going back to an older version: those after it are left, and nothing goes back to them by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint import manifest
from dask_hpc.checkpoint.branch import FILE as BESIDE
from dask_hpc.checkpoint.branch import MOST_LEFT, Past, branch, past_of, read_beside
from dask_hpc.checkpoint.export import export
from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.manifest import FILE
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.checkpoint.versions import numbers
from dask_hpc.errors import CheckpointError


def run(store: Path, steps: int = 0, back_to: int | None = None) -> tuple[int | None, dict[str, Any]]:
    with CheckpointSession("run", store=store) as session:
        session.add("a", np.zeros(1))
        found = session.restart_all(back_to)
        for step in range(steps):
            session.commit(step=step)
        return found, session.values


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def test_a_manifest_that_was_cut_is_said_and_one_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    run(tmp_path, steps=2)
    read = manifest.read_inside

    def fails(folder: str, *more: Any) -> bytes:
        if folder.endswith("000002"):
            raise OSError(5, "Input/output error")
        return read(folder, *more)

    with monkeypatch.context() as patched:
        patched.setattr(manifest, "read_inside", fails)
        with pytest.raises(CheckpointError, match=r"000002/manifest.json cannot be read: .*version=1 to"):
            run(tmp_path, steps=1)
        assert run(tmp_path, back_to=1)[0] == 1
    assert run(tmp_path)[0] == 2, "it is still there"
    cut(tmp_path / "run" / "000002" / FILE)
    assert run(tmp_path)[0] == 1
    assert "Version 2 of run is not gone back to: " in caplog.text


def test_where_nothing_can_be_gone_back_to_nothing_begins_anew(tmp_path: Path) -> None:
    run(tmp_path, steps=2)
    with Lock.shared(str(tmp_path / "run" / "000002")) as lock:  # as a cluster has it that reads it
        assert lock is not None
        assert run(tmp_path, steps=1, back_to=1)[0] == 1
    Store(tmp_path).remove("run", 1)
    cut(tmp_path / "run" / "000003" / FILE)
    assert numbers(tmp_path / "run") == [2, 3]
    with pytest.raises(CheckpointError, match=r"000003/manifest.json is not .* \(whole are versions 2\)"):
        run(tmp_path)


def test_a_version_that_was_left_goes_and_one_that_was_gone_back_to_stays(tmp_path: Path) -> None:
    run(tmp_path, steps=3)
    assert run(tmp_path, steps=1, back_to=2)[0] == 2
    # the one that was left is none of the two that stay, and not read when the newest is damaged
    assert numbers(tmp_path / "run") == [2, 4]
    assert run(tmp_path)[0] == 4
    flip(tmp_path / "run" / "000004" / "a" / "c" / "0")
    assert run(tmp_path)[0] == 2


def test_a_version_that_was_left_and_could_not_be_removed_is_read_when_it_is_asked_for_alone(
    tmp_path: Path,
) -> None:
    run(tmp_path, steps=3)
    lock = Lock.shared(str(tmp_path / "run" / "000003"))  # as a cluster has it that reads it
    assert lock is not None
    with lock:
        run(tmp_path, steps=1, back_to=2)
    assert numbers(tmp_path / "run") == [2, 3, 4]
    flip(tmp_path / "run" / "000004" / "a" / "c" / "0")
    assert run(tmp_path) == (2, {"step": 1})
    assert run(tmp_path, steps=1, back_to=3)[0] == 3
    # whoever goes on from it makes it the one that went on
    assert numbers(tmp_path / "run") == [3, 5]


def test_a_version_that_was_left_stays_left_when_the_one_after_it_is_in_memory_alone(
    memory: Path, tmp_path: Path
) -> None:
    run(tmp_path, steps=4)
    home = tmp_path / "run"
    with CheckpointSession("run", levels=("L1", "L3"), store=tmp_path) as session:
        session.add("a", np.zeros(1))
        assert session.restart_all(3) == 3
        home.chmod(0o775)  # a store that is not written to
        with pytest.raises(CheckpointError, match="version 5 of 'run' is in memory alone"):
            session.commit()
        home.chmod(0o755)
        assert session.commit().version == 6
    assert numbers(home) == [3, 6]
    flip(home / "000006" / "a" / "c" / "0")
    assert run(tmp_path, steps=1)[0] == 3
    # also what was left before, by whoever goes on later
    assert numbers(home) == [3, 7]
    assert past_of(Store(tmp_path).find("run").manifest()) == Past(3, ((4, 6),))


def test_a_version_that_was_left_stays_left_when_the_manifest_of_the_one_after_it_is_damaged(
    tmp_path: Path,
) -> None:
    run(tmp_path, steps=4)
    lock = Lock.shared(str(tmp_path / "run" / "000004"))
    assert lock is not None
    with lock:
        run(tmp_path, steps=1, back_to=3)
        run(tmp_path, steps=1)  # the note is carried on
    assert numbers(tmp_path / "run") == [4, 5, 6]
    (tmp_path / "run" / "000005" / FILE).write_text("{")
    flip(tmp_path / "run" / "000006" / "a" / "c" / "0")
    with pytest.raises(CheckpointError, match="is not what was written"):
        run(tmp_path)
    assert run(tmp_path, back_to=4)[0] == 4


def test_a_damaged_newest_version_does_not_bring_back_those_that_it_has_left(tmp_path: Path) -> None:
    run(tmp_path, steps=4)
    lock = Lock.shared(str(tmp_path / "run" / "000004"))  # so that it cannot be removed
    assert lock is not None
    with lock:
        run(tmp_path, steps=1, back_to=3)
    version = Store(tmp_path).find("run")
    assert verify(version) == []
    beside = Path(version.path, BESIDE)
    beside.write_bytes(beside.read_bytes().replace(b"[4,4]", b"[5,5]"))
    assert [each.path for each in verify(version)] == [BESIDE]
    beside.write_bytes(beside.read_bytes().replace(b"[5,5]", b"[4,4]"))
    export(version, tmp_path / "copy")
    for damaged in (version.path, str(tmp_path / "copy")):
        Path(damaged, FILE).write_text("{")
        assert (read_beside(damaged, 5), read_beside(damaged, 6)) == (Past(3, ((4, 4),)), None)
    # whoever collects leaves what is gone back to
    assert Store(tmp_path).collect(keep=1, name="run") == []
    assert run(tmp_path, steps=1)[0] == 3
    assert numbers(tmp_path / "run") == [3, 5, 6]


@given(st.lists(st.integers(0, 12), max_size=12), st.sets(st.integers(1, 12)))
def test_what_the_newest_version_goes_on_from_is_found_whichever_are_gone(
    backs: list[int], gone: set[int]
) -> None:
    """Each version goes on from the one before, or some older one that was gone back to."""
    pasts, lines = {0: Past()}, {0: [0]}
    for number, back in enumerate(backs, 1):
        after = min(back, number - 1)
        pasts[number] = pasts[after].gone_back(after, number - 1)
        lines[number] = [number, *lines[after]]
    there = sorted(set(pasts) - gone - {0}, reverse=True)
    expected = [number for number in lines[max(there, default=0)] if number in there]
    assert list(branch(there, pasts.__getitem__)) == expected
    # one that notes what it goes on from alone, as before there were such notes, while none is gone
    all = range(len(backs), 0, -1)
    assert [*branch(all, lambda number: Past(pasts[number].after)), 0] == lines[len(backs)]
    # what no session has written notes nothing
    assert list(branch(there, lambda _: Past())) == there


def test_in_another_place_with_fewer_versions_none_of_those_to_come_is_one_that_was_left() -> None:
    past = Past(1, ((2, 3),)).gone_back(5, 8)
    assert past.up_to(8) == past == Past(5, ((2, 3), (6, 8)))
    assert past.up_to(7) == Past(5, ((2, 3), (6, 7)))
    assert past.up_to(2) == Past(2, ((2, 2),))
    assert past.up_to(0) == Past(0)


def test_not_more_is_noted_than_there_is_room_for() -> None:
    past = Past(0)
    for number in range(2, 10 * MOST_LEFT, 2):
        past = past.gone_back(number - 1, number)
    assert len(past.left) == MOST_LEFT
    assert past.left[-1] == (number, number)
