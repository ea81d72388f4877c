"""What the simulated policies are for: each does it, in small worlds and in the builtin studies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sim_worlds import BECAUSE, Scripted, ends, malleable, rigid, run, starts, workload

from dask_hpc.sim import load, simulate
from dask_hpc.sim.model.machine import Failures, NodeFailure
from dask_hpc.sim.study.runs import run_one, scenarios
from dask_hpc.sim.study.study import load_study
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision, Steal
from dask_hpc_policies.model import ClusterSnapshot

# ------------------------------------------------------------------------- mebf


def test_mebf_shrinks_jobs_of_low_priority_for_the_head() -> None:
    low = malleable("low", 10, 5, 10, 100.0)
    work = workload(low, rigid("head", 2, 10.0, submit_s=20.0, priority=1), nodes=10)
    result = run(work, "mebf")
    assert starts(result)["head"] == 20.0
    assert result.runs[0].shrinks == 1
    assert starts(run(work, "easy"))["head"] == 100.0


def test_mebf_backfills_beside_the_reservation_of_the_head() -> None:
    # small ends before the head can start; late would not, and there is no node to spare for it
    work = workload(
        rigid("long", 8, 100.0), rigid("head", 10, 10.0, submit_s=1.0), rigid("small", 2, 50.0, submit_s=2.0),
        rigid("late", 2, 80.0, submit_s=60.0), nodes=10,
    )  # fmt: skip
    assert starts(run(work, "mebf")) == {"long": 0.0, "small": 2.0, "head": 100.0, "late": 110.0}
    assert starts(run(work, "fcfs")) == {"long": 0.0, "head": 100.0, "small": 110.0, "late": 110.0}


# ------------------------------------------------------------------------- prma


@pytest.mark.parametrize("policy", ["prma-fpsma", "prma-egs"])
@pytest.mark.parametrize(("most", "expansions"), [(0, 0), (1, 1), (2, 2), (None, 3)])
def test_prma_expands_a_job_as_often_as_it_may(policy: str, most: int | None, expansions: int) -> None:
    # the nodes of the three other jobs become idle one after the other
    others = [rigid(f"r{i}", 4, 10.0 * i) for i in (1, 2, 3)]
    work = workload(malleable("grows", 4, 1, 16, 1000.0), *others)
    result = run(work, registry.create(policy, max_expansions=most))
    assert result.runs[0].expansions == expansions
    assert result.runs[0].nodes[-2][1] == 4 + 4 * expansions


# ---------------------------------------------------------------------- studies

#: Whether jobs grow, and whether they shrink, by policy.
DOES = {
    "rigid": (False, False),
    "fcfs": (False, False),
    "easy": (False, False),
    "prma-fpsma": (True, False),
    "prma-egs": (True, False),
    "pwma-fpsma": (True, True),
    "pwma-egs": (True, True),
    "performance-aware": (True, True),
}


@pytest.mark.parametrize(
    ("name", "workload"), [("five-jobs", "five-jobs"), ("esp-10", "all"), ("esp", "esp")]
)
def test_every_policy_of_a_study_resizes_as_it_is_meant_to(name: str, workload: str) -> None:
    study = load_study(f"builtin:{name}", fast=True)
    todo = [one for one in scenarios(study, ("expansions", "shrinks")) if one.workload == workload]
    resizes: dict[str, Counter[str]] = {one.policy: Counter() for one in todo}
    for one in todo:
        resizes[one.policy].update(run_one(one).values)
    print(resizes)
    assert set(resizes) == set(study_policies(study))
    for policy, found in resizes.items():
        assert (found["expansions"] > 0, found["shrinks"] > 0) == DOES[policy], policy


def study_policies(study: Any) -> list[str]:
    return [policy.label for policy in study.policies]


@pytest.mark.parametrize("policy", [name for name in registry.library_names() if name.startswith("builtin-")])
def test_every_policy_of_the_published_studies_resizes_as_it_is_meant_to(policy: str) -> None:
    work = load("builtin:esp-10", malleable=1.0)
    found = simulate(work, policy)
    assert found.counts.refused == 0
    expected = DOES[policy.removeprefix("builtin-study-")]
    assert (found.counts.expansions > 0, found.counts.shrinks > 0) == expected


# ----------------------------------------------------------------- order of service


class Watching(Scripted):
    """Notes who waits, in the order of service, and steals from a job at a given time."""

    def __init__(self, victim: str, thief: str, at_s: float) -> None:
        super().__init__({})
        self.theft = Steal(job=victim, thief=thief, stolen_nodes=1, reason=BECAUSE)
        self.at_s = at_s
        self.waiting: dict[float, list[str]] = {}

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        self.waiting[view.now_s] = [job.id for job in view.pending]
        robs = view.now_s == self.at_s and any(job.id == self.theft.job for job in view.running)
        return (Decision(actions=(self.theft,)), None) if robs else super().decide(view, state)


def test_jobs_wait_in_the_order_failed_robbed_others_whatever_their_priority() -> None:
    # Robbed has the nodes 0 to 5. Node 6 is lost at 5, and failed with it; robbed gives way at 6.
    failing = Failures(listed=(NodeFailure(t_s=5.0, node=6, downtime_s=100.0),))
    work = workload(
        rigid("failed", 6, 30.0), rigid("robbed", 6, 30.0, priority=1), rigid("rest", 8, 20.0),
        rigid("first", 16, 10.0, submit_s=1.0, priority=9), rigid("clock", 1, 1.0, submit_s=6.0, priority=-1),
        nodes=20, failures=failing,
    )  # fmt: skip
    policy = Watching("robbed", "first", 6.0)
    run(work, policy)
    assert policy.waiting[1.0] == ["first"]
    assert policy.waiting[5.0] == ["failed", "first"]
    assert policy.waiting[6.0] == ["failed", "robbed", "first", "clock"]


@pytest.mark.parametrize("policy", ["fcfs", "easy", "pwma-fpsma"])
def test_a_failed_job_starts_again_before_those_that_are_served_first_otherwise(policy: str) -> None:
    failing = Failures(listed=(NodeFailure(t_s=5.0, node=0, downtime_s=1.0),))
    work = workload(
        rigid("a", 8, 10.0), rigid("b", 8, 10.0, submit_s=1.0, priority=5), nodes=8, failures=failing
    )
    assert ends(run(work, policy)) == {"a": 16.0, "b": 26.0}
