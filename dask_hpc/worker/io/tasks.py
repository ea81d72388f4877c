"""Counts what the tasks of some jobs read and write on their threads, while a job has asked for it.

A worker for which nobody has asked runs as in stock. Where somebody has, `Worker.execute` is wrapped: a task
whose span says so runs on the same threads, between two looks at the thread's counters
(`dask_hpc.worker.io.counters`); what is found is told to Dask's meter of the task, as metered stores do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from threading import get_native_id
from typing import Any

from dask.utils import key_split
from distributed.metrics import context_meter
from distributed.threadpoolexecutor import ThreadPoolExecutor

from dask_hpc.wire import COUNTED_SPAN, IO_ESTIMATED, IO_METRIC
from dask_hpc.worker.io.counters import FEW_BYTES, MOVED, Moved, counted, counts, listen
from dask_hpc.worker.io.mounts import mount_of_open_files
from dask_hpc.worker.io.rest import rest

#: Name of the executor.
_EXECUTOR = "dask-hpc-io"


class CountingThreadPoolExecutor(Executor):
    """Runs what it is given on the threads of another executor, and counts; Dask knows by the name."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have it run, counted for `MOVED`."""
        return self._threads.submit(counted, partial(function, *args, **kwargs), MOVED.get() or Moved())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Its threads are another's, who ends them."""


class Counting:
    """Counting on one worker, from its making to `stop`; a section of its heartbeats that tells nothing.

    Raises
    ------
    OSError
        Where the system does not count (another one than Linux, or one without task accounting).
    """

    def __init__(self, worker: Any) -> None:
        counts()
        listen()
        self._worker = worker
        self._execute = worker.execute
        self._loop_thread = get_native_id()
        #: Span, prefix and seconds waited for nothing that is known, of tasks that have ended of late.
        self._waited: list[tuple[str, str, float]] = []
        #: Those that run now.
        self._running = 0
        worker.executors[_EXECUTOR] = CountingThreadPoolExecutor(worker.executors["default"])
        worker.execute = self.execute
        rest.join(self._threads)

    def stop(self) -> None:
        """Run tasks as in stock again."""
        rest.leave(self._threads)
        self._worker.__dict__.pop("execute", None)
        self._worker.executors.pop(_EXECUTOR, None)

    def _threads(self) -> Iterator[int]:
        yield self._loop_thread
        pools = [one for one in self._worker.executors.values() if isinstance(one, ThreadPoolExecutor)]
        for thread in [thread for pool in pools for thread in list(pool._threads)]:
            if thread.native_id is not None:
                yield thread.native_id

    def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """`Worker.execute`."""
        ts = self._worker.state.tasks.get(key)
        if ts is None or not (ts.span_id or "").endswith(COUNTED_SPAN):
            return self._execute(key, stimulus_id=stimulus_id)
        return self._counted(ts, key, stimulus_id)

    async def _counted(self, ts: Any, key: Any, stimulus_id: str) -> Any:
        if _EXECUTOR not in self._worker.executors:
            # counting has ended since it was sent
            return await self._execute(key, stimulus_id=stimulus_id)
        moved = Moved()
        token = MOVED.set(moved)
        span_id = ts.span_id
        annotations = ts.annotations or {}
        # an executor of the user's is not ours to look into
        ts.annotations = {"executor": _EXECUTOR, **annotations}
        self._running += 1
        try:
            return await self._execute(key, stimulus_id=stimulus_id)
        finally:
            self._running -= 1
            MOVED.reset(token)
            ts.annotations = annotations
            if moved.counted:
                waited_s = max(0.0, moved.waited_s - moved.metered_s)
                if not self._tell(moved, waited_s) and waited_s > 0:
                    self._waited.append((span_id, key_split(key), waited_s))

    def _tell(self, moved: Moved, waited_s: float) -> bool:
        """Say what was counted; whether it was enough for the thread to have waited for it."""
        tell = context_meter.digest_metric
        if moved.read:
            tell(" ".join((IO_METRIC, "read", *moved.read_from)), moved.read, "bytes")
        if moved.write:
            tell(" ".join((IO_METRIC, "write", *moved.written_to)), moved.write, "bytes")
        if max(moved.read, moved.write) < FEW_BYTES:
            return False
        where = moved.written_to if moved.write > moved.read else moved.read_from
        tell(" ".join((IO_METRIC, "~busy", *where)), waited_s, "s")
        tell(IO_ESTIMATED, waited_s, "s")
        return True

    def __call__(self) -> Mapping[str, Any]:
        """Before each heartbeat: tell the rest of the process as an estimate, by what tasks have waited."""
        waited, self._waited = self._waited, []
        if not waited and self._running:
            return {}
        # what was moved while nobody was counted is nobody's
        read, written = rest.taken()
        if not waited or max(read, written) < FEW_BYTES:
            return {}
        total_s = sum(seconds for _, _, seconds in waited)
        where = mount_of_open_files()
        for span_id, prefix, seconds in waited:
            tell = partial(self._digest, span_id, prefix)
            tell(" ".join((IO_METRIC, "~read", *where)), round(read * seconds / total_s), "bytes")
            tell(" ".join((IO_METRIC, "~write", *where)), round(written * seconds / total_s), "bytes")
            tell(" ".join((IO_METRIC, "~busy", *where)), seconds, "s")
            tell(IO_ESTIMATED, seconds, "s")
        return {}

    def _digest(self, span_id: str, prefix: str, label: str, amount: float, unit: str) -> None:
        if amount:
            self._worker.digest_metric(("execute", span_id, prefix, label, unit), amount)
