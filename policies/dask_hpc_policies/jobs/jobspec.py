"""What a user declares about a job, and what it means on a pool of a given size.

Rules of the file: `JobSpec` holds exactly what was asked (None: not said); `resolve` turns it into sizes.

=====================  ==========================================================
nodes alone            rigid: that size for life
nodes and bounds       malleable, starts at exactly `nodes` (rigid with `rigid`)
bounds alone           starts at the largest legal size that fits, malleable
                       afterwards (moldable, that is fixed once started, with `rigid`)
nothing                as bounds alone, from 1 node to the size of the pool
=====================  ==========================================================

Classes of jobs after Feitelson and Rudolph (1996); submission fields after Chadha (2019, section 4.2)
and John (2024, section 4.1).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_hpc_policies.jobs import constraints
from dask_hpc_policies.model import JobKind
from dask_hpc_policies.params import ParameterError, parse_duration, parse_power, suggestion

#: Larger than any pool: the upper bound while the pool is not known.
_UNBOUNDED = 1 << 40
#: Largest number that is taken for a size or a priority.
_LARGEST = 1_000_000_000


class InvalidJob(ValueError):
    """A job description that cannot be carried out; the message says which argument to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as the user declared it. Make it with `job_spec`, which validates."""

    name: str
    #: Start size; None for a moldable start.
    nodes: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    #: One of `constraints.CONSTRAINTS`.
    constraint: str = "any"
    walltime_s: float | None = None
    #: Larger is served first.
    priority: int = 0
    #: Expected power per node.
    min_power_w: float | None = None
    max_power_w: float | None = None
    #: Share of time in file-system I/O, 0 to 1.
    io_intensity: float | None = None
    #: Never resize it once it has started.
    rigid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """The sizes of a job on a pool of known size; the bounds are legal sizes."""

    kind: JobKind
    #: Exact start size; None for a moldable start.
    start_nodes: int | None
    min_nodes: int
    max_nodes: int


def job_spec(
    name: str,
    *,
    nodes: int | None = None,
    min_nodes: int | None = None,
    max_nodes: int | None = None,
    constraint: str = "any",
    walltime: str | float | None = None,
    priority: int = 0,
    min_power_w: str | float | None = None,
    max_power_w: str | float | None = None,
    io_intensity: float | None = None,
    rigid: bool = False,
) -> JobSpec:
    """A validated job description.

    Parameters
    ----------
    name
        The user's name for the job; several jobs may share one.
    nodes, min_nodes, max_nodes
        Sizes in nodes; see the table at the top of this module.
    constraint
        Which node counts are legal, one of `constraints.CONSTRAINTS`.
    walltime
        Seconds, or text such as ``"30 min"``.
    priority
        Larger is served first.
    min_power_w, max_power_w
        Expected power per node in watts, or text such as ``"200 W"``.
    io_intensity
        Share of time in file-system I/O, 0 to 1.
    rigid
        Never resize the job once it has started.

    Raises
    ------
    InvalidJob
        Naming the value, the allowed range and the argument to change.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"name {name!r} is not a job name; give a text that is not empty")
    for argument, value in (("nodes", nodes), ("min_nodes", min_nodes), ("max_nodes", max_nodes)):
        if value is not None:
            check_nodes(name, argument, value)
    if not isinstance(constraint, str) or constraint not in constraints.CONSTRAINTS:
        raise InvalidJob(
            f"job {name!r}: constraint={constraint!r} must be one of {', '.join(constraints.CONSTRAINTS)}"
            + suggestion(constraint, constraints.CONSTRAINTS)
        )
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > _LARGEST:
        raise InvalidJob(
            f"job {name!r}: priority={priority!r} must be a whole number from {-_LARGEST} to {_LARGEST}; "
            "larger is served first"
        )
    if not isinstance(rigid, bool):
        raise InvalidJob(f"job {name!r}: rigid={rigid!r} must be true or false")
    _check_sizes(name, nodes, min_nodes, max_nodes, constraint)
    low_w = _quantity(name, "min_power_w", min_power_w)
    high_w = _quantity(name, "max_power_w", max_power_w)
    if low_w is not None and high_w is not None and low_w > high_w:
        raise InvalidJob(f"job {name!r}: min_power_w={low_w:g} W must not be above max_power_w={high_w:g} W")
    return JobSpec(
        name=name,
        nodes=nodes,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        constraint=constraint,
        walltime_s=_quantity(name, "walltime", walltime),
        priority=priority,
        min_power_w=low_w,
        max_power_w=high_w,
        io_intensity=_fraction(name, io_intensity),
        rigid=rigid,
    )


#: Keys of a job in YAML or JSON.
FIELDS: tuple[str, ...] = tuple(
    "walltime" if field.name == "walltime_s" else field.name for field in dataclasses.fields(JobSpec)
)


def job_spec_from_mapping(data: Mapping[str, Any]) -> JobSpec:
    """The job that a mapping (from YAML or JSON) with the arguments of `job_spec` as keys describes.

    Raises
    ------
    InvalidJob
        As `job_spec`, and for a missing name or a key that is no field.
    """
    if not isinstance(data, Mapping):
        raise InvalidJob(f"{data!r} is not a job; give a mapping with the keys {', '.join(FIELDS)}")
    for key in data:
        if key not in FIELDS:
            known = ", ".join(FIELDS)
            raise InvalidJob(f"unknown job field {key!r}; fields are {known}{suggestion(key, FIELDS)}")
    if "name" not in data:
        raise InvalidJob(f"a job needs a name; got only {', '.join(map(str, data)) or 'nothing'}")
    return job_spec(**data)


def resolve(spec: JobSpec, pool_nodes: int) -> ResolvedJob:
    """Sizes of the job on a pool that can ever have `pool_nodes` nodes.

    An upper bound above the pool is cut to it; bounds are moved inwards to legal sizes.

    Raises
    ------
    InvalidJob
        When the job cannot run on such a pool at all.
    """
    if pool_nodes < 1:
        raise InvalidJob(f"hpc.pool.max-nodes={pool_nodes!r} must be at least 1")
    for argument, value in (("nodes", spec.nodes), ("min_nodes", spec.min_nodes)):
        if value is not None and value > pool_nodes:
            raise InvalidJob(
                f"job {spec.name!r}: {argument}={value} is more than the cluster can ever have; it must be "
                f"from 1 to {pool_nodes} (change {argument} or the setting hpc.pool.max-nodes)"
            )
    bounded = spec.min_nodes is not None or spec.max_nodes is not None
    if spec.nodes is not None and (spec.rigid or not bounded):
        return ResolvedJob(kind="rigid", start_nodes=spec.nodes, min_nodes=spec.nodes, max_nodes=spec.nodes)
    low = spec.min_nodes or 1
    high = min(spec.max_nodes or pool_nodes, pool_nodes)
    smallest = constraints.smallest_at_least(spec.constraint, low, high)
    largest = constraints.largest_at_most(spec.constraint, high, low)
    if smallest is None or largest is None:
        raise InvalidJob(
            f"job {spec.name!r}: constraint={spec.constraint!r} allows no size from {low} to {high} nodes; "
            "change constraint, min_nodes or max_nodes, or the setting hpc.pool.max-nodes"
        )
    return ResolvedJob(
        kind="moldable" if spec.rigid else "malleable",
        start_nodes=spec.nodes,
        min_nodes=smallest,
        max_nodes=largest,
    )


def check_nodes(job: str, argument: str, value: Any) -> None:
    """Raise `InvalidJob` unless `value` is a number of nodes: a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        allowed = f"a whole number of at least 1 and at most {_LARGEST} nodes"
        raise InvalidJob(f"job {job!r}: {argument}={value!r} must be {allowed}")


def _check_sizes(
    name: str, nodes: int | None, min_nodes: int | None, max_nodes: int | None, constraint: str
) -> None:
    low, high = min_nodes or 1, max_nodes or _UNBOUNDED
    if low > high:
        raise InvalidJob(f"job {name!r}: min_nodes={low} must not be above max_nodes={high}")
    if constraints.smallest_at_least(constraint, low, high) is None:
        raise InvalidJob(
            f"job {name!r}: constraint={constraint!r} allows no size from min_nodes={low} to max_nodes={high}"
        )
    if nodes is None:
        return
    if not low <= nodes <= high:
        allowed = f"from min_nodes={low} to max_nodes={high}" if max_nodes else f"at least min_nodes={low}"
        raise InvalidJob(f"job {name!r}: nodes={nodes} must be {allowed}")
    if not constraints.is_legal(constraint, nodes):
        below = constraints.next_lower(constraint, nodes, low)
        above = constraints.next_higher(constraint, nodes, high)
        near = " and ".join(str(n) for n in (below, above) if n is not None)
        raise InvalidJob(
            f"job {name!r}: nodes={nodes} is not legal under constraint={constraint!r}; nearest: {near}"
        )


def _quantity(name: str, argument: str, value: str | float | None) -> float | None:
    if value is None:
        return None
    try:
        number = parse_duration(value) if argument == "walltime" else parse_power(value)
    except ParameterError as error:
        raise InvalidJob(f"job {name!r}: {argument}: {error}") from None
    if argument == "walltime" and number == 0:
        raise InvalidJob(f"job {name!r}: walltime={value!r} must be above 0 s")
    return number


def _fraction(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= 1:
        raise InvalidJob(f"job {name!r}: io_intensity={value!r} must be a number from 0 to 1")
    return float(value)
