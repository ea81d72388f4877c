"""One cell of the loss matrix: a cluster, something that can be lost, and something that makes it smaller.

Everything is made on four workers of one thread. While the trigger fires, a task with a side effect is
executing on each of them and more are queued.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
from distributed import Client
from elastic_work import Ledger, Tally, make, result_of, shuffled, until, work

import dask_hpc

TRIGGERS = ("scale", "adapt", "retire", "lifetime", "all but one", "actor host")
KINDS = ("computed", "scattered", "actor", "p2p")
#: Workers at the start; the last of them are those that have to go, where the trigger names them.
WORKERS = 4
#: How long a worker lives that has a lifetime: setting everything up has to take less.
_LIFETIME_S = {True: 9.0, False: 2.0}
#: How long to wait for results that may be lost.
_GIVE_UP_S = 20.0


@dataclass
class Cell:
    """What came of one cell."""

    trigger: str
    kind: str
    ours: bool
    seed: int
    #: Results that were in memory and had to be computed again, or are gone.
    lost_computed: int = 0
    #: Scattered objects that are gone.
    lost_scattered: int = 0
    #: Tasks that were started, completed or had their effect more than once.
    twice: list[str] = field(default_factory=list)
    #: None: there was none.
    actor_alive: bool | None = None
    #: Why a node that should have gone has stayed.
    refused: dict[str, str] = field(default_factory=dict)
    right: bool = False
    left: int = 0
    #: Until the last worker that left had left; None: none did.
    release_s: float | None = None
    #: What the cluster itself said was lost.
    announced: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The cell for JSON."""
        return asdict(self)


@dataclass
class _Made:
    """What can be lost, and what it must be."""

    computed: list[Any] = field(default_factory=list)
    scattered: list[Any] = field(default_factory=list)
    actor: Any = None
    array: Any = None
    expected: Any = None
    load: list[Any] = field(default_factory=list)


def victims(trigger: str) -> list[int]:
    """Names of the workers that a trigger names, or as many as it takes away."""
    return [1, 2, 3] if trigger == "all but one" else [2, 3]


def run_cell(
    trigger: str, kind: str, *, ours: bool, processes: bool, seed: int = 0, task_s: float = 0.65
) -> Cell:
    """Make a cluster, pull the trigger, see what is left.

    Tasks take `task_s` on average. Workers are processes, or in this one.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        return asyncio.run(_run(Cell(trigger, kind, ours, seed), processes, task_s, Tally(Path(folder))))


async def _run(cell: Cell, processes: bool, task_s: float, tally: Tally) -> Cell:
    trigger, ours = cell.trigger, cell.ours
    lifetime_s = _LIFETIME_S[processes] if trigger == "lifetime" else None
    with dask.config.set({"distributed.scheduler.worker-ttl": None}):
        async with (
            _cluster(ours, processes, lifetime_s) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await client.register_plugin(tally.plugin)
            made = await _make(client, cluster, tally, cell, task_s, lifetime_s)
            watcher = _Departures(cluster.scheduler)
            began_s = time.monotonic()
            pulled = asyncio.ensure_future(_pull(trigger, client, cluster))
            await _settled(cell, made, cluster, client, watcher, pulled)
            cell.left = len(cluster.scheduler.workers)
            if trigger == "lifetime" and watcher.asked_s is not None:
                began_s = watcher.asked_s
            cell.release_s = None if watcher.last_s is None else round(watcher.last_s - began_s, 2)
            cell.refused = {str(k): why for k, why in getattr(cluster, "refused", {}).items()}
            events = [event for topic in (await client.get_events()).values() for _, event in topic]
            departures = [e for e in events if isinstance(e, dict) and e.get("action") == "hpc-departure"]
            cell.announced = sorted(key for event in departures for key in [*event["lost"], *event["actors"]])
            await _examine(cell, made, client, tally)
            watcher.stop()
            if not pulled.done():
                pulled.cancel()
    return cell


@asynccontextmanager
async def _cluster(ours: bool, processes: bool, lifetime_s: float | None) -> Any:
    cls = dask_hpc.LocalCluster if ours else distributed.LocalCluster
    cluster = cls(
        n_workers=WORKERS,
        threads_per_worker=1,
        processes=processes,
        dashboard_address=":0",
        asynchronous=True,
        silence_logs=50,
    )
    if lifetime_s is not None:
        for name in victims("lifetime"):
            spec = cluster.worker_spec[name]
            options = {**spec["options"], "lifetime": f"{lifetime_s} s", "lifetime_restart": False}
            cluster.worker_spec[name] = {**spec, "options": options}
    async with cluster:
        yield cluster


class _Departures(distributed.SchedulerPlugin):
    """When the first worker was asked to leave, and when the last one had left."""

    name = "departures"

    def __init__(self, scheduler: Any) -> None:
        self.asked_s: float | None = None
        self.last_s: float | None = None
        self._scheduler = scheduler
        self._retire = scheduler.handlers["retire_workers"]
        scheduler.handlers["retire_workers"] = self._asked
        scheduler.add_plugin(self)

    async def _asked(self, **arguments: Any) -> Any:
        if self.asked_s is None:
            self.asked_s = time.monotonic()
        return await self._retire(**arguments)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        self.last_s = time.monotonic()

    def stop(self) -> None:
        """Look no further: the cluster is about to close."""
        self._scheduler.remove_plugin(self.name)
        self._scheduler.handlers["retire_workers"] = self._retire


def address_of(cluster: Any, name: int) -> str:
    """Address of a worker by its name."""
    workers = cluster.scheduler.workers
    return next(address for address, ws in workers.items() if str(ws.name) == str(name))


async def _make(
    client: Client, cluster: Any, tally: Tally, cell: Cell, task_s: float, lifetime_s: float | None
) -> _Made:
    trigger, kind = cell.trigger, cell.kind
    rng = random.Random(cell.seed)
    scheduler = cluster.scheduler
    made = _Made()
    if kind == "computed":
        made.computed = client.map(make, range(40), key=[f"make-{number}" for number in range(40)])
        await distributed.wait(made.computed)
    if kind == "scattered":
        made.scattered = await client.scatter([result_of(number) for number in range(20)], hash=False)
    if kind == "actor" or trigger == "actor host":
        made.actor = await client.submit(
            Ledger, actor=True, key="ledger", workers=[address_of(cluster, victims(trigger)[-1])]
        )
        assert await made.actor.add(1) == 1
    if kind == "p2p":
        # inputs come until after the trigger
        input_s = 0.6 * task_s
        pieces = 16 if lifetime_s is None else round(WORKERS * lifetime_s / input_s) + 8
        columns, made.expected = shuffled(10 * pieces, pieces, input_s, tally.effects)
        made.array = client.compute(columns, priority=5)
    # as many as keep all workers busy until after the trigger, whenever that is
    tasks = 12 if lifetime_s is None else round(WORKERS * lifetime_s / task_s) + 6
    seconds = [rng.uniform(0.8 * task_s, 1.2 * task_s) for _ in range(tasks)]
    made.load = [
        client.submit(work, number, seconds[number], tally.effects, key=f"work-{number}", priority=number % 2)
        for number in range(tasks)
    ]
    if kind == "p2p":
        shuffles = scheduler.plugins["shuffle"]
        await until(lambda: shuffles.active_shuffles, "the shuffle is under way")
    if lifetime_s is None:
        await until(
            lambda: all(ws.processing for ws in scheduler.workers.values()) and tally.side_effects(),
            "every worker is busy",
        )
    if len(scheduler.workers) < WORKERS:
        raise RuntimeError(f"setting up took longer than the {lifetime_s} s that workers live")
    return made


async def _pull(trigger: str, client: Client, cluster: Any) -> None:
    names = victims(trigger)
    if trigger == "scale":
        cluster.scale(WORKERS - len(names))
    elif trigger == "adapt":
        left = WORKERS - len(names)
        cluster.adapt(minimum=left, maximum=left, interval="100 ms", wait_count=1)
    elif trigger in ("retire", "all but one"):
        await client.retire_workers([address_of(cluster, name) for name in names])
    elif trigger == "actor host":
        # what `adapt` does when these are its choice
        adaptive = cluster.adapt(minimum=WORKERS, maximum=WORKERS, interval="1 h")
        await adaptive.scale_down(names)


async def _settled(
    cell: Cell, made: _Made, cluster: Any, client: Client, watcher: _Departures, pulled: asyncio.Task[None]
) -> None:
    """Wait for the results of the load, then for the workers that will go."""
    wanted = WORKERS - len(victims(cell.trigger))
    workers = cluster.scheduler.workers

    def host_stays() -> bool:
        return any(ws.actors for ws in workers.values()) and len(workers) == wanted + 1

    deadline_s = time.monotonic() + _GIVE_UP_S
    await distributed.wait(made.load, timeout=60)
    patient_until_s = time.monotonic() + 0.5
    while len(workers) > wanted and time.monotonic() < deadline_s:
        if host_stays() and time.monotonic() > patient_until_s:
            return
        await asyncio.sleep(0.02)


async def _examine(cell: Cell, made: _Made, client: Client, tally: Tally) -> None:
    """Ask for everything, and count."""
    computed = {"computed": made.computed, "load": made.load}
    values = {name: await _all(futures) for name, futures in computed.items()}
    scattered = await _all(made.scattered)
    cell.lost_scattered = sum(value is None for value in scattered)
    array = (await _all([made.array]))[0] if made.array is not None else None
    if made.actor is not None:
        cell.actor_alive = await _alive(made.actor)
    done = tally.completions()
    gone = sum(value is None for value in (*values["computed"], *values["load"]))
    again = [key for key, count in done.items() if count > 1 and key.startswith(("make-", "work-"))]
    cell.lost_computed = gone + len(again)
    cell.twice = tally.twice()
    cell.right = (
        values["computed"] in ([], [result_of(number) for number in range(40)])
        and values["load"] == [number + 1 for number in range(len(made.load))]
        and scattered in ([], [result_of(number) for number in range(20)])
        and (made.expected is None or (array is not None and np.array_equal(array, made.expected)))
        and cell.actor_alive is not False
    )


async def _all(futures: Sequence[Any]) -> list[Any]:
    """The results, None for each that is gone."""
    return list(await asyncio.gather(*(_one(future) for future in futures)))


async def _one(future: Any) -> Any:
    try:
        return await asyncio.wait_for(future.result(), _GIVE_UP_S)
    except (Exception, asyncio.CancelledError):
        return None


async def _alive(actor: Any) -> bool:
    try:
        return bool(await asyncio.wait_for(_add(actor), 5) == 2)
    except Exception:
        return False


async def _add(actor: Any) -> Any:
    return await actor.add(1)
