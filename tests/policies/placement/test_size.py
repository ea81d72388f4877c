"""On how many nodes a program that can be resized is to run."""

from __future__ import annotations

import dataclasses

import pytest

from dask_hpc_policies.placement.size import best_size
from dask_hpc_policies.placement.view import AnalysisView, FlowView, PlatformView, SimulationView

#: Two staging nodes, which are the bottleneck in the end.
FLOW = FlowView(
    nodes=4,
    simulation=SimulationView(one_core_s=300.0, memory_bytes=32e9),
    platform=PlatformView(nodes=4 + 2, cores=4, memory_bytes=8e9, bandwidth_bytes_s=1e9, nodes_fixed=True),
    analyses=(
        AnalysisView(
            name="spectrum", declared="in-transit", one_core_s=36.0, memory_bytes=1e9, input_bytes=6e9
        ),
        AnalysisView(name="vortices", one_core_s=30.0, memory_bytes=2e9, input_bytes=6e9),
    ),
)


def test_a_program_is_to_have_the_fewest_nodes_with_which_its_step_is_shortest() -> None:
    alone = {nodes: best_size(FLOW, [nodes]) for nodes in range(1, 31)}
    # the simulation does not fit on fewer
    assert [nodes for nodes, found in alone.items() if found is None] == [1, 2, 3]
    for most in range(4, 31):
        least_s = min(found[1] for found in list(alone.values())[3:most] if found)
        fewest = next(n for n, found in alone.items() if found and found[1] <= least_s * (1 + 1e-9))
        assert best_size(FLOW, range(1, most + 1)) == (fewest, pytest.approx(least_s))
    assert 4 < fewest < 30
    # nothing is known of the simulation, or it keeps its nodes
    assert best_size(dataclasses.replace(FLOW, simulation=SimulationView()), [4, 5]) is None
    assert best_size(FLOW, []) is best_size(FLOW, [1, 2]) is None
