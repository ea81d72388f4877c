"""One version of a session, from the call for it on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from dask_hpc.session.places import Done
from dask_hpc_policies.params import Duration

logger = logging.getLogger(__name__)

_TIMEOUT = Duration("timeout", None, lo=0.0, hi=30 * 86400.0, none_ok=True)


class SessionCommit:
    """A version under way or ended. Made by `CheckpointSession.commit`."""

    def __init__(self, name: str) -> None:
        self._future: Future[Done] = Future()
        self._row: dict[str, Any] = {"name": name, "version": None, "state": "writing", "reason": ""}
        self._row |= {"path": None, "levels": [], "blocks": 0, "bytes": 0}
        self._row |= dict.fromkeys(("held_s", "waiting_s", "copying_s", "writing_s", "finishing_s"), 0.0)

    def __repr__(self) -> str:
        row = self._row
        return f"<SessionCommit name={row['name']!r} version={row['version']} state={row['state']!r}>"

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return str(self._row["name"])

    @property
    def version(self) -> int | None:
        """Number of the version; None: it is not whole."""
        version: int | None = self._row["version"]
        return version

    @property
    def path(self) -> str | None:
        """Folder of the version, a Zarr group; None: it is not whole, or in the memories of hosts alone."""
        path: str | None = self._row["path"]
        return path

    def wait(self, timeout: float | str | None = None) -> SessionCommit:
        """Wait until the version is whole; gives this commit.

        Parameters
        ----------
        timeout
            Seconds to wait at most, or text such as ``"5 min"``; None: as long as it takes.

        Raises
        ------
        CheckpointError
            When there is no new version; earlier ones are as they were.
        ValueError
            When `timeout` is none.
        TimeoutError
            When it takes longer. It goes on all the same.
        """
        within_s = _TIMEOUT.validate(timeout)
        if not wait([self._future], within_s).done:
            raise TimeoutError(f"the version of {self.name!r} is not whole after {within_s:g} s; it goes on")
        self._future.result()
        return self

    def status(self) -> dict[str, Any]:
        """Name, version, state, the reason if it has failed, path, levels, blocks, bytes, and seconds.

        The ``reason`` of one that is whole says why it has not all levels that were asked for.

        ``held_s`` is how long the program was held up; of that, after `CheckpointSession.enable_async`,
        ``waiting_s`` for the version before and ``copying_s`` to copy the arrays. ``writing_s`` is until all
        blocks are durable, ``finishing_s`` from then until the version has its name.
        """
        return dict(self._row)

    def _problem(self) -> BaseException | None:
        """Waits; what has gone wrong."""
        return self._future.exception()

    def _start(self, write: Callable[[], Done]) -> None:
        """Write in a thread of its own; where none can be had, now."""
        try:
            threading.Thread(target=self._run, args=[write, True]).start()
        except RuntimeError as error:
            logger.warning("%s is written while its program waits: %s", self.name, error)
            self._run(write, True)

    def _run(self, write: Callable[[], Done], logged: bool) -> None:
        try:
            done = write()
        except BaseException as error:
            self._row |= {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
            if logged:
                logger.warning("%s has no new version: %s", self.name, error)
            self._future.set_exception(error)
            return
        self._row |= {"state": "complete", "version": done.version, "path": done.path}
        self._row |= {"levels": list(done.levels), "reason": done.problem}
        self._row |= {"blocks": done.blocks, "bytes": done.bytes}
        self._row |= {"writing_s": done.writing_s, "finishing_s": done.finishing_s}
        self._future.set_result(done)
