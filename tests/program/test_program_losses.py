"""A program whose nodes die goes on to the right field, or ends with a clear error."""

from __future__ import annotations

import asyncio

import dask
import pytest
from distributed import Worker
from helpers import addresses_of, asleep, engine, live, until, within
from programs import HEAT, Shared, finish, going, heat, members, same, start, stepped, worker_of
from tasks import inc

import dask_hpc
from dask_hpc.errors import JobError
from dask_hpc_policies.layout import even_layout


@live(timeout=60)
@pytest.mark.parametrize("keep", [None, 2])
async def test_a_program_that_loses_a_node_goes_on_smaller_to_the_right_field(c, s, *workers, keep):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(HEAT.step, going, halo=1, keep=keep)
        run = start(program)
        await stepped(program, run, 5)
        for left in (3, 2, 1):
            victim = program.producer.nodes[1]
            await worker_of(s, workers, victim).close()
            await until(lambda left=left: len(program.producer.nodes) == left or run.done(), "a window")
            assert victim not in program.producer.nodes
            assert program.layout.nodes == tuple(members(s, job)) == program.producer.nodes
            await stepped(program, run)
        await finish(program, run)
    await job.wait(10)


@live(timeout=60)
@pytest.mark.parametrize("status", ["STAYING", "LEAVING", "JOINING"])
async def test_a_node_that_dies_inside_a_window_ends_the_window_and_not_the_program(c, s, *workers, status):
    rt = await dask_hpc.install(c, "fcfs")
    inside, go_on, changes = asyncio.Event(), asyncio.Event(), []

    async def adapt(change, layout):
        changes.append(change)
        inside.set()
        await go_on.wait()
        return even_layout(HEAT.rows, change.nodes)

    async with rt.job("heat", nodes=3, min_nodes=1, max_nodes=4) as job:
        program = heat(job, adapt=adapt)
        run = start(program)
        await stepped(program, run)
        resize = asyncio.ensure_future(job.resize(4 if status == "JOINING" else 2))
        await asyncio.wait_for(inside.wait(), 20)
        victim = getattr(changes[0], status.lower())[0]
        assert changes[0].status(victim).value == status
        await worker_of(s, workers, victim).close()
        outcome = await asyncio.wait_for(resize, 20)
        assert (outcome["result"], outcome["reason_code"]) == ("aborted", "nodes-gone")
        assert f"node {victim} was lost" in outcome["reason"]
        go_on.set()
        left = 3 if status == "JOINING" else 2
        await until(
            lambda: run.done() or (len(program.layout.parts) == left and victim not in members(s, job)),
            "it goes on without the lost one",
        )
        await stepped(program, run)
        assert victim not in program.layout.nodes
        assert program.producer.windows[0]["result"] == "aborted"
        await finish(program, run)
    await job.wait(10)


@live(workers=2, timeout=60)
async def test_a_program_whose_nodes_all_die_goes_on_when_others_come(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=2, max_nodes=4) as job:
        program = heat(job)
        run = start(program)
        await stepped(program, run)
        await a.close()
        await b.close()
        await until(lambda: not addresses_of(s, job), "none is left")
        async with Worker(s.address, name="new-0", nthreads=1), Worker(s.address, name="new-1", nthreads=1):
            await until(
                lambda: run.done() or set(program.producer.nodes) == {"new-0", "new-1"}, "new nodes", 30
            )
            await stepped(program, run)
            await finish(program, run)
            assert set(program.layout.nodes) == {"new-0", "new-1"}
            await job.close()
            await job.wait(10)
            await asleep(s)


@live(workers=2, timeout=60)
async def test_a_node_that_returns_under_its_name_joins_by_a_window(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    joined = []

    def init(part, status):
        if status == "JOINING":
            joined.append(part.node)
        return HEAT.start(part, status)

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=2) as job:
        program = job.program(HEAT.rows, "y").init(Shared(init)).elastic(HEAT.step, going, halo=1)
        run = start(program)
        await stepped(program, run)
        victim, name = (
            program.producer.nodes[1],
            b.name if str(b.name) == program.producer.nodes[1] else a.name,
        )
        await worker_of(s, (a, b), victim).close()
        await until(lambda: len(program.producer.nodes) == 1 or run.done(), "smaller")
        await stepped(program, run)
        async with Worker(s.address, name=name, nthreads=1):
            await until(lambda: len(program.producer.nodes) == 2 or run.done(), "larger again")
            assert joined == [victim]
            assert victim in program.layout.nodes
            await stepped(program, run)
            await finish(program, run)
            rows = program.producer.windows
            assert [(row["before"], row["after"]) for row in rows] == [(2, 1), (1, 2)]
            await job.close()
            await job.wait(10)
            await asleep(s)


@live(workers=2, timeout=60)
async def test_a_node_that_returns_and_cannot_join_serves_plain_work_that_waits(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")

    def init(part, status):
        if status == "JOINING":
            raise RuntimeError("no licence")
        return HEAT.start(part, status)

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=2) as job:
        program = job.program(HEAT.rows, "y").init(Shared(init)).elastic(HEAT.step, going, halo=1)
        run = start(program)
        await stepped(program, run)
        stays, victim = (worker_of(s, (a, b), node) for node in program.producer.nodes)
        [value] = await c.scatter([1], workers=[stays.address])
        with dask.annotate(hpc_job="default"):
            plain = c.submit(inc, value, pure=False)
        await until(lambda: plain.key in s.tasks and s.tasks[plain.key].state == "no-worker", "it waits")
        await victim.close()
        async with Worker(s.address, name=victim.name, nthreads=1):
            assert await within(plain) == 2
            await stepped(program, run)
            assert len(program.producer.nodes) == 1
            await finish(program, run)
            await job.close()
            await job.wait(10)
            await asleep(s)


@pytest.mark.parametrize("victim", [0, 1, 2])
@live(workers=3, timeout=60)
async def test_one_node_that_dies_long_after_the_copies_were_made_costs_no_state(c, s, *workers, victim):
    rt = await dask_hpc.install(c, "fcfs")

    async def lose(program):
        # what stock does every two seconds: of several replicas it keeps one, wherever that may be
        for _ in range(5):
            s.extensions["amm"].run_once()
            await asyncio.sleep(0)
        nodes = program.layout.nodes
        copies, kept = program._copies.futures[:3], program._copies.futures[3:]
        for i, node in enumerate(nodes):
            assert places(kept[i]) == {worker_of(s, workers, node).address}
            assert places(copies[i]) == {worker_of(s, workers, nodes[(i + 1) % 3]).address}
        await worker_of(s, workers, nodes[victim]).close()

    def places(future):
        return {ws.address for ws in s.tasks[future.key].who_has}

    async with rt.job("heat", nodes=3, min_nodes=1, max_nodes=3) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start)
        program.elastic(HEAT.step, 6, halo=1, keep=4).rigid(lose).elastic(HEAT.step, 3, halo=1)
        await asyncio.wait_for(program.run(), 30)
        assert (program.step, len(program.blocks)) == (9, 2)
        await same(program)
    await job.wait(10)


@live(workers=3, timeout=60)
async def test_a_node_that_is_back_before_anyone_noticed_has_its_copies_made_anew(c, s, *workers):
    """It is the same node to everybody, so no window is opened; what lay on it is gone all the same."""
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=3, min_nodes=1, max_nodes=3) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start)
        program.elastic(HEAT.step, 5, halo=1, keep=4).elastic(HEAT.step, going, halo=1, keep=1_000_000)
        run = start(program)
        await stepped(program, run, 8)
        assert program._copies.step == 4
        windows = engine(s).rounds.windows
        first, second, _ = program.layout.nodes
        victim = worker_of(s, workers, first)
        windows._reconcile, look = lambda producer: None, windows._reconcile
        await victim.close()
        async with Worker(s.address, name=victim.name, nthreads=1):
            await until(lambda: engine(s).state.nodes.nodes[first].up, "it is back")
            windows._reconcile = look
            await stepped(program, run, 5)
            assert program._copies.step > 4
            assert all(s.tasks[future.key].state == "memory" for future in program._copies.futures)
            assert program.producer.windows == []
            await worker_of(s, workers, second).close()
            await until(lambda: run.done() or len(program.producer.nodes) == 2, "smaller")
            await stepped(program, run)
            await finish(program, run)
            await job.close()
            await job.wait(10)


# stock leaves data without a recipe that is lost in `needs_what` of the workers that were to fetch it
@live(timeout=60, scheduler_kwargs={"validate": False})
async def test_two_neighbours_that_die_at_once_end_in_the_right_field_or_a_clear_error(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(HEAT.step, going, halo=1, keep=2)
        run = start(program)
        await stepped(program, run, 5)
        victims = [worker_of(s, workers, node) for node in program.producer.nodes[1:3]]
        await asyncio.gather(*(worker.close() for worker in victims))
        await until(lambda: run.done() or len(program.producer.nodes) == 2, "it goes on, or ends")
        program.data["stop"] = True
        (found,) = await asyncio.gather(run, return_exceptions=True)
        if found is program:
            await same(program)
        else:
            assert isinstance(found, JobError)
            assert "copies are made every `keep` steps" in str(found)
            assert job.id not in engine(s).rounds.windows.producers, "nobody waits for it"
