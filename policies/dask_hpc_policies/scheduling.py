"""The builtin policies: one class, one table.

Rules of the file: every policy first restores jobs below their minimum, then starts pending jobs, first
come, first served or with backfilling; what differs besides is one rule for resizing, a row of
`BUILTIN`. A job management policy says when to resize (Chadha 2019, section 5.3; John 2024, section 4.2):

* PRMA (priority to running malleable jobs): idle nodes go to running jobs, nobody shrinks, each job
  expands a bounded number of times so that waiting jobs get their turn;
* PWMA (priority to waiting malleable jobs): running jobs shrink for the waiting head, all or nothing;
  when they cannot, or nobody waits, idle nodes go to running jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dask_hpc_policies import adaptive, backfilling, io_aware, mebf, sizing, stealing
from dask_hpc_policies.admission import Pass, needed_nodes
from dask_hpc_policies.constraints import largest_at_most
from dask_hpc_policies.decision import Decision, Expand, Reason, ReasonCode, Shrink, Suppressed
from dask_hpc_policies.equipartition import equal_sizes, lowest_size
from dask_hpc_policies.growing_session import growing_session
from dask_hpc_policies.io_session import io_session
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.params import Choice, Duration, Int, Parameter, Parameters
from dask_hpc_policies.protocol import Session
from dask_hpc_policies.requests import answer_requests
from dask_hpc_policies.rigid_session import backfill_session
from dask_hpc_policies.shown import Shown
from dask_hpc_policies.sizing import Limits, Resizes
from dask_hpc_policies.wording import counted

Params = Mapping[str, Any]
#: Resizes in a pass; returns the nodes it could have freed for the head (0 when it does not shrink).
Rule = Callable[[Pass, Params], int]
#: Decides a whole pass; returns the decision and the next state.
Decide = Callable[[ClusterSnapshot, Any, Params], tuple[Decision, Any]]
Grow = Callable[[Sequence[JobView], int, Limits], Resizes]
Take = Callable[[Sequence[JobView], int, Limits, str], Resizes | None]


def in_order(plan: Pass, params: Params) -> None:
    """Start pending jobs in order of service; the first that does not fit blocks those behind it."""
    plan.admit(params.get("target_nodes"))


def never(_: Pass, __: Params) -> int:
    """Resize nobody."""
    return 0


def fixed(plan: Pass, params: Params) -> int:
    """Bring every malleable job to the target size, or the nearest legal size within its bounds."""
    shrinks: list[Shrink] = []
    expands: list[Expand] = []
    freed = taken = 0
    for job in _malleable(plan):
        wanted = params["target_nodes"] or job.start_nodes
        if wanted is None:
            continue
        target = largest_at_most(job.constraint, min(wanted, job.max_nodes), job.min_nodes)
        target = lowest_size(job) if target is None else target
        if target > job.nodes:
            reach = sizing.growth_target(job, min(target - job.nodes, plan.idle_nodes - taken), "max")
            target = job.nodes if reach is None else reach
        if target == job.nodes:
            continue
        reason = Reason(
            ReasonCode.FIXED_TARGET,
            f"target is {counted(wanted)}: from {job.nodes} to {target}",
            {"wanted_nodes": wanted, "from_nodes": job.nodes, "to_nodes": target},
        )
        if target > job.nodes:
            expands.append(Expand(job=job.id, nodes=target, reason=reason))
            taken += target - job.nodes
        else:
            shrinks.append(Shrink(job=job.id, nodes=target, reason=reason))
            freed += job.nodes - target
    plan.resize(Resizes(shrinks=tuple(shrinks), expands=tuple(expands), taken_nodes=taken, freed_nodes=freed))
    return 0


def prma(plan: Pass, params: Params, *, grow: Grow) -> int:
    """Priority to running jobs: they grow into what is idle."""
    plan.resize(grow(sizing.oldest_first(_malleable(plan)), plan.idle_nodes, _limits(params)))
    return 0


def pwma(plan: Pass, params: Params, *, grow: Grow, take: Take) -> int:
    """Priority to the waiting head: running jobs shrink for it; when they cannot, they grow."""
    jobs = sizing.oldest_first(_malleable(plan))
    limits = _limits(params)
    if plan.head is not None:
        resizes = take(jobs[::-1], plan.shortage_nodes(), limits, plan.head.id)
        if resizes is not None:
            return _serve_head(plan, resizes)
    reclaimable = sizing.reclaimable_nodes(jobs, limits) if plan.head is not None else 0
    plan.resize(grow(jobs, plan.idle_nodes, limits))
    return reclaimable


def growing(plan: Pass, _: Params) -> int:
    """Idle nodes go to malleable jobs at a scheduling point, each up to its maximum; nobody shrinks.

    The baseline FCFSm of ADMIRE (2023, D3.3, section 4.2.5). Jobs grow although others wait: that
    takes the place of backfilling.
    """
    jobs = [job for job in sizing.oldest_first(_malleable(plan)) if job.at_scheduling_point]
    plan.resize(sizing.grow_in_order(jobs, plan.idle_nodes, Limits()))
    return 0


def performance_aware(plan: Pass, params: Params) -> int:
    """Shrink what scales worst for the head; let what scales best grow (John 2024, algorithm 3).

    The measure is the MTCT, time in transfers over time in computation. Jobs without one keep their
    size. With nobody waiting idle nodes are given out too, which the printed nesting leaves out.
    """
    limits = _limits(params)
    jobs = [job for job in sizing.oldest_first(_malleable(plan)) if job.mtct is not None]
    jobs.sort(key=_mtct)
    reclaimable = 0
    if plan.head is not None:
        resizes = sizing.shrink_in_order(jobs[::-1], plan.shortage_nodes(), limits, plan.head.id)
        if resizes is not None:
            return _serve_head(plan, resizes)
        reclaimable = sizing.reclaimable_nodes(jobs, limits)
    grown = sizing.grow_in_order(jobs, plan.idle_nodes, limits, ReasonCode.SCALES_WELL)
    unknown = _unknown(plan, plan.idle_nodes - grown.taken_nodes)
    plan.resize(replace(grown, suppressed=grown.suppressed + unknown))
    return reclaimable


def equipartition(plan: Pass, _: Params) -> int:
    """Equal shares for all running malleable jobs, after room for the head (McCann et al. 1993)."""
    jobs = sizing.oldest_first(_malleable(plan))
    nodes = plan.idle_nodes + sum([job.nodes for job in jobs])
    reclaimable = sum([job.nodes - lowest_size(job) for job in jobs])
    head, reserved = plan.head, 0
    if head is not None and plan.shortage_nodes() <= reclaimable:
        reserved = needed_nodes(head) or 0
    sizes = equal_sizes(jobs, nodes - reserved)
    if sizes is None:
        return reclaimable
    changed = [(job, size) for job, size in zip(jobs, sizes, strict=True) if size != job.nodes]
    plan.resize(
        Resizes(
            shrinks=tuple(
                Shrink(job=job.id, nodes=size, reason=_share_reason(job, size, head if reserved else None))
                for job, size in changed
                if size < job.nodes
            ),
            expands=tuple(
                Expand(job=job.id, nodes=size, reason=_share_reason(job, size, None))
                for job, size in changed
                if size > job.nodes
            ),
            freed_nodes=sum([job.nodes - size for job, size in changed if size < job.nodes]),
            taken_nodes=sum([size - job.nodes for job, size in changed if size > job.nodes]),
        )
    )
    if reserved and not plan.locked:
        plan.admit()
        return 0
    return reclaimable


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One row of the table of builtin policies."""

    name: str
    #: One sentence: what it does.
    summary: str
    rule: Rule = never
    #: Starts pending jobs.
    admit: Callable[[Pass, Params], None] = in_order
    #: A policy that does not start jobs first come, first served decides everything itself.
    decide: Decide | None = None
    #: Class of its state, made without arguments before the first call; None for no state.
    state: type | None = None
    parameters: tuple[Parameter, ...] = ()
    #: Makes its incremental form from idle nodes, kinds of jobs and parameters.
    session: Callable[[int, Set[str], Params], Session | None] | None = None
    #: True for the policy that also recommends a pool size.
    scales_pool: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class BuiltinPolicy(Shown):
    """A builtin policy with its parameter values; see `protocol.Policy`. Make it with `builtin`."""

    #: Name in the registry.
    name: str
    #: Value of every declared parameter.
    params: Params

    @property
    def definition(self) -> Definition:
        """Its row in the table."""
        return BUILTIN[self.name]

    @property
    def summary(self) -> str:
        """One sentence: what it does."""
        return self.definition.summary

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Declared parameters."""
        return self.definition.parameters

    @property
    def state_type(self) -> type | None:
        """Class of the state; None without state."""
        return self.definition.state

    def session(self, idle_nodes: int, kinds: Set[str]) -> Session | None:
        """The incremental form, see `protocol.Session`; None when there is none for such jobs."""
        make = self.definition.session
        return None if make is None else make(idle_nodes, kinds, self.params)

    def initial_state(self) -> Any:
        """State before the first call."""
        kind = self.definition.state
        return None if kind is None else kind()

    def decide(self, view: ClusterSnapshot, state: Any) -> tuple[Decision, Any]:
        """The decision for `view` and the next state."""
        definition = self.definition
        if definition.decide is not None:
            return definition.decide(view, state, self.params)
        plan = Pass(view)
        definition.admit(plan, self.params)
        answer_requests(plan)
        decision = plan.answer(definition.rule(plan, self.params))
        if definition.scales_pool:
            action, state = adaptive.recommend(view, state, self.params)
            if action is not None:
                decision = replace(decision, actions=(*decision.actions, action))
        return decision, state


_STEP = Choice(
    "step", "max", ("max", "next"), label="Step",
    help="max: resize to the farthest legal size that is useful; next: by one legal size a pass",
)  # fmt: skip
_GUARD = Duration(
    "min_remaining_s", 0.0, hi=86400.0 * 365, label="Minimum remaining time",
    help="jobs expected to end within this time are not resized; 0 for no such guard",
)  # fmt: skip
_CAP = Int(
    "max_expansions", 2, lo=0, hi=1_000_000, none_ok=True, label="Maximum expansions",
    help="how often one job may expand; none for any number",
)  # fmt: skip
_TARGET = Int(
    "target_nodes", None, lo=1, hi=1_000_000, unit="nodes", none_ok=True, label="Target size",
    help="size of every malleable job, cut to its bounds and legal sizes; none: the size it was started with",
)  # fmt: skip

_fpsma: Grow = sizing.grow_in_order
_egs: Grow = sizing.grow_equally
_DEFINITIONS = (
    Definition(name="fcfs", summary="First come, first served; nobody is resized.", session=backfill_session),
    Definition(
        name="easy",
        summary="Backfilling with one reservation: jobs overtake where they do not delay the head.",
        admit=backfilling.admit,
        session=backfill_session,
        parameters=backfilling.parameters(1),
    ),
    Definition(
        name="conservative",
        summary="Backfilling with a reservation for every job: jobs overtake where they delay nobody.",
        admit=backfilling.admit,
        session=backfill_session,
        parameters=backfilling.parameters(None),
    ),
    Definition(
        name="fixed",
        summary="First come, first served; every malleable job is brought to one size.",
        rule=fixed,
        parameters=(_TARGET,),
    ),
    Definition(
        name="dask-default",
        summary="First come, first served, with the pool size that Dask's adaptive scaling recommends.",
        parameters=adaptive.PARAMETERS,
        state=adaptive.DaskDefaultState,
        scales_pool=True,
    ),
    Definition(
        name="prma-fpsma",
        summary="Running jobs grow into idle nodes, oldest first; nobody shrinks.",
        rule=partial(prma, grow=_fpsma),
        parameters=(_STEP, _GUARD, _CAP),
    ),
    Definition(
        name="prma-egs",
        summary="Running jobs grow into idle nodes in equal shares; nobody shrinks.",
        rule=partial(prma, grow=_egs),
        parameters=(_STEP, _GUARD, _CAP),
    ),
    Definition(
        name="pwma-fpsma",
        summary="Running jobs shrink for the waiting head, youngest first, else grow, oldest first.",
        rule=partial(pwma, grow=_fpsma, take=sizing.shrink_in_order),
        parameters=(_STEP, _GUARD),
    ),
    Definition(
        name="pwma-egs",
        summary="Running jobs shrink for the waiting head in equal shares, else grow in equal shares.",
        rule=partial(pwma, grow=_egs, take=sizing.shrink_equally),
        parameters=(_STEP, _GUARD),
    ),
    Definition(
        name="equipartition",
        summary="Running malleable jobs share their nodes and the idle ones equally; the head gets room.",
        rule=equipartition,
    ),
    Definition(
        name="performance-aware",
        summary="Jobs that scale worst shrink for the waiting head; jobs that scale best grow.",
        rule=performance_aware,
        parameters=(_STEP, _GUARD),
    ),
    Definition(
        name="fcfs-malleable",
        summary="First come, first served; malleable jobs grow into idle nodes at their scheduling points.",
        rule=growing,
        session=growing_session,
    ),
    Definition(
        name="mebf",
        summary="EASY backfilling that lets low-priority jobs shrink for the head and long jobs grow.",
        rule=mebf.malleable_easy,
        parameters=mebf.PARAMETERS,
    ),
    Definition(
        name="io-aware",
        summary="Starts and sizes jobs so that the running mix does as much I/O as the whole workload.",
        decide=io_aware.decide,
        state=io_aware.IoAwareState,
        session=io_session,
        parameters=io_aware.PARAMETERS,
    ),
    Definition(
        name="sfsj",
        summary="Conservative backfilling; a job that lost a node takes one from the smallest running job.",
        decide=stealing.decide,
        state=stealing.StealingState,
        parameters=stealing.PARAMETERS,
    ),
)

#: The builtin policies by name.
BUILTIN: Mapping[str, Definition] = {d.name: d for d in _DEFINITIONS}


def builtin(name: str, **params: Any) -> BuiltinPolicy:
    """The builtin policy `name` with `params`, defaults for the rest.

    Raises
    ------
    KeyError
        For a name that :data:`BUILTIN` does not have.
    ParameterError
        For an unknown parameter or a value it cannot take.
    """
    definition = BUILTIN[name]
    return BuiltinPolicy(name, Parameters(definition.parameters).resolve(params))


def _malleable(plan: Pass) -> list[JobView]:
    return [job for job in plan.running if sizing.resizable(job)]


def _limits(params: Params) -> Limits:
    return Limits(
        step=params.get("step", "max"),
        min_remaining_s=params.get("min_remaining_s", 0.0),
        max_expansions=params.get("max_expansions"),
    )


def _mtct(job: JobView) -> float:
    return 0.0 if job.mtct is None else job.mtct


def _serve_head(plan: Pass, resizes: Resizes) -> int:
    plan.resize(resizes)
    if plan.locked:
        return resizes.freed_nodes
    plan.admit()
    return 0


def _unknown(plan: Pass, idle_nodes: int) -> tuple[Suppressed, ...]:
    unmeasured: list[Suppressed] = []
    for job in _malleable(plan):
        target = sizing.growth_target(job, idle_nodes, "next") if job.mtct is None else None
        if target is not None:
            wish = Expand(job=job.id, nodes=target, reason=Reason(ReasonCode.IDLE_NODES, "nodes are idle"))
            unmeasured.append(Suppressed(action=wish, reason=_NO_DATA))
    return tuple(unmeasured)


_NO_DATA = Reason(ReasonCode.NO_PERFORMANCE_DATA, "no time in transfers and computation measured yet")


def _share_reason(job: JobView, size: int, head: JobView | None) -> Reason:
    data = {"from_nodes": job.nodes, "to_nodes": size}
    if size > job.nodes:
        return Reason(ReasonCode.EQUAL_SHARE, f"equal share: from {job.nodes} to {size}", data)
    if head is not None:
        text = f"room for {head.id} and equal shares: from {job.nodes} to {size}"
        return Reason(ReasonCode.HEAD_JOB_WAITS, text, {"head": head.id, **data})
    return Reason(ReasonCode.POOL_SHARED, f"equal shares: from {job.nodes} to {size}", data)
