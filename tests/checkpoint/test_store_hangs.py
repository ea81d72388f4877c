"""A store whose mount hangs: who restores from it, or lists it, hears so in time, and can be interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from command_line import refused, run
from helpers import live
from saved import save

import dask_hpc
from dask_hpc.checkpoint import inside, store_threads
from dask_hpc.checkpoint import store as stores
from dask_hpc.checkpoint.store_threads import Asked
from dask_hpc.client import checkpoints
from dask_hpc.errors import CheckpointError

TOLD = r"the store .* has not answered for 0\.2 s: .*hpc\.checkpoint\.silence"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A store in which no folder can be listed before it opens."""
    opens, found = threading.Event(), stores.numbered

    def numbered(*arguments: Any) -> Any:
        assert opens.wait(60)
        return found(*arguments)

    monkeypatch.setattr(stores, "numbered", numbered)
    with dask.config.set({"hpc.checkpoint.silence": "200 ms"}):
        yield opens
    opens.set()


@live(workers=1, config={"hpc.checkpoint.silence": "200 ms"})
async def test_restoring_from_a_store_that_hangs_ends_with_what_to_do(c, s, a, tmp_path, gate, monkeypatch):
    with pytest.raises(CheckpointError, match=TOLD):
        await dask_hpc.restore("field", c, store=tmp_path)

    async def in_memory(*_):
        return {"records": ("damaged",), "version": 3, "why": ""}

    # what is in memory is taken, and maybe not the newest
    monkeypatch.setattr(checkpoints, "_in_memory", in_memory)
    told = pytest.warns(UserWarning, match=r"version 3 of 'field' is .* may have a later one: " + TOLD)
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path)}), told, pytest.raises(CheckpointError):
        await dask_hpc.restore("field", c)
    gate.set()


@pytest.mark.parametrize("command", [("ls",), ("status",), ("verify", "field")])
def test_a_command_says_so_too(tmp_path: Path, gate: threading.Event, command: tuple[str, ...]) -> None:
    (tmp_path / "field").mkdir()
    result = run("checkpoint", *command, "--store", str(tmp_path))
    assert result.exit_code == 1
    assert str(tmp_path) in result.output
    assert "hpc.checkpoint.silence" in result.output


def test_a_command_says_what_to_do_about_a_mount_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dir = Path.is_dir

    def stale(path: Path) -> bool:
        if path == tmp_path:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", stale)
    result = run("checkpoint", "ls", "--store", str(tmp_path))
    monkeypatch.undo()
    refused(result, 1, f"the store {tmp_path} cannot be read: Stale file handle; look at")


def test_an_export_takes_as_long_as_the_disk_that_it_goes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(da.arange(10), tmp_path / "store")
    takes_s = iter([0.5])
    monkeypatch.setattr(inside.os, "fsync", lambda _: time.sleep(next(takes_s, 0)))
    with dask.config.set({"hpc.checkpoint.silence": "100 ms"}):
        run("checkpoint", "export", "field", str(tmp_path / "copy"), "--store", str(tmp_path / "store"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "store"]


def test_what_gets_on_is_waited_for_however_long_it_takes() -> None:
    def works() -> str:
        until_s = time.monotonic() + 0.7
        while time.monotonic() < until_s:
            sum(range(1000))
        return "done"

    ask = Asked("/store", 0.2)
    assert ask(works) == "done"
    assert asyncio.run(ask.soon(works)) == "done"


def test_who_looks_late_had_no_processor_and_goes_on_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> str:
        assert looked.wait(60)
        return "done"

    def hours_later() -> float:
        now_s = 3600.0 * next(looks)
        if now_s > 2 * 3600.0:
            looked.set()
        return now_s

    monkeypatch.setattr(store_threads, "_LOOK_S", 0.01)
    monkeypatch.setattr(store_threads, "stopwatch_s", hours_later)
    looks, looked = itertools.count(), threading.Event()
    assert Asked("/store", 60.0)(told) == "done"
    looks, looked = itertools.count(), threading.Event()
    assert asyncio.run(Asked("/store", 60.0).soon(told)) == "done"


def test_what_the_store_raises_is_raised() -> None:
    def gone() -> None:
        raise TimeoutError("of the file system")

    with pytest.raises(TimeoutError, match="of the file system"):
        Asked("/store", 0.2)(gone)
    with pytest.raises(TimeoutError, match="of the file system"):
        asyncio.run(Asked("/store", 0.2).soon(gone))


def test_a_silence_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with dask.config.set({"hpc.checkpoint.silence": "soon"}):
        result = run("checkpoint", "ls", "--store", str(tmp_path))
    refused(result, 1, "hpc.checkpoint.silence is 'soon'; allowed: ")


def test_whoever_waits_for_a_store_can_be_interrupted_and_ends(tmp_path: Path) -> None:
    """As at a terminal: the process ends though its thread still waits."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = (
        "from dask_hpc.checkpoint.store_threads import Asked\n"
        f"Asked('/store', 60.0)(lambda: (print('asks', flush=True), open({str(fifo)!r}))[1])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "asks\n"
            process.send_signal(2)
            assert process.wait(20) != 0
            assert process.stderr.read().rstrip().endswith("KeyboardInterrupt")
        finally:
            process.kill()


def test_who_was_told_of_an_error_and_went_on_is_not_kept_by_it() -> None:
    class Held:
        pass

    def fails() -> None:
        raise CheckpointError("there is none")

    async def one_that_goes_on() -> weakref.ref[Held]:
        held = Held()
        with contextlib.suppress(CheckpointError):
            await Asked("store", 30.0).soon(fails)
        with contextlib.suppress(CheckpointError):
            Asked("store", 30.0)(fails)
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        held, until_s = asyncio.run(one_that_goes_on()), time.monotonic() + 30
        while held() is not None:
            assert time.monotonic() < until_s, "only the collector of garbage would let go of it"
            time.sleep(0.01)
    finally:
        gc.enable()


def test_a_command_itself_asks_nothing_of_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits in the kernel for a mount cannot be interrupted, nor killed."""
    save(da.arange(10), tmp_path / "store")
    asking, stat = [], os.stat

    def seen(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path)):
            asking.append(threading.current_thread())
        return stat(path, *arguments, **more)

    monkeypatch.setattr(os, "stat", seen)
    for command in (("ls",), ("status",), ("verify", "field"), ("gc", "--keep", "1", "--dry-run")):
        assert run("checkpoint", *command, "--store", str(tmp_path / "store")).exit_code == 0
    assert asking
    assert threading.main_thread() not in asking


def test_a_mount_that_hangs_keeps_no_other_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "_LOOK_S", 0.01)
    monkeypatch.setattr(store_threads, "_STILL_S", 0.05)
    monkeypatch.setattr(store_threads, "_MOST", 3)
    monkeypatch.setattr(store_threads, "_WITH_STILL", 5)
    threads, opens = store_threads._Threads(), threading.Event()
    hangs = [threads.begin(opens.wait) for _ in range(4)]
    assert threads.begin(lambda: "another").result(30) == "another"
    # more than that never come
    hangs.append(threads.begin(opens.wait))
    late = threads.begin(lambda: "late")
    with pytest.raises(TimeoutError):
        late.result(1)
    opens.set()
    assert late.result(30) == "late"
    assert all(one.result(30) for one in hangs)


def test_threads_that_get_on_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "_LOOK_S", 0.01)
    monkeypatch.setattr(store_threads, "_STILL_S", 10.0)
    monkeypatch.setattr(store_threads, "_MOST", 2)
    threads, all_wait, names = store_threads._Threads(), threading.Event(), set()

    def works() -> None:
        assert all_wait.wait(30)
        names.add(threading.get_ident())

    begun = [threads.begin(works) for _ in range(20)]
    all_wait.set()
    for one in begun:
        one.result(30)
    assert 1 <= len(names) <= 2
