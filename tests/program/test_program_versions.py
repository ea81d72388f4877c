"""Programs of protected jobs: versions of their state, gone back to when all else is lost."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time

import dask
import killed_program
import outside
import psutil
import pytest
from distributed import Worker
from helpers import live, until
from programs import HEAT, committed, going, heat, same, start, stepped, whole, worker_of

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.internals import writes

EVERY = {"hpc.checkpoint.every": "200 ms", "hpc.tick": "50 ms"}


@live(workers=2, timeout=60)
async def test_a_program_that_has_not_heard_that_a_version_is_due_is_asked_again(
    c, s, *workers, tmp_path, monkeypatch
):
    tell, lost = writes.tell, []

    def tells(scheduler, topic, message):
        if not lost and message["window"] == "checkpoint":
            lost.append(message)
        else:
            tell(scheduler, topic, message)

    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path), "hpc.window-timeout": "500 ms"}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("heat", nodes=2, protect=True) as job:
            program = heat(job)
            run = start(program)
            await committed(program, run)
            monkeypatch.setattr(writes, "tell", tells)
            await until(lambda: lost, "it does not hear")
            await committed(program, run)
            program.data["stop"] = True
            await asyncio.wait_for(run, 25)


def odd(part, status):
    """A state that cannot be written."""
    return HEAT.start(part, status).assign_attrs(odd=object())


def odd_step(*blocks):
    """A step of it."""
    return HEAT.step(*blocks).assign_attrs(blocks[0].attrs)


# stock leaves data without a recipe that is lost in `needs_what` of the workers that were to fetch it
@live(timeout=60, scheduler_kwargs={"validate": False})
async def test_two_neighbours_that_die_at_once_cost_steps_and_no_state(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4, protect=True) as job:
            program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(HEAT.step, going, halo=1, keep=2)
            run = start(program)
            await committed(program, run)
            await stepped(program, run, 5)
            (row,) = (await rt.status())["protected_jobs"]
            assert (row["writes"], row["loss_is"], row["written_results"]) == ("state", "at most", None)
            assert row["loss_core_s"] == pytest.approx(4 * row["version_age_s"], abs=0.1)
            victims = [worker_of(s, workers, node) for node in program.producer.nodes[1:3]]
            await asyncio.gather(*(worker.close() for worker in victims))
            await until(lambda: run.done() or len(program.producer.nodes) == 2, "it goes on")
            await committed(program, run)
            program.data["stop"] = True
            await asyncio.wait_for(run, 25)
            await same(program)
        back = [row for row in program.commits if row["state"] == "restored"]
        assert len(back) == 1
        assert back[0]["step"] in [row["step"] for row in program.commits if row["state"] == "complete"]


@live(timeout=60, scheduler_kwargs={"validate": False})
async def test_what_is_lost_before_the_first_version_is_begun_anew(c, s, *workers, tmp_path):
    # nobody asks for a version: the policy does not, and the settings leave it to the policy; and those that
    # it keeps in memory cannot be written
    rt = await dask_hpc.install(c, "fcfs", checkpoint_every_s=None, checkpoint_store=str(tmp_path))
    async with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4, protect=True) as job:
        program = job.program(HEAT.rows, "y").init(odd).elastic(odd_step, going, halo=1, keep=2)
        run = start(program)
        await stepped(program, run, 5)
        victims = [worker_of(s, workers, node) for node in program.producer.nodes[1:3]]
        await asyncio.gather(*(worker.close() for worker in victims))
        back = lambda: [row for row in program.commits if row["state"] == "restored"]  # noqa: E731
        await until(lambda: run.done() or back(), "it begins anew")
        why = "begun anew: there was no version yet"
        assert back() == [{"step": 0, "why": why, "state": "restored", "version": None}]
        assert {row["why"] for row in program.commits} == {"kept", why}
        await stepped(program, run, 3)
        program.data["stop"] = True
        await asyncio.wait_for(run, 25)


@live(timeout=60)
async def test_a_program_goes_on_in_another_job_on_other_nodes_from_its_newest_version(
    c, s, *workers, tmp_path
):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("night 1", nodes=3, protect="heat") as job:
            program = heat(job)
            run = start(program)
            await committed(program, run, 2)
            program.data["stop"] = True
            await run
        last = whole(program)[-1]
        assert last["step"] <= program.step
        async with rt.job("night 2", nodes=2, protect="heat") as job:
            again = heat(job, steps=lambda program: program.step < last["step"] + 4)
            await again.run(resume=True)
            assert again.commits[0] == {
                "step": last["step"], "why": "gone back to", "state": "restored", "version": last["version"]
            }  # fmt: skip
            assert again.step == last["step"] + 4
            assert len(again.layout.parts) == 2
            await same(again)
        assert Store(tmp_path).find("heat").version >= last["version"]
        found = await asyncio.to_thread(dask_hpc.open_checkpoint, Store(tmp_path).find("heat").path)
        assert found.compute(scheduler="synchronous").identical(
            HEAT.undisturbed(whole(again)[-1]["step"] if whole(again) else last["step"])
        )


async def _versions(c, rt, folder, number=2):
    """Let a program write some versions under the name heat; gives the rows of those that are whole."""
    async with rt.job("heat", nodes=2, protect=True) as job:
        program = heat(job)
        run = start(program)
        await committed(program, run, number)
        program.data["stop"] = True
        await run
    assert len(list((folder / "heat").glob("0*"))) == 2, "two are kept"
    return whole(program)


def _damage(version):
    paths = [path for path in version.rglob("*") if path.is_file() and path.suffix != ".json"]
    assert paths
    for path in paths:
        path.write_bytes(bytes(path.stat().st_size))


@live(timeout=60)
async def test_a_damaged_version_costs_steps_and_the_last_one_a_clear_error(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        before, last = (await _versions(c, rt, tmp_path))[-2:]
        _damage(tmp_path / "heat" / f"{last['version']:06d}")
        async with rt.job("heat", nodes=2, protect=True) as job:
            program = heat(job, steps=lambda program: program.step < before["step"] + 2)
            await program.run(resume=True)
            assert program.commits[0]["version"] == before["version"]
            await same(program)
        for version in (tmp_path / "heat").glob("0*"):
            _damage(version)
        job = await rt.job("heat", nodes=2, protect=True).activate()
        with pytest.raises(CheckpointError, match=r"heat/0.*restore another version"):
            await heat(job).run(resume=True)
        await job.cancel()


@live(timeout=60)
async def test_what_another_program_or_a_call_has_written_is_not_gone_on_from(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        await _versions(c, rt, tmp_path)
        job = await rt.job("heat", nodes=2, protect=True).activate()
        with pytest.raises(
            ValueError, match="'steps'; this program has 24 of 'y' and the phases 'init', 'more'"
        ):
            await (
                job.program(HEAT.rows, "y")
                .init(HEAT.start)
                .elastic(HEAT.step, 1, halo=1, name="more")
                .run(resume=True)
            )
        await job.cancel()
        await rt.checkpoint(c.submit(int, 5), "five")
        with pytest.raises(CheckpointError, match=r"five/000001 is no version of a job: rt\.checkpoint or"):
            await rt.job("heat", nodes=2, protect="five").activate()
        job = await rt.job("heat", nodes=2, protect="five", resume=False).activate()
        with pytest.raises(CheckpointError, match="five/000001 was not written by a program; give the job"):
            await heat(job).run(resume=True)
        await job.cancel()


@live(timeout=60)
async def test_versions_of_an_earlier_run_are_neither_gone_back_to_nor_replaced_unasked(
    c, s, *workers, tmp_path
):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        last = (await _versions(c, rt, tmp_path))[-1]
        before = sorted(path.name for path in (tmp_path / "heat").iterdir())
        job = await rt.job("heat", nodes=2, protect=True).activate()
        with pytest.raises(CheckpointError, match=r"run\(resume=True\), replace it with run\(resume=False\)"):
            await heat(job).run()
        assert sorted(path.name for path in (tmp_path / "heat").iterdir()) == before
        await job.cancel()
        await rt.update(checkpoint_every_s=None)
        async with rt.job("heat", nodes=2, protect=True) as job:
            program = heat(job)
            program.data["stop"] = False
            run = asyncio.ensure_future(program.run(resume=False))
            await stepped(program, run, 3)
            with pytest.raises(CheckpointError, match="writes versions of 'heat' to"):
                await rt.job("other", nodes=2, protect="heat").activate()
            # lost before its own first version: those of the other run hold another state
            # (what it has kept itself is in memory)
            assert not [found for found in await program._saving.versions() if found.record is None]
            there = await program._saving.versions(of_others=True)
            assert there[0].version >= last["version"]
            program.data["stop"] = True
            await run
            await same(program)


@live(timeout=60)
async def test_a_job_that_cannot_be_protected_says_so_before_it_begins(c, s, *workers, tmp_path):
    rt = await dask_hpc.install(c, "fcfs")
    with pytest.raises(CheckpointError, match=r"'\.\./away' is no name for a checkpoint"):
        await rt.job("heat", nodes=2, protect="../away").activate()
    await rt.update(checkpoint_store=str(tmp_path / "store"))
    (tmp_path / "store").touch()
    with pytest.raises(CheckpointError, match="cannot be written to"):
        await rt.job("heat", nodes=2, protect=True).activate()
    assert {row["state"] for row in await rt.jobs()} == {"cancelled"}


@live(timeout=60)
async def test_a_state_that_cannot_be_written_is_said_and_asked_for_again(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("heat", nodes=2, protect=True) as job:
            program = job.program(HEAT.rows, "y").init(odd).elastic(odd_step, going, halo=1)
            run = start(program)
            await until(lambda: len(program.commits) >= 3 or run.done(), "it is asked for again")
            assert all("attribute 'odd'" in row["reason"] for row in program.commits[:2])
            program.data["stop"] = True
            await run


@live(timeout=60)
async def test_a_job_may_say_that_its_program_goes_on(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        last = (await _versions(c, rt, tmp_path))[-1]
        async with rt.job("heat", nodes=2, protect=True, resume=True) as job:
            program = heat(job, steps=lambda program: program.step < last["step"] + 2)
            await program.run()
            assert program.commits[0]["state"] == "restored"
            await same(program)
        job = await rt.job("plain", nodes=2).activate()
        with pytest.raises(ValueError, match="does not say protect"):
            await heat(job).run(resume=True)
        await job.cancel()


@live(timeout=60, scheduler_kwargs={"validate": False})
async def test_blocks_whose_version_was_collected_go_back_to_a_newer_one(c, s, *workers, tmp_path):
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}):
        rt = await dask_hpc.install(c, "fcfs")
        await _versions(c, rt, tmp_path)
        async with rt.job("heat", nodes=3, min_nodes=1, max_nodes=3, protect=True) as job:
            program = job.program(HEAT.rows, "y").init(HEAT.start)
            program.elastic(HEAT.step, going, halo=1, keep=None, name="steps")
            program.data["stop"] = False
            run = asyncio.ensure_future(program.run(resume=True))
            # what the blocks were read from is gone by then
            await committed(program, run, 3)
            await worker_of(s, workers, program.producer.nodes[1]).close()
            back = lambda: [row for row in program.commits[1:] if row["state"] == "restored"]  # noqa: E731
            await until(lambda: back() or run.done(), "it goes back")
            await committed(program, run)
            assert back()[0]["version"] > program.commits[0]["version"]
            program.data["stop"] = True
            await run
            await same(program)


@live(timeout=60)
async def test_a_store_that_goes_away_ends_versions_and_not_the_program(c, s, *workers, tmp_path):
    store = tmp_path / "store"
    with dask.config.set(EVERY | {"hpc.checkpoint.store": str(store)}):
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("heat", nodes=2, protect=True) as job:
            program = heat(job)
            run = start(program)
            await committed(program, run)
            shutil.rmtree(store)
            store.touch()
            failed = lambda: [row for row in program.commits if row["state"] == "failed"]  # noqa: E731
            await until(lambda: len(failed()) >= 2 or run.done(), "versions that fail")
            assert str(store) in failed()[0]["reason"]
            store.unlink()
            await committed(program, run)
            program.data["stop"] = True
            await run
            await same(program)


@live(workers=1, timeout=60)
async def test_a_version_is_written_before_a_node_is_given_up(c, s, a, tmp_path):
    # processes of this age have eight seconds left, and are given up half a second before their end
    limit_s = time.time() - psutil.Process().create_time() + 8
    told = {"hpc.walltime.limit": f"{limit_s:g} s", "hpc.walltime.notice": "500 ms"}
    rare = {"hpc.checkpoint.every": "1 h", "hpc.tick": "50 ms", "hpc.checkpoint.store": str(tmp_path)}
    with dask.config.set(told | rare):
        rt = await dask_hpc.install(c, "fcfs")
        async with Worker(s.address, name="short", nthreads=1), rt.job("heat", nodes=2, protect=True) as job:
            program = heat(job)
            run = start(program)
            await committed(program, run, 2)
            first, last = whole(program)
            assert first["why"] == "it has no version yet"
            assert last["why"].startswith("a node is given up in")
            assert 0 < float(last["why"].split()[6]) < 4, "in time, and not earlier than need be"
            program.data["stop"] = True
            await run


@live(timeout=60)
async def test_a_policy_decides_when_the_settings_do_not(c, s, *workers, tmp_path):
    settings = {"checkpoint_every_s": None, "checkpoint_store": str(tmp_path), "tick_s": 0.05}
    rt = await dask_hpc.install(c, "fcfs", **settings)
    async with rt.job("heat", nodes=2, protect=True) as job:
        program = heat(job)
        run = start(program)
        await stepped(program, run, 10)
        assert program.commits == []
        await rt.update("interval-fixed", every_s=0.2)
        await committed(program, run, 3)
        asked = [row for row in await rt.decisions() if row["action"] == "checkpoint"]
        assert len(asked) >= 3
        told = (await rt.snapshot()).sections["checkpoints"][job.id]
        assert 0 < told["held_up_s"] < 10, "what it waits for, not what is written beside it"
        assert {row["job"] for row in asked} == {job.id}
        assert asked[0]["reason"] == program.commits[0]["why"] == "it has no version yet"
        assert "interval 0.2 s (the setting)" in asked[1]["reason"]
        program.data["stop"] = True
        await run
    async with rt.job("plain", nodes=2, protect=True):
        future = c.submit(int, 3)
        assert await future == 3


def test_an_ordinary_client_resumes_its_program(tmp_path):
    with (
        dask.config.set(EVERY | {"hpc.checkpoint.store": str(tmp_path)}),
        dask_hpc.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        cluster.get_client() as client,
    ):
        rt = dask_hpc.install(client, "fcfs")
        with rt.job("heat", nodes=2, protect=True) as job:
            program = heat(job, steps=lambda program: not whole(program)).run()
        with rt.job("heat", nodes=1, protect=True) as job:
            again = heat(job, steps=lambda again: again.step < program.step + 3).run(resume=True)
            assert again.commits[0]["version"] == whole(program)[0]["version"]
            assert again.field().identical(HEAT.undisturbed(again.step))
            assert rt.status()["checkpoints"]["latest"][0]["name"] == "heat"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_processes_cost_steps_and_no_state_and_another_cluster_goes_on(tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    command = [sys.executable, killed_program.__file__, str(tmp_path), str(seed)]
    with outside.environment({}):
        found = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert found.returncode == 0, found.stderr[-3000:]
    told = json.loads(found.stdout)
    assert told["killed"]["right"]
    assert told["killed"]["step"] >= told["killed"]["goal"]
    assert told["resumed"]["right"]
    assert told["resumed"]["commits"][0]["state"] == "restored"
