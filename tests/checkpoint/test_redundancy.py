"""Parities of parts: every scheme, every set of losses that it promises, then one more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.checkpoint import redundancy
from dask_hpc.checkpoint.redundancy import BLOCK_BYTES, encode, recover
from dask_hpc_policies.resilience.redundancy_sets import (
    MOST_HOSTS,
    MOST_PARITIES,
    RedundancySet,
    parity_bytes,
    part_bounds,
)

#: Parts and parities: partner, XOR of 2 to 5 hosts, several parities of 3 to 6.
CODES = sorted(
    {(1, 1), *((n - 1, 1) for n in range(2, 6)), *((n - m, m) for n in range(3, 7) for m in (2, 3) if m < n)}
)
#: All that a set of hosts can have.
ALL = [(n - m, m) for n in range(2, MOST_HOSTS + 1) for m in range(1, min(n, MOST_PARITIES + 1))]


def random_parts(lengths: Sequence[int], seed: int = 16) -> list[bytes]:
    chance = np.random.default_rng(seed)
    return [chance.bytes(length) for length in lengths]


def losses(count: int, number: int) -> Iterator[set[int]]:
    return map(set, itertools.combinations(range(count), number))


def check(parts: list[bytes], parities: list[np.ndarray], lost: set[int]) -> None:
    """What is lost, parts first and parities after them, comes back byte for byte."""
    k, m = len(parts), len(parities)
    left = {i: part for i, part in enumerate(parts) if i not in lost}
    helpers = {p: parity for p, parity in enumerate(parities) if k + p not in lost}
    found = recover(left, helpers, [len(part) for part in parts], m)
    assert set(found) == lost & set(range(k))
    assert all(found[i].tobytes() == parts[i] for i in found)


@pytest.mark.parametrize(("k", "m"), CODES)
@pytest.mark.parametrize(
    "lengths",
    [[1000] * 6, [1001, 7, 64, 0, 999, 1002], [0, 0, 0, 1, 0, 0]],
    ids=["equal", "unequal", "empty"],
)
def test_every_promised_set_of_losses_comes_back_and_one_more_is_named(
    k: int, m: int, lengths: list[int]
) -> None:
    parts = random_parts(lengths[:k])
    parities = encode(parts, m)
    assert [len(parity) for parity in parities] == [parity_bytes(lengths[:k], m)] * m
    for number in range(m + 1):
        for lost in losses(k + m, number):
            check(parts, parities, lost)
    for lost in losses(k + m, m + 1):
        # what is empty needs nobody
        gone = [i for i in sorted(lost) if i < k and lengths[i]]
        if len(gone) > m - sum(i >= k for i in lost):
            with pytest.raises(
                ValueError, match=f"of {k} parts {', '.join(map(str, gone))} are missing, of {m}"
            ):
                check(parts, parities, lost)
        else:
            check(parts, parities, lost)


@given(st.data())
def test_any_code_of_any_lengths_comes_back_from_any_losses(data):
    k, m = data.draw(st.sampled_from(ALL))
    lengths = data.draw(st.lists(st.integers(0, 200), min_size=k, max_size=k))
    lost = data.draw(st.sets(st.integers(0, k + m - 1), max_size=m))
    parts = random_parts(lengths)
    check(parts, encode(parts, m), lost)


@pytest.mark.parametrize(("k", "m"), [(2, 2), (4, 2), (3, 3), (5, 3), (12, 4)])
def test_no_square_part_of_the_coefficients_is_singular(k: int, m: int) -> None:
    """The parts that are lost are those of any columns, the parities that are left those of any rows."""
    matrix = redundancy._coefficients(k, m)
    assert len(matrix) == m
    for size in range(1, min(k, m) + 1):
        for rows in itertools.combinations(matrix, size):
            for columns in itertools.combinations(range(k), size):
                part = [[row[i] for i in columns] for row in rows]
                # 0 has no inverse: it fails where the part, or a leading part of it, is singular
                redundancy._inverse(part)


def test_the_field_is_one() -> None:
    elements = range(16)
    times = redundancy._times
    for a, b, c in itertools.product(elements, repeat=3):
        assert times(a, times(b, c)) == times(times(a, b), c)
        assert times(a, b ^ c) == times(a, b) ^ times(a, c)
    assert all(sorted(times(a, b) for b in elements) == list(elements) for a in elements if a)
    assert [times(a, 1) for a in elements] == list(elements)


def test_a_copy_is_a_copy_and_a_single_parity_the_xor() -> None:
    (part,) = random_parts([1003])
    assert [each.tobytes() for each in encode([part], 2)] == [part, part]
    parts = random_parts([10, 10, 10])
    expected = bytes(a ^ b ^ c for a, b, c in zip(*parts, strict=True))
    assert encode(parts, 1)[0].tobytes() == expected


@pytest.mark.parametrize("m", [1, 2])
def test_a_short_part_is_as_if_zeros_followed(m: int) -> None:
    for length in (0, 41, BLOCK_BYTES + 3):
        long, short = random_parts([BLOCK_BYTES + 30, length])
        filled = short + bytes(len(long) - length)
        assert [each.tobytes() for each in encode([long, short], m)] == [
            each.tobytes() for each in encode([long, filled], m)
        ]


@pytest.mark.parametrize(("k", "m"), [(1, 1), (3, 1), (3, 2)])
def test_segments_are_coded_as_in_the_whole(k: int, m: int) -> None:
    lengths = [3 * BLOCK_BYTES + 77, 2 * BLOCK_BYTES, BLOCK_BYTES + 5][:k]
    parts = random_parts(lengths)
    whole = encode(parts, m)
    for start in range(0, max(lengths), 2 * BLOCK_BYTES):
        stop = start + 2 * BLOCK_BYTES
        segment = [memoryview(part)[start:stop] for part in parts]
        coded = encode(segment, m)
        assert [each.tobytes() for each in coded] == [each[start:stop].tobytes() for each in whole]
        left = {i: segment[i] for i in range(m, k)}
        back = recover(left, dict(enumerate(coded)), [len(each) for each in segment], m)
        assert [back[i].tobytes() for i in range(m)] == segment[:m]
    for lost in losses(k + m, m):
        check(parts, whole, lost)


def test_parities_go_where_the_caller_wants_them() -> None:
    parts = random_parts([50, 41])
    into = [bytearray(52), np.zeros(52, np.uint8)]
    encode(parts, 2, into)
    assert [bytes(each) for each in into] == [each.tobytes() for each in encode(parts, 2)]
    with pytest.raises(ValueError, match="go into 52, 50 bytes; allowed: 2 times 52"):
        encode(parts, 2, [bytearray(52), bytearray(50)])
    # arrays of any type and shape are bytes
    fields = [np.arange(6.0).reshape(2, 3), memoryview(b"abcdefgh")]
    assert encode(fields, 1)[0].tobytes() == encode([fields[0].tobytes(), b"abcdefgh"], 1)[0].tobytes()


def test_a_set_of_hosts_gets_the_data_of_lost_hosts_back_from_its_stripes() -> None:
    """What hosts hold, in the parts and stripes of the sets, is enough for any that may be lost."""
    group = RedundancySet(tuple("abcde"), 2)
    data = dict(zip(group.hosts, random_parts([301, 0, 7, 300, 1]), strict=True))

    def part(host: str, number: int) -> bytes:
        start, stop = part_bounds(len(data[host]), group.parts)[number]
        return data[host][start:stop]

    stripes = [
        (stripe, encode([part(p.host, p.number) for p in stripe.parts], 2)) for stripe in group.stripes()
    ]
    held = dict.fromkeys(group.hosts, 0)
    for stripe, parities in stripes:
        for holder, parity in zip(stripe.holders, parities, strict=True):
            held[holder] += len(parity)
    assert held == group.held_bytes({host: len(each) for host, each in data.items()})

    for lost in itertools.combinations(group.hosts, 2):
        back: dict[str, dict[int, bytes]] = {host: {} for host in lost}
        for stripe, parities in stripes:
            pieces = [part(p.host, p.number) for p in stripe.parts]
            found = recover(
                {i: pieces[i] for i, p in enumerate(stripe.parts) if p.host not in lost},
                {i: parities[i] for i, holder in enumerate(stripe.holders) if holder not in lost},
                [len(piece) for piece in pieces],
                2,
            )
            for i, piece in found.items():
                back[stripe.parts[i].host][stripe.parts[i].number] = piece.tobytes()
        assert {host: b"".join(back[host][i] for i in range(group.parts)) for host in lost} == {
            host: data[host] for host in lost
        }


@pytest.mark.parametrize(("k", "m"), [(0, 1), (1, 0), (2, -1), (10, 7), (2, 15)])
def test_numbers_that_no_code_has_are_refused(k: int, m: int) -> None:
    with pytest.raises(ValueError, match=f"no code has {k} parts and {m} parities; allowed: 1 or more"):
        encode([b"x"] * k, m)


def test_what_cannot_be_what_it_is_said_to_be_is_refused() -> None:
    parts = random_parts([40, 40])
    first, second = encode(parts, 2)
    for wrong, parities, said in (
        ({0: parts[0][:39]}, {0: first}, "part 0 has 39 bytes; it was written with 40"),
        ({2: parts[0]}, {0: first}, "no part 2; allowed: 0 to 1"),
        ({0: parts[0]}, {1: second[:36]}, "parity 1 has 36 bytes; it was written with 40"),
        ({0: parts[0]}, {2: second}, "no parity 2; allowed: 0 to 1"),
        ({}, {1: second}, "of 2 parts 0, 1 are missing, of 2 parities 0; at most 2 of all may be"),
    ):
        with pytest.raises(ValueError, match=said):
            recover(wrong, parities, [40, 40], 2)
