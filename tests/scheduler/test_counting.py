"""The usual steps of tasks that stock queues, counted in one go: as the plugin counts all others."""

from __future__ import annotations

import random
import time
from collections import Counter
from types import SimpleNamespace

import dask
import pytest
from helpers import engine, live, record, started, until
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.core.counting import counting
from dask_hpc.scheduler.core.plugin import HPCSchedulerPlugin
from dask_hpc.scheduler.internals.allotment import Lane
from dask_hpc.scheduler.internals.crowds import with_all_data
from dask_hpc.scheduler.internals.stock_plugins import NO_RUN
from dask_hpc.scheduler.tables.expected import Expected
from dask_hpc.scheduler.tables.meter import Meter

#: What a worker says of the time that a task took.
TOOK = ({"action": "compute", "start": 0, "stop": 1},)
COUNTS = ("unfinished", "held", "processing", "guests", "erred")


class Both:
    """Counts each usual step in one go, undoes that, and has it counted as the others are."""

    def __init__(self, plugin: HPCSchedulerPlugin) -> None:
        self.owner, self.tasks = plugin._owner, plugin._tasks
        self.general, self.was_usual = plugin._count, True
        #: Workers whose slots are looked at in the next pass.
        self.dirty = plugin._admission.dirty
        #: Usual ones, by whether they are of plain work, with the kind of the task's lane.
        self.steps: Counter[tuple[bool, str, str, str]] = Counter()
        #: Those that are not usual ones, with the kind of the task's lane.
        self.others: Counter[tuple[str | None, str, str]] = Counter()
        self.differences: list[object] = []
        self.one_go = counting(
            plugin._owner,
            plugin._tasks,
            plugin._admission,
            plugin._small,
            plugin._lifecycle.maybe_done,
            self.other,
            lambda *step, **more: None,
            lambda *step, **more: None,
        )

    def other(self, *step) -> None:
        self.was_usual = False
        self.general(*step)

    def __call__(
        self, key, start, finish, *args, stimulus_id, worker=None, nbytes=None, startstops=None, **more
    ):
        lane = self.owner.get(key)
        counts = lane and [getattr(lane.job, name) for name in COUNTS]
        ts = self.tasks.get(key)  # once it is forgotten it is not there
        queue, done_s = lane and list(lane.job.queue), lane and lane.job.expected.done_s
        restrictions = ts and ts.worker_restrictions
        self.was_usual, dirty = True, set(self.dirty)
        given = {"worker": worker, "nbytes": nbytes, "startstops": startstops, **more}
        self.one_go(key, start, finish, *args, stimulus_id=stimulus_id, **given)
        if not self.was_usual:
            self.others[lane and lane.kind, start, finish] += 1
            return
        assert lane is not None
        self.steps[lane.job.is_default, lane.kind, start, finish] += 1
        found = self._now(lane.job, key, ts)
        for name, value in zip(COUNTS, counts, strict=True):
            setattr(lane.job, name, value)
        lane.job.queue, lane.job.expected.done_s = queue, done_s
        if ts is not None:
            ts.worker_restrictions = restrictions
        self.owner[key] = lane
        self.dirty.clear()
        self.dirty |= dirty
        self.general(key, start, finish, lane, worker, nbytes, startstops)
        if found != (expected := self._now(lane.job, key, ts)):
            self.differences.append((key, start, finish, found, expected))

    def _now(self, job, key, ts):
        # held tasks in their order, which is not that in which the heap has them
        held = [each.key for _, _, each in sorted(job.queue, key=lambda entry: entry[:2])]
        where = None if ts is None or ts.worker_restrictions is None else id(ts.worker_restrictions)
        counts = [getattr(job, name) for name in COUNTS], job.expected.done_s
        return counts, held, where, self.owner.get(key), set(self.dirty)


@live(2)
async def test_the_usual_steps_are_counted_as_all_others_are(c, s, *workers):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    choose = random.Random(seed)
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("idle", nodes=1) as idle:
        await started(s, idle)
        (plugin,) = [each for each in s.plugins.values() if isinstance(each, HPCSchedulerPlugin)]
        plugin.transition = both = Both(plugin)
        for number in range(6):
            with dask.annotate(hpc_job=None):
                # a group of their own: stock queues no task whose group depends on so many of its own
                roots = c.map(inc, range(choose.randint(20, 60)), key=f"roots{number}", pure=False)
                more = c.map(inc, choose.sample(roots, 5), pure=False)
                wrong = c.map(inc, ["no number"] * choose.randint(0, 2), pure=False)
                parts = [dask.delayed(inc, pure=False)(number) for number in range(4)]
                after = [dask.delayed(inc)(dask.delayed(inc)(part)) for part in parts]
                more += c.compute(after, optimize_graph=False)
            # a job's own tasks, on a node of its own and of plain ones
            own = c.map(inc, range(choose.randint(0, 20)), pure=False)
            own += c.compute([dask.delayed(inc)(part) for part in parts], optimize_graph=False)
            if choose.random() < 0.4:
                await c.cancel(roots[: len(roots) // 2])
            if choose.random() < 0.5:
                await until(lambda last=more[-1]: last.done(), "one is done")
            else:
                await c.gather([*roots, *more, *own], errors="skip")
            del roots, more, wrong, own
        await until(lambda: not engine(s).state.owner, "all is forgotten")
        assert all(not job.unfinished for job in engine(s).state.plain)
    assert both.differences == []
    plain = {
        "queue": "released waiting, waiting queued, queued processing, processing memory, memory forgotten",
        "rest": "released waiting, waiting processing, processing memory, memory released",
    }
    usual = {
        (True, kind, *step.split()) for kind, steps in plain.items() for step in steps.split(", ")
    }
    usual |= {(False, "root", "no-worker", "processing"), (False, "rest", "processing", "memory")}
    usual.add((True, "rest", "released", "forgotten"))
    assert usual <= both.steps.keys(), (usual - both.steps.keys(), both.others)


class Alone:
    """One task of plain work, or of a job, by itself; what was done for it."""

    def __init__(self, plain: bool = True, kind: str = "", **task: object) -> None:
        job = SimpleNamespace(held=0, processing=1, unfinished=2, guests=0, is_default=plain, resting=False)
        job.queue, job.expected = [], Expected()
        self.lane = Lane(job, kind or ("queue" if plain else "root"), None)
        self.task = SimpleNamespace(**{"run_id": None, "dependents": set(), **task})
        self.lending = SimpleNamespace(
            wanted=False, loans={}, ended=lambda worker, key: self.done.append(f"{key} has left {worker}")
        )
        self.queue, self.watching, self.serving = SimpleNamespace(closed=False), set(), {}
        self.plain: list[object] = [job]
        #: Lanes of other tasks.
        self.others: dict[str, Lane] = {}
        self.small = SimpleNamespace(held={}, doubtful={}, came=None)
        self.done: list[str] = []
        self.passed_on: list[tuple[str, ...]] = []

    def step(self, start: str, finish: str, **more: object) -> list[str]:
        admission = SimpleNamespace(
            lending=self.lending,
            queue=self.queue,
            watched=(self.watching, ()),
            state=SimpleNamespace(serving=self.serving, plain=self.plain),
            freed=lambda worker, lane, key: self.done.append("freed"),
        )
        step = counting(
            {"x": self.lane, **self.others},
            {"x": self.task},
            admission,
            self.small,
            lambda job: self.done.append("done"),
            lambda *step: self.done.append("in full"),
            lambda *step, **more: self.passed_on.append(("shuffles", *step)),
            lambda *step, **more: self.passed_on.append(("stealing", *step)),
        )
        step("x", start, finish, stimulus_id="s", worker="w", **more)
        return self.done


def test_what_is_not_usual_is_counted_in_full() -> None:
    assert Alone().step("released", "waiting") == []
    assert Alone(run_id=1).step("released", "waiting") == ["in full"]
    left_by_a_job = Alone()
    left_by_a_job.lane.inherit(left_by_a_job.lane.job)
    assert left_by_a_job.step("released", "waiting") == ["in full"]
    assert Alone().step("processing", "erred") == ["in full"]
    # its worker has said nothing of its time
    assert Alone().step("processing", "memory") == ["in full"]
    for kind in ("root", "p2p", "free"):
        assert Alone(kind=kind).step("processing", "memory", startstops=TOOK) == ["in full"]
    # what an ended job has left may be bound to where that job was
    rest = Alone(kind="rest")
    assert rest.step("processing", "memory", startstops=TOOK) == []
    rest.lane.inherit(rest.lane.job)
    assert rest.step("processing", "memory", startstops=TOOK) == ["in full"]


def test_a_new_plain_task_that_a_job_needs_is_looked_at_in_full() -> None:
    def came(*lanes: Lane | None) -> list[str]:
        dependents = [SimpleNamespace(key=str(number)) for number in range(len(lanes))]
        needed = Alone(dependents=dependents)
        needed.others = {str(number): lane for number, lane in enumerate(lanes) if lane is not None}
        return needed.step("released", "waiting")

    plain, own = Alone(kind="rest").lane, Alone(plain=False, kind="rest").lane
    assert came() == came(plain, None, plain) == []
    assert came(own) == came(plain, own) == ["in full"]


def test_of_what_belongs_to_no_job_only_those_hear_that_look_at_the_step() -> None:
    def heard(start: str, finish: str, **more: object) -> tuple[list[str], list[str]]:
        awaited = Alone()
        awaited.lane = None
        done = awaited.step(start, finish, **more)
        return done, [name for name, *_ in awaited.passed_on]

    assert heard("released", "waiting") == heard("waiting", "no-worker") == ([], [])
    # data has come: no worker has run it
    assert heard("processing", "memory", startstops=NO_RUN) == ([], [])
    assert heard("waiting", "processing") == heard("processing", "memory") == (["in full"], ["stealing"])
    assert heard("memory", "released") == heard("released", "forgotten") == (["in full"], ["shuffles"])


@pytest.mark.parametrize("name", ["held", "doubtful"])
def test_what_is_known_of_a_small_result_goes_with_its_task(name: str) -> None:
    known = Alone()
    known.small.forget = lambda key: known.done.append(f"forgets {key}")
    assert known.step("memory", "forgotten") == []
    known = Alone()
    getattr(known.small, name)["x"] = None
    known.small.forget = lambda key: known.done.append(f"forgets {key}")
    assert known.step("memory", "forgotten") == ["forgets x"]


def test_a_jobs_own_tasks_are_counted_in_full_where_they_are_not_usual() -> None:
    def own(**more: object) -> Alone:
        one = Alone(plain=False)
        vars(one.lane.job).update(more)
        return one

    sent = own(held=1)
    assert sent.step("no-worker", "processing") == []
    assert (sent.lane.job.held, sent.lane.job.processing) == (0, 2)
    taken_over = own()
    taken_over.lane.inherit(taken_over.lane.job)
    assert taken_over.step("no-worker", "processing") == ["in full"]
    assert own().step("released", "waiting") == []
    assert own(resting=True).step("released", "waiting") == ["in full"]
    # its worker has said nothing of its time
    assert own().step("processing", "memory") == ["in full"]
    assert own().step("processing", "erred") == ["in full"]


def test_a_slot_that_is_free_is_looked_at_where_anybody_may_want_it() -> None:
    def ends(one: Alone) -> list[str]:
        return one.step("processing", "memory", startstops=TOOK)

    for kind in ("queue", "rest"):
        assert ends(Alone(kind=kind)) == []
        wanted, closed, watched, lent = (Alone(kind=kind) for _ in range(4))
        wanted.lending.wanted = closed.queue.closed = True
        watched.watching.add("z")
        assert ends(wanted) == ends(closed) == ends(watched) == ["freed"]
        lent.lending.loans["w"] = {}
        assert ends(lent) == ["freed", "x has left w"]
    # stock's queue fills no slot that held tasks wait for
    held, handed_over, others = (Alone(kind="rest") for _ in range(3))
    held.lane.job.queue.append("a held task")
    handed_over.serving["w"] = "a job"
    others.plain.append("other plain work, which may hold some")
    assert ends(held) == ends(handed_over) == ends(others) == ["freed"]


def test_a_borrowed_slot_is_back_when_its_task_ends() -> None:
    def ends(*loans: str) -> list[str]:
        one = Alone(plain=False, prefix="kind")
        one.lane.job.meter, one.lane.job.expected = Meter(), Expected()
        one.small.came = lambda key, nbytes: None
        one.lending.loans.update({address: {} for address in loans})
        return one.step("processing", "memory", nbytes=1, startstops=TOOK)

    assert ends() == ends("another") == ["freed"]
    assert ends("w") == ["freed", "x has left w"]

    # one that is counted in full, whoever's it is
    plugin, heard = HPCSchedulerPlugin.__new__(HPCSchedulerPlugin), []
    left = SimpleNamespace(ended=lambda worker, key: heard.append((worker, key)))
    plugin._admission = SimpleNamespace(freed=lambda worker, lane, key: None, lending=left)
    for worker in ("w", None):
        plugin._count("x", "processing", "released", None, worker, None, None)
    assert heard == [("w", "x")]


def test_the_last_task_ends_its_job() -> None:
    last = Alone()
    last.lane.job.unfinished = 1
    assert last.step("processing", "memory", startstops=TOOK) == ["done"]


def test_what_is_not_weighed_goes_where_stock_would_send_it() -> None:
    a, b, c = (SimpleNamespace(address=name) for name in "abc")
    scheduler = SimpleNamespace(running=[a, b])

    def chosen(*holders, allowed="ab", actor=False):
        dependencies = [SimpleNamespace(who_has=held) for held in holders]
        ts = SimpleNamespace(dependencies=dependencies, actor=actor)
        found = with_all_data(scheduler, ts, allowed)
        return found and found.address

    assert chosen([a]) == chosen([a], [a]) == "a"
    # stock weighs several, or looks elsewhere
    assert chosen([a], [b]) is chosen([a, b]) is chosen([]) is chosen() is None
    assert chosen([c]) is chosen([b], allowed="a") is chosen([a], actor=True) is None


@live(2)
async def test_of_a_group_each_task_counts_and_what_is_said_of_one_alone_holds(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("own", nodes=2) as job:
        await started(s, job)
        parts = [dask.delayed(inc, pure=False)(number) for number in range(8)]
        after = [dask.delayed(inc, pure=False)(part) for part in parts]
        with dask.annotate(workers=[b.address]):
            there = dask.delayed(inc, pure=False)(parts[0])
        futures = c.compute([*after, there], optimize_graph=False)
        assert await c.gather(futures) == [*range(2, 10), 2]
        assert record(s, job).expected.came_tasks == 17
        assert [ws.address for ws in s.tasks[futures[-1].key].who_has] == [b.address]
        kinds = {engine(s).state.owner[future.key].kind for future in futures}
        assert kinds == {"rest", "free"}


@live(2)
async def test_what_is_said_of_one_plain_task_alone_holds_among_those_that_depend_on_others(c, s, a, b):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("idle", nodes=1) as job:
        await started(s, job)
        (busy,) = record(s, job).allotment
        with dask.annotate(hpc_job=None):
            parts = [dask.delayed(inc, pure=False)(number) for number in range(8)]
            after = [dask.delayed(inc, pure=False)(part) for part in parts]
            with dask.annotate(workers=[busy]):
                there = dask.delayed(inc, pure=False)(parts[0])
            futures = c.compute([*after[:4], there, *after[4:]], optimize_graph=False)
        assert await c.gather(futures) == [2, 3, 4, 5, 2, 6, 7, 8, 9]
        lanes = [engine(s).state.owner[future.key] for future in futures]
        assert all(lane.job.is_default for lane in lanes)
        assert [lane.kind for lane in lanes] == ["rest"] * 4 + ["free"] + ["rest"] * 4
        assert [ws.address for ws in s.tasks[futures[4].key].who_has] == [busy]


class Tally:
    """An actor."""


@live(1)
async def test_an_actor_among_tasks_does_not_stand_for_them(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("own", nodes=1) as job:
        await started(s, job)
        # in which order keys of a graph are claimed is not ours to say: an actor in the midst of each of many
        for number in range(6):
            keys = [f"x{number}-{place:032x}" for place in range(8)]
            graph = dict.fromkeys(keys, (time.sleep, 0))
            graph[keys[number]] = (Tally,)
            futures = c.get(graph, keys, sync=False, actors=(keys[number],))
            await c.gather(futures)
            kinds = {key: engine(s).state.owner[key].kind for key in keys}
            assert kinds == {key: "rest" if key == keys[number] else "root" for key in keys}
            assert record(s, job).expected.came_tasks == 8 * (number + 1)
