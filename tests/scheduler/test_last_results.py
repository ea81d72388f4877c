"""The last version of a protected job: begun as it ends, whoever has its results by then, and waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from distributed import Client, wait
from helpers import Gate, live, until

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.client import job as of_job
from dask_hpc.errors import JobCancelled, JobFailed

#: No version is due before the end, and no tick comes in time to begin one.
AT_END = {"hpc.checkpoint.every": "1 h", "hpc.tick": "1 h"}


def made(number):
    return np.full(50, float(number))


def made_behind(gate, make, *args):
    gate.wait()
    return make(*args)


class Unpicklable:
    """A result that is in no version."""

    def __reduce__(self):
        raise TypeError("it stays where it is")


@pytest.fixture
def gate(monkeypatch):
    """Versions are begun when it is open."""
    gate, begin = Gate(), Store.begin

    def late(*args, **kwargs):
        gate.wait()
        return begin(*args, **kwargs)

    monkeypatch.setattr(Store, "begin", late)
    return gate


@pytest.mark.parametrize("inside", [True, False])
@live(workers=2)
async def test_results_are_written_though_the_script_ends(c, s, *workers, tmp_path, gate, inside):
    with dask.config.set(AT_END | {"hpc.checkpoint.store": str(tmp_path)}):
        await dask_hpc.install(c, "fcfs")
        async with Client(s.address, asynchronous=True) as client:
            rt = await dask_hpc.runtime(client)
            async with rt.job("night", protect=True):
                futures = client.map(made, range(4))
                values = await client.gather(futures) if inside else None
            values = values or await client.gather(futures)
        assert [value[0] for value in values] == [0.0, 1.0, 2.0, 3.0]
        await until(lambda: client.id not in s.clients, "its client has gone")
        gate.open()
        versions = Store(tmp_path).versions
        await until(lambda: [one.complete for one in versions("night")] == [True], "it is whole")
        await until(lambda: not any(name.startswith("hpc-protect") for name in s.clients), "they are let go")
        back = await dask_hpc.restore("night", c, store=tmp_path, allow_pickle=True)
        assert set(back) == {future.key for future in futures}


@live(workers=2)
async def test_who_waits_for_a_job_has_its_last_version(c, s, *workers, tmp_path, gate):
    with dask.config.set(AT_END | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("prep", nodes=2, protect=True) as job:
            futures = c.map(made, range(4))
        for handle in (job, rt.find(job.id)):
            with pytest.raises(TimeoutError, match="has ended, and its last results are still being written"):
                await handle.wait(1.0)
        gate.open()
        assert (await job.wait())["state"] == "completed"
        assert Store(tmp_path).newest("prep").complete
        del futures


@pytest.mark.parametrize("error", [JobFailed, JobCancelled])
@live(workers=2)
async def test_who_waits_for_a_job_that_ends_badly_has_its_last_one(c, s, *workers, tmp_path, gate, error):
    with dask.config.set(AT_END | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("prep", protect=True) as job:
            futures = c.map(made, range(4))
            await wait(futures)
            if error is JobFailed:
                futures.append(c.submit(made, "what is no number"))
                await wait(futures)
            else:
                await job.cancel()
        with pytest.raises(TimeoutError, match="has ended, and its last results are still being written"):
            await job.wait(1.0)
        gate.open()
        with pytest.raises(error):
            await job.wait()
        assert Store(tmp_path).newest("prep").complete
        assert len(await dask_hpc.restore("prep", c, store=tmp_path)) == 4


async def script_that_ends(c, s, before, *last):
    """A job whose script ends as soon as the last of its results are there; gives their keys."""
    await dask_hpc.install(c, "fcfs")
    async with Client(s.address, asynchronous=True) as client:
        rt = await dask_hpc.runtime(client)
        async with rt.job("night", protect=True):
            await before(client)
            gate = Gate()
            # the job is closed, and not done
            futures = [client.submit(made_behind, gate, *make, pure=False) for make in last]
        gate.open()
        await wait(futures)
    await until(lambda: client.id not in s.clients, "its client has gone")
    return [future.key for future in futures]


async def let_go(s):
    await until(lambda: not any(name.startswith("hpc-") for name in s.clients), "results are let go")


@live(workers=2)
async def test_results_stay_that_the_version_under_way_at_the_end_has_not(c, s, *workers, tmp_path, gate):
    async def begun(client):
        client.first = client.map(made, range(4))
        await until(lambda: gate.arrived, "a version is begun")

    settings = {"hpc.checkpoint.every": "50 ms", "hpc.tick": "50 ms", "hpc.checkpoint.store": str(tmp_path)}
    with dask.config.set(settings):
        keys = await script_that_ends(c, s, begun, (made, 4), (made, 5))
        gate.open()
        versions = Store(tmp_path).versions
        await until(lambda: [one.complete for one in versions("night")] == [True, True], "all is written")
        back = await dask_hpc.restore("night", c, store=tmp_path)
        assert len(back) == 6
        assert back.keys() >= set(keys)
        await let_go(s)


@live(workers=2)
async def test_results_stay_when_the_last_version_fails_for_one_of_them(c, s, *workers, tmp_path, gate):
    async def nothing(client):
        pass

    with dask.config.set(AT_END | {"hpc.checkpoint.store": str(tmp_path)}):
        keys = await script_that_ends(c, s, nothing, (made, 4), (Unpicklable,))
        gate.open()
        versions = Store(tmp_path).versions
        await until(lambda: [one.complete for one in versions("night")] == [True], "the rest is written")
        assert (await dask_hpc.restore("night", c, store=tmp_path)).keys() == {keys[0]}
        await let_go(s)


@live(workers=2)
async def test_after_an_uninstall_results_are_kept_for_nobody(c, s, *workers, tmp_path, gate):
    with dask.config.set(AT_END | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night", protect=True):
            futures = c.map(made, range(4))
            await c.gather(futures)
        await until(lambda: any(name.startswith("hpc-protect") for name in s.clients), "they are held")
        await rt.uninstall()
        gate.open()
        del futures
        await until(lambda: not s.tasks, "nobody has them")


@pytest.mark.parametrize("held_up_s", [60.0, 0.0])
@live(workers=2)
async def test_an_error_waits_for_the_last_version_where_its_cluster_may_end_with_it(
    c, s, *workers, tmp_path, gate, monkeypatch, caplog, held_up_s
):
    async def script(name):
        async with rt.job(name, protect=True):
            futures = c.map(made, range(4), key=name)
            await wait(futures)
            raise KeyError("of the user's own")

    monkeypatch.setattr(of_job, "_SOON_S", 0.0)
    monkeypatch.setattr(of_job, "_HELD_UP_S", held_up_s)
    with dask.config.set(AT_END | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        # the cluster of others goes on to write it
        with pytest.raises(KeyError, match="of the user's own"):
            await script("theirs")
        assert "last results" not in caplog.text
        monkeypatch.setattr(c, "cluster", SimpleNamespace())
        running = asyncio.ensure_future(script("own"))
        await until(lambda: "still being written, and waited for" in caplog.text, "it is said")
        if held_up_s:
            assert not running.done()
            gate.open()
        with pytest.raises(KeyError, match="of the user's own"):
            await running
        assert [one.complete for one in Store(tmp_path).versions("own")] == [True] * bool(held_up_s)
        assert ("its last results may be lost" in caplog.text) == (not held_up_s)
