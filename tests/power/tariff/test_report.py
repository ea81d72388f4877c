"""``dask hpc power report``: energy, time outside and a bill from traces, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run

from dask_hpc.trace.files import write_trace
from dask_hpc.trace.records import Header, Other


def draw(t_s: float, known_s: float, energy_j: float, outside_s: float = 0.0) -> Other:
    data = {"t_s": t_s, "known_s": known_s, "energy_j": energy_j, "outside_s": outside_s}
    return Other(kind="draw", data={**data, "outside_ws": 10 * outside_s})


def corridor(mode: str) -> Other:
    return Other(kind="corridor", data={"t_s": 0.0, "mode": mode})


def trace(folder: Path, *records: Other) -> str:
    path = folder / "t.jsonl"
    write_trace(path, [Header(started="2026-01-31T23:00:00.000+00:00"), *records])
    return str(path)


def report(path: str, *more: str) -> dict[str, Any]:
    result = run("power", "report", path, *more, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_energy_is_weighed_by_the_price_of_its_hour(tmp_path: Path) -> None:
    # 1 kW for two hours, then a second corridor: 2 kW for one hour, of which half was known
    path = trace(
        tmp_path,
        corridor("enforce"),
        draw(0, 0, 0),
        draw(7200, 7200, 7.2e6, 60),
        corridor("none"),
        draw(10_000, 0, 0),
        draw(13_600, 1800, 3.6e6, 30),
    )
    (tmp_path / "s.csv").write_text(
        "time,price,carbon\n2026-02-01T00:00Z,100,500\n2026-02-01T01:00Z,-50,\n2026-02-01T03:00Z,9,0\n"
    )
    found = report(path, "--prices", str(tmp_path / "s.csv"))
    assert (found["accounted_s"], found["energy_j"]) == (9000, 10.8e6)
    assert (found["outside_s"], found["outside_ws"]) == (90, 900)
    assert (found["mean_w"], found["least_w"], found["most_w"]) == (1200, 1000, 2000)
    # the first kWh has no price, the second costs 0.1, the third is paid for
    assert found["bill"] == pytest.approx(0.1 - 0.05)
    assert found["unpriced_j"] == pytest.approx(3.6e6)
    assert found["carbon_g"] == pytest.approx(1000)
    text = run("power", "report", path, "--prices", str(tmp_path / "s.csv")).stdout
    assert "bill       0.05" in text
    assert "outside    1.50 min, 900 W s" in text


def test_a_simulated_run_comes_to_what_the_simulator_says(tmp_path: Path) -> None:
    path = str(tmp_path / "t.jsonl")
    asked = ["simulate", "builtin:corridor", "--policy", "power-aware", "--trace", path, "--json"]
    said = json.loads(run(*asked).stdout)
    found = report(path)
    assert found["energy_j"] == pytest.approx(said["energy_j"])
    assert found["outside_s"] == pytest.approx(said["corridor_outside_s"])
    assert found["outside_ws"] == pytest.approx(said["corridor_violation_ws"])
    (bill,) = found["bills"]
    total, jobs = bill["total"], bill["jobs"].values()
    assert total["energy_j"] == pytest.approx(found["energy_j"])
    assert total["label"] == "modelled"
    parts = bill["idle"]["energy_j"] + bill["plain"]["energy_j"] + sum(use["energy_j"] for use in jobs)
    assert parts == pytest.approx(total["energy_j"], rel=1e-3)
    # by what nodes did, and by node: no job of this run saves, resizes cost nothing
    states = {state: use["energy_j"] for state, use in bill["states"].items()}
    assert states == pytest.approx({"idle": said["energy_idle_j"], "compute": said["energy_busy_j"]})
    nodes = [bill["nodes"][f"n{node}"]["energy_j"] for node in range(said["machine"]["nodes"])]
    assert nodes == pytest.approx(said["energy"]["by_node_j"])
    assert sum(nodes) == pytest.approx(total["energy_j"])
    for use in jobs:
        assert 0 < use["least_w"] < 1.001 * use["mean_w"] < 1.002 * use["most_w"]
    text = run("power", "report", path).stdout
    assert all(heading in text for heading in ("WHO", "STATE", "NODE"))
    (tmp_path / "s.csv").write_text("time,price\n2026-02-01T00:00Z,100\n")
    refused(run("power", "report", path, "--prices", str(tmp_path / "s.csv")), 1, "has no date")
    (tmp_path / "s.csv").write_text("t_s,price\n0,100\n")
    bill = report(path, "--prices", str(tmp_path / "s.csv"))["bill"]
    assert bill == pytest.approx(found["energy_j"] / 3.6e9 * 100)


def test_a_simulated_draw_begins_with_the_first_job(tmp_path: Path) -> None:
    jobs = (
        "jobs: [{name: a, submit: 100, nodes: 2, runtime: 10}, {name: b, submit: 105, nodes: 1, runtime: 5}]"
    )
    (tmp_path / "w.yaml").write_text(f"machine: {{nodes: 3, power: {{idle_w: 10, busy_w: 50}}}}\n{jobs}\n")
    path = str(tmp_path / "t.jsonl")
    said = run("simulate", str(tmp_path / "w.yaml"), "--policy", "fcfs", "--trace", path, "--json")
    found = report(path)
    # no corridor is needed: 110 W for 5 s, 150 W for 5 s
    assert (found["accounted_s"], found["energy_j"], found["outside_s"]) == (10, 1300, 0)
    assert (found["least_w"], found["most_w"]) == (110, 150)
    assert json.loads(said.stdout)["energy_j"] == 1300
    assert found["bills"][0]["nodes"]["n2"]["energy_j"] == 50 + 250


def test_what_says_nothing_of_power_is_refused(tmp_path: Path) -> None:
    refused(run("power", "report", trace(tmp_path)), 1, "says nothing of what was drawn", "monitor")
    path = trace(tmp_path, draw(0, 0, 0), Other(kind="draw", data={"t_s": 1}))
    refused(run("power", "report", path), 1, "lacks numbers")
    refused(run("power", "report", trace(tmp_path, draw(0, 0, 0), draw(1, 1, 10**400))), 1, "lacks numbers")
    path = trace(tmp_path, draw(0, 0, 0), draw(1, 1, 5))
    (tmp_path / "s.csv").write_text("t_s,upper_w\n0,100\n")
    refused(
        run("power", "report", path, "--prices", str(tmp_path / "s.csv")), 1, "no column of price, carbon"
    )
