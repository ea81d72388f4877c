"""The forecast over any policy: steps that it says lead outside are cut or refused; nothing moves for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.corridor import amended, guards
from dask_hpc_policies.decision import Decision, Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.program import solve
from dask_hpc_policies.power.question import Terms, drawn_w, planned
from dask_hpc_policies.power.view import PowerView

WHY = Reason(ReasonCode.IDLE_NODES, "a test")


def picture(forecast_w: tuple[float, float] | None) -> ClusterSnapshot:
    """Four of eight nodes are a job's: 600 W by what is known, 500 to 900 W are allowed."""
    one = JobView(id="a", name="a", kind="malleable", state="running", nodes=4, min_nodes=1, max_nodes=8,
                  min_power_w=100.0, max_power_w=100.0)  # fmt: skip
    view = ClusterSnapshot(
        now_s=0.0, nodes=tuple(NodeView(id=f"n{i}") for i in range(8)), jobs=(one,), idle_nodes=4
    )
    power = PowerView(mode="enforce", lower_w=500.0, upper_w=900.0, idle_w=50.0, forecast_w=forecast_w)
    low_w, high_w = drawn_w(view, power)
    return planned(view, replace(power, draw_w=low_w, min_w=low_w, max_w=high_w), Terms(), solve)


def size(view: ClusterSnapshot, action: Any) -> tuple[int, str]:
    """The job's size after a decision, and why it is not what was asked."""
    found = amended(view, arbitrate(view, Decision(actions=(action,)), guards(view)))
    sizes = [one.nodes for one in found.actions if isinstance(one, (Expand, Shrink))]
    return (sizes or [4])[0], " ".join(one.reason.text for one in found.suppressed)


@pytest.mark.parametrize(
    ("forecast_w", "grown", "shrunk"),
    [
        (None, 8, 2),
        # 150 W are drawn beyond what is known, or not
        ((580.0, 750.0), 7, 3),
        # it is outside by itself, and holds what there is
        ((450.0, 790.0), 6, 4),
        ((700.0, 950.0), 4, 2),
        # wider than the corridor: its middle counts, 800 W
        ((300.0, 1300.0), 6, 2),
    ],
)
def test_steps_are_held_to_the_forecast_and_nothing_is_moved_for_it(forecast_w, grown, shrunk) -> None:
    view = picture(forecast_w)
    found, why = size(view, Expand(job="a", nodes=8, reason=WHY))
    assert found == grown
    assert ("with what is forecast" in why) is (grown < 8)
    assert size(view, Shrink(job="a", nodes=2, reason=WHY))[0] == shrunk
    assert not [one for one in amended(view, Decision()).actions if isinstance(one, (Expand, Shrink))]
