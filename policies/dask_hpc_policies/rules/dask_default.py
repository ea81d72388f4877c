"""The pool size that Dask's own adaptive scaling would recommend.

Rules of the file: the arithmetic of `distributed.Scheduler.adaptive_target` and the patience of
`distributed.deploy.adaptive_core.AdaptiveCore` (dask/distributed 2026.8), on the numbers of a `Demand`
and with nodes for workers: scale up at once, scale down a node only after it was named in `wait_count`
consecutive recommendations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from dask_hpc_policies.decision import Reason, ReasonCode, ReleaseNodes, RequestNodes
from dask_hpc_policies.model import ClusterSnapshot, Demand
from dask_hpc_policies.params import Duration, Int, Parameter
from dask_hpc_policies.wording import counted

#: Declared parameters, with Dask's names, meanings and defaults.
PARAMETERS: tuple[Parameter, ...] = (
    Duration("target_duration_s", 5.0, lo=1e-3, hi=86400.0, label="Target duration",
             help="how long the work at hand should take; shorter asks for more nodes"),
    Int("minimum", 0, lo=0, hi=1_000_000, unit="nodes", label="Minimum", help="never recommend fewer nodes"),
    Int("maximum", None, lo=0, hi=1_000_000, unit="nodes", none_ok=True, label="Maximum",
        help="never recommend more nodes; none for no limit"),
    Int("wait_count", 3, lo=1, hi=1000, label="Wait count",
        help="consecutive recommendations to close a node before it is released"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskDefaultState:
    """Patience so far."""

    #: How many nodes each of the last consecutive passes wanted to release, oldest first.
    excess_nodes: tuple[int, ...] = ()


def target_nodes(demand: Demand, nodes: int, nthreads: int, target_duration_s: float) -> int:
    """Pool size for `demand` on a pool of `nodes` nodes with `nthreads` threads together."""
    cpu = ceil(demand.occupancy_s / target_duration_s)
    # A few long tasks must not ask for more threads than there are tasks.
    cpu = min(cpu, demand.ready_tasks + demand.processing_tasks)
    if nodes and nthreads:
        cpu = ceil(cpu / nthreads * nodes)
    if demand.ready_tasks and not nodes:
        cpu = max(1, cpu)
    limit, used = demand.limit_bytes, demand.used_bytes
    memory = 2 * nodes if limit > 0 and used > 0.6 * limit else 0
    target = max(memory, cpu)
    if target >= nodes:
        return target
    if demand.closable_nodes is not None:
        return nodes - min(demand.closable_nodes, nodes)
    # What is left must hold twice the results there are, as the scheduler's own choice of workers does.
    keep = ceil(2 * used / limit * nodes) if limit > 0 else 0
    return min(nodes, max(target, keep))


def recommend(
    view: ClusterSnapshot, state: DaskDefaultState, params: Mapping[str, Any]
) -> tuple[RequestNodes | ReleaseNodes | None, DaskDefaultState]:
    """The pool action of this pass, if any, and the patience after it."""
    if view.demand is None:
        return None, DaskDefaultState()
    nodes = nthreads = 0
    for node in view.nodes:
        if node.state != "lost":
            nodes += 1
            nthreads += node.nthreads
    target = target_nodes(view.demand, nodes, nthreads, params["target_duration_s"])
    if params["maximum"] is not None:
        target = min(target, params["maximum"])
    target = max(target, params["minimum"])
    data = {"target_nodes": target, "pool_nodes": nodes, "occupancy_s": view.demand.occupancy_s}
    if target > nodes:
        text = f"work of {view.demand.occupancy_s:g} s asks for {counted(target)}, there are {nodes}"
        return RequestNodes(nodes=target, reason=Reason(ReasonCode.DEMAND, text, data)), DaskDefaultState()
    if target == nodes:
        return None, DaskDefaultState()
    wait = params["wait_count"]
    excess = (*state.excess_nodes, nodes - target)[-wait:]
    # A node is released once it was among those to close in every one of the last `wait` passes.
    firm = min(excess) if len(excess) == wait else 0
    if firm == 0:
        return None, DaskDefaultState(excess_nodes=excess)
    text = f"{counted(firm)} not needed in {wait} recommendations: from {nodes} to {nodes - firm}"
    release = ReleaseNodes(nodes=nodes - firm, reason=Reason(ReasonCode.NO_DEMAND, text, data))
    return release, DaskDefaultState(excess_nodes=tuple(n - firm for n in excess))
