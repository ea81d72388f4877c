"""Versions of a program's state, in the store and in the memory of hosts, and the step each is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dask_hpc.checkpoint.describe import PROGRAM
from dask_hpc.checkpoint.manifest import Manifest
from dask_hpc.checkpoint.record import parse
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError, UnknownCheckpoint


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program is, at a boundary between two steps."""

    #: Name of the phase, steps done of it, and of all.
    phase: str
    phase_step: int
    step: int


@dataclass(frozen=True, slots=True)
class Found:
    """A version of a program's state."""

    #: What it is called in texts: of one in the store, its folder.
    path: str
    version: int
    place: Place
    size: int
    dim: str
    #: Of a run and those that have gone on from it.
    run: str
    created_s: float
    #: Of one in the memory of hosts, what is known of it; None: it is in the store.
    record: str | None = None

    def number(self, size: int, dim: str, phases: Sequence[str]) -> int:
        """Number of the phase it was written in, among those of a program over a domain.

        Raises
        ------
        ValueError
            When the program is another one.
        """
        phase = self.place.phase
        if (self.size, self.dim) == (size, dim) and phase in phases[1:]:
            return phases.index(phase)
        raise ValueError(
            f"{self.path} has a state of {self.size} indices of {self.dim!r} in phase {phase!r}; this "
            f"program has {size} of {dim!r} and the phases {', '.join(map(repr, phases))}. Give its versions "
            "another name (protect='NAME'), or run it without resume"
        )


def told(place: Place, size: int, dim: str, run: str) -> dict[str, Any]:
    """What a plan says of the program, beside what else it says."""
    return {PROGRAM: {"size": size, "dim": dim, "run": run, **asdict(place)}}


def all_found(store: str | None, name: str, records: Sequence[str], run: str | None) -> list[Found]:
    """The whole versions of a name, those that were written last first.

    Parameters
    ----------
    records
        Those in the memory of hosts.
    run
        Of which run; None: of any.

    Raises
    ------
    CheckpointError
        When the store cannot be read and no host holds one, or, asked for any, there are versions that no
        program has written.
    """
    held = [found for record in records if (found := _in_memory(record)) is not None]
    held = [each for each in held if run in (None, each.run)]
    try:
        stored = [] if store is None else _in_store(store, name, run)
    except (CheckpointError, OSError):
        if not held:
            raise
        stored = []
    return sorted([*held, *stored], key=lambda each: each.created_s, reverse=True)


def require_none(store: str | None, name: str, records: Sequence[str], run: str) -> None:
    """Raise `CheckpointError` when there are versions of another run: new ones would take their place."""
    there = [version for version in Store(store).versions(name) if version.complete] if store else []
    others = [
        version.path
        for version in there
        if (found := _found(version.path, version.manifest())) is None or found.run != run
    ]
    held = [found.path for each in records if (found := _in_memory(each)) is not None and found.run != run]
    for path in (others or held)[-1:]:
        raise CheckpointError(
            f"{path} is there already, and new versions of {name!r} would take its place: go on "
            "from it with run(resume=True), replace it with run(resume=False), or give those of this job "
            "another name with protect='NAME'"
        )


def _in_store(store: str, name: str, run: str | None) -> list[Found]:
    there = Store(store)
    whole = [version for version in there.versions(name) if version.complete]
    if not whole:
        try:
            there.newest(name)  # says what is wrong with those that there are
        except UnknownCheckpoint:
            return []
    found = [(version, _found(version.path, version.manifest())) for version in reversed(whole)]
    if run is not None:
        return [one for _, one in found if one is not None and one.run == run]
    for version, one in found:
        if one is None:
            raise CheckpointError(
                f"{version.path} was not written by a program; give the job another name, or protect='NAME'"
            )
    return [one for _, one in found if one is not None]


def _in_memory(text: str) -> Found | None:
    record = parse(text)
    where = f"version {record.manifest.version} of {record.name!r} in the memory of hosts"
    return _found(where, record.manifest, text)


def _found(path: str, manifest: Manifest, record: str | None = None) -> Found | None:
    """What a version says of the program that has written it; None: it was none."""
    program: Any = manifest.plan.extra.get(PROGRAM)
    try:
        place = Place(str(program["phase"]), int(program["phase_step"]), int(program["step"]))
        size, dim, run = int(program["size"]), str(program["dim"]), str(program["run"])
    except (KeyError, TypeError, ValueError):
        return None
    return Found(path, manifest.version, place, size, dim, run, manifest.created_s, record)
