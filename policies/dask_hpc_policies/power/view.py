"""What a policy sees of power: the section ``power`` of the picture, as plain data.

Rules of the file: frozen dataclasses that survive `codec.encode` and `codec.decode`, so that a trace with
them replays without a solver, a sensor or a forecast. Who builds the picture, a scheduler or the simulator,
fills them in; `decide` reads them. Watts are those of all compute nodes together where it
is not said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dask_hpc_policies.codec import decode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.checks import MOST_TOTAL_W
from dask_hpc_policies.ranges import DEFAULT_LEVERS

#: Name of the section.
SECTION = "power"
#: Who keeps the corridor. ``policy``: the policy that decides, which reads the plan. ``enforce``: what the
#: policy decides is held to it (`combine.corridor`). ``monitor``: nobody; the draw is only looked at.
#: ``advise``: nobody either, but what would be done is found out and told.
Mode = Literal["monitor", "advise", "policy", "enforce"]
#: From when on (on the clock of `now_s`), lower and upper bound in watts.
Step = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPlan:
    """What the corridor's program answered, with what it was asked about."""

    #: Sizes of the running jobs, and the bounds, for which it was found.
    found_for: Mapping[str, int] = field(default_factory=dict)
    lower_w: float = 0.0
    upper_w: float = 0.0
    #: Nodes of every running job, and of those that start, in the order in which they start.
    nodes: Mapping[str, int] = field(default_factory=dict)
    start: tuple[str, ...] = ()
    status: Literal["optimal", "infeasible", "time-limit"] = "optimal"
    #: Watts outside the corridor that remain; None: there is no allocation at all.
    violation_w: float | None = None
    #: By how much it is outside, on which side, and what would help; None when it is inside.
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerView:
    """The corridor, the draw, and what is expected of it."""

    mode: Mode = "monitor"
    #: Bounds of the draw now; None: there is no corridor now.
    lower_w: float | None = None
    upper_w: float | None = None
    #: Bounds that are known to come, in order.
    announced: tuple[Step, ...] = ()
    #: So far ahead they count for a job of which nobody knows how long it runs; None: all of them.
    horizon_s: float | None = None
    #: What is drawn now; None: it is not known.
    draw_w: float | None = None
    #: Least and most watts expected over the next interval at the present sizes; None: no forecast.
    min_w: float | None = None
    max_w: float | None = None
    #: What an unused node draws, and one that runs a job which says nothing of its watts.
    idle_w: float = 0.0
    busy_w: float = 0.0
    #: What a node draws that has gone back, or is off.
    off_w: float = 0.0
    #: What one draws that starts, and how many do.
    boot_w: float = 0.0
    boot_nodes: int = 0
    #: What is drawn beside the nodes that jobs may get: other roles, nodes that start, switches.
    base_w: float = 0.0
    #: What is drawn steadily beyond all that is known, at least and at most (`power.unexplained`).
    unexplained_w: tuple[float, float] = (0.0, 0.0)
    #: What the forecast expects at the present sizes; None: there is none.
    forecast_w: tuple[float, float] | None = None
    #: So many of the nodes may be given back (lever ``pool``).
    max_off_nodes: int = 0
    #: So many idle ones the program would rather have off, for what jobs then may have; None: it is being
    #: asked.
    off_nodes: int | None = 0
    #: The last answer of the program; it may be about other sizes (`fits`).
    plan: PowerPlan | None = None
    #: Whether the program fails to answer: no plan is waited for, and what leads no further outside may be.
    unsolved: bool = False
    #: Where `draw_w` comes from: ``measured``, ``modelled`` or ``unavailable``; empty: not said.
    label: str = ""
    #: What may be done (`LEVERS`).
    levers: tuple[str, ...] = DEFAULT_LEVERS

    @property
    def bounded(self) -> bool:
        """Whether there is a corridor now."""
        return self.lower_w is not None and self.upper_w is not None

    @property
    def span(self) -> str:
        """The bounds in words."""
        return between(self.lower_w, self.upper_w)

    def may(self, lever: str) -> bool:
        """Whether a lever may be pulled."""
        return lever in self.levers

    @property
    def acts(self) -> bool:
        """Whether anybody keeps the corridor, if there is one."""
        return self.mode in ("policy", "enforce")


def between(lower_w: float | None, upper_w: float | None) -> str:
    """Two bounds in words; an upper one that no site reaches is none."""
    if upper_w is None or upper_w >= MOST_TOTAL_W:
        return f"{lower_w or 0.0:g} W and more"
    return f"{lower_w or 0.0:g} to {upper_w:g} W"


def seen(view: ClusterSnapshot) -> PowerView | None:
    """What `view` says of power; None when nobody looks at it.

    Raises
    ------
    ValueError
        When the section is not what `PowerView` describes.
    """
    data = view.sections.get(SECTION)
    return None if data is None else decode(PowerView, data)


def fits(view: ClusterSnapshot, power: PowerView) -> bool:
    """Whether the plan is about the present sizes and bounds, and those who are to start still wait."""
    plan = power.plan
    if plan is None or (plan.lower_w, plan.upper_w) != (power.lower_w, power.upper_w):
        return False
    sizes = {job.id: job.nodes for job in view.running}
    waiting = {job.id for job in view.pending}
    return dict(plan.found_for) == sizes and waiting.issuperset(plan.start)
