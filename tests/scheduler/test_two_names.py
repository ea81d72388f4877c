"""Results that versions of two names in memory have: neither takes from the other what only it survives."""

from __future__ import annotations

from contextlib import AsyncExitStack

import numpy as np
import pytest
from distributed import wait
from helpers import live, until, within
from live_hosts import host, lose, records

import dask_hpc
from dask_hpc.scheduler.checkpoint.results import Results
from dask_hpc.scheduler.rpc.service import of

# nothing of other tests is taken over
pytestmark = pytest.mark.usefixtures("memory")


def made(number):
    return np.full(50, float(number))


def named(s):
    """Names of the versions in memory."""
    return sorted(record.name for record in records(s).values())


@live(workers=0)
async def test_what_survives_a_host_is_not_given_up_for_what_does_not(c, s):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c)
        await host(stack, s, "alpha")
        beta = await host(stack, s, "beta")
        (data,) = await c.scatter([np.arange(1000)], workers=[beta.address])
        commit = await rt.checkpoint(data, "safe", levels=("L1", "L2"))
        assert (await commit.status())["levels"] == ["L1", "L2"]
        # a later version of the other name takes the place of its own alone
        for _ in range(2):
            await rt.checkpoint(data, "quick", levels="L1")
        await until(lambda: named(s) == ["quick", "safe"], "there is one of each name")
        await lose(s, beta)
        np.testing.assert_array_equal(await within(data), np.arange(1000))


@pytest.mark.parametrize("first", [True, False])
@live(workers=2, config={"hpc.checkpoint.every": "100 ms", "hpc.tick": "50 ms"})
async def test_the_results_of_a_job_are_in_its_versions_whatever_others_have(c, s, a, b, first, monkeypatch):
    rt = await dask_hpc.install(c)
    protected, new, begun = of(s).commits.protected, Results.next, first
    monkeypatch.setattr(Results, "next", lambda *args: new(*args) if begun else None)
    with pytest.warns(UserWarning, match="is in the memory of hosts alone"):
        job = await rt.job("night", nodes=2, protect=True).activate()
    futures = c.map(made, range(4), key=[f"made-{number}" for number in range(4)])
    if first:
        await until(lambda: len(protected) == 4, "the job has written them")
    await wait(futures)
    await rt.checkpoint(futures, "other")
    begun = True
    await until(lambda: named(s) == ["night", "other"], "both have them")
    assert [row["written_results"] for row in (await rt.status())["protected_jobs"]] == [4]
    back = await dask_hpc.restore("night", c)
    assert sorted(back) == [f"made-{number}" for number in range(4)]
    assert [(await within(back[f"made-{number}"]))[0] for number in range(4)] == [0, 1, 2, 3]
    await job.close()


@live(workers=1)
async def test_a_loop_that_writes_under_two_names_leaves_the_last_versions_alone(c, s, a):
    rt = await dask_hpc.install(c)
    field = c.submit(made, 0)
    for number in range(1, 9):
        field = c.submit(np.add, field, 1, key=f"field-{number}")
        for name in ("one", "two"):
            await rt.checkpoint(field, name, levels="L1")
    # a step that the client has not let go of in time has its version until the next one
    await until(lambda: len(set(named(s))) == 2 and len(named(s)) <= 4, "older ones go")
    assert (await within(field))[0] == 8
