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


@pytest.fixture
def about(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Tasks are about to be sent; the clock stands still."""
    world.now_s, world.held, world.offered = 100.0, [], []
    world.soon, world.later = [], []
    monkeypatch.setattr(overflow_module, "stopwatch_s", lambda: world.now_s)
    monkeypatch.setattr(writes, "hold", lambda ts: world.held.append(ts.key))
    world._lending.may_take = lambda ts: True
    world._offer = lambda *jobs: world.offered.append(jobs)
    loop = world.state.scheduler.loop.asyncio_loop
    loop.call_soon = world.soon.append
    loop.call_later = lambda in_s, what: world.later.append((in_s, what))
    return world


def coming(world: World, number: int, **more: Any) -> Any:
    ts = Of(key=f"new-{number}", state="waiting", actor=False, worker_restrictions=world.job.reach)
    vars(ts).update(more)
    world.state.owner[ts.key] = world.job.lanes["rest"]
    return ts


def test_as_many_tasks_are_held_as_threads_are_idle_elsewhere_and_the_others_sent(about: World) -> None:
    tasks = [coming(about, number) for number in range(4)]
    assert [about.elsewhere(ts, about.worker) for ts in tasks] == [True, True, False, False]
    assert about.held == ["new-0", "new-1"]
    assert about.offered == [(about.job,)] * 2
    lanes = [about.state.owner[ts.key] for ts in tasks]
    assert lanes == [about.job.lanes["root"]] * 2 + [about.job.lanes["rest"]] * 2
    # threads become idle at any time: one look for all of these
    assert len(about.later) == len(about.soon) == 1
    about.soon[0]()
    about.idle = {"next door": 1}
    assert about.elsewhere(coming(about, 5), about.worker), "in the next turn of the loop it is looked again"


def test_looks_for_idle_threads_rest_between(about: World) -> None:
    def slow() -> dict[str, int]:
        about.now_s += 0.1
        return {"next door": 1}

    about._lending.idle = slow
    assert about.elsewhere(coming(about, 0), about.worker)
    about.soon.pop()()
    assert not about.elsewhere(coming(about, 1), about.worker)
    ((in_s, look),) = about.later
    assert in_s == pytest.approx(overflow_module._PAUSE * 0.1)
    about.now_s += in_s
    look()
    # that look took its time, too, and the next one comes when somebody waits
    assert about.asked
    assert not about.elsewhere(coming(about, 2), about.worker)
    assert len(about.later) == 2
    about.now_s += about.later[1][0] + 0.01
    assert about.elsewhere(coming(about, 3), about.worker)


@pytest.mark.parametrize("why", ["comes back", "long", "near data", "gone", "0 s", "not its job's", "own"])
def test_what_is_sent_although_a_thread_is_idle_elsewhere(
    about: World, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ts, looks = coming(about, 0), []
    if why == "comes back":
        ts.state = "released"
    elif why == "long":
        about._lending.may_take = lambda ts: False
    elif why == "near data":
        monkeypatch.setattr(overflow_module.crowds, "moving_pays", lambda *args: False)
    elif why == "gone":
        about.idle = {"gone": 1}
    elif why == "0 s":
        about.state.settings.lend_s = 0.0
    elif why == "not its job's":
        about.state.owner[ts.key] = Lane(about.job, "rest", AllotmentSet())
    else:
        about.state.scheduler.workers["third"] = Of(processing={}, long_running=set(), nthreads=1)
        about.job.reach.grant({"next door"})
        monkeypatch.setattr(
            overflow_module.crowds, "moving_pays", lambda *args: looks.append(1) or True
        )
    assert not any(about.elsewhere(ts, about.worker) for _ in range(2))
    assert (about.held, looks) == ([], [])
    assert about._without == ({about.job} if why in ("gone", "own") else set())


def test_nobody_is_asked_when_nothing_is_lent_or_nobody_waits(world: World) -> None:
    world.state.settings.lend_s = 0.0
    world._asked.add(("t0", 0))
    world.look()
    assert (world.asked, world._asked) == ([], set())
    world.state.settings.lend_s = 5.0
    world.idle = {}
    world.look()
    assert world.asked == []
    # who has every worker with an idle thread within reach gets there by itself
    world.idle = {"next door": 2}
    world.job.reach.grant({"next door"})
    world.look()
    assert world.asked == []
    world.job.reach.revoke({"next door"})
    world._lending.takes = lambda ts: False
    world.look()
    assert world.asked == []
    world._lending.takes = lambda ts: True
    world.worker.processing = dict.fromkeys([world.tasks["t0"]])
    world._asked.add(("t5", 5))
    world.look()
    assert (world.asked, world._asked) == ([], set()), "nobody waits"


def test_a_question_that_could_not_be_sent_awaits_no_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "ask_back", lambda *args: False)
    world.look()
    assert not world.waiting


def test_what_was_given_up_may_be_asked_for_again_and_is_offered(world: World) -> None:
    offered: list[Any] = []
    world._offer = lambda *jobs: offered.append(jobs)  # type: ignore[method-assign]
    world.look()
    world.answered(None, f"{OVERFLOW}1")
    assert (world.taken_back, offered, ("t5", 5) in world._asked) == (["t5"], [(world.job,)], False)
    # one that has changed hands meanwhile keeps its lane
    world.state.owner["t4"] = other = Lane(world.job, "rest", AllotmentSet())
    world.answered("waiting", f"{OVERFLOW}2")
    assert (world.taken_back, world.state.owner["t4"]) == (["t5", "t4"], other)


def test_what_its_user_has_placed_and_what_is_of_no_job_is_not_asked_back(world: World) -> None:
    world.job.lanes["free"] = world.state.owner["t5"] = Lane(world.job, "free", None)
    del world.state.owner["t4"]
    world.look()
    assert world.asked == ["t3", "t2"]


def test_it_is_looked_again_when_more_may_be_lent_and_when_a_task_was_not_given_up(about: World) -> None:
    about.state.plain = ["plain", "other"]
    about.job.queue, idle = ["held"], Of(queue=[], reach=about.job.reach)
    about.state.jobs.active["idle"] = idle
    about._without.add(about.job)
    about._lending.grown()
    assert (about.asked, about.offered) == (["t5", "t4"], [("plain", about.job)])
    about._forget()
    assert not about._without
    about.answered("executing", f"{OVERFLOW}1")
    assert len(about.later) == 1
