"""The last version of a protected job: begun as it ends, whoever has its results by then, and waited for."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from distributed import Client
from helpers import Gate, live, until

import dask_hpc
from dask_hpc.checkpoint.store import Store

#: No version is due before the end, and no tick comes in time to begin one.
AT_END = {"hpc.checkpoint.every": "1 h", "hpc.tick": "1 h"}


def made(number):
    return np.full(50, float(number))


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
