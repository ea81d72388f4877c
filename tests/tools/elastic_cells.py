"""One cell of the loss matrix: a cluster, something that can be lost, and something that makes it smaller.

While the trigger fires, a task with a side effect is executing on each worker and more are queued.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
import distributed
from distributed import Client
from elastic_places import ROWS, START_S, Place, Row, placed
from elastic_stakes import GIVE_UP_S, Stakes
from elastic_work import Tally


@dataclass
class Cell:
    """What came of one cell."""

    row: str
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
    #: Whether all results are right.
    right: bool = False
    #: Workers at the end, and the fewest that there were.
    left: int = 0
    fewest: int = 0
    #: Until the last worker that left had left; None: none did, or none was asked to.
    release_s: float | None = None
    #: What the cluster itself said was lost: results, data and actors.
    announced: list[str] = field(default_factory=list)
    #: Tasks that the cluster said it had to cut short.
    cut: list[str] = field(default_factory=list)
    #: Why nothing came of it.
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, unless it was an actor that could not stay or move and that was named.

        All rows leave more time than a task takes: nothing has to be executed twice.
        """
        may = self.kind != "moving actor" and not ROWS[self.row].refusable
        named = self.announced == ["ledger"] and may
        actor = self.actor_alive is not False or named
        return not (self.lost_computed or self.lost_scattered or self.twice) and self.right and actor

    def as_dict(self) -> dict[str, Any]:
        """The cell for JSON."""
        return {**asdict(self), "holds": self.holds}


def run_cell(
    row: str,
    kind: str,
    *,
    ours: bool,
    processes: bool = True,
    seed: int = 0,
    task_s: float = 0.65,
    slurm: Any = None,
) -> Cell:
    """Make the cluster of a row, pull the trigger, see what is left.

    Tasks take `task_s` on average. The workers of a LocalCluster are processes, or in this one. Rows on
    Slurm need a running one.
    """
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        return asyncio.run(_run(Cell(row, kind, ours, seed), processes, task_s, Path(folder), slurm))


async def _run(cell: Cell, processes: bool, task_s: float, folder: Path, slurm: Any) -> Cell:
    row, tally = ROWS[cell.row], Tally(folder)
    with dask.config.set({"distributed.scheduler.worker-ttl": None}):
        async with (
            placed(row, ours=cell.ours, processes=processes, folder=folder, slurm=slurm) as place,
            Client(place.cluster, asynchronous=True) as client,
        ):
            await client.register_plugin(tally.plugin)
            stakes = Stakes(place, client, tally, cell.kind, task_s)
            await stakes.make(random.Random(cell.seed))
            watcher = _Departures(place.scheduler)
            began_s: float | None = time.monotonic()
            pulled = asyncio.ensure_future(place.pull(client))
            await _settled(cell, row, place, stakes)
            if row.timed:
                began_s = place.noticed_s or watcher.asked_s
            cell.left, cell.fewest = len(place.scheduler.workers), watcher.fewest
            if watcher.last_s is not None and began_s is not None:
                cell.release_s = round(watcher.last_s - began_s, 2)
            cell.refused = {str(k): why for k, why in getattr(place.cluster, "refused", {}).items()}
            # not by the client: some events of stock cannot be sent
            events = [event for topic in place.scheduler.get_events().values() for _, event in topic]
            departures = [e for e in events if isinstance(e, dict) and e.get("action") == "hpc-departure"]
            cell.announced = sorted(key for event in departures for key in [*event["lost"], *event["actors"]])
            cell.cut = sorted(key for event in departures for key in event["executing"])
            await stakes.examine(cell)
            watcher.stop()
            if not pulled.done():
                pulled.cancel()
    return cell


class _Departures(distributed.SchedulerPlugin):
    """When the first worker was asked to retire, when the last one had left, and how few there were."""

    name = "departures"

    def __init__(self, scheduler: Any) -> None:
        self.asked_s: float | None = None
        self.last_s: float | None = None
        self.fewest = len(scheduler.workers)
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
        self.fewest = min(self.fewest, len(scheduler.workers))

    def stop(self) -> None:
        """Look no further: the cluster is about to close."""
        self._scheduler.remove_plugin(self.name)
        self._scheduler.handlers["retire_workers"] = self._retire


async def _settled(cell: Cell, row: Row, place: Place, stakes: Stakes) -> None:
    """Wait for the results of the load, then for the workers that will go and those that will come."""
    workers = place.scheduler.workers
    at_first = frozenset(workers)

    def host_stays() -> bool:
        if not row.by_name or cell.ours and not place.cluster.refused:
            return False
        there = at_first & workers.keys()
        return len(there) == row.left + row.processes and any(workers[address].actors for address in there)

    def settled() -> bool:
        if len(at_first & workers.keys()) > row.left:
            return False
        return not (cell.ours and row.replaced) or len(workers) >= len(at_first)

    # a shuffle that has to begin again takes all of its time again, with fewer workers
    await distributed.wait(stakes.load, timeout=60 + 4 * place.left_s())
    # jobs of Slurm take long to come on a busy machine
    patience_s = START_S if row.replaced else GIVE_UP_S
    deadline_s = time.monotonic() + place.left_s() + patience_s
    patient_until_s = time.monotonic() + 0.5
    while not settled() and time.monotonic() < deadline_s:
        if host_stays() and time.monotonic() > patient_until_s:
            return
        await asyncio.sleep(0.02)
