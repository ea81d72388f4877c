"""Parameters of `fair`, and what its rules ask about a single job.

Rules of the file: nothing here compares jobs with each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from dask_hpc_policies.model import JobView
from dask_hpc_policies.params import Duration, Float, Parameter

Params = Mapping[str, Any]

#: Of a level: so much sooner than it would by its exact bound a job is taken to be there.
_ROUNDING = 1e-9
#: Nobody attains more.
_MOST_NODE_S = 1e200

PARAMETERS: tuple[Parameter, ...] = (
    Float("quantum_node_s", 10.0, lo=1e-3, hi=1e12, unit="node-s", label="Quantum",
          help="node-seconds up to which a job is new (level 0)"),
    Float("level_factor", 2.0, lo=1.1, hi=1000.0, label="Factor between levels",
          help="a level ends at so many times the node-seconds of the one before, and weighs as much less"),
    Duration("patience_s", 60.0, hi=86400.0 * 365, label="Patience",
             help="a job that waits longer is overtaken by no job that could delay it"),
    Duration("resize_cost_s", 0.1, hi=86400.0, label="Cost of a resize",
             help="a running job grows only when that is expected to save it more time than this"),
    Duration("cooldown_s", 2.0, hi=86400.0, label="Cooldown",
             help="a job that was resized keeps its size so long, unless a job starts or nodes are idle"),
)  # fmt: skip


def level(attained_node_s: float, params: Params) -> int:
    """Level of so much attained service: 0 within the quantum, then one more for each factor."""
    return ranking(params)(attained_node_s)[0]


def ranking(params: Params) -> Callable[[float], tuple[int, float]]:
    """What tells `level` and `weight_at` of so much attained service, for many jobs."""
    bounds, found = _levels(params["quantum_node_s"], params["level_factor"])

    def rank(attained_node_s: float) -> tuple[int, float]:
        return found[bisect_right(bounds, attained_node_s)]

    return rank


@lru_cache(maxsize=16)
def _levels(quantum_node_s: float, factor: float) -> tuple[list[float], list[tuple[int, float]]]:
    """Attained service at which levels 1, 2 and so on begin, ascending; and each level with its weight."""
    bounds = [quantum_node_s]
    while bounds[-1] < _MOST_NODE_S:
        bounds.append(quantum_node_s * factor ** (len(bounds) - _ROUNDING))
    return bounds, [(level, factor**-level) for level in range(len(bounds) + 1)]


def weight_at(level: int, params: Params) -> float:
    """Weight of a job or user at `level`: the reciprocal of the attained service, rounded to levels."""
    weight: float = params["level_factor"] ** -level
    return weight


def overdue(job: JobView, now_s: float, params: Params) -> bool:
    """Whether the pending job has waited longer than the patience, since it was interrupted if it was."""
    since_s = job.submit_s if job.interrupted_s is None else job.interrupted_s
    late: bool = now_s - since_s > params["patience_s"]
    return late


def almost_over(job: JobView, params: Params) -> bool:
    """Whether the job ends before a resize would pay; one that has outlived its time may run for ever."""
    left_s = job.remaining_s
    over: bool = left_s is not None and 0 < left_s <= params["resize_cost_s"]
    return over


def repays(job: JobView, nodes: int, params: Params) -> bool:
    """Whether growing to `nodes` is expected to save the running job more than a resize costs.

    What is left of a job of unknown length is taken to be as much as it has attained, at least a quantum: so
    it is for lengths whose tail is that of a Pareto distribution with index 2.
    """
    left_node_s: float = max(job.attained_node_s, params["quantum_node_s"])
    if job.remaining_s:
        left_node_s = min(left_node_s, job.remaining_s * job.nodes)
    if job.nodes == 0:
        return True
    cost_s: float = params["resize_cost_s"]
    return left_node_s / job.nodes - left_node_s / nodes > cost_s
