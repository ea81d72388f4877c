"""Division of whole nodes in proportion to weights, between bounds: among users, then among their jobs.

Weighted max-min fairness ("water filling"; Bertsekas and Gallager 1992, section 6.5.2): everybody gets weight
times one common level, no less than its lower bound and no more than its upper one. Fractions of nodes are
rounded by largest remainders (Hamilton's method), equal ones in the order given, so that equal claims get the
same sizes each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dask_hpc_policies.jobs.constraints import largest_at_most
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.fair.terms import Params, level, weight_at

#: Remainders that differ by less are equal.
_DIGITS = 9


class Claim(NamedTuple):
    """Who takes part in a division."""

    #: Fewest and most nodes, whole numbers, `low` <= `high`.
    low: int
    high: int
    #: Above 0.
    weight: float


def divide(claims: Sequence[Claim], nodes: int) -> list[int]:
    """Whole numbers of nodes for `claims`, together `nodes` or as near to it as their bounds allow."""
    if nodes <= sum([claim.low for claim in claims]):
        return [claim.low for claim in claims]
    if nodes >= sum([claim.high for claim in claims]):
        return [claim.high for claim in claims]
    level = common_level(claims, nodes)
    exact = [min(max(claim.weight * level, claim.low), claim.high) for claim in claims]
    sizes = [int(round(share, _DIGITS)) for share in exact]
    left = nodes - sum(sizes)
    by_remainder = sorted(range(len(claims)), key=lambda i: round(sizes[i] - exact[i], _DIGITS))
    for i in by_remainder[: max(left, 0)]:
        sizes[i] += sizes[i] < claims[i].high
    return sizes


def common_level(claims: Sequence[Claim], nodes: int) -> float:
    """The common level at which the claims take `nodes` together, which is within their bounds."""
    # below the first turn everybody is at its lower bound; the slope changes where one leaves it or is full
    turns: list[tuple[float, float]] = []
    for claim in claims:
        turns.append((claim.low / claim.weight, claim.weight))
        turns.append((claim.high / claim.weight, -claim.weight))
    turns.sort()
    taken, slope, at = float(sum([claim.low for claim in claims])), 0.0, 0.0
    for turn, change in turns:
        reached = taken + slope * (turn - at)
        if reached >= nodes and slope > 0:
            break
        taken, at = reached, turn
        slope += change
    return at + (nodes - taken) / slope if slope > 0 else at


@dataclass(slots=True)
class Part:
    """A job that takes part in a pass: the sizes it may have, and the one it gets."""

    job: JobView
    #: Smallest and largest size in the division, legal ones.
    low: int
    high: int
    #: Largest size when nodes are left over.
    most: int
    #: It waits and starts now; it runs and can be resized. Neither: it counts, and keeps its size.
    starts: bool = False
    resizable: bool = False
    level: int = 0
    #: Weight among the jobs of its user.
    weight: float = 1.0
    size: int = 0


def divide_parts(parts: Sequence[Part], nodes: int, params: Params) -> None:
    """Set the sizes of `parts`, which have `nodes` nodes together, to legal ones."""
    users = _by_user(parts)
    shares = divide_users(parts, nodes, params)
    for user, own in users.items():
        sizes = divide([Claim(part.low, part.high, part.weight) for part in own], shares[user])
        for part, size in zip(own, sizes, strict=True):
            legal = largest_at_most(part.job.constraint, size, part.low)
            part.size = part.low if legal is None else legal


def divide_users(parts: Sequence[Part], nodes: int, params: Params) -> dict[str, int]:
    """What of `nodes` nodes each user gets for all of its `parts`.

    Users share as jobs do, by what all their jobs together have attained for each unit of the user's weight:
    what users who are always busy attain approaches the proportion of their weights.
    """
    users = _by_user(parts)
    claims = [_claim(own, params) for own in users.values()]
    return dict(zip(users, divide(claims, nodes), strict=True))


def _claim(own: Sequence[Part], params: Params) -> Claim:
    declared = max([part.job.weight for part in own])
    attained_node_s = sum([part.job.attained_node_s for part in own])
    low, high = sum([part.low for part in own]), sum([part.high for part in own])
    return Claim(low, high, declared * weight_at(level(attained_node_s / declared, params), params))


def _by_user(parts: Sequence[Part]) -> dict[str, list[Part]]:
    users: dict[str, list[Part]] = {}
    for part in parts:
        users.setdefault(part.job.user, []).append(part)
    return users
