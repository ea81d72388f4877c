"""The comparison of two runs finds every difference that counts, and none where the order is open."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.parity.compare import Change, close_events, compare, from_trace, makespan_s, shifted
from dask_hpc.trace.records import JobEvent, NodeEvent

#: Two jobs on four nodes: b arrives and gets half of a's nodes, which a has back when b is done.
RUN = [
    Change(0.0, "submit", "a", 0, 0),
    Change(0.0, "start", "a", 0, 4),
    Change(3.0, "submit", "b", 0, 0),
    Change(3.0, "shrink", "a", 4, 2),
    Change(3.0, "start", "b", 0, 2),
    Change(6.0, "finish", "b", 2, 0),
    Change(6.0, "expand", "a", 2, 4),
    Change(9.0, "finish", "a", 4, 0),
]


def late(changes: list[Change], by_s: float = 0.2) -> list[Change]:
    """The same changes, each later than the one before by a little more."""
    return [
        Change(c.t_s + by_s * place, c.action, c.job, c.nodes_from, c.nodes_to)
        for place, c in enumerate(changes)
    ]


def moved(changes: list[Change], place: int, to: int) -> list[Change]:
    rest = [*changes[:place], *changes[place + 1 :]]
    return [*rest[:to], changes[place], *rest[to:]]


def test_a_run_that_is_only_slower_is_the_same() -> None:
    found = compare(RUN, late(RUN), gap_s=1.0)
    assert found.same
    assert found.latest_s == pytest.approx(1.4)
    assert found.earliest_s == 0.0
    # 2, 3, 2 and 1 changes follow the four events
    assert (found.ordered_pairs, found.pairs) == (2 * 6 + 3 * 3 + 2 * 1, 28)


def test_a_swap_of_changes_that_follow_one_event_is_the_same() -> None:
    assert compare(RUN, late(moved(RUN, 3, 4)), gap_s=1.0).same


def test_a_swap_of_changes_after_far_events_is_found() -> None:
    # b starts only after a has its nodes back
    found = compare(RUN, late(moved(RUN, 4, 6)), gap_s=1.0)
    assert not found.same
    assert [tuple(map(str, swap.simulated)) for swap in found.swaps] == [
        ("start b 0 -> 2", "finish b 2 -> 0"),
        ("start b 0 -> 2", "expand a 2 -> 4"),
    ]
    assert not found.missing
    assert not found.extra


@pytest.mark.parametrize(("gap_s", "same"), [(2.9, False), (3.0, False), (3.1, True)])
def test_the_order_counts_from_the_gap_on(gap_s: float, same: bool) -> None:
    assert compare(RUN, late(moved(RUN, 4, 6)), gap_s).same is same


def test_a_missing_action_is_found() -> None:
    found = compare(RUN, late([*RUN[:6], RUN[7]]), gap_s=1.0)
    assert [str(change) for change in found.missing] == ["expand a 2 -> 4"]
    assert not found.extra
    assert not found.same


def test_an_action_too_many_is_found() -> None:
    live = [*RUN[:5], Change(4.0, "shrink", "a", 2, 1), Change(5.0, "expand", "a", 1, 2), *RUN[5:]]
    found = compare(RUN, live, gap_s=1.0)
    assert [str(change) for change in found.extra] == ["shrink a 2 -> 1", "expand a 1 -> 2"]
    assert not found.same


@pytest.mark.parametrize(
    "other",
    [
        Change(3.0, "shrink", "a", 4, 3),
        Change(3.0, "shrink", "a", 3, 2),
        Change(3.0, "shrink", "b", 4, 2),
        Change(3.0, "expand", "a", 4, 2),
    ],
)
def test_another_size_job_or_action_is_found(other: Change) -> None:
    found = compare(RUN, [*RUN[:3], other, *RUN[4:]], gap_s=100.0)
    assert found.missing == (RUN[3],)
    assert found.extra == (other,)


def test_an_action_that_is_done_twice_must_be_done_twice() -> None:
    again = [*RUN[:7], Change(7.0, "shrink", "a", 4, 2), Change(8.0, "expand", "a", 2, 4), RUN[7]]
    assert compare(again, late(again), gap_s=1.0).same
    assert [c.what for c in compare(again, RUN, gap_s=1.0).missing] == [
        ("shrink", "a", 4, 2),
        ("expand", "a", 2, 4),
    ]


def test_a_simulated_run_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="not in order of time"):
        compare(RUN[::-1], RUN, gap_s=1.0)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Change], list[Change]]:
    """Distinct changes on whole seconds, and the same in any order."""
    times = sorted(draw(st.lists(st.integers(0, 9), min_size=1, max_size=8)))
    kinds = draw(st.lists(st.sampled_from(["submit", "start"]), min_size=len(times), max_size=len(times)))
    run = [Change(float(t), kind, str(n), 0, 1) for n, (t, kind) in enumerate(zip(times, kinds, strict=True))]
    return run, draw(st.permutations(run))


@given(runs(), st.integers(0, 6))
def test_swaps_are_those_of_all_pairs(both: tuple[list[Change], list[Change]], gap: int) -> None:
    run, live = both
    found = compare(run, live, float(gap))
    events = []
    for change in run:
        events.append(change if change.action == "submit" or not events else events[-1])
    places = [live.index(change) for change in run]
    apart = [[later.t_s - earlier.t_s >= gap for later in events] for earlier in events]
    ordered = [(i, j) for i, j in combinations(range(len(run)), 2) if apart[i][j]]
    overtook = {j for i, j in ordered if places[i] > places[j]}
    # actions before their event and everything near it
    done = [[event for event in live[:place] if event.action == "submit"] for place in places]
    early = {
        j
        for j, change in enumerate(run)
        if change.action == "start"
        and events[j].action == "submit"
        and live.index(events[j]) > places[j]
        and all(events[j].t_s - event.t_s >= gap for event in done[j])
    }
    assert {int(swap.simulated[1].job) for swap in found.swaps} == overtook | early
    assert len(found.swaps) == len(overtook) + len(early)
    assert found.ordered_pairs == len(ordered)
    assert found.same is not bool(overtook | early)


def test_an_action_long_before_its_event_is_found() -> None:
    # EASY starts c at once, FCFS when a is done: the same changes, and no two of them far apart
    fcfs = [
        Change(0.0, "submit", "a", 0, 0),
        Change(0.0, "submit", "c", 0, 0),
        Change(0.0, "start", "a", 0, 4),
        Change(3.0, "finish", "a", 4, 0),
        Change(3.0, "start", "c", 0, 2),
        Change(6.0, "finish", "c", 2, 0),
    ]
    easy = [fcfs[0], fcfs[1], fcfs[2], fcfs[4], fcfs[3], fcfs[5]]
    [swap] = compare(fcfs, easy, gap_s=1.0).swaps
    assert tuple(map(str, swap.simulated)) == ("finish a 4 -> 0", "start c 0 -> 2")
    # an event that is close to its own will do
    near = [*fcfs[:3], Change(2.5, "submit", "d", 0, 0), *fcfs[3:]]
    assert compare(near, moved(near, 5, 4), gap_s=1.0).same
    assert not compare(near, moved(near, 5, 4), gap_s=0.4).same


def test_a_trace_becomes_changes() -> None:
    records = [
        JobEvent(t_s=1.0, job="a-2", name="a", state="pending", reason="submitted"),
        NodeEvent(t_s=1.0, nodes=("n1",), job="a-2"),
        JobEvent(t_s=2.0, job="a-2", state="running", nodes=4),
        JobEvent(t_s=2.0, job="other-1", state="running", nodes=1),
        JobEvent(t_s=3.0, job="a-2", state="adapting", nodes=4),
        JobEvent(t_s=4.0, job="a-2", state="running", nodes=2),
        JobEvent(t_s=5.0, job="a-2", state="running", nodes=3),
        JobEvent(t_s=6.0, job="a-2", state="pending", nodes=0),
        JobEvent(t_s=7.0, job="a-2", state="running", nodes=1),
        JobEvent(t_s=8.0, job="a-2", state="completed", nodes=0),
    ]
    changes = from_trace(records, {"a-2": "a"})
    assert [(change.t_s, str(change)) for change in changes] == [
        (1.0, "submit a"),
        (2.0, "start a 0 -> 4"),
        (4.0, "shrink a 4 -> 2"),
        (5.0, "expand a 2 -> 3"),
        (6.0, "interrupt a 3 -> 0"),
        (7.0, "start a 0 -> 1"),
        (8.0, "finish a 1 -> 0"),
    ]
    assert makespan_s(changes) == 7.0
    assert [change.t_s for change in shifted(changes, -1.0)][:2] == [0.0, 1.0]


def test_a_run_without_an_end_has_no_makespan() -> None:
    assert makespan_s(RUN[:5]) is None


def test_events_whose_order_is_open_are_named() -> None:
    run = [*RUN[:6], Change(6.4, "submit", "c", 0, 0), *[shifted([c], 1.0)[0] for c in RUN[6:]]]
    found = compare(run, late([*run[:7], run[8]]), gap_s=1.0)
    assert found.missing == (run[7],)
    assert close_events(run, found, gap_s=1.0) == (run[5], run[6])
    assert close_events(run, found, gap_s=0.4) is None
    assert close_events(run, compare(run, run, gap_s=1.0), gap_s=1.0) is None
