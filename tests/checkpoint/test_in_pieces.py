"""Work on pieces of what is long: all of them once, some at once, none begun after one has failed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.worker.fetching import CHUNK, in_pieces


@given(st.integers(0, 9 * CHUNK), st.integers(1, 5))
def test_every_byte_is_in_one_piece_and_no_more_are_under_way_than_may_be(nbytes, at_once):
    begun: list[tuple[int, int]] = []
    under_way, most = 0, 0

    async def one(start, stop):
        nonlocal under_way, most
        begun.append((start, stop))
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    asyncio.run(in_pieces(nbytes, one, at_once))
    ends = [0, *(stop for _, stop in begun)]
    assert [start for start, _ in begun] == ends[:-1]
    assert ends[-1] == nbytes
    assert all(stop - start <= CHUNK for start, stop in begun)
    assert most == min(at_once, len(begun))


def test_when_one_fails_none_is_begun_and_those_under_way_end_before_that_is_said():
    ended: list[int] = []

    async def one(start, stop):
        await asyncio.sleep(0)
        if start == CHUNK:
            raise ValueError("this one")
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append(start // CHUNK)

    with pytest.raises(ValueError, match="this one"):
        asyncio.run(in_pieces(100 * CHUNK, one, 3))
    assert ended == [0, 2]
