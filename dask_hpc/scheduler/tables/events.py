"""What happens on the scheduler side, as values: who says it does not know who hears it.

Rules of the file: data alone. `Engine.handle` has the one table of who hears what; everything is heard at
once, in the order of that table. What happens for every task is counted by the plugin, without an event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.decision import Outcome
from dask_hpc_policies.model import Trigger


class Event:
    """Base of all events."""

    __slots__ = ()


# ------------------------------------------------------------- said by Dask


@dataclass(frozen=True, slots=True)
class GraphArrived(Event):
    """New tasks, before any of them is placed."""

    keys: list[Any]
    #: Job ids by key, as annotated.
    declared: Mapping[Any, Any]
    client: str
    #: Nodes by key, as annotated.
    nodes: Mapping[Any, Any]
    #: What its client wants of it.
    wanted: Collection[Any] = ()


@dataclass(frozen=True, slots=True)
class GraphTaken(Event):
    """Stock has dealt with a graph: taken it, or told the client that it cannot."""

    #: The job that it names as a whole, or belongs to; whatever the user has annotated.
    job: Any
    #: What its client wants of it.
    keys: Collection[Any]


@dataclass(frozen=True, slots=True)
class WorkerJoined(Event):
    """A worker has connected."""

    address: str


@dataclass(frozen=True, slots=True)
class WorkerLeft(Event):
    """A worker has gone."""

    address: str


@dataclass(frozen=True, slots=True)
class SlotsOpened(Event):
    """A task has seceded, or a worker's status has changed."""

    address: str


@dataclass(frozen=True, slots=True)
class TaskAnswered(Event):
    """A worker has answered our request to give a task back."""

    state: str | None
    stimulus_id: str


@dataclass(frozen=True, slots=True)
class ClientJoined(Event):
    """A client has connected, perhaps again."""

    client: str


@dataclass(frozen=True, slots=True)
class ClientLeft(Event):
    """A client has gone; the scheduler has dropped what only it wanted."""

    client: str


@dataclass(frozen=True, slots=True)
class ClientClosed(Event):
    """A client has been closed: unlike one whose connection is lost, it does not come back."""

    client: str


@dataclass(frozen=True, slots=True)
class Restarted(Event):
    """`Client.restart`: every task has been forgotten."""


@dataclass(frozen=True, slots=True)
class SchedulerCloses(Event):
    """The scheduler is going away."""


# ------------------------------------------------------- said by the parts


@dataclass(frozen=True, slots=True)
class AllotmentsChanged(Event):
    """The allotment of these jobs has changed: tasks that found no worker may find one now."""

    jobs: tuple[JobRecord, ...]


@dataclass(frozen=True, slots=True)
class AdmissionPassed(Event):
    """A pass of admission is over: a node that is being drained may have fallen quiet."""


@dataclass(frozen=True, slots=True)
class ActionEnded(Event):
    """What became of an action."""

    outcome: Outcome
    trigger: Trigger


@dataclass(frozen=True, slots=True)
class RoundEnded(Event):
    """Jobs that could not be decided about while they were reconfiguring can be now."""


@dataclass(frozen=True, slots=True)
class VersionEnded(Event):
    """A version of a job has been written, or could not be."""

    job: str


@dataclass(frozen=True, slots=True)
class WindowMoved(Event):
    """The producer that listens on `topic` has to know."""

    topic: str
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LastJobEnded(Event):
    """No named job is left."""
