"""Where a node is a whole host, a size counts workers, and those of one host leave together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dask
import pytest
from distributed import Worker
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import result_of
from waits import PATIENCE_S, Gate, until

import dask_hpc
from dask_hpc.scheduler.rpc.service import of


@asynccontextmanager
async def pairs(hosts: int) -> AsyncIterator[Shrinkable]:
    """A cluster of so many hosts with two workers each."""
    with dask.config.set({"hpc.node.by": "host"}):
        async with shrinkable(0, protocol="tcp") as made:
            for number in range(2 * hosts):
                options = {"nthreads": 1, "host": f"127.0.0.{1 + number // 2}", "dashboard": False}
                made.cluster.worker_spec[number] = {"cls": Worker, "options": options}
            await made.cluster
            await made.size(2 * hosts)
            yield made


def _hosts(made: Shrinkable) -> list[int]:
    """The number of each worker's host."""
    return sorted(int(name) // 2 for name in made.names())


def test_a_size_that_would_part_the_workers_of_a_host_is_refused_and_one_that_does_not_is_had() -> None:
    async def run() -> None:
        async with pairs(2) as made:
            futures = await made.results(20)
            plan = await made.cluster.scale(3, dry_run=True)
            assert plan["release"] == {}
            for why in plan["refused"].values():
                assert "2 workers of one host leave together (hpc.node.by: host), and no more than 1" in why
            made.cluster.scale(3)
            await asyncio.wait_for(made.cluster, PATIENCE_S)
            assert _hosts(made) == [0, 0, 1, 1]
            assert made.cluster.refused == plan["refused"]
            assert len(made.cluster.refused) == 2
            # where one may go the other has no reason to stay
            assert (await made.cluster.scale(2, dry_run=True))["refused"] == {}
            made.cluster.scale(2)
            await asyncio.wait_for(made.cluster, PATIENCE_S)
            assert _hosts(made) in ([0, 0], [1, 1])
            assert made.cluster.refused == {}
            assert await made.client.gather(futures) == [result_of(n) for n in range(20)]
            assert made.tally.twice() == []

    asyncio.run(run())


@pytest.mark.parametrize(("workers", "hosts"), [(4, 2), (5, 2), (2, 1)])
def test_of_hosts_as_many_leave_as_have_so_many_workers(workers: int, hosts: int) -> None:
    async def run() -> None:
        async with pairs(4) as made:
            answer = await made.cluster.ask("release", count=workers)
            assert [len(names) for names in answer["released"].values()] == [2] * hosts
            assert len(made.names()) == 8 - 2 * hosts
            assert bool(answer["refused"]) == (workers > 2 * hosts)

    asyncio.run(run())


def test_a_job_gives_up_hosts_that_have_no_more_workers_than_are_to_go() -> None:
    async def run() -> None:
        async with pairs(3) as made:
            runtime = await dask_hpc.install(made.client)
            nodes = made.cluster._releases.engine.state.nodes
            async with runtime.job("fit", nodes=3, min_nodes=1, max_nodes=3) as job:
                await until(lambda: nodes.nodes and not nodes.free(), "it has all")
                answer = await made.cluster.ask("release", count=1)
                assert answer["released"] == {}
                assert all("leave together" in why for why in answer["refused"].values())
                answer = await made.cluster.ask("release", count=3)
                assert [len(names) for names in answer["released"].values()] == [2]
                assert len(made.names()) == 4
            await job.wait(10)

    asyncio.run(run())


def test_who_follows_the_load_hears_that_hosts_stay_with_as_many_workers_as_are_needed() -> None:
    async def run() -> None:
        async with pairs(3) as made:
            runtime = await dask_hpc.install(made.client)
            async with runtime.job("fit", nodes=1) as job:
                nodes = made.cluster._releases.engine.state.nodes
                await until(lambda: len(nodes.free()) == 2, "it has its host")
                answer = await made.cluster.ask("pool", there=sorted(made.names()))
                assert len(answer["stay"]) == answer["nodes"] < 6, answer
            await job.wait(10)

    with dask.config.set({"hpc.pool.hold": "0 s"}):
        asyncio.run(run())


def test_by_force_too_a_host_goes_only_where_all_its_workers_are_too_many() -> None:
    async def run() -> None:
        async with pairs(2) as made:
            submit, names = made.client.submit, range(4)
            actors = [submit(Gate, actor=True, pure=False, workers=[made.address(n)]) for n in names]
            await asyncio.gather(*actors)
            answer = await made.cluster.ask("release", count=1, force=True)
            assert answer["released"] == {}
            answer = await made.cluster.ask("release", count=3, force=True)
            assert [len(names) for names in answer["released"].values()] == [2]
            assert len(made.names()) == 2

    asyncio.run(run())


def test_hosts_that_are_wanted_again_stay_with_all_their_workers() -> None:
    async def run() -> None:
        async with pairs(3) as made:
            gate = Gate()
            busy = await made.held(6, gate)
            made.cluster.scale(2)
            leaving = made.cluster._releases._leaving
            await until(lambda: len(leaving) == 2, "two hosts are drained")
            made.cluster.scale(4)
            await until(lambda: len(leaving) == 1, "one of them stays")
            gate.open()
            await made.size(4)
            assert len(set(_hosts(made))) == 2
            await made.client.gather(busy)

    asyncio.run(run())


def test_workers_of_a_host_that_have_to_go_get_nothing_more_and_end_what_they_execute() -> None:
    async def run() -> None:
        async with pairs(2) as made:
            gate, departures = Gate(), of(made.scheduler).departures
            busy = await made.held(4, gate)
            done = await made.client.scatter([result_of(n) for n in range(8)], hash=False)
            here = [made.address(number) for number in (0, 1)]
            leaving = [asyncio.ensure_future(departures.depart(at, 3600.0, "a notice")) for at in here]
            running = {made.address(number) for number in (2, 3)}
            await until(lambda: {ws.address for ws in made.scheduler.running} == running, "they get no more")
            # as many looks as they would have needed to go
            for _ in range(20):
                await asyncio.sleep(departures.engine.state.settings.sweep_s)
            assert made.names() == {"0", "1", "2", "3"}
            gate.open()
            for answer in await asyncio.wait_for(asyncio.gather(*leaving), PATIENCE_S):
                assert not any(answer.values())
            assert made.names() == {"2", "3"}
            assert await made.client.gather(busy) == [0, 1, 2, 3]
            assert await made.client.gather(done) == [result_of(n) for n in range(8)]
            assert made.tally.twice() == []

    asyncio.run(run())


def test_a_worker_that_retires_from_a_host_that_stays_ends_what_it_executes_or_stays_too() -> None:
    async def run() -> None:
        async with pairs(2) as made:
            gate, here = Gate(), made.address(0)
            busy = await made.held(4, gate)
            done = await made.client.scatter([result_of(n) for n in range(8)], hash=False)
            state = of(made.scheduler).engine.state
            state.settings = state.settings.updated(shrink_deadline_s=0.5)
            assert await asyncio.wait_for(made.client.retire_workers([here]), PATIENCE_S) == {}
            assert "had not ended (hpc.shrink-deadline)" in "".join(made.cluster.refused.values())
            assert made.scheduler.workers[here] in made.scheduler.running
            state.settings = state.settings.updated(shrink_deadline_s=60.0)
            retiring = asyncio.ensure_future(made.client.retire_workers([here]))
            await until(lambda: made.scheduler.workers[here] not in made.scheduler.running, "it gets no more")
            for _ in range(20):
                await asyncio.sleep(state.settings.sweep_s)
            assert not retiring.done()
            gate.open()
            assert list(await asyncio.wait_for(retiring, PATIENCE_S)) == [here]
            assert made.names() == {"1", "2", "3"}
            assert made.cluster.refused == {}
            assert await made.client.gather(busy) == [0, 1, 2, 3]
            assert await made.client.gather(done) == [result_of(n) for n in range(8)]
            assert made.tally.twice() == []

    asyncio.run(run())
