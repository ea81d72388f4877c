"""What each of the latest steps of one flow has taken, as its workers have measured it.

Rules of the file: nothing of Dask; times are told. What is noted costs a step a few look-ups; it is summed up
when somebody looks, and of a few steps only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from dask_hpc_policies.placement.application import Where
from dask_hpc_policies.placement.figures import Value, figures

#: So many of the latest steps are remembered, and so many of them told.
_REMEMBERED, _TOLD = 16, 5


@dataclass(slots=True)
class _Step:
    step: int
    #: Since the step before was whole, and what computing it has taken; None: not known.
    step_s: float | None = None
    simulation_s: float | None = None
    #: Of all nodes of the simulation when it was whole.
    helper_cores: int = 0
    #: By analysis, seconds since 1970, what it has read and is: one that is computed again counts once.
    values: dict[str, Value] = field(default_factory=dict)
    #: When it was whole, None: it is not; and whether it was taken for the trace.
    whole_s: float | None = None
    taken: bool = False


class Steps:
    """The latest steps of one flow, by turn."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        #: Those that are remembered no more and were not taken.
        self._gone: deque[tuple[int, _Step]] = deque(maxlen=_REMEMBERED)
        #: Of the last step that was whole: its turn, when that was, and whether the next one found room.
        self._last: tuple[int, float, bool] | None = None

    def begun(self, turn: int, step: int, in_flight: int) -> None:
        """A step has begun, which its producers number so; so many may be in flight at once."""
        self._steps[turn] = _Step(step)
        if len(self._steps) > max(_REMEMBERED, in_flight + 1):
            oldest = next(iter(self._steps))
            gone = self._steps.pop(oldest)
            if not gone.taken:
                self._gone.append((oldest, gone))

    def whole(self, turn: int, now_s: float, room: bool, helper_cores: int) -> None:
        """A step is whole: see `Measured.whole`."""
        last, self._last = self._last, (turn, now_s, room)
        if (found := self._steps.get(turn)) is None:
            return
        found.helper_cores, found.whole_s = helper_cores, now_s
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
            found.values[analysis] = Value(where, begin_s, end_s, core_s, read_bytes + nbytes)

    def rows(self, due: Callable[[int], int]) -> list[dict[str, Any]]:
        """What is known of the latest ones, oldest first, as plain data; None is what is not known.

        `due` gives how many values a turn is to have: before all of them are there nothing is said of them.

        ``step_s``: from the step before to this one, both whole. ``simulation_s``: what computing it has
        taken. The others are `figures`; an analysis holds what it has read and given.
        """
        return _rows(list(self._steps.items())[-_TOLD:], due)

    def take(self, due: Callable[[int], int], final: bool = False) -> list[dict[str, Any]]:
        """Rows for the trace, each step's once, with ``t_s``, when it was whole.

        They are those of steps that are whole with all their values, or that are not waited for any more:
        they are not remembered, or these are the `final` ones.
        """
        found = [(turn, step) for turn, step in self._gone if step.whole_s is not None]
        self._gone.clear()
        for turn, step in self._steps.items():
            if step.whole_s is not None and not step.taken and (final or len(step.values) >= due(turn)):
                step.taken = True
                found.append((turn, step))
        rows = _rows(found, due)
        return [{"t_s": step.whole_s, **row} for (_, step), row in zip(found, rows, strict=True)]


def _rows(steps: Iterable[tuple[int, _Step]], due: Callable[[int], int]) -> list[dict[str, Any]]:
    return [
        {
            "turn": turn,
            "step": step.step,
            "step_s": step.step_s,
            "simulation_s": step.simulation_s,
            "helper_cores": step.helper_cores,
            **figures(
                step.values.values() if len(step.values) >= due(turn) else None,
                step.step_s,
                step.helper_cores,
            ),
        }
        for turn, step in steps
    ]
