"""On which worker a client was made.

Dask names the task that submits a graph when that task runs in a thread. What coroutines and actors
submit comes from the client of their worker and names none; an event that the worker logs whenever
something asks for that client says which worker it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Topic of the events, and how ids of such clients begin.
TOPIC = "worker-get-client"
_PREFIX = "Client-worker-"
#: Seconds for which a graph waits for the event; both are sent at the same time.
_PATIENCE_S = 1.0


class WorkerClients:
    """The workers of clients that were made on one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._workers: dict[str, str | None] = {}
        self._awaited: dict[str, asyncio.Event] = {}

    def wake(self) -> None:
        """Catch up with what happened while nobody listened."""
        for _, event in self._scheduler.get_events(TOPIC):
            self.heard(event)
        for client in set(self._workers).difference(self._scheduler.clients):
            self.forget(client)

    def heard(self, event: Any) -> None:
        """An event of the topic has come. Anybody may log events, so it may be anything."""
        if not isinstance(event, Mapping):
            return
        client, worker = event.get("client"), event.get("worker")
        if isinstance(client, str) and isinstance(worker, str) and client.startswith(_PREFIX):
            self._workers[client] = worker
            if client in self._awaited:
                self._awaited[client].set()

    def forget(self, client: str) -> None:
        """A client has gone."""
        self._workers.pop(client, None)

    async def locate(self, client: str) -> None:
        """Wait until it is known where a client was made, if it was made on a worker.

        It is waited for once and not for long: without the event the place stays unknown.
        """
        if client in self._workers or not client.startswith(_PREFIX):
            return
        heard = self._awaited[client] = asyncio.Event()
        try:
            await asyncio.wait_for(heard.wait(), _PATIENCE_S)
        except TimeoutError:
            self._workers.setdefault(client, None)
        finally:
            del self._awaited[client]

    def worker(self, client: str) -> str | None:
        """Address of the worker on which the client was made; None for others."""
        return self._workers.get(client)
