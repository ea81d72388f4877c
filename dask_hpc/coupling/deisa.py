"""Programs written for deisa-dask hand over to flows: `Bridge` takes the calls of ``deisa.dask.Bridge``.

Each array is a flow of its name with the one field of its name. Analytics are written with `Runtime.couple`,
in place of its consumer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from distributed import Security

from dask_hpc.coupling.given import why_of
from dask_hpc.coupling.source import Source
from dask_hpc.errors import CouplingError
from dask_hpc_policies.coupling.contract import Field, Place, checked_name, checked_number
from dask_hpc_policies.params import shown

#: Where programs for deisa-dask are told the scheduler: its address, or the path of its file.
_VARIABLE = "DEISA_DASK_SCHEDULER_ADDRESS"
_KEYS = ("global_shape", "chunk_shape", "chunk_position")
#: Indices that an array may have along a dimension.
_MOST = 2**40


class Communicator(Protocol):
    """What is used of an MPI communicator, or of one that has its methods."""

    def Get_rank(self) -> int:
        """The number of this process."""
        ...

    def gather(self, data: Any, root: int = 0) -> list[Any] | None:
        """What all processes have given, on `root`."""
        ...

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """What `root` has given."""
        ...


class Bridge:
    """The end of one rank; waits for the flows of its arrays and for the other ranks.

    Parameters
    ----------
    comm
        The communicator of all ranks; used here alone.
    arrays_metadata
        Of each array that this rank sends: ``global_shape``, ``chunk_shape``, and ``chunk_position``, which
        counts chunks of that shape along each dimension. All ranks say the same ``chunk_shape``, as for
        deisa-dask; the last chunk along a dimension is shorter, where they do not divide the whole.
    timeout
        Seconds to wait.
    security
        A `distributed.Security` for TLS. None: what Dask's configuration says.

    Raises
    ------
    ValueError
        On all ranks, for metadata of any of them that cannot be, or are others than those of other ranks, or
        when ``DEISA_DASK_SCHEDULER_ADDRESS`` is not set on one; for those that are others than the flow's.
    CouplingError
        When a flow does not come within `timeout`.
    """

    def __init__(
        self,
        comm: Communicator,
        arrays_metadata: Mapping[str, Mapping[str, Any]],
        *args: Any,
        timeout: float = 60.0,
        security: Security | None = None,
        **kwargs: Any,
    ) -> None:
        self._sources: dict[str, Source] = {}
        try:
            scheduler = os.environ.get(_VARIABLE)
            if not scheduler:
                raise ValueError(f"{_VARIABLE} is not set; needed: the scheduler's address, or its file")
            mine = {name: _checked(name, said) for name, said in arrays_metadata.items()}
        except Exception as error:  # whatever it was given
            # else the other ranks would wait for this one for ever
            comm.bcast(comm.gather(why_of(error)))
            raise
        self._places = {name: _place(*its) for name, its in mine.items()}
        every = _chunks(comm.bcast(comm.gather({name: chunk for name, (_, chunk, _) in mine.items()})))
        rank = comm.Get_rank()
        _check_alike(every)
        try:
            # in one order everywhere: each waits for the others of its array
            for name in sorted(arrays_metadata):
                ranks = [number for number, names in enumerate(every) if name in names]
                number = ranks.index(rank)
                self._sources[name] = Source(
                    name, scheduler, rank=number, size=len(ranks), timeout=timeout, security=security
                )
                _check_field(name, mine[name][0], self._sources[name].fields)
        except BaseException as error:
            # else readers of the others would wait for steps as long as this process lives
            for source in self._sources.values():
                source.__exit__(type(error), error, None)
            raise

    def send(self, array_name: str, chunk: np.ndarray, timestep: int, *args: Any, **kwargs: Any) -> bool:
        """Hand over this rank's chunk of an array; it is the caller's again when this returns.

        Which worker gets it is not chosen here: one on this host if there is any. What deisa-dask takes
        beside (``update_workers``, ``filter_workers``) has no effect.

        Raises
        ------
        ValueError
            For an array that was not declared, and a chunk or step that cannot be.
        CouplingError
            When the flow has failed or is closed.
        """
        source = self._sources.get(array_name)
        if source is None:
            there = ", ".join(map(repr, self._sources)) or "none"
            raise ValueError(f"array {array_name!r} was not declared; allowed: {there}")
        begin, shape = self._places[array_name]
        # a smaller one might lie within the array all the same, and the flow fail by the gap
        if np.shape(chunk) != shape:
            text = f"chunk of {array_name!r} has shape {np.shape(chunk)}; needed: {shape}"
            raise ValueError(f"{text}, by its chunk_shape and chunk_position")
        at = dict(zip(source.fields[array_name].dims, begin, strict=True))
        return source.send(timestep, {array_name: chunk}, at=at)

    def get(self, key: str, timestep: int | None = None, default: Any = None) -> Any:
        """Feedback of analytics, which flows do not carry.

        Raises
        ------
        CouplingError
            Always.
        """
        raise CouplingError(f"get({key!r}): flows carry no feedback to the program; read it another way")

    def close(self, timestep: int = 0) -> None:
        """Say that no step comes any more; a bridge that is closed stays so.

        One that is gone without it fails its flows: its program has ended too soon.
        """
        for source in self._sources.values():
            source.close()


def _checked(name: str, said: Mapping[str, Any]) -> tuple[list[int], list[int], list[int]]:
    """Shape of an array, shape and position of the chunk of a rank."""
    checked_name(name, "name of an array")
    if not isinstance(said, Mapping):
        raise ValueError(f"metadata of {name!r} is {shown(said)}; needed: a dict of {', '.join(_KEYS)}")
    if sorted(map(str, said)) != sorted(_KEYS):
        raise ValueError(
            f"metadata of {name!r} has {', '.join(map(str, said)) or 'nothing'}; needed: {', '.join(_KEYS)}"
        )
    whole, chunk, position = (_numbers(name, key, said[key]) for key in _KEYS)
    if not len(whole) == len(chunk) == len(position):
        raise ValueError(f"metadata of {name!r} has {len(whole)}, {len(chunk)}, {len(position)} numbers")
    for at, length, total in zip(position, chunk, whole, strict=True):
        checked_number(f"chunk_position of {name!r}", at, 0, (total - 1) // length)
    return whole, chunk, position


def _place(whole: Iterable[int], chunk: Sequence[int], position: Iterable[int]) -> Place:
    """Where a chunk begins, and its shape."""
    begin = tuple([at * length for at, length in zip(position, chunk, strict=True)])
    left = [total - at for total, at in zip(whole, begin, strict=True)]
    return begin, tuple(map(min, chunk, left))


def _chunks(told: Sequence[dict[str, list[int]] | str]) -> list[dict[str, list[int]]]:
    """Shapes of the chunks of all ranks by array; `ValueError` when one has said why it has none."""
    for rank, one in enumerate(told):
        if isinstance(one, str):
            raise ValueError(f"rank {rank} has failed with {one}")
    return [one for one in told if not isinstance(one, str)]


def _check_alike(every: Sequence[Mapping[str, list[int]]]) -> None:
    """Raise `ValueError` when not all ranks say the same ``chunk_shape``, in which all positions count."""
    first: dict[str, int] = {}
    for rank, its in enumerate(every):
        for name, shape in its.items():
            if shape != (allowed := every[first.setdefault(name, rank)][name]):
                text = f"chunk_shape of {name!r} is {shape} of rank {rank}; allowed: {allowed}"
                raise ValueError(f"{text}, as of {first[name]}")


def _check_field(name: str, shape: list[int], fields: Mapping[str, Field]) -> None:
    """Raise `ValueError` when a flow is not that of an array."""
    if list(fields) != [name]:
        raise ValueError(
            f"flow {name!r} has the fields {', '.join(map(repr, fields))}; needed: {name!r} alone"
        )
    if shape != (allowed := list(fields[name].shape)):
        raise ValueError(
            f"global_shape of {name!r} is {shape}; allowed: {allowed}, as the flow says (rt.couple)"
        )


def _numbers(name: str, key: str, said: Any) -> list[int]:
    if isinstance(said, str) or not isinstance(said, Iterable):
        raise ValueError(f"{key} of {name!r} is {shown(said)}; needed: a whole number for each dimension")
    least = 0 if key == "chunk_position" else 1
    return [checked_number(f"{key} of {name!r}", one, least, _MOST) for one in said]
