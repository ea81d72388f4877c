"""The file of settings (``hpc.settings-file``): looked at now and then, applied when it has changed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tornado.ioloop import PeriodicCallback

from dask_hpc.config.file import AGAIN_S, Mark, mark, read_changes
from dask_hpc.config.rows import find
from dask_hpc.errors import DaskHPCError
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.params import shown

logger = logging.getLogger(__name__)

_NAME = "hpc-settings-file"


class SettingsFile:
    """Has what the file says applied by the update that clients have; a bad file changes nothing.

    Settings that it does not name any more are again what they are configured as, and an update by a client
    holds until the file changes again.

    Parameters
    ----------
    path
        Of the file.
    update
        Changes settings, all or nothing.
    """

    def __init__(self, state: State, path: str, update: Callable[..., Awaitable[Any]]) -> None:
        self._state = state
        self._path = path
        self._update = update
        #: Of the file as it was looked at last, and what was wrong with it then.
        self._mark: Mark | None = None
        #: What is configured, and the settings that the file has named when it was applied last.
        self._configured = state.settings
        self._named: set[str] = set()
        self._problem = ""
        #: When it is tried again although it is the same: what was wrong may be its rights, or a folder.
        self._again_s = math.inf
        self._applied_s: float | None = None
        # also without a job, when nothing else ticks; the scheduler stops it when it closes
        self._callback = PeriodicCallback(self._look, state.settings.tick_s * 1000)
        state.scheduler.periodic_callbacks[_NAME] = self._callback
        self._callback.start()

    def status(self) -> Mapping[str, Any]:
        """The file, when it was applied last on the runtime's clock, and what is wrong with it."""
        row = {"path": self._path, "applied_s": self._applied_s, "problem": self._problem}
        return {"settings_file": row}

    def unwrap(self) -> None:
        """Look at it no more."""
        self._state.scheduler.periodic_callbacks.pop(_NAME, None)
        self._callback.stop()

    async def _look(self) -> None:
        """In a thread: a file system may take its time. It is not called again before it has ended."""
        self._callback.callback_time = self._state.settings.tick_s * 1000
        found = await asyncio.to_thread(mark, self._path)
        same = found == self._mark and (found is not None or bool(self._problem))
        if same and self._state.now_s() < self._again_s:
            return
        self._mark, self._again_s = found, math.inf
        try:
            changes = await asyncio.to_thread(read_changes, self._path)
            if not self._callback.is_running():
                return
            named = {find(name).key for name in changes}
            back = {name: find(name).of(self._configured) for name in sorted(self._named - named)}
            await self._update(parameters={**back, **changes})
        except (DaskHPCError, ValueError) as error:
            if not same or str(error) != self._problem:
                logger.error("Settings stay as they are, %s is not applied: %s", self._path, error)
            self._problem, self._again_s = str(error), self._state.now_s() + AGAIN_S
        else:
            self._problem, self._applied_s = "", self._state.now_s()
            self._named = named
            logger.info("Settings of %s are applied: %s", self._path, ", ".join(changes) or "none")
            for name, value in back.items():
                text = "%s does not name hpc.%s any more: it is %s again, as configured"
                logger.info(text, self._path, name, shown(value))
