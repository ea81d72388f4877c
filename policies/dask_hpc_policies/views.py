"""Views of nodes and jobs, made of what is known of them anyway and of how they stand now.

Rules of the file: a view is the same as the constructor of its class would make it, at little more than half
the cost. A snapshot makes one for each job, a simulation of a long trace one for each job of it, and the
constructor of a frozen class goes the long way round for each field; here the slots are set directly.
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
_request_names, _request = _fields_of(JobRequest)
_SET_REQUEST = _setters(JobView, _request_names)
# fmt: off
(
    _id, _state, _nodes, _start_s, _remaining_s, _restart_s, _requested_nodes, _at_scheduling_point,
    _interruption, _interrupted_s, _expansions, _mtct, _mtct_previous, _unfinished_tasks, _processing_tasks,
    _is_default, _attained_node_s,
) = _setters(JobView, [one.name for one in fields(JobView) if one.name not in _request_names])
# fmt: on


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
    view = object.__new__(JobView)
    for put, value in zip(_SET_REQUEST, _request(request), strict=True):
        put(view, value)
    _id(view, id)
    _state(view, state)
    _nodes(view, nodes)
    _start_s(view, start_s)
    _remaining_s(view, remaining_s)
    _restart_s(view, restart_s)
    _requested_nodes(view, requested_nodes)
    _at_scheduling_point(view, at_scheduling_point)
    _interruption(view, interruption)
    _interrupted_s(view, interrupted_s)
    _expansions(view, expansions)
    _mtct(view, mtct)
    _mtct_previous(view, mtct_previous)
    _unfinished_tasks(view, unfinished_tasks)
    _processing_tasks(view, processing_tasks)
    _is_default(view, is_default)
    _attained_node_s(view, attained_node_s)
    return view
