"""The runtime as a preload of the scheduler: by configuration and on the command line."""

from __future__ import annotations

import subprocess
import sys

import dask
import pytest
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_test, inc, popen

import dask_hpc
from dask_hpc import wire
from dask_hpc.scheduler.internals import selfcheck

PRELOAD = {"distributed.scheduler.preload": ["dask_hpc.preload"]}


async def _one_job(client):
    rt = await dask_hpc.runtime(client)
    async with rt.job("main", nodes=1) as job:
        future = client.submit(inc, 1)
    assert (await job.wait(20))["state"] == "completed"
    assert await future == 2
    return rt


@gen_test()
async def test_a_preload_in_the_configuration_gives_the_runtime():
    with dask.config.set(PRELOAD):
        async with (
            Scheduler(dashboard_address=":0", port=0) as s,
            Worker(s.address, name="one"),
            Client(s.address, asynchronous=True) as c,
        ):
            assert s.plugins.get("dask-hpc") is None
            rt = await _one_job(c)
            # the three ways give the same runtime
            assert await dask_hpc.install(c) is rt


@gen_test()
async def test_settings_come_from_the_scheduler_configuration():
    with dask.config.set({**PRELOAD, "hpc.policy": "equipartition", "hpc.lock": "system"}):
        async with (
            Scheduler(dashboard_address=":0", port=0) as s,
            Client(s.address, asynchronous=True) as c,
        ):
            status = await (await dask_hpc.runtime(c)).status()
            assert status["policy"]["policy"] == "equipartition"
            assert status["settings"]["lock"] == "system"


@pytest.mark.errors("is not installed on this scheduler")
@pytest.mark.parametrize("trouble", ["internals", "policy"])
@gen_test()
async def test_a_preload_that_cannot_install_leaves_the_scheduler_running(trouble, monkeypatch, caplog):
    config = dict(PRELOAD)
    if trouble == "internals":
        monkeypatch.setattr(selfcheck, "check", lambda: ["Scheduler.something is missing"])
        words = "Scheduler.something is missing"
    else:
        config["hpc.policy"] = "no-such-policy"
        words = "no-such-policy"
    with dask.config.set(config):
        async with (
            Scheduler(dashboard_address=":0", port=0) as s,
            Worker(s.address),
            Client(s.address, asynchronous=True) as c,
        ):
            assert wire.RPC not in s.handlers
            assert await c.submit(inc, 1) == 2
    (record,) = [r for r in caplog.records if r.name == "dask_hpc.preload"]
    assert words in record.getMessage()


@gen_test()
async def test_a_worker_that_preloads_what_is_the_schedulers_is_told_so_and_works(caplog):
    with dask.config.set(PRELOAD | {"distributed.worker.preload": ["dask_hpc.preload"]}):
        async with (
            Scheduler(dashboard_address=":0", port=0) as s,
            Worker(s.address, name="one"),
            Client(s.address, asynchronous=True) as c,
        ):
            await _one_job(c)
    (record,) = [r for r in caplog.records if r.name == "dask_hpc.preload"]
    assert record.levelname == "WARNING"
    assert "does nothing in a worker; --preload dask_hpc.agent" in record.getMessage()


def test_a_client_loads_nothing_of_the_scheduler_and_of_what_nobody_has_asked_for():
    names = ["pandas", "xarray", "dask.array", "dask_hpc_policies.registry", "dask_hpc.scheduler.install"]
    code = f"import sys, dask_hpc; dask_hpc.install; print(*[n for n in {names} if n in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "\n"


def test_a_preload_on_the_command_line(tmp_path, loop, monkeypatch):
    # nothing that others have left in memory is found there
    monkeypatch.setenv("DASK_HPC__NODE__MEMORY_FOLDER", str(tmp_path))
    file = str(tmp_path / "scheduler.json")
    start = [sys.executable, "-m", "dask"]
    scheduler = [*start, "scheduler", "--no-dashboard", "--port", "0", "--scheduler-file", file]
    worker = [*start, "worker", "--no-dashboard", "--scheduler-file", file]
    with (
        popen([*scheduler, "--preload", "dask_hpc.preload"]),
        popen([*worker, "--nthreads", "1", "--no-nanny", "--preload", "dask_hpc.agent"]),
        Client(scheduler_file=file, loop=loop, timeout=30) as client,
    ):
        client.wait_for_workers(1, timeout=30)
        assert all(client.run(lambda dask_worker: "dask-hpc" in dask_worker.plugins).values())
        rt = dask_hpc.runtime(client)
        with rt.job("main", nodes=1) as job:
            future = client.submit(inc, 1)
        assert job.wait(20)["state"] == "completed"
        assert future.result() == 2
        # of what nobody has asked for, a worker loads nothing: each takes its time when it starts
        theirs = ("host_memory", "manager", "coupling.receiver", "power.section", "io.tasks")
        names = ["dask_hpc_policies.decision", *(f"dask_hpc.worker.{name}" for name in theirs)]
        (loaded,) = client.run(lambda: list(__import__("sys").modules)).values()
        assert [name for name in ("dask_hpc.agent", *names) if name in loaded] == ["dask_hpc.agent"]
