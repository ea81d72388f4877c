"""Shrinking a cluster that jobs hold: jobs above their minimum give nodes up first, others refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import make, result_of, through
from waits import Gate, until

import dask_hpc
from dask_hpc.scheduler.rpc.service import of


def _held(made: Shrinkable, job: Any) -> int:
    state = of(made.scheduler).engine.state
    return int(state.nodes_up(state.jobs.find(job.id)))


def test_a_rigid_job_on_all_nodes_keeps_them_and_the_reason_names_it() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            runtime = await dask_hpc.install(made.client)
            gate = Gate()
            async with runtime.job("solver", nodes=3, rigid=True) as job:
                await until(lambda: _held(made, job) == 3, "it runs on all nodes")
                held = await made.held(6, gate)
                plan = await made.cluster.scale(1, dry_run=True)
                assert plan["release"] == {}
                assert set(plan["refused"]) == {"0", "1", "2"}
                made.cluster.scale(1)
                await until(lambda: len(made.cluster.refused) == 3, "all are refused")
                assert all("solver" in why and "rigid" in why for why in made.cluster.refused.values())
                await made.client.retire_workers([made.address(2)])
                assert "rigid" in made.cluster.refused["2"]
                assert made.names() == {"0", "1", "2"}
                gate.open()
                assert await made.client.gather(held) == list(range(6))
            await job.wait(10)
            await made.size(1)
            assert await made.client.gather(held) == list(range(6))
            assert made.tally.twice() == []

    asyncio.run(run())


def test_nodes_retired_by_hand_are_not_said_to_come_again_although_the_job_rests() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            runtime = await dask_hpc.install(made.client, policy="fair")
            async with runtime.job("idle") as job:
                record = of(made.scheduler).engine.state.jobs.find(job.id)
                await until(lambda: len(record.nodes) == 2 and record.resting, "it has both, and rests")
                await made.client.retire_workers([made.address(1)])
                assert (await job.status())["reason"] == "1 worker to be retired"
            await job.wait(10)

    asyncio.run(run())


def test_a_malleable_job_above_its_minimum_shrinks_first_and_loses_nothing() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            runtime = await dask_hpc.install(made.client)
            gate = Gate()
            async with runtime.job("fit", nodes=4, min_nodes=2, max_nodes=4) as job:
                await until(lambda: _held(made, job) == 4, "it runs on all nodes")
                futures = made.client.map(make, range(20), key=[f"make-{n}" for n in range(20)])
                assert await made.client.gather(futures) == [result_of(n) for n in range(20)]
                held = await made.held(8, gate)
                made.cluster.scale(3)
                await until(
                    lambda: sum(n.reserved > 0 for n in _nodes(made)) == 1, "one of its nodes is drained"
                )
                assert len(made.names()) == 4
                gate.open()
                await made.size(3)
                assert _held(made, job) == 3
                last = made.client.submit(through, 9, gate, made.tally.effects, key="through-last")
                assert await made.client.gather([*held, last]) == [*range(8), 9]
                # to its minimum, and no further
                made.cluster.scale(1)
                await made.size(2)
                await until(lambda: made.cluster.refused, "the others say why they stay")
                assert all("fit" in why for why in made.cluster.refused.values())
                assert await made.client.gather(futures) == [result_of(n) for n in range(20)]
            await job.wait(10)
            await made.size(1)
            assert await made.client.gather(futures) == [result_of(n) for n in range(20)]
            assert made.tally.twice() == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("nodes", "constraint", "least", "pinned", "size"),
    [
        (4, "any", 1, 2, 2),
        (4, "any", 3, 2, 3),
        (4, "any", 1, 4, 4),
        (4, "pof2", 1, 2, 2),
        # two would have to go, and one can
        (4, "pof2", 1, 3, 4),
        # three can go: one is too many for 3, the next size
        (5, "odd", 1, 2, 3),
    ],
)
def test_of_a_job_that_cannot_give_up_all_that_are_asked_for_those_go_that_can(
    nodes: int, constraint: str, least: int, pinned: int, size: int
) -> None:
    async def run() -> None:
        async with shrinkable(nodes) as made:
            runtime = await dask_hpc.install(made.client, policy="fcfs")
            fields = {"nodes": nodes, "min_nodes": least, "max_nodes": nodes, "constraint": constraint}
            async with runtime.job("fit", **fields) as job:
                await until(lambda: _held(made, job) == nodes, "it runs on all nodes")
                await made.cluster.pin(*range(pinned))
                plan = await made.cluster.scale(1, dry_run=True)
                assert len(plan["release"]) == nodes - size
                stay = {name: why for name, why in plan["refused"].items() if name not in plan["release"]}
                assert {name for name, why in stay.items() if "pinned" in why} == set(map(str, range(pinned)))
                await made.cluster.ask("release", count=nodes - 1)
                assert len(made.names()) == _held(made, job) == size
            await job.wait(10)

    asyncio.run(run())


def test_nodes_that_no_job_holds_go_before_those_of_jobs() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            runtime = await dask_hpc.install(made.client)
            async with runtime.job("fit", nodes=2, min_nodes=1, max_nodes=2) as job:
                await until(lambda: _held(made, job) == 2, "it runs")
                mine = {node.id for node in _nodes(made) if node.job == job.id}
                made.cluster.scale(2)
                await made.size(2)
                assert made.names() == mine
                assert _held(made, job) == 2

    asyncio.run(run())


def _nodes(made: Shrinkable) -> list[Any]:
    return list(of(made.scheduler).engine.state.nodes.nodes.values())
