"""ADIOS2 streams as producers: a program that writes one is coupled without a change.

`forward` runs beside the program, in as many processes as there are ranks of the flow. Each reads its share
of a step into arrays of its own, once, and hands it over by a `Source`. (Godoy et al. 2020, "ADIOS 2: The
Adaptable Input Output System", SoftwareX 12.)
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from distributed import Security

from dask_hpc.coupling.source import Source
from dask_hpc.errors import CouplingError
from dask_hpc_policies.coupling.contract import Field, Place, checked_seconds, lacking

#: How long one looks for a step at a time, in seconds: signals are heard in between.
_LOOK_S = 1.0


def forward(
    name: str,
    scheduler: str | os.PathLike[str],
    stream: str | os.PathLike[str],
    *,
    engine: str = "SST",
    parameters: Mapping[str, Any] | None = None,
    rank: int = 0,
    size: int = 1,
    security: Security | None = None,
    timeout: float = 60.0,
) -> int:
    """Hand over the steps of an ADIOS2 stream to a flow until the stream ends; gives how many went on.

    A step of the flow has the number of the stream's step. While the flow's queue is full no step is read:
    what becomes of those that the program writes meanwhile, the stream's ``QueueLimit`` and
    ``QueueFullPolicy`` say.

    Parameters
    ----------
    name, scheduler, security
        As of `Source`. Each field of the flow is a global array of the stream, of the same name, shape and
        type; what else is in the stream is not read. The name may be the end of a path: `T` is `/fields/T`
        where there is no other of that end.
    stream
        What the program has opened for writing.
    engine, parameters
        Of ADIOS2, as the program has them.
    rank, size
        Which process this is, of how many: each reads its share of the first dimension. Of an SST stream
        each process is a reader of its own, and all have to get the same steps: with more than one, the
        program gives it ``RendezvousReaderCount`` of as many, and ``QueueFullPolicy`` ``Block``.
    timeout
        Seconds to wait for the flow, the other processes and the stream to begin. A step may take any time.

    Raises
    ------
    ImportError
        When ``adios2`` is not installed.
    ValueError
        For a field that cannot be shared, or that the stream has not, not whole or otherwise. The flow fails
        then.
    CouplingError
        When the flow has failed or is closed, or the program that writes was lost.
    """
    checked_seconds("timeout", timeout)
    adios2 = _adios2()
    with Source(name, scheduler, rank=rank, size=size, security=security, timeout=timeout) as source:
        fields = list(source.fields.values())
        parts = shares(fields, rank, size)
        # one array a field serves all steps: `send` gives it back
        arrays = {one.name: np.empty(parts[one.name][1], one.dtype) for one in fields}
        at = {fields[0].dims[0]: parts[fields[0].name][0][0]}
        adios = adios2.Adios()
        io = adios.declare_io(name)
        io.set_engine(engine)
        told = {"OpenTimeoutSecs": math.ceil(timeout), **(parameters or {})}
        io.set_parameters({key: str(value) for key, value in told.items()})
        taken = 0
        #: Of each field its name in the stream, and the blocks that are known to cover it.
        named = {one.name: one.name for one in fields}
        covered: dict[str, list[tuple[str, str]]] = {}
        with adios2.Stream(io, os.fspath(stream), "r") as steps:
            while _next(adios2, steps):
                for one in fields:
                    _check(adios2, steps, one, named)
                    _check_blocks(steps, one, named[one.name], covered)
                    steps.read_in_buffer(named[one.name], arrays[one.name], *map(list, parts[one.name]))
                taken += source.send(steps.current_step(), arrays, at)
                steps.end_step()
    return taken


def shares(fields: Sequence[Field], rank: int, size: int) -> dict[str, Place]:
    """The part of each field that one of several processes reads: equal parts of the first dimension.

    Raises
    ------
    ValueError
        For more processes than there are parts, and for several where not all fields have the same first
        dimension.
    """
    firsts = {(one.dims[0], one.shape[0]) for one in fields}
    least = min(rows for _, rows in firsts) if len(firsts) == 1 else 1
    if size > least:
        said = ", ".join(f"{dim!r} of {rows}" for dim, rows in sorted(firsts))
        raise ValueError(f"size is {size}; allowed: 1 to {least}, as fields have the first dimension {said}")
    found = {}
    for one in fields:
        rows, *others = one.shape
        begin, end = rows * rank // size, rows * (rank + 1) // size
        found[one.name] = (begin, *[0] * len(others)), (end - begin, *others)
    return found


def _next(adios2: Any, steps: Any) -> bool:
    """Begin the next step; whether there is one."""
    status = adios2.StepStatus
    while True:
        found = steps.begin_step(timeout=_LOOK_S)
        if found == status.OK:
            return True
        if found == status.EndOfStream:
            return False
        if found != status.NotReady:
            raise CouplingError("the program that writes the stream was lost; start it, and this, again")


def _check(adios2: Any, steps: Any, field: Field, named: dict[str, str]) -> None:
    """Note the name of a field in the stream; raise `ValueError` when it is not there as it is declared."""
    variable = steps.inquire_variable(named[field.name])
    if variable is None:
        there = list(steps.available_variables())
        ends = [name for name in there if name.rpartition("/")[2] == field.name]
        if len(ends) != 1:
            what = f"has {len(ends)} that end in '/{field.name}'" if ends else f"has no {field.name!r}"
            said = ", ".join(map(repr, there)) or "none"
            raise ValueError(f"the stream {what}; allowed: one of its variables, which are {said}")
        named[field.name] = ends[0]
        variable = steps.inquire_variable(ends[0])
    shape, kind = tuple(variable.shape()), variable.type()
    with suppress(KeyError):  # of what NumPy has no type for
        kind = np.dtype(adios2.type_adios_to_numpy(kind)).name
    if (shape, kind) != (field.shape, field.dtype):
        raise ValueError(
            f"{field.name!r} is of shape {shape} and type {kind} in the stream; allowed: {field.shape} and "
            f"{field.dtype}, as the flow says (rt.couple)"
        )


def _check_blocks(
    steps: Any, field: Field, name: str, covered: dict[str, list[tuple[str, str]]]
) -> None:
    """Raise `ValueError` when no block of a step has an index of a field.

    What is not there is not read: the array would have there what it had before. Blocks may overlap, and
    some engines tell of none.
    """
    told = steps.engine.blocks_info(name, steps.current_step())
    blocks = [(one["Start"], one["Count"]) for one in told]
    if not blocks or blocks == covered.get(field.name) or any(one["IsReverseDims"] == "True" for one in told):
        return
    numbers = [(_indices(start), _indices(count)) for start, count in blocks]
    if where := lacking(field, numbers):
        raise ValueError(
            f"{field.name!r} has no block at {where} in step {steps.current_step()} of the stream; needed: "
            "the whole field"
        )
    covered[field.name] = blocks


def _indices(text: str) -> tuple[int, ...]:
    return tuple([int(number) for number in text.split(",")])


def _adios2() -> Any:
    """The package."""
    try:
        import adios2
    except ImportError as error:
        raise ImportError("ADIOS2 streams need adios2; pip install 'dask-hpc[adios]'") from error
    return adios2
