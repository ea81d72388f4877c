"""Communication over computation, per job and phase, from what the workers of real clusters report."""

from __future__ import annotations

import json
import time
from collections import defaultdict

import pytest
from distributed import SchedulerPlugin, wait
from helpers import addresses_of, engine, live, record, started
from hypothesis import example, given
from hypothesis import strategies as st
from measured_jobs import BY_HAND, HIGH, MB, close_sample, compute, move, nbytes, phases, view_of, zeros
from tasks import slow_inc

import dask_hpc
from dask_hpc.scheduler.internals.durations import spent, taken_s
from dask_hpc.scheduler.tables.meter import LEAST_TASKS, ratio, share
from dask_hpc_policies.codec import encode

NO_SPILLING_BETWEEN_TASKS = {
    f"distributed.worker.memory.{name}": False for name in ("spill", "pause", "terminate")
}


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
    assert row["mtct"] > HIGH
    assert row["m2p"] == pytest.approx(row["comm_s"] / (row["comm_s"] + row["compute_s"]))
    row = phases(s, computes)[""]
    # fractions of a millisecond a task; more where the event loop waits for others on the machine
    assert row["mtct"] < HIGH / 2
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


@example([("compute", 5, -3)])
@given(ROWS)
def test_transfers_at_the_same_time_count_once_and_nothing_counts_below_zero(rows):
    rows = [(action, start, start + length) for action, start, length in rows]
    said = [{"action": a, "start": b, "stop": e} for a, b, e in rows]
    comm_s, compute_s = spent(said)
    assert taken_s(said) == comm_s + compute_s
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
