"""What is said to start a waiting job at once does so on a live cluster."""

from __future__ import annotations

import pytest
from helpers import Gate, live, started

import dask_hpc


@pytest.mark.parametrize("kind", ["resize", "policy", "declare"])
@live(workers=3)
async def test_a_proposal_that_is_carried_out_starts_the_job(c, s, *workers, kind):
    rt = await dask_hpc.install(c, "easy", tick="50 ms")
    gate = Gate()
    async with rt.job("hog", min_nodes=1, max_nodes=2, nodes=2) as hog:
        held = c.submit(gate.wait, 1)
        await started(s, hog, 2)
        assert await hog.why_waiting() is None
        async with rt.job("late", nodes=2) as late:
            found = await late.why_waiting()
            assert (found.needs_nodes, found.idle_nodes) == (2, 1)
            assert [(one.name, one.nodes) for one in found.holders] == [("hog", 2)]
            proposed = {next(iter(one.change)): one for one in reversed(found.remedies)}
            assert proposed[kind].start_in_s == 0
            change = proposed[kind].change[kind]
            if kind == "resize":
                assert (await rt.find(change["job"]).resize(change["nodes"]))["result"] == "done"
            elif kind == "policy":
                await rt.update(policy=change)
            else:
                await late.cancel()
                late = rt.job("late", **change)
                await late.activate()
            await started(s, late)
            gate.open()
            await held
            if kind == "declare":
                await late.close()
