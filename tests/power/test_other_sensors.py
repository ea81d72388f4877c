"""Boards, Crays, accelerators, Slurm, files and models: each says watts, or why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from sensor_trees import Powercap, cray, device

from dask_hpc.slurm.energy import parse_node_watts, parse_step_joules
from dask_hpc.worker.power import files
from dask_hpc.worker.power.cray import Cray
from dask_hpc.worker.power.figures import Figure, Meter, SensorError, Source
from dask_hpc.worker.power.hwmon import Hwmon
from dask_hpc.worker.power.load import curve
from dask_hpc.worker.power.nvml import Nvml
from dask_hpc.worker.power.recorded import Replay
from dask_hpc.worker.power.sources import Added, Auto, of_the_tree
from dask_hpc_policies.power.fit import fit_curve


def now(source: Source) -> Figure:
    return Meter(source).sample(0.0)


def test_a_board_that_measures_the_host_counts_alone(tmp_path: Path) -> None:
    device(tmp_path, 0, "coretemp", temp1_input="41000")
    device(tmp_path, 1, "amdgpu", power1_average="90000000")
    device(tmp_path, 2, "fam15h_power", power1_input="70000000")
    processor = now(Hwmon(tmp_path))
    assert (processor.label, processor.watts) == ("measured", 70.0)
    device(tmp_path, 3, "power_meter", power1_average="213000000", power1_average_interval="1000")
    assert now(Hwmon(tmp_path)).watts == 213.0
    device(tmp_path, 4, "ibmpowernv", power1_input="400000000", power1_label="System")
    assert now(Hwmon(tmp_path)).watts == 213.0


def test_sockets_that_count_energy_are_added_up_without_their_cores(tmp_path: Path) -> None:
    made = device(
        tmp_path, 0, "amd_energy",
        energy1_input="1000000", energy1_label="Ecore000",
        energy2_input="5000000", energy2_label="Esocket0",
        energy3_input="6000000", energy3_label="Esocket1",
    )  # fmt: skip
    meter = Meter(Hwmon(tmp_path))
    assert meter.sample(0.0).label == "unavailable"
    (made / "energy2_input").write_text("105000000\n")
    (made / "energy3_input").write_text("56000000\n")
    assert meter.sample(1.0).watts == pytest.approx(150.0)


def test_a_meter_that_says_0_measures_nothing(tmp_path: Path) -> None:
    device(tmp_path, 0, "power_meter", power1_average="0")
    found = now(Hwmon(tmp_path))
    assert (found.label, found.watts) == ("unavailable", None)
    assert "not measured" in found.reason


def test_a_cray_tells_by_its_own_clock(tmp_path: Path) -> None:
    cray(tmp_path, energy="1000 J 5000000 us", power="250 W 5000000 us")
    meter = Meter(Cray(tmp_path))
    meter.sample(0.0)
    # it was read a tenth of a second late
    cray(tmp_path, energy="1300 J 6000000 us")
    found = meter.sample(1.1)
    assert found.watts == pytest.approx(300.0)
    assert found.energy_j == pytest.approx(330.0)
    assert "stands still" in meter.sample(2.1).reason
    (tmp_path / "sys/cray/pm_counters/energy").unlink()
    assert now(Cray(tmp_path)).watts == 250.0


class Library:
    """What stands for ``pynvml``: two devices, the second one without a counter."""

    class NVMLError(Exception):
        pass

    energy_mj = 10_000

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if handle:
            raise self.NVMLError("Not Supported")
        return self.energy_mj

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 75_000


def test_accelerators_are_a_part_of_the_host(tmp_path: Path) -> None:
    library = Library()
    made = Powercap(tmp_path)
    made.zone("intel-rapl:0", "package-0")
    rapl, accelerators = of_the_tree(tmp_path)[1], Nvml(library)
    meter = Meter(Added(rapl, accelerators))
    meter.sample(0.0)
    library.energy_mj += 250_000
    made.add({"intel-rapl:0": 60.0})
    found = meter.sample(1.0)
    assert found.watts == pytest.approx(60.0 + 250.0 + 75.0)
    assert found.source == "rapl+nvml"

    class Gone(Library):
        def nvmlDeviceGetCount(self) -> int:
            raise self.NVMLError("Driver Not Loaded")

    with pytest.raises(SensorError, match="NVML says: Driver Not Loaded"):
        Nvml(Gone()).read()


def test_without_the_library_of_accelerators_it_is_said_which_one_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(SensorError, match="nvidia-ml-py is not installed"):
        Nvml().read()


def test_files_that_are_read_again_and_again_are_closed(tmp_path: Path) -> None:
    (tmp_path / "energy_uj").write_text("5\n")
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    assert files.number(tmp_path / "energy_uj") == 5
    with pytest.raises(OSError, match="it is no file"):
        files.opened(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_auto_takes_the_first_that_says_something_and_the_next_when_it_ends(tmp_path: Path) -> None:
    time_s = [0.0]
    auto = Auto(of_the_tree(tmp_path), clock=lambda: time_s[0])
    none = now(auto)
    assert none.label == "unavailable"
    assert all(name in none.reason for name in ("cray: ", "rapl: ", "hwmon: "))
    device(tmp_path, 0, "power_meter", power1_average="213000000")
    assert now(auto).label == "unavailable", "it is asked again and again for nothing"
    time_s[0] = 6.0
    assert (now(auto).watts, auto.name) == (213.0, "hwmon")
    (tmp_path / "sys/class/hwmon/hwmon0/power1_average").unlink()
    cray(tmp_path, power="250 W 5000000 us")
    assert (now(auto).watts, auto.name) == (250.0, "cray")


def test_auto_leaves_counters_that_stand_still(tmp_path: Path) -> None:
    made = Powercap(tmp_path)
    made.zone("intel-rapl:0", "package-0")
    device(tmp_path, 0, "power_meter", power1_average="213000000")
    time_s = [0.0]
    meter = Meter(Auto(of_the_tree(tmp_path), clock=lambda: time_s[0]))
    found = []
    for _ in range(6):
        found.append(meter.sample(time_s[0]))
        time_s[0] += 1.0
    assert found[1].watts is None
    assert (found[-1].source, found[-1].watts) == ("hwmon", 213.0)


def test_auto_keeps_counters_that_rest_now_and_then(tmp_path: Path) -> None:
    made = Powercap(tmp_path)
    made.zone("intel-rapl:0", "package-0")
    device(tmp_path, 0, "power_meter", power1_average="213000000")
    time_s = [0.0]
    meter = Meter(Auto(of_the_tree(tmp_path), clock=lambda: time_s[0]))
    for joules in (0.0, 0.0, 60.0, 0.0, 60.0):
        made.add({"intel-rapl:0": joules})
        found = meter.sample(time_s[0])
        time_s[0] += 1.0
    assert (found.source, found.watts) == ("rapl", 60.0)


NODE = (
    "NodeName=n1 Arch=x86_64\n   CurrentWatts={0} AveWatts={0}\n   ExtSensorsJoules=n/s ExtSensorsWatts=0\n"
)


@pytest.mark.parametrize(("said", "watts"), [("0", None), ("n/s", None), ("n/a", None), ("312", 312.0)])
def test_slurm_that_says_0_or_ns_measures_nothing(said: str, watts: float | None) -> None:
    assert parse_node_watts(NODE.format(said)) == watts


@pytest.mark.parametrize(
    ("text", "joules"),
    [
        ("12.batch|0\n12.0|0\n", None), ("12.batch|\n12.0|1500\n12.1|500\n", 2000.0), ("", None),
        ("12.0|1.50K\n", 1500.0), ("12.0|18446744073709551614\n", None), ("12.0|4294967294\n", None),
    ],
)  # fmt: skip
def test_joules_of_the_steps_of_a_job(text: str, joules: float | None) -> None:
    assert parse_step_joules(text) == joules


def test_a_recorded_draw_is_played_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "watts.csv"
    path.write_text("t_s,watts\n5,100\n6,200\n8,300\n")
    at_s = [50.0]
    replay = Replay(path, clock=lambda: at_s[0])
    found = []
    for _ in range(7):
        found.append(now(replay).watts)
        at_s[0] += 1.0
    assert found == [100.0, 200.0, 200.0, 300.0, 300.0, 100.0, 200.0]
    path.write_text("t_s,watts\n5,100\n5,200\n")
    with pytest.raises(SensorError, match="line 3: expected finite numbers, times rising"):
        Replay(path).read()
    with pytest.raises(SensorError, match="cannot be read"):
        Replay(tmp_path / "absent").read()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SensorError, match="pipe cannot be read: it is no file"):
        Replay(tmp_path / "pipe").read()


def test_a_model_is_a_line_or_what_was_measured_between_the_ends_that_are_set(tmp_path: Path) -> None:
    line = curve(71.0, 171.0, None)
    assert [line.watts(load) for load in (-1, 0, 0.25, 1, 2)] == [71, 71, 96, 171, 171]
    path = tmp_path / "points.csv"
    loads, watts = [0, 20, 50, 80, 100], [50.0, 90.0, 120.0, 135.0, 140.0]
    rows = (f"{load},{power}" for load, power in zip(loads, watts, strict=True))
    path.write_text("\ufeff" + "\n".join(("cpu_load, rapl_power", *rows)))
    fitted = curve(None, None, str(path))
    assert fitted == fit_curve([load / 100 for load in loads], watts).between(fitted.idle_w, fitted.busy_w)
    assert fitted.watts(0.5) == pytest.approx(120.0, rel=0.02)
    scaled = curve(100.0, 280.0, str(path))
    assert (scaled.idle_w, scaled.busy_w) == pytest.approx((100.0, 280.0))


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ((None, None), "idle None, busy None"),
        ((71.0, None), "idle 71.0, busy None"),
        ((0.0, 100.0), "hpc.power.model.idle is 0 W"),
        ((200.0, 100.0), "hpc.power.model.idle is 200 W and hpc.power.model.busy 100 W; allowed"),
    ],
)
def test_a_model_of_too_little_is_none(ends: Any, reason: str) -> None:
    with pytest.raises(SensorError) as said:
        curve(*ends, None)
    assert reason in said.value.reason
    assert "hpc.power.model.idle" in said.value.remedy
