"""The corridor's program in a process of its own: what that process does.

Rules of the file: it is imported there, and imports no cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc.processes import Tell, load_solver
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.power.allocation import Status
from dask_hpc_policies.power.checks import ProgramError
from dask_hpc_policies.power.problem import Problem
from dask_hpc_policies.power.program import Plan, solve

#: For `processes.Process.call`.
SOLVED = f"{__name__}:solved"
#: Seconds for one question.
LIMIT_S = 5.0
#: And for one about nodes that would better be off: the next one about the corridor may wait behind it.
OFF_LIMIT_S = 0.5


def asked(problem: Problem) -> dict[str, Any]:
    """What the process is called with; None of it: it loads the solver."""
    return {"problem": encode(problem)}


def solved(arguments: Mapping[str, Any], tell: Tell) -> dict[str, Any] | None:
    """Called in the process: the answer to a question as JSON; None without one.

    Raises
    ------
    ProgramError
        When the time was up before anything was found. Which nodes might be off need not be known.
    """
    load_solver()
    if "problem" not in arguments:
        return None
    problem = decode(Problem, arguments["problem"])
    plan = solve(problem, "highs", limit_s(problem))
    if plan.status == "time-limit" and plan.violation_w is None and not problem.max_off_nodes:
        # an answer that is none would hold for as long as nothing changes
        raise ProgramError(f"{plan.reason}")
    return plan.to_json(several=True)


def limit_s(problem: Problem) -> float:
    """Seconds that the question may take."""
    return OFF_LIMIT_S if problem.max_off_nodes else LIMIT_S


def answer(data: Mapping[str, Any]) -> Plan:
    """The plan that the process has found."""
    status: Status = data["status"]
    return Plan(**{**data, "status": status, "start": tuple(data["start"]), "score": None})
