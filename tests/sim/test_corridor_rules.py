"""A power corridor in the simulator: what is counted, without a run."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from dask_hpc.sim import Options
from dask_hpc.sim.engine.corridor import CorridorTwin
from dask_hpc.sim.engine.outside import Outside
from dask_hpc.sim.model.corridor import DEPARTURE_S, corridor
from dask_hpc.sim.model.power import NodePower
from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView


def test_time_outside_without_a_break_is_one_departure_and_a_short_one_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world: Any = SimpleNamespace(now_s=0.0)
    meter: Any = SimpleNamespace(power_w=0.0)
    found = Outside(corridor(((0.0, 0.0, 450.0),)), NodePower(), world, None, meter)  # type: ignore[arg-type]
    monkeypatch.setattr(found, "_avoidable", lambda *_: False)
    for to, meter.power_w in ((2, 900.0), (4, 800.0), (5, 400.0), (5.5, 900.0), (6, 400.0), (8, 900.0)):
        found.advance(to * DEPARTURE_S)
        world.now_s = to * DEPARTURE_S
    assert found.close().departures == 2


def test_a_node_that_no_job_has_draws_what_is_drawn_in_its_state() -> None:
    power = NodePower(off_w=1.0, booting_w=10.0, idle_w=100.0, busy_w=9.0, down_w=1000.0)
    world: Any = SimpleNamespace(options=Options(), absent=Counter(off=2, booting=3, waiting=4))
    # two are lost, one idle, one a job's; the other three have another role
    nodes = tuple(NodeView(id=f"n{i}", state="lost" if i < 2 else "up") for i in range(7))
    jobs = (JobView(id="a", name="a", state="running", nodes=1),)
    view = ClusterSnapshot(now_s=0.0, nodes=nodes, jobs=jobs, idle_nodes=1)
    found = CorridorTwin(world, corridor(((0.0, 0.0, 900.0),)), power)._beside_w(view)
    assert found == 2 * 1 + 3 * 10 + 3 * 100 + 2 * 1000
