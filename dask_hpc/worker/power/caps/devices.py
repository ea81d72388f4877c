"""What a host may be capped by, as controls: values that a device has, and their limits.

A cap never raises anything: what a device is at when it is first looked at is the most that it gets. It is
for the part that the device governs (processors, accelerators); boards and fans draw beside it.

Rules of the file: nothing is written but by `write`, and by it only to controls that the device itself has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dask_hpc.worker.power import files
from dask_hpc.worker.power.commands import printed
from dask_hpc.worker.power.figures import SensorError
from dask_hpc.worker.power.nvml import nvml_error, opened
from dask_hpc.worker.power.rapl import zones

#: Constraints of a zone that a cap lowers: the mean over its window, and what may be drawn for a moment.
_CONSTRAINTS = ("long_term", "short_term")
_LEAST = "set hpc.power.cap.least (watts of this host) on this node"


@dataclass(frozen=True, slots=True)
class Control:
    """One value of a device: µW, mW or kHz as it is written there."""

    #: Its file, or the id of the accelerator.
    id: str
    #: None: the device does not say.
    now: int | None
    least: int
    #: Neither more than the device takes, nor than `now`.
    most: int

    def within(self, value: float) -> int:
        """`value` within the limits."""
        return round(min(self.most, max(self.least, value)))


class Device(Protocol):
    """A way to cap this host."""

    def controls(self) -> Sequence[Control]:
        """As they are now; raises `SensorError` where there are none, or their limits are not known."""

    def values(self, watts: float, controls: Sequence[Control]) -> dict[str, int]:
        """What a cap of so many watts would have controls be."""

    def range_w(self, controls: Sequence[Control]) -> tuple[float, float]:
        """Least and most watts that it can be capped at."""

    def write(self, id: str, value: int) -> None:
        """Write one; raises `SensorError` or OSError."""

    def restore(self, id: str, old: int | None) -> None:
        """Write an old value back; raises `SensorError` or OSError."""


class Files:
    """Controls that are files of the kernel."""

    def write(self, id: str, value: int) -> None:
        """Write one."""
        path = Path(id)
        try:
            path.write_text(f"{value}\n")
        except PermissionError:
            raise SensorError(
                f"{path} cannot be written: permission denied",
                "ask the administrator for write access to it, or set hpc.power.cap.by to another",
            ) from None

    def restore(self, id: str, old: int | None) -> None:
        """Write an old value back."""
        assert old is not None
        self.write(id, old)


class Powercap(Files):
    """The power limits of the packages below ``/sys/class/powercap``; each gets an equal part.

    Parameters
    ----------
    root
        The folder that stands for ``/``.
    least_w
        Of the host, where packages do not say how little they take; None: they must.
    """

    def __init__(self, root: Path, least_w: float | None) -> None:
        self._root, self._least_w = root, least_w

    def controls(self) -> Sequence[Control]:
        """Limits of all packages; one that is switched off is a control of its own."""
        packages = [zone for zone in zones(self._root) if zone.kind == "package"]
        # several drivers may show one package: the preferred one is first
        chosen = {zone.what: zone.path for zone in reversed(packages)}
        found: list[Control] = []
        for path in chosen.values():
            found += self._zone(path, len(chosen))
        if not found:
            raise SensorError(
                f"no power limit below {files.system(self._root)}/class/powercap",
                "only Intel's processors have them: set hpc.power.cap.by to another",
            )
        return found

    def _zone(self, path: Path, packages: int) -> list[Control]:
        found: list[Control] = []
        for index in range(3):
            at = f"constraint_{index}"
            if files.name_of(path / f"{at}_name") not in _CONSTRAINTS:
                continue
            limit = path / f"{at}_power_limit_uw"
            now = int(files.number(limit))
            least, most = (_known(path / f"{at}_{name}_power_uw") for name in ("min", "max"))
            if not least and self._least_w is None:
                raise SensorError(f"{path} does not say how little it takes", _LEAST)
            floor = max(least, round((self._least_w or 0.0) * 1e6 / packages))
            # some say 0 for a limit that they do not know
            found.append(Control(str(limit), now, min(floor, now), min(most or now, now)))
        if found and (enabled := files.name_of(path / "enabled")) in ("0", "1"):
            found.append(Control(str(path / "enabled"), int(enabled), 1, 1))
        return found

    def values(self, watts: float, controls: Sequence[Control]) -> dict[str, int]:
        """Equal parts of the watts; limits that are off are switched on."""
        limits = _limits(controls)
        share = watts * 1e6 / max(1, len({Path(one.id).parent for one in limits}))
        return {one.id: one.within(share) if one in limits else 1 for one in controls}

    def range_w(self, controls: Sequence[Control]) -> tuple[float, float]:
        """By the limits of the mean."""
        by_zone: dict[Path, Control] = {}
        for one in _limits(controls):
            by_zone.setdefault(Path(one.id).parent, one)
        return (
            sum(one.least for one in by_zone.values()) / 1e6,
            sum(max(one.least, one.most) for one in by_zone.values()) / 1e6,
        )


def _limits(controls: Sequence[Control]) -> list[Control]:
    return [one for one in controls if not one.id.endswith("enabled")]


def _known(path: Path) -> int:
    """What a file says; 0 when it is not there."""
    try:
        return int(files.number(path))
    except (OSError, SensorError):
        return 0


class Cpufreq(Files):
    """The highest frequencies of the processors, below ``/sys/devices/system/cpu/cpufreq``.

    Watts become a frequency by a line from the lowest at idle watts to the highest at busy ones. What a
    processor draws grows faster than its frequency, so it draws less than that line between the two.

    Parameters
    ----------
    root
        The folder that stands for ``/``.
    idle_w, busy_w
        Of the host (``hpc.power.model.idle``, ``hpc.power.model.busy``).
    """

    def __init__(self, root: Path, idle_w: float | None, busy_w: float | None) -> None:
        self._root = root
        if idle_w is None or busy_w is None or not busy_w > idle_w:
            raise SensorError(
                "what frequency so many watts are is not known",
                "set hpc.power.model.idle and hpc.power.model.busy (watts of this host) on this node",
            )
        self._idle_w, self._busy_w = idle_w, busy_w

    def controls(self) -> Sequence[Control]:
        """One a group of processors that have one frequency."""
        base = files.system(self._root) / "devices" / "system" / "cpu" / "cpufreq"
        found = []
        for policy in sorted(base.glob("policy*")):
            path = policy / "scaling_max_freq"
            now = int(files.number(path))
            least, most = (int(files.number(policy / f"cpuinfo_{name}_freq")) for name in ("min", "max"))
            found.append(Control(str(path), now, min(least, now), min(most, now)))
        if not found:
            raise SensorError(f"no frequency that can be set below {base}", "virtual machines have none")
        return found

    def values(self, watts: float, controls: Sequence[Control]) -> dict[str, int]:
        """All at the same share of the way from the lowest to the highest."""
        share = (watts - self._idle_w) / (self._busy_w - self._idle_w)
        return {one.id: one.within(one.least + share * (one.most - one.least)) for one in controls}

    def range_w(self, controls: Sequence[Control]) -> tuple[float, float]:
        """From all at the lowest to all at the highest."""
        return self._idle_w, self._busy_w


class Nvml:
    """The power limits of NVIDIA's accelerators; each gets an equal part."""

    def __init__(self, library: Any = None) -> None:
        self._library = library

    def controls(self) -> Sequence[Control]:
        """One an accelerator."""
        library, handles = self._opened()
        with nvml_error(library):
            found = []
            for id, handle in handles.items():
                now = int(library.nvmlDeviceGetPowerManagementLimit(handle))
                least, most = map(int, library.nvmlDeviceGetPowerManagementLimitConstraints(handle))
                found.append(Control(id, now, min(least, now), min(most, now)))
        return found

    def values(self, watts: float, controls: Sequence[Control]) -> dict[str, int]:
        """Equal parts of the watts."""
        return {one.id: one.within(watts * 1e3 / len(controls)) for one in controls}

    def range_w(self, controls: Sequence[Control]) -> tuple[float, float]:
        """All of them together."""
        return sum(one.least for one in controls) / 1e3, sum(one.most for one in controls) / 1e3

    def write(self, id: str, value: int) -> None:
        """Write one."""
        library, handles = self._opened()
        if id not in handles:
            raise SensorError(f"NVML knows of no accelerator {id} any more")
        with nvml_error(library):
            library.nvmlDeviceSetPowerManagementLimit(handles[id], value)

    def restore(self, id: str, old: int | None) -> None:
        """Write an old value back."""
        assert old is not None
        self.write(id, old)

    def _opened(self) -> tuple[Any, dict[str, Any]]:
        library, handles = opened(self._library)
        with nvml_error(library):
            return library, {_text(library.nvmlDeviceGetUUID(handle)): handle for handle in handles}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Command:
    """A site's own programs, such as ``ipmitool dcmi power set_limit limit {watts}``; no shell reads them.

    Parameters
    ----------
    command, release
        That cap the host at ``{watts}``, which stands in a word of its own or in one, and that end it.
    least_w, most_w
        What the host may be capped at.
    timeout_s
        Seconds that each may take.
    """

    _ID = "command"

    def __init__(
        self,
        command: Sequence[str] | None,
        release: Sequence[str] | None,
        least_w: float | None,
        most_w: float | None,
        timeout_s: float,
    ) -> None:
        given = {"command": command, "release": release, "least": least_w, "most": most_w}
        missing = [name for name, value in given.items() if value is None]
        if missing:
            names = ", ".join(f"hpc.power.cap.{name}" for name in missing)
            raise SensorError(f"{names} not set", "a command needs them; set them on this node")
        assert command is not None
        assert release is not None
        if not any("{watts}" in word for word in command[1:]):
            raise SensorError("hpc.power.cap.command has no {watts} in its arguments", "add it")
        self._command, self._release, self._timeout_s = command, release, timeout_s
        self._range_w = (least_w or 0.0, most_w or 0.0)

    def controls(self) -> Sequence[Control]:
        """One, in watts."""
        least_w, most_w = self._range_w
        return [Control(self._ID, None, round(least_w), round(most_w))]

    def values(self, watts: float, controls: Sequence[Control]) -> dict[str, int]:
        """The watts."""
        return {one.id: one.within(watts) for one in controls}

    def range_w(self, controls: Sequence[Control]) -> tuple[float, float]:
        """As they are set."""
        return self._range_w

    def write(self, id: str, value: int) -> None:
        """Have the command cap the host."""
        printed([word.replace("{watts}", str(value)) for word in self._command], self._timeout_s)

    def restore(self, id: str, old: int | None) -> None:
        """Have the other command end it."""
        printed(self._release, self._timeout_s)


@dataclass(frozen=True, slots=True)
class Leave:
    """What this node's own configuration says of caps (section ``power.cap``)."""

    #: None: there is no leave.
    by: str | None
    least_w: float | None = None
    most_w: float | None = None
    command: tuple[str, ...] | None = None
    release: tuple[str, ...] | None = None
    idle_w: float | None = None
    busy_w: float | None = None
    timeout_s: float = 5.0

    def device(self, root: Path) -> Device:
        """The device.

        Raises
        ------
        SensorError
            Where caps are not allowed, or a setting is missing.
        """
        if self.by == "powercap":
            return Powercap(root, self.least_w)
        if self.by == "cpufreq":
            return Cpufreq(root, self.idle_w, self.busy_w)
        if self.by == "nvml":
            return Nvml()
        if self.by == "command":
            return Command(self.command, self.release, self.least_w, self.most_w, self.timeout_s)
        raise SensorError("this node gives no leave for caps", "set hpc.power.cap.by in its configuration")

    def asked_w(self, watts: float) -> float:
        """`watts` within what is allowed here."""
        least_w, most_w = self.least_w or 0.0, self.most_w
        return max(least_w, watts if most_w is None else min(watts, most_w))


def mapped(values: Mapping[str, Any]) -> Leave:
    """The leave that plain data describe."""
    words = {name: tuple(values[name]) for name in ("command", "release") if values.get(name) is not None}
    return Leave(**{**values, **words})
