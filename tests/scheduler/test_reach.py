"""A job gets everything that is submitted in its context, and what the user says otherwise wins."""

from __future__ import annotations

import asyncio

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from distributed import SchedulerPlugin
from helpers import Gate, Starts, addresses_of, live, owner_of, started, through, until
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.overrides import _few


def array():
    x = da.random.default_rng(1).random((120, 120), chunks=(30, 30))
    return ((x + x.T) * 2 - x.mean(axis=0)).sum(axis=1)


def rechunked():
    return da.arange(10_000, chunks=500).reshape(100, 100).rechunk((10, 100)).sum(axis=0)


def frame():
    data = pd.DataFrame({"key": np.arange(400) % 7, "value": np.arange(400.0)})
    return dd.from_pandas(data, npartitions=8).assign(twice=lambda d: d.value * 2).groupby("key").twice.sum()


def shuffled():
    data = pd.DataFrame({"key": np.arange(400) % 7, "value": np.arange(400.0)})
    return dd.from_pandas(data, npartitions=8).shuffle("key", shuffle_method="p2p").value.sum()


def bag():
    return db.from_sequence(range(200), npartitions=10).map(inc).filter(lambda i: i % 3 == 0).sum()


def delayed():
    parts = [dask.delayed(inc, pure=False)(i) for i in range(20)]
    return dask.delayed(sum)([dask.delayed(inc)(p) for p in parts])


def labelled():
    values = xr.DataArray(np.arange(3600.0).reshape(60, 60), dims=("x", "y")).chunk({"x": 20, "y": 30})
    return (values - values.mean("x")).groupby(xr.DataArray(np.arange(60) % 4, dims="x", name="g")).sum()


COLLECTIONS = [array, rechunked, frame, shuffled, bag, delayed, labelled]


async def _value(c, x):
    """Value of a collection, whatever kind."""
    if isinstance(x, xr.DataArray):
        return await c.compute(x.data)
    return await c.compute(x)


def _same(found, expected):
    if isinstance(expected, (pd.Series, pd.DataFrame)):
        pd.testing.assert_series_equal(found.sort_index(), expected.sort_index())
    else:
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("make", COLLECTIONS)
@live(workers=3)
async def test_every_task_of_a_collection_belongs_to_the_job_and_runs_on_its_nodes(
    c, s, *workers, make, fuse
):
    with dask.config.set({"optimization.fuse.active": fuse}):
        expected = await _value(c, make())
        starts = Starts()
        await starts.watch(workers)
        rt = await dask_hpc.install(c)
        owners = []

        class Watch(SchedulerPlugin):
            def update_graph(self, scheduler, tasks, **kwargs):
                owners.extend(owner_of(s, key) for key in tasks)

        outside = make()
        for built in ("inside", "outside"):
            await until(lambda: not s.tasks, "forgotten")
            owners.clear()
            starts.count.clear()
            starts.where.clear()
            async with rt.job(built, nodes=2) as job:
                await started(s, job, 2)
                allowed = addresses_of(s, job)
                # behind that of the runtime, which is there while there are jobs
                s.add_plugin(Watch(), name="watch-owners")
                result = await _value(c, make() if built == "inside" else outside)
            _same(result, expected)
            assert owners, built
            assert set(owners) == {job.id}, built
            assert len(starts.count) > 0
            assert starts.places(starts.count) <= allowed, built
            await job.wait(10)
            s.remove_plugin("watch-owners")


@live(workers=3)
async def test_persist_submit_map_and_compute_all_belong_to_the_job(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        home = addresses_of(s, job)
        x = c.persist(da.ones((40, 40), chunks=(10, 10)) + 1)
        futures = c.map(inc, range(10), pure=False)
        total = c.submit(sum, futures)
        y = c.compute(x.sum())
        child = asyncio.ensure_future(_submit_later(c))
        assert await total == 55
        assert await y == 3200
        assert await child == 2
        assert all(owner_of(s, key) == job.id for key in s.tasks)
        assert len(s.tasks) > 25
    assert starts.places(starts.count) == home
    await job.wait(10)


@live(workers=7)
async def test_a_few_nodes_are_weighed_for_a_task_whose_data_is_elsewhere(c, s, *workers):
    rt = await dask_hpc.install(c)
    weighed = []
    objective = s.worker_objective
    s.worker_objective = lambda ts, ws: weighed.append((ts.key, ws.address)) or objective(ts, ws)
    async with rt.job("main", nodes=6) as job:
        await started(s, job, 6)
        home = addresses_of(s, job)
        (outside,) = {w.address for w in workers} - home
        (x,) = await c.scatter([1], workers=[outside])
        (inside,) = await c.scatter([2], workers=[min(home)])
        assert await c.submit(inc, x, key="far") == 2
        assert await c.submit(inc, inside, key="near") == 3
        places = {ws.address for ws in s.tasks["near"].who_has}
        so_far = weighed[:]
        (y,) = await c.scatter([3], workers=[outside])
        further = c.submit(inc, y, key="further", workers=[outside])
        assert await further == 4
        # none is idle, and two are busy
        gate, (first, second, *others) = Gate(), sorted(home)
        busy = [c.submit(through, i, gate, workers=[at]) for i, at in enumerate((first, second))]
        await until(lambda: gate.arrived == 2, "two are busy")
        nodes = {s.workers[address] for address in home}
        assert {ws.address for ws in _few(s.tasks["further"], nodes, idle=())} == set(others)
        gate.open()
        await c.gather(busy)
    assert len(so_far) == 4
    assert {key for key, _ in so_far} == {"far"}
    assert {address for _, address in so_far} <= home
    assert places == {min(home)}
    await job.wait(10)


async def _submit_later(c):
    return await c.submit(inc, 1, pure=False)


# --------------------------------------------------------------- annotations


@live()
async def test_the_inner_of_two_job_contexts_wins_and_an_annotation_beats_both(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("outer", nodes=1) as outer:
        async with rt.job("inner", nodes=1) as inner:
            a = c.submit(inc, 1, pure=False)
            with dask.annotate(hpc_job=outer.id):
                b = c.submit(inc, 2, pure=False)
            await asyncio.gather(a, b)
            assert owner_of(s, a.key) == inner.id
            assert owner_of(s, b.key) == outer.id
        d = c.submit(inc, 3, pure=False)
        await d
        assert owner_of(s, d.key) == outer.id
    await inner.wait(10)
    await outer.wait(10)


@live()
async def test_workers_that_the_user_names_are_respected(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        (away, *_) = [w.address for w in workers if w.address not in addresses_of(s, job)]
        named = c.map(inc, range(5), workers=[away], pure=False)
        loose = c.map(inc, range(5), workers=[away], allow_other_workers=True, pure=False)
        with dask.annotate(workers=[away]):
            array = c.compute(da.ones(10, chunks=2).sum(), optimize_graph=False)
        assert await c.gather(named) == await c.gather(loose) == [1, 2, 3, 4, 5]
        assert await array == 10
        assert starts.places(f.key for f in named) == {away}
        assert all(owner_of(s, f.key) == job.id for f in named)
    await job.wait(10)


@live(workers=2, worker_kwargs={"resources": {"gpu": 1}})
async def test_resources_that_the_user_asks_for_are_respected(c, s, a, b):
    starts = Starts()
    await starts.watch([a, b])
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        (away,) = set(s.workers) - addresses_of(s, job)
        futures = c.map(through, range(6), gate=gate, resources={"gpu": 1}, pure=False)
        only_there = c.submit(inc, 1, resources={"disk": 1}, workers=[away], pure=False)
        await until(lambda: gate.arrived == 2, "one on each worker")
        assert all(len(w.state.executing) == 1 for w in (a, b))
        # nobody has a disk: it waits, as in stock Dask
        await until(lambda: only_there.key in s.tasks, "submitted")
        assert s.tasks[only_there.key].state == "no-worker"
        only_there.release()
        gate.open()
        assert await c.gather(futures) == list(range(6))
    await job.wait(10)


@live()
async def test_retries_and_priority_inside_a_job(c, s, *workers):
    rt = await dask_hpc.install(c)
    gate = Gate()
    gate.open()
    async with rt.job("main", nodes=1) as job:
        future = c.submit(third_time, gate, retries=3, priority=7, pure=False)
        assert await future == "third"
        assert s.tasks[future.key].priority[0] == -7
    assert (await job.wait(10))["state"] == "completed"


def third_time(gate):
    gate.wait()
    if gate.arrived < 3:
        raise ValueError("not yet")
    return "third"


@live()
async def test_a_key_stays_with_its_first_job(c, s, *workers):
    starts = Starts()
    await starts.watch(workers)
    rt = await dask_hpc.install(c)
    gate = Gate()
    async with rt.job("first", nodes=1) as first, rt.job("second", nodes=1) as second:
        await started(s, first, 1)
        await started(s, second, 1)
        with dask.annotate(hpc_job=first.id):
            future = c.submit(through, 1, gate=gate, key="shared")
        await until(lambda: gate.arrived == 1, "runs")
        again = c.submit(through, 1, gate=gate, key="shared")
        more = c.submit(inc, again, key="more")
        await until(lambda: "more" in s.tasks, "submitted")
        assert owner_of(s, "shared") == first.id
        assert owner_of(s, "more") == second.id
        gate.open()
        assert (await future, await more) == (1, 2)
        assert starts.count["shared"] == 1
        assert starts.where["shared"] == addresses_of(s, first)
    await first.wait(10)
    await second.wait(10)


@live()
async def test_a_job_that_has_ended_or_never_was_means_plain_work(c, s, *workers):
    rt = await dask_hpc.install(c)
    async with rt.job("anchor", nodes=1) as anchor:
        await started(s, anchor, 1)
        for name in ("no-such-job", 17):
            with dask.annotate(hpc_job=name):
                assert await c.submit(inc, 1, pure=False) == 2
        async with rt.job("short") as short:
            pass
        await short.wait(10)
        with dask.annotate(hpc_job=short.id):
            future = c.submit(inc, 1, pure=False)
        assert await future == 2
        assert owner_of(s, future.key).startswith("default")
    await anchor.wait(10)
