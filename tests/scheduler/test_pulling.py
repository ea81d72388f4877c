"""Checkpoints in a host's memory that its manager reads out of workers: the same versions, switched live."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import live
from hypothesis import given
from hypothesis import strategies as st
from losses import kill

import dask_hpc
from dask_hpc.errors import CheckpointError, ConfigError
from dask_hpc.wire import HEARTBEAT
from dask_hpc.worker.fetching import CHUNK, ask
from dask_hpc.worker.pulling import READ, _Offer

PARTS = st.lists(st.tuples(st.integers(0, 9), st.lists(st.binary(max_size=12), max_size=4)), max_size=6)


@given(PARTS, st.data())
def test_any_range_of_what_is_offered_is_what_a_write_would_have_put_there(parts, data):
    layout, whole = {}, b""
    for gap, several in parts:
        whole += bytes(gap)
        # of two that begin at one place the first is empty
        layout[len(whole)] = [*layout.get(len(whole), ()), *map(memoryview, several)]
        whole += b"".join(several)
    offer = _Offer(layout)
    assert offer.nbytes == len(whole)
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    assert offer.read(first, last - first).tobytes() == whole[first:last]


def noting(worker, pieces):
    """Have what is read of a worker noted."""
    read = worker.handlers[READ]

    async def noted(segment, offset, nbytes):
        pieces.append(nbytes)
        return await read(segment=segment, offset=offset, nbytes=nbytes)

    worker.handlers[READ] = noted


@live(workers=2)
async def test_a_version_is_pulled_in_pieces_or_pushed_as_the_setting_says_and_comes_back(c, s, a, b):
    rt = await dask_hpc.install(c, checkpoint_transfer="pull")
    pieces: list[int] = []
    # what offers is loaded with the first version
    await rt.checkpoint(await c.scatter([1], workers=[a.address]), "first", levels=["L1"])
    noting(a, pieces)
    large = np.arange(CHUNK // 8 + 3000, dtype=float)
    data = await c.scatter([large, np.arange(7), b"text"], workers=[a.address], hash=False)
    await rt.checkpoint(data, "data", levels=["L1"])
    assert max(pieces) == CHUNK
    assert CHUNK < sum(pieces) < CHUNK + 2**17
    await rt.update(checkpoint_transfer="push")
    pieces.clear()
    more = await c.scatter([np.arange(9)], workers=[a.address], hash=False)
    await rt.checkpoint(more, "more", levels=["L1"])
    assert pieces == []
    with pytest.raises(ConfigError, match=r"checkpoint\.transfer is 'drag'; allowed: one of push, pull"):
        await rt.update(checkpoint_transfer="drag")
    await kill(s, [a])
    found = await c.gather([*data, *more])
    for got, expected in zip(found, [large, np.arange(7), b"text", np.arange(9)], strict=True):
        np.testing.assert_array_equal(got, expected)


@live(workers=1)
async def test_nothing_is_read_of_a_worker_but_what_it_offers_nor_put_where_it_does_not_fit(c, s, a):
    rt = await dask_hpc.install(c, checkpoint_transfer="pull")
    data = await c.scatter([np.arange(10)], hash=False)
    await rt.checkpoint(data, "data", levels=["L1"])
    section = a.metrics[HEARTBEAT].section("manager")
    (segment,) = {path.stem for path in section.folder.glob("*.segment")}
    # it was, until it was read
    told = await getattr(a.rpc(a.address), READ)(segment=segment, offset=0, nbytes=1)
    assert f"0 of segment {segment!r} are not offered (any more)" in told["error"]
    home = section()["address"]
    for name, nbytes, why in (
        (segment, 1 << 30, "do not fit"),
        (segment, 8, "offered"),
        ("../x", 8, "no name"),
    ):
        with pytest.raises(CheckpointError, match=why):
            await ask(a.rpc, home, "pull", segment=name, source=a.address, nbytes=nbytes)
    with section.offers.of(segment, {0: [memoryview(b"12345678")]}) as nbytes:
        for offset, count in ((-1, 2), (0, nbytes + 1), (nbytes, 1), (0, -1)):
            told = await getattr(a.rpc(a.address), READ)(segment=segment, offset=offset, nbytes=count)
            assert "not offered" in told["error"]
