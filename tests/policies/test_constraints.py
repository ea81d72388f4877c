"""Node-count constraints against their definitions, by brute force and by published examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.jobs import constraints

LIMIT = 2000
LEGAL = {
    "any": set(range(1, LIMIT)),
    "even": set(range(2, LIMIT, 2)),
    "odd": set(range(1, LIMIT, 2)),
    "pof2": {2**k for k in range(11) if 2**k < LIMIT},
    "square": {k * k for k in range(1, 45) if k * k < LIMIT},
    "cube": {k**3 for k in range(1, 13) if k**3 < LIMIT},
}
NAMES = st.sampled_from(constraints.CONSTRAINTS)


@given(NAMES, st.integers(-3, 1000), st.integers(-3, 1000))
def test_every_function_agrees_with_the_definition(name: str, n: int, bound: int) -> None:
    legal = LEGAL[name]
    below = [s for s in legal if bound <= s <= n]
    assert constraints.largest_at_most(name, n, bound) == max(below, default=None)
    assert constraints.smallest_at_least(name, n, bound) == min(
        (s for s in legal if n <= s <= bound), default=None
    )
    assert constraints.next_higher(name, n, bound) == min((s for s in legal if n < s <= bound), default=None)
    assert constraints.next_lower(name, n, bound) == max((s for s in legal if bound <= s < n), default=None)
    assert constraints.is_legal(name, n) == (n in legal)
    assert constraints.legal_sizes(name, n, bound) == tuple(sorted(s for s in legal if n <= s <= bound))


@given(st.integers(1, 10**6))
def test_large_cubes_and_squares_are_exact(root: int) -> None:
    for name, power in (("square", 2), ("cube", 3)):
        n = root**power
        assert constraints.largest_at_most(name, n, 1) == n
        assert constraints.smallest_at_least(name, n, n) == n
        assert constraints.largest_at_most(name, n - 1, 1) == ((root - 1) ** power or None)


def test_published_examples() -> None:
    assert constraints.legal_sizes("square", 16, 36) == (16, 25, 36)
    assert constraints.largest_at_most("pof2", 2 + 10, 2) == 8
    assert constraints.next_lower("pof2", 4, 1) == 2
    assert constraints.next_higher("even", 2, 8) == 4
    assert constraints.next_lower("odd", 9, 1) == 7


def test_unknown_constraint_names_value_and_choices() -> None:
    with pytest.raises(ValueError, match=r"'prime'.*any, even, odd, pof2, square, cube"):
        constraints.largest_at_most("prime", 4, 1)
