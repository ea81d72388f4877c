"""Programs: bad input, dead nodes and sudden ends leave a state that is right, and a clear error."""

from __future__ import annotations

import asyncio

import dask
import numpy as np
import pytest
import xarray as xr
from distributed import Worker
from helpers import addresses_of, asleep, engine, live, record, until, within
from programs import HEAT, Shared, finish, going, heat, members, same, start, stepped, worker_of
from tasks import inc

import dask_hpc
from dask_hpc.errors import JobCancelled, JobError, WindowError
from dask_hpc_policies.layout import Layout, LayoutError, Part, even_layout

# ---------------------------------------------------------------- bad input


def _raises(change, layout):
    raise KeyError("lost my notes")


def _layout(*bounds, size=HEAT.rows):
    """An adapt that gives these bounds to the nodes in order."""

    def adapt(change, layout):
        return Layout(size, tuple(Part(node, *b) for node, b in zip(change.nodes, bounds, strict=True)))

    return adapt


BAD_ADAPTS = {
    "raises": (_raises, KeyError, "lost my notes"),
    "nothing": (
        lambda change, layout: None,
        LayoutError,
        "adapt of phase 'steps' gave None; needed: a Layout",
    ),
    "a dict": (lambda change, layout: {}, LayoutError, "needed: a Layout"),
    "the old one": (lambda change, layout: layout, LayoutError, "one part to each of"),
    "gap": (_layout((0, 8), (9, 16), (16, 24)), LayoutError, "a gap at index 8"),
    "overlap": (_layout((0, 8), (7, 16), (16, 24)), LayoutError, "an overlap at index 7"),
    "too short": (_layout((0, 8), (8, 16), (16, 23)), LayoutError, "covers 0:23; the domain is 0:24"),
    "too long": (_layout((0, 8), (8, 16), (16, 25)), LayoutError, "covers 0:25; the domain is 0:24"),
    "another domain": (_layout((0, 8), (8, 16), (16, 25), size=25), LayoutError, "of 25 indices.*has 24"),
    "no room": (_layout((0, 12), (12, 12), (12, 24)), LayoutError, "allowed: 1 or more"),
    "halves": (_layout((0, 8.5), (8.5, 16), (16, 24)), LayoutError, "whole numbers"),
    "stranger": (
        lambda change, layout: even_layout(HEAT.rows, ["x", *change.nodes[1:]]),
        LayoutError,
        "one part to each of",
    ),
}


@live(timeout=60)
@pytest.mark.parametrize("name", BAD_ADAPTS)
async def test_an_adapt_that_is_wrong_leaves_everything_as_it_was(c, s, *workers, name):
    bad, error, words = BAD_ADAPTS[name]
    rt = await dask_hpc.install(c, "fcfs")
    wrong = [True]

    def adapt(change, layout):
        return bad(change, layout) if wrong[0] else even_layout(HEAT.rows, change.nodes)

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, adapt=adapt)
        run = start(program)
        await stepped(program, run)
        layout, nodes = program.layout, program.producer.nodes
        resize = asyncio.ensure_future(job.resize(3))
        with pytest.raises(error, match=words):
            await asyncio.wait_for(run, 25)
        outcome = await resize
        assert outcome["result"] == "aborted"
        assert error.__name__ in outcome["reason"]
        assert (program.layout, program.producer.nodes) == (layout, nodes)
        assert list(nodes) == members(s, job) == list(record(s, job).nodes)
        await same(program)
        wrong[0] = False
        run = start(program)
        await stepped(program, run)
        assert (await job.resize(3))["result"] == "done"
        await stepped(program, run)
        await finish(program, run)
    await job.wait(10)


@live(workers=4, timeout=60)
async def test_a_domain_too_small_for_more_nodes_keeps_its_size_and_goes_on(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("small", nodes=1, min_nodes=1, max_nodes=4) as job:
        program = job.program(5, "i").init(lambda part, status: xr.DataArray(np.zeros(part.size), dims="i"))
        program.elastic(lambda block, before, after: block + 1, going, halo=2)
        run = start(program)
        await stepped(program, run)
        outcome = await job.resize(4)
        assert outcome["result"] == "aborted"
        assert "use fewer nodes" in outcome["reason"]
        assert (await job.resize(2))["result"] == "done"
        await stepped(program, run)
        program.data["stop"] = True
        await run
        assert set((await program.field()).values) == {float(program.step)}
    await job.wait(10)


@live(workers=4, timeout=60)
async def test_a_policy_does_not_push_nodes_for_ever_at_a_program_that_cannot_take_them(c, s, *workers):
    rt = await dask_hpc.install(c, "pwma-fpsma", tick_s=0.1)
    async with rt.job("small", min_nodes=1, max_nodes=4, nodes=2) as job:
        program = job.program(2, "i").init(lambda part, status: xr.DataArray(np.zeros(part.size), dims="i"))
        run = start(program.elastic(lambda block: block + 1, going, name="steps"))
        await stepped(program, run)
        tries = engine(s).rounds.outcomes
        await until(lambda: tries._next_id > 2, "the policy tries")
        first, since = tries._next_id, engine(s).state.now_s()
        await until(lambda: engine(s).state.now_s() > since + 2, "some time")
        assert tries._next_id - first <= 3, f"{tries._next_id - first} windows in two seconds"
        await stepped(program, run)
        program.data["stop"] = True
        await run
    await job.wait(10)


BAD_STARTS = {
    "a list": (lambda part, status: [0] * part.size, "gave a list"),
    "numpy": (lambda part, status: np.zeros(part.size), "gave a ndarray"),
    "nothing": (lambda part, status: None, "gave a NoneType"),
    "another dimension": (lambda part, status: xr.DataArray(np.zeros(part.size), dims="x"), "dimension 'y'"),
    "too long": (
        lambda part, status: xr.DataArray(np.zeros(part.size + 1), dims="y"),
        "13 indices.*needed: 12",
    ),
}


@live(workers=2, timeout=60)
@pytest.mark.parametrize("name", BAD_STARTS)
async def test_an_init_that_gives_no_block_of_its_part_is_named(c, s, *workers, name):
    bad, words = BAD_STARTS[name]
    rt = await dask_hpc.install(c, "fcfs")
    wrong = [True]

    def init(part, status):
        return bad(part, status) if wrong[0] else HEAT.start(part, status)

    async with rt.job("heat", nodes=2) as job:
        program = job.program(HEAT.rows, "y").init(Shared(init)).elastic(HEAT.step, 2, halo=1)
        with pytest.raises(LayoutError, match=words):
            await program.run()
        assert program.layout is None
        wrong[0] = False
        await program.run()
        await same(program)
    assert (await job.wait(10))["state"] == "completed"


BAD_STEPS = {
    "raises": (lambda block, before, after: 1 / 0, ZeroDivisionError, "division by zero"),
    "nothing": (lambda block, before, after: None, LayoutError, "gave a NoneType"),
    "too short": (lambda block, before, after: block[1:], LayoutError, "11 indices of 'y'.*needed: 12"),
    "no block": (lambda block, before, after: block.values, LayoutError, "gave a ndarray"),
}


@live(workers=2, timeout=60)
@pytest.mark.parametrize("name", BAD_STEPS)
async def test_a_step_that_fails_leaves_the_last_good_state_and_the_run_goes_on(c, s, *workers, name):
    bad, error, words = BAD_STEPS[name]
    rt = await dask_hpc.install(c, "fcfs")
    wrong = [True]

    def step(block, before, after):
        # at the fourth step, on one node only
        spoilt = wrong[0] and int(block.y[0]) == 0 and block.identical(undisturbed[3].sel(y=block.y))
        return bad(block, before, after) if spoilt else HEAT.step(block, before, after)

    undisturbed = [HEAT.undisturbed(n) for n in range(5)]
    async with rt.job("heat", nodes=2) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(Shared(step), 6, halo=1)
        with pytest.raises(error, match=words):
            await program.run()
        assert program.step == program.phase_step == 3
        await same(program)
        wrong[0] = False
        await program.run()
        assert program.step == program.phase_step + 6 == 6
        await same(program)
    assert (await job.wait(10))["state"] == "completed"


@live(workers=2, timeout=60)
async def test_an_error_between_steps_loses_no_step_and_repeats_none(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    seen = []

    def after(program):
        seen.append(program.step)
        if program.step == 3 and len(seen) == 3:
            raise OSError("disk full")

    def steps(program):
        if program.step == 5 and len(seen) == 5 and not program.data.setdefault("asked", False):
            program.data["asked"] = True
            raise KeyError("how many")
        return program.step < 7

    async with rt.job("heat", nodes=2) as job:
        program = heat(job, steps, after=after)
        with pytest.raises(OSError, match="disk full"):
            await program.run()
        assert program.step == 3
        with pytest.raises(KeyError, match="how many"):
            await program.run()
        assert program.step == 5
        await program.run()
        assert seen == [1, 2, 3, 4, 5, 6, 7]
        await same(program)
    await job.wait(10)


@live(workers=2, timeout=60)
async def test_only_the_driver_probes_and_only_one_run_goes_on(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    errors = []

    def after(program):
        with pytest.raises(WindowError, match="outside a step boundary") as caught:
            program.producer.probe()
        errors.append(caught.value)

    async with rt.job("heat", nodes=2) as job:
        program = heat(job, after=after)
        run = start(program)
        await stepped(program, run)
        with pytest.raises(RuntimeError, match="runs already"):
            await program.run()
        with pytest.raises(WindowError, match="has a producer already"):
            await heat(job, 1).run()
        await finish(program, run)
    assert len(errors) == program.step
    await job.wait(10)


# ------------------------------------------------------------- nodes that die


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
            assert await within(plain, 20) == 2
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
        copies, kept = program._copies[:3], program._copies[3:]
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
        assert program._kept_at == 4
        windows = engine(s).rounds.windows
        first, second, _ = program.layout.nodes
        victim = worker_of(s, workers, first)
        windows._reconcile, look = lambda producer: None, windows._reconcile
        await victim.close()
        async with Worker(s.address, name=victim.name, nthreads=1):
            await until(lambda: engine(s).state.nodes.nodes[first].up, "it is back")
            windows._reconcile = look
            await stepped(program, run, 5)
            assert program._kept_at > 4
            assert all(s.tasks[future.key].state == "memory" for future in program._copies)
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


# ------------------------------------------------------------------- endings


async def at_a_window(s, job, program, run):
    """Bring a program to the inside of a window; returns the resize that waits for it."""
    await stepped(program, run)
    resize = asyncio.ensure_future(job.resize(4))
    await asyncio.wait_for(program.data["inside"].wait(), 20)
    assert engine(s).rounds.windows.active
    return resize


def held(job):
    """A program whose adapt waits until it is let go on."""

    async def adapt(change, layout):
        program.data["inside"].set()
        await program.data["go_on"].wait()
        return even_layout(HEAT.rows, change.nodes)

    program = heat(job, adapt=adapt)
    program.data.update(inside=asyncio.Event(), go_on=asyncio.Event())
    return program


@live(timeout=60)
async def test_a_job_that_is_cancelled_inside_a_window_ends_its_program(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = held(job)
        run = start(program)
        resize = await at_a_window(s, job, program, run)
        await job.cancel("enough")
        outcome = await asyncio.wait_for(resize, 20)
        assert outcome["result"] == "aborted"
        program.data["go_on"].set()
        with pytest.raises(JobCancelled, match="enough"):
            await asyncio.wait_for(run, 20)
    assert not engine(s).rounds.active
    await asleep(s)


@live(timeout=60)
async def test_a_job_that_is_cancelled_between_windows_ends_its_program(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job)
        run = start(program)
        await stepped(program, run)
        await job.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            await asyncio.wait_for(run, 20)
    await asleep(s)


@live(timeout=60)
async def test_an_exception_that_leaves_the_context_inside_a_window_frees_the_nodes(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
            program = held(job)
            run = start(program)
            resize = await at_a_window(s, job, program, run)
            raise KeyError("mine")
    assert (await asyncio.wait_for(resize, 20))["result"] == "aborted"
    program.data["go_on"].set()
    with pytest.raises(JobCancelled, match="mine"):
        await asyncio.wait_for(run, 20)
    await asleep(s)
    assert await c.submit(int, 3) == 3


@live(timeout=60)
async def test_uninstalling_inside_a_window_ends_the_program_with_a_word(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = held(job)
        run = start(program)
        resize = await at_a_window(s, job, program, run)
        await rt.uninstall()
        outcome = await asyncio.wait_for(resize, 20)
        assert outcome["result"] == "aborted"
        assert "uninstalled" in outcome["reason"]
        program.data["go_on"].set()
        with pytest.raises(dask_hpc.errors.DaskHPCError, match="not installed"):
            await asyncio.wait_for(run, 20)
        # what it has computed is there all the same
        await same(program)
