"""The pool policy: growing waits for nothing, shrinking for the hold; what is pending or young stays."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.pool import PoolDecision, PoolState, PoolView, decide
from dask_hpc_policies.ranges import HOLD

HOLD_S = 60.0


@dataclass
class Pool:
    """A pool that does what the policy says; nodes come `startup_s` after they were asked for."""

    startup_s: float = 0.0
    hold_s: float | None = HOLD_S
    minimum: int = 0
    maximum: int | None = None
    now_s: float = 0.0
    state: PoolState = field(default_factory=PoolState)
    asked_s: dict[str, float] = field(default_factory=dict)
    came_s: dict[str, float] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    made: int = 0

    @property
    def nodes(self) -> int:
        return len(self.asked_s) + len(self.came_s)

    def view(self, demand: int) -> PoolView:
        return PoolView(
            now_s=self.now_s,
            demand_nodes=demand,
            there=frozenset(self.came_s),
            pending=frozenset(self.asked_s),
            leaving=frozenset(self.leaving),
            minimum_nodes=self.minimum,
            maximum_nodes=self.maximum,
        )

    def look(self, demand: int, after_s: float = 1.0) -> PoolDecision:
        """Let time pass, ask the policy, carry out what it says."""
        self.now_s += after_s
        for name, asked_s in list(self.asked_s.items()):
            if self.now_s - asked_s >= self.startup_s:
                del self.asked_s[name]
                self.came_s[name] = self.now_s
        decision, self.state = decide(self.view(demand), self.state, {"hold_s": self.hold_s})
        while self.nodes < decision.nodes:
            self.made += 1
            self.asked_s[f"n{self.made}"] = self.now_s
        for name in [*self.asked_s, *(set(self.came_s) - decision.stay)]:
            if self.nodes > decision.nodes:
                self.asked_s.pop(name, None)
                self.came_s.pop(name, None)
        return decision


pools = st.builds(
    Pool,
    startup_s=st.sampled_from([0.0, 3.0, 200.0]),
    hold_s=st.sampled_from([0.0, 5.0, HOLD_S]),
    minimum=st.integers(0, 3),
    maximum=st.none() | st.integers(3, 12),
)
looks = st.lists(
    st.tuples(st.integers(0, 20), st.floats(0.01, 4.0) | st.floats(0.01, 90.0)), min_size=1, max_size=40
)


@given(pools, looks)
def test_the_size_is_never_out_of_bounds(pool: Pool, looks: list[tuple[int, float]]) -> None:
    for demand, after_s in looks:
        nodes = pool.look(demand, after_s).nodes
        assert pool.minimum <= nodes
        assert pool.maximum is None or nodes <= pool.maximum


@given(pools, looks)
def test_growth_is_never_delayed_and_never_more_than_asked(
    pool: Pool, looks: list[tuple[int, float]]
) -> None:
    for demand, after_s in looks:
        before = pool.nodes
        decision = pool.look(demand, after_s)
        wanted = pool.view(demand).bounded(demand)
        assert decision.nodes >= wanted
        if decision.nodes > before:
            assert decision.nodes == wanted
            assert decision.reason.code is ReasonCode.DEMAND


@given(pools, looks)
def test_nothing_is_given_up_that_was_asked_for_within_the_hold(
    pool: Pool, looks: list[tuple[int, float]]
) -> None:
    asked: list[tuple[float, int]] = []
    for demand, after_s in looks:
        before = pool.nodes
        decision = pool.look(demand, after_s)
        asked.append((pool.now_s, demand))
        if decision.nodes < before:
            recent = [d for t_s, d in asked if pool.now_s - t_s < pool.hold_s]
            assert decision.nodes >= pool.view(0).bounded(max(recent, default=0))
            assert decision.reason.code is ReasonCode.NO_DEMAND
            assert str(before) in decision.reason.text


@given(pools, looks)
def test_no_shrink_follows_growth_within_the_hold(pool: Pool, looks: list[tuple[int, float]]) -> None:
    grown_s = -1e9
    for demand, after_s in looks:
        before = pool.nodes
        nodes = pool.look(demand, after_s).nodes
        if nodes > before:
            grown_s = pool.now_s
        elif nodes < before:
            assert pool.now_s - grown_s >= pool.hold_s


@given(pools, looks)
def test_a_node_stays_as_long_as_nodes_have_taken_to_come(pool: Pool, looks: list[tuple[int, float]]) -> None:
    there: dict[str, float] = {}
    for demand, after_s in looks:
        pool.look(demand, after_s)
        least_s = max(pool.hold_s, pool.state.startup_s)
        for name in set(there) - set(pool.came_s):
            assert pool.now_s - there[name] >= least_s
        there = {name: there.get(name, pool.now_s) for name in pool.came_s}


@given(pools, looks)
def test_pending_nodes_are_immune_for_the_hold(pool: Pool, looks: list[tuple[int, float]]) -> None:
    for demand, after_s in looks:
        before = dict(pool.asked_s)
        pool.look(demand, after_s)
        for name in set(before) - set(pool.asked_s) - set(pool.came_s):
            assert pool.now_s - before[name] >= pool.hold_s


@given(pools, looks)
def test_without_demand_it_ends_at_its_minimum(pool: Pool, looks: list[tuple[int, float]]) -> None:
    for demand, after_s in looks:
        pool.look(demand, after_s)
    # the second time for nodes that were still to come the first time
    for _ in range(2):
        pool.look(0, 0.1)
        pool.look(0, max(pool.hold_s, pool.startup_s, pool.state.startup_s) + 90.0)
    assert pool.nodes == pool.minimum


@given(pools, looks, st.integers(0, 20))
def test_under_constant_demand_it_settles(pool: Pool, looks: list[tuple[int, float]], demand: int) -> None:
    for other, after_s in looks:
        pool.look(other, after_s)
    for _ in range(2):
        pool.look(demand, 0.1)
        pool.look(demand, max(pool.hold_s, pool.startup_s, pool.state.startup_s) + 90.0)
    settled = set(pool.asked_s) | set(pool.came_s)
    assert len(settled) == pool.view(demand).bounded(demand)
    for _ in range(20):
        pool.look(demand, 7.0)
        assert set(pool.asked_s) | set(pool.came_s) == settled


@given(pools, looks)
def test_it_is_pure_and_its_memory_goes_through_json(pool: Pool, looks: list[tuple[int, float]]) -> None:
    for demand, after_s in looks:
        pool.look(demand, after_s)
        state = decode(PoolState, encode(pool.state))
        assert state == pool.state
        params = {"hold_s": pool.hold_s}
        assert decide(pool.view(demand), state, params) == decide(pool.view(demand), state, params)


def test_demand_that_comes_back_within_the_hold_changes_nothing() -> None:
    pool = Pool()
    pool.look(6)
    names = set(pool.asked_s)
    for demand in (0, 0, 6, 1, 5, 6) * 50:
        pool.look(demand, 9.0)
    assert set(pool.came_s) == names


def test_a_node_that_was_hard_to_get_is_kept_longer() -> None:
    pool = Pool(startup_s=600.0)
    for _ in range(601):
        pool.look(4)
    # from the look that asked for it on, one before it was seen pending
    assert pool.state.startup_s == pytest.approx(600.0)
    for _ in range(599):
        decision = pool.look(0)
    assert decision.nodes == 4
    assert "kept for 600 s" in decision.reason.text
    assert pool.look(0).nodes == 0


def test_a_node_that_comes_late_stays_for_a_hold_although_nobody_has_asked_since() -> None:
    pool = Pool(startup_s=50.0)
    pool.look(1)
    for _ in range(49):
        assert pool.look(0).nodes == 1
    assert pool.look(0, 2.0).nodes == len(pool.came_s) == 1
    for _ in range(59):
        assert pool.look(0).nodes == 1
    assert pool.look(0).nodes == 0


def test_pending_nodes_go_before_nodes_that_are_there() -> None:
    pool = Pool(startup_s=1.0)
    pool.look(2)
    pool.look(2)
    pool.startup_s = 1000.0
    pool.look(5)
    assert (len(pool.came_s), len(pool.asked_s)) == (2, 3)
    for _ in range(59):
        pool.look(2)
    assert (len(pool.came_s), len(pool.asked_s)) == (2, 3)
    decision = pool.look(2)
    assert (len(pool.came_s), len(pool.asked_s)) == (2, 0)
    assert "3 nodes that had not come are not waited for any more" in decision.reason.text


def test_leaving_nodes_are_replaced_while_they_leave_and_stay_known() -> None:
    pool = Pool()
    pool.look(3)
    pool.look(3)
    expiring = sorted(pool.came_s)[:2]
    for name in expiring:
        del pool.came_s[name]
    pool.leaving = set(expiring)
    decision = pool.look(3)
    assert (decision.nodes, pool.nodes) == (3, 3)
    # one that could not leave after all is as old as it was
    pool.leaving.remove(expiring[0])
    pool.came_s[expiring[0]] = pool.now_s
    assert pool.look(3, HOLD_S - 1.0).stay.isdisjoint(expiring)


def test_a_lower_maximum_takes_effect_at_once_on_young_nodes_too() -> None:
    pool = Pool()
    pool.look(5)
    pool.look(5)
    pool.maximum = 2
    decision = pool.look(5)
    assert decision.nodes == 2
    assert decision.stay == frozenset()
    assert decision.reason.code is ReasonCode.CLAMPED


def test_what_is_there_at_the_first_look_is_kept_for_the_hold() -> None:
    pool = Pool()
    # somebody has started the one and asked for the other
    pool.came_s, pool.asked_s, pool.startup_s = {"a": 0.0}, {"b": 0.0}, 1e9
    assert pool.look(0).nodes == 2
    assert pool.look(0, HOLD_S - 0.5).nodes == 2
    assert pool.look(0, 1.0).nodes == 0


def test_without_a_hold_it_follows_demand() -> None:
    pool = Pool(hold_s=0.0)
    # nodes that have taken one look to come stay for one
    assert [pool.look(n).nodes for n in (3, 0, 0, 5, 2, 2, 0)] == [3, 3, 0, 5, 5, 2, 0]


def auto(startup_s: float) -> Pool:
    """A pool that has taken `startup_s` to get its four nodes and has just been asked for none."""
    pool = Pool(startup_s=startup_s, hold_s=None)
    while len(pool.came_s) < 4:
        pool.look(4)
    return pool


@pytest.mark.parametrize(("startup_s", "hold_s"), [(1.0, 2), (4.0, 8), (50.0, 60), (600.0, 600)])
def test_unless_it_is_set_the_hold_follows_what_nodes_take_to_come(startup_s: float, hold_s: int) -> None:
    pool = auto(startup_s)
    for _ in range(hold_s - 1):
        decision = pool.look(0)
    assert decision.nodes == 4
    assert f"kept for {hold_s} s" in decision.reason.text
    assert f"hpc.pool.hold: auto, and they have taken {startup_s:g} s to come" in decision.reason.text
    assert pool.look(0).nodes == 0


def test_a_hold_that_is_set_holds_whatever_nodes_take_to_come() -> None:
    pool = auto(1.0)
    pool.hold_s = 30.0
    for _ in range(29):
        assert pool.look(0).nodes == 4
    assert pool.look(0).nodes == 0


def test_nodes_that_somebody_else_has_started_tell_nothing_about_what_they_cost() -> None:
    pool = Pool(hold_s=None)
    pool.look(0)
    pool.came_s = {"a": 1.0}
    decision = pool.look(0)
    assert "kept for 60 s" in decision.reason.text
    assert "none has been seen to come" in decision.reason.text


def test_of_many_nodes_that_come_at_once_the_same_waits_are_remembered_each_time() -> None:
    asked_s = {f"n{i:02}": float(i) for i in range(25)}
    view = PoolView(now_s=100.0, demand_nodes=25, there=frozenset(asked_s))
    _, state = decide(view, PoolState(asked_s=asked_s), {"hold_s": None})
    assert state.waits_s == tuple(100.0 - i for i in range(5, 25))


def test_who_does_not_tell_what_is_pending_is_not_taken_to_get_nodes_at_once() -> None:
    state = PoolState()
    for now_s, there in ((0.0, ""), (600.0, ""), (601.0, "a")):
        view = PoolView(now_s=now_s, demand_nodes=1, there=frozenset(there), pending=None)
        _, state = decide(view, state, {"hold_s": None})
    assert state.waits_s == ()


def test_the_parameter_says_what_it_takes() -> None:
    assert HOLD.validate("2 min") == 120.0
    with pytest.raises(ValueError, match=r"hold_s.*-1.*from 0 s to 1 d"):
        HOLD.validate(-1)


def test_the_reason_counts_workers_where_nodes_have_several() -> None:
    view = PoolView(now_s=0.0, demand_nodes=4, there=frozenset("ab"), unit="worker")
    decision, _ = decide(view, PoolState(), {"hold_s": 60.0})
    assert decision.reason.text == "4 workers asked for, there are 2"
