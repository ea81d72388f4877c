"""A cluster of two hosts whose scheduler is to be killed: `main` in a process of its own.

It has two versions of a labelled field and the results of a job in memory, says ``ready``, and stays.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
from distributed import Client, Security, wait

import dask_hpc

#: Results of the job.
COUNT = 6


def field(version: int) -> xr.DataArray:
    """What is in a version."""
    values = np.arange(4000.0).reshape(40, 100) * version
    return xr.DataArray(values, dims=("y", "x"), coords={"x": np.arange(100) / 7}, attrs={"version": version})


def simulate(number: int, notes: str) -> np.ndarray:
    """A result, noted."""
    with Path(notes).open("a") as file:
        file.write(f"{number}\n")
    return np.full(3, number)


def main(notes: str, store: str | None = None, keys: Mapping[str, Any] | None = None) -> None:
    """Write what is to be taken over; with a store, which only says where it is, no results of a job.

    `keys` are what a `Security` is made of, when it is to be encrypted.
    """
    settings = {"every": "200 ms", "linger": "60 s", "store": store}
    with (
        dask.config.set({"hpc.tick": "50 ms", "hpc.checkpoint": settings}),
        dask_hpc.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=":0",
            security=None if keys is None else Security(**keys),
            env={"DASK_HPC__NODE__HOST": "alpha"},
            pools={"more": {"n_workers": 1, "env": {"DASK_HPC__NODE__HOST": "beta"}}},
        ) as cluster,
        Client(cluster) as client,
    ):
        rt = dask_hpc.install(client)
        for version in (1, 2):
            present = field(version).chunk({"y": 10}).persist()
            rt.checkpoint(present, "field", levels=("L1", "L2"))
        with nullcontext() if store else rt.job("night", protect=True):
            if not store:
                results = client.map(simulate, range(COUNT), notes=notes)
                wait(results)
                while rt.status()["protected_jobs"][0]["written_results"] < COUNT:
                    time.sleep(0.02)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            time.sleep(600)
