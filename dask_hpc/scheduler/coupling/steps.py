"""What each of the latest steps of one flow has taken, as its workers have measured it.

Rules of the file: nothing of Dask; times are told. What is noted costs a step a few look-ups; it is summed up
when somebody looks, and of a few steps only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dask_hpc_policies.placement.application import Where

#: So many of the latest steps are remembered, and so many of them told.
_REMEMBERED, _TOLD = 16, 5


class _Value(NamedTuple):
    """One value of an analysis; seconds since 1970, and what it has read and is."""

    where: Where
    begin_s: float
    end_s: float
    core_s: float
    nbytes: float


@dataclass(slots=True)
class _Step:
    step: int
    #: Since the step before was whole, and what computing it has taken; None: not known.
    step_s: float | None = None
    simulation_s: float | None = None
    #: Of all nodes of the simulation when it was whole.
    helper_cores: int = 0
    #: By analysis: one that is computed again counts once.
    values: dict[str, _Value] = field(default_factory=dict)


class Steps:
    """The latest steps of one flow, by turn."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        #: Of the last step that was whole: its turn, when that was, and whether the next one found room.
        self._last: tuple[int, float, bool] | None = None

    def begun(self, turn: int, step: int) -> None:
        """A step has begun, which its producers number so."""
        self._steps[turn] = _Step(step)
        if len(self._steps) > _REMEMBERED:
            del self._steps[next(iter(self._steps))]

    def whole(self, turn: int, now_s: float, room: bool, helper_cores: int) -> None:
        """A step is whole: see `Measured.whole`."""
        last, self._last = self._last, (turn, now_s, room)
        if (found := self._steps.get(turn)) is None:
            return
        found.helper_cores = helper_cores
        if last is not None and last[0] == turn - 1:
            found.step_s = now_s - last[1]
            if last[2] and found.simulation_s is None:
                # the program outside had to wait for nobody
                found.simulation_s = found.step_s

    def simulated(self, turn: int, seconds: float) -> None:
        """A step of a program on the cluster has taken so long to compute."""
        if (found := self._steps.get(turn)) is not None:
            found.simulation_s = seconds

    def value(
        self, analysis: str, turn: int, where: Where, taken: Collection[float], nbytes: float
    ) -> None:
        """A value of so many bytes was computed; what that has taken tells its worker (`coupling.taking`)."""
        if (found := self._steps.get(turn)) is not None:
            begin_s, end_s, core_s, _, _, read_bytes = taken
            found.values[analysis] = _Value(where, begin_s, end_s, core_s, read_bytes + nbytes)

    def rows(self, due: Callable[[int], int]) -> list[dict[str, Any]]:
        """What is known of the latest ones, oldest first, as plain data; None is what is not known.

        `due` gives how many values a turn is to have: before all of them are there nothing is said of them.

        ``step_s``: from the step before to this one, both whole. ``simulation_s``, ``in_situ_s``,
        ``in_transit_s``: its phases; of analyses from the first beginning to the last end. Of what all
        analyses of the step have worked and held at most (what they read and gave), the share of those in
        situ: ``in_situ_work_share``, ``in_situ_memory_share``, with ``in_situ_bytes``. Of ``helper_cores``
        ``idle_helper_core_s`` are the core seconds of a step that analyses in situ have left (Honoré 2020,
        sections 3.3 and 5.2).
        """
        latest = list(self._steps.items())[-_TOLD:]
        return [{"turn": turn} | _row(step, len(step.values) >= due(turn)) for turn, step in latest]


def _row(step: _Step, all_there: bool) -> dict[str, Any]:
    values = list(step.values.values())
    inside = [one for one in values if one.where == "in-situ"]
    outside = [one for one in values if one.where == "in-transit"]
    work_s, held = sum(one.core_s for one in values), sum(one.nbytes for one in values)
    inside_s, inside_bytes = sum(one.core_s for one in inside), sum(one.nbytes for one in inside)
    idle_s = None if step.step_s is None else max(0.0, step.helper_cores * step.step_s - inside_s)
    of_values = {
        "in_situ_s": _span_s(inside),
        "in_transit_s": _span_s(outside),
        "in_situ_bytes": inside_bytes,
        "in_situ_memory_share": inside_bytes / held if held else None,
        "in_situ_work_share": inside_s / work_s if work_s else None,
        "idle_helper_core_s": idle_s,
    }
    return {
        "step": step.step,
        "step_s": step.step_s,
        "simulation_s": step.simulation_s,
        "helper_cores": step.helper_cores,
    } | (of_values if all_there else dict.fromkeys(of_values))


def _span_s(values: Collection[_Value]) -> float:
    if not values:
        return 0.0
    return max(one.end_s for one in values) - min(one.begin_s for one in values)
