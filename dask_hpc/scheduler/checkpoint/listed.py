"""What one store says of where the managers of a scheduler are, in the order in which it was wanted.

Versions in memory need no store: who has it told something waits for a while, and for one that hangs not
again before it answers. What was wanted last is there last, however long a store has kept one write: writes
follow each other, and each has what is wanted when it begins.
"""

from __future__ import annotations

import asyncio
import logging

from dask_hpc.checkpoint import store_threads, whereabouts
from dask_hpc.checkpoint.whereabouts import Whereabouts

logger = logging.getLogger(__name__)


class Listed:
    """One store, and what it is to say of the managers of the scheduler with the id `cluster`."""

    def __init__(self, store: str, cluster: str) -> None:
        self._store, self._cluster = store, cluster
        self._wanted: Whereabouts | None = None
        #: Whether the store says what is wanted, or is about to.
        self._said = True
        self._saying: asyncio.Task[None] | None = None
        #: Whether somebody has waited in vain for what is under way.
        self._hangs = False

    async def want(self, told: Whereabouts | None) -> None:
        """Have the store say this from now on, None: nothing; come back when it does, or takes too long.

        The log says when it cannot; then it is tried again when something is wanted next.
        """
        if told != self._wanted:
            self._wanted, self._said = told, False
        if not self._said and (self._saying is None or self._saying.done()):
            self._saying = asyncio.ensure_future(self._say())
        if self._saying is None or self._hangs:
            return
        patience_s = store_threads.PATIENCE_S
        _, late = await asyncio.wait([self._saying], timeout=patience_s)
        if late and not self._hangs:
            self._hangs = True
            logger.warning(
                "The store does not say where managers are: it has not answered within %g s", patience_s
            )

    async def _say(self) -> None:
        while not self._said:
            told, self._said = self._wanted, True
            try:
                await store_threads.in_store(self._write, told)
            except OSError as error:
                if told is not self._wanted:
                    continue  # something else is wanted by now
                self._said = False
                logger.warning("The store does not say where managers are: %s", error)
                return
            finally:
                self._hangs = False  # it answers

    def _write(self, told: Whereabouts | None) -> None:
        if told is None:
            whereabouts.forget(self._store, self._cluster)
        else:
            whereabouts.save(self._store, told)
