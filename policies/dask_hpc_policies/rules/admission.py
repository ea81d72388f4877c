"""The part all builtin policies share: below-minimum jobs first, then strict first come, first served.

Rules of the file: a `Pass` collects one decision. Order of service is the order of `view.jobs`
(priority, then submission). A waiting head blocks everybody behind it (Chadha 2019, section 5.3,
algorithm 1); a job that has no legal size at all blocks nobody. Nothing here looks at `view.nodes`.
"""

from __future__ import annotations

from dask_hpc_policies.decision import (
    UNEXPLAINED,
    Action,
    Decision,
    Expand,
    Hold,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Suppressed,
)
from dask_hpc_policies.jobs.constraints import largest_at_most, smallest_at_least
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.rules.sizing import Resizes
from dask_hpc_policies.wording import counted


def needed_nodes(job: JobView) -> int | None:
    """The fewest nodes the pending job can start with; None when its bounds hold no legal size."""
    if job.is_default:
        return job.min_nodes
    if job.start_nodes is not None:
        return job.start_nodes
    return smallest_at_least(job.constraint, job.min_nodes, job.max_nodes)


def start_size(job: JobView, idle_nodes: int, cap_nodes: int | None = None) -> int | None:
    """Size at which the pending job starts on `idle_nodes`; None when it does not fit.

    Exactly what it asked for, else the largest legal size that fits (John 2024, section 1.2.1: mold-able
    start). `cap_nodes` and the job's preferred size bound such a moldable start, but never below the job's
    smallest size.
    """
    need = needed_nodes(job)
    if need is None or need > idle_nodes:
        return None
    if job.is_default or job.start_nodes is not None:
        return need
    reach = min(idle_nodes, job.max_nodes)
    for bound in (cap_nodes, job.preferred_nodes):
        if bound is not None:
            reach = min(reach, max(bound, need))
    return largest_at_most(job.constraint, reach, job.min_nodes)


class Pass:
    """One decision in the making.

    Attributes
    ----------
    idle_nodes
        Nodes that are still to give.
    running
        Named running jobs at or above their minimum, in order of service: those a rule may look at.
    waiting
        Pending jobs that have not been started, in order of service.
    started
        Jobs that this decision starts, with their sizes.
    head
        First pending job that does not fit, after `admit`; None when nobody waits.
    reasons
        Why a job waits, by id, where a rule knows better than `answer`.
    locked
        True when no resize may be proposed because some job is reconfiguring (lock ``system``).
    """

    __slots__ = (
        "_actions", "_suppressed", "head", "idle_nodes", "locked", "reasons", "running", "started", "view",
        "waiting",
    )  # fmt: skip

    def __init__(self, view: ClusterSnapshot) -> None:
        self.view = view
        self.idle_nodes = max(view.of_role(), 0)
        self.running: list[JobView] = []
        self.head: JobView | None = None
        self.waiting: list[JobView] = []
        self.started: list[tuple[JobView, int]] = []
        self.reasons: dict[str, Reason] = {}
        self._actions: list[Action] = []
        self._suppressed: list[Suppressed] = []
        below: list[JobView] = []
        adapting = False
        for job in view.jobs:
            if job.state == "pending":
                self.waiting.append(job)
            elif job.is_default:
                continue
            elif job.state == "running":
                (below if job.nodes < job.min_nodes else self.running).append(job)
            elif job.state == "adapting":
                adapting = True
        self.locked = adapting and view.lock == "system"
        for job in below:
            self._restore(job)

    def _restore(self, job: JobView) -> None:
        legal = smallest_at_least(job.constraint, job.min_nodes, job.max_nodes) or job.min_nodes
        given = min(legal - job.nodes, self.idle_nodes)
        target = job.nodes + given if given > 0 else legal
        reason = Reason(
            ReasonCode.BELOW_MINIMUM,
            f"holds {counted(job.nodes)} of at least {job.min_nodes}: to {target}, {self.idle_nodes} idle",
            {"from_nodes": job.nodes, "min_nodes": job.min_nodes, "idle_nodes": self.idle_nodes},
        )
        action = Expand(job=job.id, nodes=target, reason=reason)
        if given <= 0:
            refusal = Reason(ReasonCode.NOT_ENOUGH_NODES, "no node is idle", {"idle_nodes": self.idle_nodes})
            self._suppressed.append(Suppressed(action=action, reason=refusal))
        elif self.locked:
            self._suppressed.append(Suppressed(action=action, reason=_LOCKED))
            # The nodes are its own as soon as the lock opens: a start must not take them first.
            self.idle_nodes -= given
        else:
            self._actions.append(action)
            self.idle_nodes -= given

    def admit(self, cap_nodes: int | None = None) -> None:
        """Start pending jobs in order while the head fits; `cap_nodes` bounds moldable starts."""
        held: list[JobView] = []
        self.head = None
        for i, job in enumerate(self.waiting):
            if needed_nodes(job) is None:
                held.append(job)
                continue
            size = start_size(job, self.idle_nodes, cap_nodes)
            if size is None:
                self.head = job
                held += self.waiting[i:]
                break
            self._start(job, size, self._fits(job, size))
        self.waiting = held

    def suppress(self, action: Action, reason: Reason) -> None:
        """Note that `action` was considered and turned down."""
        self._suppressed.append(Suppressed(action=action, reason=reason))

    def start(self, job: JobView, size: int, reason: Reason | None = None) -> None:
        """Start a waiting job out of order; without a reason, because it fits."""
        self.waiting = [other for other in self.waiting if other is not job]
        self._start(job, size, reason or self._fits(job, size))

    def _fits(self, job: JobView, size: int) -> Reason:
        if self.view.brief:
            return UNEXPLAINED
        exact, idle_nodes = job.is_default or job.start_nodes is not None, self.idle_nodes
        return Reason(
            ReasonCode.FITS if exact else ReasonCode.MOLDED_TO_FIT,
            f"{counted(size)} of {idle_nodes} idle"
            + ("" if exact else f", largest size from {job.min_nodes} to {job.max_nodes} that fits"),
            {"nodes": size, "idle_nodes": idle_nodes},
        )

    def _start(self, job: JobView, size: int, reason: Reason) -> None:
        self._actions.append(Start(job=job.id, nodes=size, reason=reason))
        self.started.append((job, size))
        self.idle_nodes -= size

    def shortage_nodes(self) -> int:
        """Nodes that the head lacks; 0 when nobody waits."""
        need = 0 if self.head is None else needed_nodes(self.head) or 0
        return max(0, need - self.idle_nodes)

    def resize(self, resizes: Resizes) -> None:
        """Take over a rule's outcome. Freed nodes are idle from now on."""
        self._suppressed += resizes.suppressed
        if self.locked:
            moved: tuple[Expand | Shrink, ...] = resizes.shrinks + resizes.expands
            self._suppressed += [Suppressed(action=action, reason=_LOCKED) for action in moved]
            return
        self._actions += resizes.shrinks
        self._actions += resizes.expands
        self.idle_nodes += resizes.freed_nodes - resizes.taken_nodes

    def answer(self, reclaimable_nodes: int = 0) -> Decision:
        """The decision: what was collected, and a Hold for everyone who still waits.

        Parameters
        ----------
        reclaimable_nodes
            Nodes that shrinking could have freed for the head; only for its reason.
        """
        behind: Reason | None = None
        for job in self.waiting if not self.view.brief else ():
            if job.id in self.reasons:
                self._actions.append(Hold(job=job.id, reason=self.reasons[job.id]))
            elif job is self.head:
                self._actions.append(Hold(job=job.id, reason=self._head_reason(job, reclaimable_nodes)))
                behind = Reason(ReasonCode.BEHIND_HEAD, f"waits behind {job.id}", {"head": job.id})
            elif needed_nodes(job) is None or behind is None:
                self._actions.append(Hold(job=job.id, reason=_no_legal_size(job)))
            else:
                self._actions.append(Hold(job=job.id, reason=behind))
        return Decision(actions=tuple(self._actions), suppressed=tuple(self._suppressed))

    def _head_reason(self, job: JobView, reclaimable_nodes: int) -> Reason:
        need = needed_nodes(job)
        text = f"needs {counted(need or 0)}, idle are {self.idle_nodes}"
        data: dict[str, int | None] = {"needed_nodes": need, "idle_nodes": self.idle_nodes}
        if reclaimable_nodes:
            text += f", running jobs could free {reclaimable_nodes}"
            data["reclaimable_nodes"] = reclaimable_nodes
        if self.locked and reclaimable_nodes + self.idle_nodes >= (need or 0):
            text += "; no resize while a job is adapting (lock: system)"
            return Reason(ReasonCode.LOCKED, text, data)
        return Reason(ReasonCode.NOT_ENOUGH_NODES, text, data)


_LOCKED = Reason(ReasonCode.LOCKED, "a job is adapting and the lock is system: no resize until it has ended")


def _no_legal_size(job: JobView) -> Reason:
    return Reason(
        ReasonCode.NO_LEGAL_SIZE,
        f"constraint {job.constraint} allows no size from {job.min_nodes} to {job.max_nodes} nodes",
        {"constraint": job.constraint, "min_nodes": job.min_nodes, "max_nodes": job.max_nodes},
    )
