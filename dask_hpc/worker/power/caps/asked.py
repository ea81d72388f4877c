"""What a worker does when the scheduler asks it for a cap of its host.

Leave is the node's own: without it (``hpc.power.cap.by``) nothing is looked at, and until
``hpc.power.cap.write`` is set it is told what would be written, and nothing is. A refusal is a value, with
its reason.

Rules of the file: the loop of the worker waits for no device.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributed.core import Status

from dask_hpc.config import Settings
from dask_hpc.worker.node import node_settings
from dask_hpc.worker.power.caps.devices import Leave
from dask_hpc.worker.power.caps.keeper import __name__ as _KEEPER
from dask_hpc.worker.power.caps.record import folder_of
from dask_hpc.worker.power.figures import SensorError

logger = logging.getLogger("distributed.dask_hpc.power")

_ROOT = Path("/")
#: A device has so long to take a value, beside what a command may take.
_PATIENCE_S = 5.0
#: A worker is closed soon, or is.
_CLOSES = (Status.closing, Status.closed, Status.failed)
_REMEDY = "dask hpc power restore brings the old values back"


def leave_of(settings: Settings) -> Leave:
    """What the settings of a node allow."""
    return Leave(
        by=settings.power_cap_by,
        least_w=settings.power_cap_least_w,
        most_w=settings.power_cap_most_w,
        command=settings.power_cap_command,
        release=settings.power_cap_release,
        idle_w=settings.power_model_idle_w,
        busy_w=settings.power_model_busy_w,
        timeout_s=settings.power_timeout_s,
    )


class Caps:
    """The caps that a worker has been asked for.

    Parameters
    ----------
    settings
        Of the node.
    root
        The folder that stands for ``/``.
    """

    def __init__(self, settings: Settings, root: Path = _ROOT) -> None:
        self._settings, self._root = settings, root
        self._keeper: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()
        #: What it can be capped at, from before it was.
        self._said: dict[str, Any] = {}
        self._ended = False

    async def cap(self, watts: float | None, *, look: bool = False) -> dict[str, Any]:
        """Cap the host at so many watts; None: not any more.

        Parameters
        ----------
        look
            Only say what it can be capped at.

        Returns
        -------
        dict
            ``state`` (``refused``, ``ready``, ``dry-run``, ``written``, ``released``); ``least_w``,
            ``most_w`` that it can be capped at; ``values``, pairs of the old and the new one by control;
            ``silence_s`` after which the cap ends by itself; ``reason`` and ``remedy`` of a refusal.
        """
        async with self._turn:
            try:
                if self._ended:
                    raise _closes()
                return await asyncio.to_thread(self._look if look else self._cap, watts)
            except SensorError as error:
                await asyncio.to_thread(self.stop)
                return _refused(error)

    def _cap(self, watts: float | None) -> dict[str, Any]:
        if watts is None:
            if (failed := self.stop()) is not None:
                raise failed
            return {"state": "released"}
        if not self._settings.power_cap_write:
            return self._look(watts)
        if self._keeper is not None and self._keeper.poll() is not None and (failed := self.stop()):
            raise failed
        if self._keeper is None:
            self._look(None)
            self._start(leave_of(self._settings))
        return {**self._said, "state": "written", **self._asked({"watts": watts})}

    def _look(self, watts: float | None) -> dict[str, Any]:
        """What a cap would write; of none, what it can be. Nothing is written."""
        if self._keeper is not None:
            return self._said
        leave = leave_of(self._settings)
        # without leave it says so
        device = leave.device(self._root)
        try:
            controls = device.controls()
        except OSError as error:
            raise SensorError(f"{error.filename} cannot be read: {error.strerror}") from None
        values = {} if watts is None else device.values(leave.asked_w(watts), controls)
        least_w, most_w = device.range_w(controls)
        self._said = {
            "state": "ready" if watts is None else "dry-run",
            "least_w": leave.asked_w(least_w),
            "most_w": leave.asked_w(most_w),
            "silence_s": self._settings.power_cap_silence_s,
        }
        rows = {
            one.id: [one.now, values[one.id]] for one in controls if values.get(one.id) not in (None, one.now)
        }
        return {**self._said, "values": rows}

    def _start(self, leave: Leave) -> None:
        """Start the process that writes."""
        self._keeper = subprocess.Popen(
            # -P: what lies in the working directory is not imported
            (sys.executable, "-P", "-m", _KEEPER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # signals to the worker's group are not for it
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        folder = folder_of(self._settings.power_cap_folder)
        self._asked(
            {
                "leave": asdict(leave),
                "root": str(self._root),
                "folder": str(folder),
                "silence_s": self._settings.power_cap_silence_s,
            }
        )

    def _asked(self, row: dict[str, Any]) -> dict[str, Any]:
        """The keeper's answer."""
        keeper = self._keeper
        assert keeper is not None
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        answer = b""
        with suppress(BrokenPipeError):
            keeper.stdin.write(json.dumps(row).encode() + b"\n")
            keeper.stdin.flush()
            patience_s = _PATIENCE_S + 2 * self._settings.power_timeout_s
            answers = select.poll()
            answers.register(keeper.stdout, select.POLLIN)
            if answers.poll(1e3 * patience_s):
                answer = keeper.stdout.readline()
        if not answer:
            raise SensorError("the process that writes caps does not answer, or has ended")
        found: dict[str, Any] = json.loads(answer)
        if "reason" in found:
            raise SensorError(found["reason"], found["remedy"])
        if "ended" in found:
            raise SensorError("the cap had just ended, as nobody had asked for it again")
        return found

    async def end(self) -> SensorError | None:
        """`stop` beside the loop, after what is under way; nothing is capped any more."""
        self._ended = True
        async with self._turn:
            try:
                return await asyncio.to_thread(self.stop)
            except RuntimeError:
                # the interpreter ends, and has no more threads
                return self.stop()

    def stop(self) -> SensorError | None:
        """Have the old values back; returns when they are, or why they are not. It may block for seconds."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return None
        try:
            # the end of what it is told
            answer, _ = keeper.communicate(timeout=_PATIENCE_S + 2 * self._settings.power_timeout_s)
        except subprocess.TimeoutExpired:
            # one that hangs in a device cannot be helped: the record is on disk
            return SensorError("the process that writes caps does not end", _REMEDY)
        lines = answer.splitlines()
        found = json.loads(lines[-1]) if lines else {}
        if "reason" in found:
            return SensorError(found["reason"], found["remedy"])
        # what it has answered before and nobody has read is not its last word
        return None if "ended" in found else SensorError("the process that writes caps was killed", _REMEDY)


def _closes() -> SensorError:
    return SensorError("its worker closes")


def _refused(error: SensorError) -> dict[str, Any]:
    return {"state": "refused", "reason": error.reason, "remedy": error.remedy}


#: By worker, those that were asked.
_caps: dict[Any, Caps] = {}


async def cap(worker: Any, watts: float | None, look: bool) -> dict[str, Any]:
    """`Caps.cap` of a worker, by the configuration of its node."""
    if worker not in _caps:
        if worker.status in _CLOSES:
            # it answers until it is closed, and nobody would have the old values back a second time
            return _refused(_closes())
        _caps[worker] = Caps(node_settings(), _ROOT)
    return await _caps[worker].cap(watts, look=look)


def stop(worker: Any) -> Awaitable[None] | None:
    """Have the old values back, which is to be awaited; None: nobody has asked for a cap."""
    caps = _caps.pop(worker, None)
    return None if caps is None else _stopped(caps)


async def _stopped(caps: Caps) -> None:
    if (failed := await caps.end()) is not None:
        logger.warning("The caps of this host: %s; %s", failed.reason, failed.remedy)
