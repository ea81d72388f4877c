"""Which tasks are asked back from their workers, how often, and what answers mean: the rules, no cluster."""

from __future__ import annotations

from typing import Any

import pytest

from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.internals.allotment import AllotmentSet, Lane
from dask_hpc.scheduler.placing import overflow as overflow_module
from dask_hpc.scheduler.placing.overflow import OVERFLOW, Overflow


class Of:
    """Anything with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class World(Overflow):
    """A job's worker with one thread and six tasks; of the worker next door two threads are idle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.taken_back: list[str] = []
        self.idle = {"next door": 2}
        reach = AllotmentSet({"busy"})
        self.job = Of(id="job", is_default=False, lanes={}, request=Of(exclusive=False), reach=reach)
        self.job.lanes |= {kind: Lane(self.job, kind, self.job.reach) for kind in ("root", "rest")}
        self.worker = Of(address="busy", nthreads=1, long_running=set())
        self.tasks = {
            f"t{i}": Of(key=f"t{i}", run_id=i, priority=(i,), actor=False, processing_on=self.worker)
            for i in range(6)
        }
        self.worker.processing = dict.fromkeys(self.tasks.values())
        self.node = Of(reserved=0)
        loop = Of(asyncio_loop=Of(call_later=lambda *args: None))
        workers = {"busy": self.worker, "next door": Of(processing={}, long_running=set(), nthreads=2)}
        state = Of(
            scheduler=Of(tasks=self.tasks, workers=workers, loop=loop),
            settings=Of(lend_s=5.0),
            owner=dict.fromkeys(self.tasks, self.job.lanes["rest"]),
            jobs=Of(active={"job": self.job}),
            nodes=Of(at={"busy": self.node}),
        )
        lending = Of(idle=lambda: dict(self.idle), takes=lambda ts: True)
        super().__init__(state, lending, lambda *jobs: None)  # type: ignore[arg-type]
        monkeypatch.setattr(overflow_module.crowds, "moving_pays", lambda *args: True)
        monkeypatch.setattr(writes, "ask_back", lambda _, at, key, id: self.asked.append(key) or True)
        monkeypatch.setattr(writes, "take_back", lambda _, key, at, id: self.taken_back.append(key))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_as_many_are_asked_back_as_threads_are_idle_the_last_first_and_each_run_once(world: World) -> None:
    world.look()
    assert world.asked == ["t5", "t4"]
    world.look()
    assert world.asked == ["t5", "t4"], "two answers are awaited"
    world.answered("executing", f"{OVERFLOW}1")
    world.answered("executing", f"{OVERFLOW}2")
    assert not world.waiting
    world.look()
    assert world.asked == ["t5", "t4", "t3", "t2"]


@pytest.mark.parametrize("why", ["actor", "in a round", "exclusive", "seceded", "not its job's", "elsewhere"])
def test_what_is_never_asked_back(world: World, why: str) -> None:
    for ts in world.tasks.values():
        ts.actor = why == "actor"
    world.node.reserved = int(why == "in a round")
    world.job.request.exclusive = why == "exclusive"
    if why == "seceded":  # and as many others as there are threads, or nobody would have to wait
        world.worker.long_running = {world.tasks["t5"]}
        del world.tasks["t4"], world.tasks["t3"], world.tasks["t2"], world.tasks["t1"]
        world.worker.processing = dict.fromkeys([world.tasks["t0"], world.tasks["t5"]])
        world.worker.nthreads = 0
        world.idle = {"next door": 1}
        world._asked.add(("t0", 0))
    if why == "not its job's":
        foreign = Lane(world.job, "rest", AllotmentSet())
        world.state.owner = dict.fromkeys(world.tasks, foreign)
    if why == "elsewhere":
        world.job.reach = AllotmentSet({"another"})
    world.look()
    assert world.asked == []


def test_no_idle_thread_is_looked_for_where_stock_might_have_chosen_it(world: World) -> None:
    """That look takes long with many workers."""
    looked, ts = [], Of(**vars(world.tasks["t0"]), state="waiting", worker_restrictions=world.job.reach)
    world._lending.idle = lambda: looked.append(1) or {}
    world.state.scheduler.loop.asyncio_loop.call_soon = lambda forget: forget()
    world.job.reach.grant({"next door"})
    assert not world.elsewhere(ts, world.worker)
    assert looked == []
    world.job.reach.revoke({"next door"})
    assert not world.elsewhere(ts, world.worker)
    assert looked == [1]


def test_an_answer_counts_for_the_run_that_was_asked_for(world: World) -> None:
    world.look()
    world.tasks["t5"].run_id += 1  # its worker was lost, and is back: it runs there anew
    world.answered("ready", f"{OVERFLOW}1")
    world.answered("ready", f"{OVERFLOW}2")
    world.answered("ready", f"{OVERFLOW}2")
    assert world.taken_back == ["t4"]
    assert world.state.owner["t4"] is world.job.lanes["root"]
    world.look()
    world.answered("executing", f"{OVERFLOW}3")
    assert world.taken_back == ["t4"]


def test_a_worker_that_has_gone_owes_no_answer(world: World) -> None:
    """Else going to sleep would wait for it for ever."""
    world.look()
    world.lost("next door")
    assert world.waiting
    world.lost("busy")
    assert not world.waiting
