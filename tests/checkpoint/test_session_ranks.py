"""Several processes that write one version: each its part, whole when all have; read by as many as like."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from outside import until

from dask_hpc import CheckpointSession, open_checkpoint
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError, CheckpointValueError
from dask_hpc.session import shares
from dask_hpc.session.exchange import FolderExchange
from dask_hpc.session.places import Places
from dask_hpc.session.shares import cut

WHOLE = np.arange(60.0).reshape(20, 3)


def bounds(size: int, length: int = 20) -> list[int]:
    return [rank * length // size for rank in range(size + 1)]


def everywhere(size: int, program: Callable[[int], Any]) -> list[Any]:
    """What a program gives on each rank, an error included; a thread stands for a process."""

    def caught(rank: int) -> Any:
        try:
            return program(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(caught, range(size)))


def session(store: Path, rank: int, size: int, **options: Any) -> CheckpointSession:
    return CheckpointSession("run", store=store, rank=rank, size=size, **{"timeout": 20, **options})


def write(
    store: Path, size: int, at: Sequence[int] | None = None, steps: int = 1, **options: Any
) -> list[Any]:
    """Versions of `WHOLE` in blocks, plus the number of the step."""
    at = at or bounds(size)

    def program(rank: int) -> Any:
        with session(store, rank, size, **options) as mine:
            block = mine.add("field", WHOLE[at[rank] : at[rank + 1]].copy(), dims=("y", "x"), start=at[rank])
            mine.add("same", np.arange(4))
            mine.restart_all()
            found = []
            for step in range(mine.values.get("step", -1) + 1, mine.values.get("step", -1) + 1 + steps):
                block[:] = WHOLE[at[rank] : at[rank + 1]] + step
                found.append(mine.commit(step=step).version)
            return found

    return everywhere(size, program)


def test_what_ranks_write_is_one_dataset_and_what_they_read_is_theirs(tmp_path: Path) -> None:
    assert write(tmp_path, 4, steps=2) == [[1, 2]] * 4
    newest = Store(tmp_path).newest("run")
    assert verify(newest) == []
    expected = xr.Dataset(
        {"field": (("y", "x"), WHOLE + 1), "same": ("same.0", np.arange(4))}, attrs={"step": 1}
    )
    xr.testing.assert_identical(open_checkpoint(newest.path).compute(), expected)
    xr.testing.assert_identical(xr.open_zarr(newest.path).compute(), expected)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (4, 2), (3, 5), (2, 2)])
def test_a_run_of_another_size_gives_each_rank_its_new_block(tmp_path: Path, before: int, after: int) -> None:
    write(tmp_path, before)
    at = bounds(after)

    def program(rank: int) -> Any:
        with session(tmp_path, rank, after) as mine:
            block = mine.add("field", np.zeros((at[rank + 1] - at[rank], 3)), start=at[rank])
            version, state = mine.restart(), mine.state
            assert mine.restore("field") is block
            np.testing.assert_array_equal(block, WHOLE[at[rank] : at[rank + 1]])
            np.testing.assert_array_equal(mine.restore("field", (3, 7)), WHOLE[3:7])
            return version, state

    state = "restoring" if before == after else "redistributing"
    assert everywhere(after, program) == [(1, state)] * after


@pytest.mark.parametrize(("most", "kind"), [(16, "shard"), (1, "apart")])
def test_blocks_may_be_of_any_length_and_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, kind: str
) -> None:
    monkeypatch.setattr(shares, "_MOST_PIECES", most)
    starts = {0: (7, 20), 1: (7, 7), 2: (0, 7)}

    def program(rank: int) -> Any:
        with session(tmp_path, rank, 3) as mine:
            start, stop = starts[rank]
            mine.add("field", WHOLE[start:stop], start=np.int64(start))  # type: ignore[arg-type]
            return mine.commit().version

    assert everywhere(3, program) == [1] * 3
    version = Store(tmp_path).newest("run")
    assert version.manifest().plan.arrays[0].kind == kind
    np.testing.assert_array_equal(open_checkpoint(version.path)["field"].values, WHOLE)


def refused(tmp_path: Path, add: Callable[[CheckpointSession, int], Any], **values: Any) -> list[Any]:
    def program(rank: int) -> Any:
        with session(tmp_path, rank, 2) as mine:
            add(mine, rank)
            mine.commit(**{name: value[rank] for name, value in values.items()})

    return everywhere(2, program)


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (lambda s, r: s.add("a", np.zeros(3), start=4 * r), "a gap at index 3: the part of rank 1"),
        (lambda s, r: s.add("a", np.zeros(3), start=2 * r), "an overlap at index 2"),
        (lambda s, r: s.add("a", np.zeros(3) + r), r"other values in rank 1 .* add\(\.\.\., start=\.\.\.\)"),
        (lambda s, r: s.add("a", np.array([f"{r}"], "T")), "other values in rank 1"),
        (lambda s, r: s.add("a", np.zeros(3 + r)), r"of rank 1 is float64 of the shape \(4,\)"),
        (lambda s, r: s.add("a", np.zeros(3, f"f{4 + 4 * r}"), start=3 * r), "allowed: one dtype"),
        (lambda s, r: s.add("a", np.zeros(3), start=[None, 0][r]), "all of them or none with start="),
        (lambda s, r: s.add("ab"[r], np.zeros(3)), "not all processes have added .* rank 1 has b"),
    ],
)
def test_shares_that_make_nothing_up_are_refused_by_all_and_nothing_is_written(
    tmp_path: Path, add: Callable[[CheckpointSession, int], Any], says: str
) -> None:
    errors = refused(tmp_path, add)
    for error in errors:
        with pytest.raises(CheckpointValueError, match=says):
            raise error
    assert Store(tmp_path).versions() == []


def test_ranks_that_say_different_things_of_a_version_are_refused(tmp_path: Path) -> None:
    for error in refused(tmp_path, lambda s, r: s.add("a", np.zeros(3)), step=(1, 2)):
        assert "other values in some processes" in str(error)
    nan = float("nan")
    assert refused(tmp_path, lambda s, r: s.add("a", np.zeros(3)), time=(nan, nan)) == [None, None]


def test_what_fails_in_one_process_fails_in_all_and_the_next_version_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_hpc.session import in_store

    real, once = in_store.write_blocks, threading.Event()

    def failing(folder: str, array: Any, numbers: Sequence[int], values: Sequence[Any]) -> Any:
        if array.path == "field" and 8 in numbers and not once.is_set():
            once.set()
            raise OSError("no space left")
        return real(folder, array, numbers, values)

    monkeypatch.setattr(in_store, "write_blocks", failing)
    at = bounds(3)

    def program(rank: int) -> Any:
        with session(tmp_path, rank, 3) as mine:
            mine.add("field", WHOLE[at[rank] : at[rank + 1]], start=at[rank])
            with pytest.raises((CheckpointError, OSError)) as failed:
                mine.commit()
            assert Store(tmp_path).versions() == [] or rank  # rank 0 has removed it when it says so
            return str(failed.value), mine.commit().version

    texts = everywhere(3, program)
    assert [each[1] for each in texts] == [1] * 3
    assert sorted({each[0] for each in texts}) == [
        "no space left",
        "rank 1 has failed: OSError: no space left",
    ]


def test_all_go_back_to_the_version_that_all_can_read(tmp_path: Path) -> None:
    write(tmp_path, 2, steps=2)
    path = tmp_path / "run" / "000002" / "field" / "c" / "0" / "0"
    content = bytearray(path.read_bytes())
    content[4096] ^= 1  # of the block of rank 1
    path.write_bytes(content)
    at = bounds(2)

    def program(rank: int) -> Any:
        with session(tmp_path, rank, 2) as mine:
            block = mine.add("field", np.zeros((10, 3)), start=at[rank])
            return mine.restart_all(), mine.values, block[0, 0]

    assert everywhere(2, program) == [(1, {"step": 0}, 0), (1, {"step": 0}, 30)]


def test_ranks_may_speak_by_a_call_of_the_user_and_nothing_else_is_in_the_store(tmp_path: Path) -> None:
    said: list[Any] = [None, None]
    barrier = threading.Barrier(2)

    def gather(rank: int) -> Callable[[Any], list[Any]]:
        def exchange(value: Any) -> list[Any]:
            said[rank] = value
            barrier.wait(20)
            found = list(said)
            barrier.wait(20)
            return found

        return exchange

    def program(rank: int) -> Any:
        with session(tmp_path, rank, 2, exchange=gather(rank)) as mine:
            mine.add("field", WHOLE[10 * rank : 10 * rank + 10], start=10 * rank)
            mine.enable_async()
            return mine.commit().wait().version

    assert everywhere(2, program) == [1, 1]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["000001"]


def test_what_a_killed_run_has_left_is_no_answer_and_what_a_live_one_has_is_refused(tmp_path: Path) -> None:
    exchanges = everywhere(2, lambda rank: FolderExchange(tmp_path, rank, 2, 20))
    assert everywhere(2, lambda rank: exchanges[rank](rank)) == [[0, 1]] * 2
    with pytest.raises(CheckpointError, match=r"another run has .*give this session another name"):
        FolderExchange(tmp_path, 0, 2, 0.1)
    left = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert [path.name for path in left[0].iterdir()] == ["1"]  # of all rounds the last answer
    exchanges[0]._release()  # as the end of its process does
    again = everywhere(2, lambda rank: FolderExchange(tmp_path, rank, 2, 20))
    assert everywhere(2, lambda rank: again[rank]("new")) == [["new", "new"]] * 2
    until(lambda: not left[0].exists(), "what was left is removed")
    everywhere(2, lambda rank: again[rank].close())
    assert [path.name for path in tmp_path.iterdir()] == ["call"]


def test_the_answer_of_a_run_that_was_killed_is_not_taken_by_who_comes_first(tmp_path: Path) -> None:
    killed = everywhere(2, lambda rank: FolderExchange(tmp_path, rank, 2, 20))
    killed[0]._release()  # as the end of its process does
    (left,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (left / "0").exists()
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(FolderExchange, tmp_path, 1, 2, 20)
        until((left / "0-1").exists, "it has answered who is dead")
        assert not second.done()
        first = pool.submit(FolderExchange, tmp_path, 0, 2, 20)
        exchanges = [first.result(), second.result()]
    assert everywhere(2, lambda rank: exchanges[rank](rank)) == [[0, 1]] * 2


def test_a_session_that_could_not_begin_leaves_its_folder_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Places) -> None:
        raise CheckpointError("another run has the memory of this host")

    def begins(rank: int) -> int:
        with session(tmp_path, rank, 2) as mine:
            mine.add("field", WHOLE[10 * rank :][:10], start=10 * rank)
            return mine.commit().version

    with monkeypatch.context() as patched:
        patched.setattr(Places, "open", fails)
        assert all("another run" in str(each) for each in everywhere(2, begins))
        again = [session(tmp_path, rank, 2) for rank in range(2)]
        assert all("another run" in str(each) for each in everywhere(2, lambda rank: again[rank].init()))
    assert everywhere(2, begins) == [1, 1]
    # and a session that is begun again
    assert [each.state for each in everywhere(2, lambda rank: again[rank].init())] == ["configuring"] * 2
    everywhere(2, lambda rank: again[rank].finalize())


def test_what_lies_between_the_fields_of_a_record_is_not_compared(tmp_path: Path) -> None:
    dtype = np.dtype([("a", "i1"), ("b", "f8")], align=True)

    def program(rank: int) -> int:
        value = np.frombuffer(bytes([rank]) * 2 * dtype.itemsize, dtype).copy()
        value["a"], value["b"] = 1, 2.0
        with session(tmp_path, rank, 2) as mine:
            mine.add("record", value)
            return mine.commit().version

    assert everywhere(2, program) == [1, 1]


def test_who_does_not_come_or_gives_up_is_named_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    exchanges = everywhere(3, lambda rank: FolderExchange(tmp_path, rank, 3, 20))
    exchanges[2].give_up("it was told to")
    for rank, error in enumerate(everywhere(2, lambda rank: exchanges[rank](rank))):
        assert str(error).startswith(f"rank {rank} of 3 cannot go on: rank 2 has given up: it was told to")
    with pytest.raises(CheckpointError, match="rank 2 has given up"):
        exchanges[0](1)
    # what it has said stays for those that come later
    first, second = everywhere(2, lambda rank: FolderExchange(tmp_path / "later", rank, 2, 20))
    first.give_up("its disk is full")
    first.close()
    with pytest.raises(CheckpointError, match="rank 0 has given up: its disk is full"):
        second(1)
    for rank in (0, 1):
        with pytest.raises(CheckpointError, match=r"has waited 0\.05 s for"):
            FolderExchange(tmp_path / f"{rank}", rank, 2, 0.05)
    sizes = everywhere(2, lambda rank: FolderExchange(tmp_path / "sizes", rank, 2 + rank, 20))
    FolderExchange(tmp_path / "sizes", 0, 1, 20).close()  # they have left it to others
    assert {str(error)[:50] for error in sizes} == {
        "the processes do not know how many they are: 2, 3; "[:50]
    }


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 4000))
def test_blocks_on_disk_fill_the_dimension_and_none_is_in_two_ranges(lengths: list[int], unit: int) -> None:
    at = [0, *np.cumsum([n * unit for n in lengths]).tolist()]
    index_bytes = 2**20
    found = cut(at, index_bytes)
    assert sum(found) == at[-1]
    assert set(at) <= {0, *np.cumsum(found).tolist()}
    assert max(found) * index_bytes <= shares.MOST_BYTES
    least = sum(-(-(b - a) // 64) for a, b in pairwise(at))
    assert len(found) <= 16 * least


@pytest.mark.parametrize(
    ("at", "found"),
    [
        ([0, 100], (100,)),
        ([0, 25, 50, 75, 100], (25,) * 4),
        ([0, 4, 7, 10], (1,) * 10),  # rows: few enough
        ([0, 334, 667, 1000], (334, 333, 333)),  # else an array a block
        ([0, 334, 668, 1001], (334, 334, 333)),
    ],
)
def test_blocks_are_as_equal_as_plain_readers_need_where_that_costs_little(
    at: list[int], found: tuple[int, ...]
) -> None:
    assert cut(at, 8) == found


def test_versions_stay_as_long_as_one_process_wants_them(tmp_path: Path) -> None:
    def program(rank: int) -> None:
        mine = session(tmp_path, rank, 2).init()
        mine.add("a", np.ones(2))
        mine.commit()
        mine.finalize(persist=rank == 1)

    assert everywhere(2, program) == [None, None]
    assert [each.version for each in Store(tmp_path).versions()] == [1]
