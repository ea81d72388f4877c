"""The few handlers of the scheduler that are wrapped while a job is active.

Each calls the original; what is added is said in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_hpc.scheduler.internals.overrides import Overrides
from dask_hpc.scheduler.placing.overflow import OVERFLOW
from dask_hpc.scheduler.placing.ownership import GRAPH_JOB, Ownership
from dask_hpc.scheduler.resizing.drain import RECALL
from dask_hpc.scheduler.tables.events import ClientClosed, Event, GraphTaken, SlotsOpened, TaskAnswered
from dask_hpc.wire import ANNOTATION

Handler = Callable[..., Any]


class Handlers:
    """Makes the wrapped handlers and installs them."""

    def __init__(self, ownership: Ownership, handle: Callable[[Event], None]) -> None:
        self._ownership = ownership
        self._handle = handle

    def install(self, overrides: Overrides) -> None:
        """Wrap; `overrides.undo` takes everything back."""
        overrides.stream("update-graph", self._update_graph)
        overrides.stream("steal-response", self._steal_response)
        overrides.stream("long-running", self._slots)
        overrides.stream("worker-status-change", self._slots)
        overrides.stream("close-client", self._client_closes)

    def _update_graph(self, original: Handler) -> Handler:
        """Graphs that name no job get the job they belong to.

        This is decided when the message comes, in the order in which the client sent it. The name goes no
        further: what users see of annotations is their own.
        """

        async def update_graph(*args: Any, **kwargs: Any) -> None:
            annotations = kwargs.get("annotations") or {}
            if ANNOTATION in annotations:
                job = annotations[ANNOTATION]
                kwargs["annotations"] = {k: v for k, v in annotations.items() if k != ANNOTATION}
            else:
                client = kwargs["client"]
                await self._ownership.worker_clients.locate(client)
                job = self._ownership.implied(kwargs.get("submitting_task"), client)
            GRAPH_JOB.set(job)
            await original(*args, **kwargs)
            self._handle(GraphTaken(job, kwargs.get("keys") or ()))

        return update_graph

    def _steal_response(self, original: Handler) -> Handler:
        """Answers to our own requests are ours."""

        def steal_response(*, state: str | None, stimulus_id: str, **answer: Any) -> None:
            if stimulus_id.startswith((RECALL, OVERFLOW)):
                self._handle(TaskAnswered(state, stimulus_id))
            else:
                original(state=state, stimulus_id=stimulus_id, **answer)

        return steal_response

    def _client_closes(self, original: Handler) -> Handler:
        """A client that is closed, unlike one whose connection is lost, does not come back."""

        def close_client(client: str, **kwargs: Any) -> None:
            original(client=client, **kwargs)
            self._handle(ClientClosed(client))

        return close_client

    def _slots(self, original: Handler) -> Handler:
        """A task has seceded, or a worker's status has changed: slots may have opened."""

        def handler(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            worker = kwargs.get("worker")
            if isinstance(worker, str):
                self._handle(SlotsOpened(worker))

        return handler
