"""What makes a version in memory whole again of which hosts are lost: which of those left take what over.

Arithmetic alone. What a lost host held is made again of what others hold, as one segment, by the host that
has least of the version so far. Blocks keep their bytes; what changes is where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from dask_hpc.checkpoint.blobs import Group, Home
from dask_hpc.checkpoint.plan import Written
from dask_hpc.checkpoint.record import Record


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a lost host held, and who takes it over."""

    lost: Home
    group: Group
    #: Which of the group's blobs it is.
    blob: int
    heir: Home


def adoptions(record: Record, there: Collection[Home]) -> list[Adoption]:
    """Who takes over what lost hosts held of a version that can be read from those that are `there`."""
    held = dict.fromkeys(there, 0)
    for at, place in enumerate(record.places):
        if (home := record.homes[place]) in held:
            held[home] += record.manifest.written(at).nbytes
    found = []
    for group in record.groups:
        for number, blob in enumerate(group.blobs):
            if blob.home not in held and blob.nbytes:
                heir = min(held, key=lambda home: (held[home], home.address))
                held[heir] += blob.nbytes
                found.append(Adoption(blob.home, group, number, heir))
    return found


def moved(
    record: Record, made: Mapping[Home, tuple[Home, str]], groups: Collection[Group]
) -> tuple[list[Written], dict[str, Home]]:
    """Where blocks are once what lost hosts held was made again.

    Parameters
    ----------
    made
        For each lost host who has what it held, and the segment that it is.
    groups
        Those that the lost hosts were in.

    Returns
    -------
    tuple
        Blocks in the order of the plan, and the host of each segment.
    """
    blobs = {blob.home: blob for group in groups for blob in group.blobs}
    written, home_of = [], {}
    for at, place in enumerate(record.places):
        one, home = record.manifest.written(at), record.homes[place]
        if home in made:
            start = blobs[home].start(str(one.pack))
            home, segment = made[home]
            one = replace(one, offset=start + one.offset, pack=segment)
        written.append(one)
        home_of[str(one.pack)] = home
    return written, home_of
