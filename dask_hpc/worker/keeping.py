"""Having hosts keep the record of a version in memory, on so many that it is known as long as it is there.

Who is started after a loss of scheduler, or program, knows versions by the records that managers have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.record import Record, dump
from dask_hpc.worker.fetching import ask


def domains_needed(losses_survived: int, domains: int) -> int:
    """On how many failure domains the record of a version is to be.

    Parameters
    ----------
    losses_survived
        Hosts that may be lost at once without the version.
    domains
        How many have something of it.
    """
    return min(domains, 1 + max(1, losses_survived))


async def keep(
    pool: Any, record: Record, homes: Iterable[Home], domains: Mapping[Home, str]
) -> tuple[list[Home], str]:
    """Have the managers of `homes` keep the record of a whole version.

    Parameters
    ----------
    domains
        Who fails together; a host that is not named fails alone.

    Returns
    -------
    tuple
        Who keeps it, and why these are too few; empty: they are enough.
    """
    text, asked, segments = await asyncio.to_thread(dump, record), list(homes), record.segments()
    calls = (
        ask(pool, at.address, "keep", version=record.id, record=text, segments=sorted(segments.get(at, ())))
        for at in asked
    )
    answers = await asyncio.gather(*calls, return_exceptions=True)
    kept = [home for home, answer in zip(asked, answers, strict=True) if isinstance(answer, dict)]
    all, have = ({domains.get(home, home.address) for home in some} for some in (asked, kept))
    needed = domains_needed(record.losses_survived, len(all))
    if len(have) >= needed:
        return kept, ""
    why = next(answer for answer in answers if not isinstance(answer, dict))
    what = f"{len(have)} of the {needed} hosts that fail apart"
    return kept, f"{what} keep what {record.name!r} is made of: {why}"
