"""Tasks that wait on their job's workers are lent idle threads of others, without being started twice."""

from __future__ import annotations

import dask
import pytest
from helpers import Gate, Starts, engine, live, started, through, until, within
from tasks import inc

import dask_hpc


class Heavy(int):
    """A value that takes minutes to send, as far as its size tells."""

    def __sizeof__(self):
        return 10_000_000_000


def heavy(i):
    """A task with such a result."""
    return Heavy(i + 1)


async def five_behind_each_other(c, gate, make=inc, **job_fields):
    """The dependents of five results, in a job with one of two nodes; the other node's job is idle."""
    rt = await dask_hpc.install(c, policy="fcfs")
    idle = await rt.job("idle", nodes=1).__aenter__()
    busy = await rt.job("busy", nodes=1, **job_fields).__aenter__()
    first = c.map(make, range(5), key="first", pure=False)
    waiting = [c.submit(through, future, gate, key=f"second-{i}") for i, future in enumerate(first)]
    return rt, idle, busy, waiting


async def close(*jobs):
    """Leave the contexts, the last one first."""
    for job in reversed(jobs):
        await job.__aexit__(None, None, None)
        await within(job.wait())


@live(2, threads=2, lend="5 s", config={"hpc.sweep": "10 s"})
async def test_dependents_behind_others_borrow_idle_threads_before_any_sweep_and_start_once(c, s, a, b):
    starts, gate = Starts(), Gate()
    await starts.watch([a, b])
    _, idle, busy, waiting = await five_behind_each_other(c, gate)
    await until(lambda: gate.arrived == 4, "every thread executes one", 5.0)
    keys = [future.key for future in waiting]
    assert starts.places(keys) == {a.address, b.address}
    assert (await busy.status())["borrowed_tasks"] >= 2
    gate.open()
    assert await within(c.gather(waiting)) == [1, 2, 3, 4, 5]
    assert not starts.twice(keys)
    await close(idle, busy)


@pytest.mark.parametrize("why", ["exclusive", "long", "far", "nothing is lent"])
@live(2, threads=2, lend="5 s")
async def test_who_does_not_borrow_keeps_what_waits(c, s, a, b, why):
    gate = Gate()
    await c.gather([c.submit(inc, 1, key=key) for key in ("first", "second")])
    if why == "far":  # all values are on the job's own node
        s.task_prefixes["first"].duration_average = 1000.0
        # longer than all that its node has to do; heartbeats tell the scheduler what workers have seen
        s.bandwidth = a.bandwidth = b.bandwidth = 1e6
    if why == "long":
        s.task_prefixes["second"].duration_average = 60.0
    with dask.config.set({"hpc.lend": "0 s"} if why == "nothing is lent" else {}):
        make = heavy if why == "far" else inc
        _, idle, busy, waiting = await five_behind_each_other(c, gate, make, exclusive=why == "exclusive")
    await started(s, busy)
    await until(lambda: gate.arrived == 2, "its own threads are busy")
    sweeps, look = [], engine(s).overflow.look
    engine(s).overflow.look = lambda: (sweeps.append(1), look())
    await until(lambda: len(sweeps) >= 5, "it was looked at again")
    # the two at the gate may have been asked for before they had begun
    asked = {key for key, _ in engine(s).overflow._asked}
    assert (gate.arrived, asked & {future.key for future in waiting}) == (2, set())
    assert not [future for future in waiting if s.tasks[future.key].state == "no-worker"]
    gate.open()
    assert await within(c.gather(waiting)) == [1, 2, 3, 4, 5]
    await close(idle, busy)
