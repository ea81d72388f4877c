"""What a test leaves behind is not carried through all tests after it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from types import SimpleNamespace
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
    Unexpected()._collect(last=False)
    assert [server() for server in servers] == [None] * 3


def test_a_small_test_beside_a_cluster_that_runs_on_does_not_go_through_all_of_it() -> None:
    watch: Any = Unexpected()
    cluster = SimpleNamespace(is_running=lambda: True)
    looked: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked.append(info["generation"])

    def collected(last: bool = False) -> int:
        looked.clear()
        watch._collect(last)
        return looked[-1]

    gc.callbacks.append(look)
    try:
        watch._loops.append(cluster)
        assert [collected(), collected()] == [2, 1]
        gc.collect(1)
        assert [collected(), collected()] == [2, 1], "what was made meanwhile may have grown old"
        watch._loops.append(cluster)
        assert [collected(), collected(), collected(last=True)] == [2, 1, 2]
    finally:
        gc.callbacks.remove(look)


def test_a_loop_that_never_ends_is_waited_for_in_its_file_alone() -> None:
    async def left_before(following: str | None) -> int:
        # a test of the file "a" has ended
        watch: Any = Unexpected()
        watch._loops.append(asyncio.get_running_loop())
        item = SimpleNamespace(path="a", iter_markers=lambda name: ())
        ends = watch.pytest_runtest_teardown(item, following and SimpleNamespace(path=following))
        next(ends)
        with suppress(StopIteration):
            ends.send(None)
        return len(watch._loops)

    assert [asyncio.run(left_before(one)) for one in ("a", "b", None)] == [1, 0, 0]
