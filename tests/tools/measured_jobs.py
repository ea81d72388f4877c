"""Jobs that communicate or compute on purpose, and samples of them that a test closes by hand."""

from __future__ import annotations

import numpy as np
from distributed import wait
from helpers import addresses_of, engine, record
from tasks import slow_inc

MB = 1_000_000
HOUR_S = 3600.0
#: Communication over computation of a job that does little but fetch is above this: ten times that of one
#: that computes. What little it computes may take a tenth of a second on a busy machine.
HIGH = 0.2
#: Samples are closed by the tests, not by the tick.
BY_HAND = {"performance_interval_s": HOUR_S, "tick_s": 0.02}


def zeros(_):
    return np.zeros(20 * MB // 8)


def nbytes(*arrays):
    return sum(array.nbytes for array in arrays)


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
