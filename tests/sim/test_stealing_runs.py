"""Node stealing in the simulator: the published example, and malleable victims on random traces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sim_worlds import malleable, rigid, run, workload

from dask_hpc.sim.model.machine import Failures, NodeFailure
from dask_hpc.sim.workloads import sources
from dask_hpc_policies.metrics import weighted_mean_flow_s
from dask_hpc_policies.registry import create

SEEDS = range(200)


def flows(result: Any) -> list[float]:
    return [one.turnaround_s for one in result.runs]


@pytest.mark.parametrize("tie", ["latest-submission", "shortest-execution"])
def test_flows_of_the_published_example_with_stealing(tie: str) -> None:
    result = run(sources.load("builtin:node-stealing"), create("sfsj", tie=tie))
    assert flows(result) == [8, 11, 11, 21, 10]
    # The source prints 17 without stealing, which is 17.067.
    assert weighted_mean_flow_s(result.runs) == pytest.approx(14.733, abs=5e-4)


@pytest.mark.parametrize("policy", [create("sfsj", timing="never"), create("conservative")])
def test_flows_of_the_published_example_without_stealing(policy: Any) -> None:
    result = run(sources.load("builtin:node-stealing"), policy)
    assert flows(result) == [8, 5, 15, 25, 3]
    assert weighted_mean_flow_s(result.runs) == pytest.approx(256 / 15)


def test_flows_of_the_published_example_without_a_failure() -> None:
    work = sources.load("builtin:node-stealing")
    assert work.machine is not None
    calm = replace(work, machine=replace(work.machine, failures=Failures()))
    assert flows(run(calm, "sfsj")) == [8, 5, 10, 20, 7]


@pytest.mark.parametrize(
    ("timing", "small_s", "large_s"),
    [
        # The small job has saved its first 4 s of 6.
        ("now", 10 + 8, 16.0),
        # It goes on to its checkpoint at 8.
        ("next-checkpoint", None, 18.0),
        # Nothing of it is lost.
        ("proactive-checkpoint", 10 + 6, 16.0),
    ],
)
def test_the_three_timings(timing: str, small_s: float | None, large_s: float) -> None:
    small = rigid("small", 1, 12.0, checkpoint_interval_s=4.0)
    large = rigid("large", 3, 10.0)
    failure = NodeFailure(t_s=6.0, node=3, downtime_s=4.0)
    work = workload(small, large, nodes=4, failures=Failures(listed=(failure,)))
    result = run(work, create("sfsj", timing=timing))
    ends = {one.id: one.end_s for one in result.runs}
    assert ends["large"] == large_s
    if small_s is not None:
        assert ends["small"] == small_s
    else:
        # Interrupted at 8 with 8 s done; a node is back at 10, and 4 s are left.
        assert ends["small"] == 14.0


def test_a_malleable_victim_runs_on_and_gets_its_node_back() -> None:
    victim = malleable("victim", 4, 2, 4, 20.0)
    thief = rigid("thief", 4, 10.0)
    failure = NodeFailure(t_s=5.0, node=7, downtime_s=5.0)
    result = run(workload(victim, thief, nodes=8, failures=Failures(listed=(failure,))), "sfsj")
    sizes = {one.id: one.nodes for one in result.runs}
    assert sizes["victim"] == ((0.0, 4), (5.0, 3), (10.0, 4), (21.25, 0)), "80 node-seconds of work"
    assert {one.id: one.end_s for one in result.runs}["thief"] == 15.0


def means(seeds: range, share: float, **params: Any) -> list[float]:
    found = []
    for seed in seeds:
        work = sources.load("builtin:node-failures", seed=seed, malleable=share)
        found.append(weighted_mean_flow_s(run(work, create("sfsj", **params)).runs) or 0.0)
    return found


def test_malleable_jobs_flow_faster_on_a_few_random_traces() -> None:
    seeds = range(20)
    assert sum(means(seeds, 0.5)) < sum(means(seeds, 0.0, malleable_victims=False))


@pytest.mark.slow
def test_malleable_victims_lower_the_weighted_mean_flow() -> None:
    source = means(SEEDS, 0.0, malleable_victims=False)
    half = means(SEEDS, 0.5)
    worse = [(seed, a, b) for seed, a, b in zip(SEEDS, source, half, strict=True) if b >= a]
    print("seed, weighted mean flow of rigid and of half malleable jobs:", worse)
    assert sum(half) < sum(source)
    assert len(worse) <= len(SEEDS) / 10
    # The victim rule alone, on the same jobs of which half are malleable: most traces have no such theft.
    alone = means(SEEDS, 0.5, malleable_victims=False)
    better = sum(b < a for a, b in zip(alone, half, strict=True))
    equal = sum(b == a for a, b in zip(alone, half, strict=True))
    print("victim rule alone: better", better, "equal", equal, "worse", len(SEEDS) - better - equal)
    assert sum(half) < sum(alone)
    assert better > len(SEEDS) - better - equal
