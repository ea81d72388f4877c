"""Whole workloads under every policy: nobody starves, nodes are never given twice.

A tiny world: jobs are work in node-seconds that speeds up linearly, decisions take effect at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.combine.guards import Cooldown, Hysteresis
from dask_hpc_policies.decision import Decision, Expand, Shrink, Start
from dask_hpc_policies.jobs.constraints import CONSTRAINTS, largest_at_most
from dask_hpc_policies.jobs.jobspec import InvalidJob, job_spec, resolve
from dask_hpc_policies.metrics import JobRun, summarize
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.protocol import Policy
from dask_hpc_policies.registry import BUILTIN, create

TICK_S = 10.0


@dataclass
class World:
    pool_nodes: int
    policy: Policy
    #: Jobs to come, with their work in node-seconds.
    arrivals: list[tuple[JobView, float]]
    now_s: float = 0.0
    jobs: dict[str, JobView] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    runs: dict[str, JobRun] = field(default_factory=dict)

    def play(self, deadline_s: float) -> list[JobRun]:
        state = self.policy.initial_state()
        while self.jobs or self.arrivals:
            assert self.now_s <= deadline_s, f"unfinished after {self.now_s} s: {list(self.jobs)}"
            while self.arrivals and self.arrivals[0][0].submit_s <= self.now_s:
                job, work = self.arrivals.pop(0)
                self.jobs[job.id], self.work[job.id] = job, work
                self.runs[job.id] = JobRun(id=job.id, submit_s=job.submit_s, state="pending")
            idle = self.pool_nodes - sum(job.nodes for job in self.jobs.values())
            view = ClusterSnapshot(now_s=self.now_s, jobs=tuple(self.jobs.values()), idle_nodes=idle)
            decision, state = self.policy.decide(view, state)
            self.enact(decision)
            self.advance()
        return list(self.runs.values())

    def enact(self, decision: Decision) -> None:
        for action in decision.actions:
            if isinstance(action, (Start, Expand, Shrink)):
                job, run = self.jobs[action.job], self.runs[action.job]
                started = self.now_s if job.start_s is None else job.start_s
                grown = isinstance(action, Expand)
                self.jobs[job.id] = replace(
                    job,
                    state="running",
                    nodes=action.nodes,
                    start_s=started,
                    expansions=job.expansions + grown,
                )
                steps = (*run.nodes, (self.now_s, action.nodes))
                self.runs[job.id] = replace(
                    run, start_s=started, nodes=steps, expansions=run.expansions + grown,
                    shrinks=run.shrinks + isinstance(action, Shrink),
                )  # fmt: skip
        assert sum(job.nodes for job in self.jobs.values()) <= self.pool_nodes

    def advance(self) -> None:
        ends = [self.work[job.id] / job.nodes for job in self.jobs.values() if job.nodes]
        next_s = min([TICK_S, *ends, *(job.submit_s - self.now_s for job, _ in self.arrivals[:1])])
        self.now_s += next_s
        for job in list(self.jobs.values()):
            self.work[job.id] -= job.nodes * next_s
            attained_node_s = job.attained_node_s + job.nodes * next_s
            self.jobs[job.id] = replace(job, attained_node_s=attained_node_s)
            if self.work[job.id] <= 1e-9:
                del self.jobs[job.id]
                self.runs[job.id] = replace(self.runs[job.id], end_s=self.now_s, state="completed")


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[JobView, float]]:
    arrivals = []
    submit_s = 0.0
    for i in range(draw(st.integers(1, 10))):
        submit_s += draw(st.integers(0, 60))
        constraint = draw(st.sampled_from(CONSTRAINTS))
        lo, hi = sorted((draw(st.integers(1, 16)), draw(st.integers(1, 16))))
        nodes = largest_at_most(constraint, draw(st.integers(lo, hi)), lo) if draw(st.booleans()) else None
        try:
            sizes = resolve(
                job_spec(
                    f"j{i}",
                    nodes=nodes,
                    min_nodes=lo,
                    max_nodes=hi,
                    constraint=constraint,
                    rigid=draw(st.booleans()),
                ),
                16,
            )
        except InvalidJob:
            continue
        job = JobView(
            id=f"j{i}", kind=sizes.kind, start_nodes=sizes.start_nodes, min_nodes=sizes.min_nodes,
            max_nodes=sizes.max_nodes, constraint=constraint, submit_s=submit_s,
            mtct=draw(st.one_of(st.none(), st.floats(0, 3))),
        )  # fmt: skip
        arrivals.append((job, float(draw(st.integers(1, 600)))))
    return arrivals


#: Policies that may start a job before one that waits longer.
REORDERING = ("easy", "conservative", "mebf", "io-aware", "sfsj", "fair")
PLAYED: tuple[Policy, ...] = (
    *(create(name) for name in BUILTIN),
    create("fixed", target_nodes=4),
    create("prma-fpsma", max_expansions=None),
    create("pwma-egs", step="next"),
    Hysteresis(create("equipartition"), passes=2),
    Cooldown(create("pwma-fpsma"), cooldown_s=30),
)


@examples(40)
@given(workloads())
@pytest.mark.parametrize("policy", PLAYED, ids=lambda p: p.name)
def test_no_job_ever_starves(policy: Policy, workload: list[tuple[JobView, float]]) -> None:
    # One job after the other on a single node each would take this long.
    bound_s = sum(work for _, work in workload) + sum(job.submit_s for job, _ in workload[-1:])
    runs = World(16, policy, list(workload)).play(bound_s + TICK_S * (len(workload) + 1))
    assert all(run.state == "completed" for run in runs)
    if policy.name not in REORDERING:
        # FCFS: jobs start in the order of submission.
        starts = [run.start_s for run in runs]
        assert starts == sorted(starts, key=lambda s: -1.0 if s is None else s)


def esp_10() -> list[tuple[JobView, float]]:
    """Ten jobs of the reduced ESP benchmark in the order D Z C D J J C G G G, 60 s apart, all malleable."""
    types = {"C": (8, 1204), "D": (4, 513), "G": (2, 696), "J": (1, 522), "Z": (16, 458)}
    return [
        (
            JobView(id=f"{i}{t}", start_nodes=types[t][0], min_nodes=1, max_nodes=16, submit_s=60.0 * i),
            float(types[t][0] * types[t][1]),
        )
        for i, t in enumerate("DZCDJJCGGG")
    ]


@pytest.mark.parametrize(
    ("policy", "makespan_min", "wait_min"),
    [
        ("fcfs", 47.85, 16.2),
        ("pwma-fpsma", 37.4, None),
        ("pwma-egs", 37.4, None),
        ("prma-fpsma", None, None),
        ("equipartition", 37.4, None),
        ("fair", 37.4, None),
    ],
)
def test_reduced_esp_with_linear_speed_up(
    policy: str, makespan_min: float | None, wait_min: float | None
) -> None:
    summary = summarize(World(16, create(policy), esp_10()).play(1e5), 16)
    print(policy, summary["makespan_s"] / 60, summary["mean_wait_s"] / 60, summary["utilization"])
    # 35,916 node-seconds on 16 nodes cannot take less.
    assert 35_916 / 16 - 1 <= summary["makespan_s"] <= 48 * 60
    if makespan_min is not None:
        assert summary["makespan_s"] / 60 == pytest.approx(makespan_min, rel=0.01)
    if wait_min is not None:
        assert summary["mean_wait_s"] / 60 == pytest.approx(wait_min, rel=0.01)
