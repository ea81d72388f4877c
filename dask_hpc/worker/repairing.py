"""Having managers make a version in memory whole again, on the hosts that are left (`checkpoint.repair`).

No value is needed for that, and no worker: managers make what is lost of what they hold, and parities anew.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.record import Record, made
from dask_hpc.checkpoint.repair import adoptions, moved
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.fetching import ask
from dask_hpc.worker.parities import blobs_of, patience_s, protect
from dask_hpc_policies.codec import encode
from dask_hpc_policies.resilience.redundancy_sets import Scheme


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
    OSError, CheckpointError
        When what is lost cannot be made again.
    """
    if not record.readable(domains):
        raise CheckpointError("too many of the hosts that held it are lost")
    planned = adoptions(record, domains)

    async def adopted(group: Any, blob: int, nbytes: int, heir: Home) -> tuple[Home, str]:
        answer = await ask(pool, heir.address, "adopt", patience_s(nbytes), group=encode(group), blob=blob)
        note(heir, str(answer["segment"]))
        return heir, str(answer["segment"])

    segments = await asyncio.gather(
        *(adopted(each.group, each.blob, each.group.blobs[each.blob].nbytes, each.heir) for each in planned)
    )
    taken = {each.lost: where for each, where in zip(planned, segments, strict=True)}
    written, home_of = moved(record, taken, [each.group for each in planned])
    blobs = blobs_of((home_of[str(each.pack)], each) for each in written)
    groups, reason = await protect(pool, blobs, domains, scheme, note)
    plan, number = record.manifest.plan, record.manifest.version
    return made(uuid.uuid4().hex, plan, number, written, home_of, tuple(groups)), "" if groups else reason
