"""Jobs that share a name: who cancels or resizes by it is never taken to mean one of several."""

from __future__ import annotations

import pytest
from helpers import live, started

import dask_hpc
from dask_hpc.errors import UnknownJob


@live()
async def test_a_name_that_several_jobs_have_is_refused_with_their_ids(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("same", nodes=1) as first, rt.job("same", nodes=1) as second:
        await started(s, second)
        # its message is on its way: it is announced, and not yet active
        async with rt.job("same", nodes=1) as third:
            for ask in (rt.cancel("same"), rt.find("same").resize(2)):
                with pytest.raises(UnknownJob, match="3 active jobs are called 'same'") as refused:
                    await ask
                for job in (first, second, third):
                    assert job.id in str(refused.value)
        assert [row["state"] for row in await rt.jobs()].count("cancelled") == 0
        await rt.cancel(first.id)
        await rt.cancel(third.id)
        # one has not ended: that is the one
        assert (await rt.cancel("same"))["id"] == second.id
        with pytest.raises(UnknownJob, match="3 ended jobs are called 'same'"):
            await rt.cancel("same")


@live()
async def test_a_row_tells_user_weight_and_whether_it_is_exclusive(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("mine", nodes=1, user="ann", weight=2.0, exclusive=True) as job:
        row = await job.status()
        assert (row["user"], row["weight"], row["exclusive"]) == ("ann", 2.0, True)
        assert (await rt.jobs())[0]["user"] == "ann"
