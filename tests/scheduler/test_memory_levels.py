"""Checkpoints in the memories of hosts: what survives the loss of workers, of hosts, and of managers."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from distributed import Nanny, wait
from hosts import HOSTS, before, five_hosts, lose, places

import dask_hpc
from dask_hpc.scheduler.checkpoint import memory
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.managers import listening
from dask_hpc.worker.repairing import TooManyLostError


@pytest.fixture(scope="module")
def cluster():
    with five_hosts() as client:
        yield client


@pytest.fixture
def client(cluster):
    """All five are there, and nothing is left of the test before."""
    before(lambda: set(places(cluster)) == set(HOSTS), "all hosts are there")
    yield cluster
    cluster.cancel(list(cluster.futures))


def counts(rt):
    told = rt.status()["checkpoints"]
    return told["restored_results"], told["recomputed_results"], told["lost_results"]


def only_restored(rt, since):
    """Whether results were read back since then, and none computed again or lost."""
    restored, recomputed, lost = np.subtract(counts(rt), since)
    return restored > 0 and (recomputed, lost) == (0, 0)


#: Names of the versions of `protected`.
OURS = {"field", "data"}


def protected(client, levels, redundancy="partner", **more):
    """Blocks, on all hosts as a rule, and scattered data on all, in a version."""
    rt = dask_hpc.install(client)
    rt.update(checkpoint_redundancy=redundancy)
    field = da.random.default_rng(7).random((400, 300), chunks=(40, 50)).persist()
    wait(field)
    data = client.scatter([np.arange(2000) + number for number in range(5)])
    expected = np.asarray(field)
    rt.checkpoint(field, "field", levels=levels, **more)
    commit = rt.checkpoint(data, "data", levels=levels, **more)
    return rt, field, data, expected, commit


def are_there(client, field, data, expected):
    np.testing.assert_array_equal(np.asarray(field), expected)
    for number, values in enumerate(client.gather(data)):
        np.testing.assert_array_equal(values, np.arange(2000) + number)


@pytest.mark.slow
def test_a_host_keeps_what_its_workers_lose(client, monkeypatch):
    start = Nanny.instantiate

    async def late(self):
        if self.env.get("DASK_HPC__NODE__HOST") == "beta":
            await asyncio.sleep(4)
        return await start(self)

    monkeypatch.setattr(Nanny, "instantiate", late)
    rt, field, data, expected, commit = protected(client, ["L1"])
    assert commit.status()["levels"] == ["L1"]
    since, earlier = counts(rt), client.run_on_scheduler(folders)
    lose(client, "alpha", "beta", memory=False)
    are_there(client, field, data, expected)
    assert only_restored(rt, since)
    # it was never gone, so it is not written anew either, while beta has no worker
    before(lambda: client.run_on_scheduler(looked), "nobody looks for what is lost")
    assert client.run_on_scheduler(folders) == earlier


@pytest.mark.parametrize(
    ("redundancy", "hosts"),
    [
        ("partner", ["beta"]),
        pytest.param("xor", ["gamma"], marks=pytest.mark.slow),
        pytest.param("reed-solomon", ["alpha", "delta"], marks=pytest.mark.slow),
    ],
)
def test_other_hosts_have_what_a_host_loses(client, redundancy, hosts):
    rt, field, data, expected, commit = protected(client, ["L1", "L2"], redundancy)
    assert commit.status()["levels"] == ["L1", "L2"]
    # two variables of the same results
    twice = xr.Dataset(dict.fromkeys("ab", (("x", "y"), field)))
    assert rt.checkpoint(twice, "field", levels=["L1", "L2"]).status()["levels"] == ["L1", "L2"]
    since = counts(rt)
    lose(client, *hosts)
    are_there(client, field, data, expected)
    assert only_restored(rt, since)
    back = dask_hpc.restore("field", client).compute()
    assert all(np.array_equal(back[name], expected) for name in "ab")


@pytest.mark.slow
def test_a_version_without_parities_leaves_the_one_before_that_has_them(client, monkeypatch):
    rt, field, data, expected, _ = protected(client, ["L1", "L2"])

    async def fails(*_):
        raise OSError("a host is lost meanwhile")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "protect", fails)
        again = rt.checkpoint(field, "field", levels=["L1", "L2"])
        assert again.status()["levels"] == ["L1"]
        rt.checkpoint(data, "data", levels=["L1", "L2"])
    since = counts(rt)
    lose(client, "beta")
    are_there(client, field, data, expected)
    assert only_restored(rt, since)


def folders(dask_scheduler):
    return of(dask_scheduler).commits.protected.folders()


def looked(dask_scheduler):
    task = of(dask_scheduler).commits._held._task
    return task is not None and task.done()


@pytest.mark.slow
def test_what_a_lost_host_held_is_held_again_before_the_next_one_is_lost(client):
    rt, field, data, expected, _ = protected(client, ["L1", "L2"])
    since = counts(rt)
    for host in ("alpha", "gamma", "epsilon", "alpha"):
        earlier = client.run_on_scheduler(folders)
        lose(client, host)
        before(lambda old=earlier: not old & client.run_on_scheduler(folders), "it is held again")
        before(lambda: set(places(client)) == set(HOSTS), "the host is back")
    lose(client, "beta", "delta", memory=False)
    are_there(client, field, data, expected)
    assert only_restored(rt, since)


@pytest.mark.slow
def test_beyond_what_a_scheme_promises_the_store_has_it(client, tmp_path):
    rt, field, data, expected, commit = protected(client, ["L1", "L2", "L3"], "xor", store=tmp_path)
    assert commit.status()["levels"] == ["L1", "L2", "L3"]
    since = counts(rt)
    lose(client, "alpha", "beta", "gamma")
    are_there(client, field, data, expected)
    assert only_restored(rt, since)


@pytest.mark.slow
def test_a_byte_that_has_changed_in_memory_is_noticed_and_another_copy_is_read(client):
    rt, field, data, expected, _ = protected(client, ["L1", "L2"])
    since = counts(rt)
    _, folder, _ = places(client)["beta"]
    for path in Path(folder).glob("*.segment"):
        content = bytearray(path.read_bytes())
        content[:] = bytes(byte ^ 1 for byte in content)
        path.write_bytes(content)
    lose(client, "beta", memory=False)
    are_there(client, field, data, expected)
    assert only_restored(rt, since)


def test_a_manager_that_is_killed_comes_back_with_all_it_held(client):
    _, field, data, expected, _ = protected(client, ["L1", "L2"])
    _, folder, _ = places(client)["gamma"]
    was = listening(Path(folder))
    os.kill(was["pid"], signal.SIGKILL)
    # its worker has it started again, where others find it: the next version may be far off
    before(lambda: listening(Path(folder))["pid"] != was["pid"], "it is there again")
    assert listening(Path(folder))["address"] == was["address"]
    lose(client, "gamma", memory=False)
    are_there(client, field, data, expected)


@pytest.mark.slow
def test_memory_is_given_back_after_the_last_future(client):
    rt, field, data, _, _ = protected(client, ["L1", "L2"])
    folders = [folder for _, folder, _ in places(client).values()]

    def held():
        return [path for folder in folders for path in Path(folder).glob("*.segment")]

    assert held()
    # a newer version takes the place of the last one
    count = len(held())
    rt.checkpoint(data, "data", levels=["L1", "L2"])
    before(lambda: len(held()) <= count, "the version before is given up")
    client.run_on_scheduler(linger, 1.0)
    try:
        del field, data
        before(lambda: not held(), "nothing is held")
    finally:
        client.run_on_scheduler(linger, 600.0)


def linger(seconds, dask_scheduler):
    state = of(dask_scheduler).engine.state
    state.settings = dataclasses.replace(state.settings, checkpoint_linger_s=seconds)


@pytest.mark.slow
def test_what_a_client_has_let_go_of_in_part_or_all_outlives_its_hosts(client, monkeypatch):
    repair, tried = memory.Memory.repair, []

    async def workers_are_away(*_):
        raise TooManyLostError("too many of the hosts that held it are lost")

    async def silent_at_first(self, *asked):
        tried.append(asked)
        if len(tried) == 1:
            raise OSError("a manager does not answer")
        with monkeypatch.context() as patched:
            if len(tried) == 2:
                patched.setattr(memory, "repaired", workers_are_away)
            return await repair(self, *asked)

    monkeypatch.setattr(memory.Memory, "repair", silent_at_first)
    client.run_on_scheduler(linger, 600.0)
    rt, field, data, _, _ = protected(client, ["L1", "L2"])
    before(lambda: len(client.run_on_scheduler(versions)) == 2, "those of earlier tests have been replaced")
    # of the field nobody holds anything any more, of the data something
    del field
    kept = data[:2]
    del data
    before(lambda: client.run_on_scheduler(kept_folders) == {"field"}, "all of it is let go of")
    since = counts(rt)
    for host in ("alpha", "gamma"):
        assert len(client.run_on_scheduler(versions)) == 2
        # a worker that comes late may have no block of the field
        lost = client.run_on_scheduler(held_by, folder=places(client)[host][1])
        assert lost
        lose(client, host)
        before(lambda old=lost: not old & client.run_on_scheduler(versions), "what it held is made again")
        before(lambda: set(places(client)) == set(HOSTS), "the host is back")
    assert {row["state"] for row in rt.status()["checkpoints"]["repairs"]} == {"whole"}
    for number, values in enumerate(client.gather(kept)):
        np.testing.assert_array_equal(values, np.arange(2000) + number)
    assert not np.subtract(counts(rt), since)[1:].any()
    expected = da.random.default_rng(7).random((400, 300), chunks=(40, 50)).compute(scheduler="sync")
    np.testing.assert_array_equal(dask_hpc.restore("field", client).compute(), expected)
    back = client.gather(dask_hpc.restore("data", client))
    np.testing.assert_array_equal(back, np.arange(2000) + np.arange(5)[:, None])


def kept_folders(dask_scheduler):
    return OURS & set(of(dask_scheduler).commits._held._kept.folders.values())


def versions(dask_scheduler):
    return {id for id, one in of(dask_scheduler).commits._memory.records.items() if one.name in OURS}


def held_by(folder, dask_scheduler):
    records = of(dask_scheduler).commits._memory.records
    there = {id for id, one in records.items() if any(home.folder == folder for home in one.all_homes)}
    return there & versions(dask_scheduler)


@pytest.mark.slow
def test_with_too_few_hosts_left_the_store_has_it_and_status_says_so(monkeypatch, tmp_path):
    start = Nanny.instantiate

    async def late(self):
        if self.env.get("DASK_HPC__NODE__HOST") == "beta":
            await asyncio.sleep(20)
        return await start(self)

    with five_hosts(HOSTS[:2]) as client:
        rt, field, data, expected, commit = protected(client, ["L1", "L2"])
        assert commit.status()["levels"] == ["L1", "L2"]
        rt.update(checkpoint_store=str(tmp_path))
        monkeypatch.setattr(Nanny, "instantiate", late)
        lose(client, "beta")
        before(lambda: len(rt.status()["checkpoints"]["repairs"]) == 2, "both are looked at")
        for row in rt.status()["checkpoints"]["repairs"]:
            assert (row["name"], row["state"]) in [("field", "less"), ("data", "less")]
            assert "needs 2 failure domains" in row["reason"]
            assert row["reason"].endswith(f"; they are written to {tmp_path}")
        # numbers rise from memory to the store
        before(lambda: len(list(tmp_path.glob("*/000002"))) == 2, "both are in the store")
        lose(client, "alpha")
        are_there(client, field, data, expected)
        assert only_restored(rt, (0, 0, 0))
        # once is enough
        assert len(list(tmp_path.glob("*/00000?"))) == 2
