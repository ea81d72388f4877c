"""The old values of a host's controls on disk: there before the first of them is written, whoever is killed.

Who writes caps holds a lock that the kernel takes back with its process; the record is gone once the old
values are back. One of before the machine was started anew is void: devices begin with their own values.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from dask_hpc.worker.power.caps.devices import Device, Leave
from dask_hpc.worker.power.figures import SensorError

_RECORD, _LOCK = "old-values.json", "writing.lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def folder_of(named: str | None) -> Path:
    """Where records of this host are: below `named`, else in a folder that outlives jobs.

    Nodes may share the folder: each has its own name in it.
    """
    base = Path(named or "/var/tmp")
    return base / f"dask-hpc-caps-{os.getuid()}-{os.uname().nodename}"


class Busy(SensorError):
    """Another process writes caps on this host.

    Parameters
    ----------
    pid
        Of it; None: it has just begun.
    """

    def __init__(self, pid: int | None) -> None:
        super().__init__(
            f"process {pid or 'of another worker'} caps this host already", "clear its corridor first"
        )
        self.pid = pid


class Record:
    """The hold on the record of this host: one process has it.

    Raises
    ------
    Busy
        While another process has it.
    SensorError
        When the folder cannot be made, or is somebody else's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _RECORD
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise SensorError(
                    f"{folder} belongs to somebody else, or others may write to it",
                    "remove it, or set hpc.power.cap.folder to another",
                )
            self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SensorError(
                f"{folder} cannot be used: {error.strerror or error}",
                "set hpc.power.cap.folder to one that can be written to",
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.pread(self._lock, 20, 0).decode(errors="replace")
            os.close(self._lock)
            raise Busy(int(said) if said.isdigit() else None) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._lock)

    def keep(self, by: str | None, values: Mapping[str, int | None]) -> None:
        """Have old values on disk; returns when they are."""
        boot = _text(_BOOT)
        new = self._path.with_suffix(".new")
        with new.open("w") as file:
            json.dump({"by": by, "boot": boot, "values": dict(values)}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def left(self) -> tuple[str, dict[str, int | None]] | None:
        """What was capped, and the old values, that a killed process has left; None: nothing.

        Raises
        ------
        SensorError
            When it is no such record.
        """
        try:
            data: Any = json.loads(self._path.read_text())
            by, boot, values = data["by"], data["boot"], data["values"]
            if not all(value is None or (type(value) is int and value >= 0) for value in values.values()):
                raise ValueError
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise SensorError(
                f"{self._path} holds no old values", "look at the limits yourself, then remove it"
            ) from None
        if boot != _text(_BOOT):
            self.forget()
            return None
        return str(by), values

    def forget(self) -> None:
        """The old values are back."""
        self._path.unlink(missing_ok=True)


def restore(record: Record, device: Device, values: Mapping[str, int | None]) -> None:
    """Write old values back, those that are in the record and that the device has, and forget the record.

    Raises
    ------
    SensorError
        When one cannot be written: the record stays, and the others are back.
    """
    # what is on disk does not say where is written: the device does
    known = {one.id: one.now for one in device.controls()}
    failed = [f"there is no {id} any more" for id in values if id not in known]
    for id in (id for id in values if id in known):
        if values[id] is not None and known[id] == values[id]:
            continue
        try:
            device.restore(id, values[id])
        except (OSError, SensorError) as error:
            failed.append(str(error))
    if failed:
        raise SensorError(
            f"not all old values are back: {'; '.join(failed)}", "dask hpc power restore tries it again"
        )
    record.forget()


def taken_back(folder: Path, leave: Leave, root: Path) -> dict[str, int | None]:
    """Write back what a killed process has left; gives what that was.

    Parameters
    ----------
    folder
        Of the record.
    leave
        Of this node; the record says by what it was capped.
    root
        What stands for ``/``.

    Raises
    ------
    Busy
        While a process caps this host.
    SensorError
        When it cannot be done.
    """
    if not folder.is_dir():
        return {}
    with Record(folder) as record:
        left = record.left()
        if left is None:
            return {}
        by, values = left
        restore(record, replace(leave, by=by).device(root), values)
        return values


def _text(path: Path) -> str:
    """What stands in a file; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
