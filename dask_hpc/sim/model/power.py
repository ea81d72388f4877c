"""What nodes draw, and what a run used of it.

Rules of the file: frozen dataclasses; watts and joules. A node draws the power of the state that it is in,
whatever runs on it; one that is waited for belongs to others and draws nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from dask_hpc.errors import WorkloadError
from dask_hpc_policies.power.states import NodeState

#: What a node may be doing. ``off``: it is not there. ``waiting``: it was asked for. ``booting``: it starts.
#: ``idle``: no job holds it. ``busy``: a job does. ``down``: it has failed and will be back.
State = Literal["off", "waiting", "booting", "idle", "busy", "down"]
STATES: tuple[State, ...] = ("off", "waiting", "booting", "idle", "busy", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePower:
    """Watts that one node draws, by its state.

    Parameters
    ----------
    nic_w
        Of its network card, beyond these while a job resizes, transfers, saves or reads back on it.
    switch_w
        Of a switch over the nodes that it serves: beyond these in every state in which the node is there.

    Raises
    ------
    WorkloadError
        When one of them is not at least 0 W, or has no end.
    """

    off_w: float = 0.0
    booting_w: float = 0.0
    idle_w: float = 0.0
    busy_w: float = 0.0
    down_w: float = 0.0
    nic_w: float = 0.0
    switch_w: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            watts = getattr(self, field.name)
            if not 0 <= watts < float("inf"):
                raise WorkloadError(f"power: {field.name} is {watts!r}; expected at least 0 W")

    def watts(self, state: State) -> float:
        """Power of a node in `state`."""
        if state == "waiting":
            return 0.0
        return float(getattr(self, f"{state}_w")) + (0.0 if state == "off" else self.switch_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What a run used, from its first moment to the end of its last job."""

    energy_j: float
    #: Of which in each state, and the time of all nodes in it.
    by_state_j: Mapping[State, float]
    by_state_node_s: Mapping[State, float]
    #: Energy of busy nodes by what jobs did with it: compute, communicate (resizes, transfers), checkpoint,
    #: restart (read what they begin again from), recovery (work that a failure took is made again).
    of_busy_j: Mapping[NodeState, float]
    #: Of each node.
    by_node_j: tuple[float, ...]
    #: From when to when.
    from_s: float
    to_s: float
