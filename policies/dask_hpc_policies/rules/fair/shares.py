"""Division of whole nodes in proportion to weights, between bounds: among users, then among their jobs.

Weighted max-min fairness ("water filling"; Bertsekas and Gallager 1992, section 6.5.2): everybody gets weight
times one common level, no less than its lower bound and no more than its upper one. Fractions of nodes are
rounded by largest remainders (Hamilton's method), equal ones in the order given, so that equal claims get the
same sizes each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from dask_hpc_policies.jobs.constraints import largest_at_most
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.admission import Pass
from dask_hpc_policies.rules.fair.terms import Params, almost_over, level, ranking, weight_at
from dask_hpc_policies.rules.sizing import lowest_size, resizable

#: Remainders that differ by less are equal.
_DIGITS = 9
#: Those that differ by more are not, whatever the rounding.
_EQUAL = 2e-9


class Claim(NamedTuple):
    """Who takes part in a division."""

    #: Fewest and most nodes, whole numbers, `low` <= `high`.
    low: int
    high: int
    #: Above 0.
    weight: float


class Claimant(Protocol):
    """What a `Claim` and a `Part` have in common."""

    @property
    def low(self) -> int: ...  # noqa: D102
    @property
    def high(self) -> int: ...  # noqa: D102
    @property
    def weight(self) -> float: ...  # noqa: D102


def divide(claims: Sequence[Claimant], nodes: int) -> list[int]:
    """Whole numbers of nodes for `claims`, together `nodes` or as near to it as their bounds allow."""
    if len(claims) == 1:
        return [min(max(nodes, claims[0].low), claims[0].high)]
    lows, highs = [claim.low for claim in claims], [claim.high for claim in claims]
    if nodes <= sum(lows):
        return lows
    if nodes >= sum(highs):
        return highs
    weights = [claim.weight for claim in claims]
    level = common_level(lows, highs, weights, nodes)
    exact = [
        low if (share := weight * level) < low else high if share > high else share
        for low, high, weight in zip(lows, highs, weights, strict=True)
    ]
    sizes = [int(share) for share in exact]
    left = nodes - sum(sizes)
    if left > 0:
        fractions = [i for i, share in enumerate(exact) if share > sizes[i]]
        for i in _largest_first(fractions, exact, sizes)[:left]:
            sizes[i] += 1
    return sizes


def _largest_first(places: list[int], exact: Sequence[float], sizes: Sequence[int]) -> list[int]:
    """`places` by what `exact` has there beyond `sizes`, the most first; equal ones stay in order."""
    missing = {i: sizes[i] - exact[i] for i in places}
    in_order = sorted(places, key=missing.__getitem__)
    if any(0 < missing[b] - missing[a] < _EQUAL for a, b in pairwise(in_order)):
        return sorted(places, key=lambda i: round(missing[i], _DIGITS))
    return in_order


def common_level(lows: Sequence[int], highs: Sequence[int], weights: Sequence[float], nodes: int) -> float:
    """The common level at which claims take `nodes` together, which is within their bounds, given apart."""
    # below the first turn everybody is at its lower bound; the slope changes where one leaves it or is full
    moving = [claim for claim in zip(lows, highs, weights, strict=True) if claim[0] < claim[1]]
    turns = [(low / weight, weight) for low, _, weight in moving]
    turns += [(high / weight, -weight) for _, high, weight in moving]
    turns.sort()
    taken, slope, at = float(sum(lows)), 0.0, 0.0
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


def part_of(job: JobView, low: int, high: int, params: Params, *, starts: bool = False) -> Part:
    """The part of a waiting job that may have `low` to `high` nodes."""
    return Part(job, low, high, high, starts, False, *ranking(params)(job.attained_node_s))


def holders(plan: Pass, params: Params) -> list[Part]:
    """The named jobs that hold nodes, in order of service.

    Resizable is none under a lock, and none that is almost over.
    """
    parts, rank, open = [], ranking(params), not plan.locked
    for job in plan.view.jobs:
        nodes = job.nodes
        if nodes == 0 or job.is_default:
            continue
        level, weight = rank(job.attained_node_s)
        if open and job.state == "running" and resizable(job) and not almost_over(job, params):
            low, high = reach(job)
            parts.append(Part(job, low, high, high, False, True, level, weight))
        else:
            parts.append(Part(job, nodes, nodes, nodes, False, False, level, weight))
    return parts


def reach(job: JobView) -> tuple[int, int]:
    """The smallest and the largest size that a running job which can be resized may be given."""
    low, high, constraint = lowest_size(job), job.max_nodes, job.constraint
    if constraint != "any" or high < job.nodes:
        high = largest_at_most(constraint, high, job.nodes) or job.nodes
    return low, high


def divide_parts(parts: Sequence[Part], nodes: int, params: Params) -> None:
    """Set the sizes of `parts`, which have `nodes` nodes together, to legal ones."""
    if len({part.job.user for part in parts}) <= 1:
        _divide_among(parts, nodes)  # one user alone shares with nobody
        return
    users = by_user(parts)
    shares = divide_users(users, nodes, params)
    for user, own in users.items():
        _divide_among(own, shares[user])


def _divide_among(own: Sequence[Part], nodes: int) -> None:
    for part, size in zip(own, divide(own, nodes), strict=True):
        constraint = part.job.constraint
        if constraint != "any":
            size = largest_at_most(constraint, size, part.low) or part.low
        part.size = size


def divide_users(users: Mapping[str, Sequence[Part]], nodes: int, params: Params) -> dict[str, int]:
    """What of `nodes` nodes each user gets for all of its parts.

    Users share as jobs do, by what all their jobs together have attained for each unit of the user's weight:
    what users who are always busy attain approaches the proportion of their weights.
    """
    claims = [
        Claim(sum([part.low for part in own]), sum([part.high for part in own]), _weight(own, params))
        for own in users.values()
    ]
    return dict(zip(users, divide(claims, nodes), strict=True))


def _weight(own: Sequence[Part], params: Params) -> float:
    declared = max([part.job.weight for part in own])
    attained_node_s = sum([part.job.attained_node_s for part in own])
    return declared * weight_at(level(attained_node_s / declared, params), params)


def by_user(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """The parts of each user, in the order given."""
    users: dict[str, list[Part]] = {}
    for part in parts:
        own = users.get(part.job.user)
        if own is None:
            own = users[part.job.user] = []
        own.append(part)
    return users
