"""A worker that cannot read a checkpoint costs nobody a result: others read it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Worker, get_worker, wait
from distributed.utils import open_port
from helpers import Gate, live, until
from losses import kill

import dask_hpc
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint.elsewhere import Elsewhere
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker import saved
from dask_hpc.worker.fetching import Patience

#: How often each task has run.
RUNS: Counter[int] = Counter()


def counted(number):
    RUNS[number] += 1
    return np.full(10, number)


@pytest.fixture
def unable(monkeypatch):
    """Addresses of workers that cannot read a store, and why; and how often each has tried."""
    RUNS.clear()
    errors, tried, begin = {}, Counter(), saved.begin

    def begin_here(*args):
        address = get_worker().address
        tried[address] += 1
        if address in errors:
            raise errors[address]
        return begin(*args)

    monkeypatch.setattr(saved, "begin", begin_here)
    return errors, tried


def stale():
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


async def written(c, rt, worker, path=None, levels=None):
    """Scattered data and results that one worker alone holds; whoever else is there may have them again."""
    data = await c.scatter([np.full(10, n) for n in range(6)], workers=[worker.address], hash=False)
    made = c.map(counted, range(6), workers=worker.address, allow_other_workers=True, pure=False)
    await wait(made)
    await rt.checkpoint([*data, *made], "all", store=path, levels=levels)
    return data, made


def counts(s):
    protected = of(s).commits.protected
    return protected.restored, protected.recomputed, protected.lost


def first_job(s):
    return next(iter(of(s).engine.state.jobs.named), None)


@pytest.mark.parametrize("error", [stale(), MemoryError()], ids=["stale", "memory"])
@pytest.mark.parametrize("nodes", [0, 2, 3])
@live(workers=4)
async def test_what_some_workers_cannot_read_others_do(c, s, *workers, nodes, error, unable, tmp_path):
    errors, tried = unable
    rt = await dask_hpc.install(c, "fcfs")
    async with AsyncExitStack() as stack:
        if nodes:
            await stack.enter_async_context(rt.job("night", nodes=nodes))
            await until(lambda: (job := first_job(s)) and len(job.allotment) == nodes, "it has its nodes")
        job = first_job(s)
        own = [w for w in workers if job is None or w.address in job.allotment]
        data, made = await written(c, rt, own[0], tmp_path)
        # of a job of two it is the only one that is left
        errors.update((w.address, error) for w in own[1:3])
        await kill(s, [own[0]])
        values = await asyncio.wait_for(c.gather([*data, *made]), 30)
        assert [value[0] for value in values] == [*range(6), *range(6)]
        assert counts(s) == (12, 0, 0)
        assert set(RUNS.values()) == {1}
        assert any(tried[at] for at in errors), "they were asked, too"
        for future in data:
            ts, lane = s.tasks[future.key], of(s).engine.state.owner.get(future.key)
            # it may be placed as before
            assert type(ts.worker_restrictions) is not set
            assert not ts.loose_restrictions
            assert lane is None or lane.kind != "free"
        s.validate_state()


@pytest.mark.parametrize(
    "error", [CheckpointError("no key is named"), ModuleNotFoundError("theirs"), stale()]
)
@live(workers=3)
async def test_what_some_workers_can_make_nothing_of_that_is_in_memory_others_do(
    c, s, *workers, error, monkeypatch
):
    RUNS.clear()
    tried, value = Counter(), saved.MemoryCopy.value

    def here(copy, content, trusted):
        tried[address := get_worker().address] += 1
        if address == workers[1].address:
            raise error
        return value(copy, content, trusted)

    monkeypatch.setattr(saved.MemoryCopy, "value", here)
    rt = await dask_hpc.install(c)
    data, made = await written(c, rt, workers[0], levels=["L1"])
    await kill(s, [workers[0]])
    values = await asyncio.wait_for(c.gather([*data, *made]), 30)
    assert [value[0] for value in values] == [*range(6), *range(6)]
    assert (counts(s), set(RUNS.values())) == ((12, 0, 0), {1})
    assert tried[workers[1].address], "it was asked, too"


@pytest.mark.errors("is computed again: no copy is of use", "is lost: no copy is of use")
@live(workers=3)
async def test_what_no_worker_can_read_is_given_up(c, s, *workers, unable, tmp_path, monkeypatch):
    errors, tried = unable
    monkeypatch.setattr(saved, "patience", lambda: Patience(0.2, 0.2))
    rt = await dask_hpc.install(c)
    data, made = await written(c, rt, workers[0], tmp_path)
    errors.update((w.address, stale()) for w in workers[1:])
    await kill(s, [workers[0]])
    values = await asyncio.wait_for(c.gather(made), 30)
    assert [value[0] for value in values] == [*range(6)]
    await until(lambda: counts(s) == (0, 6, 6), "both are told")
    await until(lambda: {future.status for future in data} == {"cancelled"}, "so is who has them")
    # each has asked both, and what nobody can make one of them again
    assert min(tried[w.address] for w in workers[1:]) >= 12
    assert sum(tried.values()) >= 24 + 6


@pytest.mark.parametrize("comes", ["the store", "a worker"])
@live(workers=3)
async def test_what_no_worker_can_read_just_now_and_nobody_make_is_waited_for(
    c, s, *workers, comes, unable, tmp_path, monkeypatch
):
    errors, tried = unable
    gate, late = Gate(), saved._read_late
    monkeypatch.setattr(saved, "_read_late", lambda *args: gate.wait() or late(*args))
    monkeypatch.setattr(saved, "patience", lambda: Patience(0.2 if comes == "a worker" else 30.0, 0.2))
    rt = await dask_hpc.install(c)
    data = await c.scatter([np.full(10, n) for n in range(6)], workers=[workers[0].address], hash=False)
    await rt.checkpoint(data, "all", store=tmp_path)
    errors.update((w.address, stale()) for w in workers[1:])
    await kill(s, [workers[0]])
    await until(lambda: gate.arrived, "somebody goes on trying")
    async with AsyncExitStack() as stack:
        if comes == "a worker":
            await stack.enter_async_context(Worker(s.address, nthreads=1))
            gate.open()
        else:
            before = tried.total()
            gate.open()
            await until(lambda: tried.total() > before, "in vain at first")
            errors.clear()
        values = await asyncio.wait_for(c.gather(data), 30)
        assert [value[0] for value in values] == [*range(6)]
        assert counts(s) == (6, 0, 0)
        assert not of(s).commits.protected._elsewhere._insisted
        s.validate_state()


@pytest.mark.errors("is computed again: no copy is of use", "is lost: no copy is of use")
@live(workers=3)
async def test_what_is_damaged_is_damaged_for_everybody(c, s, *workers, unable, tmp_path):
    errors, tried = unable
    rt = await dask_hpc.install(c)
    data, made = await written(c, rt, workers[0], tmp_path)
    errors.update((w.address, ValueError("the checksum differs")) for w in workers[1:])
    await kill(s, [workers[0]])
    await asyncio.wait_for(c.gather(made), 30)
    await until(lambda: counts(s) == (0, 6, 6), "both are told")
    assert sum(tried.values()) == 12
    assert len(data) == 6


@pytest.mark.errors("is computed again: no copy is of use", "is lost: no copy is of use")
@live(workers=3)
async def test_what_one_worker_cannot_read_and_another_finds_damaged_is_given_up(
    c, s, *workers, unable, tmp_path
):
    errors, tried = unable
    rt = await dask_hpc.install(c)
    data, made = await written(c, rt, workers[0], tmp_path)
    errors[workers[1].address], errors[workers[2].address] = stale(), ValueError("the checksum differs")
    await kill(s, [workers[0]])
    await asyncio.wait_for(c.gather(made), 30)
    await until(lambda: counts(s) == (0, 6, 6), "both are told")
    assert tried[workers[1].address], "it was asked, too"
    assert tried[workers[2].address] == 12
    assert len(data) == 6


@pytest.mark.errors("is computed again: no copy is of use", "is lost: no copy is of use")
@live(workers=1)
async def test_a_worker_that_calls_itself_by_a_name_is_asked_once(c, s, a, unable, tmp_path, monkeypatch):
    errors, tried = unable
    monkeypatch.setattr(saved, "patience", lambda: Patience(0.2, 0.2))
    rt = await dask_hpc.install(c)
    port = open_port(host="127.0.0.1")
    name = f"tcp://localhost:{port}"
    async with Worker(s.address, host="127.0.0.1", port=port, contact_address=name, nthreads=1):
        await c.wait_for_workers(2)
        data, made = await written(c, rt, a, tmp_path)
        errors[name] = stale()
        await kill(s, [a])
        await asyncio.wait_for(c.gather(made), 30)
        await until(lambda: counts(s) == (0, 6, 6), "both are told")
        # of what nobody can make it goes on trying for a moment
        assert tried.keys() == {name}
        assert 18 <= tried[name] <= 6 + 6 * 4
        await until(lambda: {future.status for future in data} == {"cancelled"}, "so is who has them")


class Job(SimpleNamespace):
    """A job, in as far as it is looked at."""

    __hash__ = object.__hash__


def asked_of(count, reach):
    """The part that has others read, with so many workers; a task whose job has some, and its lane."""
    names = [f"w{number}" for number in range(count)]
    ts = SimpleNamespace(
        state="waiting", worker_restrictions=None, loose_restrictions=False, resource_restrictions=None
    )
    job = Job(reach=frozenset(reach))
    job.lanes = {"free": SimpleNamespace(kind="free", guest=False, job=job)}
    lane: Any = SimpleNamespace(kind="root", guest=False, restriction=job.reach, job=job)
    scheduler = SimpleNamespace(
        tasks={"key": ts}, workers=names, running=[SimpleNamespace(address=name) for name in names]
    )
    state: Any = SimpleNamespace(scheduler=scheduler, owner={"key": lane})
    return Elsewhere(state), ts, state.owner, lane


def test_it_is_read_on_nodes_of_its_job_that_have_not_failed_and_forgotten_once_it_is_there():
    elsewhere, ts, owner, lane = asked_of(4, ["w1", "w2"])
    elsewhere.moved("key", "waiting")
    assert ts.worker_restrictions is None, "nobody has failed"
    for name, others in (("w1", {"w2"}), ("w2", {"w0", "w3"})):
        elsewhere.failed("key", name)
        elsewhere.moved("key", "waiting")
        assert (ts.worker_restrictions, ts.loose_restrictions) == (others, True)
    elsewhere.moved("key", "memory")
    assert (ts.worker_restrictions, ts.loose_restrictions) == (lane.restriction, False)
    assert owner["key"] is lane
    # the next time it is lost all are asked again
    elsewhere.moved("key", "waiting")
    assert ts.worker_restrictions is lane.restriction
    assert not elsewhere.another("key", again=True)


@pytest.mark.parametrize(("again", "workers"), [(True, 3), (False, 16)])
def test_what_cannot_be_computed_again_is_tried_by_more_workers(again, workers):
    elsewhere, *_ = asked_of(20, [])
    tries = 0
    while not tries or elsewhere.another("key", again):
        elsewhere.failed("key", f"w{tries}")
        tries += 1
    assert tries == workers
