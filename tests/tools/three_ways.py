"""One scenario on three clusters: stock Dask, ours beside an idle job, ours inside a job.

A *scenario* is a coroutine that uses the API of a client as a user would, and returns what that user sees.
What it leaves on the scheduler is added. `same` holds that the three answers are equal.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import dask
from dask.utils import key_split
from distributed import Client, Nanny, Scheduler, Worker
from distributed.security import Security
from distributed.utils_test import end_cluster, start_cluster
from helpers import Gate, started, until

import dask_hpc

WAYS = ("stock", "beside an idle job", "inside a job")
#: No step of a scenario takes longer on a machine that is alive.
STEP_S = 8.0
_ADDRESS = re.compile(r"(tcp|inproc)://[^\s'\")>,]+")
_NUMBER = re.compile(r"-[0-9a-f]{8}[-0-9a-f]*|0x[0-9a-f]+|\b\d+\.\d+\b")


class Failed(NamedTuple):
    """The answer of a scenario that did not get to its end."""

    error: str
    words: str


@dataclass
class Way:
    """A cluster of two workers with two threads each, and a client."""

    name: str
    s: Scheduler
    workers: list[Worker]
    c: Client

    @asynccontextmanager
    async def another(self) -> AsyncIterator[Client]:
        """Another client of the same cluster; inside a job when the first one is."""
        async with Client(self.s.address, asynchronous=True, set_as_default=False) as other:
            if self.name != "inside a job":
                yield other
                return
            rt = await dask_hpc.install(other)
            async with rt.job("another", nodes=1, min_nodes=1) as job:
                yield other
            await job.cancel()

    def tasks(self) -> list[tuple[Any, ...]]:
        """What the scheduler knows of tasks: name, state, copies, clients, places the user has named."""
        return sorted(
            (
                key_split(ts.key),
                "queued" if ts.state == "no-worker" and not _named(ts) else ts.state,
                len(ts.who_has or ()),
                len(ts.who_wants or ()),
                _named(ts),
                sorted((ts.annotations or {}).keys() - {"span", "priority"}),
            )
            for ts in self.s.tasks.values()
        )

    async def known(self, *keys: Any) -> None:
        """Wait until the scheduler knows these tasks."""
        await until(lambda: all(key in self.s.tasks for key in keys), f"{keys} are known", STEP_S)

    async def sent(self) -> None:
        """Wait until the workers know of every task that the scheduler has sent them."""
        tasks = {worker.address: worker.state.tasks for worker in self.workers}

        def arrived() -> bool:
            on = dict.items(self.s.workers)
            return all(ts.key in tasks[address] for address, ws in on for ts in ws.processing)

        await until(arrived, "what was sent has arrived", STEP_S)

    async def forgotten(self, *keys: Any) -> None:
        """Wait until the scheduler knows none of these tasks."""
        await until(lambda: not any(key in self.s.tasks for key in keys), f"{keys} are forgotten", STEP_S)


Scenario = Callable[[Way], Awaitable[Any]]


def _named(ts: Any) -> int:
    """How many places the user has named for a task."""
    restrictions = ts.worker_restrictions if type(ts.worker_restrictions) is set else ()
    return len(restrictions or ()) + len(ts.resource_restrictions or ()) + len(ts.host_restrictions or ())


async def outcome(what: Awaitable[Any] | Callable[[], Any]) -> Any:
    """What is awaited (of a function: what it returns), or the type and the words of the exception."""
    try:
        result = what() if callable(what) else what
        return await asyncio.wait_for(result, STEP_S) if isinstance(result, Awaitable) else result
    except (Exception, asyncio.CancelledError) as error:
        return type(error).__name__, _plain(str(error))


def _plain(text: str) -> str:
    """Without addresses and numbers that differ from run to run."""
    return _NUMBER.sub("#", _ADDRESS.sub("address", text))


@asynccontextmanager
async def clusters(
    kind: type[Worker] | type[Nanny] = Worker, **kwargs: Any
) -> AsyncIterator[list[tuple[str, Scheduler, list[Any]]]]:
    """Three clusters; the second has an idle job on one of its nodes. Workers are made with `kwargs`."""
    async with AsyncExitStack() as stack:
        found = []
        for name in WAYS:
            # copies of data are counted: stock drops those it thinks superfluous, at times of its own
            with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
                s, workers = await start_cluster(
                    [("127.0.0.1", 2)] * 2,
                    "127.0.0.1",
                    security=Security(),
                    Worker=kind,
                    scheduler_kwargs={"validate": True},
                    worker_kwargs={"validate": True, "resources": {"gpu": 1}, **kwargs},
                )
            stack.push_async_callback(end_cluster, s, workers)
            if name == "beside an idle job":
                await stack.enter_async_context(_idle_job(s))
            found.append((name, s, list(workers)))
        yield found


@asynccontextmanager
async def _idle_job(s: Scheduler) -> AsyncIterator[None]:
    """A job that nothing of this context belongs to."""
    runs, ends = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with Client(s.address, asynchronous=True, set_as_default=False) as client:
            rt = await dask_hpc.install(client)
            async with rt.job("idle", nodes=1) as job:
                await started(s, job)
                runs.set()
                await ends.wait()

    held = asyncio.create_task(hold())
    await asyncio.wait([held, asyncio.create_task(runs.wait())], return_when="FIRST_COMPLETED")
    try:
        yield
    finally:
        ends.set()
        await held


async def _run(scenario: Scenario, name: str, s: Scheduler, workers: list[Worker]) -> Any:
    try:
        async with Client(s.address, asynchronous=True) as c:
            way = Way(name, s, workers, c)
            if name == "inside a job":
                rt = await dask_hpc.install(c)
                job = rt.job("same", nodes=2, min_nodes=1, max_nodes=2)
                async with job:
                    await started(s, job)
                    answer = await asyncio.wait_for(scenario(way), 2 * STEP_S)
            else:
                answer = await asyncio.wait_for(scenario(way), 2 * STEP_S)
    except Exception as error:  # a scenario that fails is an answer, too
        answer = Failed(type(error).__name__, _plain(str(error)))
    finally:
        Gate.open_all()
    return answer, await _left(s)


async def _left(s: Scheduler) -> dict[str, Any]:
    """What is on the scheduler once nothing changes any more."""

    def busy() -> bool:
        states = Counter(ts.state for ts in s.tasks.values())
        return bool(states["processing"] + states["queued"] + states["waiting"])

    await until(lambda: not busy(), "all is quiet", STEP_S)
    tasks = Counter(
        (key_split(ts.key), ts.state, len(ts.who_has or ()), len(ts.who_wants or ()))
        for ts in s.tasks.values()
    )
    of = s.extensions
    return {
        "tasks": sorted(tasks.items(), key=repr),
        "variables": sorted(of["variables"].variables),
        "queues": sorted(of["queues"].queues),
        "datasets": sorted(map(str, of["publish"].datasets)),
        "events": sorted(of["events"]._events),
        "semaphores": sorted((name, len(leases)) for name, leases in of["semaphores"].leases.items()),
        "restrictions": sorted(key_split(ts.key) for ts in s.tasks.values() if ts.worker_restrictions),
        "workers": len(s.workers),
    }


async def same(
    scenarios: Iterable[Scenario], kind: type[Worker] | type[Nanny] = Worker, **kwargs: Any
) -> None:
    """Run each scenario three ways; fails with the answers of those that differ, or that stock fails.

    The workers are of that `kind`, made with `kwargs`.
    """
    found = []
    async with clusters(kind, **kwargs) as ways:
        for scenario in scenarios:
            answers = {name: await _run(scenario, name, s, workers) for name, s, workers in ways}
            stock = answers["stock"]
            if isinstance(stock[0], Failed) or any(answer != stock for answer in answers.values()):
                told = (f"{name}: {answer}" for name, answer in answers.items())
                found.append("\n".join((scenario.__name__, *told)))
    assert not found, "\n\n".join(found)
