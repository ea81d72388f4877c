"""Caps: together no more than is allowed, nobody below what it takes, nobody capped for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.power.capping import CappedHost, caps

HOSTS = st.lists(
    st.builds(
        lambda least, more, draw, cap: (least, least + more, draw, cap),
        st.floats(10, 100), st.floats(10, 400), st.floats(5, 500), st.none() | st.floats(10, 500),
    ),
    max_size=6,
)  # fmt: skip


@given(HOSTS, st.floats(0, 500), st.floats(0, 3_000))
def test_caps_are_within_limits_and_together_below_the_bound_where_that_can_be(rows, beside_w, upper_w):
    hosts = [
        CappedHost(f"n{i}", min(draw, most), least, most, cap)
        for i, (least, most, draw, cap) in enumerate(rows)
    ]
    draw_w = beside_w + sum(host.draw_w for host in hosts)
    found = caps(upper_w, draw_w, hosts)
    if not found:
        # whoever is not pressed draws what it draws, whoever is could draw all that it can
        would_w = sum(host.most_w if host.pressed else host.draw_w for host in hosts)
        assert not hosts or beside_w + would_w <= upper_w + 1e-6
        return
    for host in hosts:
        assert host.least_w <= found[host.name] <= host.most_w
    after_w = beside_w + sum(host.at(found[host.name]) for host in hosts)
    least_w = beside_w + sum(host.at(host.least_w) for host in hosts)
    assert after_w <= max(upper_w, least_w) + 1e-6
    # and nobody has less than it could: what may be drawn is drawn
    assert after_w == pytest.approx(max(upper_w, least_w), abs=1e-6) or least_w > upper_w


def test_idle_hosts_leave_their_watts_to_busy_ones_and_a_cap_stays_while_it_is_needed():
    busy = [CappedHost(f"b{i}", 250.0, 80.0, 300.0) for i in range(4)]
    idle = [CappedHost(f"i{i}", 70.0, 80.0, 300.0) for i in range(4)]
    found = caps(1_200.0, 1_280.0, [*busy, *idle])
    assert set(found.values()) == {230.0}
    held = [CappedHost(f"b{i}", 230.0, 80.0, 300.0, 230.0) for i in range(4)]
    rest = [CappedHost(f"i{i}", 70.0, 80.0, 300.0, 230.0) for i in range(4)]
    # they would draw more: the caps stay as they are
    assert caps(1_200.0, 1_200.0, [*held, *rest]) == found
    # one job ends, the bound rises
    ended = [*held[:1], *(CappedHost(f"b{i}", 70.0, 80.0, 300.0, 230.0) for i in range(1, 4)), *rest]
    assert caps(1_200.0, 720.0, ended) == {}
    assert caps(1_480.0, 1_200.0, [*held, *rest]) == {}
    assert set(caps(500.0, 1_280.0, [*busy, *idle]).values()) == {80.0}


def test_what_caps_are_not_for_is_drawn_beside_them():
    # two hosts whose boards draw 60 W each beside 200 W that can be capped
    hosts = [CappedHost(f"b{i}", 200.0, 80.0, 300.0) for i in range(2)]
    assert caps(400.0, 520.0, hosts) == {"b0": 140.0, "b1": 140.0}
    held = [CappedHost(f"b{i}", 140.0, 80.0, 300.0, 140.0) for i in range(2)]
    assert caps(400.0, 400.0, held) == caps(400.0, 520.0, hosts)
