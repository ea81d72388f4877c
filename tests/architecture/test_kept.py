"""What a test leaves behind is not carried through all tests after it."""

from __future__ import annotations

import weakref
from typing import Any

from helpers import live
from tasks import inc
from unexpected import Unexpected

import dask_hpc


def test_the_servers_of_a_test_that_has_ended_are_gone() -> None:
    servers: list[weakref.ref[Any]] = []

    @live(workers=2)
    async def story(c: Any, s: Any, *workers: Any) -> None:
        rt = await dask_hpc.install(c)
        async with rt.job("main"):
            assert await c.gather(c.map(inc, range(4))) == [1, 2, 3, 4]
        servers.extend(weakref.ref(server) for server in (s, *workers))

    story()
    Unexpected()._collect()
    assert [server() for server in servers] == [None] * 3
