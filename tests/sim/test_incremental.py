"""Two ways of asking a policy: of what has changed, and on a whole snapshot. They decide the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_worlds import ends, malleable, mixed_workloads, rigid, run, starts, workload

from dask_hpc.sim import Workload
from dask_hpc.sim.model.machine import PUBLISHED
from dask_hpc_policies import registry


@settings(max_examples=150)
@given(
    mixed_workloads(),
    st.sampled_from(["arrival", "area", "shortest", "longest", "weight"]),
    st.sampled_from(["front", "first-fit", "best-fit"]),
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from(["grouped", "single"]),
)
def test_the_incremental_form_decides_as_decide_does(
    work: Workload, order: str, pick: str, depth: int | None, events: str
) -> None:
    policy = registry.create("easy", order=order, pick=pick, reservation_depth=depth, events=events)
    assert run(work, policy).rows == run(work, policy, snapshots=True).rows
    if pick == "front" and order == "arrival":
        assert run(work, "fcfs").rows == run(work, "fcfs", snapshots=True).rows


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("policy", ["fcfs-malleable", "io-aware"])
def test_a_job_that_starts_small_grows_in_that_moment_and_not_at_the_next_event(
    policy: str, snapshots: bool
) -> None:
    # on 2 nodes it would run for 80 s; nothing else happens while it runs
    work = workload(malleable("a", 2, 2, 8, 80.0))
    (row,) = run(work, policy, snapshots=snapshots).rows
    assert (row.nodes, row.end_s) == (((0.0, 8), (20.0, 0)), 20.0)


@pytest.mark.parametrize("policy", ["fcfs-malleable", "io-aware"])
def test_nodes_that_join_a_job_while_a_resize_takes_its_time_are_given_to_nobody_else(policy: str) -> None:
    # "a" grows to 8 nodes from 0 on, for longer than a second; "b" comes meanwhile, and waits for its end
    work = workload(
        malleable("a", 2, 2, 8, 80.0), rigid("b", 4, 5.0, submit_s=0.5), nodes=8, adaptation=PUBLISHED
    )
    quick = run(work, policy)
    assert quick.rows == run(work, policy, snapshots=True).rows
    assert starts(quick)["b"] == ends(quick)["a"]


@settings(max_examples=100)
@given(
    mixed_workloads(),
    st.sampled_from(["fcfs-malleable", "io-aware"]),
    st.sampled_from([{}, {"adaptation": PUBLISHED}]),
)
def test_the_incremental_form_resizes_as_decide_does(work: Workload, policy: str, cost: Any) -> None:
    work = replace(work, machine=replace(work.machine, **cost))
    quick, slow = run(work, policy), run(work, policy, snapshots=True)
    assert quick.rows == slow.rows
    assert quick.counts.policy_calls == slow.counts.policy_calls
