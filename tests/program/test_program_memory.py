"""What a program keeps is in the memory of hosts: who loses neighbours, or all workers, loses steps alone."""

from __future__ import annotations

import asyncio
import time

import pytest
from helpers import live, until
from hosts import HOSTS, before, five_hosts, lose, places
from programs import HEAT, finish, going, heat, same, start, stepped, worker_of

import dask_hpc
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import memory
from dask_hpc.scheduler.rpc.service import of

pytestmark = pytest.mark.filterwarnings("ignore:job .* is in the memory of hosts alone")


@pytest.fixture(scope="module")
def client():
    with five_hosts() as client:
        yield client


def whole(program, levels=None):
    """The versions that are whole, and at these levels, as the program knows them."""
    done = [row for row in program.commits if row["state"] == "complete"]
    return [row for row in done if levels is None or row["levels"] == levels]


def restored(program):
    return [row for row in program.commits if row["state"] == "restored"]


class Losing:
    """Loses hosts once: after a step at which versions are whole at each of these levels."""

    def __init__(self, client, count, memory=True, levels=(["L1", "L2"],)):
        self.client, self.count, self.memory, self.levels = client, count, memory, levels
        self.lost_at = None
        self.deadline_s = time.monotonic() + 300.0

    def __call__(self, program):
        if self.lost_at is None and all(len(whole(program, levels)) > 1 for levels in self.levels):
            lose_neighbours(self.client, program, self.count, self.memory)
            self.lost_at = program.step

    def more(self, program):
        """Go on until there were some steps after the loss, and a version."""
        if self.lost_at is None or not restored(program):
            assert time.monotonic() < self.deadline_s, f"{program.commits} are whole, lost at {self.lost_at}"
            return True
        return program.step < self.lost_at + 5


def lose_neighbours(client, program, count, memory=True):
    """Lose the hosts of the first nodes of a program."""
    hosts = {address: host for host, (_, _, address) in places(client).items()}
    found = client.run_on_scheduler(workers_of, list(program.producer.nodes[:count]))
    lose(client, *(hosts[address] for address in found), memory=memory)


def workers_of(names, dask_scheduler):
    """Addresses of nodes."""
    nodes = of(dask_scheduler).engine.state.nodes.nodes
    return [address for name in names for address in nodes[name].workers]


def run(client, job, losing):
    program = job.program(HEAT.rows, "y").init(HEAT.start)
    program.elastic(HEAT.step, losing.more, halo=1, keep=3, after=losing, name="steps")
    program.run(resume=False)
    assert program.field().identical(HEAT.undisturbed(program.step))
    return program


@pytest.fixture
def rt(client):
    before(lambda: set(places(client)) == set(HOSTS), "all hosts are there")
    # nobody asks for a version: what there is, the program keeps
    rt = dask_hpc.install(client, "fcfs")
    rt.update(checkpoint_every_s=None, checkpoint_redundancy="reed-solomon", checkpoint_set_size=5)
    return rt


# nothing of other tests is taken over
@pytest.mark.usefixtures("memory")
# stock leaves data without a recipe that is lost in `needs_what` of the workers that were to fetch it
@live(timeout=60, scheduler_kwargs={"validate": False})
async def test_what_a_program_keeps_is_gone_back_to_and_is_there_for_the_next_job(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", checkpoint_every_s=None)
    async with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4, protect=True) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start)
        program.elastic(HEAT.step, going, halo=1, keep=2, name="steps")
        going_on = start(program)
        await until(lambda: len(whole(program)) > 1 or going_on.done(), "two versions")
        victims = [worker_of(s, workers, node) for node in program.producer.nodes[1:3]]
        await asyncio.gather(*(worker.close() for worker in victims))
        await until(lambda: restored(program) or going_on.done(), "it goes back")
        await stepped(program, going_on)
        await finish(program, going_on)
    (back,) = restored(program)
    assert back["step"] in [row["step"] for row in whole(program)]
    assert {row["why"] for row in whole(program)} == {"kept"}
    # the newest alone is held, and has no folder
    assert {row["path"] for row in whole(program)} == {None}
    await until(lambda: len(of(s).commits._memory.records) == 1, "the others are dropped")
    last = whole(program)[-1]
    async with rt.job("heat", nodes=2, protect=True) as job:
        again = heat(job, steps=lambda again: again.step < last["step"] + 2)
        with pytest.raises(CheckpointError, match=r"in the memory of hosts is there already.*resume=True"):
            await again.run()
        await again.run(resume=True)
        assert [row["step"] for row in restored(again)] == [last["step"]]
        await same(again)


@pytest.mark.slow
def test_two_neighbours_lost_with_their_memories_cost_steps_and_no_state(client, rt):
    with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4, protect=True) as job:
        program = run(client, job, Losing(client, 2))
    (back,) = restored(program)
    earlier = [row for row in whole(program, ["L1", "L2"]) if row["step"] == back["step"]]
    assert back["step"] > 0
    assert earlier[0]["why"] == "kept"


@pytest.mark.slow
def test_hosts_that_are_lost_while_parities_are_made_cost_no_state(client, rt, monkeypatch):
    made, protect = [], memory.protect
    records = of(client.cluster.scheduler).commits._memory.records

    async def losing(*asked):
        made.append(sum(record.name == "torn" for record in records.values()))
        if len(made) == 3:
            await asyncio.to_thread(lose_neighbours, client, program, 2)
        return await protect(*asked)

    monkeypatch.setattr(memory, "protect", losing)
    with rt.job("torn", nodes=4, min_nodes=1, max_nodes=4, protect=True) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start)
        program.elastic(
            HEAT.step,
            lambda program: (not restored(program) or len(made) < 4) and program.step < 999,
            halo=1,
            keep=3,
            name="steps",
        )
        program.run()
        assert program.field().identical(HEAT.undisturbed(program.step))
    (back,) = restored(program)
    before_it = [row for row in whole(program, ["L1", "L2"]) if row["version"] == back["version"]]
    assert back["version"] == 2
    assert before_it
    # of the one that was torn nothing is left when the next one takes its room
    assert len(made) > 3
    assert max(made) == 1


@pytest.mark.slow
def test_all_workers_lost_at_once_leave_the_state_in_the_memories_of_their_hosts(client, rt):
    with rt.job("waves", nodes=5, min_nodes=1, max_nodes=5, protect=True) as job:
        program = run(client, job, Losing(client, 5, memory=False))
        assert restored(program)[0]["step"] > 0


@pytest.mark.slow
def test_with_a_store_more_hosts_than_the_redundancy_says_cost_more_steps(client, rt, tmp_path):
    rt.update(checkpoint_store=str(tmp_path), checkpoint_every_s=0.5)
    with rt.job("deep", nodes=4, min_nodes=1, max_nodes=4, protect=True) as job:
        losing = Losing(client, 3, levels=(["L1", "L2"], ["L3"]))
        program = run(client, job, losing)
        (back,) = restored(program)
        # what is in memory is lost with so many hosts: of the steps in the store it is one of the last
        stored = [row["step"] for row in whole(program, ["L3"]) if row["step"] <= losing.lost_at]
        assert back["step"] in stored[-2:]
        assert back["step"] > 0
    rt.update(checkpoint_store=None)


def repairs(rt):
    return {row["name"]: row for row in rt.status()["checkpoints"]["repairs"]}


@pytest.mark.slow
def test_state_that_nobody_has_but_managers_is_made_whole_again_after_each_loss(client, rt):
    rt.update(checkpoint_redundancy="partner")
    with rt.job("calm", nodes=4, protect=True) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start)
        program.elastic(HEAT.step, lambda program: program.step < 7, halo=1, keep=3, name="steps").run()
        last = whole(program, ["L1", "L2"])[-1]
    # more hosts one after the other than have a copy of anything
    for host in ("alpha", "beta", "gamma", "delta"):
        earlier = client.run_on_scheduler(ids, "calm")
        lose(client, host)
        before(lambda old=earlier: client.run_on_scheduler(ids, "calm") != old, "it is held again")
        assert (repairs(rt)["calm"]["state"], repairs(rt)["calm"]["reason"]) == ("whole", "")
        before(lambda: set(places(client)) == set(HOSTS), "the host is back")
    with rt.job("calm", nodes=3, protect=True) as job:
        again = heat(job, lambda program: program.step < 9)
        again.run(resume=True)
        assert [row["step"] for row in restored(again)] == [last["step"]]
        assert again.field().identical(HEAT.undisturbed(again.step))


def ids(name, dask_scheduler):
    """Versions of a name in memory."""
    return {each.id for each in of(dask_scheduler).commits._memory.records.values() if each.name == name}
