"""One allocation of a machine's nodes: what it draws, how far outside the corridor, how good.

Rules of the file: what every solver shares, and nothing that one of them decides by. All of them are judged
by `score`, computed from whole nodes, never from what a solver says of its own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dask_hpc_policies.power.problem import Choice, PowerJob, Problem

#: ``infeasible``: no allocation at all, or none inside where only those count.
Status = Literal["optimal", "infeasible", "time-limit"]


@dataclass(frozen=True, slots=True)
class Side:
    """A job in one program: its legal sizes, and the size that it has or asks for."""

    job: PowerJob
    choices: tuple[Choice, ...]
    #: Whether it starts: what it gets is then no movement.
    starts: bool

    @property
    def fixed_step(self) -> int:
        """Nodes between its sizes where those are equally far apart and draw in proportion, else 0."""
        if self.job.table:
            return 0
        return {"any": 1, "even": 2, "odd": 2}.get(self.job.constraint, 0)


@dataclass(frozen=True, slots=True)
class Case:
    """A program with the jobs that take part: all running ones, and those that start."""

    problem: Problem
    sides: tuple[Side, ...]

    @property
    def free_nodes(self) -> int:
        """Nodes that rigid jobs leave."""
        return self.problem.nodes - self.problem.rigid.nodes

    @property
    def inner_w(self) -> tuple[float, float]:
        """The corridor less its margin; the lower one may then be the higher."""
        return (
            self.problem.lower_w + self.problem.margin_w,
            self.problem.upper_w - self.problem.margin_w,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What a solver came to: indices of choices, nodes switched off; None when it found nothing."""

    status: Status
    picks: tuple[int, ...] | None = None
    off_nodes: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """How good an allocation is; the smaller the better, in the order of the fields."""

    #: Outside the corridor, both sides together; 0 within the tolerance.
    violation_w: float
    #: Idle or off.
    unused_nodes: int
    #: Sum over running jobs of \\|new - old nodes\\|.
    moved_nodes: int
    #: Switched off, then how far starting jobs are from what they ask for: settles ties alone.
    minor_nodes: int


def make_case(problem: Problem, starting: Sequence[PowerJob] = ()) -> Case:
    """The program of the running jobs and of those that are to start."""
    most = problem.nodes - problem.rigid.nodes
    return Case(
        problem,
        tuple(
            Side(job, job.choices(most), starts)
            for jobs, starts in ((problem.jobs, False), (starting, True))
            for job in jobs
        ),
    )


def drawn(case: Case, picks: Sequence[int], off_nodes: int) -> tuple[float, float]:
    """The least and the most watts of the whole machine (equation 5.3 of John 2024, both middle sides)."""
    problem = case.problem
    chosen = [side.choices[pick] for side, pick in zip(case.sides, picks, strict=True)]
    unused = case.free_nodes - sum(nodes for nodes, *_ in chosen)
    constant = (unused - off_nodes) * problem.idle_w + off_nodes * problem.off_w
    return (
        problem.rigid.min_w + constant + sum(low for _, low, _ in chosen),
        problem.rigid.max_w + constant + sum(high for *_, high in chosen),
    )


def score(case: Case, picks: Sequence[int], off_nodes: int) -> Score:
    """How good an allocation is."""
    lower_w, upper_w = case.inner_w
    low_w, high_w = drawn(case, picks, off_nodes)
    outside_w = max(0.0, lower_w - low_w) + max(0.0, high_w - upper_w)
    moved = minor = used = 0
    for side, pick in zip(case.sides, picks, strict=True):
        nodes = side.choices[pick][0]
        used += nodes
        if side.starts:
            minor += abs(nodes - side.job.nodes)
        else:
            moved += abs(nodes - side.job.nodes)
    return Score(
        outside_w if outside_w > case.problem.tolerance_w else 0.0,
        case.free_nodes - used,
        moved,
        minor + off_nodes,
    )
