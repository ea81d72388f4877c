"""What one step of a flow has taken: the figures that a live flow and a simulated one tell.

Rules of the file: pure; times are told.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from dask_hpc_policies.placement.application import Where


class Value(NamedTuple):
    """One value of an analysis."""

    where: Where
    #: On one clock for all of a step.
    begin_s: float
    end_s: float
    #: Seconds that it had a core, and the bytes that it held at most.
    core_s: float
    nbytes: float


#: Names of the figures.
OF_VALUES = (
    "in_situ_s",
    "in_transit_s",
    "in_situ_bytes",
    "in_situ_memory_share",
    "in_situ_work_share",
    "idle_helper_core_s",
)


def figures(
    values: Collection[Value] | None, step_s: float | None, helper_cores: int
) -> dict[str, float | None]:
    """The figures of a step by name (`OF_VALUES`); None is what is not known.

    ``in_situ_s``, ``in_transit_s``: phases, from the first beginning to the last end. Of what all analyses
    have worked and held at most the share of those in situ: ``in_situ_work_share``, ``in_situ_memory_share``,
    with ``in_situ_bytes``. ``idle_helper_core_s``: the core seconds of a step that analyses in situ have left
    of the helper cores (Honoré 2020, sections 3.3 and 5.2).

    Parameters
    ----------
    values
        All of the step; None: some are missing.
    step_s
        Seconds from the step before to this one.
    helper_cores
        Of all nodes of the simulation.
    """
    if values is None:
        return dict.fromkeys(OF_VALUES)
    inside = [one for one in values if one.where == "in-situ"]
    outside = [one for one in values if one.where == "in-transit"]
    work_s, held = sum(one.core_s for one in values), sum(one.nbytes for one in values)
    inside_s, inside_bytes = sum(one.core_s for one in inside), sum(one.nbytes for one in inside)
    return {
        "in_situ_s": _span_s(inside),
        "in_transit_s": _span_s(outside),
        "in_situ_bytes": inside_bytes,
        "in_situ_memory_share": inside_bytes / held if held else None,
        "in_situ_work_share": inside_s / work_s if work_s else None,
        "idle_helper_core_s": None if step_s is None else max(0.0, helper_cores * step_s - inside_s),
    }


def _span_s(values: Collection[Value]) -> float:
    if not values:
        return 0.0
    return max(one.end_s for one in values) - min(one.begin_s for one in values)
