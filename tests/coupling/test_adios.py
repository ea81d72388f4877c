"""ADIOS2 streams as producers: real SST streams, writers and readers in processes of their own."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from helpers import live
from sources import nothing_left

import dask_hpc
from dask_hpc.errors import CouplingError

#: A program that knows nothing of us: two blocks of T and a number that nobody reads, at every step.
WRITES = """
import os, sys
import numpy as np
from adios2 import Adios, Stream

adios = Adios()
io = adios.declare_io("program")
io.set_engine("SST")
with Stream(io, sys.argv[1], "w") as stream:
    for step in range(int(sys.argv[2])):
        if step and "on" in sys.argv:
            sys.stdin.readline()
        stream.begin_step()
        field = step + np.arange(48.0).reshape(8, 6) / 1000
        parts = ((0, 3), (3, 8))
        if step and "gap" in sys.argv:
            parts = parts[:1]
        if step and "overlap" in sys.argv:
            # an edge of one is in the other as well, and the rest lacks
            parts = (0, 3), (2, 5)
        name = "/of/T" if "path" in sys.argv else "T"
        for begin, end in parts:
            stream.write(name, field[begin:end], [8, 6], [begin, 0], [end - begin, 6])
        stream.write("other", step)
        stream.end_step()
    if "dies" in sys.argv:
        # once its reader has the steps
        sys.stdin.readline()
        os._exit(9)
"""
FORWARDS = """
import json, sys
from dask_hpc.coupling.adios import forward

name, scheduler, stream, rank, size = json.loads(sys.argv[1])
try:
    print(forward(name, scheduler, stream, rank=rank, size=size, timeout=30))
except Exception as error:
    print(type(error).__name__, error)
"""


async def started(code, *arguments):
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *map(str, arguments), stdin=pipe, stdout=pipe, stderr=pipe
    )


async def said(process):
    out, error = await asyncio.wait_for(process.communicate(), 60)
    return out.decode().strip() or error.decode()


async def coupled(c, s, tmp_path, fields, steps, *more, size=1):
    """A flow whose steps come out of a stream: it, its values, the program, and those that forward."""
    rt = await dask_hpc.install(c)
    flow = await rt.couple("heat", fields)
    await flow.analyse(lambda ds: ds["T"].values[0].tolist(), name="all")
    values = flow.results("all", timeout=60)
    told = [["heat", s.address, str(tmp_path / "steps"), rank, size] for rank in range(size)]
    program = await started(WRITES, tmp_path / "steps", steps, *more)
    return flow, values, program, [await started(FORWARDS, json.dumps(one)) for one in told]


@live(workers=2, timeout=90)
async def test_steps_of_a_stream_are_those_of_the_flow_however_many_read_it(c, s, a, b, tmp_path):
    T = {"T": (("y", "x"), (8, 6), "float64")}
    # every reader has to be there before the first step
    flow, values, program, readers = await coupled(c, s, tmp_path, T, 4, "path")
    whole = [[[step + (6 * y + x) / 1000 for x in range(6)] for y in range(8)] for step in range(4)]
    found = [each async for each in values]
    assert [step for step, _ in found] == [0, 1, 2, 3]
    for (_, value), one in zip(found, whole, strict=True):
        assert value == [pytest.approx(row) for row in one]
    assert [await said(one) for one in readers] == ["4"]
    assert await program.wait() == 0
    await flow.close()
    await nothing_left(s, a, b)


@live(workers=1, timeout=90)
async def test_a_field_that_is_otherwise_in_the_stream_is_named_with_both_and_fails_the_flow(
    c, s, a, tmp_path
):
    flow, values, program, readers = await coupled(
        c, s, tmp_path, {"T": (("y", "x"), (8, 7), "float32")}, 1
    )  # fmt: skip
    text = await said(readers[0])
    assert text.startswith(
        "ValueError 'T' is of shape (8, 6) and type float64 in the stream; allowed: (8, 7)"
    )
    with pytest.raises(CouplingError, match=r"rank 0 has ended with ValueError: 'T' is of shape \(8, 6\)"):
        await anext(values)
    await program.wait()
    await flow.close()
    await nothing_left(s, a)


@pytest.mark.parametrize(("parts", "lacks"), [("gap", 3), ("overlap", 5)])
@live(workers=1, timeout=90)
async def test_a_step_of_which_the_program_has_written_a_part_alone_is_not_handed_over(
    c, s, a, tmp_path, parts, lacks
):
    T = {"T": (("y", "x"), (8, 6), "float64")}
    flow, values, program, readers = await coupled(c, s, tmp_path, T, 2, parts, "on")
    assert (await anext(values))[0] == 0
    program.stdin.write(b"\n")
    # the rows that are not there would be those of the step before
    why = f"'T' has no block at y={lacks}"
    with pytest.raises(CouplingError, match=f"rank 0 has ended with ValueError: {why}"):
        await anext(values)
    assert f"ValueError {why}, x=0 in step 1 of the stream" in await said(readers[0])
    await program.wait()
    await flow.close()
    await nothing_left(s, a)


@live(workers=1, timeout=90)
async def test_a_program_that_is_lost_fails_the_flow_of_its_stream(c, s, a, tmp_path):
    T = {"T": (("y", "x"), (8, 6), "float64")}
    flow, values, program, readers = await coupled(c, s, tmp_path, T, 1, "dies")
    assert (await anext(values))[0] == 0
    program.kill()
    with pytest.raises(CouplingError, match=r"rank 0 has ended with .*the program that writes the stream"):
        await anext(values)
    assert (await said(readers[0])).startswith("CouplingError the program that writes the stream was lost")
    await program.wait()
    await flow.close()
    await nothing_left(s, a)
