"""When a job ends by its tasks, and intervals that hold the share of ends that they state."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp

import pytest

from dask_hpc_policies import registry
from dask_hpc_policies.jobs.forecasts import (
    ASSUMED_FACTOR,
    ERRORS_KEPT,
    LEAST_ERRORS,
    LEVEL,
    Calibration,
    last_s,
    work_left_s,
)
from dask_hpc_policies.jobs.habits import Habits, habits_of
from dask_hpc_policies.rules.shared_ends import Share, ends_s


def told(calibration: Calibration, took: list[float], category: str = "a") -> Calibration:
    """After forecasts of 100 s that took so long."""
    for seconds in took:
        calibration = calibration.with_end(category, calibration.interval(category, 100.0), seconds)
    return calibration


def alone_s(work_s: float, tasks: int, on_workers: int, slots: float, use: float = 1.0) -> float:
    """The end of a job that has a cluster for itself."""
    each_s = work_s / tasks if tasks else 0.0
    share = Share(work_s=work_left_s(work_s, tasks, on_workers, slots, use), task_s=each_s, slots=slots)
    return ends_s([share], [], 0.0)[0] + last_s(each_s, tasks, slots)


def test_the_slots_of_a_job_share_its_work_of_which_that_on_workers_is_half_done():
    assert work_left_s(20.0, 40, 4, 4) == pytest.approx(20.0 - 4 * 0.25)
    assert work_left_s(20.0, 40, 4, 4, use=0.5) == pytest.approx(2 * (20.0 - 4 * 0.25))
    assert work_left_s(0.0, 0, 0, 8) == 0.0


def test_fewer_tasks_than_slots_take_as_long_as_one():
    assert alone_s(2.0, 1, 0, 8) == pytest.approx(2.0)
    assert alone_s(2.0, 1, 1, 8) == pytest.approx(1.0)


def test_the_last_of_several_tasks_is_where_chance_has_it():
    chance, slots, ends = random.Random(1), 4, []
    for _ in range(4000):
        left = [chance.random() for _ in range(slots)]  # each has begun at some moment
        for _ in range(12):
            left[left.index(min(left))] += 1.0
        ends.append(max(left))
    guessed_s = work_left_s(16.0, 16, slots, slots) / slots + last_s(1.0, 16, slots)
    assert guessed_s == pytest.approx(sum(ends) / len(ends), rel=0.03)


def share(work_s: float, slots: float, gains: bool = True) -> Share:
    return Share(work_s=work_s, task_s=1e-6, slots=slots, gains=gains)


def test_what_a_job_leaves_goes_to_one_that_runs():
    # after 4 s the second has 2 slots more for the 6 s that are left of its work
    assert ends_s([share(8.0, 2), share(10.0, 1)], [], 0.0) == pytest.approx([4.0, 6.0], abs=1e-3)
    kept = ends_s([share(8.0, 2), share(10.0, 1, gains=False)], [], 0.0)
    assert kept == pytest.approx([4.0, 10.0], abs=1e-3)


def test_what_a_job_leaves_goes_to_those_that_wait_before():
    # the waiting job has the two slots from 4 s to 9 s; then they are free again
    found = ends_s([share(8.0, 2), share(12.0, 1)], [share(10.0, 2)], 0.0)
    assert found == pytest.approx([4.0, 10.0], abs=1e-3)
    # one that needs more than is free waits on; what is free is lent
    found = ends_s([share(8.0, 2), share(10.0, 1)], [share(10.0, 3)], 0.0)
    assert found == pytest.approx([4.0, 6.0], abs=1e-3)


def test_who_waits_borrows_before_who_runs_and_has_tasks_sent_ahead():
    wide = replace(share(4.0, 3), borrows=True)
    # one slot is idle: the job that waits has it for 4 s, where it would have gone to the one that runs
    assert ends_s([replace(share(10.0, 1), ahead=1.0)], [wide], 1.0) == pytest.approx([7.0], abs=1e-3)
    assert ends_s([share(10.0, 1)], [replace(wide, borrows=False)], 1.0) == pytest.approx([5.0], abs=1e-3)
    # one that has ended on borrowed slots alone leaves none
    assert ends_s([share(10.0, 1, gains=False)], [wide], 1.0) == pytest.approx([10.0], abs=1e-3)


def test_jobs_that_take_turns_are_served_one_after_the_other_on_all_that_they_have():
    first, later = replace(share(6.0, 1), turn=1), replace(share(8.0, 2), turn=0)
    # three slots: the later of the two in the list has its turn first
    assert ends_s([first, later], [], 0.0) == pytest.approx([14 / 3, 8 / 3], abs=1e-3)
    # one that has but a task leaves the others to who is next
    one_task = Share(work_s=6.0, task_s=6.0, slots=2, turn=0)
    assert ends_s([one_task, first], [], 0.0) == pytest.approx([6.0, 3.0], abs=1e-3)
    # what they leave when all have ended is anybody's, and not before
    assert ends_s([first, later, share(9.0, 1)], [], 0.0) == pytest.approx(
        [14 / 3, 8 / 3, 14 / 3 + (9 - 14 / 3) / 4], abs=1e-3
    )


def resizable(work_s: float, slots: float, least: float = 1, most: float = 4) -> Share:
    return replace(share(work_s, slots), least=least, most=most)


def test_what_a_job_leaves_goes_to_those_that_may_grow_before_it_is_lent():
    # the first ends after 2 s; the second has its two slots then, although a larger one waits to borrow
    waits = replace(share(50.0, 4), borrows=True)
    jobs = [share(4.0, 2), resizable(10.0, 2)]
    assert ends_s(jobs, [waits], 0.0, Habits(grows=True)) == pytest.approx([2.0, 3.5], abs=1e-3)
    assert ends_s(jobs, [waits], 0.0) == pytest.approx([2.0, 5.0], abs=1e-3)
    # not beyond what it may have
    small = [share(4.0, 2), resizable(10.0, 2, most=3)]
    assert ends_s(small, [waits], 0.0, Habits(grows=True)) == pytest.approx([2.0, 4.0], abs=1e-3)


def test_the_largest_give_what_the_first_that_waits_lacks_and_nobody_more_than_it_can():
    room = Habits(makes_room=True)
    jobs = [resizable(8.0, 3), resizable(4.0, 1)]
    # two slots go to the one that waits, for 1 s, and are lent then, one to each
    assert ends_s(jobs, [share(2.0, 2)], 0.0, room)[1] == pytest.approx(1 + 3 / 2, abs=1e-3)
    assert ends_s(jobs, [share(2.0, 2)], 0.0, room)[0] > 8 / 3
    # else it starts when the first has ended
    assert ends_s(jobs, [share(2.0, 2)], 0.0)[0] == pytest.approx(8 / 3, abs=1e-3)
    # three cannot be given: nobody shrinks
    assert ends_s(jobs, [share(2.0, 3)], 0.0, room) == ends_s(jobs, [share(2.0, 3)], 0.0)


@pytest.mark.parametrize(
    ("policy", "grows", "makes_room"),
    [("fcfs", False, False), ("easy", False, False), ("prma-egs", True, False), ("pwma-fpsma", True, True),
     ("equipartition", True, True), ("fair", True, True)],
)  # fmt: skip
def test_what_a_policy_does_with_nodes_is_seen_by_asking_it(policy, grows, makes_room):
    assert habits_of(registry.create(policy)) == Habits(grows, makes_room)


@pytest.mark.parametrize("answer", [lambda view: 1 / 0, lambda view: None, lambda view: ("more", None)])
def test_a_policy_that_fails_when_it_is_asked_has_no_habits(answer):
    class Mine:
        name = "mine"

        def initial_state(self):
            return None

        def decide(self, view, state):
            return answer(view)

    assert habits_of(Mine()) == Habits()


def test_idle_slots_are_shared_evenly_by_those_that_have_tasks_for_them():
    assert ends_s([share(6.0, 1), share(6.0, 1)], [], 2.0) == pytest.approx([3.0, 3.0], abs=1e-3)
    one_task = Share(work_s=6.0, task_s=6.0, slots=1)
    assert ends_s([one_task, share(6.0, 1)], [], 2.0) == pytest.approx([6.0, 2.0], abs=1e-3)


def test_bounds_are_assumed_until_enough_came_and_are_then_those_of_the_errors():
    few = told(Calibration(), [100.0] * (LEAST_ERRORS - 1))
    first = few.interval("a", 100.0)
    assert (first.errors, first.high_s) == (0, pytest.approx(100 * ASSUMED_FACTOR, rel=1e-3))
    enough = told(Calibration(), [110.0] * LEAST_ERRORS)
    now = enough.interval("a", 50.0)
    assert now.errors == LEAST_ERRORS
    assert (now.low_s, now.high_s) == pytest.approx((50.0, 55.0), rel=1e-3)


def test_a_category_that_is_new_errs_as_the_others_and_then_as_itself():
    known = told(Calibration(), [150.0] * LEAST_ERRORS, "a")
    assert known.interval("b", 100.0).high_s == pytest.approx(150.0, rel=1e-3)
    known = told(known, [101.0] * LEAST_ERRORS, "b")
    assert known.interval("b", 100.0).high_s == pytest.approx(101.0, rel=1e-3)
    assert known.interval("a", 100.0).high_s == pytest.approx(150.0, rel=1e-3)


@pytest.mark.parametrize("spread", [0.02, 0.3, 1.0])
def test_intervals_hold_the_share_that_they_state_whatever_the_errors(spread):
    chance = random.Random(3)
    found = told(Calibration(), [100 * exp(chance.gauss(0.0, spread)) for _ in range(1000)])
    # those that were assumed state no share
    assert (found.ends, found.assumed) == (1000 - LEAST_ERRORS, LEAST_ERRORS)
    assert LEVEL - 0.02 <= found.inside <= LEVEL + 0.04


def test_they_hold_it_also_once_forecasts_have_become_worse():
    chance = random.Random(5)
    good = told(Calibration(), [100 * exp(chance.gauss(0.0, 0.05)) for _ in range(300)])
    worse = told(good, [100 * exp(chance.gauss(0.0, 0.05 + i / 1000)) for i in range(1000)])
    assert (worse.categories["a"].inside - good.categories["a"].inside) / 1000 >= 0.85
    assert worse.ends - good.ends == 1000
    assert len(worse.categories["a"].errors) == ERRORS_KEPT


def test_the_level_that_is_asked_for_follows_the_misses():
    known = told(Calibration(), [100.0] * LEAST_ERRORS)
    missed = told(known, [100.0 * 3**i for i in range(1, 4)]).categories["a"].level
    held = told(known, [100.0] * 3).categories["a"].level
    assert held < LEVEL < missed


def test_what_was_assumed_is_learned_from_and_neither_held_nor_missed():
    known = told(Calibration(), [100.0, 1e4, 1e-3])
    assert len(known.categories["a"].errors) == known.assumed == 3
    assert (known.ends, known.inside, known.categories["a"].level) == (0, None, LEVEL)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_what_is_no_time_is_refused(seconds):
    calibration = Calibration()
    with pytest.raises(ValueError, match="expected_s"):
        calibration.interval("a", seconds)
    with pytest.raises(ValueError, match="took_s"):
        calibration.with_end("a", calibration.interval("a", 1.0), seconds)
