"""RAPL: the energy counters of Intel's and AMD's processors below ``/sys/class/powercap``.

What overlaps is counted once. ``psys`` (the platform) contains the packages, so it counts alone where it
moves; a package contains its cores and uncore, but not its ``dram``. The dies of a package may be one counter
shown several times (codecarbon#1274: 137 W of 68), and one package is shown by MSR (``intel-rapl``) as well
as by MMIO (``intel-rapl-mmio``) or TPMI. Counters begin again at 0 after ``max_energy_range_uj``. They are
root's from Linux 5.10 on.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dask_hpc.worker.power import files
from dask_hpc.worker.power.figures import Counter, Label, Reading, SensorError

#: Where zones are, below ``/sys``; a copy may hold the last level alone.
_FOLDERS = ("class/powercap", "devices/virtual/powercap", "powercap", ".")
_ZONE = re.compile(r"([a-z][a-z-]*):(\d+)(?::(\d+))?")
_PACKAGE = re.compile(r"package-(\d+)(?:-die-(\d+))?")
_PSYS = re.compile(r"psys(?:-(\d+))?")
#: Drivers that show one counter, the one that is preferred first.
_DRIVERS = ("intel-rapl", "intel-rapl-tpmi", "intel-rapl-mmio")
#: More than a package, its memory or a platform draws: whoever says more has begun again.
_MOST_W = {"package": 2_000.0, "dram": 2_000.0, "psys": 20_000.0}
#: Counters this near to each other, in joules and as a share of what they have counted, are one.
_NEAR_J, _NEAR = 1.0, 0.05


@dataclass(frozen=True, slots=True)
class Zone:
    """One energy counter."""

    path: Path
    #: ``package``, ``dram`` or ``psys``; others are parts of these.
    kind: str
    package: int
    die: int
    driver: str
    range_j: float | None

    @property
    def what(self) -> tuple[str, int, int]:
        """What it measures: zones of several drivers may measure one thing."""
        return (self.kind, self.package, self.die)


def zones(root: Path) -> list[Zone]:
    """All zones below a root folder that count, those of preferred drivers first."""
    base = next((place for place in _places(root) if any(place.glob("*-rapl*"))), None)
    if base is None:
        return []
    paths = {path.name: path for depth in ("*", "*/*", "*/*/*") for path in sorted(base.glob(depth))
             if _ZONE.fullmatch(path.name)}  # fmt: skip
    names = {name: files.name_of(path / "name") for name, path in paths.items()}
    found = [zone for name, path in paths.items() if (zone := _zone(path, names)) is not None]
    return sorted(found, key=lambda zone: (*zone.what, _rank(zone.driver)))


def _places(root: Path) -> list[Path]:
    return [files.system(root) / name for name in _FOLDERS]


def _rank(driver: str) -> int:
    return _DRIVERS.index(driver) if driver in _DRIVERS else len(_DRIVERS)


def _zone(path: Path, names: Mapping[str, str]) -> Zone | None:
    parts = _ZONE.fullmatch(path.name)
    assert parts is not None
    driver, first, _ = parts.groups()
    name = names[path.name]
    package, die = int(first), 0
    if whole := _PACKAGE.fullmatch(name):
        kind, package, die = "package", int(whole[1]), int(whole[2] or 0)
    elif platform := _PSYS.fullmatch(name):
        kind, package = "psys", int(platform[1] or 0)
    elif name == "dram":
        kind = name
        if parent := _PACKAGE.fullmatch(names.get(f"{driver}:{first}", "")):
            package, die = int(parent[1]), int(parent[2] or 0)
    else:
        return None
    try:
        range_j = files.number(path / "max_energy_range_uj") / 1e6 or None
    except (OSError, SensorError):
        range_j = None
    return Zone(path, kind, package, die, driver, range_j)


class Rapl:
    """The counters of one machine.

    Parameters
    ----------
    root
        The folder that stands for ``/``.
    kinds
        Of the zones that are read.
    """

    name = "rapl"
    label: Label = "measured"

    def __init__(self, root: Path = Path("/"), kinds: Collection[str] = tuple(_MOST_W)) -> None:
        self._root, self._kinds = root, kinds
        self._zones: list[Zone] = []

    @property
    def whole(self) -> bool:
        """Whether there is a counter of the whole platform, which contains accelerators."""
        return any(zone.kind == "psys" for zone in zones(self._root))

    def read(self) -> Reading:
        """All counters that count, each once however many drivers show it."""
        for known in (self._zones, None):
            found = (
                [zone for zone in zones(self._root) if zone.kind in self._kinds] if known is None else known
            )
            try:
                reading = _read(found) if found else {}
            except FileNotFoundError:
                # one was unplugged: look for those that there are
                continue
            self._zones = found
            if reading:
                return reading
        self._zones = []
        raise SensorError(
            f"no energy counter below {_places(self._root)[0]}",
            "virtual machines and containers have none: set hpc.power.source to another",
        )

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """The platform's joules where it has a counter that moves, else those of packages and memory."""
        kinds = {zone.path.name: zone for zone in self._zones}
        parts: dict[str, list[str]] = {"psys": [], "package": [], "dram": []}
        for name in spent_j:
            if name in kinds:
                parts[kinds[name].kind].append(name)
        platform_j = _distinct_j(parts["psys"], spent_j, before, now)
        if platform_j > 0:
            return platform_j
        total_j = 0.0
        for kind in ("package", "dram"):
            packages = {kinds[name].package for name in parts[kind]}
            for package in packages:
                dies = [name for name in parts[kind] if kinds[name].package == package]
                total_j += _distinct_j(dies, spent_j, before, now)
        return total_j


def _read(found: Sequence[Zone]) -> dict[str, Counter]:
    """Counters by zone.

    Raises
    ------
    SensorError
        When one that is needed cannot be read: a sum without it would be too small.
    FileNotFoundError
        When one is gone.
    """
    reading: dict[str, Counter] = {}
    done: set[tuple[str, int, int]] = set()
    refused: dict[tuple[str, int, int], SensorError] = {}
    for zone in found:
        if zone.what in done:
            continue
        path = zone.path / "energy_uj"
        try:
            energy_j = files.number(path) / 1e6
        except PermissionError:
            refused.setdefault(zone.what, files.denied("the energy counters of the processors", path))
            continue
        except OSError as error:
            if error.errno == errno.ENOENT or not zone.path.is_dir():
                raise FileNotFoundError(path) from None
            refused.setdefault(zone.what, SensorError(f"{path} cannot be read: {error.strerror or error}"))
            continue
        done.add(zone.what)
        reading[zone.path.name] = Counter(energy_j, zone.range_j, _MOST_W[zone.kind])
    missed = [error for what, error in refused.items() if what not in done and what[0] != "psys"]
    if missed and not any(what[0] == "psys" for what in done):
        raise missed[0]
    if refused and not reading:
        raise next(iter(refused.values()))
    return reading


def _distinct_j(names: list[str], spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
    """Joules of counters, of which several may be one."""
    kept: list[str] = []
    for name in names:
        if not any(_same(name, other, spent_j[name], before, now) for other in kept):
            kept.append(name)
    return sum(spent_j[name] for name in kept)


def _same(one: str, other: str, spent: float, before: Reading, now: Reading) -> bool:
    """Whether two names are of one counter: they stand at one value, before and after."""
    near_j = max(_NEAR_J, _NEAR * spent)
    return all(_apart_j(reading[one], reading[other]) <= near_j for reading in (before, now))


def _apart_j(one: object, other: object) -> float:
    assert isinstance(one, Counter)
    assert isinstance(other, Counter)
    apart_j = abs(one.energy_j - other.energy_j)
    # one of them may have begun again already
    return apart_j if one.range_j is None else min(apart_j, abs(one.range_j - apart_j))
