"""Nodes on their way out stay when they are wanted again, as long as something is waited for on them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from elastic_clusters import Shrinkable, shrinkable
from waits import Gate, until, within

import dask_hpc
from dask_hpc.scheduler.rpc.service import of


def draining(made: Shrinkable) -> int:
    """Nodes that are being drained."""
    return sum(node.reserved > 0 for node in of(made.scheduler).engine.state.nodes.nodes.values())


async def shrinking_to_one(made: Shrinkable) -> tuple[list[Any], Gate]:
    """Tasks at a gate on every worker, and all workers but one waiting for theirs before they go."""
    gate = Gate()
    held = await made.held(4, gate)
    made.cluster.scale(1)
    await until(lambda: draining(made) == 3, "three are being drained")
    return held, gate


@pytest.mark.parametrize(("wanted", "stay", "come"), [(4, 4, 0), (3, 3, 0), (2, 2, 0), (6, 4, 2)])
def test_those_that_are_wanted_again_stay_and_only_the_rest_comes(wanted: int, stay: int, come: int) -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            before = made.names()
            held, gate = await shrinking_to_one(made)
            made.cluster.scale(wanted)
            await until(lambda: draining(made) == 4 - stay, "the others still leave")
            gate.open()
            assert await within(made.client.gather(held)) == [0, 1, 2, 3]
            await made.size(wanted)
            assert len(made.names() & before) == stay
            assert len(made.names() - before) == come
            assert made.cluster.refused == {}
            assert made.tally.twice() == []

    asyncio.run(run())


def test_those_that_stay_take_tasks_again_and_can_leave_later() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            held, gate = await shrinking_to_one(made)
            made.cluster.scale(4)
            await until(lambda: draining(made) == 0, "all stay")
            again = made.client.map(gate.wait, range(40), pure=False)
            await until(lambda: all(ws.processing for ws in made.scheduler.workers.values()), "all work")
            began_s = time.monotonic()
            made.cluster.scale(1)
            await until(lambda: draining(made) == 3, "three are being drained again")
            gate.open()
            assert await within(made.client.gather([*held, *again])) == [*range(4), *range(40)]
            await made.size(1)
            # at once, not when `hpc.shrink-deadline` (60 s) has passed
            assert time.monotonic() - began_s < 30
            assert made.tally.twice() == []

    asyncio.run(run())


def test_a_size_that_is_asked_for_while_others_leave_is_had_in_the_end() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            gate = Gate()
            held = await made.held(4, gate)
            # as an adaptive cluster lets them go, which is stopped then
            leaving = asyncio.ensure_future(made.cluster.scale_down(list(made.cluster.worker_spec)[:2]))
            await until(lambda: draining(made) == 2, "two are being drained")
            made.cluster.scale(3)
            gate.open()
            assert await within(made.client.gather(held)) == [0, 1, 2, 3]
            await within(leaving)
            await made.size(3)

    asyncio.run(run())


def test_who_gets_the_name_of_a_worker_that_left_before_others_stays() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            gate = Gate()
            held = [made.client.submit(gate.wait, n, workers=[made.address(n)]) for n in (0, 2)]
            busy = [made.scheduler.workers[made.address(n)] for n in (0, 2)]
            await until(lambda: all(ws.processing for ws in busy), "two of three work")
            made.cluster.scale(1)
            await until(lambda: "1" not in made.names(), "the other one has left")
            await made.cluster.workers[1].close()
            made.cluster.scale(3)
            await until(lambda: "1" in made.names() and not draining(made), "another one has its name")
            gate.open()
            assert await within(made.client.gather(held)) == [0, 2]
            await until(lambda: made.cluster._shrinking[""].done(), "nobody leaves any more")
            assert made.names() == {"0", "1", "2"}

    asyncio.run(run())


def test_a_node_that_two_let_go_in_the_same_moment_goes_once() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            await made.results(20)
            releases = of(made.scheduler).releases
            asked = (releases.retire(names=[1]), releases.release(1, ["1"]), releases.release(1, ["1"]))
            # whoever comes first has it
            retired, *released = await within(asyncio.gather(*asked))
            assert (len(retired), sum(len(answer["released"]) for answer in released)) in {(1, 0), (0, 1)}
            assert made.names() == {"0", "2"}

    asyncio.run(run())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_worker_that_cannot_leave_works_on_however_often_it_was_asked(at_once: bool) -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            data = await made.client.scatter([1], hash=False)
            handlers = made.cluster.workers[0].stream_handlers
            hear, told = handlers["worker-status-change"], []
            # it is busy, and hears nothing until it was asked twice
            handlers["worker-status-change"] = lambda **message: told.append(message)
            asked = [made.client.retire_workers(names=[0]) for _ in range(2)]
            if at_once:
                await within(asyncio.gather(*asked))
            else:
                for one in asked:
                    await within(one)
            await until(lambda: told and told[-1]["status"] != "closing_gracefully", "it is told to go on")
            handlers["worker-status-change"] = hear
            for message in told:
                hear(**message)
            assert await within(made.client.submit(sum, data)) == 1

    asyncio.run(run())


def test_the_nodes_of_a_job_stay_with_it() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            runtime = await dask_hpc.install(made.client, policy="fcfs")
            gate = Gate()
            async with runtime.job("grown", nodes=4, min_nodes=1, max_nodes=4) as job:
                held = [made.client.submit(gate.wait, n, pure=False) for n in range(4)]
                await until(lambda: all(ws.processing for ws in made.scheduler.workers.values()), "all work")
                made.cluster.scale(2)
                await until(lambda: draining(made) == 2, "two are being drained")
                made.cluster.scale(4)
                await until(lambda: draining(made) == 0, "they stay")
                state = of(made.scheduler).engine.state
                [record] = state.jobs.named
                assert len(state.nodes_of(record)) == 4
                gate.open()
                assert await within(made.client.gather(held)) == [0, 1, 2, 3]
            await within(job.wait(20))
            assert len(made.names()) == 4

    asyncio.run(run())


def slowly_retiring(made: Any) -> tuple[asyncio.Event, asyncio.Event]:
    """Have its workers retire when the second event is set; the first one says that they are asked to."""
    asked, go = asyncio.Event(), asyncio.Event()
    stock = made.scheduler.retire_workers

    async def slow(*args: Any, **kwargs: Any) -> Any:
        asked.set()
        await go.wait()
        return await stock(*args, **kwargs)

    made.scheduler.retire_workers = slow
    return asked, go


def test_a_node_that_is_being_retired_goes_and_another_one_comes() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            asked, go = slowly_retiring(made)
            made.cluster.scale(1)
            await within(asked.wait())
            before = set(made.scheduler.workers)
            made.cluster.scale(2)
            await until(lambda: made.cluster._wanted[""] == 2, "it is wanted again")
            go.set()
            await until(lambda: len(before & set(made.scheduler.workers)) == 1, "it has gone")
            await made.size(2)

    asyncio.run(run())


def test_an_adaptive_cluster_keeps_those_on_their_way_out_before_it_asks_for_others() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            adaptive = made.cluster.adapt(minimum=1, maximum=4, interval="1 h", wait_count=1)
            gate = Gate()
            held = await made.held(2, gate)
            await adaptive.scale_down({0})
            await until(lambda: draining(made) == 1, "it is being drained")
            assert adaptive.leaving == {0}
            await adaptive.adapt()
            # both are asked for by what they execute
            assert adaptive.leaving == set()
            assert draining(made) == 0
            assert set(made.cluster.worker_spec) == {0, 1}
            more = [made.client.submit(gate.wait, number, pure=False) for number in range(60)]
            await until(lambda: len(made.scheduler.tasks) == len(held) + len(more), "they are known")
            await adaptive.adapt()
            await until(lambda: len(made.scheduler.workers) == 4, "two have come")
            gate.open()
            await within(made.client.gather([*held, *more]))
            assert {"0", "1"} <= made.names()
            assert len(made.names()) == 4
            assert made.tally.twice() == []

    asyncio.run(run())


@pytest.mark.parametrize("fewer", ["scale", "adapt"])
def test_a_cluster_that_adapts_keeps_those_that_something_else_has_let_go_before(fewer: str) -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            before = made.names()
            gate = Gate()
            if fewer == "scale":
                held, gate = await shrinking_to_one(made)
            else:
                adaptive = made.cluster.adapt(minimum=1, maximum=4, interval="1 h", wait_count=1)
                held = await made.held(4, gate)
                await adaptive.scale_down({1, 2, 3})
                await until(lambda: draining(made) == 3, "three are being drained")
            made.cluster.adapt(minimum=4, maximum=4, interval="20 ms")
            await until(lambda: draining(made) == 0, "all stay")
            gate.open()
            assert await within(made.client.gather(held)) == [0, 1, 2, 3]
            await made.size(4)
            assert made.names() == before
            assert made.tally.twice() == []

    asyncio.run(run())


def test_what_was_asked_for_before_adapt_is_not_started_again_when_it_has_gone() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            asked, go = slowly_retiring(made)
            made.cluster.scale(1)
            await within(asked.wait())
            # too late to stay; by what there is to do one is enough
            made.cluster.adapt(minimum=1, maximum=2, interval="1 h")
            go.set()
            await within(made.cluster._shrinking[""])
            assert len(made.names()) == len(made.cluster.worker_spec) == 1

    asyncio.run(run())


def test_a_worker_that_is_pinned_while_it_is_drained_stays() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            held, gate = await shrinking_to_one(made)
            await made.cluster.pin(*range(4))
            await until(lambda: draining(made) == 0, "all stay")
            gate.open()
            assert await within(made.client.gather(held)) == [0, 1, 2, 3]
            await until(lambda: len(made.cluster.refused) == 4, "they say why")
            assert all("pinned" in why for why in made.cluster.refused.values())
            assert len(made.names()) == 4
            await made.cluster.unpin(*range(4))
            await made.size(1)

    asyncio.run(run())


@pytest.mark.parametrize("adapts", [False, True])
def test_a_worker_that_somebody_has_retired_is_not_counted_any_more(adapts: bool) -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            await within(made.client.retire_workers([made.address(1)]))
            await until(lambda: made.cluster.workers[1].status.name == "closed", "it has ended")
            if adapts:
                made.cluster.adapt(minimum=2, maximum=2, interval="20 ms")
            else:
                assert (await made.cluster.scale(2, dry_run=True))["add"] == 1
                made.cluster.scale(2)
            await made.size(2)
            assert await within(made.client.submit(sum, [1, 2])) == 3

    asyncio.run(run())


@pytest.mark.parametrize("retires", [False, True])
def test_who_was_to_leave_and_is_wanted_again_is_none_that_could_not(retires: bool) -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            gate = Gate()
            held = await made.held(2, gate)
            releases = of(made.scheduler).releases
            asked = releases.retire(names=[1]) if retires else releases.release(1, [1])
            leaving = asyncio.ensure_future(asked)
            await until(lambda: draining(made) == 1, "it is drained")
            assert releases.recall(0) == [1]
            assert await within(leaving) == ({} if retires else {"released": {}, "refused": {}})
            assert made.cluster.refused == {}
            # nor is it counted among those that leave now
            going = asyncio.ensure_future(releases.release(1, [0]))
            await until(lambda: draining(made) == 1, "the other one is drained")
            assert releases.recall(1) == []
            gate.open()
            assert await within(made.client.gather(held)) == [0, 1]
            assert list((await within(going))["released"]) == ["0"]

    asyncio.run(run())
