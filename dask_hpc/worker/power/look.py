"""What each source of a machine says over some seconds: for whoever sets them up.

A zone that is unplugged meanwhile, or a counter that begins anew, costs the figure the moment in which it
happened, no more.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from dask_hpc.clock import stopwatch_s
from dask_hpc.config import Settings
from dask_hpc.wire import POWER_SOURCES
from dask_hpc.worker.power.cray import Cray
from dask_hpc.worker.power.figures import (
    FIRST,
    Figure,
    Gauge,
    Reading,
    SensorError,
    Source,
    as_sensor_error,
    between_j,
    known_w,
    same_run,
    unavailable,
)
from dask_hpc.worker.power.hwmon import Hwmon
from dask_hpc.worker.power.load import Model, curve
from dask_hpc.worker.power.nvml import Nvml
from dask_hpc.worker.power.rapl import Rapl
from dask_hpc.worker.power.sources import made

_ROOT = Path("/")
#: Readings over the time, for those that cost next to nothing.
_READINGS = 10
#: Sources of a part of a host, and how far two of the whole may be apart.
_PARTS, _APART = ("rapl", "nvml"), 0.2


@dataclass(frozen=True, slots=True)
class Looked:
    """What a host draws, and what each source says of it."""

    #: By the source that is set.
    figure: Figure
    sources: tuple[Figure, ...]


class Observed:
    """Readings of one source, and the mean over all stretches in which nothing came, went or was reset."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._run: list[tuple[float, Reading]] = []
        self._energy_j = self._counted_s = 0.0
        self._error: SensorError | None = None
        self._note = ""

    def read(self) -> None:
        """Read it once more."""
        try:
            reading, self._error = self.source.read(), None
        except Exception as error:  # whatever a sensor does, the others are told
            self._end()
            self._error = as_sensor_error(error)
            return
        now_s = stopwatch_s()
        if self._run and not same_run(self._run[-1][1], reading, now_s - self._run[-1][0]):
            self._note = "a part of it came, went or was reset meanwhile"
            self._end()
        # the first and the last one count
        self._run = [*self._run[:1], (now_s, reading)]

    def _end(self) -> None:
        if len(self._run) == 2:
            (began_s, before), (ended_s, now) = self._run
            try:
                self._energy_j += between_j(self.source, before, now, ended_s - began_s)
                self._counted_s += ended_s - began_s
            except SensorError as error:
                self._error = error
        self._run = []

    def figure(self) -> Figure:
        """The mean."""
        last = self._run[-1][1] if self._run else {}
        gauges = [value.watts for value in last.values() if isinstance(value, Gauge)]
        self._end()
        source = self.source
        if self._error is not None:
            return unavailable(source.name, self._error)
        if not self._counted_s and (not gauges or len(gauges) < len(last)):
            return unavailable(source.name, SensorError(FIRST))
        watts = self._energy_j / self._counted_s if self._counted_s else sum(gauges)
        try:
            return Figure(source.label, source.name, known_w(source.name, watts), self._energy_j, self._note)
        except SensorError as error:
            return unavailable(source.name, error)


def look(settings: Settings, seconds: float, root: Path = _ROOT) -> Looked:
    """Read all sources that can be read for so many seconds.

    Parameters
    ----------
    settings
        Of this node.
    root
        The folder that stands for ``/``; another than that holds the kernel's sensors alone.
    """
    rapl = Rapl(root)
    tree: list[Source] = [Cray(root), rapl, Hwmon(root), *([Nvml()] if root == _ROOT else [])]
    often = [Observed(source) for source in tree]
    seldom: list[Observed] = []
    lacking: list[Figure] = []
    if root == _ROOT:
        for name in ("slurm", "prometheus", "http", "command", "replay"):
            try:
                seldom.append(Observed(_other(settings, name)))
            except SensorError as error:
                lacking.append(unavailable(name, error))
    psutil.cpu_percent()
    for each in (*seldom, *often):
        each.read()
    began_s = stopwatch_s()
    for number in range(1, _READINGS + 1):
        time.sleep(max(0.0, began_s + seconds * number / _READINGS - stopwatch_s()))
        for each in often:
            each.read()
    for each in seldom:
        each.read()
    found = [each.figure() for each in (*often, *seldom)] + lacking
    found.append(_modelled(settings, psutil.cpu_percent() / 100))
    order = {name: number for number, name in enumerate(POWER_SOURCES)}
    found.sort(key=lambda figure: order.get(figure.source, len(order)))
    by_name = {figure.source: figure for figure in found}
    chosen = _chosen(settings, by_name, whole=rapl.whole)
    return Looked(_disagreeing(chosen, found, whole=rapl.whole), tuple(found))


def _other(settings: Settings, name: str) -> Source:
    """A source that is not of the tree, if what it needs is set; raises `SensorError` when not."""
    if name == "slurm" and "SLURM_JOB_ID" not in os.environ:
        raise SensorError("this process is in no job of Slurm")
    if name == "http" and settings.power_source != "http" and settings.power_query:
        raise SensorError("hpc.power.url is Prometheus', for hpc.power.query is set")
    source = made(dataclasses.replace(settings, power_source=name))
    assert source is not None
    return source


def _modelled(settings: Settings, load: float) -> Figure:
    try:
        points = curve(settings.power_model_idle_w, settings.power_model_busy_w, settings.power_model_curve)
    except SensorError as error:
        return unavailable("model", error)
    watched = Observed(Model(points, lambda: load))
    watched.read()
    return watched.figure()


def _chosen(settings: Settings, found: Mapping[str, Figure], *, whole: bool) -> Figure:
    """The figure of the source that is set; of ``auto``, as the workers take it."""
    wanted = settings.power_source
    if wanted != "auto":
        missing = SensorError(f"{wanted} does not read a tree", "leave out --root")
        return found.get(wanted, unavailable(wanted, missing))
    known = [found[name] for name in ("cray", "rapl", "hwmon", "model") if found[name].watts is not None]
    if not known:
        failed = [found[name] for name in ("cray", "rapl", "hwmon", "model")]
        text = "; ".join(f"{figure.source}: {figure.reason}" for figure in failed)
        # one that is there and may not be read comes before the advice to set the model
        denied = [figure for figure in failed if "permission denied" in figure.reason]
        return Figure("unavailable", "auto", reason=text, remedy=(denied or failed)[-1].remedy)
    best = known[0]
    beside = found.get("nvml")
    if best.source == "rapl" and not whole and beside is not None and beside.watts is not None:
        both_w = (best.watts or 0.0) + beside.watts
        return Figure("measured", "rapl+nvml", both_w, best.energy_j + beside.energy_j, best.reason)
    return best


def _disagreeing(figure: Figure, found: Sequence[Figure], *, whole: bool) -> Figure:
    """`figure` with a word about sources that cannot both be right; `whole`: RAPL is that of a platform."""
    parts = [name for name in _PARTS if name != "rapl" or not whole]
    measured = {
        each.source: each.watts
        for each in found
        if each.label == "measured" and each.watts is not None and each.source != "replay"
    }
    parts_w = sum(watts for name, watts in measured.items() if name in parts)
    wholes = {name: watts for name, watts in measured.items() if name not in parts}
    below = [name for name, watts in wholes.items() if watts < parts_w * (1 - _APART)]
    apart = wholes and max(wholes.values()) > min(wholes.values()) * (1 + _APART)
    if not below and not apart:
        return figure
    said = ", ".join(f"{name} {watts:.0f} W" for name, watts in measured.items())
    reason = "; ".join(text for text in (figure.reason, f"sources disagree: {said}") if text)
    return dataclasses.replace(figure, reason=reason)
