"""Where a decision leads: the sizes of jobs on the way and at the end, and what sums amount to there.

Rules of the file: nothing is judged here. Reductions end before growth begins, so a round has two states that
bound all others: the *trough*, when nodes have been given up and none was given out, and the *end*. A steal
that waits for a checkpoint frees its nodes at a time that nobody knows: in the trough they are gone, at the
end they are still held. Plain work has the nodes that are left; those that are freed go to it at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite

from dask_hpc_policies.combine.limits import SumGuard
from dask_hpc_policies.decision import Action, Expand, Shrink, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot, JobView

#: The two states, in words, in order.
STATES = ("on its way", "in the end")


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """An action as what it does to the size of a job. Known by its identity."""

    action: Action
    #: The job that it resizes, and its size afterwards; None for an action that allots nothing.
    job: JobView | None = None
    size: int = 0
    #: Nodes that it takes in the end: less than 0 when it frees some.
    taken: int = 0
    #: Sizes of the job in both states.
    sizes: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class _Amounts:
    """What is known of one sum: its amount before the decision, and what moves add to it in both states."""

    now: float
    added: dict[Move, tuple[float, float]] = field(default_factory=dict)


class Outlook:
    """What actions on the cluster of `view` lead to."""

    def __init__(self, view: ClusterSnapshot) -> None:
        self.jobs: Mapping[str, JobView] = {job.id: job for job in view.jobs}
        self.idle_nodes = max(0, view.of_role())
        self._plain = [job for job in view.jobs if job.is_default and job.state != "pending"]
        self._sums: dict[str, _Amounts] = {}

    def move(self, action: Action) -> Move:
        """What `action` does; an action on an unknown job does nothing."""
        if not isinstance(action, (Start, Expand, Shrink, Steal)) or action.job not in self.jobs:
            return Move(action)
        job = self.jobs[action.job]
        if isinstance(action, Steal):
            late = action.timing != "now"
            return Move(action, job, 0, 0 if late else -job.nodes, (0, job.nodes if late else 0))
        return resized(action, job, action.nodes)

    def after(self, moves: Sequence[Move]) -> dict[str, int]:
        """Sizes of all jobs in the end."""
        found = {id: job.nodes for id, job in self.jobs.items()}
        found |= {move.job.id: move.sizes[1] for move in moves if move.job is not None}
        return found | {job.id: nodes for job, nodes in self._left(moves, 1)}

    def amount(self, guard: SumGuard, moves: Sequence[Move], state: int) -> float:
        """What the sum of `guard` amounts to in one of `STATES`."""
        known = self._known(guard)
        added = known.added
        for move in moves:
            if move not in added:
                added[move] = _added(guard, move)
        left = [_cost(guard, job, n) - _cost(guard, job, job.nodes) for job, n in self._left(moves, state)]
        return fsum((known.now, *left, *[added[move][state] for move in moves]))

    def now(self, guard: SumGuard) -> float:
        """What the sum of `guard` amounts to before the decision."""
        return self._known(guard).now

    def _known(self, guard: SumGuard) -> _Amounts:
        known = self._sums.get(guard.name)
        if known is None:
            costs = [_cost(guard, job, job.nodes) for job in self.jobs.values()]
            known = self._sums[guard.name] = _Amounts(fsum((guard.base, *costs)))
        return known

    def _left(self, moves: Sequence[Move], state: int) -> list[tuple[JobView, int]]:
        """Running jobs of plain work, and the nodes that are left to them."""
        if not self._plain:
            return []
        taken = sum([move.taken for move in moves])
        taken = taken if state else max(0, taken)
        return [(job, max(0, job.nodes - taken)) for job in self._plain]


def resized(action: Action, job: JobView, nodes: int) -> Move:
    """`action` with another size."""
    return Move(action, job, nodes, nodes - job.nodes, (min(nodes, job.nodes), nodes))


def _added(guard: SumGuard, move: Move) -> tuple[float, float]:
    """What a move adds to a sum in both states."""
    if move.job is None:
        amount = 0.0 if guard.action_cost is None else float(guard.action_cost(move.action))
        return amount, amount
    before = _cost(guard, move.job, move.job.nodes)
    trough, end = move.sizes
    if guard.in_end and isinstance(move.action, Steal):
        # nothing that starts makes up for nodes that go at a time that nobody knows
        end = trough
    return _cost(guard, move.job, trough) - before, _cost(guard, move.job, end) - before


def _cost(guard: SumGuard, job: JobView, nodes: int) -> float:
    if nodes <= 0:
        return 0.0
    amount = float(guard.cost(job, nodes))
    if not isfinite(amount):
        raise ValueError(
            f"guard {guard.name!r}: job {job.id} on {nodes} nodes amounts to {amount!r} {guard.unit}, which "
            "is not finite; change its cost"
        )
    return amount
