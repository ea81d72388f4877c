"""What nobody has room for goes to disk and comes back, and what does not come back is named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from dask._task_spec import Task
from distributed import CancelledError, Worker, fire_and_forget
from distributed.utils_test import gen_cluster
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import append, result_of, until, within, work

import dask_hpc
from dask_hpc.scheduler.internals.lineage import fall_back, put_back, stand_in
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker import spill

# --------------------------------------------------------------------- lineage


def _double(value: int) -> int:
    return 2 * value


@gen_cluster(client=True, scheduler_kwargs={"validate": True})
async def test_what_stands_in_for_a_task_leaves_its_lineage_as_it_was(c: Any, s: Any, a: Any, b: Any) -> None:
    x = c.submit(_double, 1, key="x")
    y = c.submit(_double, x, key="y")
    await y
    ts, run_spec = s.tasks["y"], s.tasks["y"].run_spec
    lineage = stand_in(s, "y", Task("y", _double, 21), "int")
    assert (ts.dependencies, s.tasks["x"].dependents) == (set(), set())
    s.validate_state()
    put_back(s, "y", lineage)
    assert ts.run_spec is run_spec
    assert ts.dependencies == {s.tasks["x"]}
    assert s.tasks["x"].dependents == {ts}
    s.validate_state()
    lineage = stand_in(s, "y", Task("y", _double, 21), "int")
    x.release()
    await until(lambda: s.tasks.get("x") is None, "nobody needs it any more")
    assert not fall_back(s, "y", lineage)
    ts.has_lost_dependencies = False
    put_back(s, "y", lineage)
    assert ts.has_lost_dependencies
    s.validate_state()


# ------------------------------------------------------------- departed and back


@asynccontextmanager
async def spilling(directory: Path | None, workers: int = 1) -> AsyncIterator[Shrinkable]:
    """A cluster whose workers write what nobody has room for."""
    folder = None if directory is None else str(directory)
    with dask.config.set({"hpc.spill.directory": folder}):
        async with shrinkable(workers) as made:
            made.scheduler.validate = True
            yield made


@asynccontextmanager
async def another(made: Shrinkable) -> AsyncIterator[Worker]:
    """A worker that comes after the others have gone."""
    async with Worker(made.cluster.scheduler_address, nthreads=1, name="another") as worker:
        yield worker


async def depart(made: Shrinkable, name: int | str = 0, within_s: float = 1.0) -> dict[str, list[str]]:
    """Have a worker leave; gives what it leaves behind."""
    return await within(of(made.scheduler).departures.depart(made.address(name), within_s, "a test"))


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def lost(made: Shrinkable) -> list[Any]:
    rows = [row for _, row in made.scheduler.get_events("all") if row.get("action") == "remove-worker"]
    return [key for row in rows for kind in ("computed", "scattered") for key in row[f"lost-{kind}-tasks"]]


async def everything_put_right(made: Shrinkable, directory: Path) -> None:
    await until(lambda: not list(directory.iterdir()), "nothing is left on disk")
    await until(lambda: "dask-hpc-watched" not in made.scheduler.plugins, "nobody looks any more")
    made.scheduler.validate_state()


def after(value: int, effects: str) -> int:
    """A task with a side effect that needs another one."""
    append(effects, f"after-{value - 1}")
    return value


def _keys(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(10)]


def test_what_the_only_worker_holds_comes_back_on_the_next_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            effects = made.tally.effects
            futures = made.client.map(work, range(10), seconds=0.0, effects=effects, key=_keys("work"))
            children = made.client.map(after, futures, effects=effects, key=_keys("after"))
            await made.client.gather(children)
            scattered = await made.client.scatter([result_of(n) for n in range(5)], hash=False)
            left = await depart(made)
            assert len(left["spilled"]) == 25
            assert left["lost"] == left["executing"] == []
            assert lost(made) == []
            assert len(files(tmp_path)) == 25
            async with another(made):
                assert await within(made.client.gather(children)) == list(range(1, 11))
                assert await within(made.client.gather(scattered)) == [result_of(n) for n in range(5)]
                assert await within(made.client.gather(futures)) == list(range(1, 11))
                assert made.tally.side_effects() == dict.fromkeys([*_keys("work"), *_keys("after")], 1)
                await everything_put_right(made, tmp_path)
                tasks = made.scheduler.tasks
                assert {ts.key for ts in tasks["after-3"].dependencies} == {"work-3"}

    asyncio.run(run())


def test_scattered_data_that_has_come_back_stays_when_its_worker_tells_what_it_did(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            scattered = await made.client.scatter([result_of(n) for n in range(5)], hash=False)
            assert len((await depart(made))["spilled"]) == 5
            async with another(made) as worker:
                await everything_put_right(made, tmp_path)
                # what it has executed goes with the next heartbeat, which nothing answers if that fails
                await worker.heartbeat()
                await worker.heartbeat()
                assert worker.address in made.scheduler.workers
                assert await within(made.client.gather(scattered)) == [result_of(n) for n in range(5)]

    asyncio.run(run())


def test_what_has_come_back_goes_to_disk_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            futures = await made.results(5)
            for number in range(2):
                await depart(made, "0" if number == 0 else "another")
                assert len(files(tmp_path)) == 5
                worker = await Worker(made.cluster.scheduler_address, nthreads=1, name="another")
                assert await within(made.client.gather(futures)) == [result_of(n) for n in range(5)]
                await everything_put_right(made, tmp_path)
            await worker.close()

    asyncio.run(run())


def test_what_is_not_wanted_any_more_leaves_neither_files_nor_ancestors(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            root = made.client.submit(_double, 1, key="root")
            child = made.client.submit(_double, root, key="child")
            await child
            root.release()
            await depart(made)
            assert len(files(tmp_path)) == 1
            child.release()
            await until(lambda: not made.scheduler.tasks, "everything is forgotten")
            await everything_put_right(made, tmp_path)

    asyncio.run(run())


@pytest.mark.errors("is lost: it cannot be loaded", "is computed again: it cannot be loaded")
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_of_damaged_files_the_computed_are_computed_again_and_the_others_named(
    tmp_path: Path, damage: str
) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            root = made.client.submit(_double, 1, key="root")
            child = made.client.submit(_double, root, key="child")
            await child
            root.release()
            [datum] = await made.client.scatter([b"x" * 100], hash=False)
            grandchild = made.client.submit(len, datum, key="grandchild")
            await grandchild
            await depart(made)
            for path in files(tmp_path):
                if damage == "gone":
                    path.unlink()
                else:
                    path.write_bytes(bytes(len(path.read_bytes())))
            async with another(made):
                assert await within(child.result()) == 4
                with pytest.raises(CancelledError):
                    await within(datum.result())
                with pytest.raises(CancelledError):
                    await within(grandchild.result())
                rows = [row for _, row in made.scheduler.get_events(spill.TOPIC)]
                named = {key for row in rows if row.get("action") == "hpc-lost" for key in row["keys"]}
                assert str(datum.key) in named
                await everything_put_right(made, tmp_path)

    asyncio.run(run())


def test_a_restarted_cluster_has_nothing_on_disk(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            await made.client.scatter([1, 2, 3], hash=False)
            futures = await made.results(3)
            await depart(made)
            assert files(tmp_path)
            async with another(made):
                await made.client.restart(wait_for_workers=False)
                await everything_put_right(made, tmp_path)
            del futures

    asyncio.run(run())


def test_a_cluster_that_closes_leaves_nothing_on_disk(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            futures = await made.results(3)
            fire_and_forget(futures)  # they are wanted even when the client has gone
            await depart(made)
            assert len(files(tmp_path)) == 3
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


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
    log = logging.getLogger("dask_hpc.scheduler.leaving.spilled")
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
                assert "FileExistsError" in caplog.text
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


def test_what_others_have_room_for_is_not_written(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path, workers=2) as made:
            futures = await made.results(10)
            left = await depart(made)
            assert left == {"executing": [], "lost": [], "actors": [], "spilled": []}
            assert list(tmp_path.iterdir()) == []
            assert await within(made.client.gather(futures)) == [result_of(n) for n in range(10)]

    asyncio.run(run())


def test_a_task_that_was_bound_to_the_worker_comes_back_elsewhere(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            bound = made.client.submit(_double, 4, key="bound", workers=[made.address(0)])
            await bound
            restrictions = set(made.scheduler.tasks["bound"].worker_restrictions)
            await depart(made)
            async with another(made):
                assert await within(bound.result()) == 8
                assert made.scheduler.tasks["bound"].worker_restrictions == restrictions

    asyncio.run(run())
