"""What an application does, as our YAML says it: a list of stages.

Each entry has one of these keys; amounts are numbers, formulas over ``nodes``, or tables with a value for
each number of nodes that the job may have: ``{2: 8.5, 3: 6}``.

=======================  ===========================================================================
``compute``              work in seconds on one node, done at the speed-up of the job
``read``, ``write``      bytes from or to the shared file system; with ``participants`` (nodes that
                         take part, else all) and ``purpose`` (such as ``checkpoint``); with ``beside``
                         (file-system, or link: to other nodes) the next stages go on meanwhile
``delay``                a time, such as ``30 s``, that passes at any size
``point``                null: a moment at which the job can be resized
``request``              a size that the application asks for
``repeat``               how often the ``stages`` beside it are done
=======================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dask_hpc.sim.formats.amounts import DEEPEST, MOST_STEPS, Sizes, most_steps, read_amount
from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.model.checkpoints import PATHS
from dask_hpc.sim.model.job import (
    Amount,
    Compute,
    Delay,
    Repeat,
    Request,
    SchedulingPoint,
    SpeedUp,
    Stage,
    Transfer,
    amount,
)
from dask_hpc_policies.params import ParameterError, parse_duration


def read_stages(place: Field, sizes: Sizes, speed: SpeedUp, inside: bool = False) -> tuple[Stage, ...]:
    """The stages that the list at `place` describes, for a job of `sizes` and `speed`.

    `inside` a resize there are neither scheduling points nor requests.

    Raises
    ------
    WorkloadError
        For whatever is unknown, missing or out of range, and more than `MOST_STEPS` steps.
    """
    stages = _stages(place, sizes, speed, 0)
    if not any(isinstance(stage, (Compute, Transfer, Delay)) for stage in _flat(stages)):
        place.fail("no stage takes any time; give a compute, read, write or delay")
    if inside and any(isinstance(stage, (SchedulingPoint, Request)) for stage in _flat(stages)):
        place.fail("has a point or a request, which cannot be within a resize")
    if most_steps(stages) > MOST_STEPS:
        place.fail(f"may have {most_steps(stages):g} steps; at most {MOST_STEPS} are simulated")
    return stages


def _stages(place: Field, sizes: Sizes, speed: SpeedUp, depth: int) -> tuple[Stage, ...]:
    if depth > DEEPEST:
        place.fail(f"nested more than {DEEPEST} deep")
    return tuple(_stage(entry, sizes, speed, depth) for entry in place.sequence())


def _stage(entry: Field, sizes: Sizes, speed: SpeedUp, depth: int) -> Stage:
    kinds = [key for key in entry.mapping() if key in _READERS]
    if len(kinds) != 1:
        known = ", ".join(_READERS)
        entry.fail(f"a stage has one of the keys {known}; got {', '.join(entry.mapping()) or 'none'}")
    more, read = _READERS[kinds[0]]
    entry.mapping((kinds[0], *more))
    return read(entry, sizes, speed, depth)


def _compute(entry: Field, sizes: Sizes, speed: SpeedUp, depth: int) -> Stage:
    return Compute(work=read_amount(entry["compute"], sizes), speed=speed)


def _transfer(entry: Field, sizes: Sizes, speed: SpeedUp, depth: int) -> Stage:
    direction = "read" if "read" in entry.mapping() else "write"
    participants, purpose = entry.get("participants"), entry.get("purpose")
    beside = entry.get("beside")
    where: Any = None if beside is None else beside.text(PATHS)
    return Transfer(
        size_bytes=read_amount(entry[direction], sizes),
        direction="read" if direction == "read" else "write",
        participants=None if participants is None else _participants(participants, sizes),
        purpose="" if purpose is None else purpose.text(),
        beside=where,
    )


def _participants(place: Field, sizes: Sizes) -> Amount:
    value = read_amount(place, sizes)
    for nodes in (sizes.low, sizes.high):
        if not 1 <= amount(value, nodes) <= nodes:
            place.fail(f"{amount(value, nodes):g} of {nodes} nodes; it must be from 1 to all of them")
    return value


def _delay(entry: Field, sizes: Sizes, speed: SpeedUp, depth: int) -> Stage:
    place = entry["delay"]
    if isinstance(place.value, dict):
        return Delay(seconds=read_amount(place, sizes))
    try:
        return Delay(seconds=place.replaced(parse_duration(place.value)).number(0.0, 1e12))
    except (ParameterError, OverflowError):
        # no duration, then a formula
        return Delay(seconds=read_amount(place, sizes))


def _point(entry: Field, sizes: Sizes, speed: SpeedUp, depth: int) -> Stage:
    if entry["point"].value is not None:
        entry["point"].wrong("nothing (null)")
    return SchedulingPoint()


def _request(entry: Field, sizes: Sizes, speed: SpeedUp, depth: int) -> Stage:
    nodes: Amount = read_amount(
        entry["request"], sizes, clip=lambda n: float(min(max(round(n), sizes.low), sizes.high))
    )
    return Request(nodes=nodes)


def _repeat(entry: Field, sizes: Sizes, speed: SpeedUp, depth: int) -> Stage:
    times: Amount = read_amount(entry["repeat"], sizes, clip=lambda n: float(round(n)))
    return Repeat(stages=_stages(entry.need("stages"), sizes, speed, depth + 1), times=times)


_READERS: Mapping[str, tuple[tuple[str, ...], Callable[[Field, Sizes, SpeedUp, int], Stage]]] = {
    "compute": ((), _compute),
    "read": (("participants", "purpose", "beside"), _transfer),
    "write": (("participants", "purpose", "beside"), _transfer),
    "delay": ((), _delay),
    "point": ((), _point),
    "request": ((), _request),
    "repeat": (("stages",), _repeat),
}


def _flat(stages: tuple[Stage, ...]) -> list[Stage]:
    result: list[Stage] = []
    for stage in stages:
        result += _flat(stage.stages) if isinstance(stage, Repeat) else [stage]
    return result
