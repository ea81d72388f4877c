"""Who starts: by attained service, users in turn, and nobody is overtaken for ever.

Rules of the file: waiting jobs are looked at in this order: larger priority; then those that have waited
longer than the patience, in order of service; then the lower level; then, in turn, the first job of each
user, the second of each and so on, where what a user runs counts as well and a weight of 2 makes two turns of
one. A job starts when the nodes that are idle, with those that running malleable jobs hold above their
smallest sizes, are enough for its own smallest size. A user who runs something starts no more than fits into
the user's share (`users`).

The first job that does not fit is the head. When the expected ends of what runs tell when it can start, that
time is its reservation, as in EASY backfilling (Lifka 1995): jobs behind it start only where they do not
delay it, and those that cannot be shrunk on no more nodes than that allows. When nothing tells, which is so
where people declare nothing, jobs behind it start, but none behind a job that has waited longer than the
patience, unless that asks for more nodes than there are: until they come nothing that ends helps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf, nextafter

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.jobs.constraints import largest_at_most
from dask_hpc_policies.model import JobView
from dask_hpc_policies.rules.admission import Pass, needed_nodes
from dask_hpc_policies.rules.fair.shares import Part, part_of
from dask_hpc_policies.rules.fair.terms import Params, level, overdue
from dask_hpc_policies.rules.fair.users import Shares
from dask_hpc_policies.rules.reservation import Shadow, expected_s, shadow
from dask_hpc_policies.wording import counted


def choose(plan: Pass, held: Sequence[Part], params: Params) -> list[Part]:
    """The waiting jobs that start now, with the sizes that they may have; the others get their reasons.

    `Pass.head` is the first that does not fit. `held` are the jobs that hold nodes.
    """
    line = _Line(plan, held, params)
    if plan.view.brief and line.futile():
        return []
    turn = _in_turn(plan, held, params)
    shares = Shares(plan, held, [job for job, _ in turn], params)
    late = []
    for job, need in turn:
        if shares.allow(job, need) or overdue(job, plan.view.now_s, params):
            if line.offer(job, need):
                shares.start(job, need)
        else:
            late.append((job, need))
    for job, need in late:
        if need > shares.idle_nodes:
            if not plan.view.brief:
                plan.reasons[job.id] = shares.reason(job)
        elif line.offer(job, need):
            shares.start(job, need)
    line.spread()
    return line.starting


class _Line:
    """Jobs are offered a start in order; the first that does not fit is the head, which nobody delays."""

    def __init__(self, plan: Pass, held: Sequence[Part], params: Params) -> None:
        self._plan = plan
        self._held = held
        self._params = params
        self._promise: Shadow | None = None
        #: A job that has waited longer than the patience does not fit.
        self._blocked = False
        #: Nodes that are idle or can be freed.
        self._supply = plan.idle_nodes + sum([part.job.nodes - part.low for part in held])
        #: Nodes that are idle or held; more are there while some change hands.
        self._known = plan.idle_nodes + sum([part.job.nodes for part in held])
        self.starting: list[Part] = []
        #: Those of them that have their nodes for as long as they run, also when the head is to start.
        self._lasting: list[Part] = []

    def futile(self) -> bool:
        """Whether nobody fits, and nobody is told so who asks for more nodes."""
        needs = [needed_nodes(job) for job in self._plan.waiting]
        fewest = min([need for need in needs if need is not None], default=inf)
        return fewest > self._supply and all(job.requested_nodes is None for job in self._plan.running)

    def offer(self, job: JobView, need: int) -> bool:
        """Whether `job` starts, on `need` nodes or more; when not, it gets its reason."""
        plan, promise = self._plan, self._promise
        if need <= self._supply and (promise is None or self._beside(job, need, promise)):
            self._supply -= need
            self.starting.append(part := _beginner(job, need, self._params))
            if promise is not None and plan.view.now_s + expected_s(job) > promise.start_s:
                self._promise = Shadow(promise.start_s, promise.extra_nodes - need)
                if job.kind != "malleable":
                    self._lasting.append(part)
            return True
        self._blocked = self._blocked or self._blocks(job, need)
        if promise is None:
            plan.head = job
            self._promise = _promise(plan, need, self._supply, self.starting, self._held)
        elif not plan.view.brief:
            plan.reasons[job.id] = _held(plan, need, self._supply)
        return False

    def spread(self) -> None:
        """Bound the sizes of jobs that cannot be shrunk for the head to what that leaves them."""
        left = 0 if self._promise is None else self._promise.extra_nodes
        for part in self._lasting:
            reach = min(part.high, part.low + left)
            part.high = part.most = largest_at_most(part.job.constraint, reach, part.low) or part.low
            left -= part.high - part.low

    def _blocks(self, job: JobView, need: int) -> bool:
        """Whether no job starts behind one that does not fit, unless it is known when that can start."""
        view = self._plan.view
        return overdue(job, view.now_s, self._params) and (need <= self._known or need <= view.pool_nodes)

    def _beside(self, job: JobView, need: int, promise: Shadow) -> bool:
        """Whether a job that fits may start although the head waits."""
        if promise.start_s == inf:
            return not self._blocked
        return need <= promise.extra_nodes or self._plan.view.now_s + expected_s(job) <= promise.start_s


def _beginner(job: JobView, need: int, params: Params) -> Part:
    """A job that starts now."""
    high = need
    if not job.is_default and job.start_nodes is None:
        most = min(job.max_nodes, job.preferred_nodes or job.max_nodes)
        high = largest_at_most(job.constraint, most, need) or need
    return part_of(job, need, high, params, starts=True)


def _in_turn(plan: Pass, held: Sequence[Part], params: Params) -> list[tuple[JobView, int]]:
    """Waiting jobs that have a legal size, with the fewest nodes they can start with, in order."""
    now_s = plan.view.now_s
    present = Counter([part.job.user for part in held])
    keyed = []
    for i, job in enumerate(plan.waiting):
        need = needed_nodes(job)
        if need is None:
            continue
        if overdue(job, now_s, params):
            key = (-job.priority, False, 0, 0.0, i)
        else:
            key = (-job.priority, True, level(job.attained_node_s, params), present[job.user] / job.weight, i)
        present[job.user] += 1
        keyed.append((key, job, need))
    keyed.sort(key=lambda item: item[0])
    return [(job, need) for _, job, need in keyed]


def _promise(plan: Pass, need: int, supply: int, starting: Sequence[Part], held: Sequence[Part]) -> Shadow:
    """The head's reservation: what running jobs can give counts as free, the rest of them when they end."""
    now_s = plan.view.now_s
    soon_s = nextafter(now_s, inf)
    ends = [
        (max(soon_s, now_s + part.job.remaining_s), part.low)
        for part in held
        if part.job.remaining_s is not None
    ]
    ends += [(max(soon_s, t_s), 1) for t_s in plan.view.returns_s]
    for part in starting:
        seconds = expected_s(part.job)
        if seconds < inf:
            ends.append((max(soon_s, now_s + seconds), part.low))
    ends.sort()
    return shadow(need, supply, ends)


def _held(plan: Pass, need: int, supply: int) -> Reason:
    assert plan.head is not None
    data = {"needed_nodes": need, "available_nodes": supply, "head": plan.head.id}
    if need > supply:
        text = f"needs {counted(need)}, {supply} are idle or could be freed"
        return Reason(ReasonCode.NOT_ENOUGH_NODES, text, data)
    text = (
        f"needs {counted(need)} of {supply} that are idle or could be freed, and could delay {plan.head.id}"
    )
    return Reason(ReasonCode.WOULD_DELAY, text, data)
