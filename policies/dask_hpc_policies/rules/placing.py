"""Whether an analysis can be placed somewhere now: the one answer of a live cluster and of the simulator.

Rules of the file: pure; facts come as values, and neither body is known. `refusal` is asked for each action,
`misfit` for all that a decision says of a flow, when its next step begins: only together they say what is in
the memory of which nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from dask_hpc_policies.decision import Place, Reason, ReasonCode
from dask_hpc_policies.placement.application import nodes_for
from dask_hpc_policies.placement.view import FlowView, Split
from dask_hpc_policies.wording import counted


def split_of(flow: FlowView, places: Iterable[Place]) -> Split:
    """The split of a flow once all that a decision says of it is done; the last word counts."""
    where = {one.name: one.where for one in flow.analyses}
    nodes, helpers, staging = flow.nodes, flow.helper_cores, flow.staging_nodes
    for place in places:
        where[place.analysis] = place.where
        if place.where == "in-situ":
            nodes, helpers = place.nodes, place.cores
        elif staging is None:
            nodes = flow.platform.nodes - place.nodes
        else:
            staging = place.nodes
    in_situ = tuple([name for name, side in where.items() if side == "in-situ"])
    if not in_situ and not (flow.platform.cores_fixed and flow.mode == "asynchronous"):
        helpers = flow.platform.least_helper_cores
    in_transit = tuple([name for name, side in where.items() if side == "in-transit"])
    return Split(
        in_situ=in_situ,
        in_transit=in_transit,
        nodes=nodes,
        helper_cores=helpers,
        # nobody needs them then
        staging_nodes=staging if in_transit or staging is None else 0,
    )


def refusal(action: Place, flow: FlowView | None) -> Reason | None:
    """Why `action` cannot be carried out; None when it can, as far as it alone can tell.

    Parameters
    ----------
    flow
        The flow that the action is about; None when there is none of that name.
    """
    if flow is None:
        return Reason(ReasonCode.UNKNOWN_FLOW, f"there is no flow {action.flow!r}")
    known = next((one for one in flow.analyses if one.name == action.analysis), None)
    if known is None:
        text = f"flow {action.flow} has no analysis {action.analysis!r}"
        return Reason(ReasonCode.UNKNOWN_FLOW, text)
    if flow.changing:
        return Reason(ReasonCode.LOCKED, f"the split of flow {action.flow} is being changed")
    if known.declared not in ("auto", action.where):
        text = f"{action.where}: {known.name} is to run {known.declared}, as its user said (where)"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    platform = flow.platform
    if action.where == "in-situ":
        return _wrong_in_situ(action, flow)
    all_others = flow.staging_nodes is None
    most = platform.nodes - (1 if all_others else flow.nodes)
    if not 1 <= action.nodes <= most:
        text = f"{counted(action.nodes)} for staging: allowed are 1 to {most} of {platform.nodes}"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    if action.cores != platform.cores:
        text = f"{action.cores} cores for staging: a staging node gives all of its {platform.cores}"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    return _moved(platform.nodes - action.nodes, flow) if all_others else None


def _wrong_in_situ(action: Place, flow: FlowView) -> Reason | None:
    platform = flow.platform
    if not 1 <= action.nodes <= platform.nodes:
        text = f"{counted(action.nodes)} for the simulation: allowed are 1 to {platform.nodes}"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    least, most = 0, 0
    if flow.mode == "asynchronous":
        least, most = max(1, platform.least_helper_cores), platform.cores - 1
    if not least <= action.cores <= most:
        text = f"{action.cores} helper cores: allowed are {least} to {most} of {platform.cores} ({flow.mode})"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    if most and platform.cores_fixed and action.cores != flow.helper_cores:
        text = f"{action.cores} helper cores: the simulation leaves {flow.helper_cores}, and keeps its own"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    return _moved(action.nodes, flow)


def _moved(nodes: int, flow: FlowView) -> Reason | None:
    if flow.platform.nodes_fixed and nodes != flow.nodes:
        text = f"{counted(nodes)} for the simulation: it stays on the {flow.nodes} that it has"
        return Reason(ReasonCode.OUT_OF_BOUNDS, text)
    return None


def misfit(flow: FlowView, split: Split) -> Reason | None:
    """Why a flow cannot be split so, by what is known of its analyses; None when it can."""
    missing = [one.name for one in flow.analyses if one.name not in (*split.in_situ, *split.in_transit)]
    if missing:
        return Reason(ReasonCode.INCOMPLETE, f"nothing is said of where {missing[0]!r} runs")
    platform, staging = flow.platform, split.staging(flow.platform.nodes)
    if split.in_transit and staging < 1:
        text = f"{split.in_transit[0]!r} runs in transit, and no node is left of {platform.nodes} for staging"
        return Reason(ReasonCode.NOT_ENOUGH_NODES, text)
    peaks = {one.name: one.memory_bytes or 0.0 for one in flow.analyses}
    for what, names, nodes, own_bytes, node_bytes in (
        (
            "with the simulation",
            split.in_situ,
            split.nodes,
            flow.simulation.memory_bytes,
            platform.memory_bytes,
        ),
        ("in transit", split.in_transit, staging, 0.0, platform.staging_memory_bytes),
    ):
        needed = own_bytes + sum([peaks[name] for name in names])
        if node_bytes is not None and needed > 0 and nodes_for(needed, node_bytes) > nodes:
            text = f"what runs {what} takes {needed:g} bytes, {counted(nodes)} have {nodes * node_bytes:g}"
            return Reason(ReasonCode.NOT_ENOUGH_NODES, text)
    return None
