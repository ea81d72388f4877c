"""The few handlers of the scheduler that are wrapped while a job is active.

Each calls the original; what is added is said in its docstring. An error of ours is logged and goes no
further: one that leaves a handler closes the connection of the worker or client that has sent the message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from dask_hpc.scheduler.internals.overrides import Overrides
from dask_hpc.scheduler.placing.overflow import OVERFLOW
from dask_hpc.scheduler.placing.ownership import GRAPH_JOB, Ownership
from dask_hpc.scheduler.resizing.drain import RECALL
from dask_hpc.scheduler.tables.events import ClientClosed, Event, GraphTaken, SlotsOpened, TaskAnswered
from dask_hpc.wire import ANNOTATION

logger = logging.getLogger(__name__)

Handler = Callable[..., Any]

_FAILED = "dask_hpc failed in %s; work goes on"


def contained(method: Handler) -> Handler:
    """Let no error of a method leave it: it is logged, and the method gives None."""
    if iscoroutinefunction(method):

        @wraps(method)
        async def answers(*args: Any, **kwargs: Any) -> Any:
            try:
                return await method(*args, **kwargs)
            except Exception:
                logger.exception(_FAILED, method.__name__)

        return answers

    @wraps(method)
    def acts(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception:
            logger.exception(_FAILED, method.__name__)

    return acts


class Handlers:
    """Makes the wrapped handlers and installs them."""

    def __init__(self, ownership: Ownership, handle: Callable[[Event], None]) -> None:
        self._ownership = ownership
        self._hear = handle

    @contained
    def _handle(self, event: Event) -> None:
        self._hear(event)

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
                if not callable(job):  # else stock calls it for each task, and tells the client if it fails
                    kwargs["annotations"] = {k: v for k, v in annotations.items() if k != ANNOTATION}
            else:
                job = await self._implied(kwargs.get("submitting_task"), kwargs["client"])
            GRAPH_JOB.set(job)
            await original(*args, **kwargs)
            self._handle(GraphTaken(job, kwargs.get("keys") or ()))

        return update_graph

    @contained
    async def _implied(self, submitting_task: Any, client: str) -> Any:
        await self._ownership.worker_clients.locate(client)
        return self._ownership.implied(submitting_task, client)

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
