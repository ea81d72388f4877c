"""What versions of a program's state cost the program: its run time beside a run that writes none.

The synthetic application of John (2024, section 8.2.3): a state on the workers, steps of a fixed length, and
a version of all of it every so often, written while the steps go on. A step waits for most of its length, as
one on an accelerator does, and touches the whole state. Protected and plain runs take turns on one cluster.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
import xarray as xr
from harness import Options, Row, main, row
from machine import SEED

import dask_hpc

WORKERS = 2
#: Length of a step, and time between two versions, in seconds.
STEP_S = 0.1
#: The most of a run's time with versions over one without, where the interval hides the transfer.
BAR = 1.05


@contextmanager
def cluster(folder: str, every_s: float) -> Iterator[Any]:
    """The runtime of worker processes whose checkpoints go to `folder`."""
    settings = {
        "hpc.checkpoint.store": folder,
        "hpc.checkpoint.every": f"{every_s:g} s",
        "hpc.tick": "100 ms",
    }
    with (
        dask.config.set(settings),
        dask_hpc.LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as made,
        made.get_client() as client,
    ):
        yield dask_hpc.install(client, policy="fcfs")


class Application:
    """A state of `rows` rows of a MiB, and what a step makes of it."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def start(self, part: Any, status: str) -> xr.DataArray:
        """The rows of a part."""
        return xr.DataArray(np.ones((part.stop - part.start, 2**17)), dims=("y", "x"))

    def step(self, block: xr.DataArray) -> xr.DataArray:
        """A step: the whole state is touched, and the rest of its length waited for."""
        end_s = time.perf_counter() + STEP_S
        found = block + 1
        time.sleep(max(0.0, end_s - time.perf_counter()))
        return found


def timed(runtime: Any, application: Application, steps: int, protect: bool | str) -> tuple[float, Any]:
    """Seconds that the steps of a run take, and its program."""
    with runtime.job("synthetic", nodes=WORKERS, protect=protect) as job:
        program = job.program(application.rows, "y").init(application.start)
        program.elastic(application.step, steps, keep=None).run(resume=False)
        took_s = next(one["duration_s"] for one in program.timings if one["kind"] == "elastic")
    job.wait(60)
    return took_s, program


def run(options: Options) -> list[Row]:
    mib = options.pick(256, 64, 8)
    steps, every_s = options.pick(200, 100, 10), options.pick(5.0, 2.5, 0.5)
    rounds = options.pick(5, 3, 1)
    application, chance = Application(mib), random.Random(SEED)
    ratios, wrote_s, counts = [], [], []
    # not /tmp: that may be memory
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder, cluster(folder, every_s) as runtime:
        timed(runtime, application, 2, False)
        for _ in range(rounds):
            took_s = {}
            for protect in chance.sample([True, False], 2):
                took_s[protect], program = timed(runtime, application, steps, protect)
                if protect:
                    whole = [one for one in program.commits if one["state"] == "complete"]
                    wrote_s += [one["writing_s"] + one["finishing_s"] for one in whole]
                    counts.append(len(whole))
            ratios.append(took_s[True] / took_s[False])
    assert all(counts), "no version was written"
    return [
        row(
            f"{mib} MiB of state, {steps} steps of {STEP_S:g} s: time with versions over without, ratio",
            ratios,
            "",
            bar=BAR,
            note=f"a version every {every_s:g} s, {statistics.median(counts):g} a run",
        ),
        row(f"{mib} MiB of state: a version", wrote_s, "s", note=f"{WORKERS} workers, beside the steps"),
    ]


if __name__ == "__main__":
    main("versions", __doc__.splitlines()[0], run)
