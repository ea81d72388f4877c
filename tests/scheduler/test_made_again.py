"""Results of a protected job that are forgotten and made again while a version is written."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from distributed import wait
from helpers import Gate, live, until, within
from losses import kill

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.scheduler.rpc.service import of


def made(number):
    return np.full(50, float(number))


@pytest.mark.parametrize("before", [True, False])
@live(workers=2)
async def test_what_is_made_again_while_a_version_is_written_is_not_read_from_it(
    c, s, a, b, tmp_path, monkeypatch, before
):
    settings = {"hpc.checkpoint.every": "100 ms", "hpc.tick": "50 ms", "hpc.checkpoint.small": 0}
    with dask.config.set(settings | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        protected = of(s).commits.protected
        async with rt.job("night", nodes=2, min_nodes=1, protect=True):
            latest = c.submit(made, 1, key="latest")
            await until(lambda: "latest" in protected, "it is written")

            async def forgotten():
                latest.release()
                await until(lambda: "latest" not in s.tasks, "it is forgotten")

            if before:
                await forgotten()
            gate, begin = Gate(), Store.begin
            monkeypatch.setattr(Store, "begin", lambda *args: gate.wait(begin(*args)))
            other = c.submit(made, 9, key="other", workers=[b.address], allow_other_workers=True)
            await until(lambda: gate.arrived, "the next version is begun")
            if not before:
                await forgotten()
            again = c.submit(made, 2, key="latest", workers=[a.address], allow_other_workers=True)
            await wait(again)
            gate.open()
            await until(lambda: "other" in protected, "that version is whole")
            await kill(s, [a])
            assert (await within(again))[0] == 2
            await until(lambda: "latest" in protected, "it is in a version, too")
            back = await dask_hpc.restore("night", c, store=tmp_path)
            assert (await within(back["latest"]))[0] == 2
            assert (await within(other))[0] == 9
