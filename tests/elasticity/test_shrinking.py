"""What `scale` promises: refusals with a reason, rehearsals that change nothing, growing while shrinking."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from distributed import wait
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import Late, Ledger, Tally, make, result_of, through, work
from waits import PATIENCE_S, Gate, until, within

import dask_hpc
from dask_hpc.deploy import scaling
from dask_hpc.scheduler.rpc.service import of


async def intact(made: Shrinkable, futures: list, count: int) -> None:
    assert await made.client.gather(futures) == [result_of(number) for number in range(count)]
    assert made.tally.twice() == []


def test_a_node_whose_data_nobody_may_take_stays_with_the_reason_until_somebody_may() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            futures = await made.results()
            made.pause(0)
            made.pause(1)
            await until(lambda: len(made.scheduler.running) == 1, "two are paused")
            await within(made.client.retire_workers([made.address(2)]))
            assert "no other worker has room" in made.cluster.refused["2"]
            assert "2" in made.names()
            await intact(made, futures, 20)
            made.pause(0, False)
            made.pause(1, False)
            await until(lambda: len(made.scheduler.running) == 3, "they go on")
            await within(made.client.retire_workers([made.address(2)]))
            assert made.names() == {"0", "1"}
            assert made.cluster.refused == {}
            await intact(made, futures, 20)

    asyncio.run(run())


def test_a_cluster_whose_runtime_was_uninstalled_loses_nothing_either() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            futures = await made.results()
            await (await dask_hpc.runtime(made.client)).uninstall()
            assert made.cluster.refused == {}
            assert "hpc" not in made.scheduler.handlers
            made.cluster.scale(1)
            await made.size(1)
            await intact(made, futures, 20)

    asyncio.run(run())


def test_a_cluster_of_no_workers_keeps_one_for_what_is_in_memory() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            futures = await made.results()
            made.cluster.scale(0)
            await made.size(1)
            await until(lambda: made.cluster.refused, "the last one says why it stays")
            assert set(made.cluster.refused) == made.names()
            assert "no other worker has room" in next(iter(made.cluster.refused.values()))
            await intact(made, futures, 20)
            del futures
            await made.size(0)
            assert made.cluster.refused == {}

    asyncio.run(run())


def test_a_rehearsal_tells_victims_bytes_and_refusals_and_changes_nothing() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            ledger = await made.client.submit(Ledger, actor=True, workers=[made.address(3)], key="ledger")
            futures = await made.results(8)
            before = {address: set(ws.has_what) for address, ws in made.scheduler.workers.items()}
            plan = await made.cluster.scale(1, dry_run=True)
            assert plan["add"] == 0
            assert {name for names in plan["release"].values() for name in names} == {0, 1, 2}
            held = sum(
                ts.nbytes
                for ws in made.scheduler.workers.values()
                if ws.name != 3
                for ts in ws.has_what
                if all(other.name != 3 for other in ts.who_has)
            )
            assert plan["bytes"] == held > 0
            assert "actor 'ledger' lives there" in plan["refused"]["3"]
            assert (await made.cluster.scale(6, dry_run=True))["add"] == 2
            after = {address: set(ws.has_what) for address, ws in made.scheduler.workers.items()}
            assert after == before
            assert set(made.cluster.worker_spec) == {0, 1, 2, 3}
            assert all(ws.status.name == "running" for ws in made.scheduler.workers.values())
            assert made.cluster.refused == {}
            assert await ledger.add(1) == 1
            await intact(made, futures, 8)

    asyncio.run(run())


def test_growing_does_not_wait_for_those_that_leave() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            gate = Gate()
            held = await made.held(3, gate)
            futures = await _place(made)
            made.cluster.scale(2)
            await until(lambda: _draining(made) == 1, "one is being drained")
            made.cluster.scale(5)
            await until(lambda: len(made.scheduler.workers) >= 5, "new workers come")
            assert made.tally.side_effects().total() == 3
            assert not any(future.done() for future in held)
            gate.open()
            assert await made.client.gather(held) == [0, 1, 2]
            await made.size(5)
            await intact(made, futures, 6)

    asyncio.run(run())


async def _place(made: Shrinkable) -> list:
    """Data on every worker, although all are busy."""
    return await made.client.scatter([result_of(number) for number in range(6)], hash=False)


def _draining(made: Shrinkable) -> int:
    return sum(node.reserved > 0 for node in of(made.scheduler).engine.state.nodes.nodes.values())


def test_the_last_of_several_wishes_counts() -> None:
    async def run() -> None:
        async with shrinkable(5) as made:
            futures = await made.results()
            gate = Gate()
            held = await made.held(8, gate)
            made.cluster.scale(4)
            made.cluster.scale(2)
            await until(lambda: _draining(made) >= 1, "some are being drained")
            made.cluster.scale(3)
            gate.open()
            assert await made.client.gather(held) == list(range(8))
            await made.size(3)
            await intact(made, futures, 20)
            made.cluster.scale(1)
            made.cluster.scale(4)
            await made.size(4)
            await intact(made, futures, 20)

    asyncio.run(run())


def test_a_worker_that_leaves_twice_at_once_finishes_what_it_executes() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            futures = await made.results()
            gate = Gate()
            held = await made.held(3, gate)
            address = made.address(2)
            first = asyncio.ensure_future(made.client.retire_workers([address]))
            await until(lambda: _draining(made) == 1, "it is being drained")
            second = asyncio.ensure_future(made.client.retire_workers([address]))
            third = asyncio.ensure_future(made.cluster.scale_down([2]))
            done, _ = await asyncio.wait([first, second, third], timeout=0.3)
            assert not done
            assert "2" in made.names()
            gate.open()
            await within(asyncio.gather(first, second, third))
            assert await made.client.gather(held) == [0, 1, 2]
            assert made.names() == {"0", "1"}
            await intact(made, futures, 20)

    asyncio.run(run())


def test_adapt_looks_past_a_node_that_stays() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            # idle and empty but for its actor, it is what Dask would close first, every time
            ledger = await made.client.submit(Ledger, actor=True, workers=[made.address(2)], key="ledger")
            others = [made.address(name) for name in (0, 1, 3)]
            futures = await made.results(30, workers=others)
            made.cluster.adapt(minimum=1, maximum=1, interval="50 ms", wait_count=1)
            await made.size(1)
            assert made.names() == {"2"}
            assert "actor 'ledger' lives there" in made.cluster.refused.get("2", "actor 'ledger' lives there")
            assert await ledger.add(2) == 2
            await intact(made, futures, 30)

    asyncio.run(run())


def test_a_cluster_closes_while_workers_are_leaving() -> None:
    async def run() -> float:
        gate = Gate()
        async with shrinkable(3) as made:
            held = await made.held(3, gate)
            made.cluster.scale(1)
            await until(lambda: _draining(made) == 2, "two are being drained")
            asyncio.get_running_loop().call_later(0.2, gate.open)
            began_s = time.monotonic()
        assert len(held) == 3
        return time.monotonic() - began_s

    # far less than `hpc.shrink-deadline` (60 s)
    assert asyncio.run(run()) < PATIENCE_S / 2


@pytest.mark.parametrize("turns", [0, 1, 5, 50])
def test_a_cluster_closes_while_workers_are_starting(turns: int) -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            made.cluster.scale(3)
            for _ in range(turns):
                await asyncio.sleep(0)
            await within(made.cluster.close())
            assert made.cluster.status.name == "closed"
            assert (made.cluster.worker_spec, made.cluster.workers) == ({}, {})
            await within(made.cluster.close())

    asyncio.run(run())


#: What `adapt` does not take.
WRONG: tuple[dict[str, Any], ...] = (
    {"minimum": 3, "maximum": 1},
    {"minimum": -1},
    {"minimum": 1.5},
    {"maximum": "2"},
    {"minimum_jobs": 1},
    {"interval": "bla"},
    {"interval": -1},
    {"target_duration": 0},
    {"wait_count": -2},
)


def test_options_that_cannot_be_are_refused_and_forgotten() -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            for options in WRONG:
                with pytest.raises((ValueError, TypeError), match="allowed: "):
                    made.cluster.adapt(**options)
            made.cluster.adapt(minimum=2, maximum=2)
            await made.size(2)

    asyncio.run(run())


def test_a_closed_cluster_says_that_its_size_does_not_change(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            await made.cluster.close()
            made.cluster.scale(2)

    asyncio.run(run())
    assert "The cluster is closed" in caplog.text


@pytest.mark.parametrize("flag", [{"force": "no"}, {"dry_run": "yes"}, {"force": 1}])
def test_a_flag_that_is_neither_true_nor_false_is_refused(flag: dict[str, Any]) -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            with pytest.raises(ValueError, match="allowed: True or False"):
                made.cluster.scale(1, **flag)
            assert made.names() == {"0", "1"}

    asyncio.run(run())


def test_who_scales_a_cluster_that_follows_the_load_is_told() -> None:
    said: list[str] = []
    # clusters that silence their logs silence pytest's handler, too
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())

    async def run() -> None:
        async with shrinkable(1) as made:
            made.cluster.adapt(minimum=2, maximum=2, interval="20 ms")
            await made.size(2)
            assert said == []
            made.cluster.scale(1)
            assert "follows the load (adapt), between 2 and 2 workers" in said.pop()
            made.cluster.adapt(minimum=1, maximum=1, interval="20 ms", wait_count=1)
            await made.size(1)
            assert said == []

    scaling.logger.addHandler(handler)
    try:
        asyncio.run(run())
    finally:
        scaling.logger.removeHandler(handler)


@pytest.mark.parametrize("n", [-1, 1.5, "2", True, None])
def test_a_size_that_is_none_is_refused(n: object) -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            with pytest.raises(ValueError, match="allowed: a whole number"):
                made.cluster.scale(n)
            assert made.names() == {"0"}

    asyncio.run(run())


def test_the_synchronous_forms_do_the_same(tmp_path, loop) -> None:
    tally = Tally(tmp_path)
    with (
        dask_hpc.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=False, dashboard_address=":0", loop=loop
        ) as pool,
        pool.get_client() as client,
    ):
        client.register_plugin(tally.plugin)
        futures = client.map(make, range(20))
        wait(futures)
        running = [client.submit(work, number, 0.5, tally.effects, pure=False) for number in range(6)]
        plan = pool.scale(1, dry_run=True)
        assert sum(map(len, plan["release"].values())) == 2
        assert len(pool.scheduler_info["workers"]) == 3
        assert pool.scale(1) is None
        _poll(lambda: len(pool.scheduler.workers) == 1 == len(pool.workers))
        assert client.gather(running) == [number + 1 for number in range(6)]
        assert client.gather(futures) == [result_of(number) for number in range(20)]
        pool.scale(2)
        _poll(lambda: len(pool.scheduler.workers) == 2)
        adaptive = pool.adapt(minimum=1, maximum=1, interval="50 ms", wait_count=1)
        assert (adaptive.minimum, adaptive.maximum) == (1, 1)
        _poll(lambda: len(pool.scheduler.workers) == 1)
        assert client.gather(futures) == [result_of(number) for number in range(20)]
        assert tally.twice() == []


def _poll(condition) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_worker_that_has_just_come_finishes_what_it_executes_before_it_goes() -> None:
    async def run() -> None:
        async with shrinkable(2, again_s=0.2) as made:
            Late.go = asyncio.Event()
            gate = Gate()
            actors = [
                await made.client.submit(Ledger, actor=True, key=f"ledger-{n}", workers=[made.address(n)])
                for n in (0, 1)
            ]
            made.cluster.scale(1)
            await until(lambda: len(made.cluster.refused) == 2, "neither goes")
            # two are started together: the one is there, the other keeps the cluster waiting
            for name in ("early", "late"):
                made.cluster.worker_spec[name] = {"cls": Late, "options": {"nthreads": 1}}
            made.cluster.scale(4)
            await until(lambda: "early" in made.names(), "one of two has come")
            executing = made.client.submit(
                through, 7, gate, made.tally.effects, key="through-7", workers=[made.address("early")]
            )
            await until(lambda: made.tally.side_effects()["through-7"], "it executes there")
            made.cluster.scale(1)
            asyncio.get_running_loop().call_later(0.5, Late.go.set)
            await until(lambda: _draining(made) or "early" not in made.names(), "early has to go")
            gate.open()
            assert await executing == 7
            await made.size(2)
            assert made.names() == {"0", "1"}
            assert made.tally.twice() == []
            assert [await actor.add(n) for n, actor in enumerate(actors)] == [0, 1]

    asyncio.run(run())
