"""Trees of files as the kernel shows sensors, and zones that count."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Of Intel's counters of 32 bits, in microjoules.
RANGE_UJ = 262_143_328_850


class Powercap:
    """``/sys/class/powercap`` below a folder, with zones by their ids."""

    def __init__(self, root: Path, range_uj: int = RANGE_UJ) -> None:
        self.folder = root / "sys" / "class" / "powercap"
        self.folder.mkdir(parents=True)
        self.range_uj = range_uj

    def zone(self, id: str, name: str, energy_uj: int = 1_000_000) -> Path:
        """A zone such as ``intel-rapl:0:1``; laid out flat, as links are in the kernel's folder."""
        zone = self.folder / id
        zone.mkdir()
        (zone / "name").write_text(name + "\n")
        (zone / "max_energy_range_uj").write_text(f"{self.range_uj}\n")
        (zone / "energy_uj").write_text(f"{energy_uj}\n")
        return zone

    def add(self, joules: Mapping[str, float]) -> None:
        """Have zones count; beyond their range they begin again."""
        for id, more_j in joules.items():
            path = self.folder / id / "energy_uj"
            now_uj = int(path.read_text()) + round(more_j * 1e6)
            # nobody reads a file that is half written
            new = path.with_suffix(".new")
            new.write_text(f"{now_uj % self.range_uj}\n")
            new.replace(path)


@contextmanager
def counting(tree: Powercap, watts: Mapping[str, float], every_s: float = 0.01) -> Iterator[None]:
    """Zones that count by the clock until the end of the block."""
    from dask_hpc.clock import stopwatch_s

    stopped = threading.Event()

    def run() -> None:
        last_s = stopwatch_s()
        while not stopped.wait(every_s):
            now_s = stopwatch_s()
            tree.add({id: power * (now_s - last_s) for id, power in watts.items()})
            last_s = now_s

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def device(root: Path, number: int, driver: str, **files: str) -> Path:
    """A device of ``/sys/class/hwmon``."""
    folder = root / "sys" / "class" / "hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    for name, text in {"name": driver, **files}.items():
        (folder / name).write_text(text + "\n")
    return folder


def cray(root: Path, **files: str) -> Path:
    """``/sys/cray/pm_counters``."""
    folder = root / "sys" / "cray" / "pm_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    return folder


def limits(zone: Path, **files: int | str) -> Path:
    """A zone with the limit of its mean, in microwatts; other files of it by name."""
    said = {
        "constraint_0_name": "long_term",
        "constraint_0_power_limit_uw": 200_000_000,
        "constraint_0_min_power_uw": 50_000_000,
        "constraint_0_max_power_uw": 180_000_000,
        "enabled": 1,
    }
    for name, value in {**said, **files}.items():
        (zone / name).write_text(f"{value}\n")
    return zone


def frequencies(root: Path, *policies: tuple[int, int, int]) -> list[Path]:
    """Groups of processors with their lowest, their highest and their present highest frequency in kHz."""
    found = []
    for number, (least, most, now) in enumerate(policies):
        folder = root / "sys" / "devices" / "system" / "cpu" / "cpufreq" / f"policy{number}"
        folder.mkdir(parents=True)
        for name, value in (("cpuinfo_min", least), ("cpuinfo_max", most), ("scaling_max", now)):
            (folder / f"{name}_freq").write_text(f"{value}\n")
        found.append(folder / "scaling_max_freq")
    return found


def contents(root: Path) -> dict[str, str]:
    """All files below a folder."""
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


#: Stands for the module ``pynvml`` where it is found first: two accelerators whose limits are in a file.
FAKE_NVML = """
import json
import os
from pathlib import Path

class NVMLError(Exception):
    pass

def _limits():
    return json.loads(Path(os.environ["FAKE_NVML"]).read_text())

def nvmlInit():
    pass

def nvmlDeviceGetCount():
    return len(_limits())

def nvmlDeviceGetHandleByIndex(index):
    return index

def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle}"

def nvmlDeviceGetPowerManagementLimit(handle):
    return _limits()[handle]

def nvmlDeviceGetPowerManagementLimitConstraints(handle):
    return [100_000, 300_000]

def nvmlDeviceSetPowerManagementLimit(handle, value):
    if not 100_000 <= value <= 300_000:
        raise NVMLError("Invalid Argument")
    if os.environ.get("FAKE_NVML_REFUSES"):
        raise NVMLError("Insufficient Permissions")
    limits = _limits()
    limits[handle] = value
    new = Path(os.environ["FAKE_NVML"] + ".new")
    new.write_text(json.dumps(limits))
    new.replace(os.environ["FAKE_NVML"])
"""


def fake_nvml(folder: Path, monkeypatch: Any, *limits_mw: int) -> Path:
    """Have processes that are started from now on find that module; gives the file with its limits."""
    place, state = folder / "fake", folder / "limits.json"
    place.mkdir()
    (place / "pynvml.py").write_text(FAKE_NVML)
    state.write_text(json.dumps(list(limits_mw)))
    monkeypatch.setenv("FAKE_NVML", str(state))
    monkeypatch.syspath_prepend(str(place))
    # what is imported from now on is gone at the end of the test
    monkeypatch.setitem(sys.modules, "pynvml", None)
    del sys.modules["pynvml"]
    return state
