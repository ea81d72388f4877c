"""A night's script that may be killed and run again: ``python killed_night.py STORE NOTES``.

It prints the sum of its results, and how many of them were read; each task notes that it runs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import dask
from distributed import Client

import dask_hpc

#: Results, and seconds that each takes.
COUNT, TASK_S = 30, 0.4


def simulate(number: int, notes: str) -> int:
    """A result, noted."""
    with Path(notes).open("a") as file:
        file.write(f"{number}\n")
    time.sleep(TASK_S)
    return number**2


def main(store: str, notes: str) -> None:
    """One run."""
    with (
        dask.config.set({"hpc.checkpoint.store": store, "hpc.checkpoint.every": "1 s"}),
        dask_hpc.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        rt = dask_hpc.install(client)
        with rt.job("night", protect=True, resume=True):
            found = client.gather(client.map(simulate, range(COUNT), notes=notes))
        restored = rt.status().get("checkpoints", {}).get("restored_results", 0)
        sys.stdout.write(f"{sum(found)} {restored}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
