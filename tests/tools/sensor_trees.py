"""Trees of files as the kernel shows sensors, and zones that count."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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
