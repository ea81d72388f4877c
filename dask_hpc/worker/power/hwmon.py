"""Sensors of the board, ``/sys/class/hwmon``: those that measure the whole host, else its processors.

The kernel gives microwatts and microjoules. A device that measures the host (ACPI's power meter, a power
supply, an input rail) counts alone; processors are added up; accelerators, disks and single rails are not the
host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dask_hpc.worker.power import files
from dask_hpc.worker.power.figures import Counter, Gauge, Label, Reading, SensorError, summed

#: Where devices are, below ``/sys``.
_FOLDERS = ("class/hwmon", "hwmon")
#: Drivers whose figures are of the whole host, and of processors.
_HOST = ("power_meter", "ibmpowernv", "occ", "corsairpsu", "scmi_sensors")
_PROCESSOR = ("amd_energy", "fam15h_power", "zenergy", "zenpower", "xgene")
#: Labels that say the same of any device.
_TOTAL = re.compile(r"(?i)system|total|psu.*(in|input)|vdd_in|node|chassis")
_SOCKET = re.compile(r"(?i)esocket\d+|package|svi2_p_(core|soc)")
_FILE = re.compile(r"(power|energy)(\d+)_(input|average)")
#: More than one of these draws, in watts.
_MOST_W = 20_000.0


class Hwmon:
    """The devices of one machine that measure power."""

    name = "hwmon"
    label: Label = "measured"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def read(self) -> Reading:
        """What the best of them say."""
        base = files.folder(self._root, _FOLDERS)
        if base is None:
            raise SensorError(f"no folder {files.system(self._root) / _FOLDERS[0]}")
        chosen = _chosen(base)
        if not chosen:
            raise SensorError(f"no device below {base} measures the power of the host or its processors")
        found: dict[str, Counter | Gauge] = {}
        for path in chosen:
            try:
                value = files.number(path) / 1e6
            except PermissionError:
                raise files.denied("the sensors of the board", path) from None
            except OSError as error:
                raise SensorError(f"{path} cannot be read: {error.strerror or error}") from None
            counts = path.name.startswith("energy")
            found[f"{path.parent.name}/{path.name}"] = (
                Counter(value, most_w=_MOST_W) if counts else Gauge(value)
            )
        return found

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of them: they do not overlap."""
        return summed(spent_j)


def _chosen(base: Path) -> list[Path]:
    """Files whose sum is the host, or as much of it as is measured."""
    whole: list[Path] = []
    processors: list[Path] = []
    for device in sorted(base.iterdir()):
        driver = files.name_of(device / "name")
        labelled = list(_inputs(device))
        totals = [path for path, label in labelled if label and _TOTAL.search(label)]
        if totals:
            whole += totals[:1]
        elif driver in _HOST:
            whole += [path for path, _ in labelled][:1]
        elif driver in _PROCESSOR:
            sockets = [path for path, label in labelled if label and _SOCKET.search(label)]
            processors += sockets or [path for path, label in labelled if not label]
    # one that measures the host is enough; a second one would count it twice
    return whole[:1] or processors


def _inputs(device: Path) -> Iterator[tuple[Path, str]]:
    """Files with power or energy of a device, and their labels; energy counts better than moments."""
    found: dict[tuple[str, str], Path] = {}
    for path in sorted(device.iterdir()) if device.is_dir() else ():
        if match := _FILE.fullmatch(path.name):
            found.setdefault((match[1], match[2]), path)
    for (kind, which), path in sorted(found.items()):
        yield path, files.name_of(device / f"{kind}{which}_label")
