"""A task that is known to be long keeps no quick one behind it from an idle thread that is lent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from helpers import Gate, engine, idle_job, live, record, started, state_of, through, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.allotment import HOLD
from dask_hpc.scheduler.placing import past as of_past
from dask_hpc.scheduler.placing.lending import Lending
from dask_hpc.scheduler.placing.past import Pace, Past
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.jobs.jobspec import job_spec, resolve


async def learn(c, s):
    """Have Dask know that tasks called ``quick`` take no time, and those called ``long`` an hour."""
    await c.gather([*c.map(inc, range(2), key="quick", pure=False), c.submit(inc, 1, key="long-0")])
    await until(lambda: not s.tasks, "what they took is known, and the results are gone")
    s.task_prefixes["long"].duration_average = 3600.0


@pytest.mark.parametrize("workers", [1, 2], ids=["held", "in stock's queue"])
@live(2, lend="5 s", config={"hpc.sweep": "10 s"})
async def test_quick_plain_tasks_behind_long_ones_are_lent_idle_threads_before_any_sweep(c, s, a, b, workers):
    gate, own = Gate(), workers - 1
    if not own:
        await b.close()
    await learn(c, s)
    async with idle_job(c, s):
        with dask.annotate(hpc_job=None):
            long = c.map(through, range(9), gate=gate, key="long", pure=False)
            await until(lambda: len(s.queued if own else s.unrunnable) >= 7, "nothing is lent to those")
            await until(lambda: gate.arrived == own, "but the node of plain work, if it has one")
            quick = c.map(inc, range(9), key="quick", pure=False)
            assert await within(c.gather(quick), 5) == list(range(1, 10))
            assert gate.arrived == own
    gate.open()
    assert await within(c.gather(long)) == list(range(9))


@live(1, threads=2, lend="5 s", config={"hpc.sweep": "10 s"})
async def test_quick_tasks_of_a_job_are_lent_threads_past_its_long_ones_which_stay_first(c, s, a):
    gate = Gate()
    await learn(c, s)
    async with idle_job(c, s) as (rt, _), rt.job("waits", nodes=1) as waits:
        long = c.map(through, range(5), gate=gate, key="long", pure=False)
        quick = c.map(inc, range(5), key="quick", pure=False)
        assert await within(c.gather(quick), 5) == [1, 2, 3, 4, 5]
        assert (state_of(s, waits), gate.arrived) == ("pending", 0)
        queue = record(s, waits).queue
        assert [ts.key for _, _, ts in sorted(queue)] == [future.key for future in long]
        assert not engine(s).admission.lending.past.over
        gate.open()
        await waits.cancel()


@live(2, threads=8, lend="5 s", config={"hpc.sweep": "10 s"})
async def test_tasks_that_wait_for_each_other_are_lent_threads_soon_beside_a_long_queue(c, s, *workers):
    """Which is looked through now and then only."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(of_past, "_PAUSE", 1e9)
        stop, together = Gate(), Gate()
        await learn(c, s)
        rt = await dask_hpc.install(c, policy="fcfs")
        async with rt.job("idle", nodes=1) as idle:
            await started(s, idle)
            with dask.annotate(hpc_job=None):
                long = c.map(through, range(50), gate=stop, key="long", pure=False)
            await until(lambda: stop.arrived == 8 and s.queued, "nothing of it is lent to those")
            async with rt.job("waits", nodes=2) as waits:
                all_four = c.map(through, range(4), gate=together, key="together", pure=False)
                await until(lambda: together.arrived == 4, "each has a thread", 5)
                assert state_of(s, waits) == "pending"
                together.open()
                await c.gather(all_four)
        stop.open()
        await c.gather(long)


def job_with(names: str, id: str = "waits") -> Any:
    """A job that holds a task for each letter, in that order; those of capital letters are long."""
    spec = job_spec(id)
    job = JobRecord(id, spec, resolve(spec, 1), client=None)
    job.held = len(names)
    for place, name in enumerate(names):
        kind = SimpleNamespace(name=name, duration_average=3600.0 if name.isupper() else 0.1)
        where: Any = {"state": "no-worker", "worker_restrictions": HOLD}
        job.park(SimpleNamespace(key=name, prefix=kind, priority=(0, 1, place), **where))
    return job


def takes(names: str) -> Callable[[Any], bool]:
    """Whether a task has one of these names."""
    return lambda ts: ts.key in names


def held(job: JobRecord) -> str:
    return "".join(ts.key for _, _, ts in sorted(job.queue))


def test_what_is_passed_over_comes_back_in_its_place() -> None:
    past, job, other = Past(lambda in_s: None), job_with("abcde"), job_with("xy")
    found: Any = past.first(job, takes("ce"))
    assert (found.key, held(job)) == ("c", "cde")
    job.take()
    found = past.first(job, takes("ce"))
    assert (found.key, job.first()) == ("e", found)
    job.take()
    assert past.first(job, takes("ce")) is None
    assert past.first(other, takes("x")) is other.first()
    assert past.spent == {job}
    past.end()
    assert (held(job), held(other), past.over) == ("abd", "xy", {})
    past.begin()
    assert not past.spent


def test_a_job_whose_tasks_were_passed_over_holds_them_and_does_not_lend_its_threads() -> None:
    """A part of the runtime may keep them from its own."""
    holds, waits = job_with("LM", "holds"), job_with("Lqr", "waits")
    workers = {
        address: SimpleNamespace(address=address, nthreads=1, processing=(), long_running=(), resources={})
        for address in ("a", "b")
    }
    at = {
        address: SimpleNamespace(serves=True, reserved=0, job=job)
        for address, job in (("a", None), ("b", "holds"))
    }
    state: Any = SimpleNamespace(
        settings=SimpleNamespace(lend_s=5.0),
        jobs=SimpleNamespace(active={job.id: job for job in (holds, waits)}),
        scheduler=SimpleNamespace(workers=workers, running=workers.values(), WORKER_SATURATION=1.0),
        owner=dict.fromkeys("LMqr"),
        nodes=SimpleNamespace(at=at),
    )
    parts: Any = SimpleNamespace(lends=lambda node: True)
    batch = Lending(state, parts).choose(["a", "b"], Counter())
    assert [(ts.key, worker.address) for ts, worker, _ in batch] == [("q", "a")]
    assert (held(holds), held(waits)) == ("LM", "Lr")


def test_no_more_are_passed_over_at_a_time_than_take_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_past, "LOOKED_AT", 3)
    past, job = Past(lambda in_s: None), job_with("abcde")
    assert past.first(job, takes("d")) is None
    past.end()
    assert (held(job), past.spent) == ("abcde", {job})


def test_however_many_of_a_kind_are_passed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_past, "LOOKED_AT", 9)
    monkeypatch.setattr(of_past, "_ALIKE", 2)
    names = "ab" * 50 + "c" + "ab" * 50 + "dc"
    past, job = Past(lambda in_s: None), job_with(names)
    found: Any = past.first(job, takes("cd"))
    assert (found.key, found.priority) == ("c", (0, 1, 100))
    job.take()
    assert [past.first(job, takes("d")).key, held(job)] == ["d", "dc"]
    past.end()
    assert held(job) == names[:100] + names[101:]
    # where there are more than take a moment the others are not looked at
    monkeypatch.setattr(of_past, "MOST", 3)
    past = Past(lambda in_s: None)
    assert past.first(job, takes("d")) is None
    assert past.spent == {job}
    past.end()
    assert held(job) == names[:100] + names[101:]


def test_a_quick_task_is_found_behind_ten_thousand_and_more() -> None:
    names = "L" * 6000 + "M" * 6000
    past, job = Past(lambda in_s: None), job_with(names + "qL")
    found: Any = past.first(job, takes("q"))
    assert found.key == "q"
    job.take()
    assert past.first(job, takes("q")) is None
    past.end()
    assert held(job) == names + "L"
    assert len([None for _ in iter(job.next_held, None)]) == 12_001


def test_looks_take_a_fiftieth_of_the_time_and_who_would_look_before_is_told_when(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, again = [10.0], list[float]()
    monkeypatch.setattr(of_past, "stopwatch_s", lambda: now_s[0])
    pace = Pace(again.append)
    assert pace.due()
    now_s[0] += 0.01
    pace.done()
    now_s[0] += 0.3
    assert not pace.due()
    assert again == [pytest.approx(0.2)]
    now_s[0] += 0.21
    assert pace.due()
    # the first of a queue costs nothing, and is found at any time; who did not look does not know more
    past, job = Past(again.append), job_with("ab")
    assert past.first(job, takes("b")) is not None
    now_s[0] += 0.01
    past.end()
    assert past.first(job, takes("a")) is job.first()
    assert past.first(job, takes("b")) is None
    assert (held(job), past.spent, len(again)) == ("ab", set(), 2)


def test_the_rest_is_in_order_when_a_kind_was_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_past, "_ALIKE", 2)
    spec = job_spec("job")
    job = JobRecord("job", spec, resolve(spec, 1), client=None)
    for number in (5, 8, 3, 4, 0, 2, 6, 7, 1, 9):
        kind = "long" if number in (0, 1, 3) else "quick"
        ts = {"key": number, "state": "no-worker", "worker_restrictions": HOLD, "priority": (number,)}
        job.park(SimpleNamespace(prefix=SimpleNamespace(name=kind), **ts))
    past = Past(lambda in_s: None)
    past.begin()
    found: list[int] = []
    while (ts := past.first(job, lambda ts: ts.prefix.name == "quick")) is not None:
        found.append(ts.key)
        job.take()
    assert found == [2, 4, 5, 6, 7, 8, 9]
    past.end()
    assert [job.next_held().key for _ in range(3)] == [0, 1, 3]
