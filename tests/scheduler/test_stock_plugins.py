"""Stock's plugins whose steps ours passes on: they see what they look at, and are stock's again."""

from __future__ import annotations

from collections import Counter

import dask
import pytest
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.shuffle import ShuffleSchedulerPlugin
from distributed.stealing import WorkStealing
from helpers import asleep, engine, live, started, traces_of_ours, until
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.tables.watched import Watched

ENDS = {"released", "erred", "forgotten"}
KINDS = (ShuffleSchedulerPlugin, WorkStealing)


class Seen:
    """Steps that stock's plugins were given while this is in the scheduler, and all there were."""

    name = "seen"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: Counter[tuple[str, str, str]] = Counter()
        self.by: dict[type, Counter[tuple[str, str, str]]] = {kind: Counter() for kind in KINDS}
        for kind in KINDS:
            monkeypatch.setattr(kind, "transition", self._heard(kind, kind.transition))

    def _heard(self, kind, stock):
        def transition(plugin, key, start, finish, *args, **kwargs):
            if type(plugin) is kind:
                self.by[kind][key, start, finish] += 1
            return stock(plugin, key, start, finish, *args, **kwargs)

        return transition

    def step(self, key, start, finish, *args, **kwargs):
        self.all[key, start, finish] += 1

    def looked_at(self, kind):
        ends = kind is ShuffleSchedulerPlugin
        return Counter(
            {
                step: count
                for step, count in self.all.items()
                if (step[2] in ENDS if ends else "processing" in step[1:])
            }
        )


class Listener(SchedulerPlugin):
    """Notes every step."""

    def __init__(self, seen: Seen) -> None:
        self.transition = seen.step  # type: ignore[method-assign]


async def look(c, s, seen):
    """Run tasks that end in every way: what is looked at was seen, once; whether other calls were spared."""
    for each in (seen.all, *seen.by.values()):
        each.clear()
    s.add_plugin(Listener(seen), name="seen")
    with dask.annotate(hpc_job=None):
        plain = c.map(inc, range(40), pure=False)
    own = c.map(inc, plain[:20], pure=False)
    wrong = c.submit(inc, "no number", pure=False)
    await c.gather(own)
    await until(wrong.done, "one fails")
    await c.cancel(plain[20:30])
    del plain, own, wrong
    await until(lambda: len(s.tasks) < 2, "all is forgotten")
    s.remove_plugin("seen")
    for kind in KINDS:
        looked_at = seen.looked_at(kind)
        assert looked_at
        missed = {step: (n, seen.by[kind][step]) for step, n in looked_at.items()}
        assert all(n == found for n, found in missed.values()), missed
    steps = sum(seen.all.values())
    return all(sum(each.values()) < 0.7 * steps for each in seen.by.values())


@live(2)
async def test_they_see_each_step_that_they_look_at_once(c, s, *workers):
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen = Seen(monkeypatch)
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("idle", nodes=1) as idle:
            await started(s, idle)
            assert len(traces_of_ours(s)) > 2
            assert sum("transition of" in trace for trace in traces_of_ours(s)) == 3  # ours has its own
            assert await look(c, s, seen), "most calls are spared"
    await asleep(s)
    await until(lambda: traces_of_ours(s) == [], "nothing of ours is left")


@live(2)
async def test_they_do_while_something_is_watched_with_a_job_and_without(c, s, *workers):
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen, told = Seen(monkeypatch), []
        rt = await dask_hpc.install(c, "fcfs")
        watched = engine(s).watched

        def hears(key, start, finish):
            told.append((start, finish))
            if finish == "memory":
                raise ZeroDivisionError("keeps nothing from others")

        watched.watch("kept", hears)
        kept = c.submit(inc, 1, key="kept")
        assert await kept == 2
        assert told == [*told[:-1], ("processing", "memory")]
        assert await look(c, s, seen), "most calls are spared"
        async with rt.job("idle", nodes=1) as idle:
            await started(s, idle)
            assert await look(c, s, seen), "most calls are spared"
            watched.unwatch("kept", hears)
            await look(c, s, seen)
            watched.watch("kept", hears)
        await asleep(s)
        await look(c, s, seen)
        watched.unwatch("kept", hears)
        assert traces_of_ours(s) == []
        assert await kept == 2


@pytest.mark.parametrize("first_goes", ["before", "after"])
@live(2)
async def test_they_do_while_two_installations_watch_something(c, s, *workers, first_goes):
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen, told = Seen(monkeypatch), []
        # one that was uninstalled and has something left to do, and that of the next installation
        both = Watched(s), Watched(s)
        for number, watched in enumerate(both):
            watched.watch("kept", hears := lambda key, *_, number=number: told.append(number))
            watched.hears = hears
        kept = c.submit(inc, 1, key="kept")
        assert await kept == 2
        assert set(told) == {0, 1}
        assert await look(c, s, seen), "most calls are spared"
        for watched in both if first_goes == "before" else reversed(both):
            watched.unwatch("kept", watched.hears)
            await look(c, s, seen)
        assert traces_of_ours(s) == []
        assert await kept == 2


@live(2)
async def test_one_that_looks_at_more_is_left_to_stock(c, s, *workers):
    found: list[tuple[str, str]] = []

    def transition(plugin, key, start, finish, *args, **kwargs):
        assert plugin.scheduler is s  # what has no scheduler fails
        found.append((start, finish))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ShuffleSchedulerPlugin, "transition", transition)
        rt = await dask_hpc.install(c, "fcfs")
        async with rt.job("one", nodes=1) as job:
            await started(s, job)
            found.clear()
            assert await c.submit(inc, 1, pure=False) == 2
            assert ("waiting", "no-worker") in found
            assert len(found) == len(set(found))


class Steps(SchedulerPlugin):
    """Counts the steps that whoever watches the scheduler is told of."""

    def __init__(self) -> None:
        self.heard: Counter[tuple[str, str]] = Counter()

    def transition(self, key, start, finish, *args, **kwargs):
        self.heard[start, finish] += 1


@live(1, threads=1)
async def test_a_held_task_waits_and_is_sent_in_one_step_each(c, s, a):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("one", nodes=1) as job:
        await started(s, job)
        s.add_plugin(steps := Steps(), name="steps")
        first = c.map(inc, range(20), pure=False)
        rest = c.map(inc, first, pure=False)
        await c.gather(rest)
        s.remove_plugin("steps")
    # those that depend on others are sent at once
    assert steps.heard == {
        ("released", "waiting"): 40,
        ("waiting", "no-worker"): 20,
        ("no-worker", "processing"): 20,
        ("waiting", "processing"): 20,
        ("processing", "memory"): 40,
    }


@live(2)
async def test_a_plain_task_that_has_no_worker_waits_in_one_step(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs")
    async with rt.job("idle", nodes=1) as job:
        await started(s, job)
        s.add_plugin(steps := Steps(), name="steps")
        with dask.annotate(hpc_job=None):
            assert await c.gather(c.map(inc, range(20), pure=False)) == list(range(1, 21))
            nowhere = c.submit(inc, 1, pure=False, workers="nobody")
            await until(lambda: [ts.state for ts in s.unrunnable] == ["no-worker"], "it waits for its worker")
            assert nowhere.status == "pending"
        s.remove_plugin("steps")
    heard = steps.heard
    assert heard["waiting", "queued"] == heard["queued", "processing"] > 0
    assert heard["waiting", "no-worker"] == 1
    assert heard["waiting", "queued"] + heard["waiting", "processing"] == 20
    assert ("waiting", "waiting") not in heard
