"""What the corridor's program is asked about a picture, and what of its answer goes into the picture.

Who builds the pictures, a scheduler or the simulator, calls `planned` before the policy is asked: on a loop
through a process of its own, in the simulator at once. The policy itself never solves.

John (2024, section 5.2, algorithm 4) asks when the corridor is left: every waiting job in turn, the first
that fits with some sizes of the running jobs starts. Printed, it never asks about the running jobs alone; the
program does (`program.solve`). Inside the corridor it is asked about the running jobs, to use idle nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dask_hpc_policies.codec import encode
from dask_hpc_policies.jobs.constraints import largest_at_most, legal_sizes
from dask_hpc_policies.model import ClusterSnapshot, JobRequest, JobView
from dask_hpc_policies.power.ahead import Ahead
from dask_hpc_policies.power.allowed import adds_watts, allowed_w, is_above, why_narrower
from dask_hpc_policies.power.checks import MOST_TOTAL_W, slack_w
from dask_hpc_policies.power.problem import Choice, PowerJob, Problem, Rigid
from dask_hpc_policies.power.program import Plan
from dask_hpc_policies.power.view import SECTION, Mode, PowerPlan, PowerView
from dask_hpc_policies.power.watts import node_w

#: Waiting jobs that differ in what they ask for and draw of which at most so many are tried, while anything
#: runs: in a question each is a program of its own.
MOST_TRIED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a policy's parameters make of a question."""

    #: Keep the draw so far inside of both bounds.
    margin_w: float = 0.0
    #: Waiting jobs take part; else the running ones alone.
    hold: bool = True
    #: Of the waiting jobs those alone that can be resized later, as long as one waits.
    malleable_only: bool = False
    #: Keep jobs that draw much for an announced higher corridor, and start nobody who would not leave room
    #: for an announced lower one.
    lookahead: bool = False
    #: Trust the forecast; else only what is drawn counts.
    forecast: bool = True


def terms_of(params: Mapping[str, Any]) -> Terms:
    """The terms of a policy with these parameters; those that it lacks have their defaults."""
    return Terms(
        margin_w=params.get("margin_w", 0.0),
        hold=params.get("hold", "yes") == "yes",
        malleable_only=params.get("strategy", "all") == "favour-elastic",
        lookahead=params.get("lookahead", "no") == "yes",
        forecast=params.get("mode", "proactive") == "proactive",
    )


def mode_of(policy: Any, wanted: Mode | None) -> Mode:
    """Who keeps the corridor under `policy`: by itself if it can, else it is held to it where that is wanted.

    Parameters
    ----------
    wanted
        ``monitor``, ``advise`` or ``enforce``; None: a policy that keeps the corridor by itself does, no
        other is held to it.
    """
    if wanted in ("monitor", "advise"):
        return wanted
    if getattr(policy, "keeps_corridor", False):
        return "policy"
    return "enforce" if wanted == "enforce" else "monitor"


def asked_by(policy: Any, mode: Mode) -> Terms:
    """The terms of the questions under `policy`: its own where it keeps the corridor by itself."""
    return terms_of(getattr(policy, "params", {})) if mode == "policy" else Terms()


def planned(
    view: ClusterSnapshot, power: PowerView, terms: Terms, solve: Callable[[Problem], Plan | None]
) -> ClusterSnapshot:
    """`view` with the section ``power``, and in it the program's answer where there is something to ask.

    Parameters
    ----------
    solve
        Gives the answer; None: it is not known yet, and the picture goes without a plan.
    """
    return shown(view, answered_to(view, power, terms, solve))


def shown(view: ClusterSnapshot, power: PowerView) -> ClusterSnapshot:
    """`view` with the section ``power``."""
    return replace(view, sections={**view.sections, SECTION: encode(power)})


def answered_to(
    view: ClusterSnapshot, power: PowerView, terms: Terms, solve: Callable[[Problem], Plan | None]
) -> PowerView:
    """What `planned` puts into the picture."""
    problem = question(view, power, terms)
    plan = None if problem is None else solve(problem)
    if plan is not None:
        assert problem is not None
        found = answered(view, power, plan)
        if found.reason and (problem.lower_w, problem.upper_w) != (power.lower_w, power.upper_w):
            # its figures are of bounds that nobody has set
            text = f"{found.reason}; {why_narrower(power, kept_w(power, terms))}"
            found = replace(found, reason=text)
        power = replace(power, plan=found)
    further = off_question(view, power, terms)
    if further is not None:
        # one after the other: of several questions at once a planner answers the last alone
        off = None if problem is not None and plan is None else solve(further)
        power = replace(power, off_nodes=None if off is None else off.off_nodes)
    return power


def question(view: ClusterSnapshot, power: PowerView, terms: Terms) -> Problem | None:
    """What to ask the program about `view`; None: nothing is to be changed, or must be now."""
    if power.mode == "monitor" or not power.bounded or view.adapting:
        return None
    assert power.lower_w is not None
    assert power.upper_w is not None
    broken = outside_w(power, terms) > 0
    waiting = candidates(view, power, terms) if broken and terms.hold and power.may("hold") else []
    jobs = _resizable(view, power)
    if not waiting and (not jobs or not (broken or view.idle_nodes)):
        return None
    return _about(view, power, terms, jobs, waiting)


def off_question(view: ClusterSnapshot, power: PowerView, terms: Terms) -> Problem | None:
    """The same where idle nodes may be off: would jobs have more then, or would the draw be inside?

    None: none may be (lever ``pool``), or nobody would have more: inside the corridor that is left to a
    policy that is only held to it, but for whom it would start next. Its sizes are not carried out, for as
    long as those nodes are on they may lead outside; once they are off `question` finds them.
    """
    most = min(power.max_off_nodes, view.idle_nodes)
    if not (power.acts and power.bounded and power.may("pool")) or view.adapting or most <= 0:
        return None
    jobs = _resizable(view, power)
    waiting = _in_turn(view, power, terms) if terms.hold and power.may("hold") else []
    if not outside_w(power, terms):
        # whoever lacks nodes is waited for
        lacking = (at for at, job in enumerate(waiting) if _first_nodes(job) > view.idle_nodes)
        waiting = waiting[: next(lacking, None)]
        if power.mode != "policy":
            jobs = []
    # each is a program of its own, and the corridor's own questions must not wait for them
    waiting = waiting[:1]
    if power.off_w >= power.idle_w or not (waiting or jobs):
        return None
    problem = _about(view, power, terms, jobs, waiting)
    return None if problem is None else replace(problem, off_w=power.off_w, max_off_nodes=most)


def _resizable(view: ClusterSnapshot, power: PowerView) -> list[JobView]:
    """Running jobs that may get other sizes."""
    return [job for job in view.running if _changeable(job)] if power.may("resize") else []


def _first_nodes(job: JobView) -> int:
    """The fewest nodes that a job starts on."""
    return job.start_nodes or job.min_nodes


def _about(
    view: ClusterSnapshot,
    power: PowerView,
    terms: Terms,
    jobs: Sequence[JobView],
    waiting: Iterable[JobView],
) -> Problem | None:
    """The question about `jobs` that run and those that wait, others as they are; None: there is no node."""
    assert power.lower_w is not None
    assert power.upper_w is not None
    changed = {job.id for job in jobs}
    rigid = [job for job in view.running if job.id not in changed]
    sizes = sum([job.nodes for job in view.running])
    total = view.idle_nodes + sizes
    if not total:
        return None
    low_w, high_w = drawn_w(view, power)
    least_w, most_w = _widened(power, terms, low_w, high_w)
    margin_w = kept_w(power, terms)
    lower_w, upper_w = allowed_w(power, margin_w, (least_w, most_w))
    grows = not is_above(power, margin_w)
    if (lower_w, upper_w) == (power.lower_w + margin_w, power.upper_w - margin_w):
        # what is told of a bound is what was set
        lower_w, upper_w = power.lower_w, power.upper_w
    else:
        margin_w = 0.0
    return Problem(
        nodes=total,
        lower_w=lower_w,
        upper_w=upper_w,
        idle_w=power.idle_w,
        margin_w=margin_w,
        rigid=_rigid(rigid, power, (least_w - low_w, most_w - high_w)),
        jobs=tuple(
            power_job(job, job.id, job.nodes, power.busy_w, total if grows else job.nodes) for job in jobs
        ),
        waiting=tuple(_beginner(job, power, total) for job in tried(waiting, bool(view.running))),
    )


def answered(view: ClusterSnapshot, power: PowerView, plan: Plan) -> PowerPlan:
    """What of an answer goes into the picture."""
    assert power.lower_w is not None
    assert power.upper_w is not None
    return PowerPlan(
        found_for={job.id: job.nodes for job in view.running},
        lower_w=power.lower_w,
        upper_w=power.upper_w,
        nodes=dict(plan.nodes),
        start=plan.start,
        status=plan.status,
        violation_w=plan.violation_w,
        reason=plan.reason,
    )


def drawn_w(view: ClusterSnapshot, power: PowerView) -> tuple[float, float]:
    """Least and most watts at the sizes of `view`, by what is known of its jobs and what stays unexplained.

    Plain work has the nodes that are idle: what it draws there beyond them is in `PowerView.base_w`.
    """
    low_w = high_w = 0.0
    busy_w = power.busy_w
    for job in view.jobs:
        nodes = job.nodes
        if nodes and not job.is_default:
            least_w, most_w = node_w(job, nodes, busy_w)
            low_w += nodes * least_w
            high_w += nodes * most_w
    idle_w = power.base_w + view.idle_nodes * power.idle_w
    least_w, most_w = power.unexplained_w
    return idle_w + low_w + least_w, idle_w + high_w + most_w


def expected_w(view: ClusterSnapshot, power: PowerView, terms: Terms) -> tuple[float, float]:
    """Least and most watts at the sizes of `view`, with the forecast where it is trusted."""
    return _widened(power, terms, *drawn_w(view, power))


def _widened(power: PowerView, terms: Terms, low_w: float, high_w: float) -> tuple[float, float]:
    if not terms.forecast or power.min_w is None or power.max_w is None:
        return low_w, high_w
    if says_nothing(power, terms):
        middle_w = (power.min_w + power.max_w) / 2
        return min(low_w, middle_w), max(high_w, middle_w)
    return min(low_w, power.min_w), max(high_w, power.max_w)


def says_nothing(power: PowerView, terms: Terms) -> bool:
    """Whether what is expected is wider than what is allowed: then nothing would be inside, ever."""
    if not (terms.forecast and power.bounded) or power.min_w is None or power.max_w is None:
        return False
    assert power.lower_w is not None
    assert power.upper_w is not None
    return power.max_w - power.min_w > power.upper_w - power.lower_w - 2 * kept_w(power, terms)


def kept_w(power: PowerView, terms: Terms) -> float:
    """The margin that is kept, of both bounds: at most half of what is between them."""
    assert power.lower_w is not None
    assert power.upper_w is not None
    return min(terms.margin_w, (power.upper_w - power.lower_w) / 2)


def outside_w(power: PowerView, terms: Terms) -> float:
    """How far the draw is outside, or expected to be; 0 inside and on a bound (strict 5.1 and 5.2)."""
    if not power.bounded:
        return 0.0
    assert power.lower_w is not None
    assert power.upper_w is not None
    low = high = power.draw_w
    if terms.forecast and power.min_w is not None and power.max_w is not None:
        low, high = power.min_w, power.max_w
    if low is None or high is None:
        return 0.0
    margin_w = kept_w(power, terms)
    found = max(power.lower_w + margin_w - low, high - power.upper_w + margin_w)
    return found if found > slack_w(power.lower_w, power.upper_w) else 0.0


def candidates(view: ClusterSnapshot, power: PowerView, terms: Terms) -> list[JobView]:
    """Waiting jobs that may start, the first one first."""
    found = _in_turn(view, power, terms)
    if power.bounded and is_above(power, kept_w(power, terms)):
        found = [job for job in found if not adds_watts(job, power)]
    return found


def _in_turn(view: ClusterSnapshot, power: PowerView, terms: Terms) -> list[JobView]:
    """The same, were the draw not above the upper bound."""
    found = [job for job in view.pending if not job.is_default]
    if terms.malleable_only:
        # where none of them waits the others would wait for ever
        found = [job for job in found if job.kind == "malleable"] or found
    if terms.lookahead:
        ahead = Ahead(view, power)
        found = [job for job in found if ahead.leaves_room(job)]
        # a stable sort: within both kinds the order of service holds
        found.sort(key=ahead.hungry)
    return found


def power_job(job: JobRequest, id: str, nodes: int, busy_w: float, most_nodes: int) -> PowerJob:
    """A job as the program knows it: sizes within its bounds, watts by size."""
    watts = job.min_power_w, job.max_power_w, job.power_by_nodes
    return _power_job(id, nodes, job.min_nodes, job.max_nodes, job.constraint, watts, busy_w, most_nodes)


@lru_cache(maxsize=4096)
def _power_job(
    id: str,
    nodes: int,
    min_nodes: int,
    max_nodes: int,
    constraint: str,
    watts: tuple[float | None, float | None, tuple[tuple[int, float], ...]],
    busy_w: float,
    most_nodes: int,
) -> PowerJob:
    """The same jobs are asked about again and again: each is made and checked once."""
    top = max(min_nodes, min(max_nodes, most_nodes))
    least_w, most_w, table = watts
    known = JobRequest(min_power_w=least_w, max_power_w=most_w, power_by_nodes=table)
    low = high = 0.0
    rows: list[Choice] = []
    # most have one row or none
    if len(table) < 2 or len({row[1] for row in table}) == 1:
        low, high = node_w(known, nodes, busy_w)
    else:
        for size in legal_sizes(constraint, min_nodes, top):
            low_w, high_w = node_w(known, size, busy_w)
            rows.append((size, min(size * low_w, MOST_TOTAL_W), min(size * high_w, MOST_TOTAL_W)))
    return PowerJob(
        id=id,
        nodes=nodes,
        min_nodes=min_nodes,
        max_nodes=top,
        constraint=constraint,
        min_w=low,
        max_w=high,
        table=tuple(rows),
    )


def _beginner(job: JobView, power: PowerView, most_nodes: int) -> PowerJob:
    """A job that would start: at the size that it asked for, else at any legal one that it may have."""
    busy_w = power.busy_w
    exact = job.start_nodes if job.interruption == "none" else None
    if exact is None and not power.may("start"):
        exact = largest_at_most(job.constraint, min(wanted_nodes(job), most_nodes), job.min_nodes)
    if exact is None:
        aim = wanted_nodes(job)
        return power_job(job, job.id, aim, busy_w, min(aim, most_nodes))
    return _power_job(job.id, exact, exact, exact, "any", (*node_w(job, exact, busy_w), ()), busy_w, exact)


def wanted_nodes(job: JobRequest) -> int:
    """The nodes that a job is best started on."""
    return job.start_nodes or job.preferred_nodes or job.max_nodes


def tried(waiting: Iterable[JobView], runs: bool) -> list[JobView]:
    """Of jobs that ask for and draw the same the first one; at most `MOST_TRIED` while anything runs."""
    found: dict[Any, JobView] = {}
    for job in waiting:
        bounds = (job.start_nodes, job.preferred_nodes, job.min_nodes, job.max_nodes, job.constraint)
        watts = (job.min_power_w, job.max_power_w, job.power_by_nodes)
        found.setdefault((bounds, watts, job.interruption == "none"), job)
    return list(found.values())[: MOST_TRIED if runs else None]


def _rigid(jobs: Iterable[JobView], power: PowerView, beyond_w: tuple[float, float]) -> Rigid:
    """What is not resized; `beyond_w`: how far a forecast reaches beyond what jobs say."""
    # watts below nothing are none
    least_w, most_w = (power.base_w + watts for watts in power.unexplained_w)
    nodes, low, high = 0, max(0.0, least_w + beyond_w[0]), most_w + beyond_w[1]
    for job in jobs:
        least_w, most_w = node_w(job, job.nodes, power.busy_w)
        nodes, low, high = nodes + job.nodes, low + job.nodes * least_w, high + job.nodes * most_w
    # more than any site draws is outside of any corridor, by however much
    return Rigid(nodes=nodes, min_w=min(low, MOST_TOTAL_W), max_w=min(high, MOST_TOTAL_W))


def _changeable(job: JobView) -> bool:
    return job.kind == "malleable" and job.nodes >= job.min_nodes
