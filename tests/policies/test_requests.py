"""Requests of evolving jobs are granted or denied, with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from dask_hpc_policies.decision import Decision, Expand, ReasonCode, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create


def evolving(requested: int | None, **fields: Any) -> JobView:
    fields = {"min_nodes": 2, "max_nodes": 8, "nodes": 4, **fields}
    return JobView(id="e", state="running", kind="evolving", start_s=0.0, requested_nodes=requested, **fields)


def ask(*jobs: JobView, idle: int = 0, policy: str = "fcfs") -> Decision:
    made = create(policy)
    view = ClusterSnapshot(now_s=1.0, trigger="request", jobs=jobs, idle_nodes=idle)
    return made.decide(view, made.initial_state())[0]


def moved(decision: Decision) -> list[tuple[str, int]]:
    return [(a.TAG, a.nodes) for a in decision.actions if isinstance(a, (Expand, Shrink))]


@pytest.mark.parametrize("policy", ["fcfs", "easy", "pwma-fpsma", "mebf", "fcfs-malleable", "io-aware"])
def test_more_nodes_are_granted_while_nobody_waits(policy: str) -> None:
    decision = ask(evolving(7), idle=3, policy=policy)
    assert moved(decision) == [("expand", 7)]
    assert decision.actions[0].reason.code is ReasonCode.JOB_REQUEST


@pytest.mark.parametrize(
    ("job", "idle", "code"),
    [
        (evolving(7), 2, ReasonCode.NOT_ENOUGH_NODES),
        (evolving(9), 9, ReasonCode.OUT_OF_BOUNDS),
        (evolving(6, constraint="pof2"), 9, ReasonCode.OUT_OF_BOUNDS),
        (evolving(1, nodes=2), 9, ReasonCode.OUT_OF_BOUNDS),
    ],
)
def test_what_cannot_be_is_denied_with_a_reason(job: JobView, idle: int, code: ReasonCode) -> None:
    decision = ask(job, idle=idle)
    assert moved(decision) == []
    (denied,) = decision.suppressed
    assert denied.reason.code is code
    assert denied.reason.text


@pytest.mark.parametrize("policy", ["fcfs", "io-aware"])
def test_jobs_that_wait_for_nodes_come_first(policy: str) -> None:
    waiting = JobView(id="w", start_nodes=6, min_nodes=6, max_nodes=6)
    decision = ask(evolving(5), waiting, idle=3, policy=policy)
    assert moved(decision) == []
    assert decision.suppressed[0].reason.code is ReasonCode.BEHIND_HEAD
    # one that can have no size waits for none
    never = JobView(id="n", constraint="pof2", min_nodes=3, max_nodes=3)
    decision = ask(evolving(5), never, idle=3, policy=policy)
    assert moved(decision) == [("expand", 5)]
    assert [a.reason.code for a in decision.actions if a.TAG == "hold"] == [ReasonCode.NO_LEGAL_SIZE]


def test_fewer_nodes_are_always_granted() -> None:
    waiting = JobView(id="w", start_nodes=9, min_nodes=9, max_nodes=9)
    assert moved(ask(evolving(3), waiting)) == [("shrink", 3)]
    assert moved(ask(evolving(3, constraint="pof2", nodes=8))) == [("shrink", 4)], "the nearest legal size"
    assert moved(ask(evolving(1))) == [("shrink", 2)], "its minimum"


@pytest.mark.parametrize(
    "policy", ["fcfs", "easy", "prma-fpsma", "pwma-egs", "fcfs-malleable", "mebf", "io-aware", "fair"]
)
def test_who_waits_gets_what_is_given_up_before_others_grow_into_it(policy: str) -> None:
    grows = JobView(id="g", state="running", nodes=4, min_nodes=4, max_nodes=16, start_s=0.0)
    waiting = JobView(id="w", start_nodes=4, min_nodes=4, max_nodes=4, kind="rigid", submit_s=1.0)
    decision = ask(evolving(2), grows, waiting, idle=2, policy=policy)
    assert moved(decision) == [("shrink", 2)]
    assert [a.job for a in decision.actions if isinstance(a, Start)] == ["w"]


def test_a_job_that_is_content_is_left_alone() -> None:
    assert moved(ask(evolving(None), idle=9, policy="pwma-fpsma")) == []
    assert moved(ask(evolving(4), idle=9, policy="pwma-fpsma")) == []
