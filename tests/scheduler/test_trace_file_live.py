"""The trace file of a live scheduler: complete, replayable, and never in the way of jobs."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.utils_test import inc
from helpers import Gate, asleep, live, until

import dask_hpc
from dask_hpc.checkpoint import store_threads
from dask_hpc.errors import TraceError
from dask_hpc.scheduler.core import tracing
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.trace.files import TraceWarning, read_trace
from dask_hpc.trace.records import Header, JobEvent, encode_line
from dask_hpc.trace.replay import replay


@live()
async def test_the_file_holds_the_whole_run_and_replays(c, s, *workers):
    path = Path(str(workers[0].local_directory)) / "trace.jsonl.gz"
    rt = await dask_hpc.install(c, trace_path=str(path))
    for name in ("first", "second"):
        async with rt.job(name, nodes=1, min_nodes=1, max_nodes=2) as job:
            futures = c.map(inc, range(20), pure=False)
        await job.wait(10)
        assert await c.gather(futures) == list(range(1, 21))
        await asleep(s)
    await rt.uninstall()
    trace = read_trace(path)
    ends = [r.job for r in trace.records if isinstance(r, JobEvent) and r.state == "completed"]
    assert ends == ["first-1", "second-3"]
    assert replay(trace).ok


@live()
async def test_the_file_is_whole_while_the_runtime_sleeps(c, s, *workers):
    path = Path(str(workers[0].local_directory)) / "trace.jsonl.gz"
    rt = await dask_hpc.install(c, trace_path=str(path), tick_s=60)
    async with rt.job("short", nodes=1) as job:
        assert await c.submit(inc, 1) == 2
    await job.wait(10)
    await asleep(s)
    await until(lambda: records_in(path) == len(of(s).engine.state.records), "all records are in the file")


def records_in(path):
    """How many records are in the file; none while it is being written to."""
    try:
        return len(read_trace(path).records)
    except TraceWarning:
        return None


@live(workers=2)
async def test_a_path_that_is_changed_ends_one_file_and_begins_another(c, s, *workers):
    folder = Path(str(workers[0].local_directory))
    paths = [str(folder / "one.jsonl"), str(folder / "two.jsonl"), None]
    rt = await dask_hpc.install(c, trace_path=paths[0])
    for number, path in enumerate(paths):
        await rt.update(trace_path=path)
        async with rt.job(f"job{number}", nodes=1) as job:
            assert await c.submit(inc, number) == number + 1
        await job.wait(10)
        # a file that has ended hears of nothing more
        assert len(of(s).engine.state.listeners) == (path is not None)
    await asleep(s)
    for number, path in enumerate(paths[:2]):
        jobs = {record.name for record in read_trace(path).records if isinstance(record, JobEvent)}
        assert f"job{number}" in jobs
        assert not jobs & {f"job{other}" for other in range(3) if other != number}


@live()
async def test_a_path_that_cannot_be_written_is_refused_and_changes_nothing(c, s, *workers):
    with pytest.raises(TraceError, match=r"/proc/nowhere/trace.jsonl.*hpc\.trace\.path"):
        await dask_hpc.install(c, trace_path="/proc/nowhere/trace.jsonl")
    assert "hpc" not in s.handlers
    rt = await dask_hpc.install(c)
    with pytest.raises(TraceError):
        await rt.update("fcfs", trace_path="/proc/nowhere/trace.jsonl")
    assert (await rt.status())["policy"]["policy"] == "fair"


@live()
async def test_an_update_that_is_refused_leaves_the_file_that_is_there(c, s, *workers, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("an earlier run\n")
    rt = await dask_hpc.install(c)
    for _ in range(2):
        with pytest.raises(ValueError, match="unknown parameter"):
            await rt.update("fcfs", stride=2, trace_path=str(path))
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(path.name, "an earlier run\n")]
    await rt.update("fcfs", trace_path=str(path))
    assert path.with_name("trace.jsonl.previous").read_text() == "an earlier run\n"


@live()
async def test_two_updates_at_once_open_a_file_once(c, s, *workers, tmp_path, monkeypatch):
    path, both, checked = tmp_path / "trace.jsonl", threading.Event(), []
    path.write_text("an earlier run\n")
    rt = await dask_hpc.install(c)
    opened, check = tracing.TraceFile, of(s)._check

    def opens(*args):
        both.wait(10)
        return opened(*args)

    async def checks(wanted):
        await check(wanted)
        checked.append(wanted)

    monkeypatch.setattr(tracing, "TraceFile", opens)
    monkeypatch.setattr(of(s), "_check", checks)
    updates = asyncio.gather(*[rt.update(trace_path=str(path)) for _ in range(2)])
    await until(lambda: len(checked) == 2, "both are about to open it")
    both.set()
    await updates
    assert path.with_name("trace.jsonl.previous").read_text() == "an earlier run\n"
    async with rt.job("main", nodes=1) as job:
        assert await c.submit(inc, 1) == 2
    await job.wait(10)
    await asleep(s)
    assert "main" in {record.name for record in read_trace(path).records if isinstance(record, JobEvent)}


@pytest.mark.errors("Going on without a trace file")
@live(config={"hpc.trace.path": "/proc/nowhere/trace.jsonl"})
async def test_a_configured_path_that_cannot_be_written_costs_the_file_and_nothing_else(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1) as job:
        future = c.submit(inc, 1)
    assert (await job.wait(10))["state"] == "completed"
    assert await future == 2
    assert len(await rt.trace()) > 3


@pytest.mark.parametrize("value", ["", 5])
def test_a_path_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match=r"hpc\.trace\.path is .* allowed: a path, or none"):
        dask_hpc.config.settings({"trace": {"path": value}})


@live()
async def test_a_path_that_hangs_is_refused_and_keeps_nobody(c, s, *workers, tmp_path, monkeypatch):
    path, opening, opened = tmp_path / "pipe", threading.Event(), Path.open
    os.mkfifo(path)

    def seen(file, *args, **more):
        if file == path:
            opening.set()
        return opened(file, *args, **more)

    monkeypatch.setattr(Path, "open", seen)
    rt = await dask_hpc.install(c)
    with monkeypatch.context() as patch:
        patch.setattr(store_threads, "PATIENCE_S", 0.3)
        with pytest.raises(TraceError, match=r"not answered within 0.3 s; set hpc\.trace\.path"):
            await rt.update("fcfs", trace_path=str(path))
    assert (await rt.status())["policy"]["policy"] == "fair"
    opening.clear()
    update = asyncio.ensure_future(rt.update("fcfs", trace_path=str(path)))
    await until(opening.is_set, "it is being opened, while the loop goes on")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert (await update)["policy"]["policy"] == "fcfs"
    await rt.update(trace_path=None)
    # the one that was refused as well: without a reader it would wait for ever
    await until(lambda: all(each.name != "hpc-store" for each in threading.enumerate()), "both are open")
    os.close(reader)


@pytest.mark.errors("the end of the trace")
@live()
async def test_a_file_that_hangs_while_it_is_written_can_be_left(c, s, *workers, tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "PATIENCE_S", 0.3)
    rt = await dask_hpc.install(c, trace_path=str(tmp_path / "one.jsonl"), tick="50 ms")
    gate = Gate()

    def hangs(record):
        line = encode_line(record)
        return line if isinstance(record, Header) else gate.wait(line)

    async with rt.job("first", nodes=1) as job:
        assert await c.submit(inc, 1) == 2
        monkeypatch.setattr("dask_hpc.trace.files.encode_line", hangs)
        await until(lambda: gate.arrived, "it hangs")
        path = tmp_path / "two.jsonl"
        await rt.update(trace_path=str(path))
        assert len(read_trace(path).records) == 0
        gate.open()
    await job.wait(10)
    await until(lambda: records_in(path), "what happens since is in the other file")


def test_a_flush_that_hangs_is_the_only_one_of_its_file_and_keeps_none_from_the_next(tmp_path):
    begun: list[Future[None]] = []

    def spawn(work: Any) -> Any:
        work.close()
        begun.append(Future())
        return begun[-1]

    state: Any = SimpleNamespace(listeners=[], clock=SimpleNamespace(started="2026-01-01T00:00:00+00:00"))
    files = tracing.Tracing(state, spawn)
    files.to(str(tmp_path / "one.jsonl"))
    for at_s, count in ((1.0, 1), (2.0, 1)):
        files.tick(at_s)
        assert len(begun) == count
    begun[0].set_result(None)
    files.tick(3.0)
    assert len(begun) == 2
    files.to(str(tmp_path / "two.jsonl"))
    files.tick(4.0)
    assert len(begun) == 3
    files.close()


def test_what_comes_while_a_file_is_written_is_written_before_the_flush_ends():
    class Fills:
        left = 3

        @property
        def pending(self) -> bool:
            return self.left > 0

        def flush(self) -> None:
            self.left -= 1

    file: Any = Fills()
    asyncio.run(tracing._flush(file))
    assert not file.pending
