"""What a session refuses: calls out of order, and what cannot be stored. Nothing has changed then."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from unchanged import unchanged

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError, CheckpointTypeError, CheckpointValueError, DaskHPCError
from dask_hpc.session.commit import SessionCommit

#: What contains itself.
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("calls", "allowed"),
    [
        ("commit", "init"),
        ("init init", "add, enable_async, restart, restart_all, commit, probe_agents, finalize"),
        ("init restore", "add, enable_async, restart, restart_all, commit, probe_agents, finalize"),
        ("init add commit restart", "add, enable_async, commit, probe_agents, finalize"),
        ("init add restart_all restart", "add, enable_async, commit, probe_agents, finalize"),
        ("init finalize commit", "nothing"),
        ("init finalize finalize", "nothing"),
    ],
)
def test_calls_out_of_order_are_refused_and_change_nothing(tmp_path: Path, calls: str, allowed: str) -> None:
    session = CheckpointSession("run", store=tmp_path)
    arguments = {"add": ("a", np.zeros(3)), "restore": ("a",)}
    *before, last = calls.split()
    for call in before:
        getattr(session, call)(*arguments.get(call, ()))
    state = session.state
    with unchanged(tmp_path), pytest.raises(CheckpointError) as refused:
        getattr(session, last)(*arguments.get(last, ()))
    assert str(refused.value).endswith(f"cannot {last!r}; legal now: {allowed}")
    assert session.state == state


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("a", da.zeros(3)), "not in this process; use"),
        (("a", [1, "x", None]), "of type list and dtype object; allowed: numbers"),
        (("a", np.array([(1, None)], [("i", "i2"), ("o", "O")])), "allowed: numbers"),
        (("a", np.empty(3, "V0")), "allowed: numbers"),
        (("a", [[1], [1, 2]]), "of which NumPy says"),
        (("a", np.ma.zeros(3)), "add its data and its mask"),
        (("../a", np.zeros(3)), "cannot be a folder of a checkpoint; allowed"),
        (("ü" * 101, np.zeros(3)), "allowed: text of at most 200 bytes"),
        (("a\n", np.zeros(3)), "cannot be a folder of a checkpoint; allowed"),
        ((3, np.zeros(3)), "the variable 3 cannot be a folder"),
        (("manifest.json", np.zeros(3)), r"none of \.manifest.json, manifest.json, past.json, zarr.json"),
        (("a", np.zeros(3), {"dims": ("x", "y")}), "allowed: 1 different names"),
        (("a", np.zeros((3, 3)), {"dims": ("x", "x")}), "allowed: 2 different names"),
        (("a", np.zeros(3), {"dims": "x"}), "allowed: 1 different names"),
        (("a", np.zeros(3), {"dims": ("\udc80",)}), "allowed: 1 different names"),
        (("a", np.zeros(()), {"dims": 5}), "dims is 5; allowed: 0 different names"),
        (("a", np.zeros(3), {"start": -1}), "start is -1; allowed"),
        (("a", np.zeros(()), {"start": 0}), "start is 0; allowed"),
        (("a", np.zeros(3), {"start": True}), "start is True; allowed"),
    ],
)  # fmt: skip
def test_what_cannot_be_added_is_refused_with_the_remedy(
    tmp_path: Path, arguments: tuple[Any, ...], says: str
) -> None:
    with CheckpointSession("run", store=tmp_path) as session:
        options = arguments[2] if len(arguments) > 2 else {}
        refused = pytest.raises((CheckpointTypeError, CheckpointValueError), match=says)
        with unchanged(tmp_path), refused:
            session.add(*arguments[:2], **options)
    assert Store(tmp_path).versions() == []


@pytest.mark.parametrize(
    ("arrays", "values", "says"),
    [
        ({}, {}, r"nothing to write: add\(name, array\) first"),
        (
            {"a": ("x",)},
            {"step": np.zeros(3, "M8[ns]")},
            r"a value of commit is of type datetime64\[ns\]; allowed",
        ),
        ({"a": ("x",)}, {"step": {1: "one"}}, "a value of commit is of type dict with the key 1; allowed"),
        ({"a": ("x",)}, {"step": "\ud800"}, "is text with half of a surrogate pair; allowed"),
        ({"a": ("x",)}, {"\ud800": 1}, "is text with half of a surrogate pair; allowed"),
        ({"a": ("x",)}, {"step": CYCLE}, "a value of commit is maximum recursion depth exceeded"),
        ({"a": ("b",), "b": ("x",)}, {}, "'b' is the name of an array and of a dimension"),
        ({"a": ("x",), "longer": ("x",)}, {}, "do not go together: .*with dims="),
    ],
)
def test_what_cannot_be_committed_is_refused_and_the_session_goes_on(
    tmp_path: Path, arrays: dict[str, Any], values: dict[str, Any], says: str
) -> None:
    with CheckpointSession("run", store=tmp_path) as session:
        for number, (name, dims) in enumerate(arrays.items()):
            session.add(name, np.zeros(3 + number), dims=dims)
        with unchanged(tmp_path), pytest.raises(DaskHPCError, match=says):
            session.commit(**values)
        assert Store(tmp_path).versions() == []
        for name in arrays:
            session.add(name, np.zeros(3))
        session.add("fine", np.zeros(3))
        assert session.commit().version == 1


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (np.zeros(4), r"is float64 of the shape \(4,\) here, and float64 of the shape \(3,\) in .*add one"),
        (np.zeros(3, "f4"), "is float32 of the shape"),
        (np.broadcast_to(0.0, 3), "cannot be written to; add a copy"),
    ],
)
def test_an_array_that_cannot_take_what_is_stored_is_refused(
    tmp_path: Path, other: np.ndarray, says: str
) -> None:
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("a", np.ones(3))
        session.commit()
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("a", other)
        with unchanged(tmp_path), pytest.raises(CheckpointValueError, match=says):
            session.restart_all()
        assert session.state == "configuring"
        session.add("a", np.zeros(3), start=1)
        with pytest.raises(CheckpointValueError, match="has the indices 1 to 4 here, and 0 to 3 in"):
            session.restart_all()
        mine = session.add("a", np.zeros(3))
        assert session.restart_all() == 1
        assert mine.all()


def test_bad_arguments_are_refused_at_once(tmp_path: Path) -> None:
    for name in ("../x", "", None):
        with pytest.raises(ValueError, match="is no name for a checkpoint"):
            CheckpointSession(name, store=tmp_path)  # type: ignore[arg-type]
    for store in ("", "a\0b", "s3://bucket/store"):
        with pytest.raises(CheckpointValueError, match="allowed: the path of a folder"):
            CheckpointSession("run", store=store)
    for gives in (None, {}, [], [{}, {}]):
        with pytest.raises(CheckpointError, match=r"exchange has given .*; needed: a list of what each"):
            CheckpointSession("run", store=tmp_path, exchange=lambda _, gives=gives: gives).init().finalize()
    for rank, size in ((1, 1), (-1, 2), (0, 0), ("0", 1), (0.5, 2), (False, 1)):
        with pytest.raises(CheckpointValueError, match="allowed: rank from 0 to size - 1"):
            CheckpointSession("run", store=tmp_path, rank=rank, size=size)  # type: ignore[arg-type]
    with (
        dask.config.set({"hpc.checkpoint.key-file": None}),
        pytest.raises(CheckpointError, match="no key is named"),
    ):
        CheckpointSession("run", store=tmp_path, services="encrypt")
    with pytest.raises(ValueError, match="timeout"):
        CheckpointSession("run", store=tmp_path, timeout="soon")
    under_way = SessionCommit("run")
    with pytest.raises(ValueError, match="timeout"):
        under_way.wait("soon")
    with pytest.raises(TimeoutError, match="'run' is not whole after 0 s; it goes on"):
        under_way.wait(0)
    with (
        dask.config.set({"hpc.checkpoint.store": None}),
        pytest.raises(ValueError, match="no store is named"),
    ):
        CheckpointSession("run", levels="L3")
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path)}):
        assert str(tmp_path) in repr(CheckpointSession("run"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written to: .*set hpc.checkpoint.store"):
        CheckpointSession("run", store=blocked / "store").init()
    assert list(tmp_path.iterdir()) == [blocked]
    with pytest.raises(CheckpointTypeError, match="stays in its process"):
        copy.copy(CheckpointSession("run", store=tmp_path))
    with CheckpointSession("run", store=tmp_path) as session:
        with pytest.raises(ValueError, match="'on' cannot be 'maybe': it must be true or false"):
            session.enable_async("maybe")  # type: ignore[arg-type]
        session.enable_async(np.False_)  # type: ignore[arg-type]
        session.add("a", np.zeros(3))
        version = session.commit().path
        for persist in (None, 0, [], "store"):
            with pytest.raises(ValueError, match=r"'persist' cannot be .* true or false"):
                session.finalize(persist=persist)  # type: ignore[arg-type]
        assert session.state == "idle"
    assert Path(str(version)).is_dir()


def test_a_child_of_a_process_takes_no_part_in_its_session(tmp_path: Path) -> None:
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("x", np.zeros(3))
        session.commit(step=1)
        if not os.fork():
            done = 1
            try:
                # what the others would be told
                session._ranks.give_up = lambda reason: os._exit(2)  # type: ignore[method-assign]
                session.__exit__(SystemExit, SystemExit(), None)
                with pytest.raises(CheckpointError, match=r"of process \d+, of which this one was forked"):
                    session.commit(step=2)
                done = 0
            finally:
                os._exit(done)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert session.commit(step=2).version == 2
