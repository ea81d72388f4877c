"""Node stealing: a job that lost a node takes one from a small job (SFSJ, steal from small jobs).

ADMIRE (2023, D3.3, section 3.1), after Du, Marchal, Pallez and Robert. Below it lies the source's baseline,
conservative backfilling: every waiting job gets the earliest place that delays nobody of higher rank. Ranks,
highest first:

1. jobs that failed, in order of arrival, with what is left of them (`JobView.remaining_s`);
2. jobs that were robbed, in order of arrival;
3. all others, in order of service.

When a failed job finds too few nodes, SFSJ looks for a victim among the running jobs with strictly fewer
nodes: the one with the fewest, and of these the one submitted last (section 3.1.4) or the one that has run
the shortest (section 3.1). The victim is interrupted at once, at its next checkpoint, or after a checkpoint
taken for the purpose. It is chosen once for a failure: when there is none, the job waits as in the baseline.

Malleable victims are the step that the source announces. Here a malleable job that keeps at least its
minimum gives the nodes and goes on, slower; it comes before any job that would have to be interrupted. It is
the one that the loss delays least (what small jobs are good at, being started again, it has no need for),
may be of any size, and has rank two for getting its nodes back.

Live, a failed job is one that runs below its minimum; in a simulation it may also be pending again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nextafter
from typing import Any

from dask_hpc_policies.decision import (
    Action,
    Decision,
    Expand,
    Hold,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Steal,
    Suppressed,
)
from dask_hpc_policies.jobs.constraints import largest_at_most, smallest_at_least
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.params import Bool, Choice, Parameter
from dask_hpc_policies.rules import sizing
from dask_hpc_policies.rules.admission import needed_nodes
from dask_hpc_policies.rules.reservation import Profile, expected_s, releases
from dask_hpc_policies.wording import counted

Params = Mapping[str, Any]

PARAMETERS: tuple[Parameter, ...] = (
    Choice("timing", "now", ("now", "next-checkpoint", "proactive-checkpoint", "never"), label="Interruption",
           help="when a victim is interrupted: now, at its next checkpoint, after a checkpoint it takes "
           "now, or never"),
    Choice("tie", "latest-submission", ("latest-submission", "shortest-execution"), label="Tie-break",
           help="which of equally small jobs is the victim: the one submitted last, or the one that has run "
           "the shortest"),
    Bool("malleable_victims", True, label="Malleable victims",
         help="malleable jobs above their minimum give nodes, uninterrupted, before any other job does"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StealingState:
    """What is remembered from pass to pass."""

    #: Failed jobs for which a victim to interrupt has been looked for, and when they had failed.
    considered: Mapping[str, float] = field(default_factory=dict)
    #: Malleable victims, and the sizes they had.
    robbed: Mapping[str, int] = field(default_factory=dict)


def decide(view: ClusterSnapshot, state: StealingState, params: Params) -> tuple[Decision, StealingState]:
    """One pass of SFSJ on conservative backfilling; see the module."""
    plan = _Plan(view, state, params)
    plan.run()
    return plan.answer()


def service_rank(job: JobView) -> tuple[int, float]:
    """Sort key of waiting jobs: failed, robbed, others; within the first two in order of arrival.

    Sorting must be stable: equal keys keep the order of service.
    """
    if job.interruption == "theft":
        return 1, job.submit_s
    return (0, job.submit_s) if job.interruption == "failure" or _hurt(job) else (2, 0.0)


def _hurt(job: JobView) -> bool:
    return job.state == "running" and not job.is_default and job.nodes < job.min_nodes


class _Plan:
    """One decision in the making."""

    def __init__(self, view: ClusterSnapshot, state: StealingState, params: Params) -> None:
        self.view = view
        self.params = params
        self.idle_nodes = max(view.of_role(), 0)
        self.free = Profile(view.now_s, self.idle_nodes, releases(view))
        running, adapting = view.running, {job.id for job in view.adapting}
        self.locked = view.lock == "system" and bool(adapting)
        self.actions: list[Action] = []
        self.suppressed: list[Suppressed] = []
        self.touched: set[str] = set()
        self.before = state.considered
        sizes = {job.id: job.nodes for job in running}
        #: Only those that have not got their nodes back.
        self.robbed = {
            id: size for id, size in state.robbed.items() if id in adapting or sizes.get(id, size) < size
        }
        #: Those that neither failed nor were robbed, in order of service.
        self.others = [job for job in view.jobs if job.state == "pending" and job.interruption == "none"]
        first = [
            job for job in view.jobs if (job.state == "pending" and job.interruption != "none") or _hurt(job)
        ]
        known = state.considered
        self.considered = {job.id: known[job.id] for job in (*first, *self.others) if job.id in known}
        short = [job for job in running if job.id in self.robbed and not _hurt(job)]
        #: Those that did, who come first.
        self.queue = sorted([*first, *short], key=self._rank)
        #: The job whose start is not known, once there is one: nobody may overtake it.
        self.blocked: str | None = None

    def _rank(self, job: JobView) -> tuple[int, float]:
        if job.state == "running" and not _hurt(job):
            return 1, job.submit_s
        return service_rank(job)

    def run(self) -> None:
        while self.queue:
            job = self.queue.pop(0)
            if job.id in self.touched:
                self._reserve(job, victim=True)
            elif job.state == "pending":
                self._start(job)
            elif _hurt(job):
                self._restore(job)
            else:
                self._give_back(job)
        brief, fewest = self.view.brief, _fewest(self.others)
        for job, need in zip(self.others, fewest, strict=True):
            if brief and (need > self.idle_nodes or self.blocked is not None):
                return  # none of those who are left can start
            self._start(job)

    def answer(self) -> tuple[Decision, StealingState]:
        state = StealingState(considered=self.considered, robbed=self.robbed)
        return Decision(actions=tuple(self.actions), suppressed=tuple(self.suppressed)), state

    # ------------------------------------------------------------- those who wait

    def _start(self, job: JobView) -> None:
        need = needed_nodes(job)
        if need is None:
            text = f"constraint {job.constraint} allows no size from {job.min_nodes} to {job.max_nodes} nodes"
            self._hold(job, ReasonCode.NO_LEGAL_SIZE, text, {"constraint": job.constraint})
            return
        if self.blocked is not None:
            self._hold(job, ReasonCode.BEHIND_HEAD, f"waits behind {self.blocked}", {"head": self.blocked})
            return
        if job.interruption == "failure":
            self._rob(job, need - self.idle_nodes, need, whole=True)
        size = self._size_now(job, need)
        if size is None:
            self._reserve(job)
            return
        text = f"{counted(size)} of {self.idle_nodes} idle, without delay for anyone before it"
        data = {"nodes": size, "idle_nodes": self.idle_nodes}
        exact = job.is_default or job.start_nodes is not None
        code = ReasonCode.FITS if exact else ReasonCode.MOLDED_TO_FIT
        self.actions.append(Start(job=job.id, nodes=size, reason=Reason(code, text, data)))
        self._take(size, expected_s(job))

    def _size_now(self, job: JobView, need: int) -> int | None:
        """Size at which the job can start now; None when it cannot."""
        if need > self.idle_nodes:
            return None
        available = min(self.idle_nodes, self.free.least_nodes(self.view.now_s, expected_s(job)))
        if need > available:
            return None
        if job.is_default or job.start_nodes is not None:
            return need
        reach = min(available, job.max_nodes if job.preferred_nodes is None else job.preferred_nodes)
        return largest_at_most(job.constraint, max(reach, need), need)

    def _reserve(self, job: JobView, victim: bool = False) -> None:
        """Keep the earliest place for a job that does not start now."""
        need = needed_nodes(job) or 0
        duration_s = expected_s(job)
        if victim:
            duration_s = inf if job.restart_s is None and job.walltime_s is None else _restart_s(job)
        start_s = self.free.earliest_s(need, duration_s)
        if start_s == inf:
            self.blocked = job.id
        else:
            self.free.take(start_s, duration_s, need)
        if victim or self.view.brief:
            return
        code, text = ReasonCode.NOT_ENOUGH_NODES, f"needs {counted(need)}, idle are {self.idle_nodes}"
        if start_s < inf:
            wait_s = start_s - self.view.now_s
            code, text = ReasonCode.RESERVED, f"{counted(need)} reserved for it in {wait_s:g} s"
        self._hold(job, code, text, {"needed_nodes": need, "idle_nodes": self.idle_nodes})

    def _restore(self, job: JobView) -> None:
        """Give a running job that is below its minimum what it lacks, or as much as there is."""
        legal = smallest_at_least(job.constraint, job.min_nodes, job.max_nodes) or job.min_nodes
        if self.idle_nodes <= 0 and not self.locked and job.interruption != "theft":
            self._rob(job, legal - job.nodes, job.min_nodes, whole=False)
        given = min(legal - job.nodes, self.idle_nodes)
        text = f"holds {counted(job.nodes)} of at least {job.min_nodes}, idle are {self.idle_nodes}"
        data = {"from_nodes": job.nodes, "min_nodes": job.min_nodes, "idle_nodes": self.idle_nodes}
        target = job.nodes + given if given > 0 else legal
        action = Expand(job=job.id, nodes=target, reason=Reason(ReasonCode.BELOW_MINIMUM, text, data))
        if given <= 0:
            self._suppress(action, ReasonCode.NOT_ENOUGH_NODES, "no node is idle")
        elif self.locked:
            self._suppress(action, ReasonCode.LOCKED, _LOCKED)
        else:
            self.actions.append(action)
        if given < legal - job.nodes:
            # What becomes idle next is its own.
            self.blocked = job.id
        if given > 0:
            self._take(given, expected_s(job))

    def _give_back(self, job: JobView) -> None:
        """Let a malleable job that was robbed grow to the size it had."""
        left_s = expected_s(job)
        spare = min(self.idle_nodes, self.free.least_nodes(self.view.now_s, left_s))
        want = self.robbed[job.id] - job.nodes
        target = sizing.growth_target(job, min(spare, want), "max") if self.blocked is None else None
        if target is None:
            return
        text = f"gets back what was taken from it: from {job.nodes} to {target} of {self.robbed[job.id]}"
        data = {"from_nodes": job.nodes, "to_nodes": target}
        action = Expand(job=job.id, nodes=target, reason=Reason(ReasonCode.RETURNED, text, data))
        if self.locked:
            self._suppress(action, ReasonCode.LOCKED, _LOCKED)
            return
        self.actions.append(action)
        self._take(target - job.nodes, left_s)

    # ---------------------------------------------------------------- the victim

    def _rob(self, thief: JobView, lacking: int, size: int, whole: bool) -> None:
        """Get `lacking` nodes for a failed job of `size` nodes from another one, if there is a victim.

        `whole`: the thief needs all its nodes at once, and for as long as it takes; otherwise it runs, and
        any node is welcome.
        """
        if lacking <= 0:
            return
        need, seconds = (size, expected_s(thief)) if whole else (lacking, 0.0)
        gives = self.params["malleable_victims"] and not self.locked
        if gives and self._shrink_one(thief, lacking, need, seconds):
            return
        failed_s = 0.0 if thief.interrupted_s is None else thief.interrupted_s
        seen = self.before.get(thief.id) == failed_s
        self.considered[thief.id] = failed_s
        if not seen and self.params["timing"] != "never":
            self._interrupt_one(thief, lacking, size, need, seconds)

    def _interrupt_one(self, thief: JobView, lacking: int, size: int, need: int, seconds: float) -> None:
        """Interrupt the smallest job with fewer nodes than the thief, if that lets the thief go on."""
        victim = self._smallest([job for job in self._others(thief) if lacking <= job.nodes < size])
        if victim is None:
            return
        after = self.free.copy()
        after.take(self.view.now_s, expected_s(victim), -victim.nodes)
        if after.least_nodes(self.view.now_s, seconds) < need:
            return
        text = f"{thief.id} failed and lacks {counted(lacking)}; of the jobs with fewer than {size} this is "
        text += f"the smallest ({counted(victim.nodes)})"
        data = {"thief": thief.id, "victim_nodes": victim.nodes, "stolen_nodes": lacking}
        reason = Reason(ReasonCode.NODE_STOLEN, text, data)
        timing = self.params["timing"]
        self.actions.append(
            Steal(job=victim.id, thief=thief.id, stolen_nodes=lacking, timing=timing, reason=reason)
        )
        self.touched.add(victim.id)
        if timing != "now":
            return
        self.idle_nodes += victim.nodes
        self.free = after
        # Second to those that failed, first of all others: its arrival decides among the robbed.
        place = 0
        while place < len(self.queue) and self._rank(self.queue[place]) <= (1, victim.submit_s):
            place += 1
        self.queue.insert(place, victim)

    def _shrink_one(self, thief: JobView, lacking: int, need: int, seconds: float) -> bool:
        """Take `lacking` nodes from the malleable job that it delays least; False when there is none."""
        best: tuple[tuple[float, int], JobView, int] | None = None
        for job in self._others(thief):
            if not sizing.resizable(job):
                continue
            target = largest_at_most(job.constraint, job.nodes - lacking, job.min_nodes)
            if target is None:
                continue
            # As long as it takes, times the share that is missing; without an estimate the share decides.
            cost = (expected_s(job) * (job.nodes / target - 1.0), -job.nodes)
            if best is None or cost <= best[0]:
                best = (cost, job, target)
        if best is None:
            return False
        _, victim, target = best
        given, left_s, now_s = victim.nodes - target, expected_s(victim), self.view.now_s
        after = self.free.copy()
        after.take(now_s, left_s, -given)
        if left_s < inf:
            # With fewer nodes it takes longer, and holds the rest of them until then.
            end_s = max(now_s + left_s, nextafter(now_s, inf))
            after.take(end_s, left_s * (victim.nodes / target - 1.0), target)
        if after.least_nodes(now_s, seconds) < need:
            return False
        text = f"{thief.id} failed and lacks {counted(lacking)}: from {victim.nodes} to {target}"
        data = {"thief": thief.id, "from_nodes": victim.nodes, "to_nodes": target}
        reason = Reason(ReasonCode.NODE_STOLEN, text, data)
        self.actions.append(Shrink(job=victim.id, nodes=target, reason=reason))
        self.touched.add(victim.id)
        self.robbed.setdefault(victim.id, victim.nodes)
        self.idle_nodes += given
        self.free = after
        self.queue = [job for job in self.queue if job.id != victim.id]
        return True

    def _others(self, thief: JobView) -> list[JobView]:
        return [
            job
            for job in self.view.running
            if job.id != thief.id and job.id not in self.touched and not _hurt(job) and job.nodes > 0
        ]

    def _smallest(self, jobs: list[JobView]) -> JobView | None:
        """The victim among `jobs`: fewest nodes, then the tie-break, then last in order of service."""
        best: JobView | None = None
        for job in jobs:
            if best is None or self._preference(job) <= self._preference(best):
                best = job
        return best

    def _preference(self, job: JobView) -> tuple[int, float]:
        started_s = job.submit_s if job.start_s is None else job.start_s
        late_s = job.submit_s if self.params["tie"] == "latest-submission" else started_s
        return job.nodes, -late_s

    # -------------------------------------------------------------------- notes

    def _take(self, nodes: int, duration_s: float) -> None:
        self.idle_nodes -= nodes
        self.free.take(self.view.now_s, duration_s, nodes)

    def _hold(self, job: JobView, code: ReasonCode, text: str, data: Mapping[str, Any]) -> None:
        self.actions.append(Hold(job=job.id, reason=Reason(code, text, data)))

    def _suppress(self, action: Action, code: ReasonCode, text: str) -> None:
        self.suppressed.append(Suppressed(action=action, reason=Reason(code, text)))


_LOCKED = "a job is adapting and the lock is system: no resize until it has ended"


def _restart_s(job: JobView) -> float:
    for known_s in (job.restart_s, job.walltime_s):
        if known_s is not None:
            return known_s
    return inf


def _fewest(jobs: Sequence[JobView]) -> list[float]:
    """For each of these waiting jobs the fewest nodes that it, or one behind it, can start with."""
    found, fewest = [], inf
    for job in reversed(jobs):
        need = needed_nodes(job)
        if need is not None and need < fewest:
            fewest = need
        found.append(fewest)
    return found[::-1]
