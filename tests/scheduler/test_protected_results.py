"""Results of jobs that say protect: written while the job runs, read after a loss and by a later run."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import dask
import dask.array as da
import killed_night
import numpy as np
import outside
import pytest
from command_line import run
from distributed import Client, Worker, wait
from helpers import live, until
from losses import kill

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.rpc.service import of

EVERY = {"hpc.checkpoint.every": "100 ms", "hpc.tick": "50 ms"}
#: How often each thing was computed; workers of these tests are in this process.
RUNS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def none_computed():
    RUNS.clear()


def made(number):
    RUNS[f"made-{number}"] += 1
    return np.full(50, float(number))


def twice(values, name):
    RUNS[f"twice-{name}"] += 1
    return values * 2


def block(values):
    RUNS["block"] += 1
    return values + 1


def chain(number):
    """A result that is made from one that nobody keeps."""
    return dask.delayed(twice, pure=True)(dask.delayed(made, pure=True)(number), number)


def there_are(status, count):
    """Whether so many results of the one protected job, at least, are in the store."""
    return any(row["written_results"] >= count for row in status.get("protected_jobs", []))


async def written(rt, count):
    """Wait until so many results are in the store."""
    for _ in range(1200):
        if there_are(await rt.status(), count):
            return
        await asyncio.sleep(0.025)
    raise AssertionError(await rt.status())


@live(workers=3)
async def test_results_are_written_while_a_job_runs_and_read_after_a_loss(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night", nodes=3, protect=True):
            first = c.compute([chain(number) for number in range(6)])
            await wait(first)
            await written(rt, 6)
            second = c.compute([chain(number) for number in range(6, 9)])
            await wait(second)
            await written(rt, 9)
            before = RUNS.copy()
            await kill(s, [workers[0], workers[1]])
            values = await c.gather([*first, *second])
        assert [value[0] for value in values] == [2.0 * number for number in range(9)]
        assert before == RUNS
        assert (await rt.status())["checkpoints"]["restored_results"] > 0


@live(workers=1)
async def test_what_a_worker_holds_that_has_to_go_is_written_before(c, s, a, tmp_path):
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": "1 h"}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night", nodes=1, protect=True):
            futures = c.compute([chain(number) for number in range(6)])
            await wait(futures)
            # nobody has room for it
            left = await of(s).departures.depart(a.address, 3.0, "released by force")
            assert left["lost"] == []
            assert set(left["spilled"]) == {future.key for future in futures}
            before = RUNS.copy()
            async with Worker(s.address, nthreads=1):
                values = await asyncio.wait_for(c.gather(futures), 30)
                assert [value[0] for value in values] == [2.0 * number for number in range(6)]
        assert before == RUNS


@pytest.mark.errors("cannot be written below .* not written within")
@live(workers=1)
async def test_no_version_is_begun_that_a_worker_that_has_to_go_could_not_finish(c, s, a, tmp_path):
    # the scheduler has no copy of small results: they are lost
    here = {"hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.small": 0}
    with dask.config.set(EVERY | here):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night", nodes=1, protect=True):
            futures = c.map(made, range(3))
            await wait(futures)
            await written(rt, 3)
            await rt.update(checkpoint_every_s=3600.0)
            more = c.submit(made, 3)
            await wait(more)
            before = versions(tmp_path), (await rt.status())["checkpoints"]["commits"]
            # what one takes is known, and is more
            left = await of(s).departures.depart(a.address, 0.0, "released by force")
            assert left["lost"] == [more.key]
            assert before == (versions(tmp_path), (await rt.status())["checkpoints"]["commits"])
            async with Worker(s.address, nthreads=1):
                assert (await asyncio.wait_for(more, 30))[0] == 3.0
                # a client that had not heard of the loss has the value of the worker that goes
                await until(lambda: RUNS["made-3"] == 2, "it is computed again")


@live(workers=2)
async def test_what_is_there_when_a_job_has_ended_is_written_then(c, s, *workers, tmp_path):
    # never while it runs
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": "1 h"}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("prep", nodes=2, protect=True) as job:
            futures = c.map(made, range(4))
        await job.wait()
        await until(lambda: Store(tmp_path).versions("prep"), "it is written")
        await until(lambda: Store(tmp_path).versions("prep")[0].complete, "it is whole")
        back = await c.gather(await dask_hpc.restore("prep", c, store=tmp_path, allow_pickle=True))
        assert {key: value[0] for key, value in back.items()} == {
            future.key: number for number, future in enumerate(futures)
        }
        await until(lambda: "hpc-tick" not in s.periodic_callbacks, "it sleeps, and needs nobody any more")


def run_of(count, resume, tmp_path, ask=range(0)):
    """A job on a cluster of its own that computes results, waits until they are written, and is lost."""
    settings = EVERY | {"hpc.checkpoint.store": str(tmp_path)}
    with (
        dask.config.set(settings),
        dask_hpc.LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        rt = dask_hpc.install(client)
        with rt.job("night", protect=True, resume=resume):
            futures = client.compute([chain(number) for number in ask or range(count)])
            wait(futures)
            patience = threading.Event()
            for _ in range(1200):
                if there_are(rt.status(), count):
                    break
                patience.wait(0.025)
            else:
                raise AssertionError(rt.status())
            text = run("status", "--address", cluster.scheduler_address).stdout
            assert re.search(r"protected jobs:\nJOB +NAME +WRITES +VERSION AGE S", text), text
            return client.gather(futures), rt.status()


def test_a_later_run_on_another_cluster_reads_what_is_there_and_computes_the_rest(tmp_path):
    run_of(6, True, tmp_path)
    RUNS.clear()
    values, status = run_of(10, True, tmp_path)
    assert [value[0] for value in values] == [2.0 * number for number in range(10)]
    # neither the results nor what they are made from
    assert {int(name.partition("-")[2]) for name in RUNS} == set(range(6, 10))
    assert status["checkpoints"]["restored_results"] == 6
    RUNS.clear()
    # what a run does not ask for is kept for the next one
    run_of(11, True, tmp_path, ask=[10])
    assert set(RUNS) == {"made-10", "twice-10"}
    RUNS.clear()
    values, _ = run_of(11, True, tmp_path)
    assert not RUNS
    assert values[10][0] == 20.0


def test_results_of_an_earlier_run_are_neither_read_nor_replaced_unasked(tmp_path):
    run_of(2, None, tmp_path)
    with pytest.raises(CheckpointError, match=r"'night'; go on from them with resume=True, replace them"):
        run_of(2, None, tmp_path)
    RUNS.clear()
    run_of(3, False, tmp_path)
    assert len(RUNS) == 6


@live(workers=2)
async def test_one_of_two_jobs_of_one_name_is_refused_also_when_they_begin_at_once(c, s, *workers, tmp_path):
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        jobs = [rt.job(name, nodes=1, protect="night") for name in ("first", "second")]
        found = await asyncio.gather(*(job.activate() for job in jobs), return_exceptions=True)
        (refused,) = [one for one in found if isinstance(one, CheckpointError)]
        assert "writes versions of 'night' to" in str(refused)
        for job in jobs:
            await job.cancel()


@live(workers=2)
async def test_a_version_whose_manifest_is_damaged_is_passed_over(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        for resume, count in ((None, 2), (True, 3), (True, 3)):
            RUNS.clear()
            async with rt.job("night", nodes=2, protect=True, resume=resume) as job:
                futures = []
                for number in range(count):
                    futures.append(c.submit(made, number))
                    await wait(futures)
                    await written(rt, number + 1)
            await job.wait()
            await until(lambda: "hpc-tick" not in s.periodic_callbacks, "it has ended")
            del futures
            await until(lambda: not s.tasks, "nothing is left")
            Path(Store(tmp_path).find("night").path, "manifest.json").write_text("{}")
            if resume:
                # the version before the newest was read, with what it had
                assert RUNS["made-0"] == 0
        for version in versions(tmp_path):
            Path(Store(tmp_path).find("night", version).path, "manifest.json").write_text("{}")
        with pytest.raises(CheckpointError, match=r"or begin anew with resume=False"):
            await rt.job("night", nodes=2, protect=True, resume=True).activate()


@live(workers=2)
async def test_blocks_of_a_collection_are_found_again_by_their_keys(c, s, *workers, tmp_path):
    def field():
        return da.zeros((8, 8), chunks=4).map_blocks(block, meta=np.empty((0, 0)), name="field")

    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        for resume, runs in ((None, 4), (True, 0)):
            RUNS.clear()
            async with rt.job("field", nodes=2, protect=True, resume=resume) as job:
                kept = c.persist(field())
                await wait(kept)
                await written(rt, 4)
                assert RUNS["block"] == runs
                # new keys, made from what was read
                assert await c.compute(kept.sum()) == 64
            await job.wait()
            await until(lambda: "hpc-tick" not in s.periodic_callbacks, "it has ended")
            del kept
            await until(lambda: not s.tasks, "nothing is left")


@live(workers=2)
async def test_what_cannot_be_written_is_left_out_and_the_rest_is_written(c, s, *workers, tmp_path, caplog):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("odd", nodes=2, protect=True):
            # no manifest could say whose it is
            odd = c.submit(made, 3, key=("odd", float("inf")))
            futures = [*c.map(made, range(3)), c.submit(threading.Lock, pure=False), odd]
            await wait(futures)
            await written(rt, 3)
            row = (await rt.status())["protected_jobs"][0]
            assert row["unwritable_results"] == 2
            assert caplog.text.count(f"{odd.key!r} of protected 'odd' cannot be written and is left out") == 1
            await wait(more := c.submit(made, 9))
            await written(rt, 4)
            del more


@live(workers=2)
async def test_a_new_version_shares_the_files_of_the_last_one(c, s, *workers, tmp_path, monkeypatch):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night", nodes=2, protect=True):
            futures = c.map(made, range(3))
            await wait(futures)
            await written(rt, 3)
            more = c.submit(made, 3)
            await written(rt, 4)
            old, new = (packs(tmp_path, number) for number in versions(tmp_path)[-2:])
            assert {name for name in new if name in old and new[name].samefile(old[name])} == set(old)
            assert len(new) > len(old)

            def refuse(*args, **kwargs):
                raise OSError(errno.EPERM, "no links here")

            monkeypatch.setattr(os, "link", refuse)
            last = c.submit(made, 4)
            await written(rt, 5)
            old, new = (packs(tmp_path, number) for number in versions(tmp_path)[-2:])
            assert [name for name in old if new[name].samefile(old[name])] == []
            assert [name for name in old if new[name].read_bytes() != old[name].read_bytes()] == []
            await kill(s, [workers[0]])
            found = await c.gather([*futures, more, last])
            assert [value[0] for value in found] == [0, 1, 2, 3, 4]


@live(workers=2)
async def test_a_result_that_was_made_again_is_another_one(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night", nodes=2, protect=True):
            first = c.submit(made, 1, key="x")
            await wait(first)
            await written(rt, 1)
            first.release()
            await until(lambda: "x" not in s.tasks, "it is forgotten")
            second = c.submit(made, 2, key="x")
            # computed, for nobody has said that the same name means the same
            assert (await second)[0] == 2.0
            count = versions(tmp_path)[-1]
            await until(lambda: versions(tmp_path)[-1] > count, "it is written")
            back = await dask_hpc.restore("night", c, store=tmp_path)
            assert (await back["x"])[0] == 2.0


def packs(store, version):
    """Files of the packs of a version by their names."""
    found = Store(store).find("night", version)
    return {name: Path(found.path, "data", name, "0") for name in found.manifest().packs.values()}


def versions(store):
    """Numbers of the whole versions of the night."""
    return [version.version for version in Store(store).versions("night") if version.complete]


@live(workers=2)
async def test_a_job_that_cannot_be_protected_says_so_before_anything_is_computed(c, s, *workers, tmp_path):
    rt = await dask_hpc.install(c, "fcfs")
    with pytest.raises(ValueError, match="resume is True and job 'night' does not say protect"):
        rt.job("night", resume=True)
    for wrong in ("no", 0):
        with pytest.raises(ValueError, match=f"resume is {wrong!r}; allowed: True, False, or None"):
            rt.job("night", protect=True, resume=wrong)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --nodes=1\n")
    assert rt.batch_job(tmp_path / "job.sh", protect=True, resume=True).resume is True
    await rt.update(checkpoint_store=str(tmp_path))
    with pytest.raises(CheckpointError, match=r"give its versions another name with protect='NAME'"):
        await rt.job("a night", protect=True).activate()


@live(workers=2)
@pytest.mark.errors("is computed again: no copy")
async def test_a_damaged_result_of_an_earlier_run_is_computed(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night", nodes=2, protect=True) as job:
            futures = c.compute([chain(number) for number in range(3)])
            await wait(futures)
            await written(rt, 3)
        await job.wait()
        await until(lambda: "hpc-tick" not in s.periodic_callbacks, "it has ended")
        version = Store(tmp_path).find("night")
        manifest = version.manifest()
        damaged = manifest.written(manifest.plan.extra["keys"].index(futures[1].key))
        with packs(tmp_path, version.version)[damaged.pack].open("r+b") as file:
            file.seek(damaged.offset)
            file.write(b"\xff")
        del futures
        await until(lambda: not s.tasks, "nothing is left")
        RUNS.clear()
        async with rt.job("night", nodes=2, protect=True, resume=True):
            futures = c.compute([chain(number) for number in range(3)])
            assert [value[0] for value in await c.gather(futures)] == [0.0, 2.0, 4.0]
            assert set(RUNS) == {"made-1", "twice-1"}


@pytest.mark.slow
def test_a_script_whose_every_process_was_killed_goes_on_when_it_is_run_again(tmp_path):
    store, notes = tmp_path / "store", tmp_path / "notes"
    notes.touch()
    command = [sys.executable, killed_night.__file__, str(store), str(notes)]
    with subprocess.Popen(command, start_new_session=True) as night:
        try:
            outside.until(lambda: versions(store)[-1:] > [1], "results are there")
        finally:
            os.killpg(night.pid, signal.SIGKILL)
    kept = len(Store(store).find("night").manifest().blocks)
    notes.write_text("")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    total, restored = map(int, done.stdout.split())
    assert total == sum(number**2 for number in range(killed_night.COUNT))
    assert 0 < kept == restored < killed_night.COUNT
    assert len(notes.read_text().split()) == killed_night.COUNT - restored
