"""Whether some allocation of the jobs present is inside the corridor; those that wait may start or not.

Asked afterwards, of a time that was outside: was that avoidable? The policy's program tries waiting jobs one
by one; here any number of them may start, on any legal size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dask_hpc_policies.power import program_lp
from dask_hpc_policies.power.allocation import Case, Side
from dask_hpc_policies.power.problem import PowerJob, Problem
from dask_hpc_policies.power.program import LIMIT_S


def some_inside(problem: Problem) -> bool:
    """Whether running jobs at some sizes, with some of the waiting ones, draw what is allowed."""
    most = problem.nodes - problem.rigid.nodes
    sides = [Side(job, job.choices(most), False) for job in problem.jobs]
    sides += [_optional(job, most) for job in problem.waiting if job.choices(most)]
    found, _ = program_lp.least(Case(problem, tuple(sides)), True, LIMIT_S, "highs")
    return found.status == "optimal"


def _optional(job: PowerJob, most_nodes: int) -> Side:
    """A job that may also have no nodes: one choice more, which no formula of sizes knows."""
    choices = job.choices(most_nodes)
    table: Sequence[tuple[int, float, float]] = job.table or choices
    return Side(replace(job, table=tuple(table)), ((0, 0.0, 0.0), *choices), True)
