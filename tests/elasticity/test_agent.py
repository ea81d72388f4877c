"""Agents: a worker that the batch system ends is emptied first, and what cannot be saved is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, wait
from fake_queue import FakeQueue
from outside import PATHS, PATIENCE_S, Marks, held, lost, until, workers

import dask_hpc
from dask_hpc.scheduler.rpc.service import of

pytestmark = pytest.mark.slow
FAST = {"DASK_HPC__WALLTIME__NOTICE": "20 s", "DASK_HPC__WALLTIME__MARGIN": "1 s"}


class Counts:
    """An actor."""

    n = 0

    def increment(self) -> int:
        self.n += 1
        return self.n


class Moving(Counts):
    """An actor that can move: its class says what its state is."""

    def __getstate__(self) -> int:
        return self.n

    def __setstate__(self, state: int) -> None:
        self.n = state


class Machine:
    """A scheduler in this process, and workers that were started from a shell."""

    def __init__(self, client: Client, address: str, folder: Path) -> None:
        self.client = client
        self.address = address
        self.marks = Marks(client, folder)
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *options: str, **env: str) -> None:
        """``dask worker`` with the agent, under that name."""
        preload = ["--preload", "dask_hpc.agent", "--preload-nanny", "dask_hpc.agent"]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--name", name]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "--nthreads", "1", "--no-dashboard", *preload, *options],
                env={**os.environ, "PYTHONPATH": PATHS, **FAST, **env},
                stderr=log,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        """What the worker has said."""
        return (self.folder / f"{name}.log").read_text()

    def departures(self, address: str) -> list[dict[str, Any]]:
        """What was announced about a worker."""
        rows = self.client.get_events(address)
        return [row for _, row in rows if row.get("action") == "hpc-departure"]

    def gone(self, name: str) -> None:
        """Wait until a worker has left and its process has ended."""
        until(lambda: name not in workers(self.client), f"{name} has left")
        assert self.processes[name].wait(PATIENCE_S) is not None


def _drained(address: str, dask_scheduler: Any) -> bool:
    node = of(dask_scheduler).engine.state.nodes.at.get(address)
    return node is not None and bool(node.reserved)


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    cluster_class = dask_hpc.LocalCluster
    with cluster_class(n_workers=0, dashboard_address=":0") as cluster, Client(cluster) as client:
        made = Machine(client, cluster.scheduler_address, folder)
        try:
            yield made
        finally:
            for process in made.processes.values():
                with_group = process.poll() is None
                if with_group:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(PATIENCE_S)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path) as made:
        yield made


def _send(local: Machine, name: str, how: str) -> None:
    process = local.processes[name]
    if how == "SIGTERM to every process":
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.send_signal(getattr(signal, how))


@pytest.mark.parametrize("how", ["SIGTERM", "SIGUSR1", "SIGTERM to every process"])
def test_a_worker_that_is_told_to_end_finishes_its_tasks_and_loses_nothing(local: Machine, how: str) -> None:
    local.start("stays")
    local.start("goes")
    until(lambda: len(workers(local.client)) == 2, "two workers")
    goes = workers(local.client)["goes"]
    done = local.marks.submit("done", 6, 0.0, goes)
    wait(done)
    data = local.client.scatter(list(range(50)), workers=[goes], hash=False)
    busy = local.marks.submit("busy", 8, 0.7)
    until(lambda: local.marks.started()["busy-0"] and local.marks.started()["busy-1"], "both work")
    _send(local, "goes", how)
    local.gone("goes")
    assert lost(local.client) == (0, 0, {True})
    assert local.client.gather(data) == list(range(50))
    assert local.client.gather(busy) == [f"busy-{i}" for i in range(8)]
    assert set(local.marks.started().values()) == {1}
    assert "nothing is lost" in local.log("goes")


def test_what_a_worker_holds_is_saved_that_is_ended_sooner_than_it_was_told_before(local: Machine) -> None:
    local.start("stays")
    local.start("goes", DASK_HPC__WALLTIME__NOTICE="600 s", DASK_HPC__KILL_DELAY="3 s")
    until(lambda: len(workers(local.client)) == 2, "two workers")
    goes = workers(local.client)["goes"]
    done = local.marks.submit("done", 6, 0.0, goes)
    wait(done)
    data = local.client.scatter(list(range(20)), workers=[goes], hash=False)
    gate = str(local.folder / "gate")
    long = local.client.submit(held, gate, 1, key="long", workers=[goes], allow_other_workers=True)
    until(lambda: local.client.processing()[goes], "it executes")
    local.processes["goes"].send_signal(signal.SIGUSR1)
    until(lambda: local.client.run_on_scheduler(_drained, goes), "it is drained")
    local.processes["goes"].send_signal(signal.SIGTERM)
    until(lambda: "goes" not in workers(local.client), "it has left")
    assert lost(local.client) == (0, 0, {True})
    assert local.client.gather(data) == list(range(20))
    (local.folder / "gate").touch()
    local.gone("goes")
    assert long.result() == 1
    assert len(local.client.gather(done)) == 6
    assert set(local.marks.started().values()) == {1}


@pytest.mark.parametrize("by", ["slurm", "setting"])
def test_a_worker_leaves_before_its_walltime_ends(local: Machine, by: str) -> None:
    local.start("stays")
    ends_s = int(time.time()) + 12
    end = {"SLURM_JOB_END_TIME": str(ends_s)} if by == "slurm" else {"DASK_HPC__WALLTIME__LIMIT": "12 s"}
    local.start("goes", **end, DASK_HPC__WALLTIME__NOTICE="6 s")
    until(lambda: len(workers(local.client)) == 2, "two workers")
    goes = workers(local.client)["goes"]
    done = local.marks.submit("done", 6, 0.0, goes)
    busy = local.marks.submit("busy", 30, 0.5)
    wait(done)
    local.gone("goes")
    assert time.time() < ends_s
    assert lost(local.client) == (0, 0, {True})
    assert len(local.client.gather([*done, *busy])) == 36
    assert set(local.marks.started().values()) == {1}


def test_a_worker_stays_for_as_long_as_its_job_was_extended(local: Machine) -> None:
    """`squeue` is a program that says so; the real one is asked in tests/slurm."""
    ends_s = int(time.time()) + 9
    queue = FakeQueue(local.folder / "bin")
    queue.says({"7": ends_s + 8})
    local.start("stays")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(ends_s), "PATH": queue.path}
    local.start("goes", **slurm, DASK_HPC__WALLTIME__NOTICE="4 s")
    until(lambda: len(workers(local.client)) == 2, "two workers")
    while time.time() < ends_s:
        assert "goes" in workers(local.client)
        time.sleep(0.1)
    local.gone("goes")
    assert ends_s < time.time() < ends_s + 8
    assert "ends 8 s later" in local.log("goes")
    assert "nothing is lost" in local.log("goes")


def test_what_cannot_be_finished_is_named_and_runs_again(local: Machine) -> None:
    local.start("goes", DASK_HPC__KILL_DELAY="1 s")
    until(lambda: len(workers(local.client)) == 1, "a worker")
    address = workers(local.client)["goes"]
    long = local.marks.submit("long", 1, 20.0)
    until(lambda: local.marks.started()["long-0"], "it executes")
    local.start("stays")
    until(lambda: len(workers(local.client)) == 2, "two workers")
    local.processes["goes"].send_signal(signal.SIGTERM)
    local.gone("goes")
    [departure] = local.departures(address)
    assert (list(departure["executing"]), list(departure["lost"])) == (["long-0"], [])
    assert "long-0" in local.log("goes")
    assert lost(local.client) == (0, 0, {True})
    until(lambda: local.marks.started()["long-0"] == 2, "it runs again")
    del long


def test_an_actor_and_data_that_nobody_can_take_are_named(local: Machine) -> None:
    local.start("goes", DASK_HPC__KILL_DELAY="2 s")
    until(lambda: len(workers(local.client)) == 1, "a worker")
    address = workers(local.client)["goes"]
    actor = local.client.submit(Counts, actor=True, key="counts").result()
    assert actor.increment().result() == 1
    [datum] = local.client.scatter([1], hash=False)
    local.processes["goes"].send_signal(signal.SIGTERM)
    local.gone("goes")
    [departure] = local.departures(address)
    assert list(departure["actors"]) == ["counts"]
    assert list(departure["lost"]) == [str(datum.key)]
    assert "counts" in local.log("goes")


def test_a_worker_that_leaves_waits_for_one_that_has_room(local: Machine, caplog: Any) -> None:
    local.start("goes")
    until(lambda: len(workers(local.client)) == 1, "a worker")
    done = local.marks.submit("done", 6, 0.0)
    wait(done)
    data = local.client.scatter(list(range(20)), hash=False)
    local.processes["goes"].send_signal(signal.SIGUSR1)
    until(lambda: "nobody has room for 26 of its results" in caplog.text, "it waits")
    assert "goes" in workers(local.client)
    local.start("comes")
    until(lambda: list(workers(local.client)) == ["comes"], "it has left")
    assert lost(local.client) == (0, 0, {True})
    assert local.client.gather(data) == list(range(20))
    assert len(local.client.gather(done)) == 6
    assert set(local.marks.started().values()) == {1}


def test_what_nobody_has_room_for_comes_back_from_disk(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with dask.config.set({"hpc.spill.directory": str(folder)}), machine(tmp_path) as local:
        local.start("goes", DASK_HPC__KILL_DELAY="2 s")
        until(lambda: len(workers(local.client)) == 1, "a worker")
        address = workers(local.client)["goes"]
        done = local.marks.submit("done", 6, 0.0)
        wait(done)
        data = local.client.scatter([np.arange(n) for n in range(20)], hash=False)
        local.processes["goes"].send_signal(signal.SIGTERM)
        local.gone("goes")
        [departure] = local.departures(address)
        assert (len(departure["spilled"]), list(departure["lost"])) == (26, [])
        assert "nothing is lost" in local.log("goes")
        assert any(path.is_file() for path in folder.rglob("*"))
        local.start("comes")
        assert [len(array) for array in local.client.gather(data)] == list(range(20))
        assert local.client.gather(done) == [f"done-{n}" for n in range(6)]
        assert set(local.marks.started().values()) == {1}
        assert lost(local.client) == (0, 0, {True})
        until(lambda: not list(folder.iterdir()), "nothing is left on disk")


def test_data_beside_an_actor_moves(local: Machine) -> None:
    local.start("goes")
    until(lambda: len(workers(local.client)) == 1, "a worker")
    address = workers(local.client)["goes"]
    actor = local.client.submit(Counts, actor=True, key="counts").result()
    assert actor.increment().result() == 1
    data = local.client.scatter(list(range(20)), hash=False)
    local.start("stays")
    until(lambda: len(workers(local.client)) == 2, "two workers")
    local.processes["goes"].send_signal(signal.SIGTERM)
    local.gone("goes")
    [departure] = local.departures(address)
    assert (list(departure["actors"]), list(departure["lost"])) == (["counts"], [])
    assert local.client.gather(data) == list(range(20))
    # all events can be read: a `WorkerState` in one of them would cut the client off
    assert lost(local.client)[:2] == (0, 0)


def test_an_actor_that_gives_its_state_moves(local: Machine) -> None:
    local.start("goes")
    until(lambda: len(workers(local.client)) == 1, "a worker")
    address = workers(local.client)["goes"]
    actor = local.client.submit(Moving, actor=True, key="moving").result()
    assert actor.increment().result() == 1
    local.start("stays")
    until(lambda: len(workers(local.client)) == 2, "two workers")
    local.processes["goes"].send_signal(signal.SIGTERM)
    calls = 1
    while "goes" in workers(local.client):
        calls += 1
        assert actor.increment().result() == calls
    local.gone("goes")
    assert actor.increment().result() == calls + 1
    assert local.departures(address) == []
    assert "nothing is lost" in local.log("goes")


def test_all_workers_of_one_process_are_told(local: Machine) -> None:
    local.start("stays")
    local.start("pair", "--nworkers", "2")
    until(lambda: len(workers(local.client)) == 3, "three workers")
    data = [
        local.client.scatter([i], workers=[address], hash=False)[0]
        for i, address in enumerate(workers(local.client).values())
    ]
    local.processes["pair"].send_signal(signal.SIGUSR1)
    until(lambda: set(workers(local.client)) == {"stays"}, "both have left")
    assert lost(local.client) == (0, 0, {True})
    assert local.client.gather(data) == [0, 1, 2]


def test_a_worker_without_a_nanny_says_what_it_cannot_do(local: Machine) -> None:
    local.start("alone", "--no-nanny")
    until(lambda: len(workers(local.client)) == 1, "a worker")
    assert "SIGTERM ends it at once" in local.log("alone")


def test_a_scheduler_without_the_package_is_no_reason_to_hang(tmp_path: Path) -> None:
    import distributed

    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster, Client(cluster) as client:
        made = Machine(client, cluster.scheduler_address, tmp_path)
        made.start("goes")
        until(lambda: len(workers(made.client)) == 1, "a worker")
        made.processes["goes"].send_signal(signal.SIGTERM)
        made.gone("goes")
        assert "was not emptied" in made.log("goes")
