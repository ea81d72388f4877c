"""Results of a protected job that cannot be written, or would replace versions of somebody else."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from typing import Any, cast

import dask
import dask.array as da
import numpy as np
import pytest
from helpers import Gate, live, until
from saved import computed, written

import dask_hpc
from dask_hpc.checkpoint import blocks, manifest
from dask_hpc.checkpoint.describe import PROGRAM, describe
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import protected_job
from dask_hpc.scheduler.checkpoint.results import Results
from dask_hpc.scheduler.rpc.service import of


def failed(s):
    """How many versions have failed."""
    told = of(s).engine.parts.status(lambda name, error: pytest.fail(f"{name}: {error}"))
    return told.get("checkpoints", {}).get("commits", {}).get("failed", 0)


@pytest.mark.errors("its last results are not saved")
@live(workers=2)
async def test_a_full_store_is_asked_again_for_a_job_that_ends(c, s, *workers, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(protected_job, "AGAIN_S", 0.1)
    gate, begin = Gate(), Store.begin

    def full(*args):
        gate.wait(None)
        raise OSError(errno.ENOSPC, "No space left on device")

    settings = {"hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": "1 h", "hpc.tick": "50 ms"}
    with dask.config.set(settings):
        rt = await dask_hpc.install(c, "fcfs")
        monkeypatch.setattr(Store, "begin", full)
        async with rt.job("prep", nodes=2, protect=True) as job:
            future = c.submit(np.arange, 3)
        gate.open()
        await job.wait()
        text = f"Job {job.id} has ended, and its last results are not saved: "
        # in the log of the scheduler, and in that of the client
        await until(lambda: caplog.text.count(text) == 2, "somebody is told")
        monkeypatch.setattr(Store, "begin", begin)
        await until(lambda: Store(tmp_path).versions("prep"), "it is written")
        await until(lambda: "hpc-tick" not in s.periodic_callbacks, "it sleeps")
        assert Store(tmp_path).newest("prep").complete
        assert caplog.text.count(text) == 2
        del future


@live(workers=1)
async def test_what_a_full_store_has_not_taken_is_in_the_next_version(c, s, a, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with dask.config.set({"hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": "50 ms"}):
        rt = await dask_hpc.install(c, "fcfs", tick_s=0.05)
        write = blocks._WRITES["opaque"]
        monkeypatch.setitem(blocks._WRITES, "opaque", full)
        async with rt.job("prep", protect=True):
            future = c.submit(np.arange, 3)
            await until(lambda: failed(s) >= 2, "versions have failed")
            monkeypatch.setitem(blocks._WRITES, "opaque", write)
            await until(
                lambda: any(each.complete for each in Store(tmp_path).versions("prep")), "it is written"
            )
        assert list(open_checkpoint(Store(tmp_path).newest("prep").path)) == [future.key]


@live(workers=2)
async def test_versions_of_others_are_not_replaced_unasked(c, s, *workers, tmp_path):
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        await rt.checkpoint(c.submit(np.arange, 3), "night")
        for resume in (None, True):
            with pytest.raises(CheckpointError, match=r"rt\.checkpoint or a CheckpointSession has"):
                await rt.job("night", protect=True, resume=resume).activate()
        job = rt.job("night", protect=True, resume=False)
        await job.activate()
        await job.cancel()


@pytest.mark.errors("Results of job night-1 are not saved")
@live(workers=1)
async def test_results_do_not_replace_the_state_of_a_program(c, s, a, tmp_path, caplog):
    field = da.zeros(4, chunks=2)
    plan, keys = describe(field, "night")
    draft = Store(tmp_path).begin(replace(plan, extra={**plan.extra, PROGRAM: {}}))
    draft.finish(written(draft, computed(plan, keys, field)))
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": "50 ms"}):
        rt = await dask_hpc.install(c, "fcfs", tick_s=0.05)
        async with rt.job("night", protect=True) as job:
            future = c.submit(np.arange, 3)
            text = "Results of job night-1 are not saved: "
            await until(lambda: caplog.text.count(text) == 2, "its user is told, once")
        await job.wait()
        await until(lambda: "hpc-tick" not in s.periodic_callbacks, "it sleeps")
    assert [one.version for one in Store(tmp_path).versions("night")] == [1]
    assert caplog.text.count(text) == 2
    del future


@live(workers=2)
async def test_what_others_compute_of_an_earlier_run_stays_in_its_versions(c, s, *workers, tmp_path):
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night", nodes=2, protect=True) as job:
            futures = c.map(np.arange, [1, 2], key=["a", "b"])
        await job.wait()
        del futures
        await until(lambda: not s.tasks, "they are forgotten")
        others = c.submit(np.arange, 3, key="a")
        await others
        async with rt.job("night", nodes=2, protect=True, resume=True) as job:
            future = c.submit(np.arange, 4, key="c")
        await job.wait()
        found = open_checkpoint(Store(tmp_path).newest("night").path)
        # also when the same name has come to mean something else
        values = {key: len(value.compute(scheduler="sync")) for key, value in found.items()}
        assert values == {"a": 1, "b": 2, "c": 4}
        del others, future


@live(workers=1)
async def test_a_store_that_is_not_there_for_a_moment_loses_nothing_of_an_earlier_run(
    c, s, a, tmp_path, monkeypatch
):
    store, away, begin = tmp_path / "store", tmp_path / "away", Store.begin

    def unmounted(self, plan, after=0):
        # what may be made below the place of a mount is another folder
        raise PermissionError(errno.EACCES, "Permission denied")

    with dask.config.set({"hpc.checkpoint.store": str(store), "hpc.checkpoint.every": "50 ms"}):
        rt = await dask_hpc.install(c, "fcfs", tick_s=0.05)
        async with rt.job("night", protect=True) as job:
            future = c.submit(np.arange, 1, key="a")
        await job.wait()
        del future
        await until(lambda: not s.tasks, "it is forgotten")
        async with rt.job("night", protect=True, resume=True) as job:
            monkeypatch.setattr(Store, "begin", unmounted)
            store.rename(away)
            future, before = c.submit(np.arange, 2, key="b"), failed(s)
            await until(lambda: failed(s) >= before + 2, "versions have failed")
            away.rename(store)
            monkeypatch.setattr(Store, "begin", begin)
        await job.wait()
        assert set(open_checkpoint(Store(store).newest("night").path)) == {"a", "b"}
        del future


@live(workers=1)
async def test_a_version_that_somebody_has_removed_keeps_no_later_one_from_being_whole(c, s, a, tmp_path):
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": "50 ms"}):
        rt = await dask_hpc.install(c, "fcfs", tick_s=0.05)
        async with rt.job("night", protect=True) as job:
            first = c.submit(np.arange, 1, key="a")
            await until(lambda: Store(tmp_path).versions("night"), "it is written")
            first.release()
            await until(lambda: not s.tasks, "it is forgotten")
            shutil.rmtree(Store(tmp_path).newest("night").path)
            second = c.submit(np.arange, 2, key="b")
        await job.wait()
        assert set(open_checkpoint(Store(tmp_path).newest("night").path)) == {"b"}
        del first, second


@live(workers=1)
async def test_a_job_does_not_begin_while_its_newest_version_cannot_be_read(c, s, a, tmp_path, monkeypatch):
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        for number in (1, 2):
            async with rt.job("night", protect=True, resume=True) as job:
                future = c.submit(np.arange, number)
            await job.wait()
            del future
        read = manifest.read_inside

        def broken(folder, *arguments):
            if folder.endswith("000002"):
                raise OSError(errno.EIO, "Input/output error")
            return read(folder, *arguments)

        monkeypatch.setattr(manifest, "read_inside", broken)
        with pytest.raises(CheckpointError, match=r"cannot be read: Input/output .*or begin anew"):
            await rt.job("night", protect=True, resume=True).activate()


def test_each_try_of_a_last_version_comes_later_until_it_is_given_up():
    job = protected_job.ProtectedJob("night", None, Results("night", "run"), cast(Any, None))
    tries = []
    while job.try_again(100.0):
        tries.append(job.again_s)
    assert tries == [105.0, 110.0, 120.0, 140.0, 180.0, 260.0]
    assert job.ended
