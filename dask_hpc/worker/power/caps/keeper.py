"""A process of its own that writes caps of a host, and the old values back however its worker ends.

The worker that has started it says on its standard input what to cap: the end of that, which the kernel tells
of a worker that was killed as well, silence for longer than is allowed, and SIGTERM all end the caps. Of
itself being killed the record on disk is left (`record`).

Rules of the file: no loop, no thread, nothing of Dask. Lines are JSON; each is answered by one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dask_hpc.worker.power.caps.devices import mapped
from dask_hpc.worker.power.caps.record import Record, restore
from dask_hpc.worker.power.figures import SensorError

_MOST_BYTES = 65_536
#: Its worker has so long to say what it is for.
_FIRST_S = 60.0


class _Ended(Exception):
    """It is to end."""


class Keeper:
    """The caps of this host.

    Parameters
    ----------
    leave
        Arguments of `Leave`.
    root, folder
        What stands for ``/``, and where the record is.

    Raises
    ------
    SensorError
        When it may not, or cannot; nothing is written then but what a killed one has left.
    """

    def __init__(self, leave: Mapping[str, Any], root: Path, folder: Path) -> None:
        self._leave = mapped(leave)
        self._device = self._leave.device(root)
        self._record = Record(folder)
        try:
            self._recover(root)
            self._controls = self._device.controls()
        except BaseException:
            self._record.close()
            raise
        #: Whether the record holds the old values of `_controls`, and what has been written since.
        self._kept = False
        self._written: dict[str, int] = {}

    def _recover(self, root: Path) -> None:
        """Write back what a killed one has left, before anything is looked at."""
        left = self._record.left()
        if left is not None:
            by, values = left
            restore(self._record, replace(self._leave, by=by).device(root), values)

    def cap(self, watts: float) -> dict[str, Any]:
        """Write a cap; all or nothing.

        Raises
        ------
        SensorError
            When one of its values cannot be written: the old ones are back then.
        """
        values = self._device.values(self._leave.asked_w(watts), self._controls)
        old = self._old()
        if not self._kept:
            self._record.keep(self._leave.by, old)
            self._kept = True
        for id, value in values.items():
            if self._written.get(id, old[id]) == value:
                continue
            try:
                self._device.write(id, value)
            except (OSError, SensorError) as error:
                self.end()
                raise SensorError(str(error), getattr(error, "remedy", "")) from None
            self._written[id] = value
        return {"values": {id: [old[id], value] for id, value in values.items() if old[id] != value}}

    def end(self) -> None:
        """Write the old values back.

        Raises
        ------
        SensorError
            When that cannot be done; the record stays.
        """
        if self._kept:
            restore(self._record, self._device, self._old())
            self._kept, self._written = False, {}

    def _old(self) -> dict[str, int | None]:
        return {one.id: one.now for one in self._controls}


def _said(error: SensorError) -> dict[str, Any]:
    return {"reason": error.reason, "remedy": error.remedy}


def _answer(row: Mapping[str, Any]) -> None:
    # the worker may be gone: its end comes as the end of the input
    with suppress(OSError):
        os.write(sys.stdout.fileno(), json.dumps(row).encode() + b"\n")


def _lines(terms: Mapping[str, Any]) -> Iterator[bytes]:
    """What the worker says, line by line, until it ends or is silent for too long (``silence_s``)."""
    source, rest = sys.stdin.fileno(), b""
    while True:
        ready, _, _ = select.select([source], [], [], terms["silence_s"])
        more = os.read(source, _MOST_BYTES) if ready else b""
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        yield from lines


def main() -> int:
    """Read what to do and do it; gives the exit code."""

    def ended(*_: object) -> None:
        raise _Ended

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ended)
    keeper: Keeper | None = None
    try:
        terms: dict[str, Any] = {"silence_s": _FIRST_S}
        lines = _lines(terms)
        terms.update(json.loads(next(lines, b"{}")))
        try:
            keeper = Keeper(terms["leave"], Path(terms["root"]), Path(terms["folder"]))
        except SensorError as error:
            _answer(_said(error))
            return 1
        _answer({})
        for line in lines:
            try:
                _answer(keeper.cap(json.loads(line)["watts"]))
            except SensorError as error:
                _answer(_said(error))
    except _Ended:
        pass
    finally:
        # a second signal is not to cut the old values off
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        failed = _taken_back(keeper)
    _answer({"ended": True, **failed})
    return 1 if failed else 0


def _taken_back(keeper: Keeper | None) -> dict[str, Any]:
    try:
        if keeper is not None:
            keeper.end()
    except SensorError as error:
        return _said(error)
    return {}


if __name__ == "__main__":
    sys.exit(main())
