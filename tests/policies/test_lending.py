"""Slots that nobody fills run others' tasks: all of them dealt out at once, and one at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.rules.lending import Party, sent_ahead, slots, turn

PARTIES = st.lists(
    st.builds(
        Party,
        own=st.integers(0, 6),
        tasks=st.integers(0, 12),
        priority=st.integers(0, 1),
        submit_s=st.integers(0, 3).map(float),
        lends=st.booleans(),
        borrows=st.booleans(),
        ahead=st.integers(0, 2),
    ),
    max_size=6,
)


def one_at_a_time(parties: list[Party], idle: int) -> list[int]:
    """What comes of asking whose turn it is for each slot that is idle, as a scheduler does."""
    used = [min(one.own, one.tasks) for one in parties]
    spare = idle + sum(one.own - n for one, n in zip(parties, used, strict=True) if one.lends)
    for _ in range(spare):
        able = [i for i, one in enumerate(parties) if one.borrows and one.tasks > used[i]]
        if not able:
            break
        next_ = min(
            able,
            key=lambda i: turn(parties[i].priority, used[i] + parties[i].ahead, parties[i].submit_s),
        )
        used[next_] += 1
    return used


@given(PARTIES, st.integers(0, 8))
def test_all_slots_at_once_are_dealt_as_one_after_the_other(parties, idle):
    assert slots(parties, idle) == one_at_a_time(parties, idle)


@given(PARTIES, st.integers(0, 8))
def test_nobody_loses_a_slot_that_it_can_fill_and_none_is_idle_beside_a_task(parties, idle):
    used = slots(parties, idle)
    for one, n in zip(parties, used, strict=True):
        assert min(one.own, one.tasks) <= n <= one.tasks
        assert n <= one.own or one.borrows
    there = idle + sum(one.own if one.lends else min(one.own, one.tasks) for one in parties)
    assert sum(used) <= there
    if sum(used) < there:
        assert all(n == one.tasks or not one.borrows for one, n in zip(parties, used, strict=True))


def test_who_has_nothing_on_workers_comes_before_who_runs_and_has_tasks_sent_ahead():
    running = Party(own=1, tasks=9, ahead=1, submit_s=0.0)
    waiting = Party(own=0, tasks=9, submit_s=1.0)
    assert slots([running, waiting], 2) == [1, 2]
    assert slots([running, waiting], 3) == [2, 2]
    assert slots([running, Party(own=0, tasks=9, submit_s=1.0, priority=-1)], 3) == [4, 0]


@pytest.mark.parametrize(
    ("threads", "saturation", "ahead"), [(1, 1.1, 1), (2, 1.1, 1), (4, 1.0, 0), (4, 0.5, 0), (4, None, 0)]
)
def test_a_part_of_a_task_ahead_is_one_and_a_thread_less_is_none(threads, saturation, ahead):
    assert sent_ahead(threads, saturation) == ahead
