"""The pictures over time of an asynchronous client are awaited."""

from __future__ import annotations

import pytest
from distributed.utils_test import gen_cluster

import dask_hpc


@gen_cluster(client=True, nthreads=[("", 1)] * 2)
async def test_of_an_asynchronous_client_it_is_awaited(c, s, a, b):
    rt = await dask_hpc.install(c)
    async with rt.job("quick", nodes=1) as job:
        await c.submit(sum, [1, 2])
        # what opens the job may still be on its way
        picture = await job.timeline()
    assert list(picture.spans.labels) == [job.id]
    assert (await rt.timeline()).spans.nodes
    with pytest.raises(ValueError, match="'predict' cannot be 'later'"):
        await rt.timeline(predict="later")
    await rt.uninstall()
