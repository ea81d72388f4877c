"""Which hosts protect which: any hosts in any failure domains."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.resilience.redundancy_sets import (
    MOST_HOSTS,
    MOST_PARITIES,
    RedundancySet,
    Scheme,
    Stripe,
    form_sets,
    parity_bytes,
    part_bounds,
)

PROTECTING = st.one_of(
    st.just(Scheme("partner")),
    st.builds(Scheme, st.just("xor"), st.integers(2, MOST_HOSTS)),
    st.integers(2, MOST_HOSTS).flatmap(
        lambda n: st.builds(
            Scheme, st.just("reed-solomon"), st.just(n), st.integers(1, min(MOST_PARITIES, n - 1))
        )
    ),
)
#: A failure domain for each of 1 to 200 hosts: from all in one to each in its own.
DOMAINS = st.integers(1, 200).flatmap(
    lambda kinds: st.lists(st.integers(0, kinds - 1), min_size=1, max_size=200).map(
        lambda drawn: {f"h{i:03}": f"rack{domain}" for i, domain in enumerate(drawn)}
    )
)
#: Every set of up to eight hosts.
SETS = [
    RedundancySet(tuple("abcdefgh"[:n]), m) for n in range(2, 9) for m in range(1, min(n, MOST_PARITIES + 1))
]


def most_protected(domains: dict[str, str], parity: int) -> int:
    """How many hosts can be in sets at most, by trying every number of sets."""
    of = Counter(domains.values()).values()
    found = 0
    for count in range(1, len(domains) + 1):
        placed = sum(min(count, each) for each in of)
        if placed >= count * (parity + 1):
            found = max(found, placed)
    return found


@given(DOMAINS, PROTECTING, st.randoms(use_true_random=False))
def test_sets_are_of_different_domains_of_like_size_and_hold_as_many_hosts_as_can_be(domains, scheme, chance):
    found = form_sets(domains, scheme)

    placed = [host for each in found.sets for host in each.hosts]
    assert sorted([*placed, *found.unprotected]) == sorted(domains), "each host once"
    for each in found.sets:
        assert len({domains[host] for host in each.hosts}) == len(each.hosts), "one of a domain"
        assert each.parity == scheme.parities
        assert len(each.hosts) <= MOST_HOSTS
    assert len(placed) == most_protected(domains, scheme.parities)
    sizes = [len(each.hosts) for each in found.sets]
    if sizes:
        assert max(sizes) - min(sizes) <= 1
        # a set of the scheme's size and one that is too small to be one, at most
        assert max(sizes) <= max(1.5 * scheme.hosts, scheme.hosts + scheme.parities)
    if (
        len(set(domains.values()))
        == len(domains)
        >= 1.5 * scheme.hosts
        >= 1.5 * 4 / 3 * (scheme.parities + 1)
    ):
        assert min(sizes) >= 3 * scheme.hosts // 4, "domains allow it"

    if found.unprotected:
        assert found.reason.code is ReasonCode.NOT_ENOUGH_NODES
        assert found.losses_survived == 0
        assert "hpc.node.domain" in found.reason.text or "add hosts of other domains" in found.reason.text
    else:
        assert found.losses_survived == scheme.parities
        assert (found.reason is not None) == (min(sizes) < scheme.hosts)

    shuffled = list(domains.items())
    chance.shuffle(shuffled)
    assert form_sets(dict(shuffled), scheme) == found


def test_single_protects_nothing_outside_a_host_and_no_hosts_need_nothing() -> None:
    found = form_sets({"b": "r1", "a": "r2"}, Scheme("single"))
    assert (found.sets, found.unprotected, found.losses_survived) == ((), ("a", "b"), 0)
    assert "partner, xor, reed-solomon" in found.reason.text
    assert found.storage_ratio({"a": 5, "b": 5}) == 0
    for name in ("single", "partner"):
        none = form_sets({}, Scheme(name))
        assert (none.sets, none.unprotected, none.reason) == ((), (), None)


def test_a_host_without_a_partner_makes_a_set_of_three_with_one_parity() -> None:
    found = form_sets({name: name for name in "abcde"}, Scheme("partner"))
    assert sorted(len(each.hosts) for each in found.sets) == [2, 3]
    assert found.reason is None
    assert found.losses_survived == 1


def test_a_reason_says_what_is_short_and_what_to_do() -> None:
    reed_solomon = Scheme("reed-solomon", 8, 2)
    alone = form_sets({"a": "a"}, Scheme("partner"))
    assert alone.unprotected == ("a",)
    assert alone.reason.text == (
        "scheme partner with parity 1 needs 2 failure domains, and the 1 host is in 1; add hosts, or say "
        "which fail together with hpc.node.domain"
    )
    two = form_sets({"a": "r1", "b": "r1", "c": "r2"}, reed_solomon)
    assert two.sets == ()
    assert two.reason.text == (
        "scheme reed-solomon with parity 2 needs 3 failure domains, and the 3 hosts are in 2; add hosts, "
        "or say which fail together with hpc.node.domain, or ask for a lower parity"
    )
    lopsided = form_sets({**{f"a{i}": "r1" for i in range(5)}, "b": "r2", "c": "r3"}, Scheme("partner"))
    assert lopsided.unprotected == ("a2", "a3", "a4")
    # of what is protected
    assert lopsided.storage_ratio(dict.fromkeys([f"a{i}" for i in range(5)] + ["b", "c"], 100)) == 1
    assert lopsided.reason.text == (
        "3 of 7 hosts are in no set: too many are in the failure domain r1 (5), and each of the 2 sets takes "
        "one of a domain; add hosts of other domains"
    )
    small = form_sets({f"h{i}": f"r{i % 3}" for i in range(12)}, reed_solomon)
    assert small.reason.code is ReasonCode.CLAMPED
    assert small.reason.text == (
        "sets have 3 hosts, not 8, with 12 hosts in 3 failure domains; their parities take up to 2.00 bytes "
        "a byte, not 0.33"
    )


@pytest.mark.parametrize("each", SETS, ids=lambda each: f"{len(each.hosts)}-{each.parity}")
def test_every_host_gives_each_part_once_and_holds_no_parity_of_it(each: RedundancySet) -> None:
    stripes = each.stripes()
    assert len(stripes) == len(each.hosts)
    for stripe in stripes:
        members = [*(part.host for part in stripe.parts), *stripe.holders]
        assert sorted(members) == sorted(each.hosts), "each host is one or the other"
        assert len(stripe.holders) == each.parity
    given_parts = Counter((part.host, part.number) for stripe in stripes for part in stripe.parts)
    assert given_parts == Counter(itertools.product(each.hosts, range(each.parts)))
    held = Counter(holder for stripe in stripes for holder in stripe.holders)
    assert held == Counter(dict.fromkeys(each.hosts, each.parity)), "all hold the same"


@pytest.mark.parametrize("each", SETS, ids=lambda each: f"{len(each.hosts)}-{each.parity}")
def test_every_promised_set_of_losses_leaves_each_stripe_enough_and_one_more_does_not(
    each: RedundancySet,
) -> None:
    def enough(stripe: Stripe, lost: set[str]) -> bool:
        left = [host for host in stripe.holders if host not in lost]
        return sum(part.host in lost for part in stripe.parts) <= len(left)

    for number in range(len(each.hosts) + 1):
        for lost in map(set, itertools.combinations(each.hosts, number)):
            assert all(enough(stripe, lost) for stripe in each.stripes()) == (number <= each.parity)


@given(st.integers(0, 10**6), st.integers(1, 15))
def test_parts_follow_each_other_and_are_as_long_as_the_first_but_for_the_last(nbytes, parts):
    bounds = part_bounds(nbytes, parts)
    assert len(bounds) == parts
    assert bounds[0][0] == 0
    assert bounds[-1][1] == nbytes
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))
    lengths = [stop - start for start, stop in bounds]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == -(-nbytes // parts)


def test_a_parity_is_as_long_as_the_longest_part() -> None:
    assert parity_bytes([], 1) == parity_bytes([0, 0], 2) == 0
    assert parity_bytes([5, 17, 3], 1) == parity_bytes([17], 3) == 17
    assert parity_bytes([5, 17, 3], 2) == 20, "four packets"
    assert parity_bytes([5, 16], 2) == 16


@pytest.mark.parametrize(
    ("scheme", "ratio"),
    [
        (Scheme("partner"), 1),
        (Scheme("xor", 5), 1 / 4),
        (Scheme("reed-solomon", 6, 2), 1 / 2),
        (Scheme("reed-solomon", 6, 3), 1),
    ],
)
def test_storage_is_what_the_scheme_costs_and_what_unequal_hosts_add(scheme: Scheme, ratio: float) -> None:
    found = form_sets({f"h{i}": f"h{i}" for i in range(scheme.hosts)}, scheme)
    (group,) = found.sets
    assert group.storage_ratio == ratio
    equal = dict.fromkeys(group.hosts, 12000)
    assert found.storage_ratio(equal) == ratio
    assert set(group.held_bytes(equal).values()) == {12000 * ratio}
    # one that has all: its parts are alone in their stripes, whose parities are as long
    lone = {group.hosts[0]: 12000}
    assert sum(group.held_bytes(lone).values()) == group.parts * scheme.parities * 12000 / group.parts
    assert found.storage_ratio(lone) == scheme.parities
    assert found.storage_ratio({}) == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "raid"}, "'raid' is not known; allowed: single, partner, xor, reed-solomon"),
        ({"name": "xor", "set_size": 1}, "set_size is 1; allowed: a whole number from 2 to 16"),
        ({"name": "xor", "set_size": 17}, "set_size is 17"),
        ({"name": "xor", "set_size": 4.0}, "set_size is 4.0"),
        (
            {"name": "reed-solomon", "set_size": 4, "parity": 4},
            "parity is 4; allowed: a whole number from 1 to 3",
        ),
        ({"name": "reed-solomon", "set_size": 16, "parity": 8}, "parity is 8; allowed: .* from 1 to 7"),
        ({"name": "reed-solomon", "parity": True}, "parity is True"),
    ],
)
def test_a_scheme_that_cannot_be_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Scheme(**fields)
    # what does not belong to a scheme does not count
    assert Scheme("partner", set_size=99, parity=99).parities == 1


def test_a_set_that_cannot_be_is_refused() -> None:
    for hosts, parity in ((("a",), 1), (("a", "b"), 2), (("a", "b"), 0), (("a", "a", "b"), 1)):
        with pytest.raises(ValueError, match="allowed"):
            RedundancySet(hosts, parity)
