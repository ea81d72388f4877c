"""The best split of a flow by what is known of it now, and how long its steps then take.

Rules of the file: pure; the models are those of the planner, fed with estimates (`learner`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dask_hpc_policies.placement.application import (
    LARGEST,
    Analysis,
    Application,
    InvalidApplication,
    Platform,
    Simulation,
)
from dask_hpc_policies.placement.exact import ENUMERATED, exact
from dask_hpc_policies.placement.packs import packs
from dask_hpc_policies.placement.times import Load, Phases, least_staging, load_of, phases_of
from dask_hpc_policies.placement.view import FlowView, PlanView, Split
from dask_hpc_policies.placement.whole import bounds_of

#: What the work of a step of the simulation is called in `known`.
STEP_WORK = "work of a step"
#: Spreads of its samples that a work may differ by.
_SPREADS = 2.0
#: Splits times cores up to which a policy plans by itself: ten milliseconds.
QUICK = 1 << 15


def application_of(flow: FlowView) -> Application | None:
    """What is to be placed; None while the work of the simulation or of an analysis is not known.

    What an analysis takes for a value is spread over the steps from one value to the next.
    """
    simulation, platform = flow.simulation, flow.platform
    if simulation.one_core_s is None:
        return None
    analyses = []
    for one in flow.analyses:
        if one.one_core_s is None:
            return None
        peak_bytes = one.memory_bytes or 0.0
        read_bytes = peak_bytes if one.input_bytes is None else one.input_bytes
        analyses.append(
            Analysis(
                name=one.name,
                one_core_s=one.one_core_s / one.every,
                memory_bytes=peak_bytes,
                where=one.declared,
                input_bytes=read_bytes / one.every,
                serial_fraction=one.serial_fraction,
            )
        )
    return Application(
        platform=Platform(
            nodes=platform.nodes,
            cores=platform.cores,
            memory_bytes=platform.memory_bytes or LARGEST,
            bandwidth_bytes_s=platform.bandwidth_bytes_s or LARGEST,
            staging_memory_bytes=platform.staging_memory_bytes,
            simulation_nodes=flow.nodes if platform.nodes_fixed else None,
            helper_cores=flow.helper_cores if platform.cores_fixed else None,
            least_helper_cores=platform.least_helper_cores,
            pipelined=platform.pipelined,
        ),
        simulation=Simulation(
            one_core_s=simulation.one_core_s,
            memory_bytes=simulation.memory_bytes,
            serial_fraction=simulation.serial_fraction,
        ),
        analyses=tuple(analyses),
    )


def known(flow: FlowView) -> Mapping[str, float]:
    """All numbers that a plan depends on, by name: ``NAME work``, ``NAME peak``, ``NAME read``."""
    platform = flow.platform
    found = {
        "nodes": float(platform.nodes),
        "cores": float(platform.cores),
        "bandwidth": platform.bandwidth_bytes_s,
        # names of analyses have no spaces
        STEP_WORK: flow.simulation.one_core_s,
        "peak of a step": flow.simulation.memory_bytes,
    }
    for one in flow.analyses:
        found |= {
            f"{one.name} work": one.one_core_s,
            f"{one.name} peak": one.memory_bytes,
            f"{one.name} read": one.input_bytes,
        }
    return {name: value for name, value in found.items() if value is not None}


def drift(
    flow: FlowView, before: Mapping[str, float], now: Mapping[str, float], noise: float
) -> Iterator[tuple[str, float | None]]:
    """What of `now` has left its noise, and by what factor; None: it was not known before, or is not now."""
    spreads = {f"{one.name} work": one.spread for one in flow.analyses}
    spreads[STEP_WORK] = flow.simulation.spread
    for name, value in now.items():
        old = before.get(name)
        if old is None:
            yield name, None
        elif abs(value - old) > max(noise, _SPREADS * spreads.get(name, 0.0)) * old:
            yield name, value / old if old else None
    for name in before:
        if name not in now:
            yield name, None


def is_quick(application: Application) -> bool:
    """Whether the best split is found so soon that a policy may look for it itself."""
    free = len(application.free)
    return free <= ENUMERATED and (1 << free) * application.platform.cores <= QUICK


def best_split(application: Application, flow: FlowView) -> Split | None:
    """The split with the least step, of many analyses the best that a search finds; None: nothing fits."""
    try:
        application.check(flow.mode)
    except InvalidApplication:
        return None
    if len(application.free) <= ENUMERATED:
        found = exact(application, flow.mode).found
    else:
        found = packs(application, flow.mode)
    if found is None:
        return None
    names = [one.name for one in application.analyses]
    split = Split(
        in_situ=tuple([name for name, inside in zip(names, found.split, strict=True) if inside]),
        in_transit=tuple([name for name, inside in zip(names, found.split, strict=True) if not inside]),
        nodes=found.nodes,
        helper_cores=found.helper_cores,
    )
    return lean(application, flow, split)


def lean(application: Application, flow: FlowView, split: Split) -> Split:
    """The same with no more staging nodes than it takes for its step, where others are for someone else."""
    if flow.staging_nodes is None:
        return split
    load = _load(application, split)
    least = least_staging(application, load, split.nodes, split.helper_cores, flow.mode)
    return replace(split, staging_nodes=least)


def plan_of(flow: FlowView) -> PlanView | None:
    """What is put into the picture of a flow that is not quick to plan; None where nothing needs to be.

    For whoever builds the picture, beside the loop that asks the policy.
    """
    application = application_of(flow)
    if application is None or is_quick(application):
        return None
    return PlanView(found_for=known(flow), split=best_split(application, flow))


def outside_plan(flow: FlowView, noise: float) -> PlanView | None:
    """The plan in the picture of a flow, if there is one, and it is about what is known but for noise."""
    plan = flow.plan
    return None if plan is None or any(drift(flow, plan.found_for, known(flow), noise)) else plan


def with_nodes(application: Application, split: Split, nodes: int) -> Split | None:
    """A split with so many nodes of the simulation, and all staging nodes; None: it does not fit."""
    found = replace(split, nodes=nodes, staging_nodes=None)
    fewest, most = bounds_of(application, _load(application, found))
    return found if fewest <= nodes <= most else None


def phases(application: Application, flow: FlowView, split: Split) -> Phases:
    """How long the phases of a step are with that split; infinite where something has nothing to run on."""
    load = _load(application, split)
    return phases_of(application, load, split.nodes, split.helper_cores, flow.mode, split.staging_nodes)


def _load(application: Application, split: Split) -> Load:
    return load_of(application, [one.name in split.in_situ for one in application.analyses])
