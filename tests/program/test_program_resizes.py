"""However a program is resized, also by its own request, its field is that of an undisturbed run."""

from __future__ import annotations

import asyncio
import threading

import pytest
from distributed import get_worker
from helpers import Gate, addresses_of, asleep, engine, live, record, started, until
from programs import HEAT, Shared, finish, going, heat, members, same, start, stepped, worker_of

import dask_hpc
from dask_hpc.demo.heat import mean_and_peak
from dask_hpc_policies.jobs.jobspec import InvalidJob
from dask_hpc_policies.layout import Part, even_layout

# ------------------------------------------------------------------ resizing


@live(timeout=60)
async def test_a_run_that_is_resized_gives_the_field_of_an_undisturbed_one(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job)
        run = start(program)
        await stepped(program, run)
        for nodes in (4, 1, 3):
            outcome = await job.resize(nodes)
            assert outcome["result"] == "done"
            assert len(program.producer.nodes) == len(program.layout.parts) == len(program.blocks) == nodes
            assert program.producer.nodes == tuple(members(s, job)) == program.layout.nodes
            await stepped(program, run)
        rows = program.producer.windows
        assert [(row["before"], row["after"], row["result"]) for row in rows] == [
            (2, 4, "done"),
            (4, 1, "done"),
            (1, 3, "done"),
        ]
        assert all(row["indices_moved"] > 0 and row["latency_s"] > 0 for row in rows)
        await finish(program, run)
        assert program.timings[1]["steps"] == program.step
    await job.wait(10)
    await asleep(s)


@live(timeout=60)
async def test_several_blocks_a_node_are_resized_kept_and_recovered_like_one(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = job.program(HEAT.rows, "y", blocks_per_node=3).init(HEAT.start)
        program.elastic(HEAT.step, going, halo=1, keep=2)
        run = start(program)
        await stepped(program, run)
        for nodes in (4, 1, 3):
            assert (await job.resize(nodes))["result"] == "done"
            assert (len(program.blocks), len(program.layout.nodes)) == (3 * nodes, nodes)
            await stepped(program, run)
        places = await c.gather(program.map(lambda block: get_worker().address))
        at = engine(s).state.nodes.at
        assert [at[address].id for address in places] == [part.node for part in program.layout.parts]
        victim = program.producer.nodes[1]
        await worker_of(s, workers, victim).close()
        await until(lambda: len(program.producer.nodes) == 2 or run.done(), "a window")
        assert victim not in program.layout.nodes
        assert len(program.blocks) == 6
        await stepped(program, run)
        await finish(program, run)
    await job.wait(10)


@live(timeout=60)
async def test_joiners_have_run_init_before_the_program_is_told(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    gate, told = Gate(), []

    def init(part, status):
        if status == "JOINING":
            gate.wait()
        return HEAT.start(part, status)

    def adapt(change, layout):
        told.append(change)
        return even_layout(HEAT.rows, change.nodes)

    async with rt.job("heat", nodes=1, min_nodes=1, max_nodes=4) as job:
        program = job.program(HEAT.rows, "y").init(init).elastic(HEAT.step, going, halo=1, adapt=adapt)
        run = start(program)
        await stepped(program, run)
        (old,) = program.producer.nodes
        resize = asyncio.ensure_future(job.resize(3))
        await until(lambda: gate.arrived == 2, "init runs on both joiners")
        await stepped(program, run, 5)
        assert not told
        assert not resize.done()
        refused = await job.resize(2)
        assert (refused["result"], refused["reason_code"]) == ("refused", "locked")
        gate.open()
        assert (await resize)["result"] == "done"
        (change,) = told
        assert change.staying == (old,)
        assert len(change.joining) == 2
        assert not change.leaving
        assert gate.arrived == 2
        await finish(program, run)
    await job.wait(10)


@live(timeout=60)
async def test_a_joiner_whose_init_fails_leaves_the_old_size(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    broken = [True]

    def init(part, status):
        if status == "JOINING" and broken[0]:
            raise OSError("no scratch")
        return HEAT.start(part, status)

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = job.program(HEAT.rows, "y").init(Shared(init)).elastic(HEAT.step, going, halo=1)
        run = start(program)
        await stepped(program, run)
        outcome = await job.resize(4)
        assert outcome["result"] == "aborted"
        assert "OSError: no scratch" in outcome["reason"]
        await until(lambda: len(record(s, job).nodes) == 2, "nodes go back")
        broken[0] = False
        assert (await job.resize(3))["result"] == "done"
        await finish(program, run)
    await job.wait(10)


@live(timeout=60)
async def test_nodes_are_another_jobs_only_after_the_commit(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def adapt(change, layout):
        inside.set()
        await go_on.wait()
        return even_layout(HEAT.rows, change.nodes)

    async with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4) as job:
        program = heat(job, adapt=adapt)
        run = start(program)
        await stepped(program, run)
        async with rt.job("other", nodes=2) as other:
            future = c.submit(mean_and_peak, HEAT.start(Part("", 0, 4)), pure=False)
            resize = asyncio.ensure_future(job.resize(2))
            await inside.wait()
            assert not record(s, other).nodes
            assert len(addresses_of(s, job)) == 4
            assert program.producer.windows[-1]["result"] == "open"
            go_on.set()
            assert (await resize)["result"] == "done"
            await started(s, other, 2)
            assert not addresses_of(s, job) & addresses_of(s, other)
            await future
        await finish(program, run)
    await job.wait(10)
    await other.wait(10)


# ------------------------------------------------------------------- requests


@live(timeout=60)
async def test_a_program_gets_the_nodes_it_asks_for_or_a_part_or_a_reason(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job)
        run = start(program)
        await stepped(program, run)
        for wrong in (0, 3, -2, 1.5, "1", True, None):
            with pytest.raises(InvalidJob, match="from -1 to 2 without 0"):
                await job.request(wrong)
        async with rt.job("other", nodes=1) as other:
            await started(s, other, 1)
            with pytest.raises(InvalidJob, match=r"which has 1: none \(min_nodes 1, max_nodes 1\)"):
                await other.request(1)
            answer = await job.request(2)
            assert (answer["result"], answer["asked"], answer["granted"], answer["nodes"]) == (
                "done",
                2,
                1,
                3,
            )
            answer = await job.request(1)
            assert (answer["result"], answer["granted"]) == ("refused", 0)
            assert "0 idle nodes" in answer["reason"]
        await other.wait(10)
        answer = await job.request(1)
        assert (answer["result"], answer["asked"], answer["granted"]) == ("done", 1, 1)
        answer = await job.request(-3)
        assert (answer["result"], answer["asked"], answer["granted"]) == ("done", -3, -3)
        assert len(program.producer.nodes) == 1
        await stepped(program, run)
        await finish(program, run)
    await job.wait(10)


@live(timeout=60)
async def test_a_program_asks_for_nodes_from_inside(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    answers, asked = [], []

    async def after(program):
        # at once what is begun, here: the outcome comes with a later step
        if program.step == 3:
            answers.append(await program.job.request(1))
            answers.append(await program.job.resize(2))
        if len(program.layout.parts) == 3 and not asked:
            asked.append(asyncio.ensure_future(program.job.request(1, wait=True)))

    def steps(program):
        return not (asked and asked[0].done())

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, steps, after=after)
        await asyncio.wait_for(program.run(), 25)
        granted, refused = answers
        assert (granted["result"], granted["asked"], granted["granted"]) == ("under way", 1, 1)
        assert granted["reconfig_id"] == program.producer.windows[0]["reconfig_id"]
        assert (refused["result"], refused["reason_code"]) == ("refused", "locked")
        answer = await asked[0]
        assert (answer["result"], answer["granted"]) == ("done", 1)
        assert len(program.layout.parts) == 4
        await same(program)
    await job.wait(10)


# ----------------------------------------------------------- ordinary clients


def test_an_ordinary_client_runs_a_program_that_is_resized_meanwhile():
    outcomes = []
    with (
        dask_hpc.LocalCluster(
            n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        cluster.get_client() as client,
    ):
        rt = dask_hpc.install(client, "fcfs")

        def ask():
            outcomes.extend(job.resize(nodes) for nodes in (4, 1, 3))
            program.data["stop"] = True

        def after(program):
            if program.step == 2:
                with pytest.raises(RuntimeError, match=r"wait=True inside a function .* leave wait out"):
                    job.resize(1, wait=True)
                outcomes.append(job.request(1))
            if len(program.layout.parts) == 3 and not asker.ident:
                asker.start()

        asker = threading.Thread(target=ask)
        with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
            program = heat(job, after=after)
            assert program.run(timeout=30) is program
            asker.join(20)
            assert program.field().identical(HEAT.undisturbed(program.step))
        job.wait(20)
    assert [outcome["result"] for outcome in outcomes] == ["under way", "done", "done", "done"]
    assert [row["after"] for row in program.producer.windows] == [3, 4, 1, 3]
