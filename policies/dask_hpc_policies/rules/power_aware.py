"""The policy ``power-aware``: the draw of the machine stays between two bounds.

John (2024, section 5.2, algorithm 4), with the step for no waiting job that the printed one lacks, strict
tests (a draw on a bound is inside), and no deadlock. All that it knows of power is in the section ``power``
of the picture (`power.view`); the program's plan was found by whoever made the picture, and a plan that was
made for other sizes or bounds is dropped.

* Outside the corridor, or where the forecast is outside (`mode` proactive), the plan is carried out: shrinks,
  then expansions, and the waiting job that it starts. Where nothing is inside, that is the allocation outside
  by least; a job starts if that lessens the violation, so that holding never deadlocks. Where nothing does,
  or should the program fail to answer, whoever leads the draw no further outside starts.
* Inside, whoever fits into idle nodes and keeps the draw inside starts: a moldable job on fewer nodes where
  as many as are idle would leave the corridor. A job is passed over for its watts; one that lacks nodes
  blocks those behind it. Idle nodes are divided equally among the moldable jobs that start.
* Otherwise running jobs grow into idle nodes, as far as the plan is inside.

``hold=no`` starts jobs first come, first served whatever they draw, and resizes running ones alone.
Levers that are not there are not pulled (`PowerView.levers`): without ``hold`` it is as with ``hold=no``,
without ``resize`` running jobs keep their sizes, without ``start`` jobs start on what they ask for.
Evolving jobs give up what they ask to give up, and get more only while there are no bounds.
``lookahead=yes`` keeps jobs that draw much for an announced higher corridor, and starts nobody whose smallest
size would not leave room for a lower one that is announced for its time: until its walltime is up, or its
end is expected; of a job without either, within the horizon of the forecast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_hpc_policies.decision import Decision, Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobs.constraints import largest_at_most, next_higher
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.params import Choice, Power
from dask_hpc_policies.power.ahead import Ahead
from dask_hpc_policies.power.allowed import allowed_w
from dask_hpc_policies.power.question import (
    Terms,
    candidates,
    drawn_w,
    expected_w,
    kept_w,
    outside_w,
    says_nothing,
    terms_of,
    wanted_nodes,
)
from dask_hpc_policies.power.unexplained import unexplained
from dask_hpc_policies.power.view import PowerView, fits, seen
from dask_hpc_policies.power.watts import node_w
from dask_hpc_policies.rules.admission import Pass, needed_nodes
from dask_hpc_policies.rules.requests import answer_for_more, grant_fewer
from dask_hpc_policies.rules.sizing import Resizes
from dask_hpc_policies.wording import counted

PARAMETERS = (
    Choice(
        "mode", "proactive", ("proactive", "reactive"), label="Mode",
        help="proactive: act when the forecast leaves the corridor; reactive: when the measured draw does",
    ),
    Choice(
        "strategy", "all", ("all", "favour-elastic"), label="Strategy",
        help="whom to start to come back inside: any waiting job, or those alone that can be resized later",
    ),
    Choice(
        "hold", "yes", ("yes", "no"), label="Hold jobs",
        help="no: jobs start first come, first served, whatever they draw; running jobs alone are resized",
    ),
    Choice(
        "lookahead", "no", ("yes", "no"), label="Look ahead",
        help="yes: keep jobs that draw much for an announced higher corridor, and room for a lower one",
    ),
    Power("margin_w", 0.0, hi=1e9, label="Margin", help="keep the draw so far inside of both bounds"),
)  # fmt: skip

_BUSY = Reason(ReasonCode.LOCKED, "a job is being resized: nobody starts before what it draws is known")


def decide(view: ClusterSnapshot, state: None, params: Any) -> tuple[Decision, None]:
    """Keep the draw inside the corridor; without one, first come, first served."""
    power = seen(view)
    plan = Pass(view)
    grant_fewer(plan)
    if power is None or not power.acts or not power.bounded:
        plan.admit()
        answer_for_more(plan)
        return plan.answer(), state
    terms = terms_of(params)
    if not power.may("hold"):
        terms = replace(terms, hold=False)
    if view.adapting and terms.hold:
        plan.reasons.update({job.id: _BUSY for job in plan.waiting})
        return plan.answer(), state
    if not terms.hold:
        plan.admit()
    elif outside_w(power, terms) == 0.0 or power.unsolved:
        _start_inside(plan, power, terms)
    elif _is_nearest(view, power):
        _start_inside(plan, replace(power, unsolved=True), terms)
    if not plan.started:
        _carry_out(plan, power, terms)
    if terms.hold:
        _hold(plan, power, terms)
        left = [job for job in plan.waiting if job.id not in plan.reasons and needed_nodes(job) is not None]
        plan.head = left[0] if left else None
    bounded = f"no job grows because it asks while there are bounds: allowed are {power.span}"
    answer_for_more(plan, Reason(ReasonCode.CORRIDOR, bounded, _data(power)))
    return plan.answer(), state


def _is_nearest(view: ClusterSnapshot, power: PowerView) -> bool:
    """Whether nothing that could be resized or started leads nearer to the corridor."""
    found = power.plan
    if found is None or found.start or found.status == "time-limit" or not fits(view, power):
        return False
    return all(found.nodes.get(job.id, job.nodes) == job.nodes for job in view.running)


def _carry_out(plan: Pass, power: PowerView, terms: Terms) -> None:
    """Do what the program found, if it is about the present sizes."""
    view, found = plan.view, power.plan
    if found is None or not fits(view, power):
        return
    shrinks: list[Shrink] = []
    expands: list[Expand] = []
    freed = taken = 0
    head = {"head": found.start[0]} if found.start else {}
    moves = found.start or dict(found.nodes) != dict(found.found_for)
    drawn = _drawn(view, power, terms) if moves else ""
    for job in view.running:
        size = found.nodes.get(job.id, job.nodes)
        if size == job.nodes:
            continue
        data = {"from_nodes": job.nodes, "to_nodes": size}
        reason = _reason(power, drawn, f"from {job.nodes} to {size}", data)
        if size > job.nodes:
            expands.append(Expand(job=job.id, nodes=size, reason=reason))
            taken += size - job.nodes
        else:
            named = Reason(reason.code, reason.text, {**reason.data, **head})
            shrinks.append(Shrink(job=job.id, nodes=size, reason=named))
            freed += job.nodes - size
    if plan.locked and (shrinks or expands):
        return
    plan.resize(Resizes(shrinks=tuple(shrinks), expands=tuple(expands), freed_nodes=freed, taken_nodes=taken))
    for id in found.start:
        job = next(job for job in plan.waiting if job.id == id)
        size = found.nodes[id]
        plan.start(job, size, _reason(power, drawn, counted(size), {"nodes": size}))


class _Room:
    """What jobs that start one after the other leave of idle nodes and of the corridor."""

    def __init__(self, plan: Pass, power: PowerView, terms: Terms) -> None:
        self.idle_nodes = plan.idle_nodes
        self._power = power
        self._drawn_w = expected_w(plan.view, power, terms)
        self._inner_w = allowed_w(power, kept_w(power, terms), self._drawn_w)
        if power.unsolved:
            # nobody finds what leads back: what leads no further outside may start
            (low_w, high_w), (least_w, most_w) = self._drawn_w, self._inner_w
            self._inner_w = min(least_w, low_w), max(most_w, high_w)

    def takes(self, job: JobView, from_nodes: int, to_nodes: int) -> bool:
        """Give a job `to_nodes` nodes in place of `from_nodes` if the draw is inside then, and say so."""
        idle_w, busy_w = self._power.idle_w, self._power.busy_w
        before, after = node_w(job, from_nodes, busy_w), node_w(job, to_nodes, busy_w)
        low, high = (
            now + to_nodes * (new - idle_w) - from_nodes * (old - idle_w)
            for now, old, new in zip(self._drawn_w, before, after, strict=True)
        )
        if low < self._inner_w[0] or high > self._inner_w[1]:
            return False
        self._drawn_w = low, high
        self.idle_nodes -= to_nodes - from_nodes
        return True


def _start_inside(plan: Pass, power: PowerView, terms: Terms) -> None:
    """Start whom idle nodes and the corridor have room for; moldable jobs get equal parts of the nodes."""
    room, ahead = _Room(plan, power, terms), Ahead(plan.view, power) if terms.lookahead else None
    chosen: dict[str, tuple[JobView, int]] = {}
    for job in candidates(plan.view, power, terms):
        need = needed_nodes(job)
        if need is None:
            continue
        if not power.may("start"):
            top = min(wanted_nodes(job), plan.view.pool_nodes)
            need = largest_at_most(job.constraint, top, need) or need
        if need > room.idle_nodes:
            break
        others = [other for other, _ in chosen.values()]
        if ahead is not None and not ahead.leaves_room(job, others):
            continue
        if room.takes(job, 0, need):
            chosen[job.id] = job, need
    growing = [job for job, _ in chosen.values() if job.start_nodes is None]
    while growing:
        growing = [job for job in growing if _grows(room, chosen, job)]
    where = "no further outside" if outside_w(power, terms) else "inside"
    for job, size in chosen.values():
        low, high = (size * watts for watts in node_w(job, size, power.busy_w))
        text = (
            f"{counted(size)} of {plan.idle_nodes} idle draw {low:g} to {high:g} W, {where} {power.span}"
        )
        code = ReasonCode.FITS if job.start_nodes is not None else ReasonCode.MOLDED_TO_FIT
        plan.start(job, size, Reason(code, text, {"nodes": size, "min_w": low, "max_w": high}))


def _grows(room: _Room, chosen: dict[str, tuple[JobView, int]], job: JobView) -> bool:
    """Whether a job that starts gets its next legal size."""
    size = chosen[job.id][1]
    most = min(size + room.idle_nodes, max(size, job.preferred_nodes or job.max_nodes), job.max_nodes)
    larger = next_higher(job.constraint, size, most)
    if larger is None or not room.takes(job, size, larger):
        return False
    chosen[job.id] = job, larger
    return True


def _hold(plan: Pass, power: PowerView, terms: Terms) -> None:
    """Say for every job that still waits which watts keep it waiting."""
    found = power.plan if fits(plan.view, power) else None
    drawn = _drawn(plan.view, power, terms) if plan.waiting else ""
    ahead = Ahead(plan.view, power) if terms.lookahead and plan.waiting else None
    for job in plan.waiting:
        need = needed_nodes(job)
        if need is None or job.id in plan.reasons:
            continue
        if need > plan.idle_nodes and found is None:
            return  # those behind it wait for it
        least_w = need * (node_w(job, need, power.busy_w)[1] - power.idle_w)
        text = f"{counted(need)} draw {least_w:g} W more; {drawn}"
        if ahead is not None and not ahead.leaves_room(job):
            text += "; beside what runs it would leave no room for an announced upper bound"
        if found is not None and found.reason is not None:
            text += f"; {found.reason}"
        plan.reasons[job.id] = Reason(ReasonCode.CORRIDOR, text, _data(power))


def _reason(power: PowerView, drawn: str, text: str, data: dict[str, Any]) -> Reason:
    plan = power.plan
    outside = "" if plan is None or plan.reason is None else f"; {plan.reason}"
    return Reason(ReasonCode.CORRIDOR, f"{text}: {drawn}{outside}", {**data, **_data(power)})


def _drawn(view: ClusterSnapshot, power: PowerView, terms: Terms) -> str:
    now = "not measured" if power.draw_w is None else f"{power.draw_w:g} W{unexplained(power)}"
    expected = ""
    if power.min_w is not None and power.max_w is not None:
        expected = f", expected are {power.min_w:g} to {power.max_w:g} W"
        low_w, high_w = drawn_w(view, power)
        if terms.forecast and (power.min_w < low_w - 1e-6 or power.max_w > high_w + 1e-6):
            expected += f" by the forecast (by what is known of the jobs {low_w:g} to {high_w:g} W)"
            if says_nothing(power, terms):
                expected += ", more than the corridor is wide: its middle counts"
    return f"the draw is {now}{expected}, allowed are {power.span}"


def _data(power: PowerView) -> dict[str, Any]:
    return {"draw_w": power.draw_w, "lower_w": power.lower_w, "upper_w": power.upper_w}
