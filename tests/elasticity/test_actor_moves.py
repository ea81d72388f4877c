"""Actors whose class gives their state move when their worker has to go; others are named."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Worker
from elastic_clusters import Shrinkable, shrinkable
from elastic_work import Ledger, result_of
from waits import Gate, until, within

from dask_hpc.scheduler.internals import actor_homes
from dask_hpc.scheduler.leaving.actors import Actors
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.scheduler.tables.parts import Departure
from dask_hpc.worker.actors import Forwarding, immovable

NOTHING: dict[str, list[str]] = {"executing": [], "lost": [], "actors": [], "spilled": []}


class Account(Ledger):
    """A ledger that says what its state is."""

    limit = 100

    def __getstate__(self) -> dict[str, int]:
        return {"total": self.total}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.total = state["total"]

    def add_slowly(self, amount: int, gate: Gate) -> int:
        gate.wait(None)
        return self.add(amount)


class Asynchronous(Account):
    async def add_later(self, amount: int) -> int:
        return self.add(amount)


class OneSided(Ledger):
    def __getstate__(self) -> dict[str, int]:
        return {}


def test_an_actor_moves_if_its_class_itself_gives_and_takes_its_state() -> None:
    assert immovable(Account) is None
    assert immovable(type("Heir", (Account,), {})) is None
    assert immovable(Ledger) == "its class Ledger has no __getstate__ and no __setstate__ of its own"
    assert immovable(OneSided) == "its class OneSided has no __setstate__ of its own"
    assert immovable(Asynchronous) == "its class Asynchronous has coroutines: add_later"


def use(account: Any, amount: int) -> int:
    """A task that calls an actor."""
    return int(account.add(amount).result())


async def hosted(made: Shrinkable, cls: type = Account, name: int = 0) -> Any:
    """An actor on a worker, with one in its books."""
    made.scheduler.validate = True
    actor = await made.client.submit(cls, actor=True, key="account", workers=[made.address(name)])
    assert await actor.add(1) == 1
    return actor


async def depart(made: Shrinkable, name: int | str = 0, within_s: float = 20.0) -> dict[str, list[str]]:
    """Have a worker leave; gives what it leaves behind."""
    return await within(of(made.scheduler).departures.depart(made.address(name), within_s, "a test"))


def home(made: Shrinkable) -> str:
    """Name of the worker where the actor lives."""
    [name] = [str(ws.name) for ws in made.scheduler.workers.values() if ws.actors]
    return name


def total(made: Shrinkable) -> int:
    """What is in the books, where the actor lives."""
    [total] = [
        worker.state.actors["account"].total
        for worker in Worker._instances
        if any(ws.address == worker.address and ws.actors for ws in made.scheduler.workers.values())
    ]
    return int(total)


async def proxied(made: Shrinkable, address: str, amount: int) -> Any:
    """A call as clients in other processes send it, to the worker where the actor once was."""
    call = {"op": "actor_execute", "actor": "account", "function": "add", "args": [amount], "kwargs": {}}
    answer = await within(made.scheduler.handlers["proxy"](msg=call, worker=address))
    assert answer["status"] == "OK"
    return total(made)


async def closed(worker: Worker) -> None:
    await until(lambda: worker.status.name == "closed", "it has closed")


def test_an_actor_moves_with_its_state_and_handles_go_on_working() -> None:
    async def run() -> None:
        async with shrinkable(3) as made:
            account = await hosted(made)
            futures = await made.results()
            tasks = [
                made.client.submit(use, account, 1, workers=[made.address(n)], pure=False) for n in (0, 1, 2)
            ]
            assert sorted(await made.client.gather(tasks)) == [2, 3, 4]
            first, address = made.cluster.workers[0], made.address(0)
            assert await depart(made) == NOTHING
            await closed(first)
            assert made.names() == {"1", "2"}
            assert await proxied(made, address, 1) == 5
            # the handle that tasks of the other worker were given (here all workers share one process, so
            # that calls through it would go through the worker that has closed)
            [other] = [w for w in made.cluster.workers.values() if "account" in w.data and w is not first]
            assert other.data["account"]._address == made.address(home(made))
            made.scheduler.validate_state()
            assert await depart(made, home(made)) == NOTHING
            assert await proxied(made, address, 1) == 6
            assert await made.client.gather(futures) == [result_of(number) for number in range(20)]
            made.scheduler.validate_state()

    asyncio.run(run())


def _handler_of(worker: Worker) -> Any:
    return worker.handlers["actor_execute"].__self__


def test_calls_that_have_begun_are_finished_and_those_that_come_meanwhile_are_answered() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            account = await hosted(made)
            gate = Gate()
            begun = account.add_slowly(10, gate)
            await until(lambda: made.cluster.workers[0].active_threads, "the call has begun")
            leaving = asyncio.ensure_future(depart(made))
            worker = made.cluster.workers[0]
            await until(lambda: isinstance(_handler_of(worker), Forwarding), "calls are held")
            late = [account.add(100) for _ in range(3)]
            await asyncio.sleep(0)
            assert not begun.done()
            gate.open()
            assert await within(begun) == 11
            assert sorted([await within(call) for call in late]) == [111, 211, 311]
            assert await within(leaving) == NOTHING
            assert home(made) == "1"
            assert total(made) == 311

    asyncio.run(run())


def test_an_actor_that_cannot_move_is_named_and_the_data_beside_it_moves() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            ledger = await hosted(made, Ledger)
            futures = await made.results()
            assert await depart(made) == {**NOTHING, "actors": ["account"]}
            assert await made.client.gather(futures) == [result_of(number) for number in range(20)]
            assert made.tally.twice() == []
            del ledger

    asyncio.run(run())


def test_an_actor_whose_call_takes_too_long_is_named_and_the_data_beside_it_moves() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            account = await hosted(made)
            futures = await made.results()
            gate = Gate()
            begun = account.add_slowly(10, gate)
            await until(lambda: made.cluster.workers[0].active_threads, "the call has begun")
            assert await depart(made, within_s=3.0) == {**NOTHING, "actors": ["account"]}
            assert await made.client.gather(futures) == [result_of(number) for number in range(20)]
            gate.open()
            del begun

    asyncio.run(run())


@pytest.mark.parametrize("ends", [False, True])
def test_where_there_turns_out_to_be_less_time_calls_are_waited_for_no_longer_than_that(ends: bool) -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            account, worker = await hosted(made), made.cluster.workers[0]
            futures, gate = await made.results(workers=[worker.address], allow_other_workers=True), Gate()
            begun = account.add_slowly(10, gate)
            await until(lambda: worker.active_threads, "the call has begun")
            first = asyncio.ensure_future(depart(made, within_s=3600.0))
            await until(lambda: isinstance(_handler_of(worker), Forwarding), "its calls are held")
            [waits] = _handler_of(worker).giving.values()
            second = asyncio.ensure_future(depart(made, within_s=60.0 if ends else 5.0))
            await until(waits.done, "it is begun anew")
            if ends:
                gate.open()
                assert await within(begun) == 11
            left = NOTHING if ends else {**NOTHING, "actors": ["account"]}
            assert await second == await first == left
            assert await made.client.gather(futures) == [result_of(number) for number in range(20)]
            gate.open()

    asyncio.run(run())


def test_an_actor_waits_for_a_worker_that_takes_it() -> None:
    async def run() -> None:
        async with shrinkable(1) as made:
            account = await hosted(made)
            leaving = asyncio.ensure_future(depart(made))
            await until(lambda: not made.scheduler.running, "it takes nothing any more")
            async with Worker(made.cluster.scheduler_address, nthreads=1, name="another"):
                assert await within(leaving) == NOTHING
                assert home(made) == "another"
                assert total(made) == 1
            del account

    asyncio.run(run())


def test_an_actor_that_has_moved_ends_with_its_future() -> None:
    async def run() -> None:
        async with shrinkable(2) as made:
            future = made.client.submit(Account, actor=True, key="account", workers=[made.address(0)])
            account = await future
            assert await account.add(1) == 1
            assert await depart(made) == NOTHING
            worker = made.cluster.workers[1]
            assert worker.state.actors["account"].total == 1
            del account
            # in stock Dask a handle that was called holds itself, until cycles are collected
            gc.collect()
            future.release()
            await until(lambda: not made.scheduler.tasks, "it is forgotten")
            await until(lambda: not worker.state.actors, "it has ended")
            worker.state.validate_state()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("leaving", "staying", "taken"),
    [("a", "cd", "d"), ("a", "bc", "b"), ("a", "a", "b"), ("ab", "", "d"), ("abcd", "", None)],
    ids=["with fewer bytes", "with fewer actors", "none that stays", "wherever there is one", "nobody"],
)
def test_which_worker_takes_an_actor(leaving: str, staying: str, taken: str | None) -> None:
    loads = {"a": (0, 0), "b": (0, 1), "c": (1, 9), "d": (1, 5)}
    running = [
        SimpleNamespace(address=address, actors=range(actors), nbytes=nbytes)
        for address, (actors, nbytes) in loads.items()
    ]
    scheduler: Any = SimpleNamespace(running=running)
    assert actor_homes.host_for_actor(scheduler, leaving, staying) == taken


def test_an_actor_goes_to_a_worker_that_stays_in_a_part_of_the_time_and_not_in_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    # nobody has room at first; one more is about to leave
    targets = iter([None, "c"])
    at = {address: SimpleNamespace(reserved=address != "c") for address in "abc"}
    scheduler = SimpleNamespace(workers={"a": None})
    state: Any = SimpleNamespace(scheduler=scheduler, nodes=SimpleNamespace(at=at), now_s=lambda: 100.0)
    actors = Actors(state, SimpleNamespace(reserved_s=lambda _: 4.0))  # type: ignore[arg-type]

    async def movable(addresses: Any) -> dict[Any, str]:
        asked.append(addresses)
        return {"one": "a", "other": "a"}

    async def move(key: Any, source: str, target: str, within_s: float, hurries: Any) -> bool:
        asked.append((key, source, target, within_s))
        departure.last = True
        return True

    def host(scheduler: Any, leaving: Any, staying: Any) -> str | None:
        asked.append(staying)
        return next(targets)

    monkeypatch.setattr(actors, "movable", movable)
    monkeypatch.setattr(actors, "move", move)
    monkeypatch.setattr(actor_homes, "host_for_actor", host)
    departure = Departure(("a",), "its end", 60.0, 110.0)
    assert asyncio.run(actors.leave(departure))
    assert asked == [["a"], ["c"]]
    # it is not examined again, and the other one is waited for by nobody
    assert asyncio.run(actors.leave(departure))
    assert asked[2:] == [["c"], ("other", "a", "c", 2.0)]
    assert departure.notes == {"actors": {"one": "a"}}
