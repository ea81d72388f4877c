"""Versions that memory alone has: a loop that lets go of a step before the next is written still has one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, Scheduler, Worker
from distributed.system import MEMORY_LIMIT
from distributed.utils_test import gen_test, requires_ipv6
from helpers import Gate, live, through, until

import dask_hpc
from dask_hpc.checkpoint.blobs import Home
from dask_hpc.client.checkpoints import on_cluster
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import dropping as of_dropping
from dask_hpc.scheduler.checkpoint.commits import Commits
from dask_hpc.scheduler.checkpoint.dropping import Dropping
from dask_hpc.scheduler.checkpoint.held import Held
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import HEARTBEAT
from dask_hpc.worker import host_memory
from dask_hpc.worker.fetching import ManagerAwayError, Patience, is_silent
from dask_hpc.worker.in_memory import open_records
from dask_hpc.worker.saved import MEMORY

# nothing of other tests is taken over
pytestmark = pytest.mark.usefixtures("memory")

#: As much of the state of a scheduler as `Dropping` looks at.
STATE: Any = SimpleNamespace(
    scheduler=SimpleNamespace(rpc=None), settings=SimpleNamespace(checkpoint_linger_s=600.0)
)


def versions(s):
    """Numbers of the versions in memory."""
    return sorted(record.manifest.version for record in of(s).commits._memory.records.values())


def segments(worker):
    return list(Path(worker.metrics[HEARTBEAT].section("manager").folder).glob("*.segment"))


async def step(c, number):
    return await c.scatter([np.full(1000, number + block) for block in range(2)], hash=False)


def late(s):
    """So long after nobody reads the newest version of the name any more as one stays."""
    kept = of(s).commits._held._kept
    kept._expire("field", False, kept._of["field", False], 60.0)


async def read(c, name="field"):
    return [values[0] for values in await c.gather(await dask_hpc.restore(name, c))]


async def let_go(s, *futures):
    keys = {future.key for future in futures}
    for future in futures:
        future.release()
    await until(lambda: not keys & s.tasks.keys(), "they are forgotten")


@pytest.mark.errors("no new version: .* nobody wants it any more")
@live(workers=1)
async def test_the_newest_version_stays_until_the_next_one_is_whole(c, s, a):
    rt = await dask_hpc.install(c)
    data = await step(c, 0)
    await rt.checkpoint(data, "field", levels="L1")
    one = len(segments(a))
    for number in (1, 2, 3):
        await let_go(s, *data)
        # all that a run that is killed now has
        assert versions(s) == [number]
        assert await read(c) == [10 * (number - 1), 10 * (number - 1) + 1]
        assert len(segments(a)) == one
        data = await step(c, 10 * number)
        assert versions(s) == [number]
        await rt.checkpoint(data, "field", levels="L1")
        assert versions(s) == [number + 1]
        await until(lambda: len(segments(a)) == one, "the one before has gone")
    # what has failed takes the place of nothing
    await let_go(s, *data)
    lost = c.submit(through, 1, Gate())
    commit = await rt.checkpoint(lost, "field", levels="L1", wait=False)
    await let_go(s, lost)
    with pytest.raises(CheckpointError, match="nobody wants it any more"):
        await commit.wait()
    assert versions(s) == [4]


@live(workers=1, config={"hpc.checkpoint.host-memory": 0.001})
async def test_versions_follow_each_other_at_once_where_there_is_room_for_two(c, s, a, monkeypatch):
    drop = Dropping._drop

    async def slow(*args):
        await asyncio.sleep(0.2)
        await drop(*args)

    monkeypatch.setattr(Dropping, "_drop", slow)
    rt = await dask_hpc.install(c)
    data = await c.scatter([np.zeros(MEMORY_LIMIT // 20_000)])
    for _ in range(4):
        await rt.checkpoint(data, "field", levels="L1")
    assert versions(s) == [4]


@live(workers=1)
async def test_the_next_cluster_on_a_host_has_the_room_of_one_that_is_closed_at_once(c, s, a):
    rt, memory = await dask_hpc.install(c), of(s).commits._memory
    for name in ("field", "read", "unheard"):
        await rt.checkpoint(await step(c, 0), name, levels="L1")
    id_of = {record.name: record.id for record in memory.records.values()}
    # one was made again, and who reads it may go on; of another one the manager was not there to hear
    memory.again(id_of["read"])
    memory.drop([id_of["read"]])
    is_silent(a.metrics[HEARTBEAT].section("manager")._address)
    memory.drop([id_of["unheard"]])
    await memory._dropping.done(30.0)
    assert len(segments(a)) == 3
    await memory.closing()
    assert not segments(a)


@live(workers=1, config={"hpc.checkpoint.linger": "1 s"})
async def test_who_begins_no_next_version_is_given_the_memory_back(c, s, a, monkeypatch):
    asked, under_way = [], Commits._under_way
    monkeypatch.setattr(Commits, "_under_way", lambda self, name: asked.append(name) or under_way(self, name))
    rt = await dask_hpc.install(c)
    data = await step(c, 0)
    await rt.checkpoint(data, "field", levels="L1")
    gate = Gate()
    slow = c.submit(through, 5, gate)
    # while the next one is under way it stays, however long that takes
    commit = await rt.checkpoint([slow], "field", levels="L1", wait=False)
    await until(lambda: gate.arrived, "it is being computed")
    await let_go(s, *data)
    await until(lambda: len(asked) > 1, "it would have been let go of twice")
    assert versions(s) == [1]
    gate.open()
    await commit.wait()
    assert versions(s) == [2]
    await let_go(s, slow)
    assert versions(s) == [2]
    await until(lambda: not of(s).commits._memory.records, "it is let go of")
    await until(lambda: not segments(a), "and its memory is")


@live(workers=1)
async def test_what_was_read_back_stays_in_memory_as_long_as_somebody_holds_it(c, s, a):
    rt = await dask_hpc.install(c)
    data = await step(c, 0)
    await rt.checkpoint(data, "field", levels="L1")
    await let_go(s, *data)
    back = await dask_hpc.restore("field", c)
    await until(of(s).commits.protected.folders, "it is read")
    late(s)
    assert not of(s).commits._held._kept, "nothing is kept for its own sake any more"
    assert versions(s) == [1]
    assert [values[0] for values in await c.gather(back)] == [0, 1]
    await let_go(s, *back)
    await until(lambda: of(s).commits._held._kept, "nobody holds it")
    late(s)
    assert not of(s).commits._memory.records, "it goes with its results"


@live(workers=1)
async def test_a_version_stays_beside_one_of_another_name_that_has_the_same_results(c, s, a):
    rt = await dask_hpc.install(c)
    data = await step(c, 0)
    for name in ("field", "other"):
        await rt.checkpoint(data, name, levels="L1")
    kept, keys = of(s).commits._held._kept, [future.key for future in data]
    await let_go(s, *data)
    await until(lambda: len(kept.folders) == 2, "nobody has any of them")
    again = await c.scatter({key: np.full(1000, number) for number, key in enumerate(keys)})
    late(s)
    assert await read(c) == await read(c, "other") == [0, 1]
    await until(lambda: len(kept._of["field", False].keys) > len(data), "what was restored has gone")
    late(s)
    assert len(versions(s)) == 2
    await let_go(s, *again.values())
    late(s)
    await until(lambda: len(versions(s)) == 1, "it goes")


@live(workers=1)
async def test_what_a_store_has_goes_with_its_results(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    data = await step(c, 0)
    await rt.checkpoint(data, "field", levels=("L1", "L3"))
    assert versions(s) == [1]
    await let_go(s, *data)
    await until(lambda: not of(s).commits._memory.records, "it is in the store alone")
    assert await read(c) == [0, 1]
    # one in the store takes the place of one in memory, too
    data = await step(c, 10)
    await rt.checkpoint(data, "field", levels="L1")
    await let_go(s, *data)
    assert len(versions(s)) == 1
    data = await step(c, 20)
    await rt.checkpoint(data, "field", levels="L3")
    assert versions(s) == []
    assert await read(c) == [20, 21]


@live(workers=1)
async def test_a_version_that_a_newer_one_replaces_before_it_is_read_is_read(c, s, a):
    rt = await dask_hpc.install(c)
    data = [await step(c, 0)]
    await rt.checkpoint(data[0], "field", levels="L1")
    before = segments(a)

    async def replaced(number):
        data[0] = await step(c, number)
        await rt.checkpoint(data[0], "field", levels="L1")

    version = await of(s).commits.left.version_in_memory("field")
    await replaced(10)
    assert versions(s) == [2]
    made = await asyncio.to_thread(open_records, version["records"], False)
    back = on_cluster(c, made)
    assert [values[0] for values in await c.gather(back)] == [0, 1]
    # what nobody reads any more goes when it may, and what is read before a newer one comes goes with it
    assert set(before) <= set(segments(a))
    assert await read(c) == [10, 11]
    second = set(segments(a)) - set(before)
    await replaced(20)
    await until(lambda: not second & set(segments(a)), "it has gone at once")
    # what goes later does so when the scheduler closes, also where that holds nothing else any more
    known = of(s).commits._memory
    known.drop([f"{MEMORY}{id}" for id in known.records])
    await until(lambda: set(segments(a)) == set(before), "the others have gone")
    await known._watched.before_close()
    await until(lambda: not segments(a), "all has gone", 20)


@gen_test(timeout=10)
async def test_a_host_that_was_away_when_it_was_to_drop_a_version_does_when_the_scheduler_closes():
    told, there = [], False

    async def ask(pool, address, method, **what):
        if not there:
            raise OSError("nobody listens")
        told.append((method, what))

    async def is_open(address):
        return there

    home, dropping = Home("tcp://127.0.0.1:9", "/folder"), Dropping(STATE, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_dropping, "ask", ask)
        patch.setattr(of_dropping, "is_open", is_open)
        dropping.drop(home, ["a"], "version")
        await dropping.done(5)
        assert await dropping.closing(()) == set()
        there = True
        assert await dropping.closing(()) == {home}
        await dropping.done(5)
    assert told == [("drop", {"segments": ["a"], "version": "version"})]


@gen_test(timeout=20)
async def test_a_host_that_was_cut_off_drops_a_version_when_it_is_back_also_without_workers(monkeypatch):
    told, looked, there = [], 0, False

    async def ask(pool, address, method, **what):
        if not there:
            raise ManagerAwayError("no route")
        told.append(what["version"])

    async def is_open(address):
        nonlocal looked
        looked += 1
        return there

    home, dropping = Home("tcp://127.0.0.1:9", "/folder"), Dropping(STATE, lambda: None)
    monkeypatch.setattr(of_dropping, "ask", ask)
    monkeypatch.setattr(of_dropping, "is_open", is_open)
    monkeypatch.setattr(of_dropping, "patience", lambda: Patience(1.0, 0.02))
    dropping.drop(home, ["a"], "older")
    dropping.drop(home, ["b"], "newer")
    await until(lambda: looked > 2, "it is looked for")
    there = True
    await until(lambda: sorted(told) == ["newer", "older"], "it has heard of both")
    assert not dropping._unheard
    # one that never comes back is not looked for when it has ended by itself
    there = False
    monkeypatch.setattr(STATE.settings, "checkpoint_linger_s", 0.1)
    dropping.drop(home, ["c"], "last")
    await until(lambda: dropping._looked_for, "it is looked for")
    await until(lambda: not dropping._looked_for and not dropping._tasks, "it is not any more")
    assert dropping._unheard
    # nor once the scheduler closes
    monkeypatch.setattr(STATE.settings, "checkpoint_linger_s", 600.0)
    dropping.drop(home, ["d"], "more")
    await until(lambda: dropping._looked_for, "it is looked for")
    await dropping.closing(())
    assert not dropping._looked_for


@gen_test(timeout=10)
async def test_what_is_being_made_again_is_not_once_the_runtime_is_uninstalled():
    state, watched = SimpleNamespace(scheduler=None), SimpleNamespace(leave=lambda listener: None)
    held = Held(state, watched, SimpleNamespace(folders=set), None, None, None)
    held._task = asyncio.ensure_future(asyncio.Event().wait())
    held.end()
    await asyncio.wait([held._task], timeout=5)
    assert held._task.cancelled()


@live(workers=1)
async def test_a_version_that_is_held_again_in_part_is_not_called_whole(c, s, a, monkeypatch):
    rt = await dask_hpc.install(c)
    data = await step(c, 0)
    await rt.checkpoint(data, "field", levels=("L1", "L2"))
    held = of(s).commits._held

    async def partly(*_: Any, **__: Any) -> Any:
        return ("L1", "L2"), "L2: 1 of 5 hosts are in no set", False

    monkeypatch.setattr(held, "write", partly)
    (folder,) = held._versions
    await held._again(folder, True)
    (row,) = held.status()
    assert (row["state"], row["reason"].partition(";")[0]) == ("less", "L2: 1 of 5 hosts are in no set")
    del data


@live(workers=1)
async def test_a_manager_that_ends_while_it_is_looked_at_fails_no_heartbeat(c, s, a, monkeypatch):
    rt = await dask_hpc.install(c)
    await rt.checkpoint(await step(c, 0), "field", levels="L1")
    manager = a.metrics[HEARTBEAT].section("manager")
    told = manager()
    assert 0 < told["held_bytes"] <= told["limit_bytes"]

    def ended(folder):
        raise FileNotFoundError(folder)

    monkeypatch.setattr(host_memory, "held_bytes", ended)
    assert manager() == {**told, "held_bytes": 0, "disk_bytes": 0, "limit_bytes": 0}


@requires_ipv6
@gen_test(timeout=60)
async def test_hosts_that_have_addresses_of_ipv6_have_managers():
    at = {"host": "tcp://[::1]", "port": 0}
    async with (
        Scheduler(**at, dashboard_address=":0") as s,
        Worker(s.address, **at, name="one"),
        Client(s.address, asynchronous=True) as c,
    ):
        rt = await dask_hpc.install(c)
        data = await c.scatter([np.arange(10)])
        commit = await rt.checkpoint(data, "data", levels=("L1",))
        assert (await commit.status())["levels"] == ["L1"]
        (again,) = await dask_hpc.restore("data", c, allow_pickle=True)
        np.testing.assert_array_equal(await again, np.arange(10))
