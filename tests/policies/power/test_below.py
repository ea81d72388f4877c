"""Below the lower bound, over any policy: nodes of a job that does nothing go to one that starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_hpc_policies.combine.arbitrate import arbitrate
from dask_hpc_policies.combine.corridor import amended, guards
from dask_hpc_policies.decision import Expand, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.program import solve
from dask_hpc_policies.power.question import Terms, drawn_w, planned
from dask_hpc_policies.power.view import PowerView
from dask_hpc_policies.registry import create


def sizes(draw_w: float, watts: float, lower_w: float = 700.0) -> dict[str, int]:
    """What `fair` may give a job of so many watts a node, beside one that has all nodes, of 100 W each."""
    given = {"kind": "malleable", "min_nodes": 1, "max_nodes": 8}
    old = JobView(id="a", name="a", state="running", nodes=8, start_s=0.0, attained_node_s=4e3,
                  min_power_w=100.0, max_power_w=100.0, **given)  # type: ignore[arg-type]  # fmt: skip
    new = JobView(id="b", name="b", min_power_w=watts, max_power_w=watts, **given)  # type: ignore[arg-type]
    view = ClusterSnapshot(now_s=500.0, nodes=tuple(NodeView(id=f"n{i}") for i in range(8)), jobs=(old, new))
    power = PowerView(mode="enforce", lower_w=lower_w, upper_w=900.0, idle_w=50.0)
    low_w, high_w = drawn_w(view, power)
    view = planned(view, replace(power, draw_w=draw_w, min_w=low_w, max_w=high_w), Terms(), solve)
    policy = create("fair")
    decision, _ = policy.decide(view, policy.initial_state())
    assert any(isinstance(one, Start) for one in decision.actions), "the policy would start it"
    found = amended(view, arbitrate(view, decision, guards(view)))
    return {one.job: one.nodes for one in found.actions if isinstance(one, (Start, Expand, Shrink))}


@pytest.mark.parametrize(
    ("draw_w", "watts", "starts"),
    [
        # 800 W are said of what runs and 400 W are drawn: it does nothing
        (400.0, 100.0, True),
        # who draws less than what runs is said to leads further down in the end
        (400.0, 60.0, False),
        # inside it would be outside on the way, while both drain and start
        (800.0, 100.0, False),
    ],
)
def test_a_shrink_and_the_start_that_it_is_for_are_judged_together(draw_w, watts, starts) -> None:
    found = sizes(draw_w, watts)
    assert ("b" in found) is starts
    assert ("a" in found) is starts
    # and where the way there is inside nobody minds
    assert "b" in sizes(800.0, watts, lower_w=100.0)
