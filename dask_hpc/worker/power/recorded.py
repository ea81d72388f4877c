"""Watts of a file, played again and again: to try what a cluster does under a draw that was recorded."""

from __future__ import annotations

import bisect
import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from dask_hpc.clock import stopwatch_s
from dask_hpc.worker.power import files
from dask_hpc.worker.power.figures import Gauge, Label, Reading, SensorError, summed


class Replay:
    """A CSV file with the columns ``t_s`` and ``watts``, from when it is read first.

    A value holds until the next one; after the last one it begins again.

    Parameters
    ----------
    path
        The file.
    clock
        Seconds on a clock that never goes back.
    """

    name = "replay"
    label: Label = "measured"

    def __init__(self, path: Path, clock: Callable[[], float] = stopwatch_s) -> None:
        self._path, self._clock = path, clock
        self._series: tuple[list[float], list[float]] | None = None
        self._began_s = 0.0

    def read(self) -> Reading:
        """What was drawn at this time of the file."""
        if self._series is None:
            self._series = _read(self._path)
            self._began_s = self._clock()
        times, values = self._series
        step_s = times[-1] - times[-2] if len(times) > 1 else 1.0
        at_s = (self._clock() - self._began_s) % (times[-1] - times[0] + step_s)
        return {"replay": Gauge(values[bisect.bisect_right(times, times[0] + at_s) - 1])}

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of it."""
        return summed(spent_j)


def _read(path: Path) -> tuple[list[float], list[float]]:
    """Times and watts of a file; raises `SensorError` naming the line that is wrong."""
    times: list[float] = []
    values: list[float] = []
    try:
        with files.opened(path) as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                try:
                    at_s, watts = float(row["t_s"]), float(row["watts"])
                except (KeyError, TypeError, ValueError):
                    raise SensorError(f"{where}: expected numbers in the columns t_s and watts") from None
                if not (math.isfinite(at_s) and math.isfinite(watts)) or (times and at_s <= times[-1]):
                    raise SensorError(f"{where}: expected finite numbers, times rising")
                times.append(at_s)
                values.append(watts)
    except OSError as error:
        raise SensorError(f"{path} cannot be read: {error.strerror or error}", "set hpc.power.file") from None
    except csv.Error as error:
        raise SensorError(f"{path} is no CSV: {error}", "set hpc.power.file") from None
    if not times:
        raise SensorError(f"{path} has no row", "give the columns t_s and watts and rows below them")
    return times, values
