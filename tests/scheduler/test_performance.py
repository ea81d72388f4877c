"""Communication over computation, per job and phase, from what the workers of real clusters report."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
from distributed import SchedulerPlugin, wait
from helpers import addresses_of, engine, live, record, started, until
from hypothesis import given
from hypothesis import strategies as st
from tasks import inc, slow_inc

import dask_hpc
from dask_hpc.config import Settings
from dask_hpc.scheduler.internals.reads import spent
from dask_hpc.scheduler.tables.meter import LEAST_TASKS, ratio, share
from dask_hpc.trace.files import parse_trace
from dask_hpc.trace.replay import replay
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.model import JobView

MB = 1_000_000
HOUR_S = 3600.0
#: Samples are closed by the tests, not by the tick.
BY_HAND = {"performance_interval_s": HOUR_S, "tick_s": 0.02}
NO_SPILLING_BETWEEN_TASKS = {
    f"distributed.worker.memory.{name}": False for name in ("spill", "pause", "terminate")
}


def zeros(_):
    return np.zeros(20 * MB // 8)


def nbytes(*arrays):
    return sum(array.nbytes for array in arrays)


def fail(delay_s):
    time.sleep(delay_s)
    raise ValueError("meant to fail")


class Heavy:
    """Larger than what a worker keeps in memory, and slow to write and to read."""

    def __sizeof__(self):
        return 90 * MB

    def __reduce__(self):
        time.sleep(0.02)
        return _heavy, ()


def _heavy():
    time.sleep(0.02)
    return Heavy()


async def move(c, s, job, count=8):
    """Tasks of a job that do little but fetch `count` times 20 MB; `count` + 1 of them.

    They compute while nothing is fetched: what computes beside a transfer in this process takes long.
    """
    here, there = sorted(addresses_of(s, job))[:2]
    arrays = c.map(zeros, range(count), workers=here, pure=False)
    await wait(arrays)
    assert await c.submit(nbytes, *arrays, workers=there, pure=False) == count * 20 * MB


async def compute(c, count=8):
    """Tasks that only compute, 10 ms each."""
    await c.gather(c.map(slow_inc, range(count), pure=False))


def close_sample(s, job):
    """What a tick does an hour later."""
    meter = record(s, job).meter
    begun_s = engine(s).state.now_s() if meter.since_s is None else meter.since_s
    meter.since_s = begun_s
    return meter.sample(begun_s + HOUR_S + 1, HOUR_S)


def begin(s, job, name, **options):
    """The job says that a phase begins."""
    record(s, job).meter.begin_phase(engine(s).state.now_s(), name, **options)


def view_of(s, job):
    return next(view for view in engine(s).state.snapshot("tick").jobs if view.id == job.id)


def phases(s, job):
    return {row["phase"]: row for row in record(s, job).meter.rows()}


class Reports(SchedulerPlugin):
    """Everything that workers report about tasks that have ended, by key."""

    name = "reports"

    def __init__(self, scheduler):
        self.rows = defaultdict(list)
        scheduler.add_plugin(self)

    def transition(self, key, start, finish, *args, **kwargs):
        if start == "processing" and finish in ("memory", "erred"):
            self.rows[key].append(kwargs["startstops"])

    def actions(self, keys):
        return {row["action"] for key in keys for rows in self.rows[key] for row in rows}

    def spent(self, keys):
        """Communication and computation of tasks: seconds, found the long way."""
        comm_s = compute_s = 0.0
        for rows in (rows for key in keys for rows in self.rows[key]):
            comm_s += covered([(r["start"], r["stop"]) for r in rows if r["action"] == "transfer"])
            comm_s += sum(r["stop"] - r["start"] for r in rows if r["action"].startswith("disk"))
            compute_s += sum(r["stop"] - r["start"] for r in rows if r["action"] == "compute")
        return pytest.approx((comm_s, compute_s), rel=1e-6, abs=1e-6)


def covered(intervals):
    """Length of a union of intervals."""
    total, reach = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, reach))
        reach = max(reach, stop)
    return total


# ------------------------------------------------------------------------------ what is measured


@live()
async def test_moving_big_arrays_gives_a_high_mtct_and_computing_gives_almost_none(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("moves", nodes=2) as moves:
        await started(s, moves, 2)
        await move(c, s, moves)
        async with rt.job("computes", nodes=2) as computes:
            await started(s, computes, 2)
            await compute(c)
    row = phases(s, moves)[""]
    assert row["mtct"] > 1
    assert row["m2p"] == pytest.approx(row["comm_s"] / (row["comm_s"] + row["compute_s"]))
    row = phases(s, computes)[""]
    assert row["mtct"] < 0.02
    assert row["compute_s"] > 8 * 0.009


@live(workers=6)
async def test_a_job_is_charged_for_its_own_tasks_and_for_nothing_else(c, s, *workers):
    reports = Reports(s)
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    keys = {}
    a, b = rt.job("a", nodes=3), rt.job("b", nodes=2)
    async with a:
        await started(s, a, 3)
        here, there, elsewhere = sorted(addresses_of(s, a))
        arrays = [c.submit(zeros, i, workers=w, pure=False) for i in range(3) for w in (here, there)]
        await wait(arrays)
        total = c.submit(nbytes, *arrays, workers=elsewhere, pure=False)
        async with b:
            await started(s, b, 2)
            counted = c.map(slow_inc, range(12), pure=False)
            failed = c.submit(fail, 0.02, pure=False)
    plain = c.map(slow_inc, range(5), pure=False)
    await c.gather([total, *counted, *plain])
    with pytest.raises(ValueError, match="meant to fail"):
        await failed
    keys[a] = [total.key, *(f.key for f in arrays)]
    keys[b] = [failed.key, *(f.key for f in counted)]
    for job, own in keys.items():
        [row] = (await job.status())["phases"]
        assert row["tasks"] == len(own)
        assert (row["comm_s"], row["compute_s"]) == reports.spent(own)
    # the check above is worth something: transfers took place, two at a time
    moved = [(r["start"], r["stop"]) for r in reports.rows[total.key][0] if r["action"] == "transfer"]
    assert sum(stop - start for start, stop in moved) > covered(moved) * 1.01


@live(
    workers=2,
    worker_kwargs={"memory_limit": 100 * MB},
    config=NO_SPILLING_BETWEEN_TASKS,
)
async def test_writing_to_disk_and_reading_back_count_as_communication(c, s, *workers):
    reports = Reports(s)
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("spills", nodes=1) as job:
        await started(s, job, 1)
        heavy = c.submit(Heavy, pure=False)
        read = c.submit(type, heavy, pure=False)
        await read
        assert reports.actions([heavy.key, read.key]) == {"compute", "disk-write", "disk-read"}
        row = phases(s, job)[""]
    assert row["comm_s"] > 2 * 0.018
    assert (row["comm_s"], row["compute_s"]) == reports.spent([heavy.key, read.key])


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["compute", "transfer", "disk-read", "disk-write", "deserialize", "other"]),
        st.integers(0, 50),
        st.integers(-5, 50),
    ),
    max_size=12,
)


@given(ROWS)
def test_transfers_at_the_same_time_count_once_and_nothing_counts_below_zero(rows):
    rows = sorted(((action, start, start + length) for action, start, length in rows), key=lambda r: r[2])
    comm_s, compute_s = spent([{"action": a, "start": b, "stop": e} for a, b, e in rows])
    forward = [(action, start, stop) for action, start, stop in rows if stop > start]
    assert compute_s == sum(stop - start for action, start, stop in forward if action == "compute")
    stored = ("disk-read", "disk-write", "deserialize")
    assert comm_s == covered([(b, e) for a, b, e in forward if a == "transfer"]) + sum(
        stop - start for action, start, stop in forward if action in stored
    )


def test_a_ratio_without_computation_is_unknown_and_never_infinite():
    assert ratio(1.0, 0.0) is None
    assert ratio(1e300, 1e-300) is None
    assert ratio(0.0, 2.0) == 0.0
    assert (share(None), share(0.0), share(3.0)) == (None, 0.0, 0.75)


@live(workers=2)
async def test_a_sample_without_computation_is_no_data_for_a_policy(c, s, *workers):
    rt = await dask_hpc.install(c, "performance-aware", **BY_HAND)
    async with rt.job("main", nodes=1, min_nodes=1, max_nodes=2) as job:
        await started(s, job, 1)
        # no clock is so coarse that a real task shows this
        for _ in range(LEAST_TASKS):
            rows = [{"action": "transfer", "start": 0.0, "stop": 1.0}]
            record(s, job).meter.observe(rows)
        assert close_sample(s, job)
        view = view_of(s, job)
        assert (view.mtct, view.mtct_previous) == (None, None)
        assert json.dumps(encode(view))
        assert phases(s, job)[""]["comm_s"] == LEAST_TASKS
        assert engine(s).controller.failure is None


# --------------------------------------------------------------------------------------- samples


@live()
async def test_a_policy_sees_the_latest_sample_and_the_one_before(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        assert (view_of(s, job).mtct, view_of(s, job).mtct_previous) == (None, None)
        await compute(c)
        assert view_of(s, job).mtct is None, "an open sample is nobody's"
        assert close_sample(s, job)
        first = view_of(s, job)
        assert first.mtct < 0.02
        assert first.mtct_previous is None
        await move(c, s, job)
        assert close_sample(s, job)
        second = view_of(s, job)
        assert second.mtct > 1
        assert second.mtct_previous == first.mtct
        [row] = (await job.status())["phases"]
        assert (row["samples"], row["mtct_sample"], row["mtct_sample_previous"]) == (
            2, second.mtct, first.mtct,
        )  # fmt: skip
        assert first.mtct < row["mtct"] < second.mtct, "the phase as a whole lies between its samples"


@live(workers=2)
async def test_a_sample_is_closed_when_it_is_long_enough_and_holds_enough(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", tick_s=HOUR_S, performance_interval_s=5)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        sample = partial(record(s, job).meter.sample, interval_s=5)
        await compute(c, LEAST_TASKS - 1)
        assert not sample(100.0)
        assert not sample(900.0), "too few tasks, however long it takes"
        await compute(c, 1)
        assert sample(905.0)
        await compute(c, LEAST_TASKS)
        assert not sample(909.0), "too soon after the last one"
        assert sample(910.0)
        assert not sample(990.0), "empty"
        await compute(c, LEAST_TASKS)
        assert not sample(991.0), "time in which nothing ended does not count"
        assert sample(995.0)


@live(workers=2)
async def test_ticks_close_samples_and_the_interval_can_be_changed_live(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        await compute(c)
        await until(lambda: record(s, job).meter.since_s is not None, "a tick has looked")
        assert view_of(s, job).mtct is None
        await rt.update(performance_interval_s=0)
        await until(lambda: view_of(s, job).mtct is not None, "a tick has closed the sample")
        assert view_of(s, job).mtct < 0.02


def test_the_interval_is_checked():
    assert Settings().performance_interval_s == 5.0
    with pytest.raises(dask_hpc.errors.ConfigError, match=r"hpc\.performance-interval is '2 h'"):
        Settings(performance_interval_s="2 h")


# ---------------------------------------------------------------------------------------- phases


@live()
async def test_a_new_phase_closes_the_sample_at_once_for_the_phase_before(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        begin(s, job, "solve")
        assert view_of(s, job).mtct is None, "nothing was measured before"
        await compute(c, 1)
        begin(s, job, "exchange")
        solved = view_of(s, job).mtct
        assert solved < 0.05, "one task is enough when the job itself says so"
        await move(c, s, job)
        begin(s, job, "solve")
        assert view_of(s, job).mtct > 1
        assert view_of(s, job).mtct_previous == solved
        await compute(c, 2)
        found = phases(s, job)
    assert [(name, row["tasks"], row["current"]) for name, row in found.items()] == [
        ("solve", 3, True),
        ("exchange", 9, False),
    ]
    assert found["solve"]["mtct"] < 0.05 < 1 < found["exchange"]["mtct"]


@live()
async def test_samples_of_a_rigid_phase_are_kept_but_are_not_for_resizing(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        await compute(c)
        begin(s, job, "output", elastic=False)
        before = view_of(s, job)
        assert before.mtct is not None
        await move(c, s, job)
        assert close_sample(s, job)
        await move(c, s, job)
        begin(s, job, "solve")
        after = view_of(s, job)
        assert (after.mtct, after.mtct_previous) == (before.mtct, before.mtct_previous)
        found = phases(s, job)
    assert found["output"]["mtct"] > 1
    assert (found["output"]["samples"], found["output"]["elastic"]) == (2, False)
    assert found["solve"]["elastic"]


@live(workers=2)
async def test_phases_that_cannot_begin_are_refused_and_old_ones_are_forgotten(c, s, *workers):
    rt = await dask_hpc.install(c, "fcfs", **BY_HAND)
    async with rt.job("main", nodes=1) as job:
        await started(s, job, 1)
        for name in (3, None, "x" * 201):
            with pytest.raises(ValueError, match="allowed: a text of at most 200 characters"):
                begin(s, job, name)
        for step in range(110):
            begin(s, job, f"step {step}")
            await c.submit(inc, step, pure=False)
        names = list(phases(s, job))
        assert len(names) == 100
        assert names[-1] == "step 109"


# --------------------------------------------------------------------------------------- policies


async def fetch(c, s, job, count=12):
    """Tasks of a job that do nothing but fetch 20 MB each, also on a busy machine."""
    here, there = sorted(addresses_of(s, job))[:2]
    arrays = await c.scatter([zeros(i) for i in range(count)], workers=[here], hash=False)
    assert set(await c.gather(c.map(nbytes, arrays, workers=[there], pure=False))) == {20 * MB}


async def _two_jobs(rt, c, s):
    """A job bound by communication and a younger one that scales, both measured."""
    moves = rt.job("moves", nodes=2, min_nodes=2, max_nodes=4)
    computes = rt.job("computes", nodes=2, min_nodes=2, max_nodes=4)
    async with moves:
        await started(s, moves, 2)
        await fetch(c, s, moves)
        async with computes:
            await started(s, computes, 2)
            await compute(c)
            assert close_sample(s, moves)
            assert close_sample(s, computes)
            yield moves, computes


@live(workers=7)
async def test_behind_the_mtct_guard_only_the_job_that_computes_is_expanded(c, s, *workers):
    policy = {"policy": "pwma-fpsma", "compose": ["mtct"]}
    rt = await dask_hpc.install(c, policy, **BY_HAND)
    async for moves, computes in _two_jobs(rt, c, s):
        await started(s, computes, 4)

        def refused(moves=moves):
            said = [row for row in engine(s).controller.decisions if row["job"] == moves.id]
            return [row for row in said if row["result"] == "suppressed" and "MTCT is" in row["reason"]]

        await until(refused, "the other was considered, with its figures")
        assert engine(s).state.nodes_up(record(s, moves)) == 2
        assert engine(s).state.idle_nodes() == 1, "it was not for want of nodes"
        assert record(s, moves).expansions == 0


@live(workers=6)
async def test_performance_aware_gives_idle_nodes_to_the_job_that_computes_and_replays(c, s, *workers):
    rt = await dask_hpc.install(c, "performance-aware", **BY_HAND)
    async for moves, computes in _two_jobs(rt, c, s):
        await started(s, computes, 4)
        assert engine(s).state.nodes_up(record(s, moves)) == 2
        reasons = [row["reason_code"] for row in await computes.why() if row["action"] == "expand"]
        assert "scales-well" in reasons
        trace = parse_trace(await rt.trace())
    seen = {view.id: view for p in trace.passes for view in p.snapshot.jobs if view.mtct is not None}
    assert seen[moves.id].mtct > 1 > seen[computes.id].mtct == 0
    report = replay(trace)
    assert report.ok, report.first
    assert report.recorded_actions["expand"] == 1


def test_a_recorded_job_without_these_fields_loads():
    data = encode(JobView(id="old", mtct=0.5, mtct_previous=0.25))
    del data["mtct"], data["mtct_previous"]
    view = decode(JobView, data)
    assert (view.mtct, view.mtct_previous) == (None, None)
