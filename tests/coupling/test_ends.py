"""Ends that take a process or an hour: a staging node that is killed, a reader that is away."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from coupled import FIELDS, opened, started
from helpers import live, until
from sources import asked, nothing_left, producers, told

import dask_hpc
from dask_hpc.wire import ROLE_RESOURCE


@live(workers=1, timeout=90)
async def test_a_staging_node_that_is_killed_amid_an_analysis_costs_no_step(c, s, a):
    here = os.getpid()
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", FIELDS)
    command = ["distributed.cli.dask_worker", s.address, "--name", "staging", "--nthreads", "1", "--no-nanny"]
    staging = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, "--resources", f"{ROLE_RESOURCE}staging=1", "--no-dashboard",
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await until(lambda: len(s.running) == 2, "the staging node is there", 60)

        def which(ds):
            if os.getpid() != here and int(ds["step"][-1]) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return os.getpid() == here, float(ds["T"][-1, 0, 0])

        await flow.analyse(which, name="which", where="in-transit", window=2)
        values = flow.results("which", timeout=60)
        async with producers(s, (0, 8)) as made:
            await opened(made)
            made[0].tell("many", first=0, last=6)
            # the window of the step that was under way came with blocks that are still where they were
            found = [await anext(values) for _ in range(5)]
            assert found == [(step, (step >= 3, float(step))) for step in range(1, 6)]
            await told(made[0])
            made[0].tell("close")
            assert [each async for each in values] == []
        assert await staging.wait() == -signal.SIGKILL
    finally:
        if staging.returncode is None:
            staging.kill()
            await staging.wait()
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=2 * 3600)
async def test_a_reader_that_is_away_for_an_hour_costs_memory_for_the_queue_and_no_step(c, s, a):
    loop = asyncio.get_running_loop()
    clock, ahead_s = loop.time, 0.0
    # the clock of scheduler, worker and client; whoever sends has its own, and waits for word alone
    loop.time = lambda: clock() + ahead_s
    flow, values = await started(c, queue=2)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        made[0].tell("many", first=0, last=8)
        # on this clock whatever is waited for times out
        answer = asyncio.ensure_future(asyncio.to_thread(made[0].answer))
        while (await flow.status())["in_flight"] < 2:
            await asyncio.sleep(0.01)
        tasks = len(s.tasks)
        for _ in range(360):
            ahead_s += 10
            await asyncio.sleep(0)
            assert (await flow.status())["in_flight"] == 2
        # the two steps in flight, each with its value, and the one that waits to be taken
        assert (len(a.data) <= 2 * 2 + 1, len(s.tasks) == tasks, answer.done()) == (True, True, False)
        assert [(await anext(values))[0] for _ in range(8)] == list(range(8))
        assert sum(await answer) == 8
        assert await asked(made[0], "close") == "closed"
    await flow.close()
    await nothing_left(s, a)
