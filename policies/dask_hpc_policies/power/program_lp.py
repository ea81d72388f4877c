"""The corridor's integer program (John 2024, equation 5.3) for PuLP's solvers.

The printed program lacks the balance of nodes, and its objective means nothing where idle nodes draw
nothing. Here: used + idle + off = free nodes; first the least violation, then the fewest unused nodes, then
the least movement, the last two in one objective of whole numbers, weighted so that no sum of the one
outweighs the other.

A size is its base, the legal one next to what the job has, plus steps up or down: |new - old| is convex, so
each step has its own cost and no row is needed for it. Only shapes whose steps are not all equal (pof2,
square, cube, tables) take a 0/1 column a size. That leaves three rows for any number of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from dask_hpc_policies.power.allocation import Case, Found, Side, score
from dask_hpc_policies.power.checks import ProgramError

SolverName = Literal["highs", "cbc"]

#: Solvers tell whole numbers apart up to about this; beyond it ties stay as they fall.
_MOST_COST = 10**10

#: (column, nodes, least watts, most watts, cost) that a unit of the column adds.
Term = tuple[Any, int, float, float, int]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How one job's size stands in the program."""

    #: What it has where no column counts.
    base: tuple[int, float, float]
    terms: tuple[Term, ...]
    #: Whether exactly one of the columns is 1.
    one_of: bool


def load() -> None:
    """Load PuLP and make a first HiGHS, which takes longer than a program; before time is taken."""
    import highspy
    import pulp

    del pulp
    highspy.Highs()  # type: ignore[no-untyped-call]


def least(case: Case, tight: bool, limit_s: float, solver: SolverName) -> tuple[Found, float]:
    """The best allocation, and the seconds that its solver took.

    Parameters
    ----------
    tight
        Only allocations inside the corridor count; else the least violation is found first.
    limit_s
        For all solving together.
    """
    if any(not side.choices for side in case.sides):
        return Found("infeasible"), 0.0
    if tight:
        return _run(case, 0.0, limit_s, solver)
    found, took_s = _run(case, None, limit_s, solver)
    if found.status != "optimal" or found.picks is None:
        return found, took_s
    bound_w = score(case, found.picks, found.off_nodes).violation_w
    better, more_s = _run(case, bound_w, limit_s - took_s, solver)
    if better.picks is None:
        # what is known holds; that nothing is better was not shown
        return Found("time-limit", found.picks, found.off_nodes), took_s + more_s
    return better, took_s + more_s


def _run(case: Case, most_outside_w: float | None, limit_s: float, solver: SolverName) -> tuple[Found, float]:
    """One program: least violation when `most_outside_w` is None, else the best with at most that much."""
    # loads clocks and processes, and takes a fifth of a second: not before it is needed
    import pulp

    if limit_s <= 0:
        return Found("time-limit"), 0.0
    problem = case.problem
    tolerance_w = problem.tolerance_w
    lower_w, upper_w = case.inner_w
    program = pulp.LpProblem("corridor")
    names = (f"v{number}" for number in range(1_000_000_000))
    integer = partial(_column, program, names)
    weights = _weights(case)
    sizes = [_sizes(side, weights, integer) for side in case.sides]
    idle = program.add_variable("idle", 0, case.free_nodes)
    off = integer(min(problem.max_off_nodes, case.free_nodes)) if problem.max_off_nodes else None
    terms = [term for one in sizes for term in one.terms]
    unused = [(idle, 1), *([(off, 1)] if off is not None else [])]
    unused_w = [(idle, problem.idle_w), *([(off, problem.off_w)] if off is not None else [])]

    def total(index: int, extra: Sequence[tuple[Any, float]]) -> Any:
        return pulp.LpAffineExpression(
            [*((term[0], term[index]) for term in terms if term[index]), *extra],
            sum(one.base[index - 1] for one in sizes),
        )

    low = total(2, [pair for pair in unused_w if pair[1]]) + problem.rigid.min_w
    high = total(3, [pair for pair in unused_w if pair[1]]) + problem.rigid.max_w
    program += total(1, unused) == case.free_nodes, "nodes"
    if most_outside_w == 0.0:
        program += low >= lower_w - tolerance_w / 2, "lower"
        program += high <= upper_w + tolerance_w / 2, "upper"
    else:
        below, above = (program.add_variable(name, 0) for name in ("below", "above"))
        program += low + below >= lower_w, "lower"
        program += high - above <= upper_w, "upper"
        if most_outside_w is not None:
            program += below + above <= most_outside_w + tolerance_w, "violation"
    if most_outside_w is None:
        program += below + above
    else:
        weight = weights[0]
        costs = [(term[0], term[4]) for term in terms if term[4]]
        costs += [(idle, weight), *([(off, weight + weights[2])] if off is not None else [])]
        program += pulp.LpAffineExpression(costs)
    for number, one in enumerate(sizes):
        if one.one_of:
            program += pulp.LpAffineExpression([(term[0], 1) for term in one.terms]) == 1, f"one{number}"
    program.solve(_solver(pulp, solver, limit_s))
    took_s = float(program.solutionTime or 0.0)
    return _read(pulp, program, case, sizes, off, took_s >= limit_s), took_s


def _read(pulp: Any, program: Any, case: Case, sizes: list[_Sizes], off: Any, late: bool) -> Found:
    """What the solver says, in whole nodes."""
    known = program.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    picks = _picks(case, sizes) if known else None
    off_nodes = 0 if off is None or picks is None else round(off.varValue or 0)
    if picks is not None:
        used = sum(side.choices[pick][0] for side, pick in zip(case.sides, picks, strict=True))
        if used + off_nodes > case.free_nodes:  # stopped before it had an answer
            picks = None
    if program.sol_status == pulp.LpSolutionOptimal and picks is not None:
        return Found("optimal", picks, off_nodes)
    if program.status == pulp.LpStatusInfeasible and not late:
        return Found("infeasible")
    return Found("time-limit", picks, off_nodes)


def _picks(case: Case, sizes: list[_Sizes]) -> tuple[int, ...] | None:
    picks = []
    for side, one in zip(case.sides, sizes, strict=True):
        values = [term[0].varValue for term in one.terms]
        if any(value is None for value in values):
            return None
        nodes = one.base[0] + sum(round(v) * term[1] for v, term in zip(values, one.terms, strict=True))
        at = {choice[0]: index for index, choice in enumerate(side.choices)}
        if nodes not in at:
            return None
        picks.append(at[nodes])
    return tuple(picks)


def _weights(case: Case) -> tuple[int, int, int]:
    """What an unused node, a moved node and a minor one cost, so that the order of `Score` holds."""

    def widest(side: Side) -> int:
        return max(abs(choice[0] - side.job.nodes) for choice in (side.choices[0], side.choices[-1]))

    minor = sum(widest(side) for side in case.sides if side.starts) + case.problem.max_off_nodes
    moved = sum(widest(side) for side in case.sides if not side.starts)
    if (minor + 1) * (moved + 1) * case.free_nodes > _MOST_COST:
        return moved + 1, 1, 0
    return (minor + 1) * (moved + 1), minor + 1, 1


def _sizes(side: Side, weights: tuple[int, int, int], integer: Any) -> _Sizes:
    weight = weights[2] if side.starts else weights[1]
    wanted = side.job.nodes
    step = side.fixed_step
    if len(side.choices) == 1:
        return _Sizes(side.choices[0], (), False)
    if not step:
        terms = tuple(
            (integer(1), nodes, low, high, weight * abs(nodes - wanted)) for nodes, low, high in side.choices
        )
        return _Sizes((0, 0.0, 0.0), terms, True)
    below = [choice for choice in side.choices if choice[0] <= wanted]
    base = below[-1] if below else side.choices[0]
    steps = []
    for way, most in ((-step, len(below) - 1), (step, len(side.choices) - max(len(below), 1))):
        for count, cost in _runs(wanted, base[0], way, most):
            steps.append((integer(count), way, way * side.job.min_w, way * side.job.max_w, weight * cost))
    return _Sizes(base, tuple(steps), False)


def _runs(wanted: int, base: int, way: int, most: int) -> Iterator[tuple[int, int]]:
    """Steps from `base` that change \\|size - wanted\\| alike: how many, by how much each."""
    costs = [abs(base + (i + 1) * way - wanted) - abs(base + i * way - wanted) for i in range(max(most, 0))]
    for cost in sorted(set(costs)):
        yield costs.count(cost), cost


def _column(program: Any, names: Iterator[str], most: int) -> Any:
    return program.add_variable(next(names), 0, most, cat="Integer")


def _solver(pulp: Any, name: SolverName, limit_s: float) -> Any:
    # one thread: others need the cores, and answers do not depend on how many there are
    if name == "highs":
        return _highs(pulp)(
            msg=False,
            threads=1,
            timeLimit=limit_s,
            gapRel=0.0,
            gapAbs=0.0,
            mip_feasibility_tolerance=1e-9,
            primal_feasibility_tolerance=1e-9,
            # a third of the time of small programs, and finds nothing that the others do not
            mip_heuristic_run_feasibility_jump=False,
        )
    # the one that PuLP's wheel brings, else the system's
    for path in (pulp.PULP_CBC_CMD.pulp_cbc_path, None):
        cbc = pulp.COIN_CMD(
            path=path,
            msg=False,
            # told to use one thread it makes one, and now and then waits ten seconds for it
            threads=None,
            timeLimit=limit_s,
            gapRel=0.0,
            gapAbs=0.0,
            # its preprocessing (2.10.3) now and then loses the best answer, and it still says: optimal
            options=["primalTolerance 1e-9", "preprocess off"],
        )
        if cbc.available():
            return cbc
    raise ProgramError(
        "there is no CBC: PuLP's wheel brings it, other packages do not; choose the solver highs"
    )


def _highs(pulp: Any) -> Any:
    """PuLP's HiGHS, told all whole columns at once: one by one takes a third of a large program's time."""

    class Highs(pulp.HiGHS):  # type: ignore[misc]
        def buildSolverModel(self, lp: Any) -> None:
            import highspy

            self.mip = False
            super().buildSolverModel(lp)
            self.mip = True
            whole = [column.index for column in lp.variables() if column.cat == "Integer"]
            kind = int(highspy.HighsVarType.kInteger)
            lp.solverModel.changeColsIntegrality(
                len(whole), np.array(whole, dtype=np.int32), np.full(len(whole), kind, dtype=np.uint8)
            )

    return Highs
