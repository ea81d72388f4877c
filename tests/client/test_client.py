"""The ways to switch the runtime on and off, and what refuses it."""

from __future__ import annotations

import asyncio
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.security import Security
from distributed.utils_test import gen_cluster, gen_test, inc, popen
from helpers import until

import dask_hpc
from dask_hpc import wire
from dask_hpc.client.job import _pool_hint
from dask_hpc.client.known import workers_of
from dask_hpc.errors import InstallError
from dask_hpc.scheduler.internals import selfcheck

FOUR = [("127.0.0.1", 1)] * 4


def installed(scheduler):
    return wire.RPC in scheduler.handlers


@gen_cluster(client=True, nthreads=FOUR)
async def test_installing_twice_gives_one_runtime(c, s, *workers):
    first = await dask_hpc.install(c)
    handler = s.handlers["hpc"]
    second = await dask_hpc.install(c)
    assert second is first is await dask_hpc.runtime(c)
    assert s.handlers["hpc"] == handler
    async with Client(s.address, asynchronous=True) as other:
        third = await dask_hpc.install(other, "fcfs")
        assert third is not first
        assert s.handlers["hpc"] == handler
        assert (await first.status())["policy"]["policy"] == "fcfs"
    # once more without a policy: what runs stays
    await dask_hpc.install(c)
    assert (await first.status())["policy"]["policy"] == "fcfs"


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_graph_does_not_wait_because_a_job_was_opened_before_it(c, s, *workers):
    runtime = await dask_hpc.install(c)
    stream = c.scheduler_comm
    stream.interval = 3600.0  # so long Dask waits after a message for more of them
    async with runtime.job("short") as job:
        await until(lambda: not stream.buffer, "the job's message has gone")
        future = c.submit(inc, 1)
        assert await asyncio.wait_for(future.result(), 20) == 2
    await until(lambda: not stream.buffer, "the job's last message has gone")
    after = c.submit(inc, 2)
    assert await asyncio.wait_for(after.result(), 20) == 3
    await job.wait(20)


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_runtime_that_is_not_installed_says_how_to_install_it(c, s, *workers):
    with pytest.raises(InstallError, match=r"dask_hpc\.install"):
        await dask_hpc.runtime(c)
    assert await c.submit(inc, 1) == 2


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_client_of_another_version_is_refused(c, s, *workers, monkeypatch):
    handlers, plugins = dict(s.handlers), dict(s.plugins)
    # the package has a function of the module's name
    client_runtime = sys.modules["dask_hpc.client.runtime"]
    original = client_runtime.bootstrap

    async def old_client(version, dask_scheduler=None, **kwargs):
        return await original("0.0.1", dask_scheduler=dask_scheduler, **kwargs)

    monkeypatch.setattr(client_runtime, "bootstrap", old_client)
    with pytest.raises(InstallError, match=rf"0\.0\.1.*{re.escape(dask_hpc.__version__)}"):
        await dask_hpc.install(c)
    assert (s.handlers, s.plugins) == (handlers, plugins)
    assert await c.submit(inc, 1) == 2


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_runtime_of_another_version_is_not_found(c, s, *workers, monkeypatch):
    await dask_hpc.install(c)  # as a preload does, which asks nobody
    monkeypatch.setattr(sys.modules["dask_hpc.client.runtime"], "__version__", "0.0.1")
    with pytest.raises(InstallError, match=rf"0\.0\.1.*{re.escape(dask_hpc.__version__)}"):
        await dask_hpc.runtime(c)
    monkeypatch.undo()
    assert await dask_hpc.runtime(c) is await dask_hpc.install(c)


@gen_cluster(client=True, nthreads=FOUR)
async def test_internals_that_are_not_as_expected_are_refused(c, s, *workers, monkeypatch):
    handlers, plugins, streams = dict(s.handlers), dict(s.plugins), dict(s.stream_handlers)
    monkeypatch.delattr("distributed.scheduler._task_slots_available")
    with pytest.raises(InstallError, match="_task_slots_available is missing"):
        await dask_hpc.install(c)
    assert (s.handlers, s.plugins, s.stream_handlers) == (handlers, plugins, streams)
    monkeypatch.undo()
    assert await c.submit(inc, 1) == 2
    await dask_hpc.install(c)


@gen_cluster(client=True, nthreads=FOUR)
async def test_internals_that_change_after_installing_refuse_the_job(c, s, *workers, monkeypatch):
    rt = await dask_hpc.install(c)
    monkeypatch.setattr(selfcheck, "check", lambda: ["Scheduler.something is missing"])
    with pytest.raises(InstallError, match=r"Scheduler\.something is missing"):
        async with rt.job("main"):
            pytest.fail("entered")
    assert list(await rt.jobs()) == []
    assert "dask-hpc" not in s.plugins
    assert await c.submit(inc, 1) == 2


def _environment(folder: Path | None = None):
    """The environment of a process that has our dependencies, and our packages only by `folder`."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if folder is not None:
        kept["PYTHONPATH"] = os.pathsep.join(str(folder / part) for part in (".", "policies", "widgets"))
    return kept


def _without_us(tmp_path: Path):
    """An environment in which `dask_hpc` cannot be imported, however it is installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['dask_hpc'] = None\nsys.modules['dask_hpc_policies'] = None\n"
    )
    return {**_environment(), "PYTHONPATH": str(tmp_path), "DASK_CONFIG": str(tmp_path)}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], timeout=60)
async def test_a_worker_without_the_package_is_refused(c, s, a, tmp_path):
    handlers, plugins = dict(s.handlers), dict(s.plugins)
    command = ["dask", "worker", s.address, "--no-nanny", "--no-dashboard", "--nthreads", "1"]
    with popen([sys.executable, "-m", *command], env=_without_us(tmp_path)):
        await c.wait_for_workers(2, timeout=30)
        with pytest.raises(InstallError, match=r"1 of 2 workers.*no dask_hpc"):
            await dask_hpc.install(c)
        assert (s.handlers, s.plugins) == (handlers, plugins)
        assert await c.gather(c.map(inc, range(8))) == list(range(1, 9))


def test_a_scheduler_without_the_package_is_refused(tmp_path, loop):
    command = [
        "dask",
        "scheduler",
        "--no-dashboard",
        "--port",
        "0",
        "--scheduler-file",
        str(tmp_path / "s.json"),
    ]
    with (
        popen([sys.executable, "-m", *command], env=_without_us(tmp_path)),
        Client(scheduler_file=str(tmp_path / "s.json"), loop=loop, timeout=30) as client,
    ):
        with pytest.raises(InstallError, match="scheduler cannot import dask_hpc"):
            dask_hpc.install(client)
        with pytest.raises(InstallError):
            dask_hpc.runtime(client)
        assert client.scheduler_info()["type"] == "Scheduler"


def test_workers_are_those_that_the_scheduler_has_while_the_client_looks_for_something_else(loop):
    ended = threading.Event()

    async def look():
        while not ended.is_set():
            await client._update_scheduler_info()  # as the client does now and then: without workers

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", loop=loop
        ) as cluster,
        Client(cluster, loop=loop) as client,
    ):
        looking = asyncio.run_coroutine_threadsafe(look(), client.loop.asyncio_loop)
        try:
            assert {len(workers_of(client)) for _ in range(200)} == {2}
        finally:
            ended.set()
            looking.result(20)


def test_a_synchronous_client_does_everything_without_await(loop):
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", loop=loop) as cluster,
        Client(cluster, loop=loop) as client,
    ):
        # a policy that resizes nothing: who asks for another size is the only one who does
        rt = dask_hpc.install(client, "fcfs")
        assert repr(rt).startswith("<Runtime")
        with rt.job("main", nodes=1, min_nodes=1, max_nodes=2) as job:
            futures = client.map(inc, range(10), pure=False)
            assert client.gather(futures) == list(range(1, 11))
            assert job.status()["state"] == "running"
            assert job.status()["nodes"] == 1
            assert job.resize(2)["result"] == "done"
            assert job.status()["nodes"] == 2
        assert job.wait(20)["state"] == "completed"
        assert [row["id"] for row in rt.jobs()] == [job.id]
        assert {"start"} <= {d["action"] for d in job.why()}
        assert rt.decisions(limit=1)
        assert rt.update("pwma-egs")["policy"]["policy"] == "pwma-egs"
        assert all(line.startswith("{") for line in rt.trace())
        with pytest.raises(ZeroDivisionError), rt.job("bad") as bad:
            raise ZeroDivisionError
        assert bad.status()["state"] == "cancelled"
        other = rt.job("never ends", nodes=1)
        with other:
            assert rt.cancel(other.id, "no more")["reason"] == "no more"
        rt.uninstall()
        with pytest.raises(InstallError):
            rt.jobs()
        assert client.submit(inc, 1).result() == 2


@pytest.mark.parametrize("processes", [True, False])
def test_the_cluster_class_has_the_runtime(loop, processes):
    with (
        dask_hpc.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=processes, dashboard_address=":0", loop=loop
        ) as cluster,
        Client(cluster, loop=loop) as client,
    ):
        rt = dask_hpc.runtime(client)
        assert rt.status()["awake"] is False
        with rt.job("main", nodes=2) as job:
            future = client.submit(inc, 1)
        assert job.wait(20)["state"] == "completed"
        assert future.result() == 2
        assert dask_hpc.install(client) is rt


@gen_test(timeout=60)
async def test_a_job_on_a_cluster_with_tls(tmp_path):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    security = Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{
            f"tls_{role}_{kind}": path
            for role in ("scheduler", "worker", "client")
            for kind, path in (("key", key), ("cert", certificate))
        },
    )
    async with (
        Scheduler(host="tls://127.0.0.1", port=0, dashboard_address=":0", security=security) as s,
        Worker(s.address, security=security),
        Client(s.address, security=security, asynchronous=True) as c,
    ):
        assert s.address.startswith("tls://")
        rt = await dask_hpc.install(c)
        async with rt.job("main", nodes=1) as job:
            futures = c.map(inc, range(10), pure=False)
        assert (await job.wait(10))["state"] == "completed"
        assert await c.gather(futures) == list(range(1, 11))


@gen_cluster(client=True, nthreads=FOUR)
async def test_a_wrong_policy_installs_nothing(c, s, *workers, tmp_path):
    handlers = dict(s.handlers)
    file = tmp_path / "policy.yaml"
    file.write_text("policy: [unclosed")
    for policy, words in (
        ("pwma-fspma", "pwma-fpsma"),
        (str(file), "policy.yaml"),
        ("missing.yaml", "missing.yaml"),
    ):
        with pytest.raises(ValueError, match=words):
            await dask_hpc.install(c, policy)
    with pytest.raises(ValueError, match="tick"):
        await dask_hpc.install(c, tick_s=-1)
    with pytest.raises(ValueError, match="no_such_parameter"):
        await dask_hpc.install(c, "pwma-fpsma", no_such_parameter=1)
    assert s.handlers == handlers
    assert wire.CLOSE not in s.stream_handlers


def test_a_job_may_be_as_wide_as_the_cluster_of_its_client_is_going_to_be():
    def hint(**cluster: Any) -> int:
        client: Any = SimpleNamespace(cluster=SimpleNamespace(**cluster))
        return _pool_hint(client)

    assert hint() == 0
    assert hint(plan={0, 1}) == 2
    assert hint(plan={0, 1}, _adaptive=SimpleNamespace(maximum=4)) == 4
    assert hint(plan={0, 1}, _adaptive=SimpleNamespace(maximum=1)) == 2
    # no bound is no number of nodes
    assert hint(plan={0, 1}, _adaptive=SimpleNamespace(maximum=math.inf)) == 2
    # jobs of Slurm with two workers each
    assert hint(plan={0, 1}, workers_per_node=2, _adaptive=SimpleNamespace(maximum=6)) == 3
