"""Workers of this machine that are killed, which come again, are interrupted, which stay, or cannot start."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from distributed import Client, Status
from distributed.utils_test import gen_test
from helpers import engine, until

import dask_hpc

#: Less than a worker process takes to start that sleeps before.
SOON = {"distributed.deploy.lost-worker-timeout": "200 ms"}
ONE = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", "asynchronous": True}


async def killed(cluster):
    async with Client(cluster, asynchronous=True) as client:
        (pid,) = (await client.run(os.getpid)).values()
    await until(lambda: cluster.scheduler_info["workers"], "the cluster has heard of it")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not cluster.scheduler_info["workers"], "the cluster misses it")


@gen_test(timeout=120, config=SOON)
async def test_a_killed_worker_that_takes_long_to_start_is_not_given_up(tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(1)\n")
    async with dask_hpc.LocalCluster(**ONE, preload=[str(slow)]) as cluster:
        (nanny,) = cluster.workers.values()
        await killed(cluster)
        await until(lambda: cluster.scheduler.workers, "its nanny has started it anew", 60)
        assert list(cluster.workers.values()) == [nanny]


@gen_test(timeout=120, config=SOON)
async def test_what_stands_for_a_worker_that_nobody_starts_anew_is_closed(monkeypatch):
    async def fails():
        raise OSError("no memory")

    async with dask_hpc.LocalCluster(**ONE) as cluster:
        (nanny,) = cluster.workers.values()
        monkeypatch.setattr(nanny, "instantiate", fails)
        await killed(cluster)
        await until(lambda: not cluster.workers, "it is closed")


@gen_test(timeout=120)
async def test_a_worker_goes_on_with_what_it_holds_when_whoever_has_started_it_is_interrupted():
    async with dask_hpc.LocalCluster(**ONE) as cluster, Client(cluster, asynchronous=True) as client:
        held, process = await client.scatter([1]), client.submit(os.getpid, pure=False)
        pid = await process
        # as Ctrl-C does, and a notebook that interrupts a cell: all processes of a group hear it
        async with asyncio.timeout(20):
            await client.run(signal.raise_signal, signal.SIGINT)
            assert await client.submit(os.getpid, pure=False) == pid
        assert [each.status for each in (*held, process)] == ["finished"] * 2
        # and what its tasks start can be interrupted
        (handler,) = (await client.run(lambda: signal.getsignal(signal.SIGINT) == signal.SIG_IGN)).values()
        assert not handler


@gen_test(timeout=120)
async def test_a_restart_does_not_wait_for_workers_that_were_on_their_way_out():
    two = {**ONE, "n_workers": 2}
    async with dask_hpc.LocalCluster(**two) as cluster, Client(cluster, asynchronous=True) as client:
        work = client.map(time.sleep, [3, 3.5], pure=False)
        workers = cluster.scheduler.workers.values()
        await until(lambda: all(ws.processing for ws in workers), "both work")
        cluster.scale(1)
        nodes = engine(cluster.scheduler).state.nodes
        await until(lambda: any(node.reserved for node in nodes.at.values()), "one leaves")
        await client.restart(timeout=60)
        assert {future.status for future in work} == {"cancelled"}
        await until(lambda: len(cluster.workers) == len(cluster.scheduler.workers) == 1, "one is left")
        assert await client.submit(int, 1, pure=False) == 1


@pytest.mark.errors("1 of the workers could not be started: NotADirectoryError")
@gen_test(timeout=60, config={"distributed.worker.memory.pause": False})
async def test_a_worker_that_cannot_be_made_is_given_up_and_none_that_is_there(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    async with dask_hpc.LocalCluster(**ONE, processes=False) as cluster:
        (there,) = cluster.workers.values()
        there.status = Status.paused
        with monkeypatch.context() as patch:
            patch.setitem(cluster.new_spec["options"], "local_directory", str(tmp_path / "file" / "folder"))
            cluster.scale(2)
            await until(lambda: len(cluster.worker_spec) == 1, "it is given up")
        assert cluster.workers == {0: there}
        assert there.status == Status.paused
        there.status = Status.running
        cluster.scale(2)
        await until(lambda: len(cluster.scheduler.workers) == 2, "another one comes")


@gen_test(timeout=60, config={"hpc.policy": "no-such-policy"})
async def test_nothing_is_left_of_a_cluster_that_cannot_have_the_runtime():
    cluster = dask_hpc.LocalCluster(**ONE, processes=False)
    with pytest.raises(ValueError, match="unknown policy 'no-such-policy'"):
        await cluster
    assert (cluster.status, cluster.scheduler.status) == (Status.closed, Status.closed)
