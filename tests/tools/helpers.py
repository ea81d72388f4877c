"""What the tests on a live scheduler share: clusters, deadlines, gates, and counts of what ran where.

Everything counts at the source: workers of these clusters live in the process of the test, so a
plugin on each of them sees every start of every task.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin
from distributed.utils_test import gen_cluster
from waits import PATIENCE_S as PATIENCE_S
from waits import Gate as Gate
from waits import until as until
from waits import within as within

import dask_hpc
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.wire import BIND, CLOSE, OPEN, RPC

#: Stream handlers that are there from the moment the runtime is installed.
ENTRIES = (OPEN, BIND, CLOSE)


def live(workers: int = 4, threads: int = 1, lend: str = "0 s", **kwargs: Any) -> Callable[..., Any]:
    """A test with a client, a scheduler that validates itself, and workers in this process.

    Jobs lend nothing unless `lend` says so: where tasks run is a matter of allotments alone then.
    """
    kwargs["config"] = {"hpc.lend": lend, **kwargs.pop("config", {})}
    scheduler_kwargs = {"validate": True, **kwargs.pop("scheduler_kwargs", {})}
    with_cluster = gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", threads)] * workers,
        scheduler_kwargs=scheduler_kwargs,
        timeout=kwargs.pop("timeout", 120),
        **kwargs,
    )

    def make(test: Callable[..., Awaitable[None]]) -> Any:
        @functools.wraps(test)
        async def ends(*args: Any, **more: Any) -> None:
            try:
                await test(*args, **more)
            except TimeoutError as error:
                # Dask's decorator takes it for its own, and waits for ever for a test that has ended
                raise AssertionError(f"not in time: {error}") from error
            finally:
                # the cluster of a test that has failed does not close while tasks wait at gates
                Gate.open_all()

        return with_cluster(ends)

    return make


def engine(scheduler: Scheduler) -> Any:
    """The engine on a scheduler."""
    return of(scheduler).engine


def record(scheduler: Scheduler, job: Any) -> Any:
    """The scheduler's record of a job."""
    return engine(scheduler).state.jobs.find(job.id)


def state_of(scheduler: Scheduler, job: Any) -> str:
    """State of a job."""
    return record(scheduler, job).state  # type: ignore[no-any-return]


def owner_of(scheduler: Scheduler, key: Any) -> str | None:
    """Id of the job that owns a task; None when none does."""
    lane = engine(scheduler).state.owner.get(key)
    return None if lane is None else lane.job.id


def addresses_of(scheduler: Scheduler, job: Any) -> set[str]:
    """Addresses of the workers on the nodes that a job holds."""
    state = engine(scheduler).state
    return {address for node in state.nodes_of(record(scheduler, job)) for address in node.workers}


async def started(scheduler: Scheduler, job: Any, nodes: int | None = None) -> None:
    """Wait until a job runs (on `nodes` nodes)."""

    def ready() -> bool:
        found = record(scheduler, job)
        held = engine(scheduler).state.nodes_up(found)
        return found.state == "running" and not found.reconfig_id and nodes in (None, held)

    await until(ready, f"{job.id} runs on {nodes or 'some'} nodes")


@asynccontextmanager
async def idle_job(c: Any, s: Scheduler) -> AsyncIterator[tuple[Any, Any]]:
    """The runtime, under ``fcfs``, and a job that holds one node and has nothing to do."""
    rt = await dask_hpc.install(c, policy="fcfs")
    async with rt.job("idle", nodes=1) as idle:
        await started(s, idle)
        yield rt, idle


async def asleep(scheduler: Scheduler) -> None:
    """Wait until the runtime has handed everything back to stock scheduling."""
    await until(lambda: not engine(scheduler).awake and not scheduler.plugins.get("dask-hpc"), "it sleeps")


def traces_of_ours(scheduler: Scheduler) -> list[str]:
    """Everything of the runtime that is found on a scheduler besides its two entry points."""
    found = [f"plugin {name}" for name in scheduler.plugins if "hpc" in name]
    found += [f"callback {name}" for name in scheduler.periodic_callbacks if "hpc" in name]
    found += [
        f"handler {name}"
        for name, handler in scheduler.stream_handlers.items()
        if "dask_hpc" in (getattr(handler, "__module__", None) or "") and name not in ENTRIES
    ]
    if "plugin dask-hpc-watched" not in found:  # it calls stock's plugins, and they are given back with it
        found += [f"transition of {n}" for n, one in scheduler.plugins.items() if "transition" in vars(one)]
    replaced = {name for name in vars(scheduler) if hasattr(type(scheduler), name)}
    found += sorted(replaced - ({"log_event"} if installed(scheduler) else set()))
    manager = scheduler.extensions.get("amm")
    found += ["_find_dropper"] if manager is not None and "_find_dropper" in vars(manager) else []
    found += [
        f"restriction of {ts.key!r}"
        for ts in scheduler.tasks.values()
        if ts.worker_restrictions is not None and type(ts.worker_restrictions) is not set
    ]
    return found


def installed(scheduler: Scheduler) -> bool:
    """Whether the runtime's RPC handler is there."""
    return RPC in scheduler.handlers


class _StartsOnWorker(WorkerPlugin):
    name = "starts"

    def __init__(self, note: Callable[[Any, str], None], completed: Counter[Any]) -> None:
        self._note = note
        self._completed = completed

    def setup(self, worker: Worker) -> None:
        self._address = worker.address

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "executing":
            self._note(key, self._address)
        elif finish == "memory" and start in ("executing", "long-running"):
            self._completed[key] += 1


class Starts:
    """Counts, on the workers, how often each task was started, and where."""

    def __init__(self) -> None:
        self.count: Counter[Any] = Counter()
        #: How often each task has ended with a result. A task that asks to be placed elsewhere (the
        #: outputs of a shuffle do) is started twice and completed once.
        self.completed: Counter[Any] = Counter()
        self.where: dict[Any, set[str]] = defaultdict(set)

    async def watch(self, workers: Iterable[Worker]) -> None:
        """Count on these workers from now on."""
        for worker in workers:
            await worker.plugin_add(_StartsOnWorker(self._note, self.completed), name="starts")

    def _note(self, key: Any, address: str) -> None:
        self.count[key] += 1
        self.where[key].add(address)

    def twice(self, keys: Iterable[Any]) -> list[Any]:
        """Those of `keys` that were started more than once."""
        return [key for key in keys if self.count[key] > 1]

    def places(self, keys: Iterable[Any]) -> set[str]:
        """Addresses on which `keys` were started."""
        return {address for key in keys for address in self.where[key]}


class InFlight(SchedulerPlugin):
    """Samples, at every transition, how many tasks a worker has that have not seceded."""

    name = "in-flight"

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.peak = 0
        scheduler.add_plugin(self)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        for ws in self.scheduler.workers.values():
            self.peak = max(self.peak, len(ws.processing) - len(ws.long_running))


def through(value: Any, gate: Gate) -> Any:
    """A task: wait at `gate`, then return `value`."""
    return gate.wait(value)


def without_validation(scheduler: Scheduler, workers: Iterable[Worker]) -> None:
    """Stop checking everything at every step, which takes time that grows with the square of the tasks."""
    scheduler.validate = False
    scheduler.transition_counter_max = False
    for worker in workers:
        worker.state.validate = False
        worker.state.transition_counter_max = False
