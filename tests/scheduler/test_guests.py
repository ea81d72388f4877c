"""Plain tasks that a job computes because it needs them are its guests: they are placed before its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask
import pytest
from helpers import Gate, live, owner_of, record, started, state_of, through, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.internals.allotment import Lane
from dask_hpc.scheduler.placing import past as of_past
from dask_hpc.scheduler.placing.guests import Guests
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.jobs.jobspec import job_spec, resolve

#: Values in the order in which `note` had them; workers of the tests are in this process.
_order: list[str] = []


def note(what):
    """A task that tells when it executes."""
    _order.append(what)
    return what


def note_after(_, what):
    """The same, of a task that depends on another."""
    return note(what)


@pytest.mark.parametrize("keeps", [0, 1])
@live(1)
async def test_a_held_plain_task_that_a_job_needs_is_placed_before_those_of_the_job(c, s, a, keeps):
    """Whether plain work is to have a node for itself or none."""
    _order.clear()
    gate = Gate()
    rt = await dask_hpc.install(c, policy="fcfs", default_job_min_nodes=keeps)
    async with rt.job("needs", nodes=1) as needs:
        await started(s, needs)
        stop = c.submit(through, 0, gate, key="stop")
        await until(lambda: gate.arrived, "its node is busy")
        own = c.map(note, [f"own-{i}" for i in range(10)], pure=False, priority=10)
        await until(lambda: record(s, needs).held >= 9, "its tasks are held")
        with dask.annotate(hpc_job=None):
            plain = c.map(note, [f"plain-{i}" for i in range(40)], pure=False)
            after = c.submit(note_after, plain[20], "after-20", pure=False)
        await until(lambda: after.key in s.tasks, "plain work is known, and has no node")
        assert {s.tasks[f.key].state for f in plain} <= {"no-worker", "queued"}
        # held, queued by stock, and one that depends on another
        needed = c.submit(" ".join, [plain[0], plain[-1], after], key="needed")
        await until(lambda: owner_of(s, plain[20].key) == needs.id, "it is a guest of the job", 10)
        gate.open()
        assert await within(needed) == "plain-0 plain-39 after-20"
        await within(c.gather([stop, *own]))
        assert sorted(_order[:5])[-3:] == ["plain-0", "plain-20", "plain-39"]
        await c.cancel(plain)


def test_what_plain_work_has_lost_is_at_once_the_jobs_that_waits_for_it():
    job = SimpleNamespace(is_default=False, active=True, reach=["a"], guest_lane=lambda kind: guest)
    guest, plain = Lane(job, "rest", job.reach), Lane(SimpleNamespace(is_default=True), "rest", [])
    uses = SimpleNamespace(key="uses", state="waiting")
    lost = SimpleNamespace(key="lost", run_id=1, dependents=[uses], worker_restrictions=[])
    owner = {"lost": plain, "uses": Lane(job, "rest", job.reach)}
    assert Guests(SimpleNamespace(owner=owner)).recomputed(lost, plain) is guest
    assert (owner["lost"], lost.worker_restrictions) == (guest, ["a"])


def test_looks_for_a_place_take_a_fiftieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looks = [10.0], list[float]()
    monkeypatch.setattr(of_past, "stopwatch_s", lambda: now_s[0])
    state: Any = SimpleNamespace(plain=[], unserved=bool, jobs=SimpleNamespace(named=[]))
    guests: Any = Guests(state)

    def look() -> None:
        """At thirty thousand tasks that two jobs have submitted which wait."""
        looks.append(now_s[0])
        now_s[0] += 0.1

    guests._place_asked = look
    for _ in range(20):
        guests.place_lost()
        now_s[0] += 0.3  # a sweep
    assert looks == pytest.approx([10.0, 15.2])


def test_what_is_done_is_forgotten_behind_however_much_that_is_not() -> None:
    spec = job_spec("job")
    job = JobRecord("job", spec, resolve(spec, 1), client=None)
    states = {**dict.fromkeys(range(600), "waiting"), "done": "memory"}
    scheduler = SimpleNamespace(tasks={key: SimpleNamespace(state=state) for key, state in states.items()})
    jobs = SimpleNamespace(active={"job": job}, named=[])
    owner = dict.fromkeys(states, SimpleNamespace(job=job))
    state: Any = SimpleNamespace(plain=[], unserved=bool, jobs=jobs, scheduler=scheduler, owner=owner)
    guests = Guests(state)
    guests._asked, guests._lost = dict.fromkeys(states, (job, "client")), dict.fromkeys(states)
    guests.place_lost()
    assert len(guests._asked) == len(guests._lost) == 600
    assert "done" not in {**guests._asked, **guests._lost}


def test_what_is_lost_is_held_by_plain_work_while_there_is_no_worker_at_all() -> None:
    spec = job_spec("named")
    named = JobRecord("named", spec, resolve(spec, 1), client=None)
    plain = JobRecord("plain", spec, resolve(spec, 1), client=None, is_default=True)
    none = {"run_id": 1, "dependencies": (), "worker_restrictions": named.reach}
    lost: Any = SimpleNamespace(key="lost", state="no-worker", **none)
    scheduler = SimpleNamespace(tasks={"lost": lost})
    jobs = SimpleNamespace(active={job.id: job for job in (named, plain)}, named=[named])
    owner = {"lost": named.guest_lane("rest")}
    state: Any = SimpleNamespace(plain=[plain], jobs=jobs, scheduler=scheduler, owner=owner, now_s=float)
    guests = Guests(state)
    guests._lost = {"lost": None}
    named.unfinished = named.held = named.guests = 1
    guests._place_lost()
    # the next worker is for whoever is first, and makes it
    assert (owner["lost"].job, list(plain.stranded)) == (plain, ["lost"])
    assert (named.unfinished, named.held, named.guests) == (0, 0, 0)
    assert (plain.unfinished, plain.held, plain.guests) == (1, 1, 0)


def test_who_needs_what_a_job_without_a_node_has_once_made_makes_it_again() -> None:
    spec = job_spec("any")
    first, needs = (JobRecord(id, spec, resolve(spec, 1), client=None) for id in ("first", "needs"))
    needs.allotment.grant(["a"])
    made: Any = SimpleNamespace(key="made", state="released", dependencies=(), worker_restrictions=None)
    owner = {"made": first.lanes["rest"]}
    state: Any = SimpleNamespace(owner=owner, scheduler=SimpleNamespace(tasks={"made": made}), now_s=float)
    Guests(state).invite([made], needs)
    assert (owner["made"].job, made.worker_restrictions) == (needs, needs.reach)
    # nobody has counted it yet
    assert (first.unfinished, needs.unfinished, needs.guests) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["easy", "fair"])
@live(2)
async def test_a_job_makes_what_it_needs_of_one_that_waits_for_its_very_node(c, s, a, b, policy):
    rt = await dask_hpc.install(c, policy)
    gate = Gate()
    async with rt.job("busy", nodes=1) as busy:
        stop = c.submit(gate.wait, 1)
        await started(s, busy)
        async with rt.job("wide", nodes=2) as wide:
            made = c.submit(inc, c.submit(inc, 1, key="first"), key="second")
        async with rt.job("narrow", nodes=1, walltime=60) as narrow:
            third = c.submit(inc, made, key="third")
        await started(s, narrow)
        assert state_of(s, wide) == "pending"
        gate.open()
        await stop
        assert await within(third, 10) == 4
    assert (await narrow.wait(10))["state"] == "completed"
    assert (await wide.wait(10))["state"] == "completed"
