"""The trace file of a live scheduler: complete, replayable, and never in the way of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed.utils_test import inc
from helpers import asleep, live, until

import dask_hpc
from dask_hpc.errors import TraceError
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.trace.files import TraceWarning, read_trace
from dask_hpc.trace.records import JobEvent
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
