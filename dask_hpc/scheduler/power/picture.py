"""The section ``power`` of a picture, without the plan: bounds, the draw, and what is expected of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dask_hpc.scheduler.power.account import Account
from dask_hpc.scheduler.power.request import Wanted
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.load_curve import LoadCurve
from dask_hpc_policies.power.question import drawn_w
from dask_hpc_policies.power.view import Mode, PowerView

if TYPE_CHECKING:
    from dask_hpc.config import Settings
    from dask_hpc.scheduler.tables.nodes import Away


def power_of(
    view: ClusterSnapshot,
    asked: Wanted,
    mode: Mode,
    account: Account,
    curve: LoadCurve | None,
    beside_w: float,
    free_nodes: int,
    away: Away,
    settings: Settings,
) -> PowerView:
    """The section of `view`.

    Parameters
    ----------
    curve
        Of a node; None: what nodes draw by their jobs is not known.
    beside_w
        What is drawn beside the nodes of jobs, and beyond the idle watts of those that are free.
    free_nodes
        Nodes that no job holds; of them those that the picture does not show as idle are kept for others.
    away, settings
        Nodes that are off or start; and what is said of such ones, which levers may be pulled, how far ahead
        it goes.
    """
    step, last, boot_w = asked.bounds.at(view.now_s), account.last, settings.power_model_boot_w
    idle_w = base_w = 0.0
    if curve is not None:
        idle_w = curve.idle_w
        base_w = float(round(beside_w + (free_nodes - view.idle_nodes) * idle_w))
    # made at every pass: to copy one costs as much as to make one
    power = PowerView(
        mode=mode,
        lower_w=None if step is None else step[1],
        upper_w=None if step is None else step[2],
        announced=asked.bounds.announced(view.now_s),
        draw_w=account.draw_w,
        label="unavailable" if last is None else last.label,
        levers=settings.power_levers,
        horizon_s=settings.power_forecast_horizon_s,
        idle_w=idle_w,
        busy_w=0.0 if curve is None else curve.busy_w,
        base_w=base_w,
        off_w=settings.power_model_powered_off_w or 0.0,
        boot_w=boot_w or 0.0,
        boot_nodes=0 if boot_w is None else away.starting,
        max_off_nodes=away.spare,
    )
    if curve is None:
        return power
    low_w, high_w = drawn_w(view, power)
    return replace(power, min_w=low_w, max_w=high_w)


def widened(power: PowerView, forecast_w: tuple[float, float] | None) -> PowerView:
    """`power` with the forecast; what is expected reaches as far as it, and as what jobs say of themselves.

    A forecast of what jobs have drawn so far does not know what they may draw. Over a policy that is only
    held to the corridor it counts against steps alone (`combine.corridor`).
    """
    if forecast_w is None or power.min_w is None or power.max_w is None:
        return power
    if power.mode == "enforce":
        return replace(power, forecast_w=forecast_w)
    least_w, most_w = min(power.min_w, forecast_w[0]), max(power.max_w, forecast_w[1])
    return replace(power, forecast_w=forecast_w, min_w=least_w, max_w=most_w)
