"""What departing workers write in the time and the folder they have, and what is named as lost."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import dask
import pytest
from departed import another, depart, everything_put_right, files, spilling
from distributed import Status
from elastic_work import result_of
from waits import Gate, until, within

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.scheduler.checkpoint import departing
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import RPC


def test_without_a_folder_what_is_lost_is_named() -> None:
    async def run() -> None:
        async with spilling(None) as made:
            futures = await made.results(3)
            left = await depart(made)
            assert sorted(left["lost"]) == ["make-0", "make-1", "make-2"]
            assert left["spilled"] == []
            del futures

    asyncio.run(run())


class Heard(logging.Handler):
    """Lines of a log; the clusters of these tests silence the handlers that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.mark.errors("cannot be written below")
def test_what_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    said = Heard()
    log = logging.getLogger("dask_hpc.scheduler.checkpoint.departing")
    log.addHandler(said)

    async def run() -> None:
        (tmp_path / "file").write_text("no folder")
        async with spilling(tmp_path / "file" / "below") as made:
            futures = await made.results(3)
            left = await depart(made)
            assert sorted(left["lost"]) == ["make-0", "make-1", "make-2"]
            assert left["spilled"] == []
            del futures

    try:
        asyncio.run(run())
    finally:
        log.removeHandler(said)
    [line] = said.lines
    assert line.startswith("3 results of worker")
    assert f"below {tmp_path / 'file' / 'below'} (hpc.spill.directory): NotADirectoryError" in line


class Stubborn:
    """A value that cannot be serialised."""

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


def test_a_folder_that_cannot_be_used_is_said_when_the_cluster_starts(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")

    async def run() -> None:
        with dask.config.set({"hpc.spill.directory": str(tmp_path / "file")}):
            options = {"n_workers": 0, "processes": False, "dashboard_address": ":0", "silence_logs": False}
            async with dask_hpc.LocalCluster(**options, asynchronous=True):
                assert "NotADirectoryError: Not a directory" in caplog.text
                assert "hpc.spill.directory" in caplog.text

    asyncio.run(run())


@pytest.mark.errors("cannot be written below")
def test_one_value_that_cannot_be_written_does_not_keep_the_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            stubborn = made.client.submit(Stubborn, key="stubborn")
            await stubborn
            futures = await made.results(3)
            left = await depart(made)
            assert left["lost"] == ["stubborn"]
            assert sorted(left["spilled"]) == ["make-0", "make-1", "make-2"]
            async with another(made):
                assert await within(made.client.gather(futures)) == [result_of(n) for n in range(3)]
            stubborn.release()

    asyncio.run(run())


class Slow:
    """A value that takes as long to be serialised as a gate is shut."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __sizeof__(self) -> int:
        return 10_000  # small ones come first

    def __reduce__(self) -> Any:
        self._gate.wait(None)
        return str, ("slow",)


@pytest.mark.errors("cannot be written below .* not written within")
@pytest.mark.parametrize("less", [False, True])
def test_what_is_written_in_time_comes_back_and_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, less: bool
) -> None:
    monkeypatch.setattr(departing, "_BATCH_BLOCKS", 1)
    if less:  # than was said: it is written at once
        monkeypatch.setattr(departing.Departing, "writing_s", lambda self, nbytes, within_s: within_s)

    async def run() -> None:
        gate = Gate()
        try:
            async with spilling(tmp_path) as made:
                futures = await made.results(3)
                slow = made.client.submit(Slow, gate, key="slow")
                await slow
                late = made.client.submit(bytes, 20_000, key="late")
                await late
                if less:
                    first = asyncio.ensure_future(depart(made, within_s=3600.0))
                    await until(lambda: len(files(tmp_path)) == 4, "the others are written, and this one is")
                before_s = asyncio.get_running_loop().time()
                left = await depart(made, within_s=3.0)
                assert not less or await first == left
                assert asyncio.get_running_loop().time() - before_s < 6.0
                assert sorted(left["spilled"]) == ["make-0", "make-1", "make-2"]
                assert sorted(left["lost"]) == ["late", "slow"]
                gate.open()
                async with another(made):
                    assert await within(made.client.gather(futures)) == [result_of(n) for n in range(3)]
                    assert await within(late.result()) == bytes(20_000)  # computed again
                slow.release()
        finally:
            gate.open()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_without_a_folder_of_its_own_it_is_written_to_the_store_where_nobody_sees_it(tmp_path: Path) -> None:
    async def run() -> None:
        with dask.config.set({"hpc.checkpoint.store": str(tmp_path)}):
            async with spilling(None) as made:
                scattered = await made.client.scatter([result_of(n) for n in range(3)], hash=False)
                left = await depart(made)
                assert (len(left["spilled"]), left["lost"]) == (3, [])
                [folder] = tmp_path.iterdir()
                assert Store(tmp_path).names() == []
                assert (folder.lstat().st_mode & 0o777, len(files(tmp_path))) == (0o700, 1)
                async with another(made):
                    assert await within(made.client.gather(scattered)) == [result_of(n) for n in range(3)]
                    await everything_put_right(made, tmp_path)

    asyncio.run(run())


def test_the_folder_for_it_goes_before_the_store(tmp_path: Path) -> None:
    async def run() -> None:
        with dask.config.set({"hpc.checkpoint.store": str(tmp_path / "store")}):
            async with spilling(tmp_path / "spill") as made:
                futures = await made.results(3)
                assert len((await depart(made))["spilled"]) == 3
                assert not (tmp_path / "store").exists()
                assert len(files(tmp_path / "spill")) == 1
                del futures

    asyncio.run(run())


def test_what_others_have_room_for_is_not_written(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path, workers=2) as made:
            futures = await made.results(10)
            left = await depart(made)
            assert left == {"executing": [], "lost": [], "actors": [], "spilled": []}
            assert list(tmp_path.iterdir()) == []
            assert await within(made.client.gather(futures)) == [result_of(n) for n in range(10)]

    asyncio.run(run())


def test_what_leaves_a_cluster_that_closes_waits_for_no_room_and_moves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last_looks = []

    async def run() -> None:
        async with spilling(None) as made:
            parts = of(made.scheduler).engine.parts
            leave = parts.leave

            async def looked(departure: Any) -> bool:
                last_looks.append(departure.last)
                return await leave(departure)

            monkeypatch.setattr(parts, "leave", looked)
            futures = await made.results(3)
            going = asyncio.ensure_future(depart(made, within_s=60.0))
            await until(lambda: made.scheduler.workers[made.address(0)].status != Status.running, "it leaves")
            await made.scheduler.handlers[RPC]("closing", {})
            assert sorted((await within(going, 10))["lost"]) == ["make-0", "make-1", "make-2"]
            # nothing is written either, which nobody would read
            assert set(last_looks) == {False}
            del futures
            async with another(made):
                last = made.client.submit(result_of, 3, key="last")
                await last
                # it is not even taken out of the scheduler: it goes with it
                assert not any((await depart(made, "another")).values())
                assert made.names() == {"another"}

    asyncio.run(run())
