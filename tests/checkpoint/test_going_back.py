"""Going back to an older version: those after it are left, and nothing goes back to them by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint.branch import branch
from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.versions import numbers


def run(store: Path, steps: int = 0, back_to: int | None = None) -> tuple[int | None, dict[str, Any]]:
    with CheckpointSession("run", store=store) as session:
        session.add("a", np.zeros(1))
        found = session.restart_all(back_to)
        for step in range(steps):
            session.commit(step=step)
        return found, session.values


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


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


@given(st.lists(st.integers(0, 9), max_size=10), st.sets(st.integers(1, 10)))
def test_what_the_newest_version_goes_on_from_is_found_whichever_are_gone(
    afters: list[int], gone: set[int]
) -> None:
    told = {number: min(after, number - 1) for number, after in enumerate(afters, 1)}
    there = sorted(set(told) - gone, reverse=True)
    if not there:
        assert list(branch(there, told.__getitem__)) == []
        return
    line, at = [], there[0]
    while at:
        line.append(at)
        at = told[at]
    found = list(branch(there, told.__getitem__))
    if not gone:
        assert found == line
    assert found[0] == there[0]
    # nothing that was left while what says so is there
    assert all(not told[newer] < number < newer for newer in found for number in found)
    assert list(branch(there, lambda _: None)) == there
