"""A program that has its arrays itself: added once, written every few steps, read by the next run."""

from __future__ import annotations

import array
import doctest
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from outside import PATHS
from saved import save
from unchanged import unchanged

import dask_hpc
from dask_hpc import CheckpointSession, open_checkpoint
from dask_hpc.checkpoint.locks import Lock
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.cli import hpc
from dask_hpc.errors import (
    CheckpointError,
    CheckpointValueError,
    UnknownCheckpoint,
)
from dask_hpc.session import session as module

#: One of every kind of dtype that xarray and NumPy share.
VALUES = {
    "number": np.arange(12.0).reshape(3, 4),
    "big_endian": np.arange(5, dtype=">i4"),
    "truth": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "long": np.arange(3, dtype=np.longdouble),
    "time": np.array(["2020-01-01T12", "NaT"], "M8[ns]"),
    "day": np.array(["2020-01-01"], "M8[D]"),
    "duration": np.array([3, 4], "m8[s]"),
    "fixed_text": np.array(["a", "bcd"]),
    "text": np.array(["a", "long " * 50], "T"),
    "bytes": np.array([b"a", b"bc"]),
    "record": np.array([(1, 2.5)], [("i", "i2"), ("x", "f8")]),
    "scalar": np.array(7),
    "empty": np.empty((0, 3)),
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
}


def restarted(store: Path, name: str = "run", **arrays: np.ndarray) -> tuple[int | None, dict[str, Any]]:
    with CheckpointSession(name, store=store) as session:
        for path, value in arrays.items():
            session.add(path, value)
        return session.restart_all(), session.values


def saved(store: Path, name: str = "run", steps: int = 1, **arrays: Any) -> None:
    with CheckpointSession(name, store=store) as session:
        for path, value in arrays.items():
            session.add(path, value)
        for step in range(steps):
            session.commit(step=step)


def test_arrays_of_all_dtypes_come_back_in_place_and_as_a_dataset(tmp_path: Path) -> None:
    saved(tmp_path, **VALUES)
    news = {name: np.zeros_like(value) for name, value in VALUES.items()}
    assert restarted(tmp_path, **news) == (1, {"step": 0})
    opened = open_checkpoint(tmp_path / "run" / "000001").compute()
    for name, value in VALUES.items():
        np.testing.assert_array_equal(news[name], value, strict=True)
        np.testing.assert_array_equal(opened[name].values, value)
    assert verify(Store(tmp_path).newest("run")) == []
    # bytes in another order are another form of the same values
    others = {}
    for name in ("number", "big_endian"):
        others[name] = np.zeros_like(VALUES[name], VALUES[name].dtype.newbyteorder())
    restarted(tmp_path, **others)
    for name, value in others.items():
        np.testing.assert_array_equal(value, VALUES[name])


def test_a_version_is_one_for_every_reader(tmp_path: Path) -> None:
    with CheckpointSession("run", store=tmp_path) as session:
        field = session.add("field", np.arange(6.0).reshape(2, 3), dims=("y", "x"))
        session.add("wind", field + 1, dims=("y", "x"))
        commit = session.commit(step=3, title="a", nested={"numbers": (np.int64(1), 2.5)})
    row = commit.status()
    assert (row["version"], row["state"], row["blocks"]) == (1, "complete", 2)
    assert row["held_s"] >= row["writing_s"] + row["finishing_s"] > row["writing_s"] > 0
    expected = xr.Dataset(
        {"field": (("y", "x"), field), "wind": (("y", "x"), field + 1)},
        attrs={"step": 3, "title": "a", "nested": {"numbers": [1, 2.5]}},
    )
    assert commit.path is not None
    xr.testing.assert_identical(open_checkpoint(commit.path).compute(), expected)
    xr.testing.assert_identical(xr.open_zarr(commit.path).compute(), expected)
    listed = CliRunner().invoke(hpc, ["checkpoint", "ls", "--store", str(tmp_path), "--json"])
    assert '"name": "run"' in listed.output
    assert '"complete": true' in listed.output


def test_large_arrays_are_cut_into_blocks_along_the_first_dimension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_hpc.session.shares.MOST_BYTES", 100)
    value = np.arange(77.0).reshape(11, 7)  # 56 bytes an index
    saved(tmp_path, a=value, b=np.arange(30.0))
    plan = Store(tmp_path).newest("run").manifest().plan
    assert [(each.kind, each.chunks[0]) for each in plan.arrays] == [
        ("shard", (1,) * 11), ("shard", (12, 12, 6)),
    ]  # fmt: skip
    back = np.empty_like(value)
    restarted(tmp_path, a=back)
    np.testing.assert_array_equal(back, value)


def test_two_versions_stay_or_none(tmp_path: Path) -> None:
    saved(tmp_path, steps=4, a=np.zeros(3))
    store = Store(tmp_path)
    assert [each.version for each in store.versions()] == [3, 4]
    with CheckpointSession("run", store=tmp_path) as session:
        session.restart()
        session.finalize(persist=False)
    assert store.versions() == []
    # those that a session has not seen are not its own
    saved(tmp_path, steps=2, a=np.zeros(3))
    with CheckpointSession("run", store=tmp_path) as session:
        session.finalize(persist=False)
    assert [each.version for each in store.versions()] == [1, 2]
    # nor does it take from a cluster what that reads
    lock = Lock.shared(store.versions()[0].path)
    assert lock is not None
    with lock, CheckpointSession("run", store=tmp_path) as session:
        session.restart()
        session.finalize(persist=False)
    assert [each.version for each in store.versions()] == [1]


def test_an_old_version_that_cannot_be_removed_costs_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointSession("run", store=tmp_path) as session, monkeypatch.context() as patch:
        session.add("a", np.zeros(3))
        patch.setattr(shutil, "rmtree", os.rmdir)  # which removes what is empty alone
        assert [session.commit().version for _ in range(3)] == [1, 2, 3]
    assert "Old versions of run stay: " in caplog.text
    assert "cannot be removed: Directory not empty; remove it by hand" in caplog.text


def test_buffers_are_written_as_they_are_then_and_other_values_are_copied(tmp_path: Path) -> None:
    numbers, raw, items = array.array("d", [1, 2]), bytearray(b"ab"), [1, 2]
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("numbers", numbers)
        session.add("raw", raw)
        kept = session.add("items", items)
        numbers[0], raw[1], items[0] = 5, 7, 9
        kept[1] = 8
        session.commit()
    found = open_checkpoint(tmp_path / "run" / "000001").compute()
    assert [list(found[name].values) for name in ("numbers", "raw", "items")] == [[5, 2], [97, 7], [1, 8]]


def test_an_array_that_is_added_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("a", np.zeros(3))
        session.commit()
        session.add("a", np.ones(5))
        session.commit()
    assert list(open_checkpoint(tmp_path / "run" / "000002")["a"].values) == [1] * 5


def test_one_array_is_read_or_a_part_of_it_and_the_others_stay(tmp_path: Path) -> None:
    saved(tmp_path, a=np.arange(10.0), b=np.arange(3))
    with CheckpointSession("run", store=tmp_path) as session:
        mine = session.add("a", np.zeros(10))
        other = session.add("b", np.zeros(3, int))
        assert session.restart() == 1
        assert session.restore("a") is mine
        assert list(mine) == list(range(10))
        assert not other.any()
        assert list(session.restore("a", (2, 5))) == [2, 3, 4]
    numbers: Any = {"rank": 0.0, "size": np.float64(1)}
    with CheckpointSession("run", store=tmp_path, **numbers) as session:
        with pytest.raises(CheckpointValueError, match="version is 0; allowed: a whole number, 1 or more"):
            session.restart(0)
        assert session.restart(1.0) == 1  # type: ignore[arg-type]
        # not added: all of it, in a new array
        assert list(session.restore("b")) == [0, 1, 2]
        assert list(session.restore("b", (1.0, np.float64(3)))) == [1, 2]
        for box in ((2, 11), (-1, 2), (3, 2), (1,), (0.5, 2), "ab"):
            with pytest.raises(CheckpointValueError, match=r"box is .*allowed for 'a' of the shape \(10,\)"):
                session.restore("a", box)  # type: ignore[arg-type]
        with pytest.raises(CheckpointValueError, match="has no array 'c'; it has a, b"):
            session.restore("c")


def test_a_first_run_has_nothing_to_go_back_to(tmp_path: Path) -> None:
    assert restarted(tmp_path, a=np.zeros(3)) == (None, {})
    with CheckpointSession("run", store=tmp_path) as session:
        assert session.restart() is None
        assert session.state == "idle"


def test_an_older_version_is_gone_back_to_and_the_next_one_has_the_next_number(tmp_path: Path) -> None:
    saved(tmp_path, steps=3, a=np.zeros(1))
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("a", np.zeros(1))
        with unchanged(tmp_path), pytest.raises(UnknownCheckpoint, match=r"no version 9 .* there are 2, 3"):
            session.restart_all(9)
        assert session.restart_all(2) == 2
        assert session.values == {"step": 1}
        assert session.commit().version == 4


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def test_a_damaged_version_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointSession("run", store=tmp_path) as session:
        a = session.add("a", np.zeros(2))
        for step in (1, 2):
            a[:] = step
            session.commit(step=step)
    flip(tmp_path / "run" / "000002" / "a" / "c" / "0")
    back = np.zeros(2)
    assert restarted(tmp_path, a=back) == (1, {"step": 1})
    assert list(back) == [1, 1]
    assert "Version 2 of run is not gone back to: " in caplog.text
    flip(tmp_path / "run" / "000001" / "a" / "c" / "0")
    with (
        unchanged(tmp_path),
        pytest.raises(CheckpointError, match=r"000002/a/c/0 is not what was written.*restore another"),
    ):
        restarted(tmp_path, a=back)
    for version in (1, 2):
        flip(tmp_path / "run" / f"00000{version}" / "manifest.json")
    with unchanged(tmp_path), pytest.raises(CheckpointError, match="not a manifest as it was written"):
        restarted(tmp_path, a=back)


def test_without_waiting_a_version_has_the_arrays_as_they_were(tmp_path: Path) -> None:
    with CheckpointSession("run", store=tmp_path) as session:
        a = session.add("a", np.zeros(1000))
        session.enable_async()
        commits, copies = [], []
        for step in range(3):
            a[:] = step
            commits.append(session.commit(step=step))
            copies.append(session._copies["a"].value)
            a[:] = -1
        assert [each.version for each in commits[:2]] == [1, 2]  # each waits for the one before
        assert commits[2].wait().version == 3
        for row in [each.status() for each in commits]:
            assert row["held_s"] >= row["waiting_s"] + row["copying_s"] > row["copying_s"] > 0
        assert all(each is copies[0] for each in copies)  # they take memory once
        session.enable_async(False)
        assert session._copies == {}
        assert session.commit(step=9).version == 4
    back = np.empty(1000)
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("a", back)
        session.restart_all(3)
    assert set(back) == {2}


def test_what_goes_wrong_meanwhile_is_told_and_the_next_version_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    session = CheckpointSession("run", store=store).init()
    session.add("a", np.zeros(3))
    session.enable_async()
    (store / "run").write_text("in the way")
    commit = session.commit()
    with pytest.raises(CheckpointError, match="run"):
        commit.wait()
    assert commit.status()["state"] == "failed"
    assert "run has no new version" in caplog.text
    (store / "run").unlink()
    assert session.commit().wait("1 min").version == 1
    flag = store / "run" / "000009"
    flag.mkdir()
    session.commit()
    with pytest.raises(CheckpointError, match="has version 9 of 'run', which this session has neither"):
        session.finalize()
    assert session.state == "ended"


def test_versions_of_a_run_that_was_not_gone_on_from_are_not_replaced(tmp_path: Path) -> None:
    saved(tmp_path, a=np.zeros(3))
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("a", np.ones(3))
        with (
            unchanged(tmp_path),
            pytest.raises(CheckpointError, match=r"call restart\(\) or restart_all\(\) before the first"),
        ):
            session.commit()
        # nothing has happened: it may do that now, and leave the arrays as they are
        session.restart()
        assert session.commit().version == 2


def test_another_run_of_that_name_at_the_same_time_is_noticed(tmp_path: Path) -> None:
    with CheckpointSession("run", store=tmp_path) as one, CheckpointSession("run", store=tmp_path) as other:
        one.add("a", np.zeros(3))
        other.add("a", np.ones(3))
        one.commit()
        with unchanged(tmp_path), pytest.raises(CheckpointError, match="has version 1 of 'run'"):
            other.commit()
    assert [each.version for each in Store(tmp_path).versions()] == [1]


def test_what_no_session_has_written_is_not_gone_back_to(tmp_path: Path) -> None:
    save(da.zeros(3), tmp_path, "run")
    with (
        unchanged(tmp_path),
        pytest.raises(CheckpointValueError, match=r"is of kind dask\.array, which no session has written"),
    ):
        restarted(tmp_path, a=np.zeros(3))


def test_a_dataset_of_a_cluster_is_gone_back_to_whatever_its_chunks_are(tmp_path: Path) -> None:
    value = np.arange(30.0).reshape(5, 6)
    save(
        xr.Dataset({"a": (("y", "x"), da.from_array(value, chunks=(2, 4)))}, attrs={"step": 4}),
        tmp_path,
        "run",
    )
    back = np.zeros((5, 6))
    assert restarted(tmp_path, a=back) == (1, {"step": 4})
    np.testing.assert_array_equal(back, value)


def test_a_probe_says_whether_there_is_another_store_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    monkeypatch.setenv("DASK_HPC__CHECKPOINT__STORE", first)
    with dask.config.set({"hpc.checkpoint.store": first}), CheckpointSession("run") as session:
        session.add("a", np.zeros(3))
        session.commit()
        found = session.probe_agents()
        assert (found.changed, found.store, found.problem) == (False, first, None)
        monkeypatch.setenv("DASK_HPC__CHECKPOINT__STORE", second)
        found = session.probe_agents()
        assert (found.changed, found.store, found.problem) == (True, second, None)
        assert session.state == "idle"
        assert session.commit().path == f"{second}/run/000001"
        # what cannot be taken is not
        saved(Path(third), a=np.zeros(3))
        for wrong, says in (("elsewhere", "elsewhere"), (third, "has versions of 'run' already")):
            monkeypatch.setenv("DASK_HPC__CHECKPOINT__STORE", wrong)
            found = session.probe_agents()
            assert (found.changed, found.store) == (False, second)
            assert found.problem is not None
            assert says in found.problem
        assert session.commit().path == f"{second}/run/000002"


def test_an_error_of_the_program_ends_the_session_and_leaves_its_versions(tmp_path: Path) -> None:
    session = CheckpointSession("run", store=tmp_path)

    def program() -> None:
        with session:
            session.add("a", np.zeros(3))
            session.enable_async()
            session.commit()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert session.state == "ended"
    assert [each.complete for each in Store(tmp_path).versions()] == [True]


def test_the_example_of_the_class_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(CheckpointSession, "CheckpointSession", module=module)
    result = doctest.DocTestRunner().run(example)
    assert (result.failed, result.attempted) == (0, 4)


def test_a_session_needs_no_cluster_library() -> None:
    code = "import sys, dask_hpc; dask_hpc.CheckpointSession; print('distributed' in sys.modules)"
    environment = dict(os.environ, PYTHONPATH=PATHS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "False", done.stderr
    assert dask_hpc.CheckpointSession is CheckpointSession
