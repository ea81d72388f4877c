"""Jobs that share a name: who cancels or resizes by it is never taken to mean one of several."""

from __future__ import annotations

import dask
import pytest
from helpers import Gate, live, started, until

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


@live()
async def test_a_row_tells_plain_work_from_a_job_that_somebody_calls_so(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("default", nodes=1) as job:
        theirs = c.submit(gate.wait, 1)
        await started(s, job)
        with dask.annotate(hpc_job="default"):
            plain = c.submit(gate.wait, 2)
        await until(lambda: gate.arrived == 2, "both are at work")
        rows = {row["id"]: row["is_default"] for row in await rt.jobs() if row["name"] == "default"}
        gate.open()
        assert await c.gather([theirs, plain]) == [1, 2]
    assert rows.pop(job.id) is False
    assert list(rows.values()) == [True]
    await job.wait(10)
    assert [row["is_default"] for row in await rt.jobs() if row["id"] == job.id] == [False]
