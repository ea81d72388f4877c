"""A policy asks for a version, and says where it is to be kept at least."""

from __future__ import annotations

import pytest
from distributed import wait
from helpers import asleep, engine, live, started, until
from tasks import inc

import dask_hpc
from dask_hpc_policies.decision import Checkpoint, Reason, ReasonCode

WHY = Reason(ReasonCode.CHECKPOINT_DUE, "for the test")


@pytest.mark.filterwarnings("ignore:job night-1 is in the memory of hosts alone")
@pytest.mark.parametrize(
    ("in_store", "taken", "refused"),
    [(True, (None, "L1", "L2", "L3"), ("L4",)), (False, (None, "L1", "L2"), ("L3", "L4"))],
)
@live(workers=2)
async def test_a_version_is_kept_where_it_is_wanted_at_least_or_is_refused(
    c, s, *workers, in_store, taken, refused, tmp_path
):
    store = {"checkpoint_store": str(tmp_path)} if in_store else {}
    rt = await dask_hpc.install(c, "fcfs", checkpoint_every_s=None, tick_s=0.05, **store)
    async with rt.job("night", nodes=2, protect=True) as job:
        await started(s, job, 2)
        held = []
        for level in (*taken, *refused):
            held.append(c.submit(inc, len(held), pure=False))
            await wait(held)
            ask = Checkpoint(job=job.id, level=level, reason=WHY)
            [outcome] = engine(s).controller.act([ask], "request")[1]
            assert outcome.result == ("done" if level in taken else "refused")
            if level in refused:
                assert f"not {level!r}" in outcome.reason.text
                continue
            commits = engine(s).parts.sections()["checkpoints"]
            assert commits[job.id]["under_way"]
            await until(
                lambda: not engine(s).parts.sections()["checkpoints"][job.id]["under_way"], "it is written"
            )
        told = (await rt.status())["checkpoints"]["commits"]
        assert told == {"complete": len(taken)}
    await asleep(s)
