"""Views of nodes and jobs, made of what is known of them anyway and of how they stand now.

Rules of the file: a view is the same as the constructor of its class would make it, at a fraction of the
cost. A snapshot makes one for each job, a simulation of a long trace one for each job of it, and the
constructor of a frozen class goes the long way round for each field. Here the slots of a node are set
directly. A job is made as a draft, an instance of a class with the same slots that is not frozen, which then
becomes the view; field by field that takes a sixth of the time of a loop over what sets the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any

from dask_hpc_policies.model import (
    Interruption,
    JobRequest,
    JobState,
    JobView,
    NodeFacts,
    NodeState,
    NodeView,
)


def values_of(kind: type, instance: Any) -> dict[str, Any]:
    """The fields of the dataclass `kind` in `instance`, which is of that class or of one below it."""
    names, values = _fields_of(kind)
    return dict(zip(names, values(instance), strict=True))


@cache
def _fields_of(kind: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(one.name for one in fields(kind))
    return names, attrgetter(*names)


def _setters(kind: type, names: Iterable[str]) -> tuple[Callable[[Any, Any], None], ...]:
    """What sets these slots of the frozen `kind`."""
    return tuple([getattr(kind, name).__set__ for name in names])


_facts_names, _facts = _fields_of(NodeFacts)
_SET_NODE = _setters(NodeView, (*_facts_names, "id", "job", "state", "walltime_left_s"))
_set_remaining_s, _set_attained_node_s = _setters(JobView, ("remaining_s", "attained_node_s"))


class _Draft(JobRequest):
    """A view of a job in the making: laid out as `JobView` is."""

    __slots__ = JobView.__slots__
    # both, for Python has one way in for the two of them
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


def node_view(
    facts: NodeFacts,
    *,
    id: str,
    job: str | None = None,
    state: NodeState = "up",
    walltime_left_s: float | None = None,
) -> NodeView:
    """The view of a node that is as `facts` say; see `NodeView`."""
    view = object.__new__(NodeView)
    for put, value in zip(_SET_NODE, (*_facts(facts), id, job, state, walltime_left_s), strict=True):
        put(view, value)
    return view


def job_view(
    request: JobRequest,
    *,
    id: str,
    state: JobState = "pending",
    nodes: int = 0,
    start_s: float | None = None,
    remaining_s: float | None = None,
    restart_s: float | None = None,
    requested_nodes: int | None = None,
    at_scheduling_point: bool = True,
    interruption: Interruption = "none",
    interrupted_s: float | None = None,
    expansions: int = 0,
    mtct: float | None = None,
    mtct_previous: float | None = None,
    unfinished_tasks: int = 0,
    processing_tasks: int = 0,
    is_default: bool = False,
    attained_node_s: float = 0.0,
) -> JobView:
    """The view of a job that was asked for by `request` and stands as is said; see `JobView`."""
    view: Any = object.__new__(_Draft)
    view.name = request.name
    view.constraint = request.constraint
    view.walltime_s = request.walltime_s
    view.priority = request.priority
    view.min_power_w = request.min_power_w
    view.max_power_w = request.max_power_w
    view.io_intensity = request.io_intensity
    view.deadline_s = request.deadline_s
    view.soft_deadline_s = request.soft_deadline_s
    view.value = request.value
    view.protect = request.protect
    view.resilience = request.resilience
    view.exclusive = request.exclusive
    view.user = request.user
    view.weight = request.weight
    view.submit_s = request.submit_s
    view.kind = request.kind
    view.start_nodes = request.start_nodes
    view.min_nodes = request.min_nodes
    view.max_nodes = request.max_nodes
    view.preferred_nodes = request.preferred_nodes
    view.recorded_s = request.recorded_s
    view.io_by_nodes = request.io_by_nodes
    view.power_by_nodes = request.power_by_nodes
    view.id = id
    view.state = state
    view.nodes = nodes
    view.start_s = start_s
    view.remaining_s = remaining_s
    view.restart_s = restart_s
    view.requested_nodes = requested_nodes
    view.at_scheduling_point = at_scheduling_point
    view.interruption = interruption
    view.interrupted_s = interrupted_s
    view.expansions = expansions
    view.mtct = mtct
    view.mtct_previous = mtct_previous
    view.unfinished_tasks = unfinished_tasks
    view.processing_tasks = processing_tasks
    view.is_default = is_default
    view.attained_node_s = attained_node_s
    view.__class__ = JobView
    made: JobView = view
    return made


def move_on(view: JobView, remaining_s: float | None, attained_node_s: float) -> None:
    """Bring the view of a running job up to date in place: for views of brief snapshots alone."""
    _set_remaining_s(view, remaining_s)
    _set_attained_node_s(view, attained_node_s)


def stand(
    view: JobView,
    *,
    state: JobState,
    nodes: int,
    remaining_s: float | None,
    requested_nodes: int | None,
    at_scheduling_point: bool,
    expansions: int,
    mtct: float | None,
    mtct_previous: float | None,
    attained_node_s: float,
) -> None:
    """Have the view of a running job tell in place how it stands: for views of brief snapshots alone."""
    draft: Any = view
    object.__setattr__(view, "__class__", _Draft)
    draft.state = state
    draft.nodes = nodes
    draft.remaining_s = remaining_s
    draft.requested_nodes = requested_nodes
    draft.at_scheduling_point = at_scheduling_point
    draft.expansions = expansions
    draft.mtct = mtct
    draft.mtct_previous = mtct_previous
    draft.attained_node_s = attained_node_s
    draft.__class__ = JobView
