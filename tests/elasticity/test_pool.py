"""Clusters that follow the pool policy: stock's `Adaptive` and ours, with tasks and with job policies."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import bursts
import dask
import distributed
import pytest
from bursts import Burst, Run, Verdict, load, reversals
from distributed import Client
from elastic_clusters import shrinkable
from waits import PATIENCE_S, Gate, until, within

import dask_hpc

SETTINGS = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0", "silence_logs": 50}


def names(cluster: Any) -> set[str]:
    return {str(ws.name) for ws in cluster.scheduler.workers.values()}


async def looks(cluster: Any, count: int = 20) -> None:
    """Have the cluster look so many times, besides those it takes of itself."""
    for _ in range(count):
        await cluster._adaptive.adapt()
        await asyncio.sleep(0)


async def keeps_what_came(cluster: Any, client: Client) -> None:
    """Workers come for work, stay without it, come back for none, and go when the hold is over."""
    cluster.adapt(minimum=0, maximum=3, interval="20 ms", wait_count=1)
    runtime = await dask_hpc.install(client)
    gate = Gate()
    futures = [client.submit(gate.wait, number, pure=False) for number in range(60)]
    await until(lambda: len(cluster.scheduler.workers) == 3, "it has grown")
    came = names(cluster)
    gate.open()
    assert await within(client.gather(futures)) == list(range(60))
    del futures
    await looks(cluster)
    assert names(cluster) == came
    await runtime.update(pool_hold="0 s")
    await until(lambda: not cluster.scheduler.workers, "it has shrunk")


def run(test: Callable[[Any, Client], Awaitable[None]], kind: Any, hold: str = "1 min") -> None:
    async def inside() -> None:
        async with (
            kind(n_workers=0, asynchronous=True, **SETTINGS) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await test(cluster, client)

    with dask.config.set({"hpc.pool.hold": hold}):
        asyncio.run(inside())


def test_ours_keeps_workers_between_bursts() -> None:
    run(keeps_what_came, dask_hpc.LocalCluster)


def test_stock_follows_the_policy_where_the_scheduler_has_the_preload() -> None:
    preload = {"distributed.scheduler.preload": ["dask_hpc.preload"], "hpc.pool.stock-adaptive": "always"}
    with dask.config.set(preload):
        run(keeps_what_came, distributed.LocalCluster)


def test_with_the_preload_and_no_job_stock_does_as_without() -> None:
    async def test(cluster: Any, client: Client) -> None:
        cluster.adapt(minimum=0, maximum=2, interval="20 ms", wait_count=2)
        assert await within(client.submit(sum, [1, 2])) == 3
        await until(lambda: not cluster.scheduler.workers, "all have gone, 60 s before the end of the hold")

    with dask.config.set({"distributed.scheduler.preload": ["dask_hpc.preload"]}):
        run(test, distributed.LocalCluster)


def test_it_says_why_it_keeps_workers() -> None:
    async def test(cluster: Any, client: Client) -> None:
        adaptive = cluster.adapt(minimum=0, maximum=2, interval="20 ms")
        assert await within(client.submit(sum, [1, 2])) == 3
        await until(lambda: "kept for 60 s" in adaptive.reason, "a reason")
        assert "hpc.pool.hold" in adaptive.reason

    run(test, dask_hpc.LocalCluster)


def test_unless_it_is_set_the_hold_is_a_small_multiple_of_what_workers_take_to_come() -> None:
    async def test(cluster: Any, client: Client) -> None:
        adaptive = cluster.adapt(minimum=0, maximum=2, interval="20 ms")
        assert await within(client.submit(sum, [1, 2])) == 3
        await until(lambda: "hpc.pool.hold: auto, and they have taken 0" in adaptive.reason, "a reason")
        await until(lambda: not cluster.scheduler.workers, "it has gone: far sooner than a minute")

    run(test, dask_hpc.LocalCluster, hold="auto")


def test_looks_that_the_hold_took_count_as_those_in_a_row() -> None:
    async def test(cluster: Any, client: Client) -> None:
        adaptive = cluster.adapt(minimum=0, maximum=2, interval="1 h", wait_count=50)
        # as if it had looked all the time
        adaptive.interval = 0.001
        await adaptive.adapt()
        future = client.submit(sum, [1, 2])
        await until(lambda: cluster.scheduler.tasks, "it is known")
        await adaptive.adapt()
        assert await within(future) == 3
        del future
        while "from 1 node to 0" not in adaptive.reason:
            assert len(cluster.scheduler.workers) == 1
            await adaptive.adapt()
        await until(lambda: not cluster.scheduler.workers, "that look was enough")

    run(test, dask_hpc.LocalCluster, hold="200 ms")


def test_one_worker_that_cannot_go_does_not_keep_others_from_coming() -> None:
    async def inside() -> None:
        async with shrinkable(2) as made:
            adaptive = made.cluster.adapt(minimum=1, maximum=4, interval="20 ms", wait_count=1)
            gate = Gate()
            stuck = await made.held(2, gate)
            # it cannot be recalled: nothing tells it apart from one whose data takes for ever to move
            made.cluster._releases.recall = lambda *args: []
            await adaptive.scale_down({0})
            assert adaptive.leaving == {0}
            more = [made.client.submit(gate.wait, number, pure=False) for number in range(60)]
            # four besides the one that leaves
            await until(lambda: len(made.scheduler.workers) == 5, "others have come")
            assert adaptive.leaving == {0}
            assert "0" in made.names()
            gate.open()
            await within(made.client.gather([*stuck, *more]))
            await until(lambda: "0" not in made.names(), "it has gone")
            assert len(made.scheduler.workers) == 4
            assert made.tally.twice() == []

    with dask.config.set({"hpc.pool.hold": "1 min"}):
        asyncio.run(inside())


def test_a_job_policy_moves_the_pool_of_an_adaptive_cluster() -> None:
    async def test(cluster: Any, client: Client) -> None:
        cluster.adapt(minimum=1, maximum=4, interval="20 ms", wait_count=1)
        await client.wait_for_workers(1)
        runtime = await dask_hpc.install(client, policy="dask-default", minimum=3, tick="20 ms")
        async with runtime.job("small", nodes=1) as job:
            assert await within(client.submit(sum, [1, 2], pure=False)) == 3
            await until(lambda: len(cluster.scheduler.workers) == 3, "the policy's minimum")
            rows = [row for row in await runtime.decisions() if row["action"] == "request-nodes"]
            assert {row["result"] for row in rows} == {"done"}
            told = (await runtime.snapshot()).sections["pool"]
            assert told["most_nodes"] == 4
            assert 0 < told["wait_s"] < 20
        await within(job.wait(20))

    run(test, dask_hpc.LocalCluster)


def test_without_adapt_a_job_policy_is_told_how_to_have_the_pool_follow() -> None:
    async def test(cluster: Any, client: Client) -> None:
        cluster.scale(1)
        await client.wait_for_workers(1)
        runtime = await dask_hpc.install(client, policy="dask-default", minimum=3, tick="20 ms")
        async with runtime.job("small", nodes=1) as job:
            assert await within(client.submit(sum, [1, 2], pure=False)) == 3
            rows = [row for row in await runtime.decisions() if row["action"] == "request-nodes"]
            assert {row["result"] for row in rows} == {"refused"}
            assert "cluster.adapt()" in rows[0]["reason"]
            assert "pool" not in (await runtime.snapshot()).sections
            assert len(cluster.scheduler.workers) == 1
        await within(job.wait(20))

    run(test, dask_hpc.LocalCluster)


@pytest.mark.slow
def test_the_benchmark_runs_both_clusters_to_the_last_result() -> None:
    script = Path(bursts.__file__)
    command = [sys.executable, str(script), "--minutes", "0.1", "--seeds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 5)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    # six seconds of load say nothing about its bars; that it tells what it says does
    assert done.returncode == (0 if found["holds"] else 1)
    runs = found["runs"]
    assert [(run["seed"], run["ours"]) for run in runs] == [(1, True), (1, False)]
    for run in runs:
        assert not run["failures"]
        assert run["bursts"] == len(load(run["seed"], 0.1))
        assert run["arrivals"] > 0


def test_the_benchmark_counts_changes_of_direction_within_a_minute() -> None:
    come, go = 1, -1
    assert reversals([(0.0, come), (1.0, come), (2.0, go), (3.0, go), (63.5, come), (64.0, go)]) == 2
    assert reversals([]) == reversals([(0.0, come)]) == 0


def test_the_benchmark_draws_its_load_from_the_seed_and_judges_by_its_bars() -> None:
    assert load(7, 2) == load(7, 2) != load(8, 2)
    assert sum(burst.ideal_s for burst in load(7, 2)) >= 120
    assert Burst(7, 2.0, 3.0).ideal_s == 7.0
    stock = Run(0, False, reversals=10, makespan_s=100.0, node_s=1.0)
    for reversed_, makespan_s, holds in ((5, 102.0, True), (6, 100.0, False), (0, 103.0, False)):
        ours = Run(0, True, reversals=reversed_, makespan_s=makespan_s, node_s=1.0)
        assert Verdict.of([(ours, stock)]).holds is holds
    assert not Verdict.of([(Run(0, True, makespan_s=1.0, failures=["lost"]), stock)]).holds


def test_what_only_other_workers_may_run_asks_for_none_of_these() -> None:
    async def inside() -> None:
        async with shrinkable(1) as made:
            staging = {"cls": distributed.Worker, "options": {"nthreads": 1, "resources": {"staging": 1}}}
            made.cluster.worker_spec["s"] = staging
            await made.cluster._correct_state()
            other = {"elsewhere": ["s"], "resources": ["staging"]}

            async def asked(**where: Any) -> int:
                answer = await made.cluster.ask("pool", there=["0"], target_duration="1 us", **where)
                return int(answer["reason"].split()[0])

            gate = Gate()
            needs = {"resources": {"staging": 1}, "pure": False}
            there = [made.client.submit(gate.wait, n, **needs) for n in range(9)]
            pinned = made.client.submit(gate.wait, 9, workers=[made.address("s")], pure=False)
            await until(lambda: len(made.scheduler.tasks) == 10, "they are known")
            assert await asked(**other) == 0
            assert await asked() >= 2
            anywhere = [made.client.submit(gate.wait, n, pure=False) for n in range(40)]
            await until(lambda: len(made.scheduler.tasks) == 50, "they are known")
            assert await asked(**other) >= 2
            gate.open()
            await within(made.client.gather([*there, pinned, *anywhere]))
            # with nothing of its own to do, the other takes a part
            again = Gate()
            both = [made.client.submit(again.wait, n, pure=False) for n in range(2)]
            await until(lambda: all(ws.processing for ws in made.scheduler.workers.values()), "one each")
            assert await asked(**other) == 1
            again.open()
            await within(made.client.gather(both))

    asyncio.run(inside())
