"""Turns on shared slots: nobody ends later than in equal shares, most end earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.rules.fair.turns import (
    Virtual,
    Work,
    advance,
    ahead_s,
    dealt,
    ends,
    in_turn,
    taken_over,
    without,
)

#: Step of the served cluster below, in seconds.
STEP_S = 0.25


def work(id: str, left_s: float, **fields: object) -> Work:
    return Work(**{"id": id, "left_s": left_s, "done_s": 0.0, "width": 1000, **fields})  # type: ignore[arg-type]


def ends_in_turn(sizes: Sequence[float], submits: Sequence[float]) -> list[float]:
    """When jobs of so many thread-seconds end on one thread that serves who is first, in steps."""
    left, virtual, ended_s, now_s = list(sizes), Virtual(), [0.0] * len(sizes), 0.0
    while any(left):
        present = [i for i, at_s in enumerate(submits) if at_s <= now_s]
        works = [work(str(i), left[i], done_s=sizes[i] - left[i], submit_s=submits[i]) for i in present]
        virtual = advance(virtual, works, 1, STEP_S)
        first = next((int(id) for id in in_turn(virtual, works) if left[int(id)] > 0), None)
        now_s += STEP_S
        if first is not None:
            left[first] = max(0.0, left[first] - STEP_S)
            ended_s[first] = now_s if not left[first] else 0.0
    return ended_s


def ends_in_equal_shares(sizes: Sequence[float], submits: Sequence[float]) -> list[float]:
    """The same on a thread that serves everybody at once, exactly."""
    left, ended_s, now_s = list(sizes), [0.0] * len(sizes), 0.0
    while any(left):
        present = [i for i, at_s in enumerate(submits) if at_s <= now_s and left[i] > 0]
        coming = min([at_s - now_s for at_s in submits if at_s > now_s], default=float("inf"))
        span = min([left[i] * len(present) for i in present] + [coming])
        for i in present:
            left[i] -= span / len(present)
            if left[i] < 1e-9:
                left[i], ended_s[i] = 0.0, now_s + span
        now_s += span
    return ended_s


multiples = st.integers(1, 40).map(lambda n: n * STEP_S)


@given(st.lists(st.tuples(multiples, multiples), min_size=1, max_size=6))
def test_nobody_ends_later_than_in_equal_shares(jobs: list[tuple[float, float]]) -> None:
    sizes, submits = [size for size, _ in jobs], [at_s for _, at_s in jobs]
    # each job that comes or ends may cost the others a step: both clusters know of it a step late
    slack_s = STEP_S * 2 * len(jobs)
    shared = ends_in_equal_shares(sizes, submits)
    for end_s, bound_s in zip(ends_in_turn(sizes, submits), shared, strict=True):
        assert end_s <= bound_s + slack_s


def test_equal_jobs_are_served_one_after_the_other() -> None:
    assert ends_in_turn([10.0] * 4, [0.25, 0.5, 0.75, 1.0]) == pytest.approx([10, 20, 30, 40], abs=0.5)
    assert ends_in_equal_shares([10.0] * 4, [0.0] * 4) == pytest.approx([40] * 4)


def test_a_large_job_is_not_passed_for_ever() -> None:
    # four seconds of work come every four seconds: whoever serves the shortest first never serves six
    sizes, submits = [6.0] + [4.0] * 20, [0.25] + [0.25 + 4.0 * i for i in range(20)]
    bound_s = ends_in_equal_shares(sizes, submits)[0]
    assert ends_in_turn(sizes, submits)[0] <= bound_s + 1.0 < max(submits) / 3


def test_shares_follow_weights_users_and_widths() -> None:
    works = [
        work("heavy", 1e6, user="ada", weight=2.0),
        work("waits", 1e6, user="ada", width=0),
        work("bob-1", 1e6, user="bob"),
        work("bob-2", 1e6, user="bob"),
        work("eve", 1e6, user="eve"),
        work("narrow", 1e6, user="dan", width=1),
    ]
    new = advance(Virtual(), works, 9, 100.0)
    assert new.served_s == dict.fromkeys([w.id for w in works], 0.0)  # nobody had anything before it came
    virtual = advance(new, works, 9, 10.0)
    # dan cannot use more than a thread; eight are divided 2 : 1/2 : 1/2 : 1
    served_s = {"heavy": 40, "waits": 0, "bob-1": 10, "bob-2": 10, "eve": 20, "narrow": 10}
    assert virtual.served_s == pytest.approx(served_s)


def test_the_largest_weight_that_a_user_has_declared_counts_for_all_of_its_jobs() -> None:
    works = [work("a3", 1e6, user="ada", weight=3.0), work("a1", 1e6, user="ada"), work("b", 1e6, user="bob")]
    virtual = advance(advance(Virtual(), works, 8, 0.0), works, 8, 10.0)
    assert virtual.served_s == pytest.approx({"a1": 30, "a3": 30, "b": 20})


def test_what_one_leaves_when_it_ends_is_the_others_at_once() -> None:
    works = [work("short", 2.0, user="a"), work("long", 10.0, user="b")]
    first = advance(Virtual(), works, 1, 0.0)
    assert advance(first, works, 1, 6.0).served_s == pytest.approx({"short": 2.0, "long": 4.0})
    assert advance(first, works, 1, 6.0).clock_s == pytest.approx(4.0)


def test_who_has_ended_is_served_to_its_end_there_and_then_forgotten() -> None:
    short, long = work("short", 4.0, user="a", width=0), work("long", 10.0, user="b")
    first = advance(Virtual(), [short, long], 1, 0.0)
    later = advance(first, [long], 1, 6.0)
    assert later.served_s == pytest.approx({"short": 3.0, "long": 3.0})
    assert advance(later, [long], 1, 4.0).served_s == pytest.approx({"long": 6.0})
    # who gives up is not
    assert advance(without(first, "short"), [long], 1, 6.0).served_s == pytest.approx({"long": 6.0})
    # who takes its work over is served in its place
    assert taken_over(later, "short", "heir", 9.0).works.keys() == {"long"}


def test_how_far_each_is_ahead_of_its_share() -> None:
    works = [work("first", 4.0, user="a"), work("second", 4.0, user="b")]
    served = advance(advance(Virtual(), works, 1, 0.0), works, 1, 3.0)
    done = [work("first", 1.0, done_s=3.0, user="a"), works[1]]
    assert ahead_s(advance(served, done, 1, 0.0)) == pytest.approx({"first": 1.5, "second": -1.5})


def test_every_slot_goes_to_who_is_next_until_that_can_use_no_more() -> None:
    most = {"a": 3, "b": 2, "c": 9}
    assert dealt(["b", "gone", "a", "c"], most, 4) == {"b": 2, "a": 2, "c": 0}
    assert dealt(["c", "b", "a"], most, 40) == most


def test_larger_priorities_come_first_whatever_is_left() -> None:
    works = [work("small", 1.0), work("urgent", 1e6, priority=1)]
    assert in_turn(Virtual(), works) == ["urgent", "small"]


def test_of_those_that_end_together_who_came_first_is_served_first() -> None:
    works = [work("later", 4.0, user="a", submit_s=2.0), work("sooner", 4.0, user="b", submit_s=1.0)]
    assert in_turn(Virtual(), works) == ["sooner", "later"]


def test_a_job_that_pauses_takes_nothing_of_the_share_of_the_others_of_its_user() -> None:
    works = [
        work("works", 8.0, user="ada", weight=2.0),
        work("pauses", 0.0, done_s=6.0, user="ada", weight=2.0),
    ]
    # what it has done ahead of its share it waits for as if it were alone
    virtual = Virtual({"works": 0.0, "pauses": 2.0}, 10.0)
    assert ends(virtual, works) == {"works": 10.0 + 8.0 / 2.0, "pauses": 10.0 + 4.0 / 2.0}


def test_what_a_job_had_ahead_of_its_share_counts_against_it() -> None:
    # both show one task; one has been at it for long, alone
    works = [work("old", 1.0, done_s=500.0), work("new", 1.0)]
    assert in_turn(Virtual({"old": 100.0, "new": 0.0}), works) == ["new", "old"]
    # had it waited so long for its share, it would be first
    assert in_turn(Virtual({"old": 501.0, "new": 0.0}), works) == ["old", "new"]


@given(st.lists(st.floats(0.97, 1.03), min_size=60, max_size=60), st.integers(2, 6))
def test_equal_jobs_are_served_one_after_the_other_whatever_each_task_is_found_to_take(
    wavers: list[float], jobs: int
) -> None:
    done_s, virtual, served = dict.fromkeys(range(jobs), 0.0), Virtual(), [0]
    for waver in wavers:
        works = [
            # what it is found to take goes by its own tasks, those of the others by what is usual
            work(str(i), (10.0 - done) * (waver if done else 1.0), done_s=done, user=str(i), submit_s=i)
            for i, done in done_s.items()
            if done < 10.0
        ]
        if not works:
            break
        virtual = advance(virtual, works, 1, 1.0)
        first = int(in_turn(virtual, works)[0])
        done_s[first] += 1.0
        served.append(first)
    assert served == sorted(served), "nobody passes who is being served"


def test_who_turns_out_to_be_much_smaller_is_served_first() -> None:
    works = [work("one", 10.0, user="a", submit_s=1.0), work("other", 10.0, user="b", submit_s=2.0)]
    virtual = advance(Virtual(), works, 1, 0.0)
    slightly, much = ([works[0], replace(works[1], left_s=left_s)] for left_s in (8.1, 7.9))
    assert in_turn(advance(virtual, slightly, 1, 0.0), slightly) == ["one", "other"]
    assert in_turn(advance(virtual, much, 1, 0.0), much) == ["other", "one"]


def test_what_others_take_takes_nothing_back_that_a_job_was_served() -> None:
    new, begun = work("new", 20.0, user="a"), work("begun", 19.0, done_s=1.0, user="b")
    virtual = advance(advance(Virtual(), [new, begun], 2, 0.0), [new, begun], 2, 5.0)
    assert virtual.served_s == pytest.approx({"new": 5.0, "begun": 5.0})
    # nothing is known for a moment
    unknown = [replace(new, left_s=0.0), replace(begun, left_s=0.0)]
    assert advance(virtual, unknown, 2, 1.0).served_s == pytest.approx({"new": 5.0, "begun": 1.0})


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.integers(0, 5)), max_size=5),
    st.lists(st.floats(0, 30), min_size=1, max_size=4),
)
def test_the_virtual_cluster_serves_no_more_than_it_has_nor_than_there_is(
    jobs: list[tuple[float, float, int]], spans: list[float]
) -> None:
    works = [work(str(i), left, done_s=done, width=width) for i, (left, done, width) in enumerate(jobs)]
    history = [advance(Virtual(), works, 3, 0.0)]
    for span in spans:
        history.append(advance(history[-1], works, 3, span))
    for (before, after), span in zip(pairwise(history), spans, strict=True):
        grown = {id: after.served_s[id] - before.served_s[id] for id in after.served_s}
        assert all(gain >= -1e-9 for gain in grown.values())
        assert sum(grown.values()) <= 3 * span + 1e-6
        for each in works:
            assert after.served_s[each.id] <= each.done_s + each.left_s + 1e-9
            assert grown[each.id] <= each.width * span + 1e-6


@given(
    st.lists(st.tuples(st.floats(1, 100), st.floats(0.5, 4)), min_size=1, max_size=5),
    st.floats(0.1, 50),
    st.floats(1, 100),
)
def test_when_a_job_ends_on_its_clock_does_not_move_when_others_come(
    jobs: list[tuple[float, float]], seconds: float, late_s: float
) -> None:
    works = [work(str(i), left_s, user=str(i), weight=weight) for i, (left_s, weight) in enumerate(jobs)]
    before = advance(Virtual(), works, 4, 0.0)
    after = advance(before, works, 4, seconds)
    later = [*works, work("late", late_s, user="late")]
    for each in works:
        if each.left_s > after.served_s[each.id] + 1e-6:  # it has not ended there
            expected = pytest.approx(ends(before, works)[each.id], rel=1e-6)
            assert (ends(after, works)[each.id], ends(after, later)[each.id]) == (expected, expected)
    # who comes has waited for nothing yet
    assert ends(after, later)["late"] == pytest.approx(after.clock_s + late_s)


def test_who_takes_work_over_has_the_turn_that_both_had_together() -> None:
    others = work("other", 100.0, done_s=30.0, user="u")
    one, heir = work("one", 0.0, done_s=40.0), work("heir", 20.0, done_s=5.0)
    virtual = Virtual({"one": 25.0, "heir": 2.0, "other": 30.0}, 30.0)
    both = work("heir", 20.0, done_s=45.0)
    after = taken_over(virtual, "one", "heir", one.done_s)
    # 15 s and 3 s ahead of their shares, and 20 s to do
    assert ends(after, [both, others])["heir"] == 30.0 + 15 + 3 + 20
    assert ends(after, [both, others])["other"] == ends(virtual, [one, heir, others])["other"]
    assert after.served_s == {"heir": 27.0, "other": 30.0}
    # one that has just come, and one that has served nobody
    assert taken_over(Virtual({"one": 25.0}), "one", "new", 40.0) == Virtual({"new": 25.0})
    assert taken_over(after, "nobody", "heir", 0.0) == after
    # it was served for more than it did: work that was cancelled, or taken to be longer
    assert taken_over(Virtual({"one": 60.0}), "one", "new", 10.0) == Virtual({"new": 10.0})
