"""Versions for memory that go to the store instead: a worker or a manager does not answer."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from distributed import wait
from hosts import before, five_hosts, places

import dask_hpc
from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.record import dump, parse
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.fetching import ManagerSilentError
from dask_hpc.worker.managers import listening
from dask_hpc.worker.saved import copies_of

HOSTS = ("alpha", "beta")


@pytest.fixture(scope="module")
def cluster():
    with five_hosts(HOSTS) as client:
        before(lambda: set(places(client)) == set(HOSTS), "both hosts are there")
        yield client


@contextmanager
def hung(client, host, manager=False):
    """A worker, or the manager of a host, that does nothing any more, and is not gone either; its address."""
    pid, folder, address = places(client)[host]
    if manager:
        told = listening(Path(folder))
        pid, address = told["pid"], told["address"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield address
    finally:
        os.kill(pid, signal.SIGCONT)


def status(commit):
    row = commit.status()
    return row["state"], row["levels"], row["reason"]


def on_both(client, values):
    """Blocks, some of them on each host."""
    addresses = [address for _, _, address in places(client).values()]
    blocks = [
        client.scatter([block], workers=[address], hash=False)[0]
        for block, address in zip(np.split(values, 4), addresses * 2, strict=True)
    ]
    wait(blocks)
    return blocks


def test_a_worker_that_hangs_sends_that_version_to_the_store_and_is_asked_again_later(cluster, tmp_path):
    rt = dask_hpc.install(cluster, "fcfs", checkpoint_store=str(tmp_path))
    # a busy machine is not silent
    rt.update(checkpoint_silence_s=60.0, checkpoint_ask_again_s=600.0)
    values = np.arange(4000.0)
    data = on_both(cluster, values)
    first = rt.checkpoint(data, "data", levels=("L1", "L2"))
    assert status(first) == ("complete", ["L1", "L2"], "")
    rt.update(checkpoint_silence_s=1.0)
    with hung(cluster, "beta") as address:
        commit = rt.checkpoint(data, "data", levels=("L1", "L2"), wait=False)
        before(lambda: rt.status()["checkpoints"]["silent"], "it is found silent")
        told = rt.status()["checkpoints"]["silent"]
        assert [row["worker"] for row in told] == [address]
        # the other one has written its blocks; who hangs may still go on
        before(lambda: commit.status()["blocks_left"] == 2, "the others are written")
        assert commit.status()["state"] == "writing"
    commit.wait()
    state, levels, reason = status(commit)
    assert (state, levels) == ("complete", ["L3"])
    assert f"worker {address} has not answered within 1 s (hpc.checkpoint.silence)" in reason
    assert reason.endswith(f"; it is in the store instead ({tmp_path})")
    version = Store(tmp_path).newest("data")
    assert verify(version) == []
    found = open_checkpoint(version.path, allow_pickle=True)
    np.testing.assert_array_equal(np.concatenate([np.asarray(each.compute()) for each in found]), values)
    # it answers again, and is not asked yet
    assert status(rt.checkpoint(data, "data", levels=("L1", "L2")))[1] == ["L3"]
    rt.update(checkpoint_silence_s=60.0, checkpoint_ask_again_s=0.0)
    assert status(rt.checkpoint(data, "data", levels=("L1", "L2"))) == ("complete", ["L1", "L2"], "")
    assert rt.status()["checkpoints"]["silent"] == []


def pings(dask_scheduler):
    """Has questions to workers whether they are there counted."""
    dask_scheduler.pings, asked = [], remote.ask

    async def ask(scheduler, address, handler, *args, **kwargs):
        if handler == "identity":
            dask_scheduler.pings.append(address)
        return await asked(scheduler, address, handler, *args, **kwargs)

    remote.ask = ask


def pinged(dask_scheduler):
    return dask_scheduler.pings


def test_workers_that_answer_are_asked_once(cluster, tmp_path, monkeypatch):
    rt = dask_hpc.install(cluster, "fcfs", checkpoint_store=str(tmp_path))
    rt.update(checkpoint_silence_s=60.0, checkpoint_ask_again_s=0.0)
    # the scheduler is in this process
    monkeypatch.setattr(remote, "ask", remote.ask)
    cluster.run_on_scheduler(pings)
    data = on_both(cluster, np.arange(4000.0))
    assert status(rt.checkpoint(data, "data", levels=("L1", "L2"))) == ("complete", ["L1", "L2"], "")
    assert cluster.run_on_scheduler(pinged) == []


class Hangs:
    """A value whose worker stops when it is pickled, once."""

    def __init__(self, once):
        self.once = once

    def __reduce__(self):
        if not os.path.exists(self.once):
            Path(self.once).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return Hangs, (self.once,)


def test_a_worker_that_hangs_while_it_writes_is_not_waited_for(cluster, tmp_path):
    rt = dask_hpc.install(cluster, "fcfs", checkpoint_store=str(tmp_path))
    rt.update(checkpoint_silence_s=1.0, checkpoint_ask_again_s=0.0)
    pid, _, address = places(cluster)["beta"]
    value = cluster.submit(Hangs, str(tmp_path / "once"), workers=[address], pure=False)
    wait(value)
    commit = rt.checkpoint(value, "value", levels=("L1", "L2"), wait=False)
    try:
        before((tmp_path / "once").exists, "the worker stands still")
        before(lambda: list((tmp_path / "value").glob(".*")), "the store is to have it")
    finally:
        os.kill(pid, signal.SIGCONT)
    commit.wait()
    state, levels, reason = status(commit)
    assert (state, levels) == ("complete", ["L3"])
    assert f"worker {address} has not answered within 1 s" in reason


def test_a_worker_that_hangs_and_has_nothing_of_a_version_is_done_without(cluster, tmp_path):
    rt = dask_hpc.install(cluster, "fcfs", checkpoint_store=str(tmp_path))
    rt.update(checkpoint_silence_s=1.0, checkpoint_ask_again_s=600.0)
    alpha = places(cluster)["alpha"][2]
    data = cluster.scatter([np.arange(9)], workers=[alpha], hash=False)
    with hung(cluster, "beta"):
        state, levels, reason = status(rt.checkpoint(data, "alone", levels=("L1", "L2")))
    # one host is left, which is in one failure domain
    assert (state, levels) == ("complete", ["L1", "L3"])
    assert "needs 2 failure domains" in reason
    rt.update(checkpoint_ask_again_s=0.0)


def hanging(rt):
    return [row["manager"] for row in rt.status()["checkpoints"]["silent"]]


@pytest.mark.errors("no new version: .* has not answered")
def test_a_manager_that_hangs_sends_that_version_to_the_store_and_is_asked_again_later(cluster, tmp_path):
    rt = dask_hpc.install(cluster, "fcfs", checkpoint_store=str(tmp_path))
    rt.update(checkpoint_silence_s=6.0, checkpoint_ask_again_s=600.0)
    values = np.arange(4000.0)
    data = on_both(cluster, values)
    assert status(rt.checkpoint(data, "held", levels=("L1", "L2"))) == ("complete", ["L1", "L2"], "")
    with hung(cluster, "beta", manager=True) as address:
        silent = f"the manager at {address} has not answered within 6 s (hpc.checkpoint.silence)"
        state, levels, reason = status(rt.checkpoint(data, "held", levels=("L1", "L2")))
        assert (state, levels) == ("complete", ["L3"])
        assert silent in reason
        assert reason.endswith(f"; it is in the store instead ({tmp_path})")
        before(lambda: hanging(rt), "workers have said so")
        assert hanging(rt) == [address]
        # one that it was to hold parities of has its own host's memory, and the store
        alpha = places(cluster)["alpha"][2]
        alone = cluster.scatter([values[:9]], workers=[alpha], hash=False)
        state, levels, reason = status(rt.checkpoint(alone, "one-host", levels=("L1", "L2")))
        assert (state, levels) == ("complete", ["L1", "L3"])
        assert f"L2: {silent}" in reason
        # without a store it is refused
        rt.update(checkpoint_store=None)
        with pytest.raises(CheckpointError, match="has not answered within 6 s"):
            rt.checkpoint(data, "held", levels=("L1", "L2"))
        rt.update(checkpoint_store=str(tmp_path))
    found = open_checkpoint(Store(tmp_path).newest("held").path, allow_pickle=True)
    np.testing.assert_array_equal(np.concatenate([np.asarray(each.compute()) for each in found]), values)
    # it answers again, and is not asked yet
    assert status(rt.checkpoint(data, "held", levels=("L1", "L2")))[1] == ["L3"]
    assert hanging(rt) == [address]
    rt.update(checkpoint_ask_again_s=0.0)
    assert status(rt.checkpoint(data, "held", levels=("L1", "L2"))) == ("complete", ["L1", "L2"], "")
    before(lambda: rt.status()["checkpoints"]["silent"] == [], "it has answered")


def record_of(name, dask_scheduler):
    (text,) = [dump(one) for one in of(dask_scheduler).commits._memory.records.values() if one.name == name]
    return text


async def read_elsewhere(text, address, dask_worker):
    """Read what one host holds of a version as other hosts do, who do not see its files."""
    record, began_s = parse(text), time.monotonic()
    seen = record.at({home: Home(home.address, "/elsewhere") for home in record.all_homes})
    copies = [copy for copy in copies_of(seen) if copy.home.address == address]
    found = [copy.value(await copy.content(dask_worker.rpc), True) for copy in copies]
    alone, problem = dataclasses.replace(copies[0], group=None), None
    try:
        await alone.content(dask_worker.rpc)
    except ManagerSilentError as error:
        problem = str(error)
    return found, problem, time.monotonic() - began_s


def test_what_a_manager_that_hangs_holds_is_read_from_the_next_copy(cluster):
    rt = dask_hpc.install(cluster, "fcfs", checkpoint_store=None)
    rt.update(checkpoint_silence_s=6.0, checkpoint_ask_again_s=600.0)
    values = np.arange(4000.0)
    data = on_both(cluster, values)
    assert status(rt.checkpoint(data, "read", levels=("L1", "L2"))) == ("complete", ["L1", "L2"], "")
    there, text = places(cluster), cluster.run_on_scheduler(record_of, "read")
    address = listening(Path(there["beta"][1]))["address"]

    def read():
        (answer,) = cluster.run(read_elsewhere, text, address, workers=[there["alpha"][2]]).values()
        return answer

    # a connection is there from now on
    found, problem, _ = read()
    assert (len(found), problem) == (2, None)
    with hung(cluster, "beta", manager=True):
        found, problem, took_s = read()
    holders = cluster.who_has(data)
    expected = [values[n : n + 1000] for n in range(0, 4000, 1000)]
    held = [each for each, one in zip(expected, data, strict=True) if there["beta"][2] in holders[one.key]]
    np.testing.assert_array_equal(found, held)
    assert "has not answered within 6 s (hpc.checkpoint.silence)" in problem
    assert took_s < 25, "each read would have waited 30 s for it"


def unnamed(client):
    """Segments of which no record tells, and their versions, on all hosts."""
    folders = [Path(folder) for _, folder, _ in places(client).values()]
    notes = [path for folder in folders for path in folder.glob("*.*.*")]
    return {path.stem for path in notes if path.suffix in (".open", ".sealed")}


@pytest.mark.errors("no new version: .* has not answered")
def test_of_a_version_that_has_failed_nothing_stays_also_when_no_other_is_written(cluster):
    rt = dask_hpc.install(cluster, "fcfs", checkpoint_store=None)
    rt.update(checkpoint_silence_s=2.0, checkpoint_ask_again_s=4.0)
    data = on_both(cluster, np.arange(4000.0))
    rt.checkpoint(data, "kept", levels=("L1", "L2"))
    # of other versions
    there = unnamed(cluster)
    with hung(cluster, "beta", manager=True), pytest.raises(CheckpointError, match="has not answered"):
        rt.checkpoint(data, "kept", levels=("L1", "L2"))
    before(lambda: unnamed(cluster) - there, "it does what it was asked for while it stood still")
    before(lambda: not unnamed(cluster) - there, "that has gone")
