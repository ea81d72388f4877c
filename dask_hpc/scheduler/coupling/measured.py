"""What was measured of the steps of one flow: what its analyses and its simulation take, and the phases.

Rules of the file: nothing of Dask; times are told. It remembers a few steps, whatever their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from dask_hpc_policies.placement.application import Where
from dask_hpc_policies.placement.learner import Estimate, Learner, Sample
from dask_hpc_policies.placement.view import MeasuredView

#: Latest steps whose times are told, and so many whose values may still come.
_LATEST, _OPEN = 5, 64
#: Turn, where, and what was taken.
_Value = tuple[int, Where, tuple[float, ...]]


@dataclass(slots=True)
class _Phases:
    """When values of one step were computed: the first beginning and the last end, by where."""

    spans: dict[Where, tuple[float, float]] = field(default_factory=dict)

    def seconds(self, where: Where) -> float:
        begin_s, end_s = self.spans.get(where, (0.0, 0.0))
        return end_s - begin_s


class Measured:
    """What is known of one flow.

    Values and steps are noted as they come; it is learned from them when somebody looks (`learn`), so that a
    step costs the same whatever there is to learn.
    """

    def __init__(self) -> None:
        #: What a value takes, by analysis, and what a step of the simulation takes.
        self.analyses: dict[str, Learner] = {}
        self.simulation = Learner()
        #: The largest value, by analysis.
        self.value_bytes: dict[str, float] = {}
        #: Bytes a second that reach a staging node.
        self.bandwidth = Estimate()
        #: What was noted since it was learned from: turn, where and what was taken, by analysis; and when
        #: steps were whole, and whether the next found room.
        self._values: dict[str, deque[_Value]] = {}
        self._steps: deque[tuple[float, bool]] = deque(maxlen=_LATEST + 1)
        #: Seconds of steps of a program whose blocks were timed where they were computed, and on how many
        #: nodes that was.
        self._simulated_s: deque[tuple[float, int]] = deque(maxlen=_LATEST)
        #: Latest steps: when they were whole, and their phases by turn.
        self._whole_s: deque[float] = deque(maxlen=_LATEST + 1)
        self._steps_s: deque[float] = deque(maxlen=_LATEST)
        self._phases: dict[int, _Phases] = {}
        #: Whether the simulation had to wait for nobody since the last step.
        self._free = False

    def said(self, analysis: str, said: Mapping[str, Any]) -> None:
        """A new analysis, and what its user says beforehand (`contract.said_of`): as the simulator's."""
        hints = {name: said.get(name) for name in ("one_core_s", "memory_bytes")}
        self.analyses[analysis] = Learner.said(**hints)

    def value(
        self, analysis: str, turn: int, where: Where, taken: tuple[float, ...], nbytes: float = 0.0
    ) -> None:
        """A value of so many bytes was computed; what that has taken tells its worker (`coupling.taking`)."""
        self.value_bytes[analysis] = max(self.value_bytes.get(analysis, 0.0), nbytes)
        noted = self._values.get(analysis)
        if noted is None:
            noted = self._values[analysis] = deque(maxlen=_LATEST)
        noted.append((turn, where, taken))

    def whole(self, now_s: float, room: bool) -> None:
        """A step is whole.

        Parameters
        ----------
        room
            Whether the next step will find room: then the time until it is whole is that of the simulation,
            which else may have waited.
        """
        if len(self._steps) == self._steps.maxlen:
            # the oldest goes unseen: what comes before the next is no step
            self._whole_s.clear()
        self._steps.append((now_s, room))

    def simulated(self, seconds: float, nodes: int) -> None:
        """A step of a program on the cluster has taken so long to compute on so many nodes."""
        self._simulated_s.append((seconds, nodes))

    def learn(self, cores: int, nodes: int = 1) -> None:
        """Learn from what was noted; the simulation has so many cores of each of its nodes."""
        for analysis, noted in self._values.items():
            for value in noted:
                self._learn_value(analysis, *value)
        self._values.clear()
        for now_s, room in self._steps:
            if self._whole_s and self._free:
                gap_s = now_s - self._whole_s[-1]
                self.simulation = self.simulation.after(Sample(wall_s=gap_s, cores=nodes * cores))
                self._steps_s.append(gap_s)
            self._whole_s.append(now_s)
            self._free = room
        self._steps.clear()
        for seconds, own_nodes in self._simulated_s:
            self.simulation = self.simulation.after(Sample(wall_s=seconds, cores=own_nodes * cores))
            self._steps_s.append(seconds)
        self._simulated_s.clear()

    def _learn_value(self, analysis: str, turn: int, where: Where, taken: tuple[float, ...]) -> None:
        begin_s, end_s, core_s, sent_bytes, sent_s, _ = taken
        known = self.analyses.get(analysis, Learner())
        self.analyses[analysis] = known.after(Sample(core_s=core_s))
        if where == "in-transit" and sent_s > 0:
            self.bandwidth = self.bandwidth.after(sent_bytes / sent_s)
        spans = self._phases.setdefault(turn, _Phases()).spans
        before = spans.get(where, (begin_s, end_s))
        spans[where] = min(before[0], begin_s), max(before[1], end_s)
        while len(self._phases) > _OPEN:
            del self._phases[next(iter(self._phases))]

    def view(self) -> MeasuredView | None:
        """Medians over the latest steps; None before there are two."""
        gaps_s = [after - before for before, after in pairwise(self._whole_s)]
        if not gaps_s:
            return None
        latest = [self._phases[turn] for turn in sorted(self._phases)[-_LATEST:]]
        inside_s, outside_s = (
            median([one.seconds(where) for one in latest]) if latest else 0.0
            for where in ("in-situ", "in-transit")
        )
        return MeasuredView(
            step_s=median(gaps_s),
            simulation_s=median(self._steps_s) if self._steps_s else median(gaps_s),
            in_situ_s=inside_s,
            in_transit_s=outside_s,
            steps=len(gaps_s),
        )
