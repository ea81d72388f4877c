"""The steps of a coupled run, and what is told of them.

Rules of the file: plain data that `copy.deepcopy` copies; nothing here moves a step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from dask_hpc.sim.engine.phases import PHASES, SIMULATION
from dask_hpc_policies.placement.figures import Value, figures
from dask_hpc_policies.placement.view import MeasuredView, Split

#: Latest steps whose times are told.
_LATEST = 5


@dataclass(slots=True)
class Step:
    """One step on its way."""

    number: int
    begin_s: float
    #: The split in which its analyses run, and whether any has begun.
    split: Split
    begun: bool = False
    handed_s: float | None = None
    end_s: float | None = None
    #: Seconds of its phases, and the values of its analyses.
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    values: list[Value] = field(default_factory=list)
    #: Lanes that it has still to pass before somebody reads it.
    left: int = 0
    dropped: bool = False


def measured(done: Sequence[Step]) -> MeasuredView | None:
    """What a policy sees of steps that have come to an end; None: there are none."""
    latest = [step for step in done[-_LATEST - 1 :] if not step.dropped]
    if not latest:
        return None
    ends_s = [step.end_s or 0.0 for step in latest]
    gaps_s = [after - before for before, after in pairwise(ends_s)]
    phases_s = {name: median([step.phases[name] for step in latest[-_LATEST:]]) for name in PHASES}
    return MeasuredView(
        step_s=median(gaps_s) if gaps_s else ends_s[0] - latest[0].begin_s,
        steps=len(latest[-_LATEST:]),
        **{f"{name}_s": seconds for name, seconds in phases_s.items()},
    )


def told_of(flow: str, step: Step, last_s: float | None) -> dict[str, Any]:
    """What a step of a flow has taken, as live ones tell it; the one before was handed over at `last_s`."""
    assert step.handed_s is not None
    step_s = None if last_s is None else step.handed_s - last_s
    helper_cores = step.split.nodes * step.split.helper_cores
    return {
        "t_s": step.handed_s,
        "flow": flow,
        "turn": step.number,
        "step": step.number,
        "step_s": step_s,
        "simulation_s": step.phases[SIMULATION],
        "helper_cores": helper_cores,
        **figures(step.values, step_s, helper_cores),
    }


def reported(step: Step) -> dict[str, Any]:
    """What became of a step, as plain data."""
    return {
        "step": step.number,
        "begin_s": step.begin_s,
        "handed_s": step.handed_s,
        "end_s": step.end_s,
        **{f"{name}_s": step.phases[name] for name in PHASES},
        "dropped": step.dropped,
    }
