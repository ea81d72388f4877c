"""What nobody has room for goes to disk and comes back, and what does not come back is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from departed import another, depart, double, everything_put_right, files, lost, spilling
from distributed import CancelledError, Worker, fire_and_forget
from elastic_work import append, result_of, work
from waits import until, within

import dask_hpc
from dask_hpc.worker import saved


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
            assert len(files(tmp_path)) == 1
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
                assert len(files(tmp_path)) == 1
                worker = await Worker(made.cluster.scheduler_address, nthreads=1, name="another")
                assert await within(made.client.gather(futures)) == [result_of(n) for n in range(5)]
                await everything_put_right(made, tmp_path)
            await worker.close()

    asyncio.run(run())


def test_what_is_not_wanted_any_more_leaves_neither_files_nor_ancestors(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            root = made.client.submit(double, 1, key="root")
            child = made.client.submit(double, root, key="child")
            await child
            root.release()
            await depart(made)
            assert len(files(tmp_path)) == 1
            child.release()
            await until(lambda: not made.scheduler.tasks, "everything is forgotten")
            await everything_put_right(made, tmp_path)

    asyncio.run(run())


@pytest.mark.errors("is lost: no copy is of use", "is computed again: no copy is of use")
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_of_damaged_files_the_computed_are_computed_again_and_the_others_named(
    tmp_path: Path, damage: str
) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            root = made.client.submit(double, 1, key="root")
            child = made.client.submit(double, root, key="child")
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
                rows = [row for _, row in made.scheduler.get_events(saved.TOPIC)]
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
            assert len(files(tmp_path)) == 1
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_what_is_on_disk_comes_back_after_an_uninstall_and_goes_with_the_scheduler(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            runtime = await dask_hpc.runtime(made.client)
            scattered = await made.client.scatter([result_of(n) for n in range(3)], hash=False)
            child = made.client.submit(double, scattered[0], key="child")
            await child
            parent = made.client.submit(double, 1, key="parent")
            await parent
            assert len((await depart(made))["spilled"]) == 5
            await runtime.uninstall()
            made.scheduler.validate_state()
            async with another(made):
                assert await within(made.client.gather(scattered)) == [result_of(n) for n in range(3)]
                assert await within(child.result()) == 2 * result_of(0)
                assert await within(parent.result()) == 2
                made.scheduler.validate_state()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_what_somebody_has_provided_comes_back_and_is_not_awaited_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            runtime = await dask_hpc.runtime(made.client)
            (source,) = await runtime.expect(["step"])
            result = made.client.submit(double, source, key="result")
            await made.client.submit(lambda: dask_hpc.provide({"step": 4}))
            assert await within(result.result()) == 8
            assert (await depart(made))["lost"] == []
            async with another(made):
                assert await within(made.client.gather([source, result])) == [4, 8]
                assert files(tmp_path)  # nobody provides it a second time
                source.release()
                result.release()
                await everything_put_right(made, tmp_path)

    asyncio.run(run())


def test_a_task_that_was_bound_to_the_worker_comes_back_elsewhere(tmp_path: Path) -> None:
    async def run() -> None:
        async with spilling(tmp_path) as made:
            bound = made.client.submit(double, 4, key="bound", workers=[made.address(0)])
            await bound
            restrictions = set(made.scheduler.tasks["bound"].worker_restrictions)
            await depart(made)
            async with another(made):
                assert await within(bound.result()) == 8
                ts = made.scheduler.tasks["bound"]
                await until(lambda: ts.worker_restrictions == restrictions, "it is made as before")

    asyncio.run(run())
