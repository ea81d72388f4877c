"""What leaves is what was named, and what it holds goes to those that stay."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status
from elastic_clusters import shrinkable
from waits import until, within

import dask_hpc
from dask_hpc.scheduler.internals import data


def test_only_the_workers_that_are_named_are_let_go_although_others_cost_less() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            futures = await made.results(20, workers=[made.address(2), made.address(3)])
            plan = await made.cluster.ask("release", count=3, dry_run=True, among=[2, 3])
            assert set(plan["nodes"]) == {"2", "3"}
            assert plan["bytes"] > 0
            answer = await made.cluster.ask("release", count=1, among=["3"])
            assert list(answer["released"]) == ["3"]
            assert made.names() == {"0", "1", "2"}
            assert all(future.status == "finished" for future in futures)

    asyncio.run(run())


def test_a_job_gives_up_nodes_of_that_pool_alone_and_only_those_are_refused() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            runtime = await dask_hpc.install(made.client)
            async with runtime.job("fit", nodes=4, min_nodes=3, max_nodes=4) as job:
                await until(lambda: made.cluster._releases.engine.state.nodes.nodes, "nodes are known")
                await until(lambda: not made.cluster._releases.engine.state.nodes.free(), "it has all")
                answer = await made.cluster.ask("release", count=2, among=[1])
                assert set(answer["released"]) == {"1"}
                answer = await made.cluster.ask("release", count=1, among=[2])
                assert answer["released"] == {}
                assert set(answer["refused"]) == {"2"} == set(made.cluster.refused)
                # what is refused elsewhere stays to be read
                await made.cluster.ask("release", count=1, among=[3])
                assert set(made.cluster.refused) == {"2", "3"}
            await job.wait(10)

    asyncio.run(run())


@pytest.mark.parametrize("adapts", [False, True])
def test_what_leaving_workers_hold_moves_once_to_those_that_stay(adapts: bool) -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            took: list[str] = []

            def counting(name: str, gather: Any) -> Any:
                async def gathered(*args: Any, **kwargs: Any) -> Any:
                    took.append(name)
                    return await gather(*args, **kwargs)

                return gathered

            # workers in one process have the same memory otherwise
            made.scheduler.extensions["amm"].measure = "managed"
            held = []
            for name, worker in made.cluster.workers.items():
                # the one that has most stays, and is none that Dask would move anything to
                values = [bytes([name, number]) * (5_000_000 if name == 0 else 10) for number in range(5)]
                held += await made.client.scatter(values, workers=[worker.address], hash=False)
                worker.gather_dep = counting(str(name), worker.gather_dep)
            if adapts:
                adaptive = made.cluster.adapt(minimum=1, maximum=4, interval="1 h")
                await adaptive.scale_down({1, 2, 3})
            else:
                made.cluster.scale(1)
            await made.size(1)
            assert set(took) == made.names() == {"0"}
            assert [value[1] for value in await within(made.client.gather(held))] == [*range(5)] * 4

    asyncio.run(run())


@pytest.mark.parametrize("leaves", ["released", "departs"])
def test_what_comes_to_a_worker_as_it_leaves_is_moved_as_well(leaves: str, monkeypatch: Any) -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            address, late, stock = made.address(1), {"late": 7}, made.scheduler.retire_workers

            async def retire(**how: Any) -> Any:
                found = await stock(**how)
                if "late" not in made.scheduler.tasks:
                    made.cluster.workers[1].update_data(late)
                    made.scheduler.update_data(who_has={"late": [address]}, nbytes={"late": 8}, client="c")
                return found

            monkeypatch.setattr(made.scheduler, "retire_workers", retire)
            if leaves == "released":
                gone = data.retire_or_keep(made.scheduler, [address], made.scheduler.retire_workers)
            else:
                gone = data.move_off(made.scheduler, [address], (), lambda: 30.0)
            assert list(await within(gone)) == [address]
            assert made.names() == {"0"}
            assert [ws.name for ws in made.scheduler.tasks["late"].who_has] == [0]

    asyncio.run(run())


@pytest.mark.parametrize(("remove", "told"), [(True, ["asked", "to end"]), (False, ["asked, to end"])])
def test_a_worker_is_told_to_end_once_it_is_known_that_others_have_what_it_holds(
    remove: bool, told: list[str]
) -> None:
    steps: list[str] = []

    async def stock(close_workers: bool, **_: Any) -> dict[str, Any]:
        # some time before it is looked at what has come meanwhile
        steps.append("asked, to end" if close_workers else "asked")
        return {"a": {}}

    async def removed(address: str, close: bool, **_: Any) -> None:
        steps.append("to end" if close else "to go")

    workers = {"a": SimpleNamespace(has_what=(), actors=set())}
    scheduler: Any = SimpleNamespace(workers=workers, remove_worker=removed)
    asyncio.run(data.retire(scheduler, ["a"], "a test", stock, remove=remove, close_workers=True))
    assert steps == told


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Status.running, Status.closing_gracefully, ["running"]),
        # whose memory is full: stock has told it to be so again
        (Status.paused, Status.closing_gracefully, []),
        (Status.running, Status.paused, []),
    ],
)
def test_a_worker_that_cannot_leave_takes_tasks_again_unless_it_is_paused(
    before: Status, after: Status, told: list[str]
) -> None:
    worker, said = SimpleNamespace(status=before, actors=set()), list[str]()

    async def stock(**_: Any) -> dict[str, Any]:
        worker.status = after
        return {}

    scheduler: Any = SimpleNamespace(
        workers={"a": worker},
        handle_worker_status_change=lambda *_: None,
        worker_send=lambda address, message: said.append(message["status"]),
    )
    assert asyncio.run(data.retire_or_keep(scheduler, ["a"], stock)) == {}
    assert said == told


def test_what_is_let_go_of_is_not_made_again_on_a_worker_that_leaves() -> None:
    steps: list[Any] = []
    scheduler: Any = SimpleNamespace(
        workers={"a": None},
        tasks={key: SimpleNamespace(state=state) for key, state in (("k", "memory"), ("w", "waiting"))},
        handle_worker_status_change=lambda status, address, _: steps.append((status, address)),
        worker_send=lambda address, message: steps.append((message["status"], address)),
        transitions=lambda recommended, _: steps.append(recommended),
    )
    data.let_go(scheduler, ["k", "w", "forgotten"], ["a"], "a test")
    assert steps == [("closing_gracefully", "a"), ("closing_gracefully", "a"), {"k": "released"}]
