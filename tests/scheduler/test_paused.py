"""Workers that are paused, as those whose memory is full, execute nothing; jobs need not wait for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed.core import Status
from helpers import Gate, Starts, addresses_of, live, record, started, through, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.crowds import any_running
from dask_hpc.scheduler.resizing.rounds import Rounds


async def pause(s, worker):
    worker.status = Status.paused
    await until(lambda: s.workers[worker.address] not in s.running, "it is paused")


@live(3, worker_kwargs={"memory_limit": 0})
async def test_a_job_gets_a_node_that_executes_before_one_that_is_paused(c, s, *workers):
    """The paused one looks cheapest: the others execute plain tasks."""
    gate = Gate()
    rt = await dask_hpc.install(c)
    busy = c.map(through, range(2), gate=gate, key="plain", pure=False)
    await until(lambda: gate.arrived == 2, "two workers are busy")
    (idle,) = [worker for worker in workers if not s.workers[worker.address].processing]
    await pause(s, idle)
    async with rt.job("small", nodes=1) as small:
        await until(lambda: record(s, small).reconfig_id, "a node is drained for it")
        gate.open()
        await started(s, small)
        assert idle.address not in addresses_of(s, small)
        assert await within(c.submit(inc, c.submit(inc, 1))) == 3
        # who needs them all gets that one as well
        async with rt.job("more", nodes=2) as more:
            await started(s, more, 2)
            assert idle.address in addresses_of(s, more)
    await c.gather(busy)


@live(2, lend="5 s", worker_kwargs={"memory_limit": 0})
async def test_what_depends_on_others_borrows_while_all_nodes_of_its_job_are_paused(c, s, a, b):
    starts = Starts()
    await starts.watch([a, b])
    rt = await dask_hpc.install(c)
    async with rt.job("small", nodes=1) as job:
        await started(s, job)
        (own,) = [worker for worker in (a, b) if worker.address in addresses_of(s, job)]
        (other,) = {a.address, b.address} - {own.address}
        await pause(s, own)
        first = c.map(inc, range(4), key="first", pure=False)
        second = c.map(inc, first, key="second", pure=False)
        total = c.submit(sum, second, key="total")
        assert await within(total.result()) == 14
        assert starts.places(starts.count) == {other}
        assert record(s, job).lending == "borrowed: all its workers are paused"
        own.status = Status.running
        await until(lambda: s.workers[own.address] in s.running, "it goes on")
        again = c.map(inc, c.map(inc, range(4), key="third", pure=False), key="fourth", pure=False)
        assert await within(c.gather(again)) == [2, 3, 4, 5]
        assert own.address in starts.places([future.key for future in again])


@live(1, lend="5 s", worker_kwargs={"memory_limit": 0})
async def test_what_is_held_while_the_only_worker_is_paused_runs_when_it_goes_on(c, s, a):
    rt = await dask_hpc.install(c)
    async with rt.job("small", nodes=1) as job:
        await started(s, job)
        first = c.submit(inc, 1, key="first")
        await within(first.result())
        await pause(s, a)
        second = c.submit(inc, first, key="second")
        await until(lambda: record(s, job).queue, "it is held, to be lent a thread")
        a.status = Status.running
        assert await within(second.result()) == 3


ONE, TWO, GONE = "tcp://1", "tcp://2", "tcp://gone"


@pytest.mark.parametrize(
    ("running", "addresses", "found"),
    [
        ([], [], False),
        ([ONE, TWO], [], False),
        ([ONE, TWO], [TWO], True),
        ([ONE], [TWO], False),
        ([ONE], [ONE], True),
        ([ONE], [GONE, TWO], False),
        ([ONE], [GONE, ONE], True),
        ([], [ONE, TWO], False),
    ],
)
def test_whether_any_of_some_workers_takes_tasks(
    running: list[str], addresses: list[str], found: bool
) -> None:
    workers = {address: SimpleNamespace(address=address) for address in (ONE, TWO)}
    scheduler: Any = SimpleNamespace(workers=workers, running=[workers[address] for address in running])
    assert any_running(scheduler, addresses) is found


def test_after_a_drain_in_vain_only_nodes_are_handed_out_that_execute_nothing_and_could() -> None:
    names = ("busy", "idle", "paused")
    workers = {name: SimpleNamespace(address=name, processing=name == "busy") for name in names}
    nodes = [SimpleNamespace(workers={name: None}) for name in workers]
    state = SimpleNamespace(
        now_s=lambda: 1.0,
        no_plain_shrink_before_s=2.0,
        idle_nodes=lambda: 3,
        nodes=SimpleNamespace(free=lambda: nodes),
        scheduler=SimpleNamespace(workers=workers, running=[workers["busy"], workers["idle"]]),
    )
    assert Rounds._supply(SimpleNamespace(state=state)) == 1
    state.no_plain_shrink_before_s = 0.0
    assert Rounds._supply(SimpleNamespace(state=state)) == 3
