"""Having managers make parities of what hosts hold of a version: level L2.

Which hosts hold parities of which is decided by `dask_hpc_policies.resilience.redundancy_sets`; managers make
them from what they ask each other for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from dask_hpc.checkpoint.blobs import Blob, Group, Home, Part, Stripe
from dask_hpc.checkpoint.layout import slot_bytes
from dask_hpc.checkpoint.plan import Written
from dask_hpc.worker.fetching import all_of, ask
from dask_hpc_policies.resilience import redundancy_sets
from dask_hpc_policies.resilience.redundancy_sets import RedundancySet, Scheme, part_bounds

#: A parity is made by then, at least and by bytes per second, in seconds.
_LEAST_S, _SLOWEST = 60.0, 50e6


def patience_s(nbytes: int) -> float:
    """How long a manager may take to make something of so many bytes of others, in seconds."""
    return _LEAST_S + nbytes / _SLOWEST


def blobs_of(blocks: Iterable[tuple[Home, Written]]) -> dict[Home, Blob]:
    """What each host holds, by where blocks are; their packs are segments."""
    ends: dict[Home, dict[str, int]] = {}
    for home, written in blocks:
        of, segment = ends.setdefault(home, {}), str(written.pack)
        of[segment] = max(of.get(segment, 0), written.offset + slot_bytes(written.nbytes))
    return {home: Blob(home, tuple(segments.items())) for home, segments in ends.items()}


async def protect(
    pool: Any,
    blobs: Mapping[Home, Blob],
    domains: Mapping[Home, str],
    scheme: Scheme,
    note: Callable[[Home, str], None],
    version: str = "",
) -> tuple[list[Group], str]:
    """Have parities of what hosts hold made by others.

    Parameters
    ----------
    blobs
        What hosts hold; a host without may hold parities.
    domains
        Failure domain of each host.
    note
        Is told of each parity as it is made: its host and segment.
    version
        What they are of: those that nobody has heard of go with it. Empty: nobody says.

    Returns
    -------
    tuple
        The groups, and why some hosts are in none, or in a smaller one than was asked for.

    Raises
    ------
    OSError, CheckpointError
        When some cannot be made.
    """
    homes = {home.address: home for home in domains}
    grouping = redundancy_sets.form_sets({home.address: each for home, each in domains.items()}, scheme)
    groups = [await _group(pool, each, homes, blobs, note, version) for each in grouping.sets]
    return groups, "" if grouping.reason is None else grouping.reason.text


async def _group(
    pool: Any,
    hosts: RedundancySet,
    homes: Mapping[str, Home],
    blobs: Mapping[Home, Blob],
    note: Callable[[Home, str], None],
    version: str,
) -> Group:
    places = {host: number for number, host in enumerate(hosts.hosts)}
    there = tuple(blobs.get(homes[host]) or Blob(homes[host], ()) for host in hosts.hosts)
    bounds = {
        host: part_bounds(blob.nbytes, hosts.parts) for host, blob in zip(hosts.hosts, there, strict=True)
    }
    stripes = []
    for stripe in hosts.stripes():
        parts = tuple(Part(places[part.host], *bounds[part.host][part.number]) for part in stripe.parts)
        stripes.append(Stripe(parts, tuple((homes[host], "") for host in stripe.holders)))
    group = Group(there, tuple(stripes))
    made = await all_of(_parities(pool, group, stripe, note, version) for stripe in stripes)
    return Group(there, tuple(made))


async def _parities(
    pool: Any, group: Group, stripe: Stripe, note: Callable[[Home, str], None], version: str
) -> Stripe:
    """Have the parities of a stripe made."""
    if not stripe.nbytes:
        return replace(stripe, parities=())
    parts = []
    for part in stripe.parts:
        blob = group.blobs[part.blob]
        ranges = [[one.segment, one.offset, one.nbytes] for one in blob.ranges(part.start, part.stop)]
        parts.append({"home": asdict(blob.home), "ranges": ranges})
    within_s, count = patience_s(stripe.nbytes * len(parts)), len(stripe.parities)

    async def one(number: int, home: Home) -> tuple[Home, str]:
        which = {"parts": parts, "parities": count, "number": number, "version": version}
        answer = await ask(pool, home.address, "protect", within_s, **which)
        note(home, str(answer["segment"]))
        return home, str(answer["segment"])

    made = await all_of(one(number, home) for number, (home, _) in enumerate(stripe.parities))
    return replace(stripe, parities=tuple(made))
