"""Having managers make a version in memory whole again, on the hosts that are left (`checkpoint.repair`).

No value is needed for that, and no worker: managers make what is lost of what they hold, and parities anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.plan import Written
from dask_hpc.checkpoint.record import Record, made
from dask_hpc.checkpoint.repair import adoptions, moved
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.fetching import all_of, ask
from dask_hpc.worker.parities import blobs_of, patience_s, protect
from dask_hpc_policies.codec import encode
from dask_hpc_policies.resilience.redundancy_sets import Scheme


class TooManyLostError(CheckpointError):
    """What is left of a version does not make it whole, whoever answers later."""


async def repaired(
    pool: Any,
    record: Record,
    domains: Mapping[Home, str],
    scheme: Scheme,
    note: Callable[[Home, str], None],
) -> tuple[Record, str]:
    """The record of the same version on the hosts that are left; nobody keeps it yet.

    Parameters
    ----------
    domains
        Failure domain of each of them.
    note
        Is told of each new segment as it is made: its host and name.

    Returns
    -------
    tuple
        The record, and why it has not the redundancy of the scheme; empty: it has.

    Raises
    ------
    TooManyLostError
        When what is left is not enough.
    OSError, CheckpointError
        When what is lost cannot be made again now, or is not what was written.
    """
    if not record.readable(domains):
        raise TooManyLostError("too many of the hosts that held it are lost")
    planned = adoptions(record, domains)

    async def adopted(group: Any, blob: int, nbytes: int, heir: Home) -> tuple[Home, str]:
        answer = await ask(pool, heir.address, "adopt", patience_s(nbytes), group=encode(group), blob=blob)
        note(heir, str(answer["segment"]))
        return heir, str(answer["segment"])

    segments = await all_of(
        adopted(each.group, each.blob, each.group.blobs[each.blob].nbytes, each.heir) for each in planned
    )
    taken = {each.lost: where for each, where in zip(planned, segments, strict=True)}
    written, home_of = moved(record, taken, [each.group for each in planned])
    await _verified(pool, written, segments)
    blobs = blobs_of((home_of[str(each.pack)], each) for each in written)
    groups, reason = await protect(pool, blobs, domains, scheme, note)
    old = record.manifest
    new = made(
        uuid.uuid4().hex, old.plan, old.version, written, home_of, tuple(groups), created_s=old.created_s
    )
    sets = {blob.home for group in groups for blob in group.blobs}
    return new, "" if sets.issuperset(new.homes) else reason


async def _verified(pool: Any, written: Sequence[Written], segments: Iterable[tuple[Home, str]]) -> None:
    """Hold what was made again against the checksums of its blocks: a part of it may have been damaged."""
    blocks: dict[str, list[tuple[int, int, int]]] = {}
    for each in written:
        blocks.setdefault(str(each.pack), []).append((each.offset, each.nbytes, each.crc32c))
    await all_of(
        ask(
            pool,
            heir.address,
            "verify",
            patience_s(sum(nbytes for _, nbytes, _ in blocks[segment])),
            segment=segment,
            blocks=blocks[segment],
        )
        for heir, segment in segments
        if segment in blocks
    )
