"""A scheduler is lost, and the next one knows what is in the memory of hosts: names, labels, checksums."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from distributed import Security
from encrypted import fields
from helpers import engine, live, traces_of_ours, until
from killed_controller import COUNT, field, simulate
from outside import FORKED

import dask_hpc
from dask_hpc.checkpoint.record import records
from dask_hpc.checkpoint.segments import segment_path
from dask_hpc.doctor.store import _taken_over
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker import left_behind
from dask_hpc.worker.fetching import ask
from dask_hpc.worker.host_process import folders, join, occupied
from dask_hpc.worker.left_behind import LeftBehind, Owner, answers, read_owner, write_owner
from dask_hpc.worker.managers import listening

# nothing of other tests is taken over
pytestmark = pytest.mark.usefixtures("memory")


@contextmanager
def earlier(*arguments):
    """Another cluster with versions in the memory of two hosts; and what it leaves behind."""
    before = set(folders())
    # as a module: keys of tasks are made of the names of their functions
    command = [sys.executable, "-c", f"import killed_controller; killed_controller.main(*{arguments!r})"]
    env = {**os.environ, **FORKED, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            left = [folder for folder in folders() if folder not in before and records(str(folder))]
            assert len(left) == 2
            yield process, left
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for folder in set(folders()) - before:
                with suppress(OSError, ValueError):
                    os.kill(listening(folder)["pid"], signal.SIGKILL)
                shutil.rmtree(folder, ignore_errors=True)


def names(s):
    return {record.name for record in of(s).commits._memory.records.values()}


def taken(s):
    return of(s).commits.status().get("checkpoints", {}).get("taken_over")


def damage(folder):
    """Change every byte of what one host holds."""
    for path in folder.glob("*.segment"):
        content = np.fromfile(path, np.uint8)
        (content ^ 1).tofile(path)


def test_the_next_scheduler_has_what_one_that_was_killed_had_in_memory(tmp_path):
    notes = tmp_path / "notes"
    with earlier(str(notes)) as (process, left):
        taken_over(process, left, notes)


def taken_over(process, left, notes):
    managers = [listening(folder)["pid"] for folder in left]

    @live(workers=1)
    async def beside_one_that_lives(c, s, a):
        await dask_hpc.install(c)
        with pytest.raises(ValueError, match="no host holds 'field' in memory"):
            await dask_hpc.restore("field", c)
        assert (names(s), taken(s)) == (set(), None)
        # as for a version that is still being written
        address = listening(left[0])["address"]
        answer = await ask(a.rpc, address, "reserve", nbytes=10, version="1" * 32)
        unfinished.append(segment_path(str(left[0]), answer["segment"]))

    unfinished: list[str] = []
    beside_one_that_lives()
    owners = {read_owner(folder) for folder in left}
    assert len(owners) == 1
    # the process of the scheduler alone; what else there is ends as it does
    process.kill()
    damage(left[0])

    @live(workers=2, config={"hpc.checkpoint.every": "100 ms", "hpc.tick": "50 ms"})
    async def after_it(c, s, a, b):
        rt = await dask_hpc.install(c)
        await until(lambda: names(s) == {"field", "night"}, "all is taken over")
        # each host tells of its own, and has then dropped what was not finished
        await until(lambda: not os.path.exists(*unfinished), "what was not finished is gone")
        assert traces_of_ours(s) == [], "what nobody has asked for costs no task anything"
        assert taken(s)["asked"] == []
        owner = read_owner(left[0])
        assert owner.taken_s == left_behind._taken_s(left[0], owner), "nobody has had use of it"
        back = await dask_hpc.restore("field", c)
        assert taken(s)["asked"] == ["field"]
        # should this scheduler be killed, too, it is left anew
        assert owner.taken_s < left_behind._taken_s(left[0], owner)
        assert isinstance(back, xr.DataArray)
        assert traces_of_ours(s) == ["plugin dask-hpc-watched"]
        xr.testing.assert_identical(await c.compute(back), field(2))
        assert names(s) == {"field", "night"}
        told = taken(s)
        assert told["results"] == 4 + COUNT
        assert told["age_s"] < 60
        assert [listening(folder)["pid"] for folder in left] == managers
        assert all(occupied(folder) for folder in left)
        status = await rt.status()
        assert status["checkpoints"]["taken_over"]["versions"] == told["versions"]
        # once, whatever number of its hosts had something
        assert status["losses"]["several"] == 1
        (row,) = _taken_over(told)
        assert (row.verdict, f"{4 + COUNT} results" in row.text) == ("ok", True)
        # results of a job: they are asked for by name, and not computed again
        with pytest.raises(CheckpointError, match=f"hold in memory {COUNT} results of an earlier run"):
            await rt.job("night", protect=True).activate()
        ran = notes.read_text()
        with pytest.warns(UserWarning, match="in the memory of hosts alone"):
            job = await rt.job("night", protect=True, resume=True).activate()
        found = await c.gather(c.map(simulate, range(4), notes=str(notes)))
        # what the job has not asked for yet stays when it has let go of all else
        await until(lambda: not any("simulate" in str(key) for key in s.tasks), "nobody has them")
        found += await c.gather(c.map(simulate, range(4, COUNT), notes=str(notes)))
        assert [values[0] for values in found] == list(range(COUNT))
        assert notes.read_text() == ran
        await job.close()
        # a newer version takes the place of the one that was left, and what nobody reads any more goes
        del back, found
        newer = c.persist(field(3).chunk({"y": 20}))
        await rt.checkpoint(newer, "field", levels=["L1"])
        await until(lambda: not any(records(str(folder)) for folder in left), "what was left is dropped")
        xr.testing.assert_identical(await c.compute(await dask_hpc.restore("field", c)), field(3))

    after_it()


@live(workers=1)
async def test_a_scheduler_that_answers_is_there_and_nobody_else_is_taken_for_it(c, s, a, monkeypatch):
    assert await answers(a.rpc, Owner(s.id, s.address))
    # another one listens where that did
    assert not await answers(a.rpc, Owner("Scheduler-of-before", s.address))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert not await answers(a.rpc, Owner(s.id, f"tcp://127.0.0.1:{nobody.getsockname()[1]}"))
    assert not await answers(a.rpc, Owner(s.id, "inproc://10.0.0.1/1/1"))

    async def silent(**_):
        raise TimeoutError

    # somebody is there, and it may be that one
    monkeypatch.setattr(left_behind, "_ANSWER_S", 0.3)
    assert await answers(lambda address: SimpleNamespace(identity=silent), Owner(s.id, s.address))


@live(workers=1)
async def test_a_scheduler_that_is_being_killed_is_not_there(c, s, a):
    accepted = []

    async def accept(reader, writer):
        # the first one only looks whether somebody listens; what comes next breaks, as does the port
        accepted.append(writer)
        if len(accepted) > 1:
            server.close()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1")
    host, port = server.sockets[0].getsockname()
    assert not await answers(a.rpc, Owner("Scheduler-of-before", f"tcp://{host}:{port}"))
    assert len(accepted) > 1


@live(workers=2)
async def test_who_asks_before_all_workers_have_looked_is_told_so(c, s, a, b, monkeypatch):
    await dask_hpc.install(c)
    looked = LeftBehind.looked

    async def busy(look):
        return look._worker is not b and await looked(look)

    monkeypatch.setattr(LeftBehind, "looked", busy)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"1 worker did not tell .* is {b.address}; ask again"):
            await dask_hpc.restore("nothing", c)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="no host holds 'nothing' in memory"):
        await dask_hpc.restore("nothing", c)


@live(workers=0)
async def test_a_scheduler_that_has_left_nothing_was_not_lost(c, s):
    rt = await dask_hpc.install(c)
    left, where = of(s).commits.left, ("tcp://127.0.0.1:1", "/dev/shm/dask-hpc-0-left")
    await left.took_over(*where, "one that was closed", [])
    await left.took_over(*where, "another one", ["{}"])
    assert not engine(s).losses.count
    # what nobody has asked for by then is not looked for without the runtime
    left._memory.records["1" * 32] = None
    left._memory.touch("1" * 32, False)
    await rt.uninstall()
    left._expire({"1" * 32})


@live(workers=1)
async def test_nobody_takes_what_belongs_to_a_scheduler_that_answers(c, s, a, tmp_path):
    async def take(process, share):
        raise AssertionError(f"{process.folder} was taken")

    folder, owner = tmp_path / "dask-hpc-left", Owner(s.id, s.address)
    folder.mkdir(mode=0o700)
    os.close(join(folder))
    write_owner(folder, owner)
    other, wanted = Owner("Scheduler-of-another", "tcp://127.0.0.1:1"), {"linger_s": 1.0, "share": 0.1}
    assert await LeftBehind(a, take)._settled(folder, other, time.time(), wanted)
    assert read_owner(folder) == owner
    # nor what was left after one had begun: that is for who comes after the one that was lost
    write_owner(folder, gone := Owner("Scheduler-of-before", "tcp://127.0.0.1:1"))
    assert await LeftBehind(a, take)._settled(folder, other, time.time() - 3600.0, wanted)
    # and of two that come one is first
    assert not left_behind._noted(folder, owner, other)
    assert read_owner(folder) == gone
    # nor does one that anybody can read take what was encrypted
    write_owner(folder, gone := Owner("Scheduler-of-before", "tls://127.0.0.1:1"))
    assert await LeftBehind(a, take)._settled(folder, other, time.time(), wanted)
    assert read_owner(folder) == gone


@pytest.mark.slow
def test_a_scheduler_without_workers_there_finds_by_the_store_what_is_then_dropped(tmp_path, monkeypatch):
    store = str(tmp_path / "store")
    # time enough to ask for what was left, also on a busy machine
    config = {"hpc.checkpoint.store": store, "hpc.checkpoint.linger": "10 s"}
    # no worker of the next cluster is on these hosts
    monkeypatch.setattr(left_behind, "folders", list)
    with earlier(str(tmp_path / "notes"), store) as (process, left):

        @live(workers=1, config=config)
        async def beside_one_that_lives(c, s, a):
            await dask_hpc.install(c)
            with pytest.raises(CheckpointError, match="no checkpoint is called 'field'"):
                await dask_hpc.restore("field", c)

        beside_one_that_lives()
        process.kill()

        @live(workers=1, config=config)
        async def after_it(c, s, a):
            await dask_hpc.install(c)
            back = await dask_hpc.restore("field", c)
            xr.testing.assert_identical(await c.compute(back), field(2))
            del back
            await until(lambda: not any(records(str(folder)) for folder in left), "nobody wants it")

        after_it()


@pytest.mark.slow
def test_what_nobody_asks_for_is_dropped(tmp_path):
    with earlier(str(tmp_path / "notes")) as (process, left):
        process.kill()

        @live(workers=1, config={"hpc.checkpoint.linger": "1 s"})
        async def after_it(c, s, a):
            await dask_hpc.install(c)
            await until(lambda: taken(s), "it is taken over")
            await until(lambda: not names(s), "nobody has asked for it")
            await until(lambda: not any(records(str(folder)) for folder in left), "it is dropped")
            with pytest.raises(ValueError, match="no host holds 'field' in memory"):
                await dask_hpc.restore("field", c)

        after_it()


@pytest.mark.slow
def test_what_clusters_take_over_from_each_other_without_a_use_of_it_is_dropped_as_if_one_had_it(tmp_path):
    with earlier(str(tmp_path / "notes")) as (process, left):
        process.kill()

        @live(workers=1)
        async def comes_and_goes(c, s, a):
            await dask_hpc.install(c)
            await until(lambda: names(s) == {"field", "night"}, "all is taken over")

        @live(workers=1)
        async def comes_late(c, s, a):
            await dask_hpc.install(c)
            await until(lambda: taken(s), "it is taken over")
            await until(lambda: not names(s), "nobody has asked for it")
            await until(lambda: not any(records(str(folder)) for folder in left), "it is dropped")

        comes_and_goes()
        comes_and_goes()
        for folder in left:
            for path in records(str(folder)):
                os.utime(path, (0.0, time.time() - 7200.0))
            write_owner(folder, replace(read_owner(folder), taken_s=time.time() - 3600.0))
        comes_late()


@pytest.mark.slow
def test_encrypted_clusters_take_over_from_each_other_and_others_do_not(tmp_path):
    keys = fields(tmp_path)
    with earlier(str(tmp_path / "notes"), None, keys) as (process, _):
        security = Security(**keys)

        @live(workers=1, security=security)
        async def beside_one_that_lives(c, s, a):
            await dask_hpc.install(c)
            with pytest.raises(ValueError, match="no host holds 'field' in memory"):
                await dask_hpc.restore("field", c)

        beside_one_that_lives()
        process.kill()

        @live(workers=1)
        async def open_to_all(c, s, a):
            await dask_hpc.install(c)
            with pytest.raises(ValueError, match="no host holds 'field' in memory"):
                await dask_hpc.restore("field", c)

        open_to_all()

        @live(workers=1, security=security)
        async def after_it(c, s, a):
            await dask_hpc.install(c)
            back = await dask_hpc.restore("field", c)
            xr.testing.assert_identical(await c.compute(back), field(2))

        after_it()


@pytest.mark.errors("No space left on device")
@live(workers=1)
async def test_whose_a_manager_is_is_known_also_where_memory_was_full_at_first(c, s, a, monkeypatch):
    """Else nobody would take over what it holds."""
    rt, write = await dask_hpc.install(c), Path.write_text

    def full(path, *args, **more):
        if path.name.startswith("owner.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, *args, **more)

    value = c.submit(np.arange, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            await rt.checkpoint(value, "value", levels="L1")
    await rt.checkpoint(value, "value", levels="L1")
    (folder,) = folders()
    assert read_owner(folder) == Owner(s.id, s.address)
    assert not list(folder.glob("owner.json.*"))
