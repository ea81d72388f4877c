"""Programs: however they are resized, the field is that of an undisturbed run, bit for bit."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np
import pytest
import xarray as xr
from helpers import Gate, Starts, addresses_of, asleep, live, record, started, until
from programs import HEAT, Shared, finish, going, heat, members, same, start, stepped

import dask_hpc
from dask_hpc.demo.heat import mean_and_peak
from dask_hpc.wire import notice_topic
from dask_hpc_policies.jobs.jobspec import InvalidJob
from dask_hpc_policies.layout import Layout, LayoutError, Part, Piece, even_layout

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


# ------------------------------------------------------------------- phases


@live(timeout=60)
async def test_a_rigid_phase_refuses_every_resize_with_its_name(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def solve(program):
        inside.set()
        await go_on.wait()

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, 3).rigid(solve, name="solve").elastic(HEAT.step, going, halo=1, name="more")
        run = start(program)
        await inside.wait()
        for nodes in (1, 4):
            outcome = await job.resize(nodes)
            assert (outcome["result"], outcome["reason_code"]) == ("refused", "rigid-phase")
            assert "'solve'" in outcome["reason"]
        assert (await job.request(1))["result"] == "refused"
        go_on.set()
        await stepped(program, run)
        assert (await job.resize(4))["result"] == "done"
        await finish(program, run)
        assert [(row["phase"], row["kind"]) for row in program.timings] == [
            ("init", "init"),
            ("steps", "elastic"),
            ("solve", "rigid"),
            ("more", "elastic"),
        ]
        assert all(row["duration_s"] >= 0 for row in program.timings)
    await job.wait(10)


@live(timeout=60)
async def test_a_branch_goes_back_and_forth_by_name_and_number(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    came, answers = [], iter(["a", 3, None])

    async with rt.job("heat", nodes=2) as job:
        program = heat(job, lambda program: program.phase_step < 2)
        program.rigid(lambda p: came.append("a"), name="a")
        program.rigid(lambda p: came.append("b"), name="b")
        program.branch(lambda p: next(answers), name="choose")
        program.rigid(lambda p: came.append("end"), name="end")
        await program.run()
        assert came == ["a", "b", "a", "b", "b", "end"]
        assert program.step == 2
        await same(program)
        # all is done: running again does nothing
        await program.run()
        assert came[-1] == "end"
        assert len(came) == 6
    await job.wait(10)


@live(timeout=60)
@pytest.mark.parametrize("answer", ["nowhere", "init", 0, 9, -1, 1.5, True, ["steps"]])
async def test_a_branch_to_nowhere_says_where_it_may_go(c, s, *workers, answer):
    rt = await dask_hpc.install(c, "fcfs")
    answers = [answer, None]
    async with rt.job("heat", nodes=2) as job:
        program = heat(job, 2).branch(lambda p: answers.pop(0), name="choose")
        with pytest.raises(ValueError, match=r"branch 'choose' goes to .*allowed: 1 to 2, 'steps', 'choose'"):
            await program.run()
        await program.run()
        assert program.step == 2
        await same(program)
    await job.wait(10)


@live(workers=3, timeout=60)
@pytest.mark.parametrize("halo", [0, 1, 2])
async def test_neighbours_see_edges_of_the_width_of_the_halo(c, s, *workers, halo):
    rt = await dask_hpc.install(c, "fcfs")
    size = 12

    def init(part, status):
        return xr.DataArray(np.arange(part.start, part.stop), dims="i")

    def step(block, *edges):
        assert len(edges) == (2 if halo else 0)
        first, last = int(block[0]), int(block[-1])
        before = [] if halo == 0 or edges[0] is None else list(edges[0].values)
        after = [] if halo == 0 or edges[1] is None else list(edges[1].values)
        assert before == [i for i in range(first - halo, first) if i >= 0]
        assert after == [i for i in range(last + 1, last + 1 + halo) if i < size]
        return block

    async with rt.job("plain", nodes=3, min_nodes=1, max_nodes=3) as job:
        program = job.program(size, "i").init(init).elastic(step, going, halo=halo)
        run = start(program)
        for nodes in (1, 3, 2):
            await stepped(program, run)
            assert (await job.resize(nodes))["result"] == "done"
        await stepped(program, run)
        program.data["stop"] = True
        await run
        assert list((await program.field()).values) == list(range(size))
    await job.wait(10)


@live(workers=1)
async def test_what_cannot_be_a_program_is_refused_where_it_is_written(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=1) as job:
        for size in (0, -1, 1.5, "9", True, None):
            with pytest.raises(ValueError, match="1 or more"):
                job.program(size, "y")
        program = job.program(HEAT.rows, "y")
        with pytest.raises(ValueError, match="no phases; begin with init"):
            await program.run()
        with pytest.raises(ValueError, match="it is the first"):
            program.elastic(HEAT.step, 1)
        program.init(HEAT.start)
        with pytest.raises(ValueError, match="it is the first"):
            program.init(HEAT.start, name="again")
        for steps in (-1, 2.0, True, None):
            with pytest.raises(ValueError, match="0 or more"):
                program.elastic(HEAT.step, steps)
        for halo in (-1, 25, True, 1.0):
            with pytest.raises(ValueError, match="0 to 24"):
                program.elastic(HEAT.step, 1, halo=halo)
        program.rigid(print, name="a")
        with pytest.raises(ValueError, match="'a' is taken"):
            program.branch(print, name="a")
        assert [phase.name for phase in program.phases] == ["init", "a"]


# ------------------------------------------------- state, layouts, analytics


@live(timeout=60)
async def test_a_dataset_moves_with_all_its_variables(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    size = 20

    def init(part, status):
        rows = np.arange(part.start, part.stop)
        return xr.Dataset(
            {
                "a": ("y", rows * 1.5),
                "b": (("x", "y"), np.stack([rows, -rows])),
                "flag": ("y", rows % 2 == 0),
                "scale": ("x", np.array([2.0, 3.0])),
                "time": ((), 0),
            },
            coords={"y": rows, "x": [10, 20], "name": ("y", rows.astype(str).astype("<U4"))},
            attrs={"made_by": "init"},
        )

    def step(block):
        return block.assign(a=block.a + 1, time=block.time + 1)

    async with rt.job("data", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = job.program(size, "y").init(init).elastic(step, going)
        run = start(program)
        for nodes in (4, 1, 3):
            await stepped(program, run)
            assert (await job.resize(nodes))["result"] == "done"
        await stepped(program, run)
        program.data["stop"] = True
        await run
        whole = init(Part("", 0, size), "NEW")
        for _ in range(program.step):
            whole = step(whole)
        assert (await program.field()).identical(whole)
    await job.wait(10)


@live(timeout=60)
async def test_layout_and_plan_are_the_users_if_they_wish(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    plans = []

    def heavy_first(size, nodes):
        small = size // (len(nodes) + 1)
        cuts = [0, size - small * (len(nodes) - 1)]
        cuts += [cuts[1] + small * (i + 1) for i in range(len(nodes) - 1)]
        return Layout(size, tuple(map(Part, nodes, cuts, cuts[1:])))

    def row_by_row(old, new):
        plans.append((old, new))
        return tuple(
            tuple(
                Piece(next(n for n, o in enumerate(old.parts) if o.start <= i < o.stop), i, i + 1)
                for i in range(part.start, part.stop)
            )
            for part in new.parts
        )

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, layout=heavy_first, plan=row_by_row)
        run = start(program)
        await stepped(program, run)
        assert [part.size for part in program.layout.parts] == [16, 8]
        assert (await job.resize(3))["result"] == "done"
        await stepped(program, run)
        assert [part.size for part in program.layout.parts] == [12, 6, 6]
        assert len(plans) == 1
        await finish(program, run)
    await job.wait(10)


BAD_PLANS = {
    "holes": (lambda old, new: tuple(() for _ in new.parts), "must end at"),
    "short": (lambda old, new: (), "for 0 parts"),
    "swapped": (lambda old, new: tuple((Piece(0, p.start, p.stop),) for p in new.parts), "its source holds"),
    "no such source": (lambda old, new: tuple((Piece(7, p.start, p.stop),) for p in new.parts), "source 7"),
    "nothing": (lambda old, new: None, "gave None"),
}


@live(timeout=60)
@pytest.mark.parametrize("name", BAD_PLANS)
async def test_a_plan_that_does_not_make_up_the_parts_is_refused(c, s, *workers, name):
    bad, words = BAD_PLANS[name]
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, plan=bad)
        run = start(program)
        await stepped(program, run)
        layout = program.layout
        resize = asyncio.ensure_future(job.resize(3))
        with pytest.raises(LayoutError, match=words):
            await asyncio.wait_for(run, 25)
        assert (await resize)["result"] == "aborted"
        assert program.layout == layout
        run = start(program)
        await stepped(program, run)
        await finish(program, run)
    await job.wait(10)


@live(timeout=60)
@pytest.mark.parametrize("bad", [lambda size, nodes: None, lambda size, nodes: even_layout(size + 1, nodes)])
async def test_a_layout_function_that_is_wrong_is_named_before_anything_is_made(c, s, *workers, bad):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2) as job:
        program = heat(job, 3, layout=bad)
        with pytest.raises(LayoutError, match="layout"):
            await program.run()
        assert program.layout is None
        assert not program.blocks


@live(timeout=60)
async def test_analytics_run_where_their_blocks_are_and_steps_stay_on_their_nodes(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    starts = Starts()
    await starts.watch(workers)
    where, peaks = [], {}

    def after(program):
        futures = program.map(mean_and_peak)
        peaks[program.step] = futures
        where.extend(
            (f.key, b.key, p.node)
            for f, b, p in zip(futures, program.blocks, program.layout.parts, strict=True)
        )

    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job, after=after)
        run = start(program)
        for nodes in (4, 2):
            await stepped(program, run)
            assert (await job.resize(nodes))["result"] == "done"
        await stepped(program, run)
        await finish(program, run)
        addresses = {w.name if isinstance(w.name, str) else str(w.name): w.address for w in workers}
        assert len(where) >= 6
        for step, futures in peaks.items():
            found = await c.gather(futures)
            whole = HEAT.undisturbed(step)
            assert max(peak for _, peak in found) == float(whole.max())
            assert sum(total for total, _ in found) == pytest.approx(float(whole.sum()))
        for look, block, node in where:
            assert starts.places([look, block]) == {addresses[node]}
        assert not starts.twice(key for look, block, _ in where for key in (look, block))
    await job.wait(10)


# ------------------------------------------------------------------- requests


@live(timeout=60)
async def test_a_program_gets_the_nodes_it_asks_for_or_a_part_or_a_reason(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2, min_nodes=1, max_nodes=4) as job:
        program = heat(job)
        run = start(program)
        await stepped(program, run)
        for wrong in (0, 3, -2, 1.0, "1", True, None):
            with pytest.raises(InvalidJob, match="from -1 to 2 without 0"):
                await job.request(wrong)
        async with rt.job("other", nodes=1) as other:
            await started(s, other, 1)
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


@live(workers=2)
async def test_a_program_that_nobody_holds_leaves_nothing_behind(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("heat", nodes=2) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(HEAT.step, 3, halo=1)
        await program.run()
        await same(program)
    await job.wait(10)
    await asleep(s)
    assert any(ts.who_wants for ts in s.tasks.values()), "its state is there as long as the program is"
    del program, job
    gc.collect()
    await until(lambda: not s.tasks, "the blocks are forgotten")
    assert [name for name in s._broker._topics if "hpc" in name] == [notice_topic(c.id)]
    await rt.uninstall()
    assert not [name for name in s._broker._topics if "hpc" in name]


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
