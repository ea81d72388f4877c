"""Fair shares by attained service: the policy for people who declare nothing but a job's name.

Nothing is known of how long a job takes, so what it has had decides: least attained service first, as in
multi-level feedback queues (Corbato, Merwin-Daggett and Daley 1962; Nuyens and Wierman 2008, "The
foreground-background queue: a survey"), which serve small jobs soon without being told which ones are small.
Attained service is node-seconds. Levels, each a factor longer than the one before, round it, so that equal
jobs have equal sizes and change them only a few times in their lives.

* Who starts is said in `starting`. Nodes come from what is idle and, at once, from running malleable jobs
  above their smallest sizes.
* Sizes: nodes are divided between users, then between the jobs of a user, in inverse proportion to attained
  service, rounded to levels (`shares`). That of a user is what all present jobs of the user have had,
  divided by the user's weight. So ten jobs of one user get together what one job of another does. A job
  has no less than its minimum, and what does not change its size (rigid, reconfiguring, almost over)
  counts as its user's.
* Slots of jobs that named no size are dealt in turn, whoever holds the nodes (`turns`; live only: in the
  simulator a job has the nodes that it holds).
* A job that could grow does so only when that repays (`terms.repays`); one that was resized a moment ago
  keeps its size, unless a job starts. Nodes that would stay idle go to whoever they repay for.

Starvation. A running job keeps its minimum. Where no ends are expected, a waiting job is overtaken during its
first `patience_s` only: from then on no job that came after it, of its priority or a lower one, starts before
it, once there are as many nodes as it asks for. So it starts at the latest when those before it have started
and what ran at the end of its patience has ended, which goes on with at least its minimum. Where ends are
expected, a job that has waited longer than that comes to the head of the line in order of service, and nobody
delays the head beyond the time at which it is expected to start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dask_hpc_policies.decision import UNEXPLAINED, Decision, Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobs.constraints import largest_at_most
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.rules.admission import Pass
from dask_hpc_policies.rules.fair.shares import Part, divide_parts, holders
from dask_hpc_policies.rules.fair.starting import choose
from dask_hpc_policies.rules.fair.terms import Params, repays
from dask_hpc_policies.rules.requests import answer_for_more, grant_fewer
from dask_hpc_policies.rules.seen import SeenSize, seen_sizes
from dask_hpc_policies.rules.sizing import Resizes, lowest_size, resizable
from dask_hpc_policies.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class FairState:
    """Since when jobs have had their sizes."""

    jobs: Mapping[str, SeenSize] = field(default_factory=dict)


def decide(view: ClusterSnapshot, state: FairState, params: Params) -> tuple[Decision, FairState]:
    """Start who has had least, and bring all malleable jobs to their shares."""
    seen = seen_sizes(view, state.jobs)
    plan = Pass(view)
    grant_fewer(plan)
    held = holders(plan, params)
    starting = choose(plan, held, params) if plan.waiting else []
    # what evolving jobs ask for comes from what the starts leave over
    kept = min(plan.idle_nodes, sum([part.low for part in starting]))
    plan.idle_nodes -= kept
    answer_for_more(plan)
    plan.idle_nodes += kept
    if starting:
        parts = with_beginners(plan, held, starting)
    else:
        parts = held
        keep_sizes([part for part in held if part.resizable and _cools(seen[part.job.id], view, params)])
    share(plan, parts, params)
    _resize(plan, parts)
    for part in parts if starting else ():
        if part.starts:
            plan.start(part.job, part.size, _start_reason(part, plan.idle_nodes))
    return plan.answer(_reclaimable(plan, parts)), FairState(jobs=seen)


def _cools(seen: SeenSize, view: ClusterSnapshot, params: Params) -> bool:
    return seen.changed_s is not None and view.now_s - seen.changed_s < params["cooldown_s"]


def keep_sizes(parts: Collection[Part]) -> None:
    """While nobody starts, these parts keep the sizes that they have."""
    for part in parts:
        part.low = part.high = part.job.nodes


def with_beginners(plan: Pass, held: Sequence[Part], starting: Collection[Part]) -> list[Part]:
    """All named jobs that hold nodes or start now, in order of service, with the sizes they may have."""
    parts = {part.job.id: part for part in held}
    parts |= {part.job.id: part for part in starting}
    return [parts[job.id] for job in plan.view.jobs if job.id in parts]


def _reclaimable(plan: Pass, parts: Collection[Part]) -> int:
    """What running jobs could still give up: for the reason of the head."""
    if plan.head is None or plan.view.brief:
        return 0
    sizes = {part.job.id: part.size for part in parts}
    return sum([sizes[job.id] - lowest_size(job) for job in plan.running if resizable(job)])


def share(plan: Pass, parts: list[Part], params: Params) -> None:
    """Set the sizes of `parts`: their shares, but no growth that does not repay."""
    total = plan.idle_nodes + sum([part.job.nodes for part in parts])
    while True:
        divide_parts(parts, total, params)
        futile = [
            part
            for part in parts
            if part.resizable and part.size > part.job.nodes and not repays(part.job, part.size, params)
        ]
        if not futile:
            break
        for part in futile:
            part.high = part.job.nodes
    left = total - sum([part.size for part in parts])
    if left > 0:
        _hand_out(parts, left, params)


def _hand_out(parts: list[Part], left: int, params: Params) -> None:
    """Give out what legal sizes, or growth that does not repay, have left over; the lowest level first."""
    by_level = sorted(parts, key=lambda part: part.level)
    for part in by_level:  # nobody gives up what another one would get here
        if part.size < part.job.nodes:
            reach = min(part.job.nodes, part.size + left)
            target = largest_at_most(part.job.constraint, reach, part.size) or part.size
            left, part.size = left - (target - part.size), target
    for part in by_level:
        if part.size >= part.most or left <= 0:
            continue
        grown = largest_at_most(part.job.constraint, min(part.most, part.size + left), part.size + 1)
        if grown is not None and repays(part.job, grown, params):
            left, part.size = left - (grown - part.size), grown


def _resize(plan: Pass, parts: Collection[Part]) -> None:
    """Shrink and expand running jobs to their sizes."""
    changed = [part for part in parts if part.resizable and part.size != part.job.nodes]
    if not changed:
        return
    head = _head(plan, parts)
    shrinks: list[Shrink] = []
    expands: list[Expand] = []
    freed = taken = 0
    for part in changed:
        before, after = part.job.nodes, part.size
        reason = UNEXPLAINED if plan.view.brief else _share_reason(part, head)
        if after > before:
            expands.append(Expand(job=part.job.id, nodes=after, reason=reason))
            taken += after - before
        else:
            shrinks.append(Shrink(job=part.job.id, nodes=after, reason=reason))
            freed += before - after
    plan.resize(Resizes(shrinks=tuple(shrinks), expands=tuple(expands), freed_nodes=freed, taken_nodes=taken))


def _head(plan: Pass, parts: Collection[Part]) -> str | None:
    """The first job that starts on nodes which others have to give up; None when none does."""
    idle = plan.idle_nodes
    for part in parts:
        if part.starts:
            idle -= part.size
            if idle < 0:
                return part.job.id
    return None


def _share_reason(part: Part, head: str | None) -> Reason:
    job, size = part.job, part.size
    data = {"from_nodes": job.nodes, "to_nodes": size, "level": part.level}
    text = f"its share at level {part.level}: from {job.nodes} to {size}"
    if size > job.nodes:
        return Reason(ReasonCode.EQUAL_SHARE, text, data)
    if head is not None:
        return Reason(ReasonCode.HEAD_JOB_WAITS, f"room for {head}; {text}", {"head": head, **data})
    return Reason(ReasonCode.POOL_SHARED, text, data)


def _start_reason(part: Part, idle_nodes: int) -> Reason | None:
    if part.job.is_default or part.job.start_nodes is not None:
        return None
    text = f"{counted(part.size)} of {idle_nodes} idle or freed: its share at level {part.level}"
    data = {"nodes": part.size, "idle_nodes": idle_nodes, "level": part.level}
    return Reason(ReasonCode.MOLDED_TO_FIT, text, data)
