"""Data and workers: moved, copied, retired.

Rules of the file: with its siblings `writes`, `lineage` and `overrides` the only code that changes the
internals of Dask's scheduler; no decisions are taken here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeVar

from distributed.core import Status

from dask_hpc.clock import stopwatch_s
from dask_hpc.scheduler.internals import actor_homes, reads

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

_T = TypeVar("_T")
#: How often it is asked again how much time is left.
_LOOK_S = 0.5


async def retire(
    scheduler: Scheduler, addresses: Sequence[str], stimulus_id: str,
    stock: Callable[..., Awaitable[Any]] | None = None,
    remove: bool = True, close_workers: bool = False, **how: Any,
) -> Mapping[str, Any]:  # fmt: skip
    """Have Dask (`stock`: its method, where we wrap it) move what only these workers hold, and take them out.

    It takes a worker out some time after it has found nothing there that others have not: here that is so in
    the very call in which the worker goes. Gives those that could be retired, and what Dask says of each.
    """
    retired: dict[str, Any] = {}
    left, stock = list(addresses), stock or scheduler.retire_workers
    while left:
        for ws in [scheduler.workers[address] for address in left if address in scheduler.workers]:
            ws.actors = actor_homes.living(ws)  # with any other it would stay
        close = close_workers and not remove
        found = await stock(workers=left, remove=False, close_workers=close, stimulus_id=stimulus_id, **how)
        for address in found:
            # scattered there meanwhile, or who had it, too, has left
            if remove and reads.sole_keys(scheduler, {address} & scheduler.workers.keys()):
                continue
            retired[address] = found[address]
            if remove:
                await scheduler.remove_worker(
                    address, expected=True, close=close_workers, stimulus_id=stimulus_id
                )
        left = [address for address in found if address not in retired]
    return retired


async def retire_or_keep(
    scheduler: Scheduler, addresses: Sequence[str], stock: Callable[..., Awaitable[Any]],
    stimulus_id: str = "hpc-release", **how: Any,
) -> Mapping[str, Any]:  # fmt: skip
    """`retire` workers; those that cannot leave take tasks again.

    Stock has them be what they were as it was asked. Those that had not answered yet, when they were asked
    before, were on their way out, and would be so for ever.
    """
    workers = scheduler.workers
    paused = {at for at in addresses if at in workers and workers[at].status == Status.paused}
    retired: Mapping[str, Any] = {}
    try:
        retired = await retire(scheduler, addresses, stimulus_id, stock, **how)
    finally:
        take_again(scheduler, set(addresses) - paused - set(retired), stimulus_id)
    return retired


def give_no_more(scheduler: Scheduler, addresses: Iterable[str], stimulus_id: str) -> None:
    """Send workers neither tasks nor data any more; what they have been sent they go on with."""
    for address in addresses:
        if address in scheduler.workers:
            scheduler.handle_worker_status_change("closing_gracefully", address, stimulus_id)


def stop_intake(scheduler: Scheduler, addresses: Iterable[str], stimulus_id: str) -> None:
    """Have workers take neither tasks nor data any more.

    A worker that stock could not retire has been told to go on, and says so a moment later: unless it is
    told as well, it is used again.
    """
    status = "closing_gracefully"
    for address in addresses:
        if address in scheduler.workers:
            scheduler.handle_worker_status_change(status, address, stimulus_id)
            message = {"op": "worker-status-change", "status": status, "stimulus_id": stimulus_id}
            scheduler.worker_send(address, message)


def take_again(scheduler: Scheduler, addresses: Iterable[str], stimulus_id: str) -> None:
    """Have workers that were given no more, and stay, take tasks and data again, as stock has its own."""
    for address in addresses:
        if address in scheduler.workers and scheduler.workers[address].status == Status.closing_gracefully:
            scheduler.handle_worker_status_change("running", address, stimulus_id)
            message = {"op": "worker-status-change", "status": "running", "stimulus_id": stimulus_id}
            scheduler.worker_send(address, message)


async def move_off(
    scheduler: Scheduler, addresses: Sequence[str], staying: Collection[str], left_s: Callable[[], float]
) -> Collection[str]:
    """Move what only these workers hold and take them out, as far as that can be done in time.

    Stock moves nothing off a worker with actors, and nothing when it cannot move all: then at least what
    fits elsewhere is copied, to workers that stay if there are any. `left_s` gives the seconds that are left:
    they may become fewer meanwhile. Returns those that are out of the scheduler.
    """
    gone = await in_time(retire(scheduler, addresses, "hpc-departure"), left_s) or ()
    left = [address for address in addresses if address not in gone and address in scheduler.workers]
    # of two copies stock's memory manager keeps the one that is not on a closing worker
    stop_intake(scheduler, left, "hpc-departure")
    others = [ws.address for ws in scheduler.running if ws.address not in left]
    others = [address for address in others if address in staying] or others
    keys = reads.sole_keys(scheduler, left)
    if keys and others:
        least_s = stopwatch_s() + 1.0
        await in_time(_copy(scheduler, keys, others), lambda: max(least_s - stopwatch_s(), left_s()))
    return [address for address in addresses if address not in scheduler.workers]


async def in_time(work: Coroutine[Any, Any, _T], left_s: Callable[[], float]) -> _T | None:
    """What the work gives; None when it was given up as no time was left (`left_s`: seconds that are)."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done() and (wait_s := left_s()) > 0:
            await asyncio.wait((task,), timeout=min(wait_s, _LOOK_S))
        return task.result() if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def _copy(scheduler: Scheduler, keys: Iterable[Any], addresses: Sequence[str]) -> None:
    """Copy results to these workers in turn.

    Not by `Scheduler.replicate`: it logs an event that cannot be sent, and a client that then asks for
    events, or is subscribed to them, loses its connection.
    """
    wanted: dict[str, dict[Any, list[str]]] = {}
    for key, address in zip(keys, cycle(addresses)):
        wanted.setdefault(address, {})[key] = [ws.address for ws in scheduler.tasks[key].who_has or ()]
    await asyncio.gather(*(scheduler.gather_on_worker(address, held) for address, held in wanted.items()))


async def remove(scheduler: Scheduler, address: str, close: bool = True) -> None:
    """Take a worker out whose end was expected: what it executes does not count as suspicious.

    With `close` it is told to end, and not to start anew.
    """
    if address in scheduler.workers:
        await scheduler.remove_worker(
            address=address, stimulus_id="hpc-departure", expected=True, close=close
        )


def rehome(scheduler: Scheduler, key: Any, source: str, target: str) -> bool:
    """Note that an actor lives on another worker now; whether it is still wanted and both are there."""
    ts = scheduler.tasks.get(key)
    old, new = scheduler.workers.get(source), scheduler.workers.get(target)
    if ts is None or old is None or new is None or actor_homes.home(scheduler, key) != source:
        return False
    scheduler.add_replica(ts, new)
    old.actors.discard(ts)
    new.actors.add(ts)
    scheduler.remove_replica(ts, old)
    return True


def settle_actor(ts: TaskState, listed: WorkerState | None) -> None:
    """List an actor where it is, or is made: Dask lists one that was stolen where it was taken from."""
    host = actor_homes.host(ts)
    if listed is not None and listed is not host:
        listed.actors.discard(ts)
    if host is not None:
        host.actors.add(ts)


def let_go(scheduler: Scheduler, keys: Iterable[Any], leaving: Iterable[str], stimulus_id: str) -> None:
    """Let go of results in memory; those that are needed are made again, and not on workers that leave."""
    stop_intake(scheduler, leaving, stimulus_id)
    there = [key for key in keys if key in scheduler.tasks and scheduler.tasks[key].state == "memory"]
    scheduler.transitions(dict.fromkeys(there, "released"), stimulus_id)
