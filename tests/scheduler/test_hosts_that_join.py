"""Hosts that come or go while a version for memory waits for results: those of its end are its hosts."""

from __future__ import annotations

from contextlib import AsyncExitStack

import numpy as np
import pytest
from helpers import Gate, live, through, until, within
from live_hosts import host, lose, records

import dask_hpc
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.rpc.service import of

# nothing of other tests is taken over
pytestmark = pytest.mark.usefixtures("memory")


async def latest(rt):
    """What status says of the last version of a name."""
    (row,) = (await rt.status())["checkpoints"]["latest"]
    return row


def commits(s):
    return of(s).commits._commits


def left(s):
    """How many results each level of each version has still to write."""
    return [each.left for commit in commits(s).values() for each in commit.writings.values()]


async def a_version_that_waits(c, s, rt, *workers, gate=None, more=()):
    """`more`, a block on each of these hosts, and one that waits for a host with the resource ``late``, or
    there for a gate.
    """
    blocks = [await c.scatter([np.full(100, 1.0)], workers=[w.address], hash=False) for w in workers]
    if gate is None:
        late = c.submit(np.full, 100, 2.0, resources={"late": 1}, pure=False)
    else:
        late = c.submit(through, np.full(100, 2.0), gate, workers=[workers[0].address], pure=False)
    futures = [*more, *(future for (future,) in blocks), late]
    commit = await rt.checkpoint(futures, "field", levels=("L1", "L2"), wait=False)
    there = [future.key for (future,) in blocks]
    await until(lambda: all(key in of(s).commits.protected for key in there), "what is there is written")
    return futures, commit


@live(workers=0)
async def test_what_a_host_holds_that_has_joined_meanwhile_outlives_it(c, s):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c)
        hosts = [await host(stack, s, name) for name in ("alpha", "beta")]
        futures, commit = await a_version_that_waits(c, s, rt, *hosts)
        gamma = await host(stack, s, "gamma", resources={"late": 1})
        await within(commit.wait())
        assert (await commit.status())["levels"] == ["L1", "L2"]
        row = await latest(rt)
        # three make a set with one parity
        assert (row["losses_survived"], row["storage_ratio"]) == (1, 1.5), row
        await lose(s, gamma)
        back = await within(c.gather(futures))
        assert [values[0] for values in back] == [1.0, 1.0, 2.0]
        assert of(s).commits.protected.restored >= 1
        assert of(s).commits.protected.recomputed == 0


@live(workers=0)
async def test_hosts_that_have_none_of_it_hold_parities_if_they_are_there_at_its_end(c, s):
    async with AsyncExitStack() as stack:
        rt, gate = await dask_hpc.install(c), Gate()
        alpha, beta = [await host(stack, s, name) for name in ("alpha", "beta")]
        futures, commit = await a_version_that_waits(c, s, rt, alpha, gate=gate)
        await lose(s, beta)
        await host(stack, s, "gamma")
        gate.open()
        await within(commit.wait())
        row = await commit.status()
        assert (row["levels"], row["reason"]) == (["L1", "L2"], "")
        assert (await latest(rt))["losses_survived"] == 1
        await lose(s, alpha)
        # scattered data, and what can be computed again
        back = await within(c.gather(futures))
        assert [values[0] for values in back] == [1.0, 2.0]
        assert of(s).commits.protected.recomputed == 0


@live(workers=0)
async def test_what_a_host_had_written_that_is_lost_meanwhile_is_written_again(c, s):
    async with AsyncExitStack() as stack:
        rt, gate = await dask_hpc.install(c), Gate()
        alpha, beta, gamma = [await host(stack, s, name) for name in ("alpha", "beta", "gamma")]
        early = c.submit(np.full, 100, 1.0, workers=[beta.address], allow_other_workers=True)
        (data,) = await c.scatter([np.full(100, 3.0)], workers=[gamma.address], hash=False)
        futures, commit = await a_version_that_waits(c, s, rt, alpha, gate=gate, more=[early, data, early])
        await until(lambda: left(s) == [1], "all that is there is written")
        await lose(s, beta)
        gate.open()
        await within(commit.wait())
        row = await commit.status()
        assert (row["levels"], row["reason"]) == (["L1", "L2"], "")
        await lose(s, gamma)
        back = await within(c.gather(futures))
        assert [values[0] for values in back] == [1.0, 3.0, 1.0, 1.0, 2.0]
        assert of(s).commits.protected.recomputed == 0
        assert len(records(s)) == 1


@pytest.mark.errors("is lost: no copy is of use", "no new version: result .* was lost with its worker")
@live(workers=0, config={"hpc.checkpoint.silence": "1 s"})
async def test_a_version_fails_when_what_a_lost_host_had_written_is_nowhere_else(c, s):
    async with AsyncExitStack() as stack:
        rt, gate = await dask_hpc.install(c), Gate()
        alpha, beta = [await host(stack, s, name) for name in ("alpha", "beta")]
        (data,) = await c.scatter([np.full(100, 3.0)], workers=[beta.address], hash=False)
        _, commit = await a_version_that_waits(c, s, rt, alpha, gate=gate, more=[data])
        await until(lambda: left(s) == [1], "all that is there is written")
        await lose(s, beta)
        gate.open()
        with pytest.raises(CheckpointError, match="cannot be written: it was lost with its worker"):
            await within(commit.wait())
        assert records(s) == {}


@live(workers=0)
async def test_a_host_that_holds_some_of_it_and_has_no_parities_is_told_of(c, s, monkeypatch):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c)
        hosts = [await host(stack, s, name) for name in ("alpha", "beta")]
        _, commit = await a_version_that_waits(c, s, rt, *hosts)
        memory = of(s).commits._memory
        begin = memory._begin

        async def without_gamma(writing=None):
            # as when its worker leaves as soon as it has written
            begun = await begin(writing)
            gone = [home for home in begun.domains if begun.domains[home] == "gamma"]
            return type(begun)({k: v for k, v in begun.domains.items() if k not in gone}, begun.manager, "")

        monkeypatch.setattr(memory, "_begin", without_gamma)
        await host(stack, s, "gamma", resources={"late": 1})
        await within(commit.wait())
        row = await commit.status()
        assert row["levels"] == ["L1", "L2"]
        assert row["reason"].startswith("L2: no other host has parities of what is on 1 host without"), row
        assert (await latest(rt))["losses_survived"] == 0


@live(workers=0)
async def test_a_version_that_is_asked_for_before_the_first_worker_has_come_waits(c, s):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c)
        value = c.submit(np.full, 100, 3.0)
        commit = await rt.checkpoint(value, "field", levels=("L1", "L2"), wait=False)
        await until(lambda: value.key in s.tasks, "the cluster has heard of it")
        assert (await commit.status())["state"] == "writing"
        await host(stack, s, "alpha")
        await within(commit.wait())
        row = await commit.status()
        # one host is too few for more
        assert row["levels"] == ["L1"]
        assert row["reason"].startswith("L2: scheme partner with parity 1 needs 2 failure domains")
        assert len(records(s)) == 1


ALONE = pytest.mark.errors("no new version: what the manager at .* has cannot be had")


@pytest.mark.parametrize("levels", [pytest.param(("L1",), marks=ALONE), ("L1", "L2")])
@live(workers=0)
async def test_a_version_is_whole_without_a_host_that_is_lost_as_it_ends_if_others_hold_that(c, s, levels):
    async with AsyncExitStack() as stack:
        rt = await dask_hpc.install(c)
        hosts = [await host(stack, s, name) for name in ("alpha", "beta", "gamma")]
        blocks = [c.submit(np.full, 100, 1.0, workers=[w.address], pure=False) for w in hosts]
        memory = of(s).commits._memory
        keep = memory._keep

        async def one_is_lost(*args):
            await lose(s, hosts[2])
            return await keep(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, "_keep", one_is_lost)
            commit = await rt.checkpoint(blocks, "field", levels=levels, wait=False)
            ends = ("complete", "failed")
            await until(lambda: any(each.state in ends for each in commits(s).values()), "it has ended")
        row = await commit.status()
        if "L2" in levels:
            assert (row["state"], row["levels"]) == ("complete", ["L1", "L2"])
            back = await dask_hpc.restore("field", c)
            assert [values[0] for values in await within(c.gather(back))] == [1.0] * 3
        else:
            assert row["state"] == "failed", row
            assert records(s) == {}
