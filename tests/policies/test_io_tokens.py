"""How many tasks are to read and write at once is learned: the fewest that get nearly the best there is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.rules.io import tokens as module
from dask_hpc_policies.rules.io.tokens import ENOUGH, Tokens


def curve(knee, fall, scale=100.0):
    """Bandwidth that rises to `knee` tasks, and falls by a share for each beyond it."""
    return lambda n: scale * min(n, knee) / knee * (1 - fall) ** max(0, n - knee)


def learn(tokens, bandwidth, most, samples, noise=0.0, chance=None):
    """The numbers used for so many samples, and what is known then."""
    used = []
    for _ in range(samples):
        used.append(tokens.now)
        off = chance.uniform(1 - noise, 1 + noise) if chance else 1.0
        tokens = tokens.seen(tokens.now, bandwidth(tokens.now) * off, most)
        assert tokens.now >= 1
    return used, tokens


def settle(tokens, *args):
    """The numbers that are tried until one is found, and what is known then."""
    used = []
    while not tokens.settled:
        more, tokens = learn(tokens, args[0], args[1], 1, *args[2:])
        used += more
        assert len(used) < 200
    return used, tokens


def good(bandwidth, most, off=0.0):
    """Numbers whose bandwidth is within 5 % of the best, or nearly."""
    best = max(bandwidth(n) for n in range(1, most + 1))
    return [n for n in range(1, most + 1) if bandwidth(n) >= (ENOUGH - off) * best]


@given(
    st.integers(1, 64), st.sampled_from((0.0, 0.02, 0.1)), st.integers(1, 64), st.integers(0, 2),
    st.integers(0, 1 << 30),
)  # fmt: skip
def test_it_converges_on_a_curve_that_saturates(knee, fall, begin, noise, seed):
    most = 64
    bandwidth = curve(knee, fall)
    noise /= 100
    used, found = settle(Tokens(begin), bandwidth, most, noise, random.Random(seed))
    allowed = good(bandwidth, most, off=0.02 + 3 * noise)
    assert found.now in allowed
    # no more than are needed
    enough = min(good(bandwidth, most, off=-3 * noise) or [knee])
    assert found.now <= enough + 1
    assert len(set(used)) <= 2 + 4 * most.bit_length()


@given(st.integers(1, 32), st.integers(1, 32), st.integers(1, 4), st.booleans())
def test_it_finds_a_shift(before, after, factor, slower):
    most = 32
    scale = 100.0 / (2 * factor) if slower else 200.0 * factor
    _, found = settle(Tokens(1), curve(before, 0.05), most)
    shifted = curve(after, 0.05, scale)
    _, found = learn(found, shifted, most, 3 * module.AGAIN)
    _, found = settle(found, shifted, most)
    assert found.now in good(shifted, most, off=0.02)


def test_a_change_is_noticed_long_before_the_next_regular_trial():
    _, found = learn(Tokens(1), curve(4, 0.1), 16, 30)
    assert (found.settled, found.now) == (True, 4)
    used, _ = learn(found, curve(8, 0.0, 50.0), 16, 2 * module.RECENT)
    assert any(n != 4 for n in used)
    # what stays as it is within a fifth is no change
    used, _ = learn(found, lambda n: curve(4, 0.1)(n) * 0.9, 16, module.AGAIN - found.used - 1)
    assert set(used) == {4}


def test_one_sample_that_is_far_off_begins_no_new_search():
    _, found = learn(Tokens(1), curve(4, 0.1), 16, 30)
    found = Tokens(found.now, found.rates, settled=True)
    known = found.seen(4, 150.0, 16)
    assert known.settled, "half as much again, once"
    assert learn(known, curve(4, 0.1), 16, module.RECENT)[1].settled


def test_samples_of_another_number_and_of_nothing_teach_nothing():
    known = Tokens(2, {2: (10.0, 1)})
    assert known.seen(3, 5.0, 8) is known
    assert known.seen(2, 0.0, 8) is known
    with pytest.raises(ValueError, match="1 and more"):
        Tokens(0)


def test_never_more_are_tried_than_can_run():
    used, _ = learn(Tokens(3), lambda n: 10.0 * n, 5, 20)
    assert max(used) == 5


@given(st.integers(0, 6), st.sampled_from((0.02, 0.1, 0.3)))
def test_where_one_is_the_best_those_below_are_tried_before_any_between(power, fall):
    most = 1 << power
    used, found = settle(Tokens(most), curve(1, fall), most)
    assert list(dict.fromkeys(used)) == [1 << way for way in range(power, -1, -1)]
    assert found.now == min(good(curve(1, fall), most))


def test_it_looks_no_closer_at_large_numbers_than_pays():
    used, found = settle(Tokens(1), curve(700, 0.02), 2048)
    # 700 is the best: in steps of a thirtieth of it
    assert sorted(tasks for tasks in set(used) if 680 < tasks < 730) == [688, 704, 720]
    # it is not tried, and what nearly the best of those gets is enough
    assert found.now == 654
