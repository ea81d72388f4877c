"""Workers that have less time than they need: only what is cut short runs again, and all is right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from departed import depart, spilling
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import result_of, shuffled, through
from waits import Gate, until, within

import dask_hpc
from dask_hpc.scheduler.internals import data, reads
from dask_hpc.scheduler.leaving.data_moves import DataMoves
from dask_hpc.scheduler.leaving.departures import Departures, logger
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.scheduler.tables.parts import Departure


def test_a_shuffle_that_takes_longer_than_there_is_time_runs_again_and_nothing_else() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            here = made.address(1)
            done = await made.results(20, workers=[here], allow_other_workers=True)
            columns, expected = shuffled(320, 32, 0.1, made.tally.effects)
            array = made.client.compute(columns)
            shuffles = made.scheduler.plugins["shuffle"].active_shuffles
            await until(lambda: shuffles and made.tally.side_effects().total() >= 6, "inputs have been sent")
            left = await within(of(made.scheduler).departures.depart(here, 0.2, "a test"))
            assert here not in made.scheduler.workers
            assert (left["lost"], left["actors"]) == ([], [])
            assert np.array_equal(await within(array), expected)
            again = made.tally.twice()
            print(f"run again: {len(again)} of {len(made.tally.starts())}")
            assert again
            of_the_shuffle = ("source-320", "rechunk", "shuffle-barrier")
            assert [key for key in again if not any(name in key for name in of_the_shuffle)] == []
            assert await within(made.client.gather(done)) == [result_of(n) for n in range(20)]

    asyncio.run(run())


def test_a_worker_whose_time_is_up_gets_no_task_while_it_is_emptied() -> None:
    async def run() -> None:
        async with shrinkable(2, threads_per_worker=2) as made:
            # that it is cut short is not the fault of a task
            made.scheduler.allowed_failures = 0
            long, short = Gate(), Gate()
            places = [made.address(name) for name in (0, 1)]

            def submit(gate: Gate, count: int, name: str, **options: Any) -> list[Any]:
                keys = [f"{name}-{number}" for number in range(count)]
                effects = made.tally.effects
                return made.client.map(through, range(count), gate=gate, effects=effects, key=keys, **options)

            # what is moved off it takes a moment
            await made.results(20, workers=places[:1], allow_other_workers=True)
            cut = submit(long, 1, "cut", workers=places[:1], allow_other_workers=True)
            ends = submit(short, 1, "ends", workers=places[:1], allow_other_workers=True)
            fill = submit(long, 2, "fill", workers=places[1:])
            await until(lambda: made.tally.side_effects().total() == 4, "both are full")
            waiting = submit(long, 20, "waits")
            await until(lambda: len(made.scheduler.workers[places[0]].processing) > 2, "one more is there")
            going = asyncio.ensure_future(depart(made, 0, 1.0))
            await until(lambda: len(made.scheduler.workers[places[0]].processing) == 2, "it is drained")
            short.open()
            left = await going
            assert left["executing"] == ["cut-0"]
            long.open()
            await within(made.client.gather([*cut, *ends, *fill, *waiting]))
            assert {key for key, count in made.tally.starts().items() if count > 1} == {"cut-0"}

    asyncio.run(run())


def test_a_worker_goes_once_others_have_what_it_held_however_much_time_there_is() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            here = [made.address(0)]
            done = await made.results(20, workers=here, allow_other_workers=True)
            left = await within(depart(made, 0, 3600.0), 20.0)
            assert not any(left.values())
            assert await within(made.client.gather(done)) == [result_of(n) for n in range(20)]

    asyncio.run(run())


def test_a_worker_that_ends_by_itself_is_not_told_to_for_it_may_start_anew() -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            worker, stock = made.cluster.workers[0], made.scheduler.remove_worker
            told: list[Any] = []

            async def remove(*args: Any, **how: Any) -> Any:
                told.append((how["close"], how["expected"]))
                return await stock(*args, **how)

            made.scheduler.remove_worker = remove
            only = await made.client.scatter([1])  # nobody else has room for it
            await within(worker.close_gracefully())
            # nor does it count against what it executes
            assert told == [(False, True)], only

    with dask.config.set({"hpc.shrink-deadline": "200 ms"}):
        asyncio.run(run())


def test_a_node_gets_tasks_again_where_leaving_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise RuntimeError("it fails")

    async def run() -> None:
        async with shrinkable(1) as made:
            departures = of(made.scheduler).departures
            monkeypatch.setattr(departures, "_empty", fails)
            async with departures.engine.kept_awake():
                with pytest.raises(RuntimeError, match="it fails"):
                    await depart(made)
                assert await within(made.client.submit(result_of, 1)) == result_of(1)
            monkeypatch.undo()
            # whoever asks again has no old answer
            assert not any((await depart(made)).values())
            assert made.names() == set()

    asyncio.run(run())


def test_a_worker_that_leaves_and_then_has_less_time_saves_what_it_holds_in_that() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            gate, here = Gate(), made.address(0)
            done = await made.results(20, workers=[here], allow_other_workers=True)
            busy = await made.held(2, gate)
            departures = of(made.scheduler).departures
            first = asyncio.ensure_future(departures.depart(here, 3600.0, "a notice"))
            at = of(made.scheduler).engine.state.nodes.at
            await until(lambda: here in at and at[here].reserved, "it is drained")
            # more time than there was said to be changes nothing
            later = asyncio.ensure_future(departures.depart(here, 7200.0, "a later end"))
            left = await within(departures.depart(here, 1.0, "it is being ended"), 20.0)
            assert await within(first) == await within(later) == left
            [cut] = left["executing"]
            assert left == {"executing": [cut], "lost": [], "actors": [], "spilled": []}
            [row] = [row for _, row in made.scheduler.get_events(here) if row["action"] == "hpc-departure"]
            assert row["reason"] == "it is being ended"
            gate.open()
            assert await within(made.client.gather(busy)) == [0, 1]
            assert await within(made.client.gather(done)) == [result_of(n) for n in range(20)]
            assert made.tally.twice() == [cut]

    asyncio.run(run())


def test_data_that_is_moved_too_slowly_for_the_time_that_is_left_goes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> None:
        moving.set()
        await asyncio.Event().wait()

    async def run() -> None:
        async with spilling(tmp_path, workers=2) as made:
            futures = await made.results(10, workers=[made.address(0)], allow_other_workers=True)
            for method in ("retire_workers", "gather_on_worker"):
                monkeypatch.setattr(made.scheduler, method, never)
            departures, here = of(made.scheduler).departures, made.address(0)
            first = asyncio.ensure_future(departures.depart(here, 3600.0, "a notice"))
            await within(moving.wait())
            left = await within(departures.depart(here, 6.0, "it is being ended"), 20.0)
            assert (len(left["spilled"]), left["lost"]) == (10, [])
            assert await within(first) == left
            assert await within(made.client.gather(futures)) == [result_of(n) for n in range(10)]

    moving = asyncio.Event()
    asyncio.run(run())


@asynccontextmanager
async def giving_up(made: Shrinkable, **settings: Any) -> AsyncIterator[tuple[str, Gate]]:
    """A job that is giving one of its two nodes up: the address of that, and the gate of its tasks."""
    runtime = await dask_hpc.install(made.client, lend_s=0, **settings)
    gate = Gate()
    async with runtime.job("fit", nodes=2, min_nodes=1, max_nodes=2) as job:
        futures = await made.held(2, gate)
        resize = asyncio.ensure_future(job.resize(1))
        at = of(made.scheduler).engine.state.nodes.at
        await until(lambda: any(node.reserved for node in at.values()), "one of them is drained")
        yield next(address for address, node in at.items() if node.reserved), gate
        await within(resize)
        assert await within(made.client.gather(futures)) == [0, 1]
    await job.wait(10)


def test_a_worker_whose_node_is_given_up_anyway_finishes_what_it_executes_while_there_is_time() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            async with giving_up(made) as (here, gate):
                leaving = asyncio.ensure_future(of(made.scheduler).departures.depart(here, 60.0, "its end"))
                # as many looks as it would have needed to go
                departing = of(made.scheduler).departures._under_way
                await until(lambda: departing, "it departs")
                for _ in range(20):
                    await asyncio.sleep(of(made.scheduler).engine.state.settings.sweep_s)
                assert here in made.scheduler.workers
                gate.open()
                assert (await within(leaving))["executing"] == []
            assert made.tally.twice() == []

    asyncio.run(run())


@pytest.mark.parametrize("shuffles", [False, True])
def test_a_worker_that_is_let_go_and_has_to_go_then_ends_what_it_takes_part_in(shuffles: bool) -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            gate, here = Gate(), made.address(1)
            if shuffles:
                columns, expected = shuffled(320, 32, 0.1, made.tally.effects)
                work = made.client.compute(columns)
                active = made.scheduler.plugins["shuffle"].active_shuffles
                await until(lambda: active and made.tally.side_effects().total() >= 6, "inputs are sent")
            else:
                held = await made.held(3, gate)
            going = asyncio.ensure_future(made.cluster.ask("release", count=1, among=[1]))
            departures, at = of(made.scheduler).departures, of(made.scheduler).engine.state.nodes.at
            await until(lambda: here in at and at[here].reserved, "it is drained")
            leaving = asyncio.ensure_future(departures.depart(here, 3600.0, "a notice"))
            await until(lambda: departures._under_way, "it departs")
            gate.open()
            assert not any((await within(leaving)).values())
            # whoever drained it may have let it go before
            await within(going)
            assert here not in made.scheduler.workers
            if shuffles:
                assert np.array_equal(await within(work), expected)
            else:
                assert await within(made.client.gather(held)) == [0, 1, 2]
            assert made.tally.twice() == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("left_s", "others", "drained_s"), [(60.0, True, 57.0), (60.0, False, 37.0), (10.0, False, 0.0)]
)
def test_what_executes_has_the_time_that_moving_and_where_nobody_else_is_writing_leave(
    monkeypatch: pytest.MonkeyPatch, left_s: float, others: bool, drained_s: float
) -> None:
    monkeypatch.setattr(reads, "moving_s", lambda *_: 3.0)
    monkeypatch.setattr(reads, "others_running", lambda *_: others)
    departures = object.__new__(Departures)
    state, parts = SimpleNamespace(now_s=lambda: 100.0), SimpleNamespace(reserved_s=lambda _: 20.0)
    departures.engine = SimpleNamespace(  # type: ignore[assignment]
        scheduler=SimpleNamespace(workers=()), state=state, parts=parts
    )
    departure = Departure(("a",), "its end", 3600.0, 100.0 + left_s)
    assert departures._drained_within_s(departure) == drained_s


def test_a_worker_whose_tasks_are_cut_short_keeps_no_job_from_the_nodes_that_stay() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            runtime = await dask_hpc.install(made.client, policy="fcfs", lend_s=0)
            gate = Gate()
            busy = await made.held(3, gate)
            async with of(made.scheduler).engine.kept_awake():
                assert len((await depart(made, 0, 0.2))["executing"]) == 1
                async with runtime.job("next", nodes=1) as job:
                    nodes = of(made.scheduler).engine.state.nodes.nodes
                    await until(lambda: any(node.reserved for node in nodes.values()), "one is drained")
                    gate.open()
                    assert await within(made.client.submit(sum, [1, 2])) == 3
                    assert (await job.status())["state"] == "running"
            assert await within(made.client.gather(busy)) == [0, 1, 2]

    asyncio.run(run())


def test_what_stock_could_not_move_in_time_is_copied_for_a_moment_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied: list[Any] = []

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    async def copy(scheduler: Any, keys: Any, addresses: Any) -> None:
        copied.append((keys, addresses))

    for module, name, instead in (
        (data, "retire", never),
        (data, "_copy", copy),
        (data, "stop_intake", lambda *_: None),
        (reads, "sole_keys", lambda *_: ["key"]),
    ):
        monkeypatch.setattr(module, name, instead)
    left_s = iter([0.01])
    scheduler: Any = SimpleNamespace(workers={"a": None}, running=[SimpleNamespace(address="b")])
    asyncio.run(data.move_off(scheduler, ["a"], ["b"], lambda: next(left_s, 0.0)))
    assert copied == [(["key"], ["b"])]


def test_a_worker_whose_node_is_given_up_anyway_goes_when_its_time_is_over() -> None:
    async def run() -> None:
        async with shrinkable(2) as made, giving_up(made, shrink_deadline_s=3600) as (here, gate):
            try:
                left = await within(of(made.scheduler).departures.depart(here, 1.0, "its end"), 20.0)
            finally:
                gate.open()
            assert len(left["executing"]) == 1

    asyncio.run(run())


def test_nobody_waits_for_room_in_the_time_that_writing_needs_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, said, looks = [100.0], list[Any](), list[bool]()

    async def leave(departure: Departure) -> bool:
        looks.append(departure.last)
        return True

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds

    state, parts = SimpleNamespace(now_s=lambda: now_s[0]), SimpleNamespace(leave=leave)
    parts.reserved_s = lambda _: 2.0
    departures = object.__new__(Departures)
    departures.closing = False
    departures.engine = SimpleNamespace(  # type: ignore[assignment]
        scheduler=SimpleNamespace(workers={"a": None}), state=state, parts=parts
    )
    monkeypatch.setattr(reads, "sole_keys", lambda *_: ["key"])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(logger, "warning", lambda *line: said.append(line))
    departure = Departure(("a",), "its end", 3.25, 103.25)
    asyncio.run(departures._empty(departure))
    assert now_s == [101.25]
    # before each wait, after the last one, and to save what is there
    assert looks == [False] * 4 + [True]
    assert (departure.waits, len(said)) == (3, 1)


@pytest.mark.parametrize(
    ("last", "waits", "others", "moved"),
    [(False, 0, False, True), (False, 1, True, True), (False, 1, False, False), (True, 0, True, False)],
)
def test_data_goes_to_those_that_stay_and_is_not_moved_in_the_time_that_writing_needs(
    monkeypatch: pytest.MonkeyPatch, last: bool, waits: int, others: bool, moved: bool
) -> None:
    found: list[Any] = []

    async def move_off(scheduler: Any, addresses: Any, staying: Any, left_s: Any) -> None:
        found.append((addresses, staying, left_s()))

    monkeypatch.setattr(data, "move_off", move_off)
    monkeypatch.setattr(reads, "others_running", lambda *_: others)
    # one more is about to leave
    at = {address: SimpleNamespace(reserved=address != "c") for address in "abc"}
    state: Any = SimpleNamespace(
        scheduler=SimpleNamespace(workers={}), nodes=SimpleNamespace(at=at), now_s=lambda: 100.0
    )
    parts: Any = SimpleNamespace(reserved_s=lambda _: 2.0)
    departure = Departure(("a",), "its end", 60.0, 110.0, last=last, waits=waits)
    assert asyncio.run(DataMoves(state, parts).leave(departure)) is False
    assert found == ([(("a",), ["c"], 8.0)] if moved else [])


def test_of_what_comes_back_others_keep_what_they_have_got_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[Any] = []
    departures = object.__new__(Departures)
    departures.engine = SimpleNamespace(  # type: ignore[assignment]
        scheduler=SimpleNamespace(workers={"a": None})
    )
    monkeypatch.setattr(reads, "sole_keys", lambda *_: ["back", "lost"])
    monkeypatch.setattr(data, "let_go", lambda _, keys, leaving, why: gone.append((keys, leaving)))
    departures._let_go(Departure(("a",), "its end", 60.0, 60.0, kept={"a": ["back", "moved"]}))
    assert gone == [(["back"], ["a"])]
