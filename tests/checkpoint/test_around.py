"""What goes with each result in memory of where its parities are: all that is needed, and not much more."""

from __future__ import annotations

import random
import uuid

import pytest
from distributed.protocol.pickle import dumps

from dask_hpc.checkpoint.blobs import Blob, Group, Home, Part, Stripe, finder
from dask_hpc.checkpoint.redundancy import BLOCK_BYTES
from dask_hpc_policies.resilience.redundancy_sets import Scheme, form_sets, part_bounds

HOMES = {f"tcp://host-{number}:1": Home(f"tcp://host-{number}:1", "/folder") for number in range(5)}


def group(scheme: Scheme, lengths: list[list[int]]) -> Group:
    """Hosts with segments of these lengths; no bytes are anywhere."""
    (hosts,) = form_sets({address: address for address in list(HOMES)[: len(lengths)]}, scheme).sets
    blobs = tuple(
        Blob(HOMES[host], tuple((uuid.uuid4().hex, length) for length in each))
        for host, each in zip(hosts.hosts, lengths, strict=True)
    )
    bounds = [part_bounds(blob.nbytes, hosts.parts) for blob in blobs]
    place = {host: number for number, host in enumerate(hosts.hosts)}
    stripes = []
    for stripe in hosts.stripes():
        parts = tuple(Part(place[one.host], *bounds[place[one.host]][one.number]) for one in stripe.parts)
        stripes.append(Stripe(parts, tuple((HOMES[host], uuid.uuid4().hex) for host in stripe.holders)))
    return Group(blobs, tuple(stripes))


def needed(of: Group, blob: int, start: int, stop: int) -> list[object]:
    """Where all lies that bytes of a blob are made of."""
    found: list[object] = []
    for stripe, number, first, last in of.cover(blob, start, stop):
        begin, end = first // stripe.unit * stripe.unit, -(-last // stripe.unit) * stripe.unit
        found += [number, first, last, stripe.nbytes, stripe.parities]
        for part in stripe.parts:
            held = of.blobs[part.blob]
            if part.blob != blob:
                found += [held.home, held.ranges(part.start + begin, min(part.start + end, part.stop))]
    return found


@pytest.mark.parametrize("scheme", [Scheme("partner"), Scheme("xor", 4), Scheme("reed-solomon", 5)])
def test_a_segment_is_made_of_what_goes_with_its_results_as_of_all_that_hosts_hold(scheme: Scheme) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    hosts = {"partner": 2, "xor": 4, "reed-solomon": 5}[scheme.name]
    # some hosts have few bytes, or none, and others more than a block of a code
    lengths = [
        [4096 * chance.randint(1, 600) for _ in range(chance.choice((0, 1, 7)))] for _ in range(hosts - 1)
    ]
    whole = group(scheme, [*lengths, [4096, 3 * BLOCK_BYTES, 8192]])
    find = finder([whole])
    assert find(Home("tcp://of-no-group:1", "/folder"), "a") == (None, 0, 0)
    for number, blob in enumerate(whole.blobs):
        for name, length in blob.segments:
            around, at, start = find(blob.home, name)
            assert around is not None
            assert (at, start) == (number, blob.start(name))
            assert [each.nbytes for each in around.blobs] == [each.nbytes for each in whole.blobs]
            first, last = sorted(chance.randrange(length + 1) for _ in range(2))
            for one in ((0, length), (first, last)):
                place = number, start + one[0], start + one[1]
                assert needed(around, *place) == needed(whole, *place)


def test_what_goes_with_a_result_does_not_grow_with_the_version() -> None:
    few, many = (group(Scheme("xor", 4), [[8192] * count] * 4) for count in (50, 2000))
    sizes = []
    for each in (few, many):
        blob = each.blobs[1]
        around, _, _ = finder([each])(blob.home, blob.segments[len(blob.segments) // 2][0])
        sizes.append(len(dumps(around)))
    assert sizes[1] < 1.5 * sizes[0] < 3000
