"""The I/O-aware policy against its equations, computed in another way."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import queued_mix, running_mix

from dask_hpc_policies.decision import Decision, Expand, ReasonCode, Shrink, Start
from dask_hpc_policies.jobs.constraints import (
    CONSTRAINTS,
    largest_at_most,
    legal_sizes,
    next_higher,
    smallest_at_least,
)
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.io.balance import Balance
from dask_hpc_policies.rules.io.candidates import SAME, _floor, _next
from dask_hpc_policies.rules.io.intensity import Mix, job_intensity, preferred_size
from dask_hpc_policies.rules.io.policy import IoAwareState


def whole_mix(view: ClusterSnapshot) -> Mix:
    """The mix of all jobs of the picture, computed from scratch."""
    return running_mix(view.jobs).joined(queued_mix(view.pending))


def rigid(id: str, size: int, io: float, **fields: Any) -> JobView:
    return JobView(
        id=id, kind="rigid", start_nodes=size, min_nodes=size, max_nodes=size, io_intensity=io, **fields
    )


def malleable(id: str, lo: int, hi: int, io: dict[int, float], **fields: Any) -> JobView:
    return JobView(id=id, min_nodes=lo, max_nodes=hi, io_by_nodes=tuple(io.items()), **fields)


def decide(jobs: list[JobView], idle: int, **params: Any) -> Decision:
    policy = create("io-aware", **params)
    return policy.decide(
        ClusterSnapshot(now_s=1.0, jobs=tuple(jobs), idle_nodes=idle), policy.initial_state()
    )[0]


def started(decision: Decision) -> list[tuple[str, int]]:
    return [(a.job, a.nodes) for a in decision.actions if isinstance(a, Start)]


# ------------------------------------------------------------------ intensities


def test_intensity_between_and_outside_the_given_sizes() -> None:
    job = malleable("a", 1, 16, {2: 0.2, 4: 0.6})
    assert [job_intensity(job, n) for n in (1, 2, 3, 4, 8)] == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.6])
    assert job_intensity(rigid("b", 3, 0.3), 3) == 0.3
    assert job_intensity(JobView(id="c"), 3) == 0.0


def test_the_workload_is_the_mean_over_the_nodes_of_a_machine_that_holds_all_jobs() -> None:
    jobs = (
        rigid("a", 6, 0.5, state="running", nodes=6),
        malleable("b", 2, 8, {2: 0.0, 4: 0.25, 8: 1.0}, preferred_nodes=4),
    )
    view = ClusterSnapshot(now_s=0.0, jobs=jobs, idle_nodes=90)
    assert whole_mix(view).intensity == pytest.approx((0.5 * 6 + 0.25 * 4) / 10)
    assert running_mix(jobs).intensity == 0.5


def of_one_intensity(draw: st.DrawFn, index: int) -> JobView:
    constraint = draw(st.sampled_from(CONSTRAINTS))
    lo = smallest_at_least(constraint, draw(st.integers(1, 6)), 100) or 1
    io = draw(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.5, 1.0])))
    return JobView(
        id=f"j{index}", constraint=constraint, min_nodes=lo, max_nodes=lo + draw(st.integers(0, 90)),
        io_intensity=io, submit_s=float(index),
    )  # fmt: skip


@st.composite
def waiting(draw: st.DrawFn, index: int) -> JobView:
    lo = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return rigid(f"j{index}", lo, draw(st.floats(0, 1)), submit_s=float(index))
    if draw(st.booleans()):
        return of_one_intensity(draw, index)
    hi = lo + draw(st.integers(0, 6))
    table = {n: draw(st.floats(0, 1)) for n in range(lo, hi + 1, draw(st.integers(1, 3)))}
    preferred = draw(st.one_of(st.none(), st.integers(lo, hi)))
    return malleable(f"j{index}", lo, hi, table, preferred_nodes=preferred, submit_s=float(index))


@given(st.data())
def test_sums_kept_step_by_step_equal_those_computed_anew(data: st.DataObject) -> None:
    balance: Balance[str] = Balance()
    queue: list[JobView] = []
    running: dict[str, JobView] = {}
    for i in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["submit", "submit", "start", "end", "resize"]))
        if what == "submit":
            job = data.draw(waiting(i))
            place = data.draw(st.integers(0, len(queue)))
            queue.insert(place, job)
            balance.submit(job.id, job, place)
        elif what == "start" and queue:
            place = data.draw(st.integers(0, len(queue) - 1))
            job = queue.pop(place)
            assert balance.leave(place) == job.id
            nodes = data.draw(st.sampled_from(legal_sizes(job.constraint, job.min_nodes, job.max_nodes)))
            running[job.id] = replace(job, state="running", nodes=nodes)
            balance.run(job.id, nodes, job_intensity(job, nodes))
        elif running:
            job = running[data.draw(st.sampled_from(sorted(running)))]
            if what == "end":
                del running[job.id]
                balance.end(job.id)
            elif what == "resize":
                nodes = data.draw(st.integers(job.min_nodes, job.max_nodes))
                running[job.id] = replace(job, nodes=nodes)
                balance.run(job.id, nodes, job_intensity(job, nodes))
        view = ClusterSnapshot(now_s=0.0, jobs=(*running.values(), *queue))
        assert balance.system == running_mix(running.values())
        assert balance.queued == queued_mix(queue)
        assert balance.workload == whole_mix(view).intensity
        assert balance.keys == [job.id for job in queue]


# -------------------------------------------------------------------- candidates


def priorities(
    queue: list[JobView], running: list[JobView], reordering: float
) -> list[tuple[float, float, int, int]]:
    """(weighted priority, distance, place, nodes) of every candidate, equation by equation."""
    system = running_mix(running)
    parts = [(preferred_size(job), job) for job in queue]
    io = system.io_nodes + sum(n * job_intensity(job, n) for n, job in parts)
    workload = io / (system.nodes + sum(n for n, _ in parts))
    tuples = []
    for place, job in enumerate(queue):
        for nodes in legal_sizes(job.constraint, job.min_nodes, job.max_nodes):
            new = (system.io_nodes + job_intensity(job, nodes) * nodes) / (system.nodes + nodes)  # (4.6)
            tuples.append((place, nodes, abs(workload - new)))  # (4.7)
    low, high = min(d for _, _, d in tuples), max(d for _, _, d in tuples)
    last = len(queue) + len(running) - 1
    found = []
    for place, nodes, delta in tuples:
        fairness = place / last if last else 0.0  # (4.5)
        norm = (delta - low) / (high - low) if high - low > SAME else 0.0  # (4.8)
        found.append(((1 - reordering) * fairness + reordering * norm, delta, place, nodes))  # (4.9)
    return found


@examples(200)
@given(st.data(), st.floats(0, 1), st.integers(0, 14), st.booleans())
def test_the_best_candidate_is_that_of_the_equations(
    data: st.DataObject, reordering: float, idle: int, block: bool
) -> None:
    queue = [data.draw(waiting(i)) for i in range(data.draw(st.integers(1, 6)))]
    running = [
        replace(job, state="running", nodes=job.min_nodes)
        for job in (data.draw(waiting(i)) for i in range(10, 10 + data.draw(st.integers(0, 4))))
    ]
    balance: Balance[str] = Balance()
    for job in queue:
        balance.submit(job.id, job)
    for job in running:
        balance.run(job.id, job.nodes, job_intensity(job, job.nodes))
    found = balance.best(balance.system, idle, reordering, block=block)
    listed = priorities(queue, running, reordering)
    if not block:
        assert (found is None) == all(row[3] > idle for row in listed)
        return
    # Rounding may decide between candidates that are equal.
    first = [row for row in listed if row[0] <= min(listed)[0] + 1e-9]
    if found is None:
        assert any(row[3] > idle for row in first)
    else:
        assert found.nodes <= idle
        assert found.place in {row[2] for row in first}
        least = min(row[1] for row in listed if row[2] == found.place)
        assert found.delta == pytest.approx(least, abs=1e-9)


@examples(300)
@given(st.data(), st.integers(0, 60))
def test_other_sizes_of_a_running_job_come_nearest_first_and_none_is_left_out(
    data: st.DataObject, idle: int
) -> None:
    job = data.draw(waiting(0))
    sizes = legal_sizes(job.constraint, job.min_nodes, job.max_nodes)
    now = data.draw(st.sampled_from(sizes))
    balance: Balance[str] = Balance()
    balance.submit_all((f"q{i}", data.draw(waiting(i))) for i in range(data.draw(st.integers(0, 4))))
    balance.run(job.id, now, job_intensity(job, now))
    for i in range(data.draw(st.integers(0, 3))):
        balance.run(f"r{i}", data.draw(st.integers(1, 9)), data.draw(st.floats(0, 1)))
    found = list(balance.sizes_by_distance(job.id, job, idle))
    assert sorted(row[0] for row in found) == [n for n in sizes if n != now and n <= now + idle]
    rest = balance.system.plus(job_intensity(job, now), -now)
    for nodes, intensity, delta in found:
        assert intensity == job_intensity(job, nodes)
        new = (rest.io_nodes + intensity * nodes) / (rest.nodes + nodes)
        assert delta == pytest.approx(abs(balance.workload - new), abs=1e-12)
    for before, after in pairwise(found):
        assert before[2] <= after[2] + 1e-12


def test_the_leader_is_looked_for_anew_when_it_has_left() -> None:
    balance: Balance[str] = Balance()
    balance.submit_all([("a", rigid("a", 4, 0.3)), ("b", rigid("b", 2, 0.3))])
    for nodes in (4, 2):
        leader = balance.leader(Mix(), 0.4)
        assert leader is not None
        assert leader.nodes == nodes
        balance.leave(leader.place)
    assert balance.leader(Mix(), 0.4) is None


@pytest.mark.parametrize("io", [0.0, 0.3, 1 / 3])
def test_of_sizes_that_balance_equally_the_larger_comes_first(io: float) -> None:
    job = rigid("m", 3, io)
    alone: Balance[str] = Balance()
    alone.run("m", 3, io)
    any_size = replace(job, kind="malleable", min_nodes=1, max_nodes=6)
    assert [row[0] for row in alone.sizes_by_distance("m", any_size, 3)] == [6, 5, 4, 2, 1]
    alone.submit("q", replace(any_size, id="q", start_nodes=None))
    choice = alone.leader(alone.system, 0.5)
    assert choice is not None
    assert choice.nodes == 6


@given(st.sampled_from(CONSTRAINTS), st.integers(1, 10**6))
def test_sizes_of_many_jobs_at_once_are_those_of_each(constraint: str, nodes: int) -> None:
    code = np.array([CONSTRAINTS.index(constraint), 0.0])
    legal = largest_at_most(constraint, nodes, 1)
    if legal is None:
        return
    assert _floor(code, np.array([nodes + 0.5, nodes])).tolist() == [legal, nodes]
    assert _next(code, np.array([legal, nodes])).tolist() == [
        next_higher(constraint, legal, 10**9),
        nodes + 1,
    ]


def test_reordering_nothing_is_first_come_first_served() -> None:
    jobs = [rigid("a", 4, 0.9), rigid("b", 9, 0.0), rigid("c", 2, 0.5)]
    assert started(decide(jobs, 8, reordering=0.0)) == [("a", 4)], "b does not fit, and is waited for"
    assert started(decide(jobs, 15, reordering=0.0)) == [("a", 4), ("b", 9), ("c", 2)]


def test_jobs_are_told_for_whom_they_wait() -> None:
    running = rigid("r", 4, 0.9, state="running", nodes=4)
    decision = decide([running, rigid("io", 4, 0.9), rigid("cpu", 6, 0.1)], 5, reordering=0.9)
    reasons = {a.job: a.reason for a in decision.actions}
    assert reasons["cpu"].code is ReasonCode.NOT_ENOUGH_NODES
    assert reasons["io"].code is ReasonCode.BEHIND_HEAD
    assert reasons["io"].data == {"head": "cpu"}


def test_skipping_starts_what_fits() -> None:
    jobs = [rigid("a", 4, 0.9), rigid("b", 9, 0.0), rigid("c", 2, 0.5)]
    assert started(decide(jobs, 8, reordering=0.0, unfitting="skip")) == [("a", 4), ("c", 2)]


def test_an_unlike_job_overtakes() -> None:
    running = rigid("r", 4, 0.9, state="running", nodes=4)
    queue = [rigid("io", 4, 0.9), rigid("cpu", 4, 0.1)]
    assert started(decide([running, *queue], 4, reordering=0.0)) == [("io", 4)]
    assert started(decide([running, *queue], 4, reordering=0.6)) == [("cpu", 4)]


def test_a_size_is_chosen_that_balances() -> None:
    running = rigid("r", 4, 0.8, state="running", nodes=4)
    job = malleable("m", 2, 8, {2: 0.0, 8: 0.0}, preferred_nodes=4)
    # The workload is (4 * 0.8 + 4 * 0) / 8 = 0.4: four nodes without I/O bring the system there.
    assert started(decide([running, job], 8, reordering=1.0)) == [("m", 4)]


# -------------------------------------------------------------- scheduling points


def test_a_job_grows_where_that_balances_and_only_at_a_scheduling_point() -> None:
    queue = [rigid("q", 100, 0.4)]
    io = rigid("io", 4, 0.8, state="running", nodes=4)
    job = malleable("m", 1, 8, {1: 0.0, 8: 0.0}, state="running", nodes=1)
    grown = [a for a in decide([io, job, *queue], 9).actions if isinstance(a, Expand)]
    assert [(a.job, a.nodes) for a in grown] == [("m", 4)], "4 * 0.8 over 8 nodes is 0.4"
    between = replace(job, at_scheduling_point=False)
    assert not [a for a in decide([io, between, *queue], 9).actions if isinstance(a, Expand)]


def test_a_job_shrinks_only_for_a_better_one() -> None:
    # Too much I/O runs; the job that would balance it needs one node more than is idle.
    heavy = malleable("m", 2, 8, {2: 0.9, 8: 0.9}, state="running", nodes=8)
    other = rigid("r", 4, 0.1, state="running", nodes=4)
    cpu, late = rigid("cpu", 4, 0.0), rigid("late", 100, 0.475)
    decision = decide([heavy, other, cpu, late], 3, reordering=0.1)
    # (4 * 0.9 + 4 * 0.1) / 8 = 0.5 is nearest to the 0.475 of the workload.
    assert [(a.job, a.nodes) for a in decision.actions if isinstance(a, Shrink)] == [("m", 4)]
    assert started(decision) == [("cpu", 4)]
    # Nobody waits who could use the nodes: it keeps them, although fewer would balance better.
    assert not [a for a in decide([heavy, other, late], 3).actions if isinstance(a, Shrink)]


def test_with_nobody_waiting_jobs_grow_into_what_is_idle() -> None:
    alone = malleable("m", 1, 8, {1: 0.9, 8: 0.1}, state="running", nodes=2)
    other = rigid("r", 4, 0.1, state="running", nodes=4)
    grown = [a for a in decide([alone, other], 3).actions if isinstance(a, Expand)]
    assert [(a.job, a.nodes) for a in grown] == [("m", 5)]


@examples(100)
@given(st.data(), st.floats(0, 1))
def test_every_resize_brings_the_intensities_nearer(data: st.DataObject, reordering: float) -> None:
    jobs = [data.draw(waiting(i)) for i in range(data.draw(st.integers(1, 4)))]
    for i in range(10, 10 + data.draw(st.integers(1, 4))):
        job = data.draw(waiting(i))
        jobs.append(replace(job, state="running", nodes=data.draw(st.integers(job.min_nodes, job.max_nodes))))
    decision = decide(jobs, data.draw(st.integers(0, 10)), reordering=reordering)
    moved = [a for a in decision.actions if isinstance(a, (Expand, Shrink))]
    if len(moved) != 1 or started(decision):
        return
    after = [replace(j, nodes=moved[0].nodes) if j.id == moved[0].job else j for j in jobs]

    def distance(listed: list[JobView]) -> float:
        view = ClusterSnapshot(now_s=0.0, jobs=tuple(listed))
        return abs(running_mix(view.running).intensity - whole_mix(view).intensity)

    assert distance(after) < distance(jobs)


# ------------------------------------------------------------- run-time adaptation


def test_adaptive_reordering_follows_the_workload() -> None:
    state = IoAwareState()
    assert state.share(0.3) == 1.0, "nothing is known yet"
    for intensity in (0.2, 0.6, 0.4):
        state = state.seen(intensity)
    assert (state.lowest, state.highest) == (0.2, 0.6)
    assert [state.share(x) for x in (0.2, 0.4, 0.6)] == pytest.approx([0.0, 0.5, 1.0])


def test_adaptive_reordering_is_fair_while_there_is_little_io() -> None:
    policy = create("io-aware", reordering=0.6, adaptive=True)
    running = rigid("r", 4, 0.9, state="running", nodes=4)
    queue = [rigid("io", 4, 0.9), rigid("cpu", 4, 0.1)]
    view = ClusterSnapshot(now_s=1.0, jobs=(running, *queue), idle_nodes=4)
    now = whole_mix(view).intensity
    calm, _ = policy.decide(view, IoAwareState(lowest=now, highest=1.0))
    peak, _ = policy.decide(view, IoAwareState(lowest=0.0, highest=now))
    assert started(calm) == [("io", 4)]
    assert started(peak) == [("cpu", 4)]


def test_a_mix_without_nodes_has_no_intensity() -> None:
    assert Mix().intensity == 0.0
    assert Mix().plus(0.1, 3).plus(0.3, 7).plus(0.1, -3).plus(0.3, -7) == Mix()


def test_work_that_needs_no_node_of_its_own_has_no_intensity() -> None:
    plain = JobView(id="default-1", is_default=True, start_nodes=0, min_nodes=0, max_nodes=0)
    decision = decide([plain, rigid("a", 2, 0.5)], idle=0)
    assert [action.nodes for action in decision.actions if isinstance(action, Start)] == [0]
