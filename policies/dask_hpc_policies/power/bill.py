"""What a run has drawn, by who drew it, and what that comes to: energy, watts, cost, carbon.

Rules of the file: pure; a live account and the trace of a simulation add up here alike. Whose draw is not
known has None, never 0. A figure is ``measured`` when all of it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_hpc_policies.power.states import NODE_STATES, NodeState

#: Jobs, and nodes beside those of now, whose energy is kept one by one; what the oldest had is kept together.
JOBS_KEPT = NODES_KEPT = 1000
J_PER_KWH = 3.6e6


@dataclass(slots=True)
class Use:
    """What somebody has drawn."""

    energy_j: float = 0.0
    #: Time in which the draw was known.
    known_s: float = 0.0
    least_w: float = float("inf")
    most_w: float = 0.0
    measured: bool = True

    def add(self, watts: float, length_s: float, measured: bool) -> None:
        """So many watts, for so long."""
        self.energy_j += watts * length_s
        self.known_s += length_s
        if watts < self.least_w:
            self.least_w = watts
        if watts > self.most_w:
            self.most_w = watts
        if not measured:
            self.measured = False

    def merge(self, other: Use) -> None:
        """What another has drawn at other times."""
        self.energy_j += other.energy_j
        self.known_s += other.known_s
        self.least_w, self.most_w = min(self.least_w, other.least_w), max(self.most_w, other.most_w)
        self.measured = self.measured and other.measured


class NodeUses:
    """What nodes have drawn, one by one: as arrays while the nodes are the same ones, as they are many."""

    def __init__(self) -> None:
        #: Nodes of now, how long they have been so, and of each J, least and most watts.
        self._names: Sequence[str] = ()
        self._s = 0.0
        self._measured = True
        self._j = self._least_w = self._most_w = np.zeros(0)
        self._uses: dict[str, Use] = {}
        #: Nodes that have gone and are no longer kept one by one.
        self.earlier = Use()

    def add(
        self,
        length_s: float,
        names: Sequence[str],
        watts: Sequence[float] | NDArray[np.float64],
        measured: bool,
    ) -> None:
        """Nodes of these names drew so many watts each for so long; whether all of it was measured."""
        if names != self._names:
            self._flush()
            self._names = names
            self._least_w, self._most_w = np.full(len(names), np.inf), np.zeros(len(names))
        now_w = np.asarray(watts)
        self._j = self._j + now_w * length_s if self._s else now_w * length_s
        np.minimum(self._least_w, now_w, out=self._least_w)
        np.maximum(self._most_w, now_w, out=self._most_w)
        self._s += length_s
        self._measured = self._measured and measured

    def uses(self) -> Mapping[str, Use]:
        """By node."""
        self._flush()
        return self._uses

    def _flush(self) -> None:
        if not self._s:
            return
        columns = self._j.tolist(), self._least_w.tolist(), self._most_w.tolist()
        for name, energy_j, least_w, most_w in zip(self._names, *columns, strict=True):
            use = Use(energy_j, self._s, least_w, most_w, self._measured)
            self._uses.setdefault(name, Use()).merge(use)
        if len(self._uses) > NODES_KEPT:
            now = set(self._names)
            gone = [name for name in self._uses if name not in now]
            for name in gone[: len(self._uses) - NODES_KEPT]:
                self.earlier.merge(self._uses.pop(name))
        self._names, self._s, self._measured = (), 0.0, True


@dataclass(slots=True)
class Uses:
    """All that was drawn; the total is added up apart from its parts."""

    total: Use = field(default_factory=Use)
    #: Nodes that no job holds: those on which plain work executes, and the others.
    plain: Use = field(default_factory=Use)
    idle: Use = field(default_factory=Use)
    jobs: dict[str, Use] = field(default_factory=dict)
    #: Jobs that are no longer kept one by one.
    earlier: Use = field(default_factory=Use)
    #: The same total by what nodes did, and by node.
    states: dict[NodeState, Use] = field(default_factory=dict)
    nodes: NodeUses = field(default_factory=NodeUses)
    #: Nodes that have no name, for they are not there.
    absent: Use = field(default_factory=Use)

    def add(
        self,
        length_s: float,
        total_w: float,
        jobs_w: Mapping[str, float],
        plain_w: float,
        idle_w: float,
        measured: bool,
        measured_jobs: Collection[str] = (),
        states_w: Mapping[NodeState, float] = MappingProxyType({}),
        nodes: Sequence[str] = (),
        nodes_w: Sequence[float] | NDArray[np.float64] = (),
        absent_w: float = 0.0,
    ) -> None:
        """So much was drawn for so long.

        Parameters
        ----------
        measured
            Whether all of it was measured.
        measured_jobs
            Jobs of which it was in any case.
        states_w
            What nodes in each state drew together.
        nodes, nodes_w
            Names of the nodes, and what each of them drew.
        absent_w
            What nodes drew that are not there.
        """
        for state, watts in states_w.items():
            use = self.states.get(state)
            if use is None:
                use = self.states[state] = Use()
            use.add(watts, length_s, measured)
        self.nodes.add(length_s, nodes, nodes_w, measured)
        if absent_w or self.absent.known_s:
            self.absent.add(absent_w, length_s, measured)
        self.total.add(total_w, length_s, measured)
        self.plain.add(plain_w, length_s, measured)
        self.idle.add(idle_w, length_s, measured)
        for id, watts in jobs_w.items():
            # in the order in which they drew last: the first have ended long ago
            job = self.jobs[id] = self.jobs.pop(id) if id in self.jobs else Use()
            job.add(watts, length_s, measured or id in measured_jobs)
        while len(self.jobs) > JOBS_KEPT:
            self.earlier.merge(self.jobs.pop(next(iter(self.jobs))))


def bill(
    uses: Uses, price: float | None = None, carbon: float | None = None, by_node: bool = True
) -> dict[str, Any]:
    """The bill of a run, as plain data.

    Parameters
    ----------
    price
        Money per MWh; None: what it costs is not known.
    carbon
        Grams of CO2 per kWh, likewise.
    by_node
        Whether there is a row of each node.

    Returns
    -------
    dict
        ``total``, ``idle``, ``plain``, ``earlier_jobs``, by id ``jobs``, by name ``nodes``,
        ``earlier_nodes``, ``absent_nodes`` (that are off or start) and by what nodes did ``states``
        (`NODE_STATES`, those that were seen): each with ``energy_j``, ``energy_kwh``, ``known_s``,
        ``least_w``, ``mean_w``, ``most_w``, ``energy_delay_js`` (energy times the time in which it was
        drawn), ``cost``, ``carbon_g`` and ``label`` (measured, modelled, or unavailable: then all the rest is
        None).
        Jobs, idle and plain together are the total, and so are all states, and all nodes with
        ``earlier_nodes`` and ``absent_nodes``.
    """

    def row(use: Use) -> dict[str, Any]:
        if not use.known_s:
            return dict.fromkeys(_FIELDS) | {"label": "unavailable"}
        kwh = use.energy_j / J_PER_KWH
        return {
            "energy_j": use.energy_j,
            "energy_kwh": kwh,
            "known_s": use.known_s,
            "least_w": use.least_w,
            "mean_w": use.energy_j / use.known_s,
            "most_w": use.most_w,
            "energy_delay_js": use.energy_j * use.known_s,
            "cost": None if price is None else kwh / 1000 * price,
            "carbon_g": None if carbon is None else kwh * carbon,
            "label": "measured" if use.measured else "modelled",
        }

    nodes = uses.nodes.uses()  # which also says who is no longer kept
    return {
        "total": row(uses.total),
        "idle": row(uses.idle),
        "plain": row(uses.plain),
        "earlier_jobs": row(uses.earlier),
        "earlier_nodes": row(uses.nodes.earlier),
        "absent_nodes": row(uses.absent),
        "jobs": {id: row(use) for id, use in uses.jobs.items()},
        "states": {state: row(uses.states[state]) for state in NODE_STATES if state in uses.states},
        "nodes": {name: row(use) for name, use in nodes.items()} if by_node else {},
    }


_FIELDS = (
    "energy_j", "energy_kwh", "known_s", "least_w", "mean_w", "most_w", "energy_delay_js", "cost", "carbon_g",
)  # fmt: skip
