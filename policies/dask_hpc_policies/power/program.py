"""The corridor's program as a whole: who may start, what comes of it, and why there is no better answer.

Waiting jobs are tried one by one, the first that fits with some sizes of the running ones starts (John
2024, section 5.2, Algorithm 4); then the running ones alone. Where nothing is inside the corridor, the
allocation outside by least is given, with the waiting job whose start lessens the violation most: held
back, it might wait for ever, for what would bring the draw inside may be the start itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from dask_hpc_policies.power import enumeration, program_lp
from dask_hpc_policies.power.allocation import Case, Found, Score, Status, drawn, make_case, score
from dask_hpc_policies.power.checks import ProgramError
from dask_hpc_policies.power.guarantees import guaranteed_lower, guaranteed_upper
from dask_hpc_policies.power.problem import PowerJob, Problem

Solver = Literal["highs", "cbc", "enumerate"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)
#: Seconds of one question, all its programs together.
LIMIT_S = 10.0
#: Of which this share is for the running jobs alone: many that wait must not leave them without an answer.
_FOR_RUNNING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the program answers."""

    status: Status
    #: Nodes of every running job, and of those that start; empty when there is no allocation.
    nodes: Mapping[str, int]
    start: tuple[str, ...]
    idle_nodes: int
    off_nodes: int
    #: Watts outside the corridor, both sides together; 0 within a millionth. None without an allocation.
    violation_w: float | None
    #: What the machine then draws, least and most.
    min_w: float | None
    max_w: float | None
    guaranteed_upper: bool
    guaranteed_lower: bool
    #: Why it is not optimal, and what would help.
    reason: str | None
    score: Score | None

    def to_json(self, several: bool = False) -> dict[str, Any]:
        """The plan as the command line prints it; `several`: who starts is a list."""
        return {
            "status": self.status,
            "nodes": dict(self.nodes),
            "start": list(self.start) if several else next(iter(self.start), None),
            "idle_nodes": self.idle_nodes,
            "off_nodes": self.off_nodes,
            "violation_w": self.violation_w,
            "guaranteed_upper": self.guaranteed_upper,
            "guaranteed_lower": self.guaranteed_lower,
            "min_w": self.min_w,
            "max_w": self.max_w,
            "reason": self.reason,
        }


class _Budget:
    """What is left of the time of a question; solvers tell how long they took."""

    def __init__(self, solver: Solver, limit_s: float) -> None:
        self.solver, self.limit_s, self.left_s = solver, limit_s, limit_s
        #: Whether a waiting job was not looked at to the end.
        self.late = False

    def least(self, case: Case, tight: bool, kept: float = 0.0) -> Found:
        """One program; `tight`: only allocations inside count; `kept`: a share of all time is not for it."""
        if self.solver == "enumerate":
            return enumeration.least(case, tight)
        found, took_s = program_lp.least(case, tight, self.left_s - kept * self.limit_s, self.solver)
        self.left_s -= took_s
        return found


def solve(problem: Problem, solver: Solver = "highs", limit_s: float = LIMIT_S) -> Plan:
    """The best allocation of nodes that keeps the draw inside the corridor, or the one outside by least.

    Parameters
    ----------
    solver
        ``highs`` and ``cbc`` are asked through PuLP; ``enumerate`` looks at every allocation.
    limit_s
        Seconds for the solvers; what is known then is given with the status ``time-limit``.

    Raises
    ------
    ProgramError
        When there is no such solver, or there are too many allocations to enumerate.
    """
    if solver not in SOLVERS:
        raise ProgramError(f"solver is {solver!r}; allowed: {', '.join(SOLVERS)}")
    budget = _Budget(solver, limit_s)
    case, found = _first_inside(problem, budget) or _outside_by_least(problem, budget)
    if budget.late and found.status == "optimal":
        # with a job that was not looked at to the end it might be inside, or nearer
        found = replace(found, status="time-limit")
    return _plan(problem, case, found)


def _first_inside(problem: Problem, budget: _Budget) -> tuple[Case, Found] | None:
    """The first waiting job, or several, or none, with which the draw is inside."""
    case, found, starting = _inside_with_one(problem, budget)
    if found.status != "optimal":
        return (case, found) if found.status == "time-limit" else None
    if problem.several:
        for job in problem.waiting:
            if starting and job not in starting:
                more = make_case(problem, [*starting, job])
                answer = budget.least(more, True)
                if answer.status == "optimal":
                    case, found, starting = more, answer, [*starting, job]
    return case, found


def _inside_with_one(problem: Problem, budget: _Budget) -> tuple[Case, Found, list[PowerJob]]:
    for job in problem.waiting:
        case = make_case(problem, [job])
        found = budget.least(case, True, _FOR_RUNNING)
        if found.picks is not None:
            return case, found, [job]
        if found.status == "time-limit":
            budget.late = True
            break
    case = make_case(problem, [])
    return case, budget.least(case, True), []


def _outside_by_least(problem: Problem, budget: _Budget) -> tuple[Case, Found]:
    best: tuple[Case, Found] | None = None
    best_w = float("inf")
    # nobody starts unless that lessens the violation
    for starting in ([], *([job] for job in problem.waiting)):
        case = make_case(problem, starting)
        found = budget.least(case, False)
        if best is None:
            best = (case, found)
        if found.picks is not None:
            outside_w = score(case, found.picks, found.off_nodes).violation_w
            if outside_w < best_w - problem.tolerance_w:
                best, best_w = (case, found), outside_w
    assert best is not None
    return best


def _plan(problem: Problem, case: Case, found: Found) -> Plan:
    running = make_case(problem)
    # an allocation of the running jobs that is inside says both
    inside = (
        found.picks is not None
        and not any(side.starts for side in case.sides)
        and score(case, found.picks, found.off_nodes).violation_w == 0.0
    )
    sure = partial(
        Plan,
        guaranteed_upper=inside or guaranteed_upper(running),
        guaranteed_lower=inside or guaranteed_lower(running),
    )
    if found.picks is None:
        return sure(
            status=found.status, nodes={}, start=(), idle_nodes=0, off_nodes=0, violation_w=None,
            min_w=None, max_w=None, reason=_no_allocation(running, found.status), score=None,
        )  # fmt: skip
    reached = score(case, found.picks, found.off_nodes)
    low_w, high_w = drawn(case, found.picks, found.off_nodes)
    nodes = {side.job.id: side.choices[pick][0] for side, pick in zip(case.sides, found.picks, strict=True)}
    status: Status = "infeasible" if found.status == "optimal" and reached.violation_w else found.status
    return sure(
        status=status,
        nodes=nodes,
        start=tuple(side.job.id for side in case.sides if side.starts),
        idle_nodes=reached.unused_nodes - found.off_nodes,
        off_nodes=found.off_nodes,
        violation_w=reached.violation_w,
        min_w=low_w,
        max_w=high_w,
        reason=_outside(case, low_w, high_w) if status == "infeasible" else _late(status),
        score=reached,
    )


def _late(status: Status) -> str | None:
    return "the time was up: a better allocation may exist" if status == "time-limit" else None


def _no_allocation(case: Case, status: Status) -> str:
    if status == "time-limit":
        return "the time was up before any allocation was found; allow more, or take another solver"
    for side in case.sides:
        if not side.choices:
            job = side.job
            return (
                f"job {job.id} has no legal size: {job.constraint} from {job.min_nodes} to "
                f"{min(job.max_nodes, case.free_nodes)} nodes{' in its table' if job.table else ''}; "
                "widen its bounds"
            )
    needed = sum(side.choices[0][0] for side in case.sides)
    return (
        f"the running jobs need at least {needed} nodes and {case.free_nodes} are free; lower their min_nodes"
    )


def _outside(case: Case, low_w: float, high_w: float) -> str:
    """By how much, on which side, and what would help."""
    lower_w, upper_w = case.inner_w
    if lower_w > upper_w:
        return (
            f"margin_w {case.problem.margin_w:g} leaves nothing of the corridor; at most "
            f"{(case.problem.upper_w - case.problem.lower_w) / 2:g} can be kept"
        )
    parts = []
    if high_w - upper_w > case.problem.tolerance_w:
        parts.append(
            f"up to {high_w:g} W, {high_w - upper_w:g} W above {upper_w:g} W: lower min_nodes, let nodes be "
            "off or raise upper_w"
        )
    if lower_w - low_w > case.problem.tolerance_w:
        parts.append(
            f"down to {low_w:g} W, {lower_w - low_w:g} W below {lower_w:g} W: raise max_nodes, start jobs "
            "that draw more or lower lower_w"
        )
    return f"no allocation is inside; the nearest draws {'; and '.join(parts)}"
