"""One pass of the I/O-aware policy, step by step: each goes by what those before it have come to."""

from __future__ import annotations

from typing import Any

from dask_hpc_policies.decision import Decision, Hold
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create
from dask_hpc_policies.rules.io.balance import Balance
from dask_hpc_policies.rules.io.policy import IoAwareState


def waits(id: str, lo: int, hi: int, io: float, **fields: Any) -> JobView:
    return JobView(id=id, min_nodes=lo, max_nodes=hi, io_intensity=io, **fields)


def runs(id: str, lo: int, hi: int, io: float, nodes: int, state: Any = "running") -> JobView:
    return waits(id, lo, hi, io, nodes=nodes, state=state)


def decide(jobs: list[JobView], idle: int, reordering: float, lock: Any = "job", **params: Any) -> Decision:
    policy = create("io-aware", reordering=reordering, **params)
    view = ClusterSnapshot(now_s=1.0, jobs=tuple(jobs), idle_nodes=idle, lock=lock)
    return policy.decide(view, policy.initial_state())[0]


def test_nobody_shrinks_for_a_job_that_brings_the_intensities_no_nearer() -> None:
    jobs = [runs("a", 2, 3, 0.5, 2), runs("b", 4, 7, 0.0, 7), waits("q", 5, 5, 0.3)]
    assert acts(decide(jobs, 3, 0.2, unfitting="skip")) == "expand a 3"


def test_nobody_shrinks_for_a_job_that_fits_as_it_is() -> None:
    jobs = [runs("a", 3, 3, 0.3, 3), runs("b", 3, 8, 0.0, 7), waits("q", 3, 6, 0.3)]
    assert acts(decide(jobs, 4, 0.0, unfitting="skip")) == "start q 4"


def test_all_that_run_are_looked_at_before_anybody_starts() -> None:
    jobs = [runs("a", 2, 6, 0.3, 3), runs("b", 1, 3, 0.5, 1), waits("q", 1, 1, 0.3)]
    assert acts(decide(jobs, 3, 0.9)) == "expand a 4, start q 1"


def test_plain_work_that_starts_does_not_count() -> None:
    plain = waits("plain", 1, 1, 0.0, start_nodes=1, is_default=True)
    jobs = [runs("a", 1, 2, 0.0, 1), plain, waits("q", 3, 5, 0.5), waits("late", 5, 5, 0.3)]
    assert acts(decide(jobs, 5, 0.0, unfitting="skip")) == "start plain 1, start q 3"


def test_a_size_that_is_locked_does_not_count() -> None:
    there = [runs("a", 1, 4, 0.1, 1), runs("b", 1, 3, 0.5, 1), runs("c", 1, 4, 0.9, 2, "adapting")]
    jobs = [*there, waits("q", 2, 2, 0.3)]
    found = acts(decide(jobs, 6, 0.5, lock="system", unfitting="skip"))
    assert found == "start q 2, not expand a 2, not expand b 3"


def test_a_job_is_told_the_size_that_it_waits_for() -> None:
    jobs = [runs("a", 4, 10, 0.9, 4), waits("q", 1, 5, 0.5)]
    for how, text in (("block", "is started on 5 nodes, idle are 0"), ("skip", "would be started on 1")):
        (told,) = [a.reason.text for a in decide(jobs, 0, 0.2, unfitting=how).actions]
        assert told.startswith(text)


def test_a_cluster_without_jobs_says_nothing_of_the_workload() -> None:
    policy = create("io-aware", adaptive=True)
    assert policy.decide(ClusterSnapshot(now_s=1.0), policy.initial_state())[1] == IoAwareState()


def test_of_jobs_that_balance_equally_the_one_that_waits_longest_starts_first() -> None:
    jobs = [waits("a", 1, 3, 0.3), waits("b", 2, 2, 0.3)]
    assert acts(decide(jobs, 5, 1.0)) == "start a 3, start b 2"


def test_a_job_of_hundreds_of_sizes_finds_room_beside_others() -> None:
    balance: Balance[str] = Balance()
    balance.submit("narrow", waits("narrow", 1, 1, 0.0))
    balance.submit("wide", waits("wide", 1, 300, 0.5, io_by_nodes=((1, 0.0), (300, 1.0))), 0)
    leader = balance.leader(balance.system, 0.0)
    assert leader is not None
    assert (leader.place, leader.nodes) == (0, 299)


def acts(decision: Decision) -> str:
    done = [f"{a.TAG} {a.job} {a.nodes}" for a in decision.actions if not isinstance(a, Hold)]
    refused = [f"not {each.action.TAG} {each.action.job} {each.action.nodes}" for each in decision.suppressed]
    return ", ".join([*done, *refused])
