"""Small files of the kernel below a root folder, and why one cannot be read.

Rules of the file: every reader takes the folder that stands for ``/``, so that a copied tree is read like
the machine itself.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from dask_hpc.worker.power.figures import SensorError

#: No file of a sensor is longer.
_MOST_BYTES = 4096


def system(root: Path) -> Path:
    """The folder that stands for ``/sys``: below `root`, or `root` itself when it is a copy of that alone."""
    return root / "sys" if (root / "sys").is_dir() else root


def folder(root: Path, names: Iterable[str]) -> Path | None:
    """The first of some folders below ``/sys`` that is there; None when none is."""
    base = system(root)
    return next((base / name for name in names if (base / name).is_dir()), None)


def text(path: Path) -> str:
    """What stands in a file, without the newline.

    Raises
    ------
    OSError
        When it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def opened(path: Path) -> TextIO:
    """A table that a user names, to be read; whoever reads closes it.

    Raises
    ------
    OSError
        When it cannot be read, or is a pipe or a device, which may have the reader wait for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    return open(descriptor, encoding="utf-8-sig", errors="replace", newline="")


def name_of(path: Path) -> str:
    """What stands in a file; empty when it cannot be read."""
    try:
        return text(path)
    except OSError:
        return ""


def number(path: Path, value: str | None = None) -> float:
    """The number in a file, or in the text `value` of it.

    Raises
    ------
    OSError
        When it cannot be read.
    SensorError
        When no number from 0 on stands there.
    """
    found = text(path) if value is None else value
    try:
        result = float(found)
    except ValueError:
        raise SensorError(f"{path} says {found[:60]!r}, which is no number") from None
    if not 0 <= result < float("inf"):
        raise SensorError(f"{path} says {result:g}; expected a number from 0 on")
    return result


def denied(what: str, path: Path) -> SensorError:
    """The error of files that only root may read."""
    return SensorError(
        f"{what} cannot be read: permission denied for {path}",
        f"ask the administrator for read access to {path} and its like, or set hpc.power.source to another",
    )
