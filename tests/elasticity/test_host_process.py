"""One process a host: it outlives workers, there is one, and it ends when the last worker has gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from distributed import Worker
from helpers import live, until
from host_work import LINGER_S, TARGET

import dask_hpc
from dask_hpc.errors import WorkerError
from dask_hpc.worker import heartbeat
from dask_hpc.worker.host_process import HostProcess, collect, folders, join, occupied, take

WAIT_S = 30.0


@pytest.fixture
def cluster():
    return f"tcp://{uuid.uuid4().hex}:8786"


@pytest.fixture
def workers(cluster):
    """Starts processes that join."""
    started = []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def start():
        code = f"import host_work; host_work.worker({cluster!r})"
        command = (sys.executable, "-c", code)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        started.append(process)
        assert process.stdout.readline() == b"here\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def soon(condition, what):
    deadline_s = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)
    return value


def folder_of(cluster):
    watcher = HostProcess("watcher", TARGET, cluster)
    watcher.stop()
    return watcher.folder


def serving(folder):
    """Ids of the processes that serve there."""
    found = [int(path.name.rpartition("-")[2]) for path in folder.glob("serves-*")]
    return [pid for pid in found if psutil.pid_exists(pid) and not _ended(pid)]


def _ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_several_workers_have_one_process_that_outlives_each_and_ends_with_the_last(cluster, workers):
    folder = folder_of(cluster)
    processes = [workers() for _ in range(3)]
    (pid,) = soon(lambda: serving(folder), "it serves")
    for process in processes[:2]:
        process.kill()  # as the kernel kills: nothing of the worker's own runs
        process.wait()
    late = workers()
    time.sleep(2 * LINGER_S)  # long enough for it to end, were nobody there
    assert serving(folder) == [pid]
    for process in (processes[2], late):
        process.kill()
        process.wait()
    soon(lambda: not serving(folder), "it ends")
    soon(lambda: not folder.exists(), "it leaves nothing behind")


def test_one_that_was_killed_is_started_again(cluster):
    mine = HostProcess("tests", TARGET, cluster, linger_s=LINGER_S)
    mine.start()
    first = soon(lambda: mine.pid, "it runs")
    os.kill(first, signal.SIGKILL)
    soon(lambda: mine.pid is None, "it has ended")
    mine.start()
    assert soon(lambda: mine.pid, "it runs again") != first
    mine.stop()
    soon(lambda: not mine.folder.exists(), "it ends with the last worker")


def test_one_whose_workers_have_all_gone_stays_for_those_that_come_back(cluster):
    mine = HostProcess("tests", TARGET, cluster, linger_s=60.0)
    mine.start()
    pid = soon(lambda: serving(mine.folder), "it serves")
    mine.stop()
    time.sleep(1.5)  # it looks every half second
    again = HostProcess("tests", TARGET, cluster, linger_s=LINGER_S)
    assert serving(again.folder) == pid
    again.end()
    soon(lambda: not serving(again.folder), "it ends")
    again.stop()
    shutil.rmtree(again.folder, ignore_errors=True)


def test_one_whose_folder_was_removed_ends(cluster):
    mine = HostProcess("tests", TARGET, cluster, linger_s=LINGER_S)
    mine.start()
    pid = soon(lambda: mine.pid, "it runs")
    shutil.rmtree(mine.folder)
    soon(lambda: _ended(pid), "it ends although its worker is there")
    mine.stop()


def test_two_clusters_and_two_hosts_share_nothing(cluster):
    held = [
        HostProcess("tests", TARGET, cluster),
        HostProcess("tests", TARGET, cluster + "1"),
        HostProcess("tests", TARGET, cluster, host="a"),
    ]
    assert len({one.folder for one in held}) == 3
    for one in held:
        one.stop()
        for path in one.folder.iterdir():
            path.unlink()
        one.folder.rmdir()


@pytest.mark.parametrize("name", ["", "../x", "A", "x" * 32, "a/b", "-a"])
def test_a_name_cannot_leave_its_folder(cluster, name):
    with pytest.raises(ValueError, match="lower-case letters, digits and hyphens"):
        HostProcess(name, TARGET, cluster)


def test_a_folder_that_others_can_write_to_is_not_used(cluster):
    folder = folder_of(cluster)
    folder.chmod(0o770)
    try:
        with pytest.raises(WorkerError, match="not a folder of this user alone"):
            HostProcess("tests", TARGET, cluster)
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


class Section:
    """A section of the heartbeats of another capability, which needs the process."""

    def __init__(self, worker: Worker) -> None:
        self._process = HostProcess("tests", TARGET, worker.scheduler.address, linger_s=LINGER_S)

    def __call__(self):
        if self._process.pid is None:
            self._process.start()
        return {"pid": self._process.pid}

    def stop(self):
        self._process.stop()


@live(workers=2, timeout=60)
async def test_workers_of_a_cluster_start_it_and_it_ends_when_we_are_uninstalled(c, s, a, b, monkeypatch):
    monkeypatch.setitem(heartbeat.SECTIONS, "served", Section)
    rt = await dask_hpc.install(c)
    folder: Path = folder_of(s.address)
    await until(lambda: serving(folder), "it serves")
    (pid,) = serving(folder)

    async def told():
        for one in (a, b):
            await one.heartbeat()
        return {ws.metrics["hpc"]["served"]["pid"] for ws in s.workers.values()}

    assert await told() == {pid}
    await rt.uninstall()
    await until(lambda: not folder.exists(), "it has ended")


def test_what_a_cluster_has_left_one_of_the_next_takes_and_no_other(cluster, workers):
    folder = folder_of(cluster)
    process = workers()
    (pid,) = soon(lambda: serving(folder), "it serves")
    assert occupied(folder)
    assert take(folder, lambda: pytest.fail("a worker is there")) is None
    process.kill()
    process.wait()
    here = soon(lambda: take(folder, lambda: True), "the next one has it")
    taken = HostProcess.taken("tests", TARGET, folder, here, LINGER_S)
    assert take(folder, lambda: pytest.fail("somebody has it")) is None
    also = join(folder)
    time.sleep(2 * LINGER_S)  # long enough for it to end, were nobody there
    assert (serving(folder), taken.pid) == ([pid], pid)
    os.kill(pid, signal.SIGKILL)
    soon(lambda: taken.pid is None, "it is lost")
    taken.start()
    soon(lambda: serving(folder), "it is there again")
    taken.stop()
    os.close(also)
    soon(lambda: not folder.exists(), "it ends, and leaves nothing behind")


def test_who_does_not_want_a_folder_leaves_it_to_others(cluster):
    HostProcess("tests", TARGET, cluster).stop()
    folder = folder_of(cluster)
    assert folder in folders()
    assert take(folder, lambda: False) is None
    here = take(folder, lambda: True)
    assert here is not None
    os.close(here)
    folder.chmod(0o755)  # others could have put something there
    assert folder not in folders()
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        take(folder, lambda: True)


def test_what_processes_that_were_killed_have_left_is_removed_once_it_is_old(cluster, workers):
    folder = folder_of(cluster)
    process = workers()
    (pid,) = soon(lambda: serving(folder), "it serves")
    os.utime(folder / "workers.lock", (0, 0))
    collect(3600.0)
    assert folder.exists(), "a worker is there"
    os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    soon(lambda: not serving(folder), "it is lost")
    (folder / "workers.lock").touch()
    collect(3600.0)
    assert folder.exists(), "somebody may come for it"
    os.utime(folder / "workers.lock", (0, 0))

    def removed() -> bool:
        collect(3600.0)  # what somebody looks at just then is left to the next time
        return not folder.exists()

    soon(removed, "it is removed")
