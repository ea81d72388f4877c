"""What a user declares about a job, and what it means on a pool of a given size.

Rules of the file: `JobSpec` holds exactly what was asked (None: not said); `resolve` makes a `JobRequest`
of it.

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

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from dask_hpc_policies.codec import field_names
from dask_hpc_policies.jobs import constraints
from dask_hpc_policies.model import JobFacts, JobRequest
from dask_hpc_policies.numeric import is_real, whole
from dask_hpc_policies.params import ParameterError, parse_duration, parse_power, suggestion
from dask_hpc_policies.ranges import MOST_NODE_W, WEIGHTS
from dask_hpc_policies.views import values_of

#: Larger than any pool: the upper bound while the pool is not known.
_UNBOUNDED = 1 << 40
#: Largest number that is taken for a size or a priority.
_LARGEST = 1_000_000_000


class InvalidJob(ValueError):
    """A job description that cannot be carried out; the message says which argument to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(JobFacts):
    """A job as the user declared it. Make it with `job_spec`, which validates."""

    WRITTEN: ClassVar[tuple[str, ...]] = (
        "name", "nodes", "min_nodes", "max_nodes", "constraint", "walltime_s", "priority", "min_power_w",
        "max_power_w", "io_intensity", "rigid",
    )  # fmt: skip

    name: str
    #: Start size; None for a moldable start.
    nodes: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    #: Never resize it once it has started.
    rigid: bool = False
    #: Count also what its tasks read and write past metered stores.
    measure_io: bool = False


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
    deadline: str | float | None = None,
    soft_deadline: str | float | None = None,
    value: float | None = None,
    protect: bool | str = False,
    resilience: str = "",
    exclusive: bool = False,
    user: str | None = None,
    weight: float = 1.0,
    rigid: bool = False,
    measure_io: bool = False,
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
        Expected power per node in watts, or text such as ``"200 W"``. A power corridor goes by it until the
        job was measured.
    io_intensity
        Share of time in file-system I/O, 0 to 1.
    deadline, soft_deadline
        Seconds, or text such as ``"2 h"``, after its submission: when its result is of no use any more, and
        when it begins to lose value.
    value
        What its result is worth, 0 or more, in a unit that all jobs share.
    protect
        Whether its results, or the state that it keeps on its nodes, are written to a store while it runs, or
        under which name.
    resilience
        Name of the protocol by which it survives failures.
    exclusive
        Let nothing of others run on its nodes, also while it cannot fill them, and its tasks nowhere else.
    user
        Whose job it is; a live scheduler takes the client for it when it is not said.
    weight
        How much its user is to get beside others, in proportion; from 0.001 to 1000.
    rigid
        Never resize the job once it has started.
    measure_io
        Count also what its tasks read and write past metered stores, on a live scheduler.

    Raises
    ------
    InvalidJob
        Naming the value, the allowed range and the argument to change.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"name {name!r} is not a job name; give a text that is not empty")
    nodes, min_nodes, max_nodes = (
        None if size is None else check_nodes(name, argument, size)
        for argument, size in (("nodes", nodes), ("min_nodes", min_nodes), ("max_nodes", max_nodes))
    )
    if not isinstance(constraint, str) or constraint not in constraints.CONSTRAINTS:
        raise InvalidJob(
            f"job {name!r}: constraint={constraint!r} must be one of {', '.join(constraints.CONSTRAINTS)}"
            + suggestion(constraint, constraints.CONSTRAINTS)
        )
    rank = whole(priority)
    if rank is None or abs(rank) > _LARGEST:
        raise InvalidJob(
            f"job {name!r}: priority={priority!r} must be a whole number from {-_LARGEST} to {_LARGEST}; "
            "larger is served first"
        )
    for argument, flag in (("exclusive", exclusive), ("rigid", rigid), ("measure_io", measure_io)):
        if not isinstance(flag, bool):
            raise InvalidJob(f"job {name!r}: {argument}={flag!r} must be true or false")
    _check_sizes(name, nodes, min_nodes, max_nodes, constraint)
    low_w = _quantity(name, "min_power_w", min_power_w)
    high_w = _quantity(name, "max_power_w", max_power_w)
    if low_w is not None and high_w is not None and low_w > high_w:
        raise InvalidJob(f"job {name!r}: min_power_w={low_w:g} W must not be above max_power_w={high_w:g} W")
    soft_s = _quantity(name, "soft_deadline", soft_deadline)
    hard_s = _quantity(name, "deadline", deadline)
    if soft_s is not None and hard_s is not None and soft_s > hard_s:
        raise InvalidJob(f"job {name!r}: soft_deadline={soft_s:g} s must not be above deadline={hard_s:g} s")
    if not isinstance(protect, bool):
        _check_text(name, "protect", protect, "true, false or a text that is not empty")
    if resilience != "":
        _check_text(name, "resilience", resilience, "a text")
    if user is not None:
        _check_text(name, "user", user, "a text")
    return JobSpec(
        name=name,
        nodes=nodes,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        constraint=constraint,
        walltime_s=_quantity(name, "walltime", walltime),
        priority=rank,
        min_power_w=low_w,
        max_power_w=high_w,
        io_intensity=_number(name, "io_intensity", io_intensity, 1.0),
        deadline_s=hard_s,
        soft_deadline_s=soft_s,
        value=_number(name, "value", value, _LARGEST),
        protect=protect,
        resilience=resilience,
        exclusive=exclusive,
        user=user or "",
        weight=_weight(name, weight),
        rigid=rigid,
        measure_io=measure_io,
    )


#: Arguments in seconds, which may be text with a unit; their fields have a name with ``_s``.
DURATIONS = ("walltime", "deadline", "soft_deadline")
#: Keys of a job in YAML or JSON.
FIELDS: tuple[str, ...] = tuple(
    name.removesuffix("_s") if name.removesuffix("_s") in DURATIONS else name for name in field_names(JobSpec)
)


def arguments(facts: JobFacts) -> dict[str, Any]:
    """The arguments of `job_spec` that declare `facts`, the name apart; those not at their default."""
    said = {field.name: getattr(facts, field.name) for field in fields(JobFacts) if field.name != "name"}
    defaults = values_of(JobFacts, JobFacts())
    return {
        argument: said[name]
        for name, argument in zip(field_names(JobSpec), FIELDS, strict=True)
        if name in said and said[name] != defaults[name]
    }


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


def resolve(spec: JobSpec, pool_nodes: int) -> JobRequest:
    """The job on a pool that can ever have `pool_nodes` nodes: its kind and its sizes, and all else it says.

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
        size = spec.nodes
        return JobRequest(
            **values_of(JobFacts, spec), kind="rigid", start_nodes=size, min_nodes=size, max_nodes=size
        )
    low = spec.min_nodes or 1
    high = min(spec.max_nodes or pool_nodes, pool_nodes)
    smallest = constraints.smallest_at_least(spec.constraint, low, high)
    largest = constraints.largest_at_most(spec.constraint, high, low)
    if smallest is None or largest is None:
        raise InvalidJob(
            f"job {spec.name!r}: constraint={spec.constraint!r} allows no size from {low} to {high} nodes; "
            "change constraint, min_nodes or max_nodes, or the setting hpc.pool.max-nodes"
        )
    return JobRequest(
        **values_of(JobFacts, spec),
        kind="moldable" if spec.rigid else "malleable",
        start_nodes=spec.nodes,
        min_nodes=smallest,
        max_nodes=largest,
    )


def check_nodes(job: str, argument: str, value: Any) -> int:
    """The number of nodes that `value` is; raises `InvalidJob` unless it is a whole number, 1 or more."""
    nodes = whole(value)
    if nodes is None or not 1 <= nodes <= _LARGEST:
        allowed = f"a whole number of at least 1 and at most {_LARGEST} nodes"
        raise InvalidJob(f"job {job!r}: {argument}={value!r} must be {allowed}")
    return nodes


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
        number = parse_duration(value) if argument in DURATIONS else parse_power(value)
    except ParameterError as error:
        raise InvalidJob(f"job {name!r}: {argument}: {error}") from None
    if argument in DURATIONS and number == 0:
        raise InvalidJob(f"job {name!r}: {argument}={value!r} must be above 0 s")
    if argument not in DURATIONS and number > MOST_NODE_W:
        raise InvalidJob(f"job {name!r}: {argument}={value!r} must be from 0 to {MOST_NODE_W:g} W a node")
    return number


def _number(name: str, argument: str, value: float | None, largest: float) -> float | None:
    if value is None:
        return None
    if not is_real(value) or not 0 <= value <= largest:
        raise InvalidJob(f"job {name!r}: {argument}={value!r} must be a number from 0 to {largest:g}")
    return float(value)


def _weight(name: str, value: float) -> float:
    if not is_real(value) or not WEIGHTS[0] <= value <= WEIGHTS[1]:
        raise InvalidJob(
            f"job {name!r}: weight={value!r} must be a number from {WEIGHTS[0]:g} to {WEIGHTS[1]:g} (the "
            "setting hpc.share.weight is its default)"
        )
    return float(value)


def _check_text(name: str, argument: str, value: Any, allowed: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InvalidJob(f"job {name!r}: {argument}={value!r} must be {allowed}")
