"""How much each job grows or shrinks: pure rules over job views.

Rules of the file: sizes are targets (totals), amounts are differences; the two never mix. Every target
is a legal size within the job's bounds. A shrink for a waiting job is all or nothing and frees no more
than legal sizes force it to. Only malleable jobs that hold at least their minimum take part.

FPSMA (favour previously started malleable applications) and EGS (equi-grow and shrink): Buisson,
Sonmez, Mohamed, Lammers and Epema (2008); node counts, remaining time and constraints: Chadha (2019,
section 5.3, algorithms 2 and 3) and John (2024, section 4.2). Performance-aware order: John (2024,
algorithm 3). Equipartition: McCann, Vaswani and Zahorjan (1993). The published pseudocode mixes targets
with differences, hands out the ceiling of a share and its remainder, and passes bounds; here it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink, Suppressed
from dask_hpc_policies.jobs.constraints import largest_at_most, next_higher, next_lower, smallest_at_least
from dask_hpc_policies.model import JobView
from dask_hpc_policies.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a resize beside the job's own bounds."""

    #: ``max``: to the farthest legal size that is useful. ``next``: by one legal size.
    step: str = "max"
    #: A job expected to end within this time is left alone; 0 for no such guard.
    min_remaining_s: float = 0.0
    #: Expansions a job may have in its life; None for any number.
    max_expansions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizes:
    """Outcome of a rule: what to do, what was turned down."""

    expands: tuple[Expand, ...] = ()
    shrinks: tuple[Shrink, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    #: Nodes that the shrinks free together.
    freed_nodes: int = 0
    #: Nodes that the expansions take together.
    taken_nodes: int = 0


def oldest_first(jobs: Iterable[JobView]) -> list[JobView]:
    """Jobs by start time; equal ones keep their order."""
    return sorted(jobs, key=lambda job: job.submit_s if job.start_s is None else job.start_s)


def resizable(job: JobView) -> bool:
    """Whether a rule may touch the running job: malleable, named, not below its minimum."""
    return job.kind == "malleable" and not job.is_default and job.nodes >= job.min_nodes


def almost_done(job: JobView, limits: Limits) -> bool:
    """Whether the job ends within the guard; an unknown remaining time is infinite."""
    return job.remaining_s is not None and 0 < limits.min_remaining_s >= job.remaining_s


def growth_target(job: JobView, extra_nodes: int, step: str) -> int | None:
    """Legal size above the present one that takes at most `extra_nodes`; None when there is none."""
    reach = min(job.max_nodes, job.nodes + extra_nodes)
    if step == "next":
        return next_higher(job.constraint, job.nodes, reach)
    return largest_at_most(job.constraint, reach, job.nodes + 1)


def shrink_target(job: JobView, want_nodes: int, step: str) -> int | None:
    """Legal size below the present one that frees `want_nodes`, or as much as the bounds allow.

    None when there is no smaller legal size.
    """
    if step == "next":
        return next_lower(job.constraint, job.nodes, job.min_nodes)
    enough = largest_at_most(job.constraint, job.nodes - want_nodes, job.min_nodes)
    return enough if enough is not None else smallest_at_least(job.constraint, job.min_nodes, job.nodes - 1)


def grow_in_order(
    jobs: Sequence[JobView], idle_nodes: int, limits: Limits, code: ReasonCode = ReasonCode.IDLE_NODES
) -> Resizes:
    """Give idle nodes to `jobs`, each all it may have before the next (FPSMA when oldest first)."""
    expands: list[Expand] = []
    suppressed: list[Suppressed] = []
    idle = idle_nodes
    for job in jobs:
        if idle <= 0:
            break
        target = growth_target(job, idle, limits.step) if job.nodes < job.max_nodes else None
        if target is None:
            continue
        if refusal := _growth_refusal(job, limits):
            suppressed.append(_suppressed_growth(job, target, code, refusal))
            continue
        expands.append(Expand(job=job.id, nodes=target, reason=_growth_reason(job, target, idle, code)))
        idle -= target - job.nodes
    return Resizes(expands=tuple(expands), suppressed=tuple(suppressed), taken_nodes=idle_nodes - idle)


def grow_equally(jobs: Sequence[JobView], idle_nodes: int, limits: Limits) -> Resizes:
    """Divide idle nodes equally: the floor of the share to each, the remainder one each, oldest first (EGS).

    Shares are floored to legal sizes; what that leaves over stays idle.
    """
    eligible: list[JobView] = []
    suppressed: list[Suppressed] = []
    code = ReasonCode.EQUAL_SHARE
    for job in jobs if idle_nodes > 0 else ():
        target = growth_target(job, idle_nodes, "next") if job.nodes < job.max_nodes else None
        if target is None:
            continue
        if refusal := _growth_refusal(job, limits):
            suppressed.append(_suppressed_growth(job, target, code, refusal))
        else:
            eligible.append(job)
    share, remainder = divmod(idle_nodes, len(eligible)) if eligible else (0, 0)
    expands: list[Expand] = []
    taken = 0
    for job in eligible:
        target = growth_target(job, share + (remainder > 0), limits.step)
        if target is None:
            continue
        remainder -= target - job.nodes > share
        taken += target - job.nodes
        expands.append(Expand(job=job.id, nodes=target, reason=_growth_reason(job, target, idle_nodes, code)))
    return Resizes(expands=tuple(expands), suppressed=tuple(suppressed), taken_nodes=taken)


def shrink_in_order(jobs: Sequence[JobView], need_nodes: int, limits: Limits, head: str) -> Resizes | None:
    """Free `need_nodes` for job `head`, in the order of `jobs` (FPSMA when youngest first).

    None when the jobs cannot free enough: then nobody shrinks.
    """
    targets: list[tuple[JobView, int]] = []
    freed = 0
    for job in jobs:
        if freed >= need_nodes:
            break
        if almost_done(job, limits):
            continue
        target = shrink_target(job, need_nodes - freed, limits.step)
        if target is not None:
            targets.append((job, target))
            freed += job.nodes - target
    return _shrinks(targets, need_nodes, head) if freed >= need_nodes else None


def shrink_equally(jobs: Sequence[JobView], need_nodes: int, limits: Limits, head: str) -> Resizes | None:
    """Free `need_nodes` for job `head`: an equal share from each of `jobs`, the remainder one each (EGS).

    None when some job cannot give its share (legal sizes may make another one give more): nobody shrinks.
    """
    eligible = [
        job for job in jobs if not almost_done(job, limits) and shrink_target(job, 1, "next") is not None
    ]
    if not eligible:
        return None
    share, remainder = divmod(need_nodes, len(eligible))
    targets: list[tuple[JobView, int]] = []
    freed = 0
    for job in eligible:
        want = share + (remainder > 0)
        if want == 0:
            break
        remainder -= want > share
        target = shrink_target(job, want, limits.step)
        if target is not None:
            targets.append((job, target))
            freed += job.nodes - target
    return _shrinks(targets, need_nodes, head) if freed >= need_nodes else None


def reclaimable_nodes(jobs: Iterable[JobView], limits: Limits) -> int:
    """Nodes that `jobs` could free together under `limits`, each down to its smallest legal size."""
    total = 0
    for job in jobs:
        if not almost_done(job, limits):
            target = shrink_target(job, job.nodes, limits.step)
            total += 0 if target is None else job.nodes - target
    return total


def _shrinks(targets: list[tuple[JobView, int]], need_nodes: int, head: str) -> Resizes:
    # Steps between legal sizes may free more than is needed: hand the surplus back, most favoured
    # (last asked) jobs first, as far as legal sizes allow.
    surplus = sum(job.nodes - target for job, target in targets) - need_nodes
    kept: list[Shrink] = []
    freed = need_nodes + surplus
    for job, target in reversed(targets):
        back = target
        if surplus > 0:
            if target + surplus >= job.nodes:
                back = job.nodes
            else:
                back = largest_at_most(job.constraint, target + surplus, target) or target
            surplus -= back - target
            freed -= back - target
        if back < job.nodes:
            reason = Reason(
                ReasonCode.HEAD_JOB_WAITS,
                f"{head} lacks {counted(need_nodes)}: from {job.nodes} to {back} of at least {job.min_nodes}",
                {"head": head, "needed_nodes": need_nodes, "from_nodes": job.nodes, "to_nodes": back},
            )
            kept.append(Shrink(job=job.id, nodes=back, reason=reason))
    kept.reverse()
    return Resizes(shrinks=tuple(kept), freed_nodes=freed)


def _growth_refusal(job: JobView, limits: Limits) -> Reason | None:
    if limits.max_expansions is not None and job.expansions >= limits.max_expansions:
        return Reason(
            ReasonCode.EXPANSION_CAP,
            f"had {job.expansions} expansions of {limits.max_expansions} allowed (max_expansions)",
            {"expansions": job.expansions, "max_expansions": limits.max_expansions},
        )
    if almost_done(job, limits):
        return Reason(
            ReasonCode.ALMOST_DONE,
            f"ends in {job.remaining_s:g} s, not more than {limits.min_remaining_s:g} s (min_remaining_s)",
            {"remaining_s": job.remaining_s, "min_remaining_s": limits.min_remaining_s},
        )
    return None


def _growth_reason(job: JobView, target: int, idle_nodes: int, code: ReasonCode) -> Reason:
    return Reason(
        code,
        f"idle are {counted(idle_nodes)}: from {job.nodes} to {target} of at most {job.max_nodes}",
        {"idle_nodes": idle_nodes, "from_nodes": job.nodes, "to_nodes": target},
    )


def _suppressed_growth(job: JobView, target: int, code: ReasonCode, refusal: Reason) -> Suppressed:
    reason = Reason(code, f"could grow from {job.nodes} to {target}")
    return Suppressed(action=Expand(job=job.id, nodes=target, reason=reason), reason=refusal)


def lowest_size(job: JobView) -> int:
    """The smallest size the running job may be taken to (its present one when no smaller is legal)."""
    if job.constraint == "any":
        low, nodes = job.min_nodes or 1, job.nodes
        return low if low < nodes else nodes
    found = smallest_at_least(job.constraint, job.min_nodes, job.nodes)
    return job.nodes if found is None else found


def equal_sizes(jobs: Sequence[JobView], nodes: int, lows: Sequence[int] | None = None) -> list[int] | None:
    """Target sizes of the running `jobs` (oldest first) that divide `nodes` nodes equally.

    None when the lowest sizes of all jobs together (`lows` where they are known) are more than `nodes`.
    """
    lows = [lowest_size(job) for job in jobs] if lows is None else lows
    if sum(lows) > nodes:
        return None
    tops = [low if low > (top := job.max_nodes) else top for job, low in zip(jobs, lows, strict=True)]
    constrained = [(i, job.constraint) for i, job in enumerate(jobs) if job.constraint != "any"]
    return list(_equal_sizes(tuple(lows), tuple(tops), tuple(constrained), nodes))


# a policy is asked again when its resizes have been carried out, and finds the same jobs and nodes
@lru_cache(maxsize=16)
def _equal_sizes(
    lows: tuple[int, ...], tops: tuple[int, ...], constrained: tuple[tuple[int, str], ...], nodes: int
) -> list[int]:
    """`equal_sizes` of jobs with these bounds, and those of them that have constraints, by place."""

    def at(level: int) -> list[int]:
        sizes = [
            low if level <= low else level if level < top else top
            for low, top in zip(lows, tops, strict=True)
        ]
        for i, constraint in constrained:
            sizes[i] = largest_at_most(constraint, sizes[i], lows[i]) or lows[i]
        return sizes

    # the level `below` always fits; from the largest size on nobody gets more
    below, above = 0, 1 + min(nodes, max(tops, default=0))
    if not constrained:
        below = min(_level(lows, tops, nodes), above - 1)
        above = below + 1
    while above - below > 1:
        level = (below + above) // 2
        if sum(at(level)) <= nodes:
            below = level
        else:
            above = level
    sizes = at(below)
    left = nodes - sum(sizes)
    for i, size in enumerate(at(below + 1) if left else ()):
        step = size - sizes[i]
        if 0 < step <= left:
            sizes[i] = size
            left -= step
    return sizes


def _level(lows: Sequence[int], tops: Sequence[int], nodes: int) -> int:
    """The highest level at which jobs that may have any size take no more than `nodes`; see `equal_sizes`."""
    # with the level grow those jobs that are above their lowest sizes and below their largest ones
    turns = sorted([(low, 1) for low in lows] + [(top, -1) for top in tops])
    taken, growing, level = sum(lows), 0, 0
    for turn, change in turns:
        reached = taken + growing * (turn - level)
        if reached > nodes:
            return level + (nodes - taken) // growing
        taken, level = reached, turn
        growing += change
    return nodes
