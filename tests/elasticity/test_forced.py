"""What the user says is stronger: pinned workers stay, and by force workers go that should stay."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import dask
import pytest
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import Ledger, MovingLedger, result_of
from waits import Gate, until, within

import dask_hpc
from dask_hpc.scheduler.leaving import actors
from dask_hpc.scheduler.rpc.service import of


def departures(made: Shrinkable, address: str) -> list[dict[str, Any]]:
    """What was announced about a worker."""
    rows = [row for _, row in made.scheduler.get_events(address)]
    return [row for row in rows if row.get("action") == "hpc-departure"]


def test_a_pinned_worker_stays_until_it_is_unpinned() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            assert await made.cluster.pin(0, 2) == ["0", "2"]
            plan = await made.cluster.scale(1, dry_run=True)
            assert set(plan["release"]) == {"1"}
            made.cluster.scale(1)
            await made.size(2)
            assert made.names() == {"0", "2"}
            # neither by force nor by stock's own way
            made.cluster.scale(1, force=True)
            assert not await made.client.retire_workers(names=[0, 2])
            assert "worker 0 is pinned (cluster.unpin lets it go)" in made.cluster.refused["0"]
            assert await made.cluster.unpin(2) == ["0"]
            made.cluster.scale(1)
            await made.size(1)
            assert made.names() == {"0"}

    asyncio.run(run())


def test_a_worker_that_is_not_there_cannot_be_pinned() -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            with pytest.raises(ValueError, match="worker is 'nobody'; allowed: 0"):
                await made.cluster.pin("nobody")

    asyncio.run(run())


def test_by_force_an_actor_goes_and_is_named_and_data_beside_it_is_moved() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            address = made.address(1)
            actors = [
                await made.client.submit(cls, actor=True, key=cls.__name__, workers=[address])
                for cls in (Ledger, MovingLedger)
            ]
            futures = await made.results(20, workers=[address], allow_other_workers=True)
            await made.cluster.pin(0)
            made.cluster.scale(1, force=True)
            await made.size(1)
            [said] = departures(made, address)
            assert (said["actors"], said["lost"]) == (["Ledger"], [])
            assert "by force" in said["reason"]
            assert len(await within(made.client.gather(futures))) == 20
            assert made.tally.twice() == []
            del actors

    asyncio.run(run())


def test_without_force_an_actor_stays() -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            actor = await made.client.submit(Ledger, actor=True)
            plan = await made.cluster.scale(0, dry_run=True)
            assert plan["release"] == {}
            assert "lives there" in plan["refused"]["0"]
            del actor

    asyncio.run(run())


def test_by_force_a_task_that_takes_too_long_is_cut_short_and_run_again() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            gate = Gate()
            futures = await made.held(2, gate)
            address = made.address(1)
            await made.cluster.pin(0)
            made.cluster.scale(1, force=True)
            await until(lambda: departures(made, address), "it has left")
            [said] = departures(made, address)
            assert len(said["executing"]) == 1
            gate.open()
            await made.size(1)
            assert len(await within(made.client.gather(futures))) == 2

    with dask.config.set({"hpc.shrink-deadline": "500 ms"}):
        asyncio.run(run())


def test_a_worker_that_is_asked_for_meanwhile_takes_what_the_last_one_holds() -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            futures = await made.results(20)
            [scattered] = await made.client.scatter([[7]], hash=False)
            address = made.address(0)
            made.cluster.scale(0, force=True)
            await until(lambda: made.scheduler.workers[address].status.name != "running", "it has to go")
            # nobody has room for what it holds: it waits for somebody as long as `hpc.shrink-deadline` says
            made.cluster.scale(1)
            await until(lambda: address not in made.scheduler.workers, "it has gone", 30)
            await made.size(1)
            assert await within(made.client.gather([*futures, scattered])) == [
                *(result_of(number) for number in range(20)),
                [7],
            ]
            assert made.tally.twice() == []
            assert departures(made, address) == []

    asyncio.run(run())


class Stuck(Ledger):
    """An actor that says that it can move and cannot."""

    def __getstate__(self) -> Any:
        raise RuntimeError("a lock is held")

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("there is no state")


def test_an_actor_that_cannot_move_after_all_is_named_with_the_reason_in_words() -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())

    async def run() -> None:
        async with shrinkable(2) as made:
            address = made.address(1)
            stuck = await made.client.submit(Stuck, actor=True, key="stuck", workers=[address])
            await made.cluster.pin(0)
            made.cluster.scale(1, force=True)
            await made.size(1)
            [departure] = departures(made, address)
            assert list(departure["actors"]) == [stuck.key]

    actors.logger.addHandler(handler)
    try:
        asyncio.run(run())
    finally:
        actors.logger.removeHandler(handler)
    [why] = [line for line in said if "has not moved" in line]
    assert why.endswith("RuntimeError('a lock is held')")


def test_by_force_no_more_nodes_go_than_were_asked_for_either() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            runtime = await dask_hpc.install(made.client, "fcfs")
            async with runtime.job("fit", nodes=4, min_nodes=1, max_nodes=4, constraint="pof2") as job:
                state = of(made.scheduler).engine.state
                await until(lambda: state.nodes_up(state.jobs.find(job.id)) == 4, "it runs on all nodes")
                answer = await made.cluster.ask("release", count=1, force=True)
                assert len(answer["released"]) == 1
                assert len(made.scheduler.workers) == 3

    asyncio.run(run())
