"""A store that is slow comes to say where managers are now, whatever it was told before."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from dask_hpc.checkpoint import store_threads, whereabouts
from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.whereabouts import Whereabouts, load
from dask_hpc.scheduler.checkpoint.listed import Listed


def told(port: int) -> Whereabouts:
    home = Home(f"tls://10.0.0.1:{port}", "/dev/shm/dask-hpc-1000-0123456789abcdef")
    return Whereabouts("one", "tcp://10.0.0.9:8786", (home,))


async def until_says(store: str, expected: list[Whereabouts]) -> None:
    deadline_s = time.monotonic() + 20.0
    while load(store) != expected:
        assert time.monotonic() < deadline_s, load(store)
        await asyncio.sleep(0.01)


def test_what_was_wanted_last_is_there_last_however_long_a_write_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, gate, save = str(tmp_path), threading.Event(), whereabouts.save
    under_way: list[int] = []

    def slow(store: str, told: Whereabouts) -> None:
        under_way.append(len(under_way))
        gate.wait(20)
        save(store, told)

    monkeypatch.setattr(whereabouts, "save", slow)
    monkeypatch.setattr(store_threads, "PATIENCE_S", 0.05)

    async def run() -> None:
        listed = Listed(store, "one")
        await listed.want(told(1))
        # it is known to hang: nobody waits once more
        monkeypatch.setattr(store_threads, "PATIENCE_S", 6.0)
        began_s = time.monotonic()
        for port in (2, 3):
            await listed.want(told(port))
        assert time.monotonic() - began_s < 5.0
        assert (under_way, load(store)) == ([0], [])
        gate.set()
        await until_says(store, [told(3)])
        assert under_way == [0, 1]
        assert listed._saying is not None
        await listed._saying
        await listed.want(told(4))
        assert load(store) == [told(4)]
        # nor does a late one undo that it was forgotten
        gate.clear()
        monkeypatch.setattr(store_threads, "PATIENCE_S", 0.05)
        await listed.want(told(5))
        await listed.want(None)
        assert load(store) == [told(4)]
        gate.set()
        await until_says(store, [])
        await listed.want(None)
        assert (under_way, load(store)) == ([0, 1, 2, 3], [])

    asyncio.run(run())
