"""A manager keeps what is needed, and nothing else: the next one of its host, too, when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Security
from distributed.core import ConnectionPool
from outside import until

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.plan import Written
from dask_hpc.checkpoint.record import dump, made
from dask_hpc.checkpoint.segments import open_segment, opened, write_segment
from dask_hpc.worker.fetching import ask, listens
from dask_hpc.worker.host_memory import _is_down
from dask_hpc.worker.host_process import HostProcess, seen_s
from dask_hpc.worker.left_behind import MANAGER, TARGET
from dask_hpc.worker.managers import started, wanted

VALUES = np.arange(1000.0)


class OneHost:
    """A worker of a host, and the managers that it has started one after the other."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.process = HostProcess(MANAGER, TARGET, "killed", linger_s=5.0)
        self.folder = str(self.process.folder)
        self._pool, self._address = pool, ""

    async def start(self) -> None:
        self._address = await started(self.process, wanted(False, "127.0.0.1", 0.1, Security(), None), "this")
        listens(self._address)

    def kill(self) -> None:
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.process.pid is None, "it has ended")

    async def ask(self, op: str, **arguments: Any) -> Any:
        return await ask(self._pool, self._address, op, **arguments)

    async def reserve(self, version: str, **more: Any) -> str:
        answer = await self.ask("reserve", nbytes=VALUES.nbytes, version=version, **more)
        return str(answer["segment"])

    def write(self, segment: str) -> tuple[int, int, int]:
        with opened(self.folder, segment) as window:
            return 0, VALUES.nbytes, write_segment(window, 0, [VALUES.view("u1").data])

    async def whole(self, version: str) -> str:
        """A version of one block, whose record it has."""
        segment = await self.reserve(version)
        place = self.write(segment)
        await self.ask("seal", segment=segment)
        plan, _ = describe(da.from_array(VALUES, chunks=-1), "field")
        home = {segment: Home(self._address, self.folder)}
        record = made(version, plan, 1, [Written(*place, None, segment)], home, ())
        await self.ask("keep", version=version, record=dump(record), segments=[segment])
        return segment

    def files(self, *kinds: str) -> set[str]:
        return {path.stem for path in Path(self.folder).iterdir() if path.suffix in kinds}


def run(check: Callable[[OneHost], Awaitable[None]]) -> None:
    async def on_host() -> None:
        async with await ConnectionPool() as pool:
            host = OneHost(pool)
            try:
                await host.start()
                await check(host)
            finally:
                host.process.end()
                host.process.stop()
                until(lambda: host.process.pid is None, "it has ended")

    asyncio.run(on_host())


def test_of_a_version_under_way_nothing_is_touched_until_it_ends_and_nothing_stays_then(memory: Path) -> None:
    async def check(host: OneHost) -> None:
        first, second = uuid.uuid4().hex, uuid.uuid4().hex
        whole = await host.whole(first)
        done, half, unheard = [await host.reserve(second) for _ in range(3)]
        host.write(done)
        await host.ask("seal", segment=done)
        writing = open_segment(host.folder, half, os.O_WRONLY)
        os.pwrite(writing, VALUES.data[:500], 0)
        host.kill()
        # as when it was killed before it had answered, and amid a record
        for name in (f"{uuid.uuid4().hex}.segment", f"{second}.version.new"):
            Path(host.folder, name).write_bytes(b"part")
        await host.start()
        assert host.files(".segment") == {whole, done, half, unheard}
        assert not host.files(".new")
        # whoever was writing goes on
        os.pwrite(writing, VALUES.data[500:], 4000)
        os.close(writing)
        await host.ask("seal", segment=half)
        last = await host.reserve(uuid.uuid4().hex, ended=[second])
        assert host.files(".segment") == {whole, last}
        assert len(host.files(".open", ".sealed", ".here")) == 1
        await host.ask("drop", segments=[whole], version=first)
        host.kill()
        # nothing of a version is there, and it is started all the same: something was left
        assert _is_down(host.process)
        await host.start()
        assert host.files(".segment") == {last}
        host.process.end()
        until(lambda: host.process.pid is None, "it has ended")

    run(check)


def test_what_nobody_needs_takes_room_only_while_a_worker_is_there(memory: Path) -> None:
    async def check(host: OneHost) -> None:
        folder, version = Path(host.folder), uuid.uuid4().hex
        await host.ask("drop", segments=[await host.whole(version)], version=version)
        for _ in range(2):
            last_s = seen_s(folder)
            until(lambda last_s=last_s: seen_s(folder) > last_s, "it has looked")
        assert len(host.files(".unused")) == 1  # the next version is written there
        host.process.stop()
        until(lambda: not host.files(".unused"), "its room is free")
        assert host.process.pid is not None

    run(check)
