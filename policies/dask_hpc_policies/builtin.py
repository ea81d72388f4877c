"""The builtin policies: one class, one table.

Rules of the file: every policy first restores jobs below their minimum, then starts pending jobs, first
come, first served or with backfilling; what differs besides is one rule for resizing (`rules.resizing`):
a row of `BUILTIN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dask_hpc_policies.decision import Decision, Place, Suppressed
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.params import Choice, Duration, Int, Parameter, Parameters
from dask_hpc_policies.protocol import Session
from dask_hpc_policies.rules import (
    backfilling,
    commits,
    dask_default,
    mebf,
    power_aware,
    program_sizes,
    replanning,
    sizing,
    stealing,
)
from dask_hpc_policies.rules.admission import Pass
from dask_hpc_policies.rules.fair import policy as fair
from dask_hpc_policies.rules.fair import terms
from dask_hpc_policies.rules.io import policy
from dask_hpc_policies.rules.requests import answer_for_more, grant_fewer
from dask_hpc_policies.rules.resizing import (
    Decide,
    Grow,
    Params,
    Rule,
    equipartition,
    fixed,
    growing,
    in_order,
    never,
    performance_aware,
    prma,
    pwma,
)
from dask_hpc_policies.sessions.fair import fair_session
from dask_hpc_policies.sessions.growing import growing_session
from dask_hpc_policies.sessions.io import io_session
from dask_hpc_policies.sessions.rigid import backfill_session
from dask_hpc_policies.wording import Shown


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
    #: How the time between two checkpoints of a job is found (`rules.commits`); empty: it asks for none.
    checkpoints: str = ""
    #: Jobs that asked for no nodes of their own take turns on each other's slots; see `rules.fair.turns`.
    in_turn: bool = False
    #: It keeps the power corridor by itself; see `power.view`.
    keeps_corridor: bool = False
    #: It says where the analyses of coupled runs are placed (`rules.replanning`), and sizes the programs
    #: that these come from (`rules.program_sizes`).
    places: bool = False


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

    @property
    def brief(self) -> bool:
        """It answers brief snapshots as others; see `protocol.Policy`."""
        return True

    @property
    def in_turn(self) -> bool:
        """Whether jobs that asked for no nodes of their own take turns on each other's slots."""
        return self.definition.in_turn

    @property
    def keeps_corridor(self) -> bool:
        """Whether it keeps the power corridor by itself, with the plans that the picture brings."""
        return self.definition.keeps_corridor

    @property
    def places(self) -> bool:
        """Whether it says where the analyses of coupled runs are placed."""
        return self.definition.places

    @property
    def beside(self) -> bool:
        """It is for something else than which jobs run; see `protocol.Policy`."""
        return self.definition.places or bool(self.definition.checkpoints)

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
        grant_fewer(plan)
        definition.admit(plan, self.params)
        answer_for_more(plan)
        reclaimable = definition.rule(plan, self.params)
        placed: tuple[Place, ...] = ()
        refused: tuple[Suppressed, ...] = ()
        if definition.places:
            placed, refused, state = replanning.placements(view, state, self.params)
            state = program_sizes.resize(plan, state, self.params, {one.flow for one in placed})
        decision = plan.answer(reclaimable)
        if definition.scales_pool:
            action, state = dask_default.recommend(view, state, self.params)
            if action is not None:
                decision = replace(decision, actions=(*decision.actions, action))
        if definition.checkpoints:
            asked = commits.checkpoints(view, self.params, definition.checkpoints)
            decision = replace(decision, actions=(*decision.actions, *asked))
        if placed or refused:
            decision = replace(
                decision,
                actions=(*decision.actions, *placed),
                suppressed=(*decision.suppressed, *refused),
            )
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
        parameters=dask_default.PARAMETERS,
        state=dask_default.DaskDefaultState,
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
        decide=policy.decide,
        state=policy.IoAwareState,
        session=io_session,
        parameters=policy.PARAMETERS,
    ),
    Definition(
        name="sfsj",
        summary="Conservative backfilling; a job that lost a node takes one from the smallest running job.",
        decide=stealing.decide,
        state=stealing.StealingState,
        parameters=stealing.PARAMETERS,
    ),
    Definition(
        name="fair",
        summary="Least attained service first: users share nodes by weight, and slots of their jobs in turn.",
        decide=fair.decide,
        state=fair.FairState,
        in_turn=True,
        parameters=terms.PARAMETERS,
        session=fair_session,
    ),
    Definition(
        name="power-aware",
        summary="Resizes, starts and holds jobs so that the cluster draws between two bounds.",
        decide=power_aware.decide,
        keeps_corridor=True,
        parameters=power_aware.PARAMETERS,
    ),
    *(
        Definition(
            name=f"interval-{method}",
            summary=f"First come, first served; jobs that keep state write checkpoints {when}.",
            checkpoints=method,
            parameters=commits.parameters(method),
        )
        for method, when in (
            ("fixed", "at a fixed interval"),
            ("young", "at Young's interval (1974), by their cost and the failures expected"),
            ("daly", "at Daly's interval (2006), by their cost and the failures expected"),
        )
    ),
    Definition(
        name="placement",
        summary="First come, first served; analyses of coupled runs go in situ or in transit, and programs "
        "that hand over their steps to them grow into idle nodes, as measured.",
        places=True,
        state=replanning.PlacementState,
        parameters=replanning.PARAMETERS,
    ),
)

#: The builtin policies by name.
BUILTIN: Mapping[str, Definition] = {d.name: d for d in _DEFINITIONS}


def builtin(name: str, /, **params: Any) -> BuiltinPolicy:
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
