"""Node stealing on a toy machine: the published example, and what the rules promise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest

from dask_hpc_policies.decision import Expand, Hold, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.registry import create


@dataclass
class Machine:
    """Rigid jobs without checkpoints on numbered nodes; one node fails."""

    nodes: int
    jobs: dict[str, JobView]
    lengths: dict[str, float]
    failure_s: float = inf
    failed_node: int = 0
    downtime_s: float = 0.0
    held: dict[int, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    flows: dict[str, float] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)

    def play(self, name: str, **params: Any) -> list[float]:
        policy = create(name, **params)
        state = policy.initial_state()
        now_s = 0.0
        while self.jobs:
            again = True
            while again:
                free = [n for n in range(1, self.nodes + 1) if n not in self.held and n not in self.down]
                back = (self.failure_s + self.downtime_s,) if self.down else ()
                views = tuple(self.view(job, now_s) for job in self.jobs.values())
                view = ClusterSnapshot(now_s=now_s, jobs=views, idle_nodes=len(free), returns_s=back)
                decision, state = policy.decide(view, state)
                acts = [a for a in decision.actions if isinstance(a, (Start, Steal))]
                again = any(isinstance(a, Steal) for a in acts)
                for action in sorted(acts, key=lambda a: isinstance(a, Start)):
                    if isinstance(action, Steal):
                        self.interrupt(action.job, "theft", now_s)
                    else:
                        free = [n for n in range(1, 9) if n not in self.held and n not in self.down]
                        assert action.nodes <= len(free)
                        self.held.update(dict.fromkeys(free[: action.nodes], action.job))
                        self.started[action.job] = now_s
            ends = [self.started[id] + self.lengths[id] for id in self.started]
            back_s = self.failure_s + self.downtime_s
            now_s = min(t for t in [*ends, self.failure_s, back_s] if t > now_s)
            for id in [id for id in self.started if self.started[id] + self.lengths[id] <= now_s]:
                self.flows[id] = now_s - self.jobs.pop(id).submit_s
                self.leave(id)
            if now_s == back_s:
                self.down.clear()
            if now_s == self.failure_s:
                if self.failed_node in self.held:
                    self.interrupt(self.held[self.failed_node], "failure", now_s)
                self.down.add(self.failed_node)
        return [self.flows[id] for id in self.lengths]

    def view(self, job: JobView, now_s: float) -> JobView:
        if job.id not in self.started:
            return replace(job, remaining_s=self.lengths[job.id])
        return replace(
            job,
            state="running",
            nodes=job.min_nodes,
            start_s=self.started[job.id],
            remaining_s=self.started[job.id] + self.lengths[job.id] - now_s,
            restart_s=self.lengths[job.id],
        )

    def interrupt(self, id: str, why: Any, now_s: float) -> None:
        self.leave(id)
        self.jobs[id] = replace(self.jobs[id], interruption=why, interrupted_s=now_s)

    def leave(self, id: str) -> None:
        del self.started[id]
        self.held = {node: job for node, job in self.held.items() if job != id}


def rigid(id: str, nodes: int, **fields: Any) -> JobView:
    return JobView(id=id, kind="rigid", start_nodes=nodes, min_nodes=nodes, max_nodes=nodes, **fields)


def example(failure_s: float = 1.0) -> Machine:
    """Table 3.1 of ADMIRE (2023, D3.3): eight nodes, the third fails after 1 and is back after 5."""
    sizes = {"J1": (1, 8.0), "J2": (1, 5.0), "J3": (6, 10.0), "J4": (6, 10.0), "J5": (1, 2.0)}
    return Machine(
        nodes=8,
        jobs={id: rigid(id, nodes) for id, (nodes, _) in sizes.items()},
        lengths={id: length for id, (_, length) in sizes.items()},
        failure_s=failure_s,
        failed_node=3,
        downtime_s=5.0,
    )


@pytest.mark.parametrize("tie", ["latest-submission", "shortest-execution"])
def test_the_published_example_with_stealing(tie: str) -> None:
    assert example().play("sfsj", tie=tie) == [8, 11, 11, 21, 10]


def test_the_published_example_without_stealing() -> None:
    assert example().play("sfsj", timing="never") == [8, 5, 15, 25, 3]


def test_the_published_example_without_a_failure() -> None:
    assert example(failure_s=inf).play("sfsj") == [8, 5, 10, 20, 7]
