"""What failed when workers are gone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.rules.losses import SEVERITIES, Place, severity

#: Two racks of two machines with two workers each.
SYSTEM = [Place(node=f"n{number}", host=f"h{number // 2}", domain=f"d{number // 4}") for number in range(8)]


def severity_of(*numbers: int) -> str:
    lost = [SYSTEM[number] for number in numbers]
    return severity(lost, [place for number, place in enumerate(SYSTEM) if number not in numbers])


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((3,), "process"),
        ((2, 3), "host"),
        ((0, 1, 2, 3), "domain"),
        ((0, 2), "several"),
        ((0, 1, 2), "several"),
        ((3, 4), "several"),
        ((4, 5, 6, 7), "domain"),
        (tuple(range(8)), "several"),
    ],
)
def test_a_loss_is_of_the_least_class_that_explains_it(numbers: tuple[int, ...], expected: str) -> None:
    assert severity_of(*numbers) == expected


@given(st.sets(st.integers(0, 7), min_size=1))
def test_hosts_and_domains_are_lost_whole_or_not_at_all(numbers: set[int]) -> None:
    found = severity_of(*numbers)
    assert found in SEVERITIES
    assert (found == "process") == (len(numbers) == 1)
    if found in ("host", "domain"):
        labels = Counter(getattr(place, found) for place in SYSTEM)
        lost = Counter(getattr(SYSTEM[number], found) for number in numbers)
        assert all(labels[label] == count for label, count in lost.items())


def test_what_nobody_knows_is_not_taken_for_one() -> None:
    unknown = [Place(node="a"), Place(node="b")]
    assert severity(unknown, []) == "several"
    assert severity([Place(node="a", host="h", domain=None)] * 2, [Place(node="c", host="h")]) == "several"
    with pytest.raises(ValueError, match="empty"):
        severity([], unknown)
