"""`dask hpc place`: a JSON line or a row for each application; wrong input is one line and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run

from dask_hpc_policies.placement.plan import METHODS

#: Two applications: everything bound, as in the published formulas; nothing bound.
TEXT = """
platform: {nodes: 50, cores: 8, memory_bytes: 1, bandwidth_bytes_s: 0.00266}
simulation: {one_core_s: 400, memory_bytes: 1, serial_fraction: 0.01}
analyses:
  - {name: near, one_core_s: 1 min, memory_bytes: 0.1, where: in-situ}
  - {name: far, one_core_s: 90, memory_bytes: 3e-1, where: in-transit}
---
platform: {nodes: 50, cores: 8, memory_bytes: 0.0266, bandwidth_bytes_s: 0.00266}
simulation: {one_core_s: 4000, memory_bytes: 1}
analyses:
  - {name: a, one_core_s: 300, memory_bytes: 0.05}
  - {name: b, one_core_s: 200, memory_bytes: 0.15}
  - {name: c, one_core_s: 100, memory_bytes: 0.02}
---
"""
FIELDS = [
    "in_situ", "in_transit", "nodes", "helper_cores", "step_s", "simulation_s", "in_situ_s", "in_transit_s",
    "bound_s", "solve_s", "run_s", "exact_nodes", "exact_cores", "exact_step_s",
]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "applications.yaml"
    path.write_text(TEXT)
    return path


def placed(file: Path, *options: str) -> list[dict[str, Any]]:
    result = run("place", str(file), *options, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_json_line_for_each_application(file: Path) -> None:
    bound, free = placed(file, "--steps", "11")
    assert list(bound) == list(free) == FIELDS
    assert (bound["in_situ"], bound["in_transit"]) == (["near"], ["far"])
    # the closed form, before whole numbers
    assert bound["exact_nodes"] == pytest.approx(28.6495, rel=1e-5)
    assert bound["exact_cores"] == pytest.approx(0.360504, rel=1e-5)
    assert bound["exact_step_s"] == pytest.approx(5.80931, rel=1e-5)
    assert (bound["nodes"], bound["helper_cores"]) == (29, 1)
    for one in (bound, free):
        assert one["step_s"] == max(one["simulation_s"], one["in_situ_s"], one["in_transit_s"])
        assert one["bound_s"] == one["step_s"] > one["exact_step_s"]
        tail_s = max(one["in_situ_s"], one["in_transit_s"])
        assert one["run_s"] == pytest.approx(one["simulation_s"] + 10 * one["step_s"] + tail_s)
        assert 0 < one["solve_s"] < 60
    assert sorted(free["in_situ"] + free["in_transit"]) == ["a", "b", "c"]


def test_a_closed_form_that_leaves_one_side_no_node_has_no_step(file: Path) -> None:
    # the simulation has all of the work but 8e-11 s
    file.write_text(
        """
platform: {nodes: 50, cores: 8, memory_bytes: 64e9, bandwidth_bytes_s: 12.5e9}
simulation: {one_core_s: 4e8, memory_bytes: 2.4e12}
analyses: [{name: flag, one_core_s: 0, memory_bytes: 1, where: in-transit}]
"""
    )
    for options in ((), ("--method", "packs"), ("--mode", "synchronous")):
        (found,) = placed(file, *options)
        assert (found["nodes"], found["exact_nodes"], found["exact_step_s"]) == (49, 50, None)


def test_every_method_mode_and_rounding(file: Path) -> None:
    least_s = {mode: placed(file, "--mode", mode)[1]["step_s"] for mode in ("asynchronous", "synchronous")}
    assert least_s["synchronous"] < least_s["asynchronous"]
    for method in METHODS:
        for mode, step_s in least_s.items():
            found = placed(file, "--method", method, "--mode", mode, "--rounding", "up", "--seed", "3")[1]
            assert found["step_s"] >= step_s
            assert found["bound_s"] <= step_s
            assert (found["helper_cores"] == 0) == (mode == "synchronous" or not found["in_situ"])


def test_a_table_for_people(file: Path) -> None:
    result = run("place", str(file))
    assert result.exit_code == 0, result.output
    heading, first, second = result.stdout.splitlines()
    assert heading.startswith("IN SITU")
    assert first.split()[:5] == ["near", "far", "29", "21", "1"]
    assert second.count(",") == 1


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("memory_bytes: 1, serial", "memory_bytes: 51, serial",
         ("line 3", "simulation.memory_bytes", "51 bytes do not fit", "the platform has 50 (50 x 1)")),
        ("serial_fraction: 0.01", "serial_fraction: 1.5", ("line 3", "serial_fraction", "1.5", "0 to 1")),
        ("name: far, one", "name: far, won: 1, one", ("line 6", "analyses[1].won", "unknown key", "where")),
        # what a live cluster alone measures or says
        ("name: far, one", "name: far, input_bytes: 1, one", ("analyses[1].input_bytes", "unknown")),
        ("nodes: 50, cores: 8, memory_bytes: 1", "nodes: 50, helper_cores: 3, cores: 8, memory_bytes: 1",
         ("line 2", "platform.helper_cores", "unknown key")),
        ("one_core_s: 90", "one_core_s: -90", ("line 6", "analyses[1].one_core_s", "-90", "at least 0")),
        ("nodes: 50, cores: 8, memory_bytes: 0", "nodes: 5.5, cores: 8, memory_bytes: 0",
         ("line 8", "platform.nodes", "5.5", "a whole number from 1")),
        ("cores: 8, memory_bytes: 1", "cores: many, memory_bytes: 1",
         ("line 2", "platform.cores", "'many'", "a whole number")),
        ("where: in-situ", "where: insitu",
         ("line 5", "analyses[0].where", "'insitu'", "auto, in-situ, in-transit", "did you mean 'in-situ'")),
        ("name: b", "name: a", ("line 12", "analyses[1].name", "'a' is the name of another")),
        ("bandwidth_bytes_s: 0.00266}\nsimulation: {one_core_s: 400,", "}\nsimulation: {one_core_s: 400,",
         ("line 2", "platform", "'bandwidth_bytes_s' is missing")),
        ("nodes: 50, cores: 8, memory_bytes: 1", "nodes: 1, cores: 8, memory_bytes: 9",
         ("platform.nodes", "1 is not enough", "'far' must run in transit")),
        ("cores: 8, memory_bytes: 1", "cores: 1, memory_bytes: 1",
         ("platform.cores", "1 is not enough", "'near' must run in situ", "at least 2")),
        ("memory_bytes: 0.1, where", "memory_bytes: 49, where",
         ("analyses", "take 49 bytes beside the simulation's 1; allowed: 49 on 49 nodes")),
        ("name: c", "name: !!python/name:os.system c", ("line 13", "analyses[2].name", "which is not read")),
        (TEXT, "---\n---\n", ("there is no application",)),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(file: Path, old: str, new: str, parts: tuple[str, ...]) -> None:
    assert TEXT.count(old) == 1
    file.write_text(TEXT.replace(old, new))
    # nothing is printed of the applications that are right
    refused(run("place", str(file), "--json"), 1, str(file), *parts)


def test_a_method_that_finds_nothing_says_what_might(file: Path) -> None:
    # one order tries every analysis in situ, and memory for staging allows none of its plans
    file.write_text(
        """
platform: {nodes: 2, cores: 2, memory_bytes: 1, bandwidth_bytes_s: 1, staging_memory_bytes: 0.1}
simulation: {one_core_s: 1, memory_bytes: 1}
analyses: [{name: a, one_core_s: 1, memory_bytes: 1.5}]
"""
    )
    refused(run("place", str(file)), 1, "document 1", "exact found no split of the 1 that fits")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--method", "best"), "'best' is not one of 'exact'"),
        (("--rounding", "five"), "'five' is not one of 'up'"),
        (("--steps", "0"), "0 is not in the range x>=1"),
        (("--time-limit", "0 s"), "too short"),
    ],
)
def test_wrong_options(file: Path, options: tuple[str, ...], part: str) -> None:
    refused(run("place", str(file), *options), 2, part)
