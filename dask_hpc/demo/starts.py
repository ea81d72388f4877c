"""Counts how often tasks are started, where that happens: on the workers, with dask_hpc and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client, Worker, WorkerPlugin


class StartsPlugin(WorkerPlugin):
    """Tells the scheduler of each task that starts on its worker, as an event of a topic."""

    def __init__(self, topic: str) -> None:
        self.name = self.topic = topic

    def setup(self, worker: Worker) -> None:
        """Called by Dask on a worker that has come."""
        self._worker = worker

    def transition(self, key: Any, start: Any, finish: Any, **kwargs: Any) -> None:
        """Called by Dask when a task changes its state on the worker."""
        if finish == "executing":
            self._worker.log_event(self.topic, str(key))


class Starts:
    """How often each task has started."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def see(self, event: tuple[float, str]) -> None:
        """A task has started: an event of `StartsPlugin`, with its time."""
        self._counts[event[1]] += 1

    def repeated(self) -> int:
        """How many starts there were beyond the first one of each task."""
        return self._counts.total() - len(self._counts)


@contextmanager
def counted_starts(client: Client, name: str) -> Iterator[Starts]:
    """Count the starts of tasks inside the block; `name` tells it from other blocks at the same time."""
    topic, starts = f"demo-starts-{name}", Starts()
    # as they come: the scheduler keeps the last thousand only
    client.subscribe_topic(topic, starts.see)
    client.register_plugin(StartsPlugin(topic))
    try:
        yield starts
    finally:
        # a worker may go while it is told: Dask says so once all others have been
        with suppress(OSError):
            client.unregister_worker_plugin(topic)
        client.unsubscribe_topic(topic)
