"""Checkpoints on a file system: time to write and read, beside np.save, to_zarr and zarr's reader.

Everything is durable when its time ends: np.save with fsync, a file a block; to_zarr without compression, its
files synced afterwards. All have the same threads, and take turns in each round. Files are read after the
page cache was told to let them go. The disk alone takes as many bytes from aligned memory, without files or
checksums: nobody is faster, and a bar beyond that cannot be met on it. The bars are for what a worker does;
beside it `Runtime.checkpoint` has a worker process with as many threads do so, and HDF5 (h5py) and Orbax are
told of where they are installed, their files synced afterwards.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import mmap
import os
import random
import shutil
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import xarray as xr
from distributed import wait
from harness import Options, Row, main, row, timed
from machine import SEED

import dask_hpc
from dask_hpc.checkpoint.blocks import stored_value, write_blocks
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.direct import BUFFER
from dask_hpc.checkpoint.plan import Plan, Written
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.versions import Version

THREADS = 4
#: Bytes of the blocks that a call of a writer gets.
BATCH = 16 * 2**20
#: What is measured on a cluster.
LIVE = "rt.checkpoint"
#: The most of our time over the other's: 1.2 and 3 times as fast as np.save, twice as fast as to_zarr and as
#: zarr's reader.
BARS = {"np.save": {64: 1 / 1.2, 1: 1 / 3}, "to_zarr": {64: 1 / 2, 1: 1 / 2}, "read": {64: 1 / 2, 1: 1 / 2}}


class Field:
    """Blocks in memory, and every way to write and read them."""

    def __init__(self, folder: Path, total: int, block: int) -> None:
        self.folder = folder
        items = block // 8
        memory = np.random.default_rng(SEED).random(total // 8)
        self.blocks = [memory[at : at + items] for at in range(0, len(memory), items)]
        self.bytes = memory.nbytes
        #: The same memory as a collection.
        self.array = da.from_array(memory, chunks=items, name="field", inline_array=True)
        self.dataset = xr.Dataset({"data": ("x", self.array)})
        self.plan, _ = describe(self.dataset, "field")
        #: As much memory at an aligned place.
        self.aligned = memoryview(mmap.mmap(-1, self.bytes))
        self.aligned[:] = memoryview(memory).cast("B")
        self.pool = ThreadPoolExecutor(THREADS)
        self.version: Version | None = None

    def ours(self) -> None:
        """Draft, blocks, index, manifest, name."""
        plan: Plan = self.plan
        draft = Store(self.folder / "store").begin(plan)
        a_call = max(1, BATCH // self.blocks[0].nbytes)
        batches = [range(at, min(at + a_call, plan.count)) for at in range(0, plan.count, a_call)]

        def write(batch: range) -> list[Written | str]:
            return write_blocks(draft.path, plan.arrays[0], batch, [self.blocks[n] for n in batch])

        known: dict[int, Written] = {}
        for batch, answers in zip(batches, self.pool.map(write, batches), strict=True):
            for number, answer in zip(batch, answers, strict=True):
                assert isinstance(answer, Written), answer
                known[number] = answer
        self.version = draft.finish(known)

    def disk(self) -> None:
        """The same bytes from aligned memory to reserved space past the page cache: what the disk takes."""
        path = self.folder / "disk"
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.bytes)

        def write(first: int) -> None:
            descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT)
            for at in range(first, min(first + BATCH, self.bytes), BUFFER):
                os.pwrite(descriptor, self.aligned[at : at + BUFFER], at)
            os.fdatasync(descriptor)
            os.close(descriptor)

        list(self.pool.map(write, range(0, self.bytes, BATCH)))

    def np_save(self) -> None:
        """A file a block, each synced."""
        (self.folder / "npy").mkdir()

        def save(number: int) -> None:
            with open(self.folder / "npy" / f"{number}.npy", "wb") as file:
                np.save(file, self.blocks[number])
                file.flush()
                os.fsync(file.fileno())

        list(self.pool.map(save, range(len(self.blocks))))

    def to_zarr(self) -> None:
        """xarray's own, without compression, then synced."""
        with dask.config.set(scheduler="threads", pool=self.pool), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.dataset.to_zarr(
                self.folder / "zarr", encoding={"data": {"compressors": None}}, consolidated=False
            )
        self._sync(self.folder / "zarr")

    def h5py(self) -> None:
        """A data set of HDF5, whose library takes one thread at a time."""
        import h5py

        with h5py.File(self.folder / "field.h5", "w") as file:
            made = file.create_dataset("data", shape=(self.bytes // 8,), dtype="f8")

            def write(number: int) -> None:
                at = number * len(self.blocks[0])
                made[at : at + len(self.blocks[number])] = self.blocks[number]

            list(self.pool.map(write, range(len(self.blocks))))
        self._sync(self.folder / "field.h5")

    def orbax(self) -> None:
        """A tree of arrays, one a block."""
        orbax = importlib.import_module("orbax.checkpoint")
        tree = {f"block-{number}": block for number, block in enumerate(self.blocks)}
        with orbax.PyTreeCheckpointer() as writer:
            writer.save(self.folder.absolute() / "orbax", tree)
        self._sync(self.folder / "orbax")

    def _sync(self, written: Path) -> None:
        """Have a file, or all of a folder, on disk."""

        def sync(path: Path) -> None:
            with open(path, "rb") as file:
                os.fsync(file.fileno())

        list(self.pool.map(sync, [path for path in (written, *written.rglob("*")) if path.is_file()]))

    def read_ours(self) -> None:
        """Every block, checked, in memory of its own."""
        assert self.version is not None
        found, path = self.version.manifest(), self.version.path

        def read(number: int) -> int:
            return len(stored_value(path, self.plan.arrays[0], number, found.written(number))())

        assert sum(self.pool.map(read, range(self.plan.count))) * 8 == self.bytes

    def read_zarr(self) -> None:
        """The same files by xarray and zarr."""
        assert self.version is not None
        assert xr.open_zarr(self.version.path, chunks=None).load().data.nbytes == self.bytes

    def clear(self) -> None:
        """Remove what was written, and have it gone before the next one is timed."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        os.sync()


def cold(folder: Path) -> None:
    """Take files out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def live(folder: Path, total: int, block: int) -> Iterator[Callable[[], None]]:
    """As much in the memory of a worker process; gives what has a version of it written."""
    cluster = dask_hpc.LocalCluster(
        n_workers=1, threads_per_worker=THREADS, memory_limit=0, dashboard_address=":0"
    )
    with cluster, cluster.get_client() as client:
        runtime = dask_hpc.install(client, policy="fcfs")
        field = da.random.default_rng(SEED).random(total // 8, chunks=block // 8).persist()
        wait(field)
        yield lambda: runtime.checkpoint(field, "live", store=folder / "live")


def measure(folder: Path, total: int, block: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round, one a round."""
    field = Field(folder, total, block)
    writers = {
        "ours": field.ours,
        "np.save": field.np_save,
        "to_zarr": field.to_zarr,
        "the disk": field.disk,
    }
    for module, writer in (("h5py", field.h5py), ("orbax", field.orbax)):
        if importlib.util.find_spec(module) is not None:
            writers[module] = writer
        else:
            print(f"not installed: {module}; its rows are left out", file=sys.stderr)
    readers = {"read, ours": field.read_ours, "read, zarr": field.read_zarr}
    took_s: dict[str, list[float]] = {name: [] for name in (*writers, LIVE, *readers)}
    chance = random.Random(SEED)
    with live(folder, total, block) as write_live:
        writers[LIVE] = write_live
        for _ in range(rounds):
            for name in chance.sample(list(writers), len(writers)):
                took_s[name].append(timed(writers[name]))
                if name == "ours":
                    for reader in chance.sample(list(readers), len(readers)):
                        cold(folder)
                        took_s[reader].append(timed(readers[reader]))
                field.clear()
    field.pool.shutdown()
    return took_s


def rows_of(took_s: dict[str, list[float]], size: int, mib: int) -> Iterator[Row]:
    """Speeds, and our time over the others', round by round."""
    for name, samples in took_s.items():
        speeds = [size / 1e9 / s for s in samples]
        note = f"least {min(speeds):.2f}, most {max(speeds):.2f}"
        yield row(f"{mib} MiB blocks, {name}", speeds, "GB/s", note=note)
    pairs = {
        "np.save": ("ours", "np.save"),
        "to_zarr": ("ours", "to_zarr"),
        "read": ("read, ours", "read, zarr"),
    }
    yield row(
        f"{mib} MiB blocks, write: {LIVE} over ours, ratio",
        [mine / theirs for mine, theirs in zip(took_s[LIVE], took_s["ours"], strict=True)],
        "",
        note="with all that scheduler and worker say to each other",
    )
    for name, (ours, other) in pairs.items():
        ratios = [mine / theirs for mine, theirs in zip(took_s[ours], took_s[other], strict=True)]
        what = "read: our time over open_zarr().load()" if name == "read" else f"write: our time over {name}"
        note = f"{1 / statistics.median(ratios):.2f} times as fast"
        yield row(f"{mib} MiB blocks, {what}, ratio", ratios, "", bar=BARS[name][mib], note=note)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", help="where to write; without it, the working directory")


def run(options: Options) -> list[Row]:
    total = options.pick(2 * 2**30, 2**29, 2**27)
    rounds = options.pick(7, 3, 1)
    rows: list[Row] = []
    # not /tmp: that may be memory
    with tempfile.TemporaryDirectory(dir=getattr(options.given, "folder", None) or os.getcwd()) as folder:
        for mib in (64, 1):
            took_s = measure(Path(folder), total, mib * 2**20, rounds)
            rows += rows_of(took_s, total, mib)
    return rows


if __name__ == "__main__":
    main("checkpoint", __doc__.splitlines()[0], run, arguments)
