"""The least step by integer programs, for more analyses than can be enumerated.

Rules of the file: one program for each number of nodes and helper cores whose bound (`bounds`) is below the
best known step, lowest first, so that each solution spares others. The first best is that of `packs`. Times
are divided by the best known step and memory by that of a node, so that the solver's tolerances are relative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_hpc_policies.placement.application import Application, Mode
from dask_hpc_policies.placement.bounds import Cells, cells_below, ends
from dask_hpc_policies.placement.many import best
from dask_hpc_policies.placement.packs import Found, Left, packs, taken, unlimited
from dask_hpc_policies.placement.times import Load, load_of

#: What the solver may miss a constraint or the least step by, relative; steps that differ less are equal.
TOLERANCE = 1e-9
#: So much less than the best known step has to be found: as much as the tolerance, and an equal step would be
#: within it or not by rounding alone, which the solver calls an error.
_LESS = 2 * TOLERANCE


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a program said: a split if it found one, and what nothing in the cell is below."""

    split: tuple[bool, ...] | None
    bound_s: float
    ended: bool


def solve(application: Application, mode: Mode, left_s: Left = unlimited) -> tuple[Found | None, float]:
    """The best split, and a lower bound of the step: the step itself unless the time was over."""
    found = packs(application, mode, left_s)
    splits, judged = ends(application, mode)
    end = taken(splits, judged, judged.first())
    if np.isfinite(end.step_s) and (found is None or end.step_s < found.step_s):
        found = end
    cells = cells_below(application, mode, np.inf if found is None else found.step_s)
    bounds_s = []
    for at in range(len(cells)):
        least_s = float(cells.bound_s[at])
        if found is not None and least_s >= found.step_s * (1 - TOLERANCE):
            break
        if (most_s := left_s()) <= 0:
            bounds_s.append(least_s)
            break
        answer = _program(application, cells, at, found, most_s)
        if answer.split is not None:
            splits = np.array([answer.split], dtype=bool)
            one = taken(splits, best(application, splits, mode), 0)
            if np.isfinite(one.step_s) and (found is None or one.step_s < found.step_s):
                found = one
        if not answer.ended:
            bounds_s.append(max(least_s, answer.bound_s))
    step_s = np.inf if found is None else found.step_s
    return found, float(min([step_s, *bounds_s]))


def _program(application: Application, cells: Cells, at: int, found: Found | None, most_s: float) -> _Answer:
    """Solve one cell for a step below the best known one."""
    # its start takes a fifth of a second, and it loads what starts processes
    import pulp

    load = load_of(application, application.split())
    unit_s = float(cells.bound_s[at]) if found is None else found.step_s
    problem = pulp.LpProblem("placement", pulp.LpMinimize)
    # PuLP 3.3.2 asks for the first, older releases have the second alone
    variable = getattr(problem, "add_variable", pulp.LpVariable)
    step = variable("step", float(cells.bound_s[at]) / unit_s, None if found is None else 1 - _LESS)
    inside = [variable(f"in_situ_{i}", cat=pulp.LpBinary) for i in application.free]
    problem += step
    for constraint in _constraints(application, cells, at, load, step, inside, unit_s):
        problem += constraint
    solver = pulp.HiGHS(
        msg=False,
        gapRel=TOLERANCE,
        gapAbs=TOLERANCE,
        timeLimit=None if np.isinf(most_s) else most_s,
        threads=1,
        primal_feasibility_tolerance=TOLERANCE,
        mip_feasibility_tolerance=TOLERANCE,
    )
    problem.solve(solver)
    status, solution = problem.status, problem.sol_status
    split = None
    if solution in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        chosen = zip(application.free, inside, strict=True)
        split = application.split(i for i, one in chosen if (one.value() or 0.0) > 0.5)
    ended = solution == pulp.LpSolutionOptimal or status == pulp.LpStatusInfeasible
    return _Answer(split, problem.solverModel.getInfo().mip_dual_bound * unit_s, ended)


def _constraints(
    application: Application,
    cells: Cells,
    at: int,
    load: Load,
    step: Any,
    inside: Sequence[Any],
    unit_s: float,
) -> list[Any]:
    """What holds in the cell: times of both sides below the step, memory of both."""
    import pulp

    platform = application.platform
    free = [application.analyses[i] for i in application.free]
    staging = platform.nodes - int(cells.nodes[at])
    reliefs_s = [
        one.parallel_s / platform.cores + one.sent_bytes / platform.bandwidth_bytes_s for one in free
    ]

    def total(values: Sequence[float], unit: float) -> Any:
        return pulp.lpSum(value / unit * one for value, one in zip(values, inside, strict=True))

    in_situ_unit_s = float(cells.units[at]) * unit_s
    before = float(cells.before_s[at] + load.in_situ_serial_s) / unit_s + load.in_situ_s / in_situ_unit_s
    serial = total([one.serial_s for one in free], unit_s)
    sizes = [one.memory_bytes for one in free]
    constraints = [
        before + serial + total([one.parallel_s for one in free], in_situ_unit_s) <= step,
        load.in_transit_serial_s / unit_s
        + load.in_transit_s / (staging * unit_s)
        - serial
        - total(reliefs_s, staging * unit_s)
        <= step,
        total(sizes, platform.memory_bytes) <= float(cells.room_bytes[at]) / platform.memory_bytes,
    ]
    if platform.staging_memory_bytes is not None:
        most_bytes = platform.staging_memory_bytes * staging
        constraints.append(
            load.in_transit_bytes / platform.memory_bytes - total(sizes, platform.memory_bytes)
            <= most_bytes / platform.memory_bytes
        )
    return constraints
