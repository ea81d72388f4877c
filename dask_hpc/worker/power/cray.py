"""The counters of Cray and HPE EX nodes, ``/sys/cray/pm_counters``: the whole node, stamped by the device.

A file says ``184217392 J 1701345678901234 us``, or without the stamp on older systems. ``power`` alone, where
there is no ``energy``, is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dask_hpc.worker.power import files
from dask_hpc.worker.power.figures import Counter, Gauge, Label, Reading, SensorError, summed

_FOLDERS = ("cray/pm_counters",)
#: No node draws more, in watts.
_MOST_W = 20_000.0


class Cray:
    """The node's counters."""

    name = "cray"
    label: Label = "measured"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def read(self) -> Reading:
        """Energy of the node, or its power where that is all there is."""
        folder = files.folder(self._root, _FOLDERS)
        if folder is None:
            raise SensorError(f"no folder {files.system(self._root) / _FOLDERS[0]}: this is no Cray")
        for name, unit in (("energy", "J"), ("power", "W")):
            path = folder / name
            try:
                words = files.text(path).split()
            except FileNotFoundError:
                continue
            except PermissionError:
                raise files.denied("the node's counters", path) from None
            except OSError as error:
                raise SensorError(f"{path} cannot be read: {error.strerror or error}") from None
            if words[1:2] != [unit]:
                raise SensorError(f"{path} says {' '.join(words)[:60]!r}; expected a number and {unit}")
            value = files.number(path, words[0])
            if name == "power":
                return {"node": Gauge(value)}
            at_s = files.number(path, words[2]) / 1e6 if words[3:4] == ["us"] else None
            return {"node": Counter(value, most_w=_MOST_W, at_s=at_s)}
        raise SensorError(f"neither energy nor power in {folder}")

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of it."""
        return summed(spent_j)
