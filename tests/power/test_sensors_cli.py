"""``dask hpc power sensors``: what a machine draws, on trees that stand for it; and the doctor's row."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import dask.config
import pytest
from command_line import refused, run
from sensor_trees import RANGE_UJ, Powercap, counting, cray, device

from dask_hpc.doctor.machine import check_sensors
from dask_hpc.worker.power.figures import Figure, Gauge
from dask_hpc.worker.power.look import Observed, _disagreeing
from dask_hpc.worker.power.rapl import Rapl


def sensors(*arguments: str | Path) -> dict[str, Any]:
    result = run("power", "sensors", "--json", *map(str, arguments))
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("zones", "watts", "expected_w"),
    [
        pytest.param({"0": ("package-0", RANGE_UJ - 10_000_000)}, {"0": 80.0}, 80.0, id="wrap"),
        pytest.param(
            {"0": ("package-0", 1), "0:0": ("dram", 2), "1": ("psys", 5)},
            {"0": 60.0, "0:0": 10.0, "1": 110.0}, 110.0, id="psys",
        ),
        pytest.param(
            {"0": ("package-0-die-0", 9_000), "1": ("package-0-die-1", 9_000)},
            {"0": 68.0, "1": 68.0}, 68.0, id="mirrored",
        ),
    ],
)  # fmt: skip
def test_trees_of_the_kernel_within_3_percent(
    tmp_path: Path, zones: dict[str, tuple[str, int]], watts: dict[str, float], expected_w: float
) -> None:
    tree = Powercap(tmp_path)
    for id, (name, energy_uj) in zones.items():
        tree.zone(f"intel-rapl:{id}", name, energy_uj)
    with counting(tree, {f"intel-rapl:{id}": power for id, power in watts.items()}):
        found = sensors("--root", tmp_path, "--seconds", "1.5")
    assert (found["label"], found["source"]) == ("measured", "rapl")
    assert found["watts"] == pytest.approx(expected_w, rel=0.03)
    (row,) = [row for row in found["sources"] if row["source"] == "rapl"]
    assert row["watts"] == found["watts"]


def test_one_that_is_unplugged_meanwhile_costs_a_moment(tmp_path: Path) -> None:
    tree = Powercap(tmp_path)
    for package in (0, 1):
        tree.zone(f"intel-rapl:{package}", f"package-{package}", 5_000_000 * (package + 1))
    watched = Observed(Rapl(tmp_path))
    gone = threading.Event()
    with counting(tree, {"intel-rapl:0": 80.0}):
        for _ in range(20):
            watched.read()
            gone.wait(0.05)
            if not gone.is_set() and _ == 9:
                shutil.rmtree(tree.folder / "intel-rapl:1")
        found = watched.figure()
    assert found.label == "measured"
    assert found.watts == pytest.approx(80.0, rel=0.03)
    assert "came, went or was reset" in found.reason
    shutil.rmtree(tree.folder / "intel-rapl:0")
    watched.read()
    assert watched.figure().watts is None


def test_a_cray_comes_first_then_processors_then_the_board(tmp_path: Path) -> None:
    device(tmp_path, 0, "power_meter", power1_average="213000000")
    found = sensors("--root", tmp_path, "--seconds", "0.05")
    assert (found["watts"], found["source"], found["label"]) == (213.0, "hwmon", "measured")
    cray(tmp_path, power="250 W 5000000 us")
    assert sensors("--root", tmp_path, "--seconds", "0.05")["source"] == "cray"


def test_sources_that_cannot_both_be_right_are_named(tmp_path: Path) -> None:
    device(tmp_path, 0, "power_meter", power1_average="100000000")
    cray(tmp_path, power="250 W 5000000 us")
    found = sensors("--root", tmp_path, "--seconds", "0.05")
    assert found["reason"] == "sources disagree: cray 250 W, hwmon 100 W" or (
        found["reason"] == "sources disagree: hwmon 100 W, cray 250 W"
    )
    assert check_sensors(tmp_path, 0.05).verdict == "warn"


@pytest.mark.parametrize(
    ("watts", "whole", "said"),
    [
        ({"rapl": 100.0, "nvml": 250.0, "hwmon": 400.0}, False, ""),
        ({"rapl": 100.0, "nvml": 350.0, "hwmon": 340.0}, False, "rapl 100 W, nvml 350 W, hwmon 340 W"),
        # a platform's counter has the accelerators in it
        ({"rapl": 400.0, "nvml": 250.0, "hwmon": 420.0}, True, ""),
        ({"rapl": 400.0, "nvml": 250.0, "hwmon": 600.0}, True, "rapl 400 W, nvml 250 W, hwmon 600 W"),
        ({"rapl": 100.0, "nvml": 250.0}, False, ""),
        ({"cray": 400.0, "hwmon": 470.0}, False, ""),
        ({"cray": 400.0, "replay": 100.0}, False, ""),
    ],
)
def test_parts_and_wholes_are_held_against_each_other(
    watts: dict[str, float], whole: bool, said: str
) -> None:
    found = [Figure("measured", name, each) for name, each in watts.items()]
    found += [Figure("unavailable", "slurm"), Figure("modelled", "model", 5.0)]
    figure = _disagreeing(found[0], found, whole=whole)
    assert figure.reason == (f"sources disagree: {said}" if said else "")


def test_nothing_is_never_zero(tmp_path: Path) -> None:
    found = sensors("--root", tmp_path, "--seconds", "0.05")
    assert (found["watts"], found["label"]) == (None, "unavailable")
    assert all(name in found["reason"] for name in ("cray: ", "rapl: ", "hwmon: ", "model: "))
    assert "hpc.power.model.idle" in found["remedy"]
    for row in found["sources"]:
        assert row["watts"] is None
        assert row["label"] == "unavailable"
        assert row["reason"]
    text = run("power", "sensors", "--root", str(tmp_path), "--seconds", "0.05").output
    assert "unknown" in text
    assert "0.0" not in text.split("LABEL")[1]
    with dask.config.set({"hpc.power.model.idle": 40, "hpc.power.model.busy": 90}):
        modelled = sensors("--root", tmp_path, "--seconds", "0.05")
        row = check_sensors(tmp_path, 0.05)
    assert (modelled["label"], modelled["source"]) == ("modelled", "model")
    assert 40 <= modelled["watts"] <= 90
    assert (row.verdict, "nothing measures it" in row.text) == ("warn", True)


def test_what_may_not_be_read_is_a_warning_of_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = check_sensors(tmp_path, 0.05)
    assert (row.verdict, "not measured here" in row.text, bool(row.remedy)) == ("warn", True, True)
    Powercap(tmp_path).zone("intel-rapl:0", "package-0")
    real = os.open

    def opened(path: Any, *more: Any, **others: Any) -> int:
        if str(path).endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *more, **others)

    monkeypatch.setattr(os, "open", opened)
    row = check_sensors(tmp_path, 0.05)
    assert row.verdict == "warn"
    assert "rapl: the energy counters of the processors cannot be read: permission denied" in row.text
    assert "ask the administrator for read access" in row.remedy
    assert "ask the administrator" in sensors("--root", tmp_path, "--seconds", "0.05")["remedy"]


def test_the_doctor_says_by_what_it_is_measured_and_warns_of_a_source_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "watts.csv"
    path.write_text("t_s,watts\n0,120\n")
    with dask.config.set({"hpc.power.source": "command", "hpc.power.command": ["echo", "220 W"]}):
        row = check_sensors(seconds=0.05)
    assert (row.verdict, row.text) == ("ok", "220 W, measured by command")
    with dask.config.set({"hpc.power.source": "command", "hpc.power.command": ["false"]}):
        row = check_sensors(seconds=0.05)
    assert (row.verdict, "false failed with exit code 1" in row.text) == ("warn", True)
    with dask.config.set({"hpc.power.source": "replay", "hpc.power.file": str(path)}):
        row = check_sensors(seconds=0.05)
    assert (row.verdict, "of a file, not of this machine" in row.text) == ("warn", True)


class Odd:
    """Says what no host draws, or fails in a way of its own."""

    name, label = "odd", "measured"

    def __init__(self, watts: float | None) -> None:
        self._watts = watts

    def read(self) -> dict[str, Gauge]:
        if self._watts is None:
            raise TypeError("a bug of a sensor")
        return {"odd": Gauge(self._watts)}

    def total(self, spent_j: Any, before: Any, now: Any) -> float:
        return sum(spent_j.values())


@pytest.mark.parametrize(
    ("watts", "reason"),
    [
        (1e300, "odd says 1e+300 W: that is not measured"),
        (-5.0, "odd says -5 W: that is not measured"),
        (float("nan"), "odd says nan W: that is not measured"),
        (None, "TypeError: a bug of a sensor"),
    ],
)
def test_what_no_host_draws_and_a_sensor_that_fails_are_told_as_not_measured(
    watts: float | None, reason: str
) -> None:
    watched = Observed(Odd(watts))
    watched.read()
    figure = watched.figure()
    assert (figure.watts, figure.label, figure.reason) == (None, "unavailable", reason)


def test_a_folder_that_is_not_there_and_a_time_that_cannot_be_are_refused(tmp_path: Path) -> None:
    refused(run("power", "sensors", "--root", str(tmp_path / "absent")), 2, "--root", "does not exist")
    refused(run("power", "sensors", "--seconds", "0"), 2, "--seconds")
