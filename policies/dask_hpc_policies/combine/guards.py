"""Wrappers that keep a policy from resizing some jobs: clamp, hysteresis, cooldown, MTCT filter.

Rules of the file: a guard never edits a decision, for that could leave a start without the nodes a
shrink was to free. It narrows the bounds of the jobs it protects and asks the policy again; what the
policy would have done without it is recorded as suppressed. Restoring a job below its minimum and
starting a job are never prevented. One class, one table; the state is one entry per job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from types import NoneType
from typing import Any

from dask_hpc_policies.combine.limits import Limit
from dask_hpc_policies.decision import Decision, Expand, Reason, ReasonCode, Shrink, Start, Suppressed
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.params import Duration, Float, Int, Parameter, ParameterError, Parameters
from dask_hpc_policies.protocol import Policy, state_type
from dask_hpc_policies.rules.seen import SeenSize, seen_sizes
from dask_hpc_policies.wording import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """What a hysteresis remembers of a job: the direction proposed last, how often in a row."""

    direction: str
    passes: int = 1


Track = Callable[[ClusterSnapshot, Decision, Mapping[str, Any]], Mapping[str, Any]]
Bound = Callable[[ClusterSnapshot, JobView, Any, Mapping[str, Any]], Limit | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One row of the table of guards."""

    name: str
    #: One sentence: what it does.
    summary: str
    parameters: tuple[Parameter, ...]
    #: Sizes it allows a job now; None when it does not mind.
    bound: Bound
    #: Class of the entry kept for each job, and how entries follow from what is seen and proposed.
    entry: type | None = None
    track: Track | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Guarded(Shown):
    """A policy behind a guard. Make it with `Clamp`, `Hysteresis`, `Cooldown` or `MtctFilter`."""

    base: Policy
    guard: Guard
    #: Values of the guard's own parameters.
    own_params: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the policy and of the guard."""
        return f"{self.base.name}+{self.guard.name}"

    @property
    def in_turn(self) -> bool:
        """Whether the policy has jobs take turns."""
        return bool(getattr(self.base, "in_turn", False))

    @property
    def keeps_corridor(self) -> bool:
        """Whether the policy keeps the power corridor by itself."""
        return bool(getattr(self.base, "keeps_corridor", False))

    @property
    def places(self) -> bool:
        """Whether the policy may place analyses."""
        return bool(getattr(self.base, "places", True))

    @property
    def beside(self) -> bool:
        """Whether the policy is for something else than which jobs run."""
        return bool(getattr(self.base, "beside", False))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the policy and of the guard."""
        return (*getattr(self.base, "parameters", ()), *self.guard.parameters)

    @property
    def params(self) -> Mapping[str, Any]:
        """Values of all `parameters`."""
        return {**getattr(self.base, "params", {}), **self.own_params}

    @property
    def state_type(self) -> type | None:
        """Class of the state: that of the policy, with the guard's entries when it keeps any."""
        below = state_type(self.base)
        return below if self.guard.entry is None else _guard_state(below, self.guard.entry)

    def initial_state(self) -> Any:
        """State before the first call."""
        below = self.base.initial_state()
        kind = self.state_type
        return below if self.guard.entry is None or kind is None else kind(base=below)

    def decide(self, view: ClusterSnapshot, state: Any) -> tuple[Decision, Any]:
        """The policy's decision under the guard, and the next state."""
        keeps = self.guard.entry is not None
        below = state.base if keeps else state
        wish, after = self.base.decide(view, below)
        jobs: Mapping[str, Any] = state.jobs if keeps else {}
        if self.guard.track is not None:
            jobs = self.guard.track(view, wish, jobs)
        decision = wish
        limits = self._limits(view, jobs)
        refused = [
            action
            for action in wish.actions
            if isinstance(action, (Start, Expand, Shrink)) and _outside(action, limits)
        ]
        if refused:
            decision, after = self.base.decide(_narrowed(view, limits), below)
            suppressed = [Suppressed(action=action, reason=limits[action.job].reason) for action in refused]
            decision = replace(decision, suppressed=(*decision.suppressed, *suppressed))
        return decision, replace(state, base=after, jobs=jobs) if keeps else after

    def _limits(self, view: ClusterSnapshot, jobs: Mapping[str, Any]) -> dict[str, Limit]:
        limits = {}
        for job in view.jobs:
            if (
                job.is_default
                or job.kind == "rigid"
                or (job.state == "running" and job.nodes < job.min_nodes)
            ):
                continue
            limit = self.guard.bound(view, job, jobs.get(job.id), self.own_params)
            if limit is not None:
                limits[job.id] = limit
        return limits


def _outside(action: Start | Expand | Shrink, limits: Mapping[str, Limit]) -> bool:
    limit = limits.get(action.job)
    return limit is not None and not limit.lo <= action.nodes <= limit.hi


def _narrowed(view: ClusterSnapshot, limits: Mapping[str, Limit]) -> ClusterSnapshot:
    jobs = []
    for job in view.jobs:
        limit = limits.get(job.id)
        if limit is not None:
            low, high = max(job.min_nodes, limit.lo), min(job.max_nodes, limit.hi)
            job = replace(job, min_nodes=low, max_nodes=max(low, high))
        jobs.append(job)
    return replace(view, jobs=tuple(jobs))


@cache
def _guard_state(base: type | None, entry: type) -> type:
    return make_dataclass(
        "GuardState",
        [("base", base or NoneType, None), ("jobs", Mapping[str, entry], field(default_factory=dict))],  # type: ignore[valid-type]
        frozen=True,
        slots=True,
        kw_only=True,
    )


def _clamp_bound(_: ClusterSnapshot, job: JobView, __: Any, params: Mapping[str, Any]) -> Limit | None:
    floor, cap = params["clamp_min_nodes"], params["clamp_max_nodes"]
    if job.state == "pending":
        if job.start_nodes is not None or cap is None:
            return None
        low, high = job.min_nodes, max(cap, job.min_nodes)
    else:
        # Never beyond what the job itself allows, and a floor above its present size only stops shrinks.
        low = job.min_nodes if floor is None else min(max(floor, job.min_nodes), job.nodes)
        high = job.max_nodes if cap is None else max(min(cap, job.max_nodes), job.min_nodes)
    text = f"sizes are clamped to {floor or 1}..{'any' if cap is None else cap} nodes"
    return Limit(
        lo=low, hi=high, reason=Reason(ReasonCode.CLAMPED, text, {"lo_nodes": floor, "hi_nodes": cap})
    )


def _streaks(_: ClusterSnapshot, wish: Decision, jobs: Mapping[str, Any]) -> Mapping[str, Any]:
    now = {}
    for action in wish.actions:
        if isinstance(action, (Expand, Shrink)):
            last = jobs.get(action.job)
            passes = last.passes + 1 if last is not None and last.direction == action.TAG else 1
            # The count only matters up to a bound; without one the state would change for ever.
            now[action.job] = Streak(direction=action.TAG, passes=min(passes, 1_000))
    return now


def _hysteresis_bound(
    _: ClusterSnapshot, job: JobView, streak: Streak | None, params: Mapping[str, Any]
) -> Limit | None:
    wanted = params["hysteresis_passes"]
    if job.state != "running":
        return None
    passes = 0 if streak is None else streak.passes
    ripe = streak.direction if streak is not None and passes >= wanted else ""
    text = f"proposed in {passes} consecutive passes of {wanted} (hysteresis_passes)"
    return Limit(
        lo=job.min_nodes if ripe == "shrink" else job.nodes,
        hi=job.max_nodes if ripe == "expand" else job.nodes,
        reason=Reason(ReasonCode.HYSTERESIS, text, {"passes": passes, "hysteresis_passes": wanted}),
    )


def _sizes(view: ClusterSnapshot, _: Decision, jobs: Mapping[str, Any]) -> Mapping[str, Any]:
    return seen_sizes(view, jobs)


def _cooldown_bound(
    view: ClusterSnapshot, job: JobView, seen: SeenSize | None, params: Mapping[str, Any]
) -> Limit | None:
    if job.state != "running" or seen is None or seen.changed_s is None:
        return None
    left_s = seen.changed_s + params["cooldown_s"] - view.now_s
    if left_s <= 0:
        return None
    text = f"resized {view.now_s - seen.changed_s:g} s ago: {left_s:g} s of cooldown left (cooldown_s)"
    data = {"left_s": left_s, "cooldown_s": params["cooldown_s"]}
    return Limit(lo=job.nodes, hi=job.nodes, reason=Reason(ReasonCode.COOLDOWN, text, data))


def _mtct_bound(_: ClusterSnapshot, job: JobView, __: Any, params: Mapping[str, Any]) -> Limit | None:
    if job.state != "running":
        return None
    if job.mtct is None:
        text = "no time in transfers and computation measured yet"
        reason = Reason(ReasonCode.NO_PERFORMANCE_DATA, text)
        return Limit(lo=job.nodes, hi=job.nodes, reason=reason)
    lower, upper = params["mtct_lower"], params["mtct_upper"]
    least = job.mtct if job.mtct_previous is None else min(job.mtct, job.mtct_previous)
    text = (
        f"MTCT is {job.mtct:.3g}; expands below {lower:g} (mtct_lower), shrinks above {upper:g} (mtct_upper)"
    )
    data = {
        "mtct": job.mtct, "mtct_previous": job.mtct_previous, "mtct_lower": lower, "mtct_upper": upper
    }  # fmt: skip
    return Limit(
        lo=job.min_nodes if job.mtct > upper else job.nodes,
        hi=job.max_nodes if least < lower else job.nodes,
        reason=Reason(ReasonCode.THRESHOLD, text, data),
    )


#: The guards by name.
GUARDS: Mapping[str, Guard] = {
    guard.name: guard
    for guard in (
        Guard(
            name="clamp",
            summary="Keeps the sizes of all named jobs within two numbers.",
            parameters=(
                Int("clamp_min_nodes", None, lo=1, hi=1_000_000, unit="nodes", none_ok=True,
                    label="Smallest size", help="no job is shrunk below this size; none: its own minimum"),
                Int("clamp_max_nodes", None, lo=1, hi=1_000_000, unit="nodes", none_ok=True,
                    label="Largest size", help="no job is expanded above this size; none: its own maximum"),
            ),
            bound=_clamp_bound,
        ),
        Guard(
            name="hysteresis",
            summary="Lets a resize through once it was proposed several passes in a row.",
            parameters=(
                Int("hysteresis_passes", 3, lo=1, hi=1000, label="Passes",
                    help="consecutive passes that must propose the same direction for a job"),
            ),
            bound=_hysteresis_bound,
            entry=Streak,
            track=_streaks,
        ),
        Guard(
            name="cooldown",
            summary="Leaves a job alone for a while after its size changed.",
            parameters=(
                Duration("cooldown_s", 30.0, hi=86400.0, label="Cooldown",
                         help="how long after a change of its size a job is not resized again"),
            ),
            bound=_cooldown_bound,
            entry=SeenSize,
            track=_sizes,
        ),
        Guard(
            name="mtct",
            summary="Lets only jobs that scale well expand and only jobs that scale badly shrink.",
            parameters=(
                Float("mtct_lower", 0.5, lo=0.0, hi=1e6, label="Lower threshold",
                      help="jobs expand while transfers over computation, now or before, is below this"),
                Float("mtct_upper", 1.0, lo=0.0, hi=1e6, label="Upper threshold",
                      help="jobs shrink while transfers over computation is above this"),
            ),
            bound=_mtct_bound,
        ),
    )
}  # fmt: skip


def guarded(name: str, base: Policy, /, **params: Any) -> Guarded:
    """`base` behind the guard `name` with `params`, defaults for the rest.

    Raises
    ------
    KeyError
        For a name that :data:`GUARDS` does not have.
    ParameterError
        For an unknown parameter, a value it cannot take, or a lower value above its upper one.
    """
    guard = GUARDS[name]
    clean = Parameters(guard.parameters).resolve(params)
    for low, high in (("clamp_min_nodes", "clamp_max_nodes"), ("mtct_lower", "mtct_upper")):
        lo, hi = clean.get(low), clean.get(high)
        if lo is not None and hi is not None and lo > hi:
            raise ParameterError(f"parameter {low!r}={lo:g} must not be above {high!r}={hi:g}")
    return Guarded(base, guard, clean)


def Clamp(base: Policy, *, min_nodes: int | None = None, max_nodes: int | None = None) -> Guarded:
    """Keep sizes within `min_nodes` and `max_nodes`, as far as the jobs' own bounds allow."""
    return guarded("clamp", base, clamp_min_nodes=min_nodes, clamp_max_nodes=max_nodes)


def Hysteresis(base: Policy, *, passes: int = 3) -> Guarded:
    """Let a resize through once its direction was proposed in `passes` consecutive passes."""
    return guarded("hysteresis", base, hysteresis_passes=passes)


def Cooldown(base: Policy, *, cooldown_s: float = 30.0) -> Guarded:
    """Leave a job alone for `cooldown_s` seconds after its size was seen to change."""
    return guarded("cooldown", base, cooldown_s=cooldown_s)


def MtctFilter(base: Policy, *, lower: float = 0.5, upper: float = 1.0) -> Guarded:
    """Let jobs expand below MTCT `lower` and shrink above `upper`; without a measurement neither.

    MTCT is time in transfers over time in computation. Expansion looks at the latest and the previous
    sample (either may be below), shrinking at the latest. After Chadha (2019, sections 5.3.1 and 6.2),
    for any policy; no thresholds are published, the defaults are ours.
    """
    return guarded("mtct", base, mtct_lower=lower, mtct_upper=upper)
