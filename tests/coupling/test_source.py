"""What a producer makes of what it is given, before it connects, and from where it may be called."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sys
import threading
from contextlib import closing, nullcontext
from pathlib import Path
from subprocess import DEVNULL
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from coupled import opened, started
from helpers import live, until
from sources import asked, nothing_left, producers, told, whole

import dask_hpc
from dask_hpc.coupling.adios import shares
from dask_hpc.coupling.given import calling
from dask_hpc.coupling.kept import Kept
from dask_hpc.errors import CouplingError, InstallError
from dask_hpc.wire import COUPLE
from dask_hpc.worker.coupling import receiver, room
from dask_hpc.worker.coupling.ring import Ring, RingEnd
from dask_hpc.worker.host_process import memory_folder
from dask_hpc_policies.coupling.contract import Field


def test_a_source_says_in_one_line_what_is_wrong_with_where_the_scheduler_is(tmp_path: Path) -> None:
    empty, torn = tmp_path / "empty.json", tmp_path / "torn.json"
    empty.write_text("{}")
    torn.write_text('{"address": "tcp')
    for path in (empty, torn, tmp_path / "none.json"):
        with pytest.raises(ValueError, match="is not a scheduler file: ") as caught:
            dask_hpc.Source("heat", path, timeout=0)
        assert "\n" not in str(caught.value)
    for seconds in ("5", -1, float("nan"), True):
        with pytest.raises(ValueError, match=r"timeout is .*; allowed: a finite number of seconds"):
            dask_hpc.Source("heat", "tcp://127.0.0.1:1", timeout=seconds)


@live(workers=1, timeout=60)
async def test_a_source_goes_on_that_is_called_where_it_cannot_be_and_whose_process_forks(c, s, a):
    flow, values = await started(c)
    async with producers(s, (0, 8)) as made:
        await opened(made)
        assert await asked(made[0], "send", step=0) is True
        # the child leaves the block of its copy, as by sys.exit
        assert await asked(made[0], "fork") == 2
        assert (await asked(made[0], "loop"))["text"].startswith("a Source blocks: call it outside")
        assert await asked(made[0], "send", step=1) is True
        made[0].tell("close")
        assert [each async for each in values] == [(0, 0.0), (1, 1.0)]
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_source_that_may_not_communicate_where_it_is_called_sends_all_the_same(c, s, a):
    flow, values = await started(c)
    source = await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=20)
    with pytest.raises(RuntimeError, match="a Source blocks: call it outside"), source.communicating():
        pytest.fail("it is refused")
    assert await asyncio.to_thread(source.send, 0, {"T": whole(0)}) is True
    assert await anext(values) == (0, 0.0)
    await asyncio.to_thread(source.close)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_what_ends_the_block_of_a_source_is_raised_and_told_wherever_that_is(c, s, a):
    def left(source: dask_hpc.Source) -> None:
        # the name of a file, say, that is no UTF-8
        with pytest.raises(OSError, match="no file"), source:
            raise OSError("no file \udc80")

    flow, values = await started(c)
    source = await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=20)
    left(source)  # an event loop runs here
    with pytest.raises(CouplingError, match=r"rank 0 has ended with OSError: no file \?$"):
        await anext(values)
    await flow.close()

    # another thread waits for room in the queue
    flow, values = await started(c, queue=1)
    source = await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=20)
    assert await asyncio.to_thread(source.send, 0, {"T": whole(0)}) is True
    sending = asyncio.ensure_future(asyncio.to_thread(source.send, 1, {"T": whole(1)}))
    await until(source._loop.is_running, "it is in a call")
    await asyncio.to_thread(left, source)
    with pytest.raises(CouplingError, match="source 0 of 'heat' is closed"):
        await asyncio.wait_for(sending, 20)
    assert await anext(values) == (0, 0.0)
    with pytest.raises(CouplingError, match="rank 0 is gone without a word"):
        await anext(values)
    await flow.close()
    await nothing_left(s, a)


#: A rank that ends by an error; the end of MPI, which waits for the other ranks, is to come in its turn.
RANK = """
import atexit, sys, time
sys.modules["mpi4py.MPI"] = time
atexit.register(time.sleep, 60)
import numpy as np, dask_hpc
source = dask_hpc.Source("heat", sys.argv[1], timeout=20)
source.send(0, {"T": np.zeros((8, 6))})
raise ValueError
"""


@live(workers=1, timeout=60)
async def test_a_program_that_ends_is_gone_before_mpi_waits_for_its_other_ranks(c, s, a):
    flow, values = await started(c)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", RANK, s.address, stderr=DEVNULL)
    try:
        # its value may be lost with the flow
        with pytest.raises(CouplingError, match="rank 0 is gone without a word"):
            print([value async for value in values])
    finally:
        process.kill()
        await process.wait()
    await flow.close()
    await nothing_left(s, a)


def test_a_source_is_for_one_thread_at_a_time() -> None:
    there, left, lock = threading.Event(), threading.Event(), threading.Lock()

    def calls() -> None:
        # its loop does not run yet
        with calling(loop, lock, os.getpid()):
            there.set()
            left.wait(30)

    with closing(asyncio.new_event_loop()) as loop:
        other = threading.Thread(target=calls)
        other.start()
        try:
            assert there.wait(30)
            refused = pytest.raises(RuntimeError, match="another thread is in a call of this Source")
            with refused, calling(loop, lock, os.getpid()):
                pass
        finally:
            left.set()
            other.join()
        with calling(loop, lock, os.getpid()):
            pass


def test_processes_share_the_first_dimension_of_all_fields_in_whole_rows() -> None:
    T, P = Field("T", ("y", "x"), (8, 6), "float64"), Field("P", ("y",), (8,), "float32")
    parts = [shares([T, P], rank, 3) for rank in range(3)]
    assert [each["T"] for each in parts] == [((0, 0), (2, 6)), ((2, 0), (3, 6)), ((5, 0), (3, 6))]
    assert [each["P"] for each in parts] == [((0,), (2,)), ((2,), (3,)), ((5,), (3,))]
    with pytest.raises(
        ValueError, match="size is 9; allowed: 1 to 8, as fields have the first dimension 'y'"
    ):
        shares([T, P], 0, 9)
    with pytest.raises(ValueError, match=r"allowed: 1 to 1, as .* 'x' of 6, 'y' of 8"):
        shares([T, Field("Q", ("x",), (6,), "float64")], 0, 2)


def test_a_ring_takes_no_more_than_half_of_what_is_left_of_the_memory(monkeypatch) -> None:
    for left, fits in ((4 * 4096, True), (4 * 4096 - 1, False)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda left=left: SimpleNamespace(available=left))
        refused = pytest.raises(OSError, match="a ring takes 8,192 bytes; allowed: half")
        with nullcontext() if fits else refused:
            Ring(1, 4096).opened()


@pytest.mark.parametrize(
    ("limit", "fractions", "left"),
    [
        (1000, (0.6, 0.7, 0.8), 200),
        # its user has data moved to disk before that, or nothing moved at all
        (1000, (0.4, 0.7, 0.8), 100),
        (1000, (False, False, False), 200),
        # each ring would take half of what the one before it has left of the host
        (None, (0.6, 0.7, 0.8), 700),
    ],
)
def test_a_worker_has_half_of_its_memory_limit_for_rings_and_all_else_that_it_holds(
    limit, fractions, left, monkeypatch
):
    monkeypatch.setattr(room, "MEMORY_LIMIT", 2000)
    names = "memory_target_fraction", "memory_spill_fraction", "memory_pause_fraction"
    manager = SimpleNamespace(memory_limit=limit, **dict(zip(names, fractions, strict=True)))
    monitor = SimpleNamespace(get_process_memory=lambda: 300)
    assert room.left_of_limit(SimpleNamespace(memory_manager=manager, monitor=monitor)) == left


def test_a_ring_is_weighed_against_what_its_worker_holds_with_the_rings_before_it() -> None:
    size, held = 64 * 2**20, psutil.Process().memory_info

    def allowed_bytes() -> float:
        return most - held().rss

    most = held().rss + 1.5 * size
    one = Ring(1, size, allowed_bytes)
    one.opened()
    with pytest.raises(OSError, match=r"allowed: [\d,]+ of its worker's memory limit; give it more memory"):
        Ring(1, size, allowed_bytes)


@live(workers=1, timeout=60)
async def test_blocks_whose_ring_would_have_their_worker_paused_go_over_the_connection(c, s, a, monkeypatch):
    half = a.memory_manager.memory_limit // 2
    for held, ways in ((half - 2**14, [0, 3]), (half - 2**20, [3, 0])):
        monkeypatch.setattr(a.monitor, "get_process_memory", lambda held=held: held)
        flow, values = await started(c)
        async with producers(s, (0, 8)) as made:
            await opened(made)
            made[0].tell("many", first=0, last=3)
            assert [await anext(values) for _ in range(3)] == [(n, float(n)) for n in range(3)]
            assert await told(made[0]) == ways
        await flow.close()
    await nothing_left(s, a)


def test_a_ring_is_in_memory_where_the_folder_has_no_room(monkeypatch) -> None:
    def where(ring: Ring) -> str:
        path = f"/proc/self/fd/{ring.told['descriptor']}"
        end, reserved_bytes = RingEnd(ring.told), 512 * os.stat(path).st_blocks
        assert (end.slot_bytes, reserved_bytes >= ring.told["size"]) == (40960, True)
        end.put(1, [np.arange(10.0)])
        found = ring.slot(1)[:80].view("float64").tolist()
        assert found == list(range(10))
        name = os.readlink(path)
        ring.opened()
        return "beside" if name.startswith("/memfd:") else "in the folder"

    assert where(Ring(2, 40960)) == "in the folder"
    real, blocks = os.posix_fallocate, []
    told = SimpleNamespace(f_blocks=1, f_frsize=2**20 + 1, f_bavail=8)
    monkeypatch.setattr(os, "statvfs", lambda folder: told)
    assert where(Ring(2, 40960)) == "beside"
    # others take it meanwhile
    monkeypatch.setattr(told, "f_bavail", 9)

    def taken(descriptor: int, *args: int) -> None:
        blocks.append(descriptor)
        if len(blocks) == 1:
            raise OSError(errno.ENOSPC, "none left")
        real(descriptor, *args)

    monkeypatch.setattr(os, "posix_fallocate", taken)
    assert (where(Ring(2, 40960)), len(blocks)) == ("beside", 2)
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(told, "f_bavail", 8)
    with pytest.raises(OSError, match="has no room for a ring of 86,016 bytes"):
        Ring(2, 40960)


def test_rings_are_weighed_and_reserved_one_after_the_other(monkeypatch) -> None:
    beside = []

    def looked(real):
        def look(*args):
            other = os.open(memory_folder(), os.O_RDONLY)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                beside.append(real.__name__)
            finally:
                os.close(other)
            return real(*args)

        return look

    monkeypatch.setattr(psutil, "virtual_memory", looked(psutil.virtual_memory))
    monkeypatch.setattr(os, "posix_fallocate", looked(os.posix_fallocate))
    for _ in range(2):
        Ring(1, 4096).opened()
    assert beside == ["virtual_memory", "posix_fallocate"] * 2


def test_a_folder_that_somebody_keeps_locked_is_not_waited_for_for_ever(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(room, "_LOCK_S", 0.02)
    with room.alone(tmp_path), pytest.raises(OSError, match="locked by others"):
        room.alone(tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("told", "folder", "limit", "used", "files"),
    [
        ("0::/job/step", "job", "max", "current", "inactive_file"),
        ("4:cpu,memory:/a\n0::/", "memory/a", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
        # a container sees its own group as the topmost, whatever it is told of it
        ("0::/../host/group", ".", "max", "current", "inactive_file"),
    ],
)
def test_no_more_is_left_than_a_memory_group_has(told, folder, limit, used, files, tmp_path: Path) -> None:
    mine, group = tmp_path / "mine", tmp_path / "groups" / folder
    group.mkdir(parents=True)
    mine.write_text(f"{told}\n")
    free = room.left_bytes(mine, tmp_path / "groups")
    (group / f"memory.{limit}").write_text("1000000\n")
    (group / f"memory.{used}").write_text("700000\n")
    (group / "memory.stat").write_text(f"anon 1\n{files} 50000\n")
    assert free > 2**20
    assert room.left_bytes(mine, tmp_path / "groups") == 350_000
    (group / f"memory.{used}").write_text("1200000\n")
    assert room.left_bytes(mine, tmp_path / "groups") == 0
    (group / f"memory.{limit}").write_text("max\n")
    assert room.left_bytes(mine, tmp_path / "groups") > 2**20


@live(workers=1, timeout=60)
async def test_a_worker_that_has_no_dask_hpc_is_named_to_the_source_that_is_sent_there(c, s, a, monkeypatch):
    flow, _ = await started(c)
    monkeypatch.delitem(a.handlers, COUPLE)
    with pytest.raises(InstallError, match=f"worker {a.address} has no dask_hpc, .*: install the same one"):
        await asyncio.to_thread(dask_hpc.Source, "heat", s.address, timeout=20)
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_blocks_that_grow_each_step_do_not_get_a_ring_each(c, s, a, monkeypatch):
    sizes, real = [], receiver.Ring

    def counted(slots, nbytes, *more):
        sizes.append(nbytes)
        return real(slots, nbytes, *more)

    monkeypatch.setattr(receiver, "Ring", counted)
    rt = await dask_hpc.install(c)
    # a row takes a page of its ring, and one rank has a row more each step
    flow = await rt.couple("heat", {"T": (("y", "x"), (40, 512), "float64")})
    await flow.analyse(lambda ds: float(ds["T"].sum()), name="sum")
    values = flow.results("sum", timeout=30)

    def send(rank):
        with dask_hpc.Source("heat", s.address, rank=rank, size=2, timeout=20) as source:
            for step in range(12):
                first, last = ((0, 10 + step), (10 + step, 40))[rank]
                source.send(step, {"T": np.ones((last - first, 512))}, at={"y": first})
            return source.by_ring + source.by_comm

    sent = asyncio.gather(*[asyncio.to_thread(send, rank) for rank in range(2)])
    assert [each async for each in values] == [(step, 40.0 * 512) for step in range(12)]
    assert await sent == [12, 12]
    # of the one 10 pages, and twice half as many again, and of the other those of its first blocks
    assert sorted(sizes) == [pages * 4096 for pages in (10, 15, 22.5, 30)]
    await flow.close()
    await nothing_left(s, a)


def test_a_step_can_be_sent_again_until_its_slot_is_free() -> None:
    ring = Ring(2, 80)
    end, kept = RingEnd(ring.told), Kept()
    ring.opened()
    for step in (4, 5):
        slot = end.free.popleft()
        _, copies = end.put(slot, [np.full(10, step, "float64")])
        kept.add(step, end, slot, [{"field": "T"}], copies)
    array = ring.slot(1)
    del ring, array  # the worker is gone, the memory is not
    assert (list(kept), kept.blocks(5)[1][0].tolist()) == ([4, 5], [5.0] * 10)
    # it goes to another worker, or with the message
    other = Ring(1, 80)
    again = RingEnd(other.told)
    other.opened()
    _, copies = again.put(0, kept.blocks(5)[1])
    kept.add(5, again, 0, kept.blocks(5)[0], copies)
    kept.freed(end, [0, 1])
    assert (list(kept), kept.blocks(5)[1][0].tolist()) == ([5], [5.0] * 10)
    kept.freed(again, [0])
    assert list(kept) == []
    # of what goes over the connection there are copies, of the latest steps alone
    block = np.full(10, 6.0)
    for step in (6, 7, 8):
        kept.copy(step, [{"field": "T"}], [block], 2)
        block += 1
    assert [(step, kept.blocks(step)[1][0][0]) for step in kept] == [(7, 7.0), (8, 8.0)]
    # those in a slot are none of them
    kept.add(5, again, 0, [{"field": "T"}], copies)
    kept.copy(9, [{"field": "T"}], [block], 2)
    assert list(kept) == [8, 5, 9]
    # what lies in a ring that another has replaced is copied, or let go of
    kept.replace(again, 3)
    kept.copy(10, [{"field": "T"}], [block], 3)
    assert list(kept) == [8, 9, 10]
    kept.add(11, again, 0, [{"field": "T"}], copies)
    kept.replace(again, 0)
    kept.leave([8, 11])
    assert list(kept) == [8]
