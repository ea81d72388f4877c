"""After hosts are lost the newest version of a name is still the newest, and the store has it in time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import futures_of, wait
from helpers import live, until
from live_hosts import host, lose, records, repairs
from losses import kill
from saved import write_key

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.scheduler.checkpoint import held
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker import host_memory

# nothing of other tests is taken over
pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Nobody waits for other workers of a host to go, too."""
    monkeypatch.setattr(held, "_SETTLE_S", 0.0)


def versions(store, name="field"):
    return [version.version for version in Store(store).versions(name) if version.complete]


async def step(c, value, *workers):
    """Blocks of a step, each on one of these workers."""
    blocks = [await c.scatter([np.full(100, value)], workers=[w.address], hash=False) for w in workers]
    return [future for (future,) in blocks]


async def restored(c, name="field", **more):
    return [float(values[0]) for values in await c.gather(await dask_hpc.restore(name, c, **more))]


def holder(s, hosts):
    """One of the hosts that has blocks of the only version."""
    (record,) = records(s).values()
    folder = record.homes[record.places[0]].folder
    return next(one for one in hosts if str(host_memory.manager_folder(one)) == folder)


@live(workers=0)
async def test_each_step_of_which_too_few_hosts_are_left_is_written_to_the_store(c, s, tmp_path):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
        first = await host(stack, s, "first")
        for number, written in ((1, 2), (3, 4)):
            other = await host(stack, s, f"host{number}")
            # all that differs is which results they are
            data = await step(c, float(number), first, other)
            commit = await rt.checkpoint(data, "field", levels=("L1", "L2"))
            assert (commit.version, (await commit.status())["levels"]) == (number, ["L1", "L2"])
            await lose(s, other)
            await until(lambda number=number: repairs(s).get("field", ())[:1] == (number,), "it is looked at")
            assert repairs(s)["field"][1:] == ("less", repairs(s)["field"][2])
            assert repairs(s)["field"][2].endswith(f"; they are written to {tmp_path}")
            await until(lambda written=written: written in versions(tmp_path), "it is in the store")
            await until(lambda: not of(s).commits._tasks, "and protects what it has")
        await host(stack, s, "last")
        await lose(s, first)
        assert [values[0] for values in await c.gather(data)] == [3.0, 3.0]
        assert await restored(c) == [3.0, 3.0]


@live(workers=0)
async def test_neither_an_older_version_nor_what_the_store_has_becomes_the_newest_there(c, s, tmp_path):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
        hosts = [await host(stack, s, name) for name in ("first", "other")]
        stored = await step(c, 5.0, *hosts)
        await rt.checkpoint(stored, "stored", levels=("L1", "L2", "L3"))
        # a part of a version is none
        stored.pop().release()
        older = await step(c, 1.0, *hosts)
        await rt.checkpoint(older, "field", levels=("L1", "L2"))
        newer = await step(c, 2.0, *hosts)
        await rt.checkpoint(newer, "field", levels=("L1", "L2"))
        # what waits for a result keeps nobody from it
        never = c.submit(np.zeros, 10, resources={"what no worker has": 1})
        pending = await rt.checkpoint(never, "field", levels=("L1", "L2"), wait=False)
        task = of(s).commits._held._task
        await lose(s, hosts[1])
        await until(lambda: of(s).commits._held._task is not task, "it is looked for")
        await of(s).commits._held._task
        await until(lambda: versions(tmp_path), "it is in the store")
        await pending.cancel()
        await until(lambda: not of(s).commits._tasks, "all is written")
        assert repairs(s)["stored"][:2] == (1, "less")
        assert repairs(s)["stored"][2].endswith("; the store has that version, or a later one")
        assert (versions(tmp_path, "stored"), versions(tmp_path)) == ([1], [3])
        assert (await restored(c, "stored"), await restored(c)) == ([5.0, 5.0], [2.0, 2.0])
        assert len(older + newer) == 4


@pytest.mark.parametrize("levels", [("L1", "L2"), ("L3",)])
@live(workers=0)
async def test_a_version_that_is_made_again_is_no_newer_for_it(c, s, tmp_path, levels):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
        hosts = [await host(stack, s, name) for name in ("first", "second", "third", "fourth")]
        older = await step(c, 1.0, *hosts)
        await rt.checkpoint(older, "field", levels=("L1", "L2"))
        (before,) = records(s)
        newer = await step(c, 2.0, hosts[0])
        await rt.checkpoint(newer, "field", levels=levels)
        later = [one for one in records(s).values() if one.id != before]
        holders = {home.folder for one in later for home in one.all_homes}
        # of the newer one it has nothing: four hosts are two pairs
        await lose(s, next(one for one in hosts[1:] if str(host_memory.manager_folder(one)) not in holders))
        await until(lambda: before not in records(s), "what it held is made again")
        assert len(records(s)) == len(later) + 1
        assert await restored(c) == [2.0]
        assert await restored(c, version=1) == [1.0] * 4
        assert (len(older), len(newer)) == (4, 1)


@pytest.mark.parametrize("tried", [True, False])
@live(workers=0)
async def test_what_was_opened_with_a_key_is_made_again_without_and_read_with_it(c, s, tmp_path, tried):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c)
        hosts = [await host(stack, s, name) for name in ("first", "second", "third")]
        data = await step(c, 1.0, *hosts[:2])
        key_file = write_key(tmp_path / "key")
        with dask.config.set({"hpc.checkpoint.key-file": key_file}):
            await rt.checkpoint(data, "field", levels=("L1", "L2"), services="encrypt")
        (before,) = records(s)
        del data
        await until(lambda: not s.tasks, "it is in memory alone")
        if tried:
            without = await dask_hpc.restore("field", c)
            await wait(without)
            del without
        back = await dask_hpc.restore("field", c, key_file=key_file)
        await wait(back)
        await lose(s, hosts[0])
        await until(lambda: before not in records(s), "it is made again")
        await until(lambda: "field" in repairs(s), "that is said")
        assert repairs(s)["field"][:2] == (1, "whole")
        await kill(s, [next(one for one in hosts[1:] if back[0].key in one.data)])
        assert [float(values[0]) for values in await c.gather(back)] == [1.0, 1.0]
        protected = of(s).commits.protected
        assert protected.restored > 0
        assert (protected.recomputed, protected.lost) == (0, 0)


@pytest.mark.errors("is lost: no copy is of use")
@pytest.mark.parametrize("levels", ["L1", "L3"])
@live(workers=0)
async def test_who_gets_an_older_version_as_hosts_are_lost_is_told(c, s, tmp_path, levels):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
        hosts = [await host(stack, s, name) for name in ("first", "second")]
        older = await step(c, 1.0, hosts[0])
        await rt.checkpoint(older, "field", levels=levels)
        newer = await step(c, 2.0, hosts[1])
        await rt.checkpoint(newer, "field", levels="L1")
        assert await restored(c) == [2.0]
        await lose(s, hosts[1])
        await until(lambda: of(s).commits.protected.lost or newer[0].key not in s.tasks, "it is lost")
        told = "an older version of 'field' is restored: hosts that held version 2 of .* are lost"
        with pytest.warns(UserWarning, match=told):
            assert await restored(c) == [1.0]
        # who asks for it knows that
        assert await restored(c, version=1) == [1.0]
        assert len(older) == 1


@pytest.mark.errors("is computed again: no copy is of use")
@live(workers=0)
async def test_what_was_restored_beside_it_keeps_no_result_from_being_computed_again(c, s):
    """It is read from the same place, and what a worker says of that is about one of them."""
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c)
        hosts = [await host(stack, s, name) for name in ("first", "second")]
        value = c.submit(np.full, 100, 2.0, workers=[hosts[1].address], allow_other_workers=True)
        await rt.checkpoint(value, "field", levels="L1")
        back = await dask_hpc.restore("field", c)
        await wait(back)
        protected = of(s).commits.protected
        await until(lambda: len(protected) == 2, "both are protected")
        del back
        await until(lambda: len(protected) == 1, "one is forgotten")
        await lose(s, hosts[1])
        assert (await asyncio.wait_for(value, 60))[0] == 2.0
        assert protected.recomputed == 1


@pytest.mark.parametrize("levels", ["L1", ("L1", "L2")])
@live(workers=0)
async def test_what_was_restored_beside_it_is_held_again_with_it(c, s, levels):
    """It has keys of its own, and is read from the same places."""
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c, checkpoint_redundancy="partner")
        hosts = [await host(stack, s, name) for name in ("first", "second")]
        field = c.persist(da.arange(40, chunks=10))
        await rt.checkpoint(field, "field", levels=levels)
        back = await dask_hpc.restore("field", c)
        await wait(back)
        hosts += [await host(stack, s, name) for name in ("third", "fourth")]
        for _ in range(2):
            before = records(s)
            await c.replicate([*futures_of(field), *futures_of(back)])
            hosts.remove(lost := holder(s, hosts))
            await lose(s, lost)
            await until(lambda before=before: not before.keys() & records(s).keys(), "all is held again")
        assert len(records(s)) == 1
        # what has written it is gone, and what has restored it is no less of a whole
        field = None
        await until(lambda: len(s.tasks) == 4, "it is forgotten")
        before = records(s)
        await c.replicate(futures_of(back))
        hosts.append(await host(stack, s, "fifth"))
        await lose(s, holder(s, hosts))
        await until(lambda: not before.keys() & records(s).keys(), "all is held again")
        assert type(await dask_hpc.restore("field", c)) is da.Array
        assert (await c.compute(back.sum())) == 780
