"""From what sensors say to watts: counters that wrap, gauges, and the label that each figure has.

Rules of the file: nothing here reads a file or a clock. A figure that is not known is None with a reason and
a remedy, never 0: zero watts are drawn by no host that runs this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

#: ``measured``: a sensor says so. ``modelled``: from the load. ``unavailable``: not known.
Label = Literal["measured", "modelled", "unavailable"]

#: More than one host draws, in watts: a counter that was reset looks like one that has wrapped.
MOST_HOST_W = 100_000.0

#: The reason until there is a figure; nothing is wrong then.
FIRST = "it was not sampled for long enough yet"


class SensorError(Exception):
    """A sensor gives no figure now.

    Parameters
    ----------
    reason
        Why, naming the file, command or address.
    remedy
        What to do about it; empty when nothing can be done.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def as_sensor_error(error: Exception) -> SensorError:
    """Whatever a sensor has raised: who measures goes on."""
    return error if isinstance(error, SensorError) else SensorError(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Counter:
    """Energy since some moment."""

    energy_j: float
    #: At which it begins again at 0; None: never, so that one that falls was reset.
    range_j: float | None = None
    #: More than this many watts it cannot have counted.
    most_w: float = MOST_HOST_W
    #: When the device took it, in seconds on a clock of its own; None: when it was read.
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Gauge:
    """Power now, or the mean of a moment ago, in watts."""

    watts: float


#: What a source says, by the name of the part (a zone, a device).
Reading = Mapping[str, Counter | Gauge]


class Source(Protocol):
    """A way to know what this host draws."""

    @property
    def name(self) -> str:
        """As ``hpc.power.source`` calls it."""

    @property
    def label(self) -> Label:
        """Of its figures."""

    def read(self) -> Reading:
        """What it says now; raises `SensorError` when it cannot say it."""

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """Joules of the host, of those that its parts have spent between two readings."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Watts of a host, or why they are not known."""

    label: Label
    #: Name of the source.
    source: str
    #: Mean over the time since the figure before; None: not known.
    watts: float | None = None
    #: Energy over that time; 0 when the watts are not known, and for a first gauge.
    energy_j: float = 0.0
    #: Why the watts are not known, and what to do about it.
    reason: str = ""
    remedy: str = ""


def unavailable(source: str, error: SensorError) -> Figure:
    """The figure of a source that has none."""
    return Figure("unavailable", source, reason=error.reason, remedy=error.remedy)


def spent_j(name: str, before: Counter, now: Counter, passed_s: float) -> float:
    """Joules that a counter has counted between two readings.

    Raises
    ------
    SensorError
        When it stands still by its own clock, was reset, or says more than can be.
    """
    if before.at_s is not None and now.at_s is not None:
        own_s = now.at_s - before.at_s
        if own_s <= 0:
            raise SensorError(f"{name} stands still: the device takes no new values")
    else:
        own_s = passed_s
    return _counted_j(name, before, now, own_s) * (passed_s / own_s)


def _counted_j(name: str, before: Counter, now: Counter, within_s: float) -> float:
    """Joules between two values; raises `SensorError` when the counter was reset."""
    difference_j = now.energy_j - before.energy_j
    if difference_j < 0 and now.range_j is not None:
        difference_j += now.range_j
    if difference_j < 0 or difference_j > now.most_w * max(within_s, 1e-3):
        raise SensorError(f"{name} was reset between two readings")
    return difference_j


def same_run(before: Reading, now: Reading, passed_s: float) -> bool:
    """Whether nothing came, went or was reset between two readings."""
    if before.keys() != now.keys():
        return False
    for name, value in now.items():
        earlier = before[name]
        if isinstance(value, Counter) and isinstance(earlier, Counter):
            try:
                _counted_j(name, earlier, value, passed_s)
            except SensorError:
                return False
    return True


def between_j(source: Source, before: Reading, now: Reading, passed_s: float) -> float:
    """Joules that a host has spent between two readings, `passed_s` seconds apart.

    Raises
    ------
    SensorError
        When that cannot be told: a part came or went in between, or was reset.
    """
    if before.keys() != now.keys():
        changed = ", ".join(sorted(before.keys() ^ now.keys()))
        raise SensorError(f"{changed} came or went between two readings")
    found: dict[str, float] = {}
    for name, value in now.items():
        earlier = before[name]
        if isinstance(value, Gauge):
            first_w = earlier.watts if isinstance(earlier, Gauge) else value.watts
            found[name] = (first_w + value.watts) / 2 * passed_s
        elif isinstance(earlier, Counter):
            found[name] = spent_j(name, earlier, value, passed_s)
    return source.total(found, before, now)


class Meter:
    """Figures of one source, a reading each."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._last: tuple[float, Reading] | None = None

    def sample(self, now_s: float) -> Figure:
        """Read the source; the figure is of the time since it was read before.

        Parameters
        ----------
        now_s
            On a clock that never goes back.
        """
        last, self._last = self._last, None
        try:
            reading = self.source.read()
            self._last = (now_s, reading)
            return self._figure(last, now_s, reading)
        except SensorError as error:
            return unavailable(self.source.name, error)

    def _figure(self, last: tuple[float, Reading] | None, now_s: float, reading: Reading) -> Figure:
        source = self.source
        gauges = [value.watts for value in reading.values() if isinstance(value, Gauge)]
        only_gauges = len(gauges) == len(reading)
        if last is None or now_s <= last[0]:
            if not only_gauges:
                raise SensorError(FIRST)
            return Figure(source.label, source.name, known_w(source.name, sum(gauges)))
        passed_s = now_s - last[0]
        try:
            energy_j = between_j(source, last[1], reading, passed_s)
        except SensorError:
            if not only_gauges:
                raise
            energy_j = 0.0
        # a gauge says what is drawn now, a counter what was drawn since
        watts = sum(gauges) if only_gauges else energy_j / passed_s
        return Figure(source.label, source.name, known_w(source.name, watts), energy_j)


def known_w(name: str, watts: float) -> float:
    """Watts that a host may draw; raises `SensorError` for others: who says so measures nothing."""
    if not 0 < watts <= MOST_HOST_W:
        raise SensorError(
            f"{name} says {watts:g} W: that is not measured", "take another source (hpc.power.source)"
        )
    return watts


def summed(spent: Mapping[str, float]) -> float:
    """Joules of sources whose parts do not overlap."""
    return sum(spent.values())
