"""Where the versions of a session go, as the memories of hosts come and go."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint.record import write_record
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError
from dask_hpc.session import memory
from dask_hpc.session import places as module
from dask_hpc.session.held import held
from dask_hpc.session.places import Places
from dask_hpc.session.ranks import Ranks


class Hosts:
    """Memories of hosts, which can be had or not."""

    problem: str | None = ""

    def __init__(self, *_: Any) -> None:
        self.newest, self.closed = 0, False

    def open(self) -> str:
        made.append(self)
        if self.problem is None:
            raise KeyboardInterrupt
        return self.problem

    def close(self) -> None:
        self.closed = True


made: list[Hosts] = []


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(memory, "Memory", Hosts)
    made.clear()
    return Places("run", Ranks(0, 1, None), Store(str(tmp_path)), ("L1", "L3"), "plain", None)


def test_memories_that_can_be_had_by_now_change_the_places_once(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hosts, "problem", "no manager is there")
    places.open()
    found = places.probe()
    assert (found.changed, found.problem, found.memory) == (False, "no manager is there", False)
    monkeypatch.setattr(Hosts, "problem", "")
    found = places.probe()
    assert (found.changed, found.problem, found.memory) == (True, None, True)
    assert not places.probe().changed
    assert [one.closed for one in made] == [True, True, False]


def test_memories_that_cannot_be_had_are_tried_again_after_a_while_and_not_before(
    places: Places, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Hosts, "problem", "no manager is there")
    places.open()
    arrays = {"a": held("a", np.zeros(3), None, None)}
    for number in (1, 2):
        assert places.write(arrays, {}).version == number
    assert len(made) == 1
    assert caplog.text.count("is not in all memories: L1: no manager is there") == 1
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)
    assert places.write(arrays, {}).levels == ("L3",)
    assert len(made) == 2


def test_memories_whose_opening_is_broken_off_are_let_go_of(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hosts, "problem", None)
    with pytest.raises(KeyboardInterrupt):
        places.open()
    assert [one.closed for one in made] == [True]


FULL = r"cannot be written to: No space left on device; free some space .* set hpc\.node\.memory-folder"


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_memory_without_room_for_a_folder_has_versions_go_to_the_store(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_hpc.session.memory.Host", full)
    with pytest.raises(CheckpointError, match=f"no version can be written: {memory} {FULL}"):
        CheckpointSession("run", levels="L1").init()
    with CheckpointSession("run", store=tmp_path, levels=("L1", "L3")) as session:
        session.add("field", np.arange(3))
        assert session.commit().status()["levels"] == ["L3"]
        # no file of the system is wanted any more by then
        monkeypatch.undo()
        assert session.probe_agents().memory
        assert session.commit().status()["levels"] == ["L1", "L3"]
        session.finalize(persist=False)


def test_a_manager_without_room_says_where_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match=f"{tmp_path} {FULL}"):
        write_record(str(tmp_path), "0" * 32, "text")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("stored", [False, True])
def test_a_folder_in_memory_that_somebody_removes_is_made_anew(
    tmp_path: Path, memory: Path, stored: bool
) -> None:
    levels = ("L1", "L3") if stored else ("L1",)
    with CheckpointSession("run", store=tmp_path if stored else None, levels=levels) as session:
        field = session.add("field", np.zeros(3))
        session.commit()
        for folder in memory.iterdir():
            shutil.rmtree(folder)
        field[:] = 1.0
        if stored:
            status = session.commit().status()
            assert status["levels"] == ["L3"]
            assert "removed" in status["reason"]
            assert session.probe_agents().changed
        else:
            with pytest.raises(CheckpointError, match="removed"):
                session.commit()
        field[:] = 2.0
        assert session.commit().status()["levels"] == list(levels)
    with CheckpointSession("run", store=tmp_path if stored else None, levels=levels) as session:
        field = session.add("field", np.zeros(3))
        session.restart_all()
        assert (field == 2.0).all()
        session.finalize(persist=False)


@pytest.mark.parametrize("how", ["removed", "emptied", "other folder", "kept"])
def test_a_session_says_that_its_store_is_another_one_by_now(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    with CheckpointSession("run", store=store) as session:
        session.add("field", np.arange(3))
        session.commit()
        session.commit()
        if how == "removed":
            shutil.rmtree(store)
        elif how == "emptied":
            shutil.rmtree(store / "run")
        elif how == "other folder":
            store.rename(tmp_path / "mounted")
            store.mkdir()
        assert session.commit().version == 3
        session.commit()
    told = [text for text in caplog.messages if f"Version 2 of run is not in {store} any more" in text]
    assert len(told) == (how != "kept")
    assert "a mount that has gone" in caplog.text or how == "kept"


def test_for_room_the_newest_version_is_not_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    session, gone = memory.Memory.__new__(memory.Memory), list[int]()
    records = {str(n): SimpleNamespace(manifest=SimpleNamespace(version=n)) for n in (3, 1, 2)}
    monkeypatch.setattr(session, "_records", records, raising=False)
    monkeypatch.setattr(session, "_calls", lambda call: None, raising=False)
    monkeypatch.setattr(session, "_let_go", lambda older: gone.extend(x.manifest.version for x in older))
    assert session._made_room([], "id")
    assert gone == [1, 2]
    del records["1"], records["2"]
    assert not session._made_room([], "id")
    assert gone == [1, 2]
