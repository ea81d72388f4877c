"""A session whose store hangs: each call ends or can be interrupted; what was given up never comes to be."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from outside import until

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint import draft
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError
from dask_hpc.session import exchange, going_back, in_store, memory

TOLD = r"the store .* has not answered for 0\.2 s: .*hpc\.checkpoint\.silence"
#: What reads or writes a store, by a path first.
CALLS = ("open", "mkdir", "rename", "unlink", "rmdir", "stat", "lstat", "listdir", "scandir", "walk")


class Gate:
    """What has to wait before it opens; `asking` says that somebody does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._opens, self.asking = monkeypatch, threading.Event(), threading.Event()

    def before(self, owner: Any, name: str) -> None:
        """Have a function wait for it."""
        function = getattr(owner, name)

        def waits(*arguments: Any, **more: Any) -> Any:
            self.asking.set()
            assert self._opens.wait(30), "nobody has opened the gate"
            return function(*arguments, **more)

        self._monkeypatch.setattr(owner, name, waits)

    def open(self) -> None:
        self._opens.set()


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Interrupts the test, whatever whoever runs it has made of the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    with dask.config.set({"hpc.checkpoint.silence": "200 ms"}):
        yield made
    made.open()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a version, of which all is 1."""
    with CheckpointSession("run", store=tmp_path) as session:
        session.add("field", np.ones(3))
        session.commit(step=1)
    return tmp_path


def begun(store: Path) -> tuple[CheckpointSession, np.ndarray]:
    session = CheckpointSession("run", store=store).init()
    return session, session.add("field", np.zeros(3))


def test_a_session_does_not_begin(store: Path, gate: Gate) -> None:
    gate.before(Store, "problem")
    with pytest.raises(CheckpointError, match=TOLD):
        CheckpointSession("run", store=store).init()


@pytest.mark.parametrize("name", ["_candidates", "_opened", "load"])
def test_a_restart_ends_and_no_array_is_written_to_afterwards(store: Path, gate: Gate, name: str) -> None:
    session, field = begun(store)
    gate.before(going_back, name)
    with pytest.raises(CheckpointError, match=TOLD):
        session.restart_all()
    gate.open()
    field[:] = 7.0
    assert session.state == "configuring"
    assert session.restart() == 1
    assert (field == 7.0).all()
    assert (session.restore("field") == 1.0).all()
    session.finalize()


def test_no_older_version_is_taken_for_one_that_cannot_be_read_just_now(store: Path, gate: Gate) -> None:
    session, _ = begun(store)
    session.restart_all()
    session.commit(step=2)
    session.finalize()
    session, _ = begun(store)
    opened, hangs = going_back._opened, [True]

    def once(*arguments: Any) -> Any:
        if hangs:
            hangs.clear()
            gate._opens.wait(30)
        return opened(*arguments)

    gate._monkeypatch.setattr(going_back, "_opened", once)
    with pytest.raises(CheckpointError, match=TOLD):
        session.restart_all()
    gate.open()
    assert session.restart_all() == 2


def test_a_probe_says_so(store: Path, gate: Gate) -> None:
    session, _ = begun(store)
    session.restart_all()
    gate.before(Store, "problem")
    assert "has not answered for 0.2 s" in str(session.probe_agents().problem)
    gate.open()
    assert session.commit().version == 2


def test_removing_ends(store: Path, gate: Gate) -> None:
    session, _ = begun(store)
    session.restart_all()
    gate.before(Store, "remove")
    with pytest.raises(CheckpointError, match=TOLD):
        session.finalize(persist=False)
    assert session.state == "ended"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Store, "begin"),
        (in_store, "write_blocks"),
        (draft, "sync_folders"),
        (draft, "rename"),
        (draft, "sync_folder"),
        (in_store, "check_newest"),
    ],
)
def test_a_commit_can_be_interrupted_and_is_never_finished(
    store: Path, gate: Gate, ctrl_c: Any, owner: Any, name: str, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(in_store, "PATIENCE_S", 0.2)
    session, field = begun(store)
    session.restart_all()
    field[:] = 2.0
    gate.before(owner, name)

    def interrupts() -> None:
        gate.asking.wait(30)
        until(lambda: "Goes on waiting: the store" in caplog.text, "it said that it waits")
        ctrl_c()

    interrupting = threading.Thread(target=interrupts)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        session.commit(step=2)
    interrupting.join(30)
    gate.open()
    # what was begun has ended, and has left nothing
    until(lambda: not [one for one in threading.enumerate() if one.name == "hpc-store"], "all was left")
    assert os.listdir(store / "run") == ["000001"]
    field[:] = 3.0
    assert session.commit(step=3).version == 2
    session.finalize()
    session, field = begun(store)
    assert session.restart_all() == 2
    assert (field == 3.0).all()


def test_who_does_not_wait_until_older_versions_are_removed_goes_on_from_the_new_one(
    store: Path, gate: Gate, ctrl_c: Any
) -> None:
    session, field = begun(store)
    session.restart_all()
    gate.before(Store, "collect")
    interrupting = threading.Thread(target=lambda: (gate.asking.wait(30), ctrl_c()))
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        session.commit(step=2)
    interrupting.join(30)
    gate.open()
    field[:] = 3.0
    assert session.commit(step=3).version == 3
    session.finalize()


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(("slow", "number"), [("keep", 2), ("_drop_record", 3)])
def test_what_is_interrupted_on_its_way_to_memory_takes_no_later_version_away(
    ctrl_c: Any, slow: str, number: int, monkeypatch: Any
) -> None:
    """Before hosts have it there is no such version; while older ones are dropped there is."""
    began, ended, goes_on = threading.Event(), threading.Event(), threading.Event()
    owner = memory if slow == "keep" else memory.Memory
    function = getattr(owner, slow)

    async def waits(*arguments: Any) -> Any:
        if goes_on.is_set():
            return await function(*arguments)
        began.set()
        try:
            while not goes_on.is_set():
                await asyncio.sleep(0.01)
            return await function(*arguments)
        finally:
            ended.set()

    session = CheckpointSession("run", levels="L1").init()
    field = session.add("field", np.zeros(3))
    session.commit(step=1)
    monkeypatch.setattr(owner, slow, waits)
    interrupting = threading.Thread(target=lambda: (began.wait(30), ctrl_c()))
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        session.commit(step=2)
    interrupting.join(30)
    assert ended.wait(30), "it is given up"
    goes_on.set()
    field[:] = 3.0
    assert session.commit(step=3).version == number
    session.finalize()
    with CheckpointSession("run", levels="L1") as session:
        field = session.add("field", np.zeros(3))
        assert (session.restart_all(), session.values) == (number, {"step": 3})
        assert (field == 3.0).all()
        session.finalize(persist=False)


def test_a_version_is_written_while_its_program_waits_when_no_thread_can_be_had(
    store: Path, monkeypatch: Any
) -> None:
    session, _ = begun(store)
    session.restart_all()
    session.enable_async()
    start = threading.Thread.start

    def none(thread: threading.Thread) -> None:
        if thread.name != "hpc-store":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none)
    assert session.commit(step=2).status()["state"] == "complete"
    session.finalize()


def test_a_program_that_is_interrupted_again_ends_its_session(store: Path, gate: Gate, ctrl_c: Any) -> None:
    session, _ = begun(store)
    session.restart_all()
    session.enable_async()
    gate.before(Store, "begin")

    def leaves() -> bool:
        """Whether the test waits, as it leaves the session, for the version that is being written."""
        frame: Any = sys._current_frames()[threading.main_thread().ident or 0]
        names = set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return {"__exit__", "_settle", "wait"} <= names

    def interrupts() -> None:
        gate.asking.wait(30)
        until(leaves, "it leaves")
        ctrl_c()

    interrupting = threading.Thread(target=interrupts)

    def runs() -> None:
        with session:
            commits.append(session.commit())
            interrupting.start()
            raise ValueError("of the program")

    commits: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        runs()
    interrupting.join(30)
    assert session.state == "ended"
    gate.open()
    assert commits[0].wait(30).version == 2


def test_whoever_calls_asks_nothing_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits in the kernel for a mount cannot be interrupted."""
    asking: dict[threading.Thread, str] = {}

    def seen(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **more: Any) -> Any:
            if str(path).startswith(str(tmp_path)):
                asking[threading.current_thread()] = name
            return function(path, *arguments, **more)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, seen(name, getattr(os, name)))
    other = threading.Thread(target=_lives, args=(tmp_path, 1))
    other.start()
    _lives(tmp_path, 0)
    other.join(30)
    assert asking
    assert {threading.current_thread(), other}.isdisjoint(asking), asking


def _lives(store: Path, rank: int) -> None:
    with CheckpointSession("run", store=store, rank=rank, size=2, timeout=20) as session:
        session.add("field", np.zeros(3), start=3 * rank)
        session.restart_all()
        session.commit(step=1)
        session.enable_async()
        session.commit(step=2).wait()
        session.probe_agents()
    with CheckpointSession("run", store=store, rank=rank, size=2, timeout=20) as session:
        session.add("field", np.zeros(3), start=3 * rank)
        assert session.restart() == 2
        session.restore("field")
        session.finalize(persist=False)


@pytest.mark.parametrize("name", ["_open", "_round_of", "_leave"])
def test_processes_that_speak_through_the_store_give_it_up_in_time(
    tmp_path: Path, gate: Gate, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    gate.before(exchange.FolderExchange, name)
    if name == "_leave":
        one = exchange.FolderExchange(tmp_path / "folder", 0, 1, 0.2)
        one.close()
        return
    with pytest.raises(CheckpointError, match=r"cannot go on: .*folder has not answered for 0\.2 s"):
        exchange.FolderExchange(tmp_path / "folder", 0, 1, 0.2)


def test_who_has_waited_for_the_others_in_vain_does_not_wait_as_long_to_leave(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = exchange.FolderExchange(tmp_path / "folder", 0, 1, 20.0)
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.2)
    one._failed = "the store has not answered"
    gate.before(exchange.FolderExchange, "_leave")
    began_s = time.monotonic()
    one.close()
    assert time.monotonic() - began_s < 10
