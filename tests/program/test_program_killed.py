"""A protected program whose worker processes are killed, neighbours and all at once, and then its cluster."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import Future

import dask
import pytest

import dask_hpc
from dask_hpc.demo.heat import Heat

HEAT = Heat(64, 16)
#: Neighbours, and all.
VICTIMS = ((1, 2), (0, 1), (2, 3), (0, 1, 2, 3))
SETTINGS = {
    "hpc.checkpoint.every": "1 s",
    "hpc.tick": "100 ms",
    # processes that were killed are missed at once
    "distributed.comm.timeouts.connect": "5 s",
}


def slow_step(block, before, after):
    time.sleep(0.03)
    return HEAT.step(block, before, after)


def program_of(job, steps):
    return job.program(HEAT.rows, "y").init(HEAT.start).elastic(slow_step, steps, halo=1, keep=5)


def run_beside(program):
    """The program runs in a thread; what has become of it."""
    future = Future()

    def run():
        try:
            future.set_result(program.run())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.errors("no new version|lose scattered data|Worker process still alive|Compute Failed", maybe=True)
def test_killed_processes_cost_steps_and_no_state_and_the_next_job_goes_on(tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with dask.config.set(SETTINGS | {"hpc.checkpoint.store": str(tmp_path)}):
        with (
            dask_hpc.LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0") as cluster,
            cluster.get_client() as client,
        ):
            rt = dask_hpc.install(client, "fcfs")
            with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4, protect=True) as job:
                program = program_of(job, lambda program: not program.data.get("stop"))
                running = run_beside(program)
                for _ in range(3):
                    time.sleep(chance.uniform(0.5, 3))  # the moment is what is drawn
                    for number in chance.choice(VICTIMS):
                        nanny = cluster.workers[number]
                        if nanny.pid is not None:
                            os.kill(nanny.pid, signal.SIGKILL)
                goal = program.step + 10
                deadline_s = time.monotonic() + 90
                while program.step < goal and not running.done() and time.monotonic() < deadline_s:
                    time.sleep(0.05)
                program.data["stop"] = True
                running.result(90)
                assert program.step >= goal
                assert program.field().identical(HEAT.undisturbed(program.step))
                last = program.step
        with (
            dask_hpc.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
            cluster.get_client() as client,
        ):
            rt = dask_hpc.install(client, "fcfs")
            with rt.job("heat", nodes=2, protect=True) as job:
                again = program_of(job, lambda program: program.step < last + 3)
                again.run(resume=True)
                assert again.commits[0]["state"] == "restored"
                assert again.field().identical(HEAT.undisturbed(last + 3))
