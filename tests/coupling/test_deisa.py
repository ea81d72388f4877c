"""Programs for deisa-dask run with one import changed: four ranks, two arrays, its documented calls."""

from __future__ import annotations

import asyncio
import sys
import threading

import numpy as np
import pytest
from helpers import live, traces_of_ours, until
from sources import nothing_left

import dask_hpc
from dask_hpc.coupling.deisa import Bridge
from dask_hpc.errors import CouplingError

#: Cartesian positions of the four ranks.
POSITIONS = [(0, 0), (0, 1), (1, 0), (1, 1)]


class Communicators:
    """A communicator of threads with the methods of MPI's."""

    def __init__(self, size):
        self.barrier, self.slots = threading.Barrier(size), [None] * size

    def of(self, rank):
        return Communicator(self, rank)


class Communicator:
    def __init__(self, shared, rank):
        self.shared, self.rank = shared, rank

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return len(self.shared.slots)

    def gather(self, data, root=0):
        self.shared.slots[self.rank] = data
        self.shared.barrier.wait(20)
        found = list(self.shared.slots) if self.rank == root else None
        self.shared.barrier.wait(20)
        return found

    def bcast(self, obj, root=0):
        if self.rank == root:
            self.shared.slots[root] = obj
        self.shared.barrier.wait(20)
        found = self.shared.slots[root]
        self.shared.barrier.wait(20)
        return found


def chunk(step, rank):
    return np.full((10, 10), 10.0 * step + rank)


def program(comm):
    """What a rank of a program for deisa-dask does; only two ranks have a pressure."""
    rank = comm.Get_rank()
    metadata = {
        "temperature": {"global_shape": [20, 20], "chunk_shape": [10, 10], "chunk_position": POSITIONS[rank]}
    }
    if rank in (1, 3):
        metadata["pressure"] = {"global_shape": [2], "chunk_shape": [1], "chunk_position": [rank // 2]}
    bridge = Bridge(comm, arrays_metadata=metadata, wait_for_go=True, timeout=30)
    for step in range(3):
        bridge.send("temperature", chunk(step, rank), timestep=step)
        if "pressure" in metadata:
            bridge.send(
                array_name="pressure", chunk=np.array([float(rank)]), timestep=step, update_workers=True
            )
    with pytest.raises(ValueError, match="array 'wind' was not declared; allowed: "):
        bridge.send("wind", chunk(0, 0), 3)
    with pytest.raises(CouplingError, match="carry no feedback"):
        bridge.get("dt", 0)
    with pytest.raises(ValueError, match=r"step is 3\.5; allowed: a whole number"):
        bridge.send("temperature", chunk(0, 0), 3.5)
    bridge.close(timestep=3)


@live(workers=2, timeout=60)
async def test_a_program_for_deisa_dask_runs_as_it_is(c, s, a, b, monkeypatch):
    monkeypatch.setenv("DEISA_DASK_SCHEDULER_ADDRESS", s.address)
    rt = await dask_hpc.install(c)
    fields = {"temperature": (("y", "x"), (20, 20), "float64"), "pressure": (("z",), (2,), "float64")}
    flows = {name: await rt.couple(name, {name: said}) for name, said in fields.items()}
    for name, flow in flows.items():
        await flow.analyse(lambda ds, name=name: ds[name].values[0].tolist(), name="all")
    readers = {name: flow.results("all", timeout=30) for name, flow in flows.items()}
    shared = Communicators(4)
    running = [asyncio.create_task(asyncio.to_thread(program, shared.of(rank))) for rank in range(4)]
    found = {name: asyncio.create_task(_all(reader)) for name, reader in readers.items()}
    await asyncio.gather(*running)
    whole = [np.block([[chunk(t, 0), chunk(t, 1)], [chunk(t, 2), chunk(t, 3)]]).tolist() for t in range(3)]
    assert await found["temperature"] == list(enumerate(whole))
    assert await found["pressure"] == [(step, [1.0, 3.0]) for step in range(3)]
    for flow in flows.values():
        await flow.close()
    await nothing_left(s, a, b)


#: A program of one rank that ends by an error after its first step.
CRASHES = """
import numpy as np
from dask_hpc.coupling.deisa import Bridge

class Alone:
    def Get_rank(self): return 0
    def gather(self, data, root=0): return [data]
    def bcast(self, obj, root=0): return obj

said = {"global_shape": [2], "chunk_shape": [2], "chunk_position": [0]}
bridge = Bridge(Alone(), {"T": said}, timeout=30)
bridge.send("T", np.zeros(2), 0)
raise SystemExit(3)
"""


@live(workers=1, timeout=60)
async def test_a_program_that_ends_without_close_fails_its_flow(c, s, a, monkeypatch):
    monkeypatch.setenv("DEISA_DASK_SCHEDULER_ADDRESS", s.address)
    rt = await dask_hpc.install(c)
    flow = await rt.couple("T", {"T": (("x",), (2,), "float64")})
    await flow.analyse(lambda ds: float(ds["T"].sum()), name="sum")
    values = flow.results("sum", timeout=30)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CRASHES)
    assert await anext(values) == (0, 0.0)
    with pytest.raises(CouplingError, match="rank 0 is gone without a word"):
        await anext(values)
    assert await process.wait() == 3
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_bridge_that_cannot_be_made_leaves_no_reader_waiting(c, s, a, monkeypatch):
    monkeypatch.setenv("DEISA_DASK_SCHEDULER_ADDRESS", s.address)
    rt = await dask_hpc.install(c)
    flow = await rt.couple("T", {"T": (("x",), (2,), "float64")})
    await flow.analyse(lambda ds: float(ds["T"].sum()), name="sum")
    values = flow.results("sum", timeout=10)
    said = {"global_shape": [2], "chunk_shape": [2], "chunk_position": [0]}
    alone = Communicators(1).of(0)
    with pytest.raises(CouplingError, match="there is no flow 'U'") as kept:
        await asyncio.to_thread(Bridge, alone, {"T": said, "U": said}, timeout=0.2)
    # though the program goes on, and keeps what was raised
    with pytest.raises(CouplingError, match=r"rank 0 has ended with CouplingError: .* there is no flow 'U'"):
        await anext(values)
    assert kept.value.__traceback__ is not None
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=60)
async def test_a_chunk_or_shape_that_is_none_of_the_array_is_refused_and_nothing_changed(
    c, s, a, monkeypatch
):
    monkeypatch.setenv("DEISA_DASK_SCHEDULER_ADDRESS", s.address)
    rt = await dask_hpc.install(c)
    flow = await rt.couple("T", {"T": (("x",), (5,), "float64")})
    await flow.analyse(lambda ds: ds["T"].values[0].tolist(), name="all")
    values = flow.results("all", timeout=30)
    shapes = [[3], [2]]

    def rank(number, comm):
        # counted in chunks of its own shape, the second one would begin at 2
        said = {"global_shape": [5], "chunk_shape": shapes[number], "chunk_position": [number]}
        with pytest.raises(
            ValueError, match=r"chunk_shape of 'T' is \[2\] of rank 1; allowed: \[3\], as of 0"
        ):
            Bridge(comm, {"T": said}, timeout=30)
        # the last one is shorter where they do not divide the whole
        bridge = Bridge(comm, {"T": {**said, "chunk_shape": [3]}}, timeout=30)
        for wrong in ([1.0], [[1.0, 1.0]], 1.0, np.ones(4)):
            with pytest.raises(
                ValueError, match=rf"chunk of 'T' has shape .*; needed: \({shapes[number][0]},\)"
            ):
                bridge.send("T", wrong, 0)
        bridge.send("T", np.full(shapes[number], 1.0 + number), 0)
        bridge.close()

    comms = Communicators(2)
    await asyncio.gather(*[asyncio.to_thread(rank, number, comms.of(number)) for number in range(2)])
    assert await _all(values) == [(0, [1.0, 1.0, 1.0, 2.0, 2.0])]
    await flow.close()
    for fields, why in (
        ({"U": (("x",), (5,), "float64")}, "flow 'T' has the fields 'U'; needed: 'T' alone"),
        ({"T": (("x",), (6,), "float64")}, r"global_shape of 'T' is \[5\]; allowed: \[6\], as the flow says"),
    ):
        flow = await rt.couple("T", fields)
        said = {"global_shape": [5], "chunk_shape": [5], "chunk_position": [0]}
        with pytest.raises(ValueError, match=why):
            await asyncio.to_thread(Bridge, Communicators(1).of(0), {"T": said}, timeout=30)
        await flow.close()
    # tasks of steps may still be on their way to a flow that has ended at once
    await until(lambda: not s.tasks and not a.data and not traces_of_ours(s), "nothing is left")


async def _all(reader):
    return [each async for each in reader]


@pytest.mark.parametrize("wrong", [0, 2])
def test_metadata_that_cannot_be_are_said_on_all_ranks(monkeypatch, wrong):
    monkeypatch.setenv("DEISA_DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")
    comms, found = Communicators(3), {}

    def rank(number):
        # two chunks, and one process too many
        position = 2 if number == wrong else number // 2
        said = {"global_shape": [4], "chunk_shape": [2], "chunk_position": [position]}
        try:
            Bridge(comms.of(number), {"T": said}, timeout=1)
        except ValueError as error:
            found[number] = str(error)

    running = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    text = "chunk_position of 'T' is 2; allowed: a whole number from 0 to 1"
    told = f"rank {wrong} has failed with ValueError: {text}"
    assert found == {number: text if number == wrong else told for number in range(3)}


def test_what_a_bridge_cannot_be_made_of_is_said(monkeypatch):
    monkeypatch.delenv("DEISA_DASK_SCHEDULER_ADDRESS", raising=False)
    alone = Communicators(1).of(0)
    with pytest.raises(ValueError, match="DEISA_DASK_SCHEDULER_ADDRESS is not set"):
        Bridge(alone, {})
    monkeypatch.setenv("DEISA_DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")
    for said, why in (
        ({"global_shape": [2]}, "has global_shape; needed: global_shape, chunk_shape, chunk_position"),
        ({"global_shape": [2], "chunk_shape": [1], "chunk_position": [0, 0]}, "has 1, 1, 2 numbers"),
        ({"global_shape": [2], "chunk_shape": [1.5], "chunk_position": [0]}, "shape of 'T' is 1.5; allowed"),
        ({"global_shape": [2], "chunk_shape": [1], "chunk_position": [-1]}, "position of 'T' is -1"),
        (
            {"global_shape": [5], "chunk_shape": [3], "chunk_position": [2]},
            "position of 'T' is 2; allowed: .* 1",
        ),
        ({"global_shape": 2, "chunk_shape": [1], "chunk_position": [0]}, "global_shape of 'T' is 2"),
        (7, "metadata of 'T' is 7; needed: a dict of "),
    ):
        with pytest.raises(ValueError, match=why):
            Bridge(alone, {"T": said})
