"""Every public way by which stock clusters change size loses nothing here, and takes what stock takes."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from distributed import Client
from distributed.deploy.spec import SpecCluster
from distributed.utils_test import captured_logger
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import Late, result_of
from waits import PATIENCE_S, Gate, until, within

from dask_hpc.deploy import scaling
from dask_hpc.deploy.arguments import workers_of
from dask_hpc.deploy.scaling import SafeScaling


async def scaled_up(made: Shrinkable) -> None:
    made.cluster.scale_up(2)
    await made.cluster


async def scaled(made: Shrinkable) -> None:
    await made.cluster.scale(2)
    await made.cluster


async def a_whole_float(made: Shrinkable) -> None:
    made.cluster.scale(2.0)
    await made.cluster


async def scaled_down(made: Shrinkable) -> None:
    await made.cluster.scale_down([0, 3])


async def taken_out_by_hand(made: Shrinkable) -> None:
    del made.cluster.worker_spec[0]
    made.cluster.worker_spec.popitem()
    with captured_logger("dask_hpc.deploy.by_hand") as log:
        await made.cluster
    assert not log.getvalue(), "both can leave"


async def specified_anew(made: Shrinkable) -> None:
    kept = list(made.cluster.worker_spec.items())[:2]
    made.cluster.worker_spec = dict(kept)
    await made.cluster._correct_state()
    await made.size(2)


async def closed_gracefully(made: Shrinkable) -> None:
    await asyncio.gather(*(made.cluster.workers[name].close_gracefully() for name in (0, 3)))
    made.cluster.scale(2)
    await made.cluster


@pytest.mark.parametrize(
    "way",
    [scaled_up, scaled, a_whole_float, scaled_down, taken_out_by_hand, specified_anew, closed_gracefully],
)
def test_no_way_to_a_smaller_cluster_loses_results_or_runs_anything_twice(
    way: Callable[[Shrinkable], Awaitable[None]],
) -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            futures = await made.results(20)
            data = await made.client.scatter(list(range(100, 120)))
            gate = Gate()
            running = await made.held(8, gate)
            shrinking = asyncio.ensure_future(way(made))
            # it waits for what executes
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(shrinking), 0.3)
            assert not shrinking.done()
            gate.open()
            await asyncio.wait_for(shrinking, PATIENCE_S)
            assert len(made.scheduler.workers) == len(made.cluster.workers) == 2
            assert len(made.cluster.worker_spec) == 2
            assert await made.client.gather(futures) == [result_of(number) for number in range(20)]
            assert await made.client.gather(data) == list(range(100, 120))
            await made.client.gather(running)
            assert made.tally.twice() == []
            made.cluster.scale_up(3)
            await made.cluster
            assert len(made.scheduler.workers) == 3

    asyncio.run(run())


def test_a_worker_that_is_taken_out_by_hand_and_cannot_leave_is_specified_again() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            await made.cluster.pin(1)
            del made.cluster.worker_spec[0], made.cluster.worker_spec[1]
            with captured_logger("dask_hpc.deploy.by_hand") as log:
                await made.cluster
            assert "Workers 1 were taken out of worker_spec and cannot leave now" in log.getvalue()
            assert set(made.cluster.worker_spec) == set(made.cluster.workers) == {1}
            assert made.names() == {"1"}

    asyncio.run(run())


def test_the_worker_that_is_taken_out_by_hand_goes_and_no_other_where_the_size_is_asked_for_as_well() -> None:
    async def run() -> None:
        async with shrinkable(4) as made:
            await made.results(20)
            cluster, fewest = made.cluster, [4]
            remove = made.scheduler.remove_worker

            async def counted(*args: Any, **kwargs: Any) -> Any:
                answer = await remove(*args, **kwargs)
                fewest.append(len(made.scheduler.workers))
                return answer

            made.scheduler.remove_worker = counted
            for taken, left in ((3, {"0", "1", "2"}), (0, {"1", "2"})):
                del cluster.worker_spec[taken]
                cluster.scale(len(left))
                await cluster
                assert made.names() == left == set(map(str, cluster.worker_spec))
                assert min(fewest) == len(left)
            # where it cannot leave another one does, to have that size
            await cluster.pin(1)
            del cluster.worker_spec[1]
            cluster.scale(1)
            await made.size(1)
            assert made.names() == {"1"}

    asyncio.run(run())


def test_of_several_clusters_each_that_was_resized_is_waited_for() -> None:
    async def run() -> None:
        async with shrinkable(2) as first, shrinkable(2) as second:
            gate = Gate()
            busy = await first.held(2, gate)

            async def resized() -> None:
                first.cluster.scale(1)
                second.cluster.scale(1)
                await second.cluster
                assert len(second.scheduler.workers) == 1
                await first.cluster
                assert len(first.scheduler.workers) == 1

            waiting = asyncio.ensure_future(resized())
            await second.size(1)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 0.3)
            assert not waiting.done()
            gate.open()
            await asyncio.wait_for(waiting, PATIENCE_S)
            await first.client.gather(busy)

    asyncio.run(run())


def test_a_worker_that_is_taken_out_while_others_start_with_it_loses_nothing() -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            Late.go = asyncio.Event()
            for name in ("early", "late"):
                made.cluster.worker_spec[name] = {"cls": Late, "options": {"nthreads": 1}}
            starting = made.cluster._correct_state()
            await until(lambda: "early" in made.names(), "one of two has come")
            data = await made.client.scatter(b"held", workers=[made.address("early")], hash=False)
            del made.cluster.worker_spec["early"]
            again = made.cluster._correct_state()
            await asyncio.sleep(0)  # it has begun
            Late.go.set()
            await within(asyncio.gather(starting, again))
            await until(lambda: "early" not in made.names() | set(made.cluster.workers), "it has left")
            assert await within(made.client.gather(data)) == b"held"

    asyncio.run(run())


def test_a_size_that_cannot_be_had_is_not_waited_for_and_a_new_client_waits_for_none() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            await made.cluster.pin(0, 1)

            async def smaller() -> None:
                made.cluster.scale(0)
                await made.cluster

            # in this very task, whatever the release of Python
            async with asyncio.timeout(PATIENCE_S):
                await smaller()
            assert set(made.cluster.refused) == {"0", "1"}
            await made.cluster.unpin(0, 1)
            gate = Gate()
            busy = await made.held(2, gate)

            async def one() -> None:
                made.cluster.scale(1)
                await made.cluster

            shrinking = asyncio.ensure_future(one())
            await until(lambda: made.cluster._shrinking, "it has begun")
            async with Client(made.cluster, asynchronous=True) as other:
                assert other.status == "running"
                assert not shrinking.done()
            gate.open()
            await asyncio.wait_for(shrinking, PATIENCE_S)
            assert len(made.scheduler.workers) == 1
            del busy

    asyncio.run(run())


def test_who_waits_for_a_cluster_waits_for_what_it_has_asked_for_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster, another = object.__new__(SafeScaling), object.__new__(SafeScaling)
        settled: list[SafeScaling] = []

        async def settle(self: SafeScaling) -> None:
            settled.append(self)

        async def waited() -> None:
            own = asyncio.ensure_future(asyncio.sleep(0.01))
            looks.append(own)
            assert await cluster is cluster
            assert own.done(), "what it has taken out itself has left"

        def look(self: SafeScaling) -> Iterator[None]:
            self._taken_out.add(looks[-1])
            return iter(())

        looks: list[asyncio.Future[None]] = []
        monkeypatch.setattr(SpecCluster, "__await__", look)
        monkeypatch.setattr(SafeScaling, "_settled", settle)
        # of somebody else, who has taken one out before that cannot leave
        cluster._taken_out = {asyncio.get_running_loop().create_future()}  # type: ignore[arg-type]
        for resized, found in (((), []), ([another], []), ([cluster, another], [cluster])):
            scaling._RESIZED.set(frozenset(map(weakref.ref, resized)))
            await asyncio.wait_for(waited(), PATIENCE_S)
            assert settled == found

    asyncio.run(run())


def test_jobs_are_whole_ones() -> None:
    assert workers_of("minimum_jobs", 2.0, 2) == 4
    assert workers_of("maximum_jobs", float("inf"), 2) == float("inf")
    for wrong in (1.5, -1, "2", True, float("nan")):
        with pytest.raises(ValueError, match=r"a whole number of jobs.*, 2 to a job, write minimum$"):
            workers_of("minimum_jobs", wrong, 2)


def test_what_adapt_does_not_take_is_refused_with_what_to_write_instead() -> None:
    async def run() -> None:
        async with shrinkable(0) as made:
            for name, instead in {"n": "minimum and maximum", "key": "worker_key"}.items():
                with pytest.raises(TypeError, match=f"in place of {name} write {instead}"):
                    made.cluster.adapt(**{name: 1})
            with pytest.raises(TypeError, match=r"^scale got jobs; .*in place of jobs write n"):
                made.cluster.scale(jobs=2)
            adaptive = made.cluster.adapt(minimum=1.0, maximum=2.0)
            assert (adaptive.minimum, adaptive.maximum) == (1, 2)
            await made.size(1)
            adaptive.stop()
            for wrong in (2.5, -1.0, float("inf"), float("nan")):
                with pytest.raises(ValueError, match="allowed: a whole number"):
                    made.cluster.scale(wrong)

    asyncio.run(run())
