"""Sizes and order in which jobs start."""

from __future__ import annotations

import pytest
from helpers import Gate, addresses_of, asleep, engine, live, record, started, state_of, through, until
from tasks import inc

import dask_hpc
from dask_hpc_policies.jobs.jobspec import InvalidJob, job_spec
from dask_hpc_policies.model import JobFacts
from dask_hpc_policies.views import values_of

SIZES = [
    # on a pool of six nodes
    ({}, 6, "malleable"),
    ({"nodes": 3}, 3, "rigid"),
    ({"nodes": 3, "min_nodes": 2, "max_nodes": 5}, 3, "malleable"),
    ({"min_nodes": 2, "max_nodes": 4}, 4, "malleable"),
    ({"min_nodes": 2, "max_nodes": 5, "rigid": True}, 5, "moldable"),
    ({"max_nodes": 50}, 6, "malleable"),
    ({"constraint": "pof2"}, 4, "malleable"),
    ({"constraint": "square"}, 4, "malleable"),
    ({"constraint": "cube"}, 1, "malleable"),
    ({"constraint": "odd"}, 5, "malleable"),
    ({"constraint": "even", "max_nodes": 5}, 4, "malleable"),
    ({"nodes": 4, "min_nodes": 1, "max_nodes": 6, "constraint": "pof2"}, 4, "malleable"),
]


@live(workers=6)
async def test_every_combination_of_sizes_starts_at_its_legal_size(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    for fields, size, kind in SIZES:
        async with rt.job("main", **fields) as job:
            await started(s, job)
            row = await job.status()
            assert (row["nodes"], row["kind"]) == (size, kind), fields
            assert len(addresses_of(s, job)) == size
            assert await c.submit(inc, 1, pure=False) == 2
        await job.wait(10)


@live()
async def test_a_moldable_start_takes_the_largest_legal_size_that_fits(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("other", nodes=1) as other:
        await started(s, other, 1)
        async with rt.job("main", min_nodes=1, max_nodes=4, constraint="even") as job:
            await started(s, job)
            assert len(addresses_of(s, job)) == 2
            async with rt.job("late", min_nodes=1, max_nodes=4, rigid=True) as late:
                await started(s, late)
                assert len(addresses_of(s, late)) == 1
            await late.wait(10)
    await other.wait(10)
    await job.wait(10)


@live()
async def test_first_come_first_served(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    jobs = [rt.job(f"job{i}", nodes=n) for i, n in enumerate((3, 4, 1))]
    futures = []
    for job in jobs:
        async with job:
            futures.append(c.submit(through, 1, gate=gate, pure=False))
    await started(s, jobs[0], 3)
    # the last would fit beside the first; it does not overtake the second
    await until(lambda: record(s, jobs[2]).unfinished == 1, "submitted")
    await until(
        lambda: "behind" in record(s, jobs[2]).reason or record(s, jobs[2]).reason != "submitted", "decided"
    )
    assert [state_of(s, job) for job in jobs] == ["running", "pending", "pending"]
    gate.open()
    for job in jobs:
        await job.wait(10)
    begun = [record(s, job).start_s for job in jobs]
    assert begun == sorted(begun)
    assert record(s, jobs[1]).start_s >= record(s, jobs[0]).end_s


@live()
async def test_priority_goes_first(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate = Gate()
    async with rt.job("running", nodes=4) as running:
        held = c.submit(through, 1, gate=gate, pure=False)
        await started(s, running, 4)
    jobs = [rt.job(f"p{p}", nodes=4, priority=p) for p in (0, 5, -3)]
    futures = []
    for job in jobs:
        async with job:
            futures.append(c.submit(inc, 1, pure=False))
    await until(lambda: record(s, jobs[-1]).closed, "all are in the queue")
    gate.open()
    for job in jobs:
        await job.wait(10)
    order = sorted(jobs, key=lambda job: record(s, job).start_s)
    assert [record(s, job).name for job in order] == ["p5", "p0", "p-3"]
    assert await c.gather([held, *futures]) == [1, 2, 2, 2]


@live(workers=2)
async def test_a_job_larger_than_the_pool_of_now_waits_when_the_pool_may_grow(c, s, a, b):
    from distributed import Worker

    rt = await dask_hpc.install(c, pool_max_nodes=3)
    async with rt.job("wide", nodes=3) as job:
        future = c.submit(inc, 1, pure=False)
        await until(lambda: record(s, job).unfinished == 1, "submitted")
        assert state_of(s, job) == "pending"
        async with Worker(s.address, name="third", nthreads=1):
            await started(s, job, 3)
            assert await future == 2
            job_row = await job.cancel()
            assert job_row["state"] == "cancelled"
            await asleep(s)


@live(workers=1)
async def test_all_that_is_declared_reaches_the_policy(c, s, a, tmp_path):
    declared = {
        "walltime": "1 h", "priority": 2, "min_power_w": "100 W", "max_power_w": 200, "io_intensity": 0.5,
        "deadline": "2 h", "soft_deadline": "90 min", "value": 7.5, "protect": "field", "resilience": "ml",
        "user": "ada", "weight": 2.5,
    }  # fmt: skip
    rt = await dask_hpc.install(c, "fcfs", checkpoint_store=str(tmp_path))
    async with rt.job("main", **declared) as job:
        await started(s, job)
        (view,) = (await rt.snapshot()).jobs
        assert values_of(JobFacts, view) == values_of(JobFacts, job_spec("main", **declared))
        assert view.submit_s == record(s, job).submit_s > 0
    await job.wait(10)


# ------------------------------------------------------------------ bad input

WRONG = [
    ({"min_nodes": 3, "max_nodes": 2}, ["3", "2", "max_nodes"]),
    ({"min_nodes": 3, "max_nodes": 3, "constraint": "pof2"}, ["pof2", "3"]),
    ({"nodes": 3, "constraint": "even"}, ["3", "even", "2", "4"]),
    ({"nodes": 9}, ["nodes=9", "1 to 4", "hpc.pool.max-nodes"]),
    ({"min_nodes": 5}, ["min_nodes=5", "1 to 4", "hpc.pool.max-nodes"]),
    ({"nodes": 0}, ["nodes=0", "at least 1"]),
    ({"nodes": "two"}, ["'two'", "nodes"]),
    ({"nodes": 2.5}, ["2.5", "nodes"]),
    ({"nodes": True}, ["True", "nodes"]),
    ({"nodes": 5, "min_nodes": 1, "max_nodes": 4}, ["nodes=5", "max_nodes=4"]),
    ({"constraint": "prime"}, ["'prime'", "pof2"]),
    ({"walltime": "30 parsecs"}, ["walltime", "30 parsecs"]),
    ({"walltime": "30 W"}, ["walltime", "30 W"]),
    ({"walltime": -1}, ["walltime", "-1"]),
    ({"min_power_w": "5 min"}, ["min_power_w", "5 min"]),
    ({"min_power_w": 200, "max_power_w": 100}, ["200", "100"]),
    ({"io_intensity": 1.5}, ["1.5", "0 to 1"]),
    ({"deadline": "1 h", "soft_deadline": "2 h"}, ["soft_deadline=7200", "deadline=3600"]),
    ({"priority": "high"}, ["'high'", "priority"]),
    ({"rigid": "yes"}, ["'yes'", "rigid"]),
    ({"nodez": 2}, ["nodez", "nodes"]),
]


@live()
async def test_wrong_declarations_are_refused_and_change_nothing(c, s, *workers):
    rt = await dask_hpc.install(c)
    plugins = dict(s.plugins)
    for fields, words in WRONG:
        with pytest.raises((InvalidJob, TypeError)) as caught:
            async with rt.job({"name": "main", **fields}):
                pytest.fail(f"{fields} was accepted")
        for word in words:
            assert word in str(caught.value), fields
    assert list(await rt.jobs()) == []
    assert dict(s.plugins) == plugins
    assert not engine(s).awake


@live()
async def test_wrong_updates_are_refused_as_a_whole(c, s, *workers, tmp_path):
    rt = await dask_hpc.install(c)
    before = await rt.status()
    file = tmp_path / "policy.yaml"
    file.write_text("policy: [unclosed")
    attempts = [
        ({"policy": "pwma-fspma"}, "pwma-fpsma"),
        ({"policy": str(file)}, "policy.yaml"),
        ({"policy": "fcfs", "tick_s": 0}, "tick"),
        ({"tick_s": "3 W"}, "tick"),
        ({"lock": "everything"}, "one of job, system"),
        ({"lock": "system", "no_such": 1}, "no_such"),
        ({"shrink_deadline_s": "-5 s"}, "shrink-deadline"),
        ({"policy": {"policy": "fcfs", "no_such": 2}}, "no_such"),
        ({"policy": 7}, "7"),
    ]
    for arguments, words in attempts:
        with pytest.raises((ValueError, TypeError), match=words):
            await rt.update(**arguments)
        after = await rt.status()
        assert after["settings"] == before["settings"], arguments
        assert after["policy"] == before["policy"], arguments
    good = await rt.update("fcfs", lock="system", tick_s="500 ms")
    assert (good["settings"]["lock"], good["settings"]["tick_s"]) == ("system", 0.5)


# --------------------------------------------------------------------- notice


@live(workers=2)
async def test_a_computation_that_is_held_says_so_once(c, s, a, b, caplog):
    rt = await dask_hpc.install(c, held_notice_s=0.1, tick_s=0.03)
    gate = Gate()
    async with rt.job("first", nodes=2) as first:
        await started(s, first, 2)
        held = c.submit(through, 1, gate=gate, pure=False)
        async with rt.job("second", nodes=2) as second:
            future = c.map(inc, range(10), pure=False)

            def notices():
                return [
                    r.getMessage()
                    for r in caplog.records
                    if r.name == "dask_hpc" and "held" in r.getMessage()
                ]

            await until(notices, "a notice")
            ticks = len(engine(s).controller.pass_s)
            await until(lambda: len(engine(s).controller.pass_s) > ticks + 10, "more ticks")
            (message,) = notices()
            assert second.id in message
            assert first.id in message
            assert "Remedy" in message
        gate.open()
    await first.wait(10)
    await second.wait(10)
    assert await c.gather(future) == list(range(1, 11))
    assert await held == 1


@live(2)
async def test_a_job_says_what_executes_on_the_node_that_it_waits_for(c, s, a, b):
    rt, gate = await dask_hpc.install(c, "fcfs"), Gate()
    long = c.map(through, range(2), gate=gate, key="long")
    await until(lambda: gate.arrived == 2, "both execute")
    async with rt.job("waits", nodes=1) as job:
        await until(lambda: "1 tasks or shuffles (first: 'long" in record(s, job).reason, "it says so")
        gate.open()
        await started(s, job)
        assert "long" not in record(s, job).reason
    await job.wait(10)
    assert await c.gather(long) == [0, 1]
