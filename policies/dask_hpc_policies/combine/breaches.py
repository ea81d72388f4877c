"""Sums that a decision leads outside of what is allowed: which, where, and how far.

Rules of the file: a sum may stay as far outside as it is, whatever is decided; only what leads further is a
breach. Amounts are compared up to a small share of them, for they are added up in different orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dask_hpc_policies.combine.limits import SumGuard
from dask_hpc_policies.combine.outlook import STATES, Move, Outlook
from dask_hpc_policies.decision import Reason, ReasonCode

#: Amounts are compared up to this share of them.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Breach:
    """A sum that is outside in one of the states of `outlook.STATES`."""

    guard: SumGuard
    state: int
    amount: float
    #: The amount before the decision, and how far outside it may be.
    now: float
    allowed: float

    @property
    def over(self) -> bool:
        """Whether it is too much, not too little."""
        return self.guard.outside(self.amount) > 0

    def mended(self, amount: float) -> bool:
        """Whether with `amount` it would be none."""
        return abs(self.guard.outside(amount)) <= self.allowed + _slack(self.guard, amount)

    def eased(self, amount: float) -> bool:
        """Whether `amount` is less, where it is too much, or more, where it is too little."""
        gain = self.amount - amount if self.over else amount - self.amount
        return gain > _slack(self.guard, self.amount)

    @property
    def reason(self) -> Reason:
        """The refusal: the guard and its figures."""
        guard = self.guard
        text = f"{guard.name}: {STATES[self.state]} the decision leads to {self.amount:g} {guard.unit}, "
        text += f"allowed are {guard.allowed}, now it is {self.now:g}"
        text += f"; {guard.note}" if guard.note else ""
        data: dict[str, Any] = {
            "guard": guard.name,
            "unit": guard.unit,
            "amount": self.amount,
            "now": self.now,
        }
        return Reason(ReasonCode.OUTSIDE_SUM, text, {**data, "lower": guard.lower, "upper": guard.upper})


def foremost(
    outlook: Outlook, guards: Sequence[SumGuard], given: Sequence[Move], moves: Sequence[Move]
) -> list[Breach]:
    """The breaches that are to be mended first: of the highest rank, of too little before too much.

    What goes because of too little takes with it what it made room for, which may mend the others.

    Parameters
    ----------
    guards
        By rank.
    given
        Moves that are not to be judged: what they lead to is allowed.
    moves
        All moves, those given included.
    """
    found: list[Breach] = []
    for guard in guards:
        if found and guard.rank != found[0].guard.rank:
            break
        now = outlook.now(guard)
        for state in range(len(STATES)):
            if guard.in_end and state < len(STATES) - 1:
                continue
            floor = outlook.amount(guard, given, state) if given else now
            amount = outlook.amount(guard, moves, state)
            breach = Breach(guard, state, amount, now, abs(guard.outside(floor)))
            if not breach.mended(amount):
                found.append(breach)
    over = all(breach.over for breach in found)
    return [breach for breach in found if breach.over == over]


def _slack(guard: SumGuard, amount: float) -> float:
    return TOLERANCE * max(1.0, abs(amount), abs(guard.lower or 0.0), abs(guard.upper or 0.0))
