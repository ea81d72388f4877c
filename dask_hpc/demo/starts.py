"""Counts how often tasks are started, where that happens: on the workers, with dask_hpc and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
    """The starts since a moment."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic

    def repeated(self) -> int:
        """How many starts there were beyond the first one of each task."""
        events = self._client.get_events(self._topic)
        counts = Counter(key for _, key in events)
        return sum(counts.values()) - len(counts)


@contextmanager
def counted_starts(client: Client, name: str) -> Iterator[Starts]:
    """Count the starts of tasks inside the block; `name` is one that no other block has had."""
    topic = f"demo-starts-{name}"
    client.register_plugin(StartsPlugin(topic))
    try:
        yield Starts(client, topic)
    finally:
        client.unregister_worker_plugin(topic)
