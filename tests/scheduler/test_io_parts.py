"""What counts reads and writes, by its parts: where files are, what is written, what is remembered."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import wait
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import zarr
from distributed.metrics import context_meter
from distributed.threadpoolexecutor import ThreadPoolExecutor
from distributed.utils import run_in_executor_with_context
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, LoggingStore, MemoryStore, WrapperStore, ZipStore

from dask_hpc.scheduler.internals.span_metrics import executed
from dask_hpc.scheduler.io.learned import Learned, Run
from dask_hpc.wire import COUNTED_SPAN, IO_ESTIMATED, IO_METRIC, IO_SECONDS
from dask_hpc.worker.io import counters, mounts
from dask_hpc.worker.io.mounts import mount_of
from dask_hpc.worker.io.rest import through_files
from dask_hpc.worker.io.tasks import Counting
from dask_hpc.worker.metered import metered
from dask_hpc_policies.model import JobRequest


def test_bytes_are_of_the_latest_file_that_was_opened_for_them(monkeypatch):
    monkeypatch.setattr(counters, "mount_of_file", lambda path: None if path == "/dev/null" else (path, "/"))
    monkeypatch.setattr(counters, "mount_of_open_files", lambda: counters.UNKNOWN)
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    opened = [("/in", None, os.O_RDONLY), ("/out", None, new), ("/dev/null", None, os.O_RDWR)]
    both = [("/both", None, os.O_RDWR), *opened]

    def places(opened):
        return [counters._place(opened, writing=writing)[0] for writing in (False, True)]

    assert (places(opened), places(opened[::-1])) == (["/in", "/out"], ["/in", "/out"])
    assert (places(both[:1]), places([])) == (["/both", "/both"], ["unknown", "unknown"])


def test_files_in_the_memory_of_the_host_are_of_its_mount_and_devices_of_none():
    assert mounts.mount_of_file("/dev/shm/scratch/a") == mount_of(Path("/dev/shm/scratch"))
    assert [mounts.mount_of_file(f"/dev/{one}") for one in ("null", "pts/0")] == [None, None]


def test_a_task_that_is_done_does_not_hang_with_a_mount_that_begins_to(monkeypatch):
    answers, found, asked = threading.Event(), mounts.mount_of, []

    def hangs(folder):
        asked.append(folder.name)
        answers.wait(30)
        return found(folder)

    monkeypatch.setattr(mounts, "mount_of", hangs)
    monkeypatch.setattr(mounts, "_SOON_S", 0.05)
    began_s = time.monotonic()
    # nor is it asked again and again: each question that has no answer keeps a thread
    for folder in ("a", "a", "b", "c"):
        assert mounts.mount_of_file(f"/dev/shm/{folder}/file") == mounts.UNKNOWN
    assert time.monotonic() - began_s < 20
    assert asked == ["a", "b"]
    answers.set()
    wait(mounts._asked.values())
    monkeypatch.undo()
    assert mounts.mount_of_file("/dev/shm/c/file") == mount_of(Path("/dev/shm/c"))


def test_where_a_process_writes_what_it_says_is_not_where_its_data_is(monkeypatch, tmp_path):
    # as a worker of a batch job has them: what it says goes home, what HDF5 has opened is on scratch, where
    # somebody has a folder open and a file that was removed, and a third place has a lock on its folder
    home, scratch, other = 30, 31, 32
    opened = [
        ("/own/in", home, 0), ("/own/job.out", home, 1), ("/own/job.err", home, 1),
        ("/my scratch/a.h5", scratch, 0o100000), ("/other", other, os.O_DIRECTORY),
        ("/other/gone (deleted)", other, 0), ("/dev/null", 24, 2), ("socket:[7]", 9, 2),
        ("/proc/7/io", 22, 0),
    ]  # fmt: skip
    files, said, numbered = tmp_path / "fd", tmp_path / "fdinfo", tmp_path / "mountinfo"
    files.mkdir()
    said.mkdir()
    for number, (path, mount, flags) in enumerate(opened):
        (files / str(number)).symlink_to(path)
        (said / str(number)).write_text(f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t{mount}\nino:\t3\n")
    numbered.write_text(
        "30 1 0:2 / /own rw - nfs4 server:/own rw\n"
        "31 1 0:3 / /my\\040scratch rw,noatime shared:1 master:2 - lustre 10.0.0.1@o2ib:/scratch rw\n"
        "32 1 8:1 / /other rw - ext4 /dev/sda1 rw\n"
        "24 1 0:6 / /dev rw - devtmpfs devtmpfs rw\n"
        "22 1 0:21 / /proc rw - proc proc rw\n"
    )
    for name, path in (("_OPEN_FILES", str(files)), ("_SAID", str(said)), ("_NUMBERED", numbered)):
        monkeypatch.setattr(mounts, name, path)
    monkeypatch.setattr(mounts, "_looked", (-mounts._LOOK_AGAIN_S, mounts.UNKNOWN))
    assert mounts.mount_of_open_files() == ("lustre", "/my scratch")

    def tells_less(number):
        (said / str(number)).write_text("flags:\t0100000\n")

    # as a container may
    for less in (numbered.unlink, lambda: [tells_less(number) for number in range(len(opened))]):
        less()
        monkeypatch.setattr(mounts, "_looked", (-mounts._LOOK_AGAIN_S, mounts.UNKNOWN))
        assert mounts.mount_of_open_files() == mounts.UNKNOWN


def test_where_files_are_that_a_library_has_opened_is_seen_without_asking_their_file_system(tmp_path):
    # a mount that hangs would keep whoever asks it, the worker's loop, waiting
    program = """
import os, sys
from dask_hpc.worker.io import mounts
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
asked = []
def heard(event, arguments):
    if event in ("open", "os.stat", "os.lstat", "os.scandir") and not str(arguments[0]).startswith("/proc/"):
        asked.append((event, arguments[0]))
sys.addaudithook(heard)
stat, lstat = os.stat, os.lstat
os.stat = lambda *args, **more: asked.append(args) or stat(*args, **more)
os.lstat = lambda *args, **more: asked.append(args) or lstat(*args, **more)
found = mounts.mount_of_open_files()
assert not asked, asked
print(*found, mounts.mount_of_file(sys.argv[1]) == found)
"""
    for folder in (tmp_path, Path("/dev/shm")):
        path = folder / f"hpc-test-{os.getpid()}"
        try:
            ran = subprocess.run(
                [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60
            )
        finally:
            path.unlink(missing_ok=True)
        assert ran.stdout.split() == [*mount_of(folder), "True"], ran.stderr


def test_only_the_latest_files_of_a_task_are_remembered():
    def many():
        for _ in range(100):
            with open(os.devnull):
                pass
        return len(counters._here.opened)

    counters.listen()
    assert counters.counted(many, counters.Moved()) == counters._MOST_FILES


def test_what_is_written_to_a_file_is_of_its_mount_whatever_kind_of_store_writes_it(tmp_path):
    stores = [
        ZipStore(tmp_path / "a.zip", mode="w"),
        LoggingStore(LocalStore(tmp_path / "b"), log_level="ERROR"),
        LoggingStore(ZipStore(tmp_path / "c.zip", mode="w"), log_level="ERROR"),
    ]
    for store in map(metered, stores):
        moved, before = Counter(), through_files.write
        with context_meter.add_callback(lambda name, number, unit, moved=moved: moved.update({name: number})):
            zarr.save_array(store, np.ones(1000))
        store.close()
        kind, place = mount_of(tmp_path)
        # what is known is not counted once more as what the process's other threads move
        assert through_files.write - before == moved[f"{IO_METRIC} write {kind} {place}"] > 0


def test_what_is_told_to_no_task_is_not_known(tmp_path):
    def save():
        # a thread of the user's knows nothing of the task that has started it
        thread = Thread(target=zarr.save_array, args=(metered(tmp_path), np.ones(1000)))
        thread.start()
        thread.join()

    before = through_files.write
    with context_meter.add_callback(lambda name, number, unit: None):
        save()
    assert through_files.write == before


def test_a_value_that_is_there_is_not_written_again():
    moved, value = Counter(), default_buffer_prototype().buffer.from_bytes(b"12345678")

    async def twice():
        for _ in range(2):
            await metered(MemoryStore(store), "t").set_if_not_exists("key", value)

    store = {}
    with context_meter.add_callback(lambda name, number, unit: moved.update({name: number})):
        asyncio.run(twice())
    assert moved[f"{IO_METRIC} write store t"] == 8


def test_what_code_measures_of_its_own_under_other_names_is_passed_over():
    told = {
        ("execute", "read", "thread-cpu", "seconds"): 2.0,
        ("execute", "read", ("mine", 1), "seconds"): 9.0,
        ("execute", "short", "seconds"): 9.0,
        ("gather-dep", "read", "network", "seconds"): 9.0,
    }
    spans = {"span": SimpleNamespace(_cumulative_worker_metrics=told)}
    found = executed(SimpleNamespace(extensions={"spans": SimpleNamespace(spans=spans)}))
    assert list(found) == [("span", "read", "thread-cpu", "seconds", 2.0)]


def test_the_latest_names_are_remembered():
    learned = Learned()
    for number in (0, 1, *range(1, 1001)):
        learned.add(str(number), 1, Run(1.0, 2.0, 100))
    names = ("0", "1", "1000")
    assert [bool(learned.shares(JobRequest(name=name))) for name in names] == [False, True, True]
    assert [learned.count(name) for name in names] == [0, 2, 1]
    assert len(learned._counts) == 1000, "what is counted goes with the name"


def test_of_a_size_the_latest_runs_count_and_those_without_io_have_no_bandwidth():
    learned = Learned()
    for io_s in [0.0] * 8 + [1.0] * 8:
        learned.add("scan", 1, Run(io_s, 2.0, 100))
        learned.add("idle", 1, Run(0.0, 2.0, 0))
    assert learned.shares(JobRequest(name="scan")) == {1: 0.5}
    learned.add("scan", 2, Run(0.5, 2.0, 100))
    assert learned.laws("scan")["bandwidth_bytes_s"]["sizes"] == [1, 2]
    assert (learned.shares(JobRequest(name="idle")), learned.laws("idle")) == ({1: 0.0}, None)


class Slow(WrapperStore):
    """A store that takes its time."""

    async def set(self, key, value):
        await asyncio.sleep(0.2)
        await super().set(key, value)


def test_seconds_that_a_metered_store_has_told_are_not_told_again_by_who_counts_the_thread(tmp_path):
    told = Counter()
    array = zarr.create_array(metered(Slow(LocalStore(tmp_path / "a"))), shape=4, chunks=4, dtype=int)

    def task():
        array[:] = 1
        (tmp_path / "seen by the thread").write_bytes(bytes(8192))

    async def execute(key, *, stimulus_id):
        threads = worker.executors[worker.state.tasks[key].annotations["executor"]]
        await run_in_executor_with_context(threads, task)

    def hear(label, amount, unit):
        told[label] += amount

    with ThreadPoolExecutor(1) as threads:
        ts = SimpleNamespace(span_id=f"a{COUNTED_SPAN}", annotations={})
        state = SimpleNamespace(tasks={"x": ts})
        worker = SimpleNamespace(execute=execute, executors={"default": threads}, state=state)
        counting = Counting(worker)
        with context_meter.add_callback(hear):
            began_s = time.perf_counter()
            asyncio.run(worker.execute("x", stimulus_id=""))
            took_s = time.perf_counter() - began_s
        counting.stop()
    assert told[IO_SECONDS] >= 0.2
    assert IO_ESTIMATED in told
    assert told[IO_SECONDS] + told[IO_ESTIMATED] < took_s, "together no more than the task took"
