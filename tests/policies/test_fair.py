"""The policy `fair`: least attained service first, users before jobs, nothing thrashes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from fair_pictures import decide, resizes, rigid, running, sizes, view, waiting
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.decision import Hold, ReasonCode
from dask_hpc_policies.model import JobView
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.fair.policy import FairState
from dask_hpc_policies.rules.fair.shares import Claim, divide
from dask_hpc_policies.rules.fair.terms import level
from dask_hpc_policies.rules.seen import SeenSize

POLICY: Any = create("fair")
#: The defaults.
QUANTUM_NODE_S, PATIENCE_S, COST_S = 10.0, 60.0, 0.1


# -------------------------------------------------------------------------- levels


@pytest.mark.parametrize(
    ("attained_node_s", "found"), [(0.0, 0), (9.99, 0), (10.0, 1), (19.9, 1), (20.0, 2), (40.0, 3), (1e4, 10)]
)
def test_a_level_ends_at_twice_the_service_of_the_one_before(attained_node_s: float, found: int) -> None:
    assert level(attained_node_s, POLICY.params) == found


@given(st.integers(0, 60), st.floats(1.1, 1000.0), st.floats(1e-3, 1e12))
def test_levels_begin_exactly_where_they_should(number: int, factor: float, quantum: float) -> None:
    params = {"quantum_node_s": quantum, "level_factor": factor}
    assert level(quantum * factor**number, params) == number + 1


def test_remainders_that_only_rounding_tells_apart_are_equal() -> None:
    claims = [Claim(0, 10, 1.5), Claim(0, 10, 2.5 + 1e-12)]
    assert divide(claims, 4) == [2, 2]  # the first of equals gets the node
    assert divide([claims[0], Claim(0, 10, 2.5 + 1e-6)], 4) == [1, 3]


def test_nodes_go_in_inverse_proportion_to_attained_service() -> None:
    # levels 1 and 3: weights 4 to 1
    picture = view(0, running("new", 8, 10.0), running("old", 8, 40.0))
    assert sizes(picture, decide(picture)) == {"new": 13, "old": 3}
    picture = view(0, running("new", 5, 10.0), running("old", 15, 40.0))
    assert sizes(picture, decide(picture)) == {"new": 16, "old": 4}


def test_a_new_job_gets_its_share_at_once_and_the_old_one_keeps_its_minimum() -> None:
    picture = view(0, running("old", 6, 1e6, max_nodes=6, min_nodes=2), waiting("new", high=6))
    decision = decide(picture)
    assert sizes(picture, decision) == {"old": 2, "new": 4}
    (shrink,) = resizes(decision)
    assert shrink.reason.code is ReasonCode.HEAD_JOB_WAITS
    assert shrink.reason.data["head"] == "new"


def test_what_has_had_least_starts_first() -> None:
    old = waiting("old", 3, attained_node_s=100.0)
    picture = view(3, old, waiting("new", 3, submit_s=1.0))
    assert sizes(picture, decide(picture)) == {"old": 0, "new": 3}
    urgent = replace(old, priority=1)
    picture = view(3, urgent, waiting("new", 3, submit_s=1.0))
    assert sizes(picture, decide(picture)) == {"old": 3, "new": 0}


# ------------------------------------------------------------------------ division

claims = st.lists(
    st.builds(
        lambda low, more, weight: Claim(low, low + more, weight),
        st.integers(0, 20),
        st.integers(0, 40),
        st.sampled_from([2.0**-i for i in range(8)] + [0.001, 0.3, 3.0, 1000.0]),
    ),
    min_size=1,
    max_size=12,
)


@examples(500)
@given(claims, st.integers(0, 300))
def test_a_division_is_complete_within_bounds_and_proportional(given_: list[Claim], nodes: int) -> None:
    found = divide(given_, nodes)
    least, most = sum(c.low for c in given_), sum(c.high for c in given_)
    assert sum(found) == min(max(nodes, least), most)
    assert all(claim.low <= size <= claim.high for claim, size in zip(given_, found, strict=True))
    # nobody who could give has more per weight than somebody who could take, but for the rounding
    for giver, has in zip(given_, found, strict=True):
        for taker, lacks in zip(given_, found, strict=True):
            if has > giver.low and lacks < taker.high:
                assert (has - 1) / giver.weight <= (lacks + 1) / taker.weight * (1 + 1e-9)


def test_what_cannot_be_divided_goes_to_the_first() -> None:
    assert divide([Claim(0, 9, 1.0)] * 4, 6) == [2, 2, 1, 1]


# --------------------------------------------------------------------------- users


def test_ten_jobs_of_one_user_get_together_what_one_of_another_does() -> None:
    many = [waiting(f"a{i}", user="ada", submit_s=float(i)) for i in range(10)]
    picture = view(40, *many, waiting("b", user="bob", submit_s=10.0))
    after = sizes(picture, decide(picture))
    assert after == {**{f"a{i}": 2 for i in range(10)}, "b": 20}
    apart = view(40, *[replace(job, user=job.id) for job in picture.jobs])
    assert sizes(apart, decide(apart))["b"] == 3, "without users each job counts"


def test_users_share_by_what_all_their_jobs_have_had() -> None:
    # together the jobs of ada have had 40, four times what the one of bob has had
    picture = view(
        10, *[running(f"a{i}", 1, 10.0, user="ada") for i in range(4)], running("b", 6, 10.0, user="bob")
    )
    assert sizes(picture, decide(picture)) == {"a0": 1, "a1": 1, "a2": 1, "a3": 1, "b": 16}


def test_users_start_jobs_in_turn() -> None:
    many = [rigid(f"a{i}", 1, user="ada", submit_s=float(i)) for i in range(4)]
    picture = view(2, *many, rigid("b", 1, user="bob", submit_s=9.0))
    assert sizes(picture, decide(picture)) == {"a0": 1, "a1": 0, "a2": 0, "a3": 0, "b": 1}
    # a weight of 2 is two turns for one
    heavy = [replace(job, weight=2.0) if job.user == "ada" else job for job in picture.jobs]
    picture = view(3, *heavy, rigid("b1", 1, user="bob", submit_s=10.0))
    assert sizes(picture, decide(picture)) == {"a0": 1, "a1": 1, "a2": 0, "a3": 0, "b": 1, "b1": 0}


def test_turns_count_jobs_that_wait_and_weights_before_who_came_first() -> None:
    first, second = (rigid(f"a{i}", 1, user="ada", submit_s=1.0 + i) for i in range(2))
    picture = view(3, first, second, rigid("b", 2, user="bob", submit_s=9.0))
    assert sizes(picture, decide(picture)) == {"a0": 1, "a1": 0, "b": 2}
    # the first one of bob has had its turn, too, though it does not fit
    wide, narrow = rigid("wide", 9, user="bob"), rigid("b", 2, user="bob", submit_s=0.5)
    ada = [replace(job, weight=2.0) for job in (first, second)]
    picture = view(3, wide, narrow, *ada)
    assert sizes(picture, decide(picture)) == {"wide": 0, "b": 0, "a0": 1, "a1": 1}


def test_what_a_job_that_cannot_start_leaves_is_there_beyond_a_share() -> None:
    many = [rigid(f"a{i}", 1, user="ada", submit_s=float(i)) for i in range(10)]
    picture = view(12, *many, rigid("b", 100, user="bob", submit_s=10.0))
    assert sizes(picture, decide(picture)) == {**{f"a{i}": 1 for i in range(10)}, "b": 0}


def test_beyond_its_share_a_user_starts_no_more_than_others_can_not_use() -> None:
    # bob may come to eight of the ten nodes, and no user gets on a single one more than that leaves
    ada = [rigid(f"a{i}", 1, user="ada", submit_s=float(i)) for i in range(1, 4)]
    runs = replace(rigid("a0", 1, user="ada", attained_node_s=1e4), state="running", nodes=1)
    bob, never = running("b", 5, user="bob", max_nodes=8), rigid("never", 100, user="eve", submit_s=9.0)
    picture = view(4, runs, bob, *ada, never)
    after = sizes(picture, decide(picture))
    assert after == {"a0": 1, "a1": 1, "a2": 0, "a3": 0, "b": 8, "never": 0}


def test_the_largest_weight_that_a_user_has_declared_counts() -> None:
    ada = [running(f"a{weight}", 1, user="ada", weight=float(weight)) for weight in (1, 3)]
    picture = view(21, *ada, running("b", 1, user="bob"))
    assert sizes(picture, decide(picture))["b"] == 6


def test_plain_work_is_no_user_among_users() -> None:
    plain = JobView(id="default", state="running", nodes=4, is_default=True, min_nodes=1, max_nodes=9)
    picture = view(12, plain, waiting("a"), waiting("b", user="bob"))
    assert sizes(picture, decide(picture)) == {"default": 4, "a": 6, "b": 6}
    # and starts whatever those have that say no user, as it does
    plain = JobView(id="default", state="pending", is_default=True, min_nodes=1, max_nodes=9, submit_s=1.0)
    nobody = replace(rigid("nobody", 4), state="running", nodes=4, start_s=0.0)
    picture = view(3, nobody, plain, waiting("b", user="bob", submit_s=2.0))
    assert sizes(picture, decide(picture)) == {"nobody": 4, "default": 1, "b": 2}


def test_a_job_starts_at_what_it_asked_for_or_at_most_at_what_it_prefers() -> None:
    exact, prefers = waiting("exact", 2, 20, start_nodes=4), waiting("prefers", 2, 20, preferred_nodes=3)
    picture = view(20, exact, prefers)
    assert sizes(picture, decide(picture)) == {"exact": 4, "prefers": 3}


def test_an_evolving_job_gets_what_those_that_start_leave() -> None:
    asks = replace(running("asks", 2), kind="evolving", requested_nodes=4)
    for idle, after in ((2, 2), (3, 2), (4, 4)):
        picture = view(idle, asks, rigid("new", 2, submit_s=1.0))
        assert sizes(picture, decide(picture)) == {"asks": after, "new": 2}


@pytest.mark.parametrize("brief", [False, True])
def test_nobody_who_waits_in_vain_leaves_nodes_to_one_that_asks_for_more(brief: bool) -> None:
    """The same with reasons and without: where nobody can start, looking at them may be left out."""
    asks = replace(running("asks", 2, max_nodes=3), kind="evolving", requested_nodes=3)
    picture = view(2, asks, waiting("head", 4, submit_s=1.0), brief=brief)
    assert sizes(picture, decide(picture)) == {"asks": 2, "head": 0}


def test_a_small_new_job_does_not_speak_for_the_large_old_one_beside_it() -> None:
    old = [running(user, 10, 1e4, user=user, submit_s=1.0) for user in ("ada", "bob")]
    probe = waiting("probe", 1, 1, user="ada", submit_s=2.0)
    picture = view(0, *old, probe)
    assert sizes(picture, decide(picture)) == {"ada": 9, "bob": 10, "probe": 1}
    # but it comes first among the jobs of its user
    picture = view(0, *old, replace(probe, max_nodes=64))
    assert sizes(picture, decide(picture)) == {"ada": 1, "bob": 10, "probe": 9}


def test_a_user_starts_no_more_than_fits_into_the_share_while_others_want_nodes() -> None:
    many = [waiting(f"a{i}", user="ada", submit_s=float(i)) for i in range(10)]
    one = waiting("b", user="bob", submit_s=10.0)
    picture = view(12, *many, one)
    decision = decide(picture)
    after = sizes(picture, decision)
    assert after == {**{f"a{i}": int(i < 6) for i in range(10)}, "b": 6}
    assert {a.reason.code for a in decision.actions if isinstance(a, Hold)} == {ReasonCode.POOL_SHARED}
    # what nobody else could use is there for all; nobody waits longer than the patience for a share
    picture = view(12, *many, replace(one, max_nodes=2))
    assert sum(sizes(picture, decide(picture)).values()) == 12
    assert sizes(picture, decide(picture))["a9"] == 1
    late = view(12, *many, replace(one, submit_s=90.0), now_s=100.0)
    assert sizes(late, decide(late)) == {**{f"a{i}": 1 for i in range(10)}, "b": 2}


user_groups = st.dictionaries(
    st.sampled_from(["ada", "bob", "eve", "kim"]),
    st.tuples(st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0, 3.0])),
    min_size=2,
)


@given(user_groups, st.integers(0, 60), st.sampled_from([0.0, 15.0, 5000.0]))
def test_users_always_share_by_weight(groups: dict[str, tuple[int, float]], idle: int, had: float) -> None:
    # all have had the same for each unit of their weight
    jobs = [
        running(f"{user}{i}", 1, had * weight / count, user=user, weight=weight)
        for user, (count, weight) in groups.items()
        for i in range(count)
    ]
    picture = view(idle, *jobs)
    after = sizes(picture, decide(picture, resize_cost_s=0))
    held: Counter[str] = Counter()
    for job in jobs:
        held[job.user] += after[job.id]
    for one, (count, weight) in groups.items():
        for other, (_, other_weight) in groups.items():
            if held[one] > count:  # more than the minimum of its jobs
                assert (held[one] - 1) / weight <= (held[other] + 1) / other_weight * (1 + 1e-9)
    assert sum(held.values()) == idle + len(jobs)


def test_what_busy_users_attain_approaches_the_proportion_of_their_weights() -> None:
    weights = {"ada": 3.0, "bob": 1.0}
    policy = create("fair")
    state = policy.initial_state()
    jobs = [running(user, 8, user=user, weight=weight) for user, weight in weights.items()]
    for second in range(2000):
        picture = view(0, *jobs, now_s=float(second))
        decision, state = policy.decide(picture, state)
        after = sizes(picture, decision)
        jobs = [
            replace(job, nodes=after[job.id], attained_node_s=job.attained_node_s + after[job.id])
            for job in jobs
        ]
    ada, bob = jobs
    assert ada.attained_node_s / bob.attained_node_s == pytest.approx(3.0, rel=0.1)


# -------------------------------------------------------------------------- guards


def test_what_was_resized_a_moment_ago_keeps_its_size_unless_a_job_starts() -> None:
    jobs = running("a", 2, 5.0), running("b", 8, 1e5)
    state = FairState(jobs={"a": SeenSize(nodes=2), "b": SeenSize(nodes=8, changed_s=49.0)})
    assert resizes(decide(view(0, *jobs), state)) == []
    assert resizes(decide(view(0, *jobs), state, cooldown_s=0.5))
    assert resizes(decide(view(0, *jobs, now_s=51.5), state))
    starts = view(0, *jobs, waiting("c"))
    assert sizes(starts, decide(starts, state))["b"] < 8
    idle = view(4, running("b", 8, 1e5))
    assert sizes(idle, decide(idle, state)) == {"b": 12}, "an idle node is of use to nobody"


def test_the_state_remembers_when_sizes_changed() -> None:
    policy = create("fair")
    _, state = policy.decide(view(0, running("a", 2)), policy.initial_state())
    assert state == FairState(jobs={"a": SeenSize(nodes=2)})
    _, state = policy.decide(view(0, running("a", 3), now_s=60.0), state)
    assert state == FairState(jobs={"a": SeenSize(nodes=3, changed_s=60.0)})


def test_a_job_that_is_about_to_end_is_not_resized() -> None:
    ending = running("ending", 8, 1e5, remaining_s=0.05)
    picture = view(0, ending, waiting("new"))
    assert sizes(picture, decide(picture)) == {"ending": 8, "new": 0}
    # one that has outlived its time may run for ever
    picture = view(0, replace(ending, remaining_s=0.0), waiting("new"))
    assert sizes(picture, decide(picture))["new"] == 7


def test_a_job_above_its_most_keeps_what_its_share_allows() -> None:
    # its most has been lowered since; it grows no more, and gives up what others are to have
    large = running("large", 6, max_nodes=4)
    assert resizes(decide(view(8, large))) == []
    for weight, nodes in ((1.0, 4), (9.0, 6)):
        picture = view(2, replace(large, weight=weight), waiting("new", user="ada"))
        assert sizes(picture, decide(picture)) == {"large": nodes, "new": 8 - nodes}


def test_what_legal_sizes_leave_over_goes_to_who_has_had_less() -> None:
    picture = view(3, running("old", 3, 10.0, constraint="pof2"), running("new", 2, constraint="even"))
    assert sizes(picture, decide(picture)) == {"old": 2, "new": 6}


def test_room_is_made_for_who_starts_only_where_idle_nodes_are_not_enough() -> None:
    misfit = running("misfit", 6, constraint="pof2", min_nodes=4, max_nodes=12)
    for size, code in ((5, ReasonCode.POOL_SHARED), (6, ReasonCode.HEAD_JOB_WAITS)):
        picture = view(5, misfit, rigid("new", size, submit_s=1.0))
        decision = decide(picture)
        assert sizes(picture, decision) == {"misfit": 4, "new": size}
        assert resizes(decision)[0].reason.code is code
    # of one that starts on more than its least, that counts
    picture = view(2, running("old", 8, 1e4), waiting("new", 1))
    assert resizes(decide(picture))[0].reason.data["head"] == "new"


def test_growth_must_save_more_than_it_costs() -> None:
    # 20 node-seconds are expected to be left: 2 s on 10 nodes, 1.82 s on 11
    job = running("a", 10, 20.0)
    assert resizes(decide(view(1, job), resize_cost_s=0.2)) == []
    assert resizes(decide(view(1, job), resize_cost_s=0.1))
    assert resizes(decide(view(1, replace(job, remaining_s=0.5)), resize_cost_s=0.1)) == []


def test_no_job_is_resized_under_the_lock_while_another_is_adapting() -> None:
    jobs = running("a", 8, 1e5), replace(running("b", 2), state="adapting"), waiting("c", 2)
    decision = decide(view(1, *jobs, lock="system"))
    assert resizes(decision) == []
    assert [a.reason.code for a in decision.actions] == [ReasonCode.LOCKED]
    assert resizes(decide(view(1, *jobs, lock="job")))
