"""Backfilling: later jobs start early where they delay no reservation. EASY and conservative are one class.

Rules of the file: waiting jobs stand in a queue order. The first ones start while they fit. The first
`reservation_depth` of those that do not fit are reserved the earliest time at which, by the expected ends of
what runs, enough nodes are free for as long as they expect to take. A job behind them starts now when it
fits now and takes no node that a reservation needs. Depth 1 is EASY (Lifka 1995; Mu'alem and Feitelson
2001), every job is conservative backfilling, depth 0 reserves nothing. Reservations are planned anew in
every pass, in queue order, from the state of the cluster alone: a job that ends early pulls them forward, and
what one job gains another one behind it may lose.

How long a job is expected to take is said in `reservation`; a running job that has outlived that is expected
to end the next moment, at every pass. A job of unknown duration can hold up a reservation for ever, and is
backfilled only where it is in nobody's way.

Ties. Jobs that are equal in the queue order stand in the order of service of the snapshot (priority, then
submission, then the order the jobs came in). Nodes that are expected free at the moment at which a
reservation begins count as free then. A backfilled job may end at the very moment at which a reservation
begins. ``best-fit`` takes of the jobs that may start the one with the most nodes, the first of equals.

Queue orders and pick rules after the survey in Chadha (2019, section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nextafter
from typing import Any

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.model import JobView
from dask_hpc_policies.params import Choice, Int, Parameter
from dask_hpc_policies.rules.admission import Pass, needed_nodes, start_size
from dask_hpc_policies.rules.reservation import Profile, expected_s, releases
from dask_hpc_policies.wording import counted

#: Key of a waiting job by queue order: needed nodes, expected seconds, priority -> smaller is served first.
ORDERS: Mapping[str, Callable[[int, float, int], float]] = {
    "arrival": lambda nodes, seconds, priority: 0.0,
    "area": lambda nodes, seconds, priority: nodes * seconds,
    "shortest": lambda nodes, seconds, priority: seconds,
    "longest": lambda nodes, seconds, priority: -seconds,
    "weight": lambda nodes, seconds, priority: -float(priority),
}


def parameters(depth: int | None) -> tuple[Parameter, ...]:
    """The declared parameters, `depth` the default number of reservations (None: every waiting job)."""
    return (
        Int(
            "reservation_depth", depth, lo=0, hi=1_000_000, unit="jobs", none_ok=True, label="Reservations",
            help="how many waiting jobs are reserved a start; 1 is EASY, none is every job (conservative)",
        ),
        Choice(
            "order", "arrival", tuple(ORDERS), label="Queue order",
            help="arrival: by priority and submission; area: nodes x walltime; weight: by priority alone",
        ),
        Choice(
            "pick", "first-fit", ("front", "first-fit", "best-fit"), label="Pick rule",
            help="which job behind the reserved ones starts: none, the first that may, the largest that may",
        ),
        Choice(
            "events", "grouped", ("grouped", "single"), label="Events",
            help="simulator: one pass for all events of a moment, or one for each event",
        ),
    )  # fmt: skip


def admit(plan: Pass, params: Mapping[str, Any]) -> None:
    """Start waiting jobs in the queue order, backfill behind the head, and say why the others wait."""
    key = ORDERS[params["order"]]
    waiting = [(job, need) for job in plan.waiting if (need := needed_nodes(job)) is not None]
    waiting.sort(key=lambda item: key(item[1], expected_s(item[0]), item[0].priority))
    started = 0
    for job, _ in waiting:
        size = start_size(job, plan.idle_nodes)
        if size is None:
            break
        plan.start(job, size)
        started += 1
    if started == len(waiting):
        return
    plan.head = waiting[started][0]
    if params["pick"] != "front" and params["reservation_depth"] != 0:
        _backfill(plan, waiting[started:], params["reservation_depth"], params["pick"] == "best-fit")
    elif params["pick"] != "front":
        _fill(plan, waiting[started + 1 :], None, params["pick"] == "best-fit")


def _backfill(plan: Pass, waiting: list[tuple[JobView, int]], depth: int | None, best: bool) -> None:
    now_s = plan.view.now_s
    profile = _profile(plan)
    left = depth
    for i, (job, need) in enumerate(waiting):
        if left == 0:
            _fill(plan, waiting[i:], profile, best)
            return
        seconds = expected_s(job)
        begin_s = profile.earliest_s(need, seconds)
        if begin_s <= now_s:
            size = start_size(job, min(plan.idle_nodes, profile.least_nodes(now_s, seconds))) or need
            profile.take(now_s, seconds, size)
            plan.start(job, size, _backfilled(plan, size))
            continue
        if begin_s < inf:
            profile.take(begin_s, seconds, need)
        left = None if left is None else left - 1
        plan.reasons[job.id] = _reserved(need, plan.idle_nodes, begin_s - now_s)


def _fill(plan: Pass, waiting: list[tuple[JobView, int]], profile: Profile | None, best: bool) -> None:
    """Start what fits now without touching `profile`'s reservations."""
    now_s = plan.view.now_s
    queue = [(job, need, expected_s(job)) for job, need in waiting]
    while queue:
        chosen = None
        for i, (job, need, seconds) in enumerate(queue):
            if need > plan.idle_nodes:
                continue
            room = plan.idle_nodes
            if profile is not None:
                room = min(room, profile.least_nodes(now_s, seconds))
            size = start_size(job, room)
            if size is not None and (chosen is None or size > chosen[1]):
                chosen = (i, size)
                if not best:
                    break
        if chosen is None:
            break
        i, size = chosen
        job, _, seconds = queue[i]
        if profile is not None:
            profile.take(now_s, seconds, size)
        plan.start(job, size, _backfilled(plan, size))
        # What did not fit before will not fit with less.
        queue = queue[:i] + queue[i + 1 :] if best else queue[i + 1 :]
    for job, need in waiting:
        plan.reasons[job.id] = _held(need, plan)


def _profile(plan: Pass) -> Profile:
    now_s = plan.view.now_s
    soon_s = nextafter(now_s, inf)
    ends = releases(plan.view)
    ends += [(max(soon_s, now_s + expected_s(job)), size) for job, size in plan.started]
    return Profile(now_s, plan.idle_nodes, sorted(end for end in ends if end[0] < inf))


def _backfilled(plan: Pass, size: int) -> Reason:
    head = "" if plan.head is None else plan.head.id
    return Reason(
        ReasonCode.BACKFILLED,
        f"{counted(size)} of {plan.idle_nodes} idle, which no reservation needs; {head} waits",
        {"nodes": size, "idle_nodes": plan.idle_nodes, "head": head},
    )


def _reserved(need: int, idle_nodes: int, wait_s: float) -> Reason:
    data = {"needed_nodes": need, "idle_nodes": idle_nodes}
    if wait_s == inf:
        text = f"needs {counted(need)}, idle are {idle_nodes}; when enough will be free is not known"
        return Reason(ReasonCode.NOT_ENOUGH_NODES, text, data)
    text = f"needs {counted(need)}, idle are {idle_nodes}; reserved in {wait_s:g} s"
    return Reason(ReasonCode.RESERVED, text, {**data, "reserved_in_s": wait_s})


def _held(need: int, plan: Pass) -> Reason:
    data = {"needed_nodes": need, "idle_nodes": plan.idle_nodes}
    if need > plan.idle_nodes:
        return Reason(ReasonCode.NOT_ENOUGH_NODES, f"needs {counted(need)}, idle are {plan.idle_nodes}", data)
    text = f"needs {counted(need)} of {plan.idle_nodes} idle, and would delay a reservation"
    return Reason(ReasonCode.WOULD_DELAY, text, data)
