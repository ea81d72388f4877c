"""On how many nodes a program that can be resized is to run."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from placements import any_application

from dask_hpc_policies.placement.application import MODES, nodes_for
from dask_hpc_policies.placement.size import best_size
from dask_hpc_policies.placement.times import least_staging, load_of, phases_of
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


def test_the_fewest_staging_nodes_are_those_of_trying_each() -> None:
    chance, found = random.Random(3), Counter[bool]()
    while len(found) < 2 or min(found.values()) < 40:
        application = any_application(chance)
        platform = application.platform
        nodes, helpers = chance.randint(1, platform.nodes), chance.randint(0, platform.cores - 1)
        load = load_of(application, [chance.random() < 0.4 for _ in application.analyses])
        most, mode = platform.nodes - nodes, chance.choice(MODES)
        if not load.in_transit or not most or load.in_situ and not helpers:
            continue
        steps_s = {
            n: phases_of(application, load, nodes, helpers, mode, n).step_s(mode) for n in range(1, most + 1)
        }
        room = platform.staging_memory_bytes
        needed = 1 if room is None else nodes_for(load.in_transit_bytes, room)
        as_short = [n for n, step_s in steps_s.items() if step_s <= steps_s[most] * (1 + 1e-9)]
        # what does not fit has all of them
        enough = next((n for n in as_short if n >= needed), most)
        assert least_staging(application, load, nodes, helpers, mode) == enough, application
        found[enough < most] += 1
