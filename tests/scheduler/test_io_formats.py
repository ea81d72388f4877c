"""What the libraries of HDF5 and NetCDF4 write and read in tasks is counted for the job that asks."""

from __future__ import annotations

import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from helpers import live, within

import dask_hpc

VALUES = np.random.default_rng(3).random((256, 128))
#: Beside the values there are headers, which are written again when the file is closed.
HEADERS = 64 * 1024
#: Each task waits for so long as for a disk. Without, one of less than a millisecond may be said to have only
#: computed: the kernel tells what a thread computes and what it does in the system apart by its ticks.
WAITS_S = 0.02


def waiting(function, *args):
    """Call a function on a file that is slow."""
    time.sleep(WAITS_S)
    return function(*args)


def hdf5(path):
    with h5py.File(path, "w") as file:
        file["t"] = VALUES


def read_hdf5(path):
    with h5py.File(path) as file:
        return float(file["t"][:].sum())


def netcdf(path, engine):
    xr.Dataset({"t": (("y", "x"), VALUES)}).to_netcdf(path, engine=engine)


def read_netcdf(path, engine):
    with xr.open_dataset(path, engine=engine) as dataset:
        return float(dataset["t"].values.sum())


async def told(rt, worker, job):
    """What is known of a job once the worker has told what it has measured."""
    await worker.heartbeat()
    return next(row for row in (await rt.io())["jobs"] if row["id"] == job.id)


@pytest.mark.parametrize(
    ("write", "read", "more", "times"),
    [
        (hdf5, read_hdf5, (), 1),
        (netcdf, read_netcdf, ("h5netcdf",), 1),
        # this library reads the file once more as it opens it: `strace` says so, too
        (netcdf, read_netcdf, ("netcdf4",), 2),
    ],
    ids=["hdf5", "h5netcdf", "netcdf4"],
)
def test_bytes_of_a_format_are_those_of_its_file(write, read, more, times):
    @live(1, clean_kwargs={"threads": False})
    async def run(c, s, a):
        folder = Path(a.local_directory)
        rt = await dask_hpc.install(c, policy="fcfs")
        # what is loaded the first time, such as libraries, is not the data
        await within(c.submit(write, folder / "0", *more))
        await within(c.submit(read, folder / "0", *more))
        async with rt.job("asks", nodes=1, measure_io=True) as job:
            await within(c.submit(waiting, write, folder / "1", *more))
            wrote = await told(rt, a, job)
            assert (wrote["read_bytes"] <= HEADERS, wrote["quality"]) == (True, "counted")
            assert VALUES.nbytes <= wrote["write_bytes"] <= (folder / "1").stat().st_size + HEADERS
            total = await within(c.submit(waiting, read, folder / "1", *more))
            found = await told(rt, a, job)
        assert total == pytest.approx(VALUES.sum())
        assert found["write_bytes"] == wrote["write_bytes"]
        read_bytes = found["read_bytes"] - wrote["read_bytes"]
        assert VALUES.nbytes <= read_bytes <= times * VALUES.nbytes + HEADERS
        assert 2 * WAITS_S <= found["io_s"] <= found["task_s"]

    run()
