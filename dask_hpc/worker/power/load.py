"""What a node draws by its load, where nothing measures it: idle watts and a curve that never falls."""

from __future__ import annotations

import csv
import functools
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

from dask_hpc.worker.power import files
from dask_hpc.worker.power.figures import Gauge, Label, Reading, SensorError, summed
from dask_hpc_policies.power.fit import fit_curve
from dask_hpc_policies.power.load_curve import LoadCurve

#: A curve needs no more points; without an end, a device is read for ever.
_MOST_ROWS = 100_000
_REMEDY = (
    "set hpc.power.model.idle and hpc.power.model.busy, or hpc.power.model.curve to a file of measurements"
)


@functools.lru_cache(maxsize=8)
def curve(idle_w: float | None, busy_w: float | None, path: str | None) -> LoadCurve:
    """Watts by load from what is set: a file of measurements, else a line from idle to busy.

    A file has the columns ``cpu_load`` (in %) and ``rapl_power`` (in W) and is fitted as ``dask hpc power
    fit`` does it; idle and busy watts, where they are set, are its ends.

    Raises
    ------
    SensorError
        When too little is set, or the file is not what it should be.
    """
    if path is None:
        if idle_w is None or busy_w is None:
            said = ", ".join(f"{name} {value}" for name, value in (("idle", idle_w), ("busy", busy_w)))
            raise SensorError(f"no model of the power of a node is set ({said})", _REMEDY)
        if not 0 < idle_w <= busy_w:
            raise SensorError(
                f"hpc.power.model.idle is {idle_w:g} W and hpc.power.model.busy {busy_w:g} W; allowed: idle "
                "above 0 W, busy at least as much",
                _REMEDY,
            )
        return LoadCurve(((0.0, idle_w), (1.0, busy_w)))
    try:
        with files.opened(Path(path)) as file:
            read = itertools.islice(csv.DictReader(file, skipinitialspace=True), _MOST_ROWS + 1)
            rows = [(float(row["cpu_load"]) / 100, float(row["rapl_power"])) for row in read]
        if len(rows) > _MOST_ROWS:
            raise ValueError(f"it has more than {_MOST_ROWS} rows")
        fitted = fit_curve([load for load, _ in rows], [watts for _, watts in rows])
    except OSError as error:
        raise SensorError(f"{path} cannot be read: {error.strerror or error}", _REMEDY) from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise SensorError(
            f"{path} is no series of loads and watts: {error}", "try it with dask hpc power fit"
        ) from None
    low_w = fitted.idle_w if idle_w is None else idle_w
    high_w = fitted.busy_w if busy_w is None else busy_w
    if not 0 <= low_w <= high_w or fitted.busy_w <= fitted.idle_w:
        raise SensorError(f"the model goes from {low_w:g} to {high_w:g} W: that is no rise", _REMEDY)
    return fitted.between(low_w, high_w)


class Model:
    """Watts by load.

    Parameters
    ----------
    curve
        Watts by load.
    load
        The load now, from 0 to 1.
    """

    name = "model"
    label: Label = "modelled"

    def __init__(self, curve: LoadCurve, load: Callable[[], float]) -> None:
        self._curve, self._load = curve, load

    def read(self) -> Reading:
        """What a node draws at the load of now."""
        return {"model": Gauge(self._curve.watts(self._load()))}

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of it."""
        return summed(spent_j)
