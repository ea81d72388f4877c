"""Which source a host has: the one that is set, or the first one that says something.

`Auto` asks those that need no setting: Cray's counters, the processors' (with accelerators beside them,
unless the platform's own counter contains them), then the board's. It stays with one that answers, and looks
again when that one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dask_hpc.clock import stopwatch_s
from dask_hpc.config import Settings
from dask_hpc.worker.power.commands import Command, Slurm
from dask_hpc.worker.power.cray import Cray
from dask_hpc.worker.power.figures import Gauge, Label, Reading, SensorError, Source
from dask_hpc.worker.power.hwmon import Hwmon
from dask_hpc.worker.power.nvml import Nvml
from dask_hpc.worker.power.rapl import Rapl
from dask_hpc.worker.power.recorded import Replay
from dask_hpc.worker.power.web import Http, Prometheus

#: So long after all have failed nobody is asked again, in seconds.
_REST_S = 5.0
#: Counters that stand still for longer measure nothing, in seconds.
_STILL_S = 2.0
_ROOT = Path("/")
_V = TypeVar("_V")


class Added:
    """Two sources that measure different parts of a host, added up."""

    label: Label = "measured"

    def __init__(self, first: Source, second: Source) -> None:
        self._both = (first, second)
        self.name = f"{first.name}+{second.name}"

    def read(self) -> Reading:
        """What both say, each part under the name of its source."""
        return {
            f"{source.name}/{name}": value for source in self._both for name, value in source.read().items()
        }

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """The sum of both."""
        total_j = 0.0
        for source in self._both:
            total_j += source.total(_of(source, spent_j), _of(source, before), _of(source, now))
        return total_j


def _of(source: Source, named: Mapping[str, _V]) -> dict[str, _V]:
    begin = f"{source.name}/"
    return {name.removeprefix(begin): value for name, value in named.items() if name.startswith(begin)}


class Auto:
    """The first of some sources that gives a figure.

    Parameters
    ----------
    sources
        In the order in which they are asked.
    clock
        Seconds on a clock that never goes back.
    """

    label: Label = "measured"

    def __init__(self, sources: Sequence[Source], clock: Callable[[], float] = stopwatch_s) -> None:
        self._sources, self._clock = tuple(sources), clock
        self._now: Source | None = None
        #: Those that can be read and say nothing: counters that stand still.
        self._idle: set[int] = set()
        self._failed: tuple[float, SensorError] | None = None
        #: Since when the present one has counted nothing.
        self._still_s: float | None = None

    @property
    def name(self) -> str:
        """Of the source that is asked now."""
        return "auto" if self._now is None else self._now.name

    def read(self) -> Reading:
        """What the present source says, or the next one that says something.

        Raises
        ------
        SensorError
            When none does, with what each says.
        """
        if self._now is not None:
            try:
                return self._named(self._now)
            except SensorError:
                self._now = None
        if self._failed is not None and self._clock() < self._failed[0]:
            raise self._failed[1]
        said: list[str] = []
        remedy = ""
        for number, source in enumerate(self._sources):
            try:
                reading = self._named(source)
                if number in self._idle:
                    raise SensorError("its counters stand still")
            except SensorError as error:
                said.append(f"{source.name}: {error.reason}")
                # one that is there and may not be read is worth more than the advice to take another
                remedy = error.remedy if not remedy or "permission denied" in error.reason else remedy
                continue
            self._now, self._failed = source, None
            return reading
        self._idle.clear()
        nothing = SensorError("; ".join(said), remedy)
        self._failed = (self._clock() + _REST_S, nothing)
        raise nothing

    def _named(self, source: Source) -> Reading:
        reading = source.read()
        gauges = [value.watts for value in reading.values() if isinstance(value, Gauge)]
        if len(gauges) == len(reading) and not sum(gauges) > 0:
            raise SensorError("it says 0 W: that is not measured")
        return {f"{source.name}/{name}": value for name, value in reading.items()}

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """Joules of the present source."""
        source = self._now
        assert source is not None
        energy_j = source.total(_of(source, spent_j), _of(source, before), _of(source, now))
        if energy_j > 0:
            self._still_s = None
        elif self._still_s is None:
            self._still_s = self._clock()
        elif self._clock() - self._still_s >= _STILL_S:
            self._idle.add(self._sources.index(source))
            self._now = self._still_s = None
        return energy_j


class Processors:
    """The processors' counters, with accelerators beside them where a platform's counter is not there."""

    label: Label = "measured"

    def __init__(self, root: Path, accelerators: Source | None) -> None:
        rapl = Rapl(root)
        self._source: Source = rapl
        if accelerators is not None and not rapl.whole:
            try:
                accelerators.read()
                self._source = Added(rapl, accelerators)
            except SensorError:
                # most hosts have none
                pass
        self.name = self._source.name

    def read(self) -> Reading:
        """What they say."""
        return self._source.read()

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """The sum of all."""
        return self._source.total(spent_j, before, now)


def of_the_tree(root: Path = _ROOT) -> list[Source]:
    """Sources that read the tree of a machine, in the order in which `Auto` asks them."""
    here = root == _ROOT
    return [Cray(root), Processors(root, Nvml() if here else None), Hwmon(root)]


def made(settings: Settings, root: Path = _ROOT) -> Source | None:
    """The source that is set, measuring; None for ``model``, which each node has for itself.

    Raises
    ------
    SensorError
        When it lacks a setting; the message names it.
    """
    wanted, timeout_s = settings.power_source, settings.power_timeout_s
    if wanted == "auto":
        return Auto(of_the_tree(root))
    if wanted == "model":
        return None
    if wanted == "command":
        return Command(
            _needed(settings.power_command, "command", "[ipmitool, dcmi, power, reading]"), timeout_s
        )
    if wanted == "http":
        url = _needed(settings.power_url, "url", "https://bmc-n1/redfish/v1/Chassis/1/Power")
        return Http(url, settings.power_pointer, timeout_s)
    if wanted == "prometheus":
        url = _needed(settings.power_url, "url", "http://prometheus:9090")
        return Prometheus(url, _needed(settings.power_query, "query", "sum(node_power_watts)"), timeout_s)
    if wanted == "replay":
        return Replay(Path(_needed(settings.power_file, "file", "/scratch/watts.csv")))
    simple: Mapping[str, Callable[[], Source]] = {
        "cray": lambda: Cray(root),
        "rapl": lambda: Rapl(root),
        "hwmon": lambda: Hwmon(root),
        "nvml": Nvml,
        "slurm": lambda: Slurm(timeout_s),
    }
    return simple[wanted]()


def governed(settings: Settings, root: Path = _ROOT) -> Source | None:
    """What measures the part of this host that its caps are for; None: all of it, or there is no leave.

    Frequencies and commands cap in watts of the whole host.
    """
    if settings.power_cap_by == "powercap":
        return Rapl(root, ("package",))
    return Nvml() if settings.power_cap_by == "nvml" else None


def _needed(value: _V | None, key: str, example: str) -> _V:
    if not value:
        raise SensorError(f"hpc.power.{key} is not set", f"set it on this node, such as {example}")
    return value
