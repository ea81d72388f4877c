"""Managers make a version whole again of which a host is lost: as often as hosts are left to hold it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Security
from distributed.core import ConnectionPool

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.plan import Written
from dask_hpc.checkpoint.record import Record, made
from dask_hpc.checkpoint.redundancy import encode
from dask_hpc.checkpoint.repair import adoptions
from dask_hpc.checkpoint.segments import read_segment
from dask_hpc.checkpoint.values import to_bytes
from dask_hpc.errors import CheckpointError
from dask_hpc.worker import fetching, manager, parities, saved
from dask_hpc.worker.fetching import all_of, ask
from dask_hpc.worker.host_memory import fill, slots_bytes
from dask_hpc.worker.keeping import domains_needed, keep
from dask_hpc.worker.manager import Manager
from dask_hpc.worker.parities import blobs_of, protect
from dask_hpc.worker.repairing import repaired
from dask_hpc.worker.saved import copies_of
from dask_hpc_policies.resilience.redundancy_sets import Scheme

VALUES = np.random.default_rng(3).random((12, 700))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


class Hosts:
    """Managers in this process; each host is its own failure domain."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.managers: dict[Home, Manager] = {}

    async def start(self, count: int) -> None:
        for _ in range(count):
            place = self.folder / uuid.uuid4().hex
            place.mkdir()
            manager = Manager(str(place), 10**8, Security())
            await manager.start_at("tcp", "127.0.0.1", 0)
            self.managers[Home(manager.address, str(place))] = manager

    async def lose(self, home: Home) -> None:
        manager = self.managers.pop(home)
        await manager.close()
        shutil.rmtree(home.folder)

    @property
    def domains(self) -> dict[Home, str]:
        return {home: home.folder for home in self.managers}

    async def write(self, pool: ConnectionPool, scheme: Scheme) -> Record:
        """A version with a block of two rows on each host in turn."""
        plan, _ = describe(da.from_array(VALUES, chunks=(2, 700)), "field")
        homes, written, home_of = list(self.managers), [], {}
        for number in range(6):
            home = homes[number % len(homes)]
            segment = self.managers[home].segments.reserve(10**5)
            parts, digest = to_bytes(plan.arrays[0], number, VALUES[2 * number : 2 * number + 2])
            blocks = {number: (parts, digest, "ndarray")}
            assert slots_bytes(blocks) <= 10**5
            written.append(Written(*fill(home.folder, segment, blocks)[number], digest, segment))
            home_of[segment] = home
        blobs = blobs_of((home_of[str(each.pack)], each) for each in written)
        groups, _ = await protect(pool, blobs, self.domains, scheme, lambda home, segment: None)
        return made(uuid.uuid4().hex, plan, 1, written, home_of, tuple(groups))


async def check(pool: ConnectionPool, record: Record) -> None:
    for number, copy in enumerate(copies_of(record)):
        found = copy.value(await copy.content(pool), False)
        np.testing.assert_array_equal(found, VALUES[2 * number : 2 * number + 2])


@pytest.mark.parametrize(
    ("scheme", "hosts"), [(Scheme("partner"), 4), (Scheme("xor", 4), 5), (Scheme("reed-solomon", 5), 6)]
)
def test_one_host_after_the_other_is_lost_until_too_few_are_left(
    folder: Path, scheme: Scheme, hosts: int
) -> None:
    async def lose(there: Hosts, pool: ConnectionPool) -> None:
        await there.start(hosts)
        record = await there.write(pool, scheme)
        created_s = record.manifest.created_s
        while True:
            # any one of those that hold blocks, then as many more as may be lost at once
            holders = sorted({record.homes[place] for place in record.places}, key=lambda home: home.folder)
            await there.lose(holders[0])
            planned = adoptions(record, there.managers)
            assert {each.lost for each in planned} == {holders[0]}
            record, reason = await repaired(pool, record, there.domains, scheme, lambda home, one: None)
            assert record.all_homes <= set(there.managers)
            assert record.manifest.created_s == created_s
            await check(pool, record)
            if len(there.managers) <= scheme.parities:
                break
            assert reason == ""
            assert all(record.readable(set(there.managers) - {home}) for home in there.managers)
        assert "failure domains" in reason
        assert record.groups == ()
        await there.lose(next(iter(there.managers)))
        await there.start(1)
        if not record.readable(there.managers):
            with pytest.raises(CheckpointError, match="too many of the hosts that held it are lost"):
                await repaired(pool, record, there.domains, scheme, lambda home, one: None)

    async def run() -> None:
        there, pool = Hosts(folder), ConnectionPool()
        await pool.start()
        try:
            await lose(there, pool)
        finally:
            await pool.close()
            for home in list(there.managers):
                await there.lose(home)

    asyncio.run(run())


def test_a_large_result_of_a_lost_host_is_made_in_pieces(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def remake(pool: Any, group: Any, blob: int, start: int, stop: int) -> np.ndarray:
        asked.append(stop - start)
        return await fetching.remake(pool, group, blob, start, stop)

    monkeypatch.setattr(fetching, "CHUNK", 1000)
    monkeypatch.setattr(saved, "remake", remake)

    async def run() -> None:
        hosts = Hosts(folder)
        await hosts.start(4)
        async with await ConnectionPool() as pool:
            record = await hosts.write(pool, Scheme("reed-solomon", 4))
            await hosts.lose(record.homes[record.places[0]])
            await check(pool, record)
        for home in list(hosts.managers):
            await hosts.lose(home)

    asyncio.run(run())
    # two blocks of two rows; all parts of a group are fetched for each
    assert (sum(asked), max(asked)) == (2 * 2 * 700 * 8, 1000)


def test_what_is_made_again_of_a_damaged_part_is_refused(folder: Path) -> None:
    async def go() -> None:
        hosts = Hosts(folder)
        await hosts.start(3)
        async with await ConnectionPool() as pool:
            record = await hosts.write(pool, Scheme("xor", 3))
            lost, damaged, _ = hosts.managers
            # what is needed of it depends on which part of the set the lost one had
            for path in Path(damaged.folder).glob("*.segment"):
                path.write_bytes(bytes(each ^ 1 for each in path.read_bytes()))
            await hosts.lose(lost)
            made: list[str] = []
            with pytest.raises(CheckpointError, match=r"have the checksum .*, and were written with"):
                await repaired(
                    pool, record, hosts.domains, Scheme("xor", 3), lambda _, name: made.append(name)
                )
            # whoever is told can drop all that was made
            assert made
        for home in list(hosts.managers):
            await hosts.lose(home)

    asyncio.run(go())


def test_a_record_that_one_of_two_hosts_cannot_keep_is_told_of(folder: Path) -> None:
    async def go() -> None:
        hosts = Hosts(folder)
        await hosts.start(2)
        first, second = hosts.managers
        async with await ConnectionPool() as pool:
            record = await hosts.write(pool, Scheme("partner"))
            assert await keep(pool, record, hosts.managers, hosts.domains) == ([first, second], "")
            shutil.rmtree(second.folder)
            kept, problem = await keep(pool, record, hosts.managers, hosts.domains)
            assert (kept, "1 of the 2 hosts that fail apart keep" in problem) == ([first], True)
            # those that fail together need not both
            assert (await keep(pool, record, hosts.managers, dict.fromkeys(hosts.managers, "rack")))[1] == ""
            # nor is one known of which something has gone meanwhile
            held = sorted(record.segments()[first])
            await ask(pool, first.address, "drop", segments=held[:1], version=uuid.uuid4().hex)
            kept, problem = await keep(pool, record, [first], hosts.domains)
            assert (kept, f"segment {held[0]} was given up" in problem) == ([], True)
        Path(second.folder).mkdir()
        for home in list(hosts.managers):
            await hosts.lose(home)

    asyncio.run(go())


def test_a_record_is_on_one_domain_more_than_losses_that_its_version_survives() -> None:
    assert [domains_needed(0, n) for n in (0, 1, 2, 9)] == [0, 1, 2, 2]
    assert [domains_needed(2, n) for n in (1, 2, 3, 9)] == [1, 2, 3, 3]


def test_a_failure_is_told_once_all_others_have_ended() -> None:
    ended: list[int] = []

    async def one(number: int) -> int:
        await asyncio.sleep(0.01 * number)
        ended.append(number)
        if number == 0:
            raise CheckpointError("the first")
        return number

    with pytest.raises(CheckpointError, match="the first"):
        asyncio.run(all_of(one(number) for number in range(3)))
    assert ended == [0, 1, 2]
    assert asyncio.run(all_of(one(number) for number in (2, 1))) == [2, 1]


def test_a_segment_that_was_given_up_is_not_sealed(folder: Path) -> None:
    async def go() -> None:
        hosts = Hosts(folder)
        await hosts.start(1)
        ((home, manager),) = hosts.managers.items()
        async with await ConnectionPool() as pool:
            kept, late = [(await ask(pool, home.address, "reserve", nbytes=10))["segment"] for _ in range(2)]
            manager._reservations.give_up([late])
            await ask(pool, home.address, "seal", segment=kept)
            with pytest.raises(CheckpointError, match=f"segment {late} was given up"):
                await ask(pool, home.address, "seal", segment=late)
        await hosts.lose(home)

    asyncio.run(go())


def test_what_workers_of_a_host_have_written_apart_goes_to_another_host_as_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def counted(pool: Any, address: str, op: str, within_s: float, **arguments: Any) -> Any:
        asked.append(arguments)
        return await ask(pool, address, op, within_s, **arguments)

    monkeypatch.setattr(parities, "ask", counted)

    async def run() -> None:
        there, pool = Hosts(folder), ConnectionPool()
        await pool.start()
        try:
            await there.start(2)
            await there.write(pool, Scheme("partner"))
        finally:
            await pool.close()
            for home in list(there.managers):
                await there.lose(home)

    asyncio.run(run())
    # three segments on each of two hosts: SHMR of John (2024), where a transfer a segment would be MR
    assert [[len(part["ranges"]) for part in each["parts"]] for each in asked] == [[3], [3]]


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_a_parity_is_of_all_parts_however_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    parts = [np.frombuffer(uuid.uuid4().bytes * (9 + number), np.uint8) for number in range(count)]

    async def fetch(pool: Any, home: Home, ranges: Any) -> np.ndarray:
        return parts[int(home.address)]

    async def run() -> None:
        own = Manager(str(folder), 10**8, Security())
        told = [
            {"home": {"address": str(number), "folder": ""}, "ranges": [("part", 0, part.nbytes)]}
            for number, part in enumerate(parts)
        ]
        segment = (await own.protect(told, 1, 0))["segment"]
        found = np.empty(parts[-1].nbytes, np.uint8)
        read_segment(str(folder), segment, 0, found)
        np.testing.assert_array_equal(found, parts[0] if count == 1 else encode(parts, 1)[0])

    monkeypatch.setattr(manager, "fetch", fetch)
    asyncio.run(run())


def test_a_version_is_not_whole_again_while_nobody_has_parities_of_what_a_host_holds(folder: Path) -> None:
    async def run() -> None:
        there = Hosts(folder)
        await there.start(6)
        racks = {home: f"rack-{number % 2}" for number, home in enumerate(there.managers)}
        async with await ConnectionPool() as pool:
            record = await there.write(pool, Scheme("partner"))
            await there.lose(next(iter(racks)))
            # three hosts of one rack and two of the other
            left = {home: racks[home] for home in there.managers}
            record, reason = await repaired(pool, record, left, Scheme("partner"), lambda home, one: None)
            assert (len(record.groups), record.losses_survived) == (2, 0)
            assert "1 of 5 hosts are in no set" in reason
        for home in list(there.managers):
            await there.lose(home)

    asyncio.run(run())
