"""What tasks read and write through metered stores is counted for their jobs, to the byte."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed.metrics import context_meter
from distributed.protocol.pickle import dumps, loads
from fsspec.asyn import AsyncFileSystem
from helpers import live, record, started, until, within
from zarr.storage import FsspecStore, LocalStore, MemoryStore

import dask_hpc
from dask_hpc.scheduler.io.accounts import accounts
from dask_hpc.wire import IO_METRIC, IO_SECONDS
from dask_hpc.worker import metered as module
from dask_hpc.worker.io.mounts import mount_of
from dask_hpc.worker.metered import MeteredStore, metered


def chunk_bytes(folder: Path) -> int:
    return sum(
        path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != "zarr.json"
    )


async def heard(workers) -> None:
    """Have the scheduler told of what was measured up to now."""
    await asyncio.gather(*(worker.heartbeat() for worker in workers))


def job_row(found, id):
    return next(row for row in found["jobs"] if row["id"] == id)


@live(2, clean_kwargs={"threads": False})  # Zarr keeps its own
async def test_bytes_of_each_job_are_what_its_store_holds(c, s, *workers):
    folder = Path(workers[0].local_directory)
    values = np.random.default_rng(1).random((64, 32))
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.job("writer", nodes=1) as writer:
        await started(s, writer)
        array = zarr.create_array(
            metered(folder / "a", "scratch"), shape=values.shape, chunks=(8, 8), dtype="f8"
        )
        stores = da.from_array(values, chunks=(16, 16)).store(array, lock=False, compute=False)
        await within(c.compute(stores))
    async with rt.job("reader", nodes=1) as reader:
        await started(s, reader)
        read = da.from_zarr(metered(LocalStore(folder / "a"), "scratch"))
        total = await within(c.compute(read.sum()))
    with dask.annotate(hpc_job=None):
        plain = await within(c.compute(da.from_zarr(metered(folder / "a", "scratch")).max()))
    assert (total, plain) == (pytest.approx(values.sum()), values.max())
    await heard(workers)
    found = await rt.io()
    size = chunk_bytes(folder / "a")
    assert size > 64 * 32 * 7
    wrote, reads = job_row(found, writer.id), job_row(found, reader.id)
    assert (wrote["write_bytes"], wrote["read_bytes"]) == (size, 0)
    assert (reads["write_bytes"], reads["read_bytes"]) == (0, size)
    assert found["other"]["read_bytes"] == size
    assert [(row["target"], row["read_bytes"], row["write_bytes"]) for row in found["targets"]] == [
        ("scratch", 2 * size, size)
    ]
    for row in (wrote, reads):
        assert 0 < row["io_s"] <= row["task_s"]
        assert row["intensity"] == pytest.approx(row["io_s"] / row["task_s"])
    assert record(s, writer).state == "completed"


@live(1, clean_kwargs={"threads": False})
async def test_seconds_of_operations_at_once_count_once(c, s, a):
    rt = await dask_hpc.install(c, policy="fcfs")
    store = metered(Slow(), "slow")

    def read():
        # 16 chunks of which Zarr reads ten at once
        zarr.open_array(store, mode="r")[:]

    array = zarr.create_array(store.with_read_only(False), shape=(16,), chunks=(1,), dtype="i8")
    array[:] = 1
    async with rt.job("slow", nodes=1) as job:
        held = c.submit(read, pure=False)
        await within(held)
    assert record(s, job).request.io_by_nodes == ()
    await heard([a])
    row = job_row(await rt.io(), job.id)
    assert 2 * DELAY_S <= row["io_s"] <= row["task_s"] < 16 * DELAY_S
    assert row["intensity"] > 0.5
    assert not module._busy._under_way
    assert row["quality"] == "metered"
    # tasks of one name are told apart, also while a result of the first is held
    async with rt.job("more", nodes=1) as more:
        await within(c.submit(read, pure=False))
    await heard([a])
    assert job_row(await rt.io(), more.id)["read_bytes"] == row["read_bytes"]
    del held
    # the next of its name is taken to be like it
    async with rt.job("slow", nodes=1, io_intensity=0.1) as again, rt.job("other", nodes=1) as other:
        await until(lambda: record(s, again).request.io_by_nodes, "the next one is told")
        assert record(s, again).request.io_by_nodes == ((1, pytest.approx(row["intensity"])),)
        assert record(s, other).request.io_by_nodes == ()


DELAY_S = 0.1


class Slow(MemoryStore):
    """Takes its time for each value."""

    async def get(self, *args, **kwargs):
        await asyncio.sleep(DELAY_S)
        return await super().get(*args, **kwargs)


def write_and_read(folder, number):
    """4 KiB and some more are written to a file, and read twice."""
    path = Path(folder) / str(number)
    path.write_bytes(bytes(4096 + number))
    return len(path.read_bytes()) + len(path.read_bytes())


def save(store, values):
    zarr.save_array(store, values)


def netcdf(folder, number):
    dataset = xr.Dataset({"t": ("x", np.arange(5000.0))})
    dataset.to_netcdf(Path(folder) / f"{number}.nc", engine="scipy")


@live(2, threads=2, clean_kwargs={"threads": False})
async def test_files_of_a_job_that_asks_are_counted_to_the_byte_and_nobody_elses(c, s, a, b):
    folder = a.local_directory
    rt = await dask_hpc.install(c, policy="fcfs")
    stock = [type(worker).execute for worker in (a, b)]
    # what is read the first time, such as modules, is not the data
    await within(c.gather(c.map(write_and_read, [folder] * 4, range(4), pure=False)))
    assert (await rt.io())["targets"] == []
    # tasks of one function that are there at once are in one span
    await until(lambda: not s.tasks, "they are forgotten")
    async with (
        rt.job("asks", nodes=1, measure_io=True) as asks,
        rt.job("does not", nodes=1) as does_not,
    ):
        await started(s, asks)
        await started(s, does_not)
        with dask.annotate(hpc_job=does_not.id):
            await within(c.gather(c.map(write_and_read, [folder] * 8, range(8), pure=False)))
        await until(lambda: not s.tasks, "they are forgotten")
        with dask.annotate(hpc_job=asks.id):
            await within(c.gather(c.map(write_and_read, [folder] * 8, range(8), pure=False)))
            await heard([a, b])
            await heard([a, b])
            found = await rt.io()
            size = sum(4096 + number for number in range(8))
            row = job_row(found, asks.id)
            assert (row["write_bytes"], row["read_bytes"], row["quality"]) == (size, 2 * size, "counted")
            assert 0 < row["io_s"] <= row["task_s"]
            kind, target = mount_of(Path(folder))
            assert [(each["kind"], each["target"], each["write_bytes"]) for each in found["targets"]] == [
                (kind, target, size)
            ]
            assert does_not.id not in [each["id"] for each in found["jobs"]]
            await within(c.submit(netcdf, folder, 1, pure=False))
            await heard([a, b])
            wrote = job_row(await rt.io(), asks.id)["write_bytes"] - size
            # NetCDF writes the number of records once more at the end
            assert 0 <= wrote - (Path(folder) / "1.nc").stat().st_size <= 64
    await until(lambda: "execute" not in vars(a) | vars(b), "workers are as in stock again")
    assert [worker.execute.__func__ for worker in (a, b)] == stock


@live(1, clean_kwargs={"threads": False})
async def test_what_other_threads_move_is_told_as_an_estimate(c, s, a):
    folder = Path(a.local_directory)
    rt = await dask_hpc.install(c, policy="fcfs")
    values = np.random.default_rng(2).random(100_000)

    def write(number):
        zarr.save_array(folder / f"z{number}", values)  # not metered: Zarr writes on threads of its own

    await within(c.submit(write, 0))
    async with rt.job("zarr", nodes=1, measure_io=True) as job:
        await within(c.gather(c.map(write, range(1, 4))))
        await heard([a])
        await heard([a])
        row = job_row(await rt.io(), job.id)
        size = 3 * chunk_bytes(folder / "z1")
        assert size * 0.99 < row["write_bytes"] < 1.2 * size
        assert (row["quality"], row["io_s"] > 0) == ("estimated", True)
    # what is metered is known already
    async with rt.job("metered", nodes=1, measure_io=True) as job:
        await within(c.submit(save, metered(folder / "m", "mine"), values))
        await heard([a])
        await heard([a])
    row = job_row(await rt.io(), job.id)
    size = sum(path.stat().st_size for path in (folder / "m").rglob("*") if path.is_file())
    assert (row["write_bytes"], row["quality"]) == (size, "metered")


@live(4, config={"hpc.tick": "50 ms"}, clean_kwargs={"threads": False})
async def test_sizes_that_have_not_been_are_told_by_the_law_of_those_that_have(c, s, *workers):
    rt = await dask_hpc.install(c, policy="fcfs")
    folder = Path(workers[0].local_directory)
    for nodes in (1, 2, 4):
        async with rt.job("scan", nodes=nodes, measure_io=True) as job:
            await started(s, job)
            await within(c.gather(c.map(write_and_read, [folder] * 8, range(8), pure=False)))
        await within(job.wait())
    known = await until_async(lambda: sizes_of_law(rt), "all three are heard of")
    assert known == [1, 2, 4]
    async with rt.job("scan", min_nodes=1, max_nodes=4) as again:
        shares = await until(lambda: record(s, again).request.io_by_nodes, "it is told")
    assert [nodes for nodes, _ in shares] == [1, 2, 3, 4]
    assert all(0 < share <= 1 for _, share in shares)
    assert dict((await rt.snapshot()).sections.get("io", {})) == {}


async def sizes_of_law(rt):
    laws = [row["law"] for row in (await rt.io())["jobs"] if row["law"] is not None]
    return bool(laws) and len(laws[0]["io_s"]["sizes"]) == 3 and laws[0]["io_s"]["sizes"]


async def until_async(condition, what):
    deadline = asyncio.get_running_loop().time() + 40
    while not (found := await condition()):
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.02)
    return found


def test_a_dataset_of_xarray_goes_through_it_and_comes_back(tmp_path):
    dataset = xr.Dataset({"t": ("x", np.arange(10.0))}, coords={"x": np.arange(10)})
    dataset.to_zarr(metered(tmp_path / "d"), mode="w", consolidated=False)
    again = xr.open_zarr(metered(tmp_path / "d"), consolidated=False).load()
    xr.testing.assert_identical(again, dataset)
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "d", consolidated=False).load(), dataset)


class Web(AsyncFileSystem):
    """As fsspec's own, which needs aiohttp."""

    protocol = "http", "https"


def test_stores_of_fsspec_are_counted_by_where_they_are(tmp_path):
    folder, on = tmp_path / "a", {"auto_mkdir": True}
    values = np.random.default_rng(2).random((8, 6))
    files = metered(FsspecStore.from_url(f"file://{folder}", storage_options=on))
    url, mapper = metered("memory://bucket/url"), metered(fsspec.get_mapper("memory://bucket/mapper"))
    assert (files.kind, files.target) == mount_of(folder) == (metered(f"file://{folder}").kind, files.target)
    assert [(one.kind, one.target) for one in (url, mapper)] == [("store", "memory://bucket")] * 2
    # of a web server the path is the whole URL
    assert metered(FsspecStore(Web(asynchronous=True), path="https://host.example/a/b")).target == "https://host.example"
    for store in (files, url, mapper):
        moved = Counter()
        with context_meter.add_callback(lambda name, value, unit, moved=moved: moved.update({name: value})):
            zarr.create_array(loads(dumps(store)), shape=(8, 6), chunks=(4, 6), dtype="f8")[:] = values
            assert (zarr.open_array(store)[:] == values).all()
        there = store.fs.sync_fs.du(store.path)
        assert moved[f"{IO_METRIC} write {store.kind} {store.target}"] == there
        assert moved[f"{IO_METRIC} read {store.kind} {store.target}"] >= there


def test_it_has_what_only_its_store_has():
    class Versioned(MemoryStore):
        """As icechunk's, whose session is taken from the store of an array."""

        session = "a session"

    assert loads(dumps(metered(Versioned(), "t"))).session == "a session"
    assert not hasattr(metered(MemoryStore()), "session")


def test_sizes_are_asked_of_the_store_and_read_nothing(tmp_path):
    class Counted(LocalStore):
        supports_consolidated_metadata = False
        reads = 0

        async def get(self, *args, **more):
            self.reads += 1
            return await super().get(*args, **more)

    store = Counted(tmp_path)
    array = zarr.create_array(metered(store), shape=(64,), chunks=(8,), dtype="f8")
    array[:] = np.random.default_rng(0).random(64)
    store.reads = 0
    assert array.nbytes_stored() >= chunk_bytes(tmp_path) > asyncio.run(metered(store).getsize("c/0")) > 0
    assert (store.reads, metered(store).supports_consolidated_metadata) == (0, False)


def test_listing_and_deleting_take_seconds_too(tmp_path):
    class Slow(LocalStore):
        async def list_dir(self, prefix):
            async for name in super().list_dir(prefix):
                await asyncio.sleep(0.01)
                yield name

        async def delete_dir(self, prefix):
            await asyncio.sleep(0.01)
            await super().delete_dir(prefix)

    store, took = metered(Slow(tmp_path), "t"), Counter()
    group = zarr.create_group(store)
    for name in ("a", "b"):
        group.create_group(name)
    with context_meter.add_callback(lambda name, value, unit: took.update({(name, unit): value})):
        assert sorted(group.group_keys()) == ["a", "b"]
        listed_s = took[IO_SECONDS, "seconds"]
        del group["a"]
    assert listed_s >= 0.03  # with its own document
    assert took[IO_SECONDS, "seconds"] >= listed_s + 0.01
    assert list(group.group_keys()) == ["b"]


def test_it_travels_and_is_equal_to_its_like(tmp_path):
    store = metered(tmp_path, "scratch")
    again = loads(dumps(store))
    assert isinstance(again, MeteredStore)
    assert (again, again.target, again.kind) == (store, "scratch", store.kind)
    assert store.with_read_only(True).target == "scratch"
    assert metered(store, "other").target == "other"
    # who wraps it once more, and says nothing, changes nothing
    assert metered(store).target == "scratch"
    assert metered(store, "other")._store is store._store
    assert metered(store, "other") != store


@pytest.mark.parametrize(
    ("store", "target", "error", "text"),
    [
        (5, None, TypeError, "allowed: a Zarr store"),
        (MemoryStore(), 5, TypeError, "allowed: text"),
        (MemoryStore(), " ", ValueError, "allowed: any text"),
        (MemoryStore(), "a\udcffb", ValueError, "allowed: any text that UTF-8 can say"),
    ],
)
def test_what_cannot_be_metered_is_refused_with_what_can(store, target, error, text):
    with pytest.raises(error, match=text):
        metered(store, target)


def test_the_mount_of_a_folder_names_its_file_system(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "overlay / overlay rw 0 0\n"
        "node1:/fs /scratch lustre rw 0 0\n"
        "tmpfs /scratch/fast tmpfs rw 0 0\n"
        "fs2:/all /all/of\\040us nfs4 rw 0 0\n"
        "fs3:/ /all beegfs rw 0 0\n"
        "odd line\n"
    )
    assert mount_of(Path("/scratch/run/1"), mounts) == ("lustre", "/scratch")
    assert mount_of(Path("/scratch/fast"), mounts) == ("local", "/scratch/fast")
    assert mount_of(Path("/scratches"), mounts) == ("local", "/")
    assert mount_of(Path("/all/of us/me"), mounts) == ("nfs", "/all/of us")
    assert mount_of(Path("/x"), tmp_path / "absent") == ("local", "/")


def test_accounts_keep_targets_spans_and_tasks_apart_and_take_nothing_else():
    found = accounts(
        [
            ("a", "read", "io read lustre /my scratch", "bytes", 10.0),
            ("a", "look", "io read lustre /my scratch", "bytes", 5.0),
            ("b", "write", "io write lustre /my scratch", "bytes", 7.0),
            ("b", "write", "io busy lustre /my scratch", "s", 0.5),
            ("b", "write", "io busy nfs /home", "s", 0.25),
            ("b", "write", "io all", "seconds", 0.6),  # both at once for a while
            ("b", "write", "thread-cpu", "seconds", 1.4),
            ("c", "rest", "io ~write local /", "bytes", 3.0),
            ("c", "rest", "io ~busy local /", "s", 0.5),
            ("c", "rest", "io ~all", "s", 1.0),
            ("b", "write", "io of somebody", "bytes", 9.0),
            ("d", "both", "io ~busy local /", "s", 0.5),
            ("d", "both", "io read nfs /home", "bytes", 1.0),
            ("e", "rest", "thread-cpu", "seconds", 2.0),
        ]
    )
    targets = found.targets()
    row = targets["lustre", "/my scratch"]
    assert (row.read_bytes, row.write_bytes, row.busy_s, row.quality) == (15, 7, 0.5, "metered")
    spans = found.spans()
    assert spans["a"][0].read_bytes == 15
    assert found.work["a", "look"].targets["lustre", "/my scratch"].nbytes == 5
    assert (spans["b"][0].busy_s, spans["b"][1]) == (0.6, 2.0)
    assert (spans["c"][0].quality, spans["c"][0].busy_s) == ("estimated", 1.0)
    assert (spans["d"][0].quality, set(spans)) == ("counted", set("abcd"))  # as good as the worst of it
