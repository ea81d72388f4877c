"""A real cluster in one process whose workers come and go, and that counts what runs.

Scheduler and workers validate themselves at every step. What Dask or the package logs with an
exception is kept as a fault, because a handler that raises is logged and forgotten otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dask
import distributed.shuffle
from distributed import Client, Scheduler, SchedulerPlugin, Status, Worker, WorkerPlugin
from distributed.comm import CommClosedError
from distributed.shuffle._exceptions import P2PConsistencyError
from stress_drains import Executions
from stress_graphs import TaskFailedOnPurpose

#: What fails when connections are cut on purpose.
_EXPECTED = (CommClosedError, OSError, asyncio.CancelledError, TimeoutError, TaskFailedOnPurpose)
_LOGGERS = ("distributed", "dask_hpc", "tornado.application", "asyncio")
#: A task starts when its worker moves it from one of these to executing.
_BEFORE = frozenset({"ready", "constrained", "waiting"})
#: It executes as long as it is in one of these: a cancelled one goes on.
_ON_A_THREAD = frozenset({"executing", "long-running", "cancelled", "resumed"})


class Starts:
    """How often each task was started, and which of them a recall interrupted."""

    def __init__(self) -> None:
        self.by_key: Counter[Any] = Counter()
        #: Keys that were placed anew by a shrink although their worker had started them.
        self.recalled_after_start: list[Any] = []
        self.recalled = 0


class _WatchTasks(WorkerPlugin):
    """Counts starts on one worker, and notes when tasks execute."""

    def __init__(self, starts: Starts, executions: Executions) -> None:
        self._starts = starts
        self._executions = executions
        self._address = ""

    def setup(self, worker: Worker) -> None:
        self._address = worker.address

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "executing" and start in _BEFORE:
            self._starts.by_key[key] += 1
            self._executions.began(self._address, key)
        elif start in _ON_A_THREAD and finish not in _ON_A_THREAD:
            self._executions.ended(self._address, key)


class _WatchRecalls(SchedulerPlugin):
    """Compares every task that a shrink places anew with the starts since it was sent out."""

    name = "stress-watch-recalls"

    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self._sent_after: dict[Any, int] = {}

    def transition(
        self, key: Any, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        if finish == "processing":
            self._sent_after[key] = self._starts.by_key[key]
        elif start == "processing" and stimulus_id.startswith("hpc-recall-"):
            self._starts.recalled += 1
            if self._starts.by_key[key] > self._sent_after.get(key, 0):
                self._starts.recalled_after_start.append(key)


class _Worker(Worker):
    """Closes without waiting for its threads.

    Waiting holds a lock that all workers of a process share, so that tasks of other workers could not
    secede meanwhile.
    """

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        return await super().close(*args, **{**kwargs, "executor_wait": False})


#: A task that executes is late for a shuffle that is no more: so stock ends it when nobody wants the result.
LATE_FOR_SHUFFLE = "a task without its shuffle"
_SHUFFLE_CODE = Path(distributed.shuffle.__file__).parent
_SHUFFLE_ERRORS = (KeyError, P2PConsistencyError)


class _KeepFaults(logging.Handler):
    """Keeps what was logged with an exception that nobody planned."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or isinstance(error, _EXPECTED):
            return
        path, where, trace = Path(), "", error.__traceback__
        while trace is not None:
            path = Path(trace.tb_frame.f_code.co_filename)
            where = f"{path.name}:{trace.tb_lineno}"
            trace = trace.tb_next
        if isinstance(error, _SHUFFLE_ERRORS) and path.parent == _SHUFFLE_CODE:
            where = f"{LATE_FOR_SHUFFLE}, {where}"
        self._faults.append(f"{record.name} logged {type(error).__name__}: {error} ({where})")


class Cluster:
    """Scheduler, client and named workers. Made by `cluster`."""

    def __init__(self, scheduler: Scheduler, client: Client, nthreads: int, faults: list[str]) -> None:
        self.scheduler = scheduler
        self.client = client
        self.nthreads = nthreads
        self.faults = faults
        self.starts = Starts()
        self.executions = Executions()
        self.workers: dict[str, Worker] = {}
        #: Names of all workers there ever were.
        self.names: list[str] = []
        #: Longest delay of a ``long-running`` message.
        self.late_s = 0.0
        self.rng = random.Random(0)
        self._closing: set[asyncio.Task[None]] = set()
        scheduler.add_plugin(_WatchRecalls(self.starts))

    @property
    def missing(self) -> list[str]:
        """Names of workers that have gone."""
        return [name for name in self.names if name not in self.workers]

    @property
    def shuffling(self) -> bool:
        """Whether a P2P shuffle runs."""
        plugin: Any = self.scheduler.plugins["shuffle"]
        return bool(plugin.active_shuffles)

    async def start(self, name: str) -> None:
        """Start a worker, new or under the name of one that has gone.

        Raises
        ------
        TimeoutError
            When the scheduler still knows the one before after ten seconds.
        """
        deadline_s = time.monotonic() + 10
        while name in self.scheduler.aliases:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"worker {name} has gone, and the scheduler has not noticed in 10 s")
            await asyncio.sleep(0.002)
        worker = _Worker(
            self.scheduler.address,
            name=name,
            nthreads=self.nthreads,
            host="127.0.0.1",
            memory_limit=0,
            validate=True,
            heartbeat_interval="500 ms",
        )
        await worker
        await worker.plugin_add(_WatchTasks(self.starts, self.executions), name="stress-watch-tasks")
        self._delay_long_running(worker)
        self.workers[name] = worker
        if name not in self.names:
            self.names.append(name)

    def lose(self, name: str, *, abrupt: bool) -> None:
        """Cut a worker off (`abrupt`) or close it; what it runs and holds is gone."""
        worker = self.workers.pop(name)
        if abrupt and worker.batched_stream is not None and worker.batched_stream.comm is not None:
            worker.batched_stream.comm.abort()
        self._close(worker)

    def pause(self, name: str, paused: bool) -> None:
        """Change a worker's status."""
        worker = self.workers[name]
        if worker.status in (Status.running, Status.paused):
            worker.status = Status.paused if paused else Status.running

    async def retire(self, name: str) -> None:
        """Have Dask retire a worker."""
        worker = self.workers.pop(name)
        await self.scheduler.retire_workers(
            workers=[worker.address], close_workers=True, remove=True, stimulus_id=f"stress-retire-{name}"
        )
        self._close(worker)

    async def restart(self) -> None:
        """`Client.restart`; the workers come back under their names."""
        names = list(self.workers)
        old = list(self.workers.values())
        self.workers.clear()
        await self.client.restart(wait_for_workers=False)
        for worker in old:
            self._close(worker)
        for name in names:
            await self.start(name)

    async def close(self) -> None:
        """Close what is left."""
        # the machine may be busy with other tests
        await self.client.close(timeout=60)
        for worker in self.workers.values():
            self._close(worker)
        await asyncio.gather(*self._closing)
        await self.scheduler.close()

    def _close(self, worker: Worker) -> None:
        self.executions.gone(worker.address)
        task = asyncio.create_task(worker.close(nanny=False, timeout=1))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _delay_long_running(self, worker: Worker) -> None:
        send = worker.batched_send

        def batched_send(message: dict[str, Any]) -> None:
            if message["op"] == "long-running" and self.late_s:
                delay_s = self.rng.uniform(0.05, self.late_s)
                asyncio.get_running_loop().call_later(delay_s, send, message)
            else:
                send(message)

        worker.batched_send = batched_send  # type: ignore[method-assign]


@asynccontextmanager
async def cluster(
    workers: int, nthreads: int, *, stealing: bool, saturation: float
) -> AsyncIterator[Cluster]:
    """A fresh cluster of `workers` workers named w0, w1, ..."""
    faults: list[str] = []
    keep = _KeepFaults(faults)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    settings = {
        "distributed.scheduler.work-stealing": True,
        "distributed.scheduler.work-stealing-interval": "20 ms",
        "distributed.scheduler.worker-saturation": saturation,
        "distributed.scheduler.allowed-failures": 1000,
        "distributed.scheduler.validate": True,
        "distributed.worker.validate": True,
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.admin.tick.interval": "500 ms",
        # A worker that looks for one that has gone gives up after this
        "distributed.comm.timeouts.connect": "2s",
        "distributed.p2p.storage.disk": False,
    }
    with dask.config.set(settings):
        for logger in loggers:
            logger.addHandler(keep)
        try:
            scheduler = await Scheduler(
                host="127.0.0.1", port=0, dashboard=False, validate=True, dashboard_address=":0"
            )
            if not stealing:
                await scheduler.extensions["stealing"].stop()
            client = await Client(scheduler.address, asynchronous=True, timeout="30 s")
            made = Cluster(scheduler, client, nthreads, faults)
            try:
                await asyncio.gather(*(made.start(f"w{i}") for i in range(workers)))
                yield made
            finally:
                await made.close()
        finally:
            for logger in loggers:
                logger.removeHandler(keep)
