"""A protected program whose worker processes are killed, neighbours and all at once, and then its cluster.

``python killed_program.py STORE SEED`` prints, as JSON, what came out of it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import Future

import dask

import dask_hpc
from dask_hpc.demo.heat import Heat

HEAT = Heat(64, 16)
#: Neighbours, and all.
VICTIMS = ((1, 2), (0, 1), (2, 3), (0, 1, 2, 3))
KILLS = 3
SETTINGS = {
    "hpc.checkpoint.every": "1 s",
    "hpc.tick": "100 ms",
    # it is not the tasks that kill: chance may have one on each of four workers that are killed
    "distributed.scheduler.allowed-failures": 100,
}


def slow_step(block, before, after):
    """A step that takes a moment."""
    time.sleep(0.03)
    return HEAT.step(block, before, after)


def program_of(job, steps):
    """The program of a job."""
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


def killed(cluster, client, chance):
    """The program is run while processes are killed at moments that are drawn."""
    rt = dask_hpc.install(client, "fcfs")
    with rt.job("heat", nodes=4, min_nodes=1, max_nodes=4, protect=True) as job:
        program = program_of(job, lambda program: not program.data.get("stop"))
        running = run_beside(program)
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 3))
            for number in chance.choice(VICTIMS):
                if (pid := cluster.workers[number].pid) is not None:
                    os.kill(pid, signal.SIGKILL)
        goal, deadline_s = program.step + 10, time.monotonic() + 90
        while program.step < goal and not running.done() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        program.data["stop"] = True
        running.result(60)
        right = program.field().identical(HEAT.undisturbed(program.step))
        return {"goal": goal, "step": program.step, "right": right, "commits": program.commits}


def resumed(client, last):
    """Another job, on another cluster, goes on."""
    rt = dask_hpc.install(client, "fcfs")
    with rt.job("heat", nodes=2, protect=True) as job:
        program = program_of(job, lambda program: program.step < last + 3)
        program.run(resume=True)
        right = program.field().identical(HEAT.undisturbed(last + 3))
        return {"right": right, "commits": program.commits}


def main(store, seed):
    """Both, and what came out."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0"}
    with dask.config.set(SETTINGS | {"hpc.checkpoint.store": store}):
        with dask_hpc.LocalCluster(n_workers=4, **options) as cluster, cluster.get_client() as client:
            first = killed(cluster, client, random.Random(seed))
        with dask_hpc.LocalCluster(n_workers=2, **options) as cluster, cluster.get_client() as client:
            second = resumed(client, first["step"])
    print(json.dumps({"killed": first, "resumed": second}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
