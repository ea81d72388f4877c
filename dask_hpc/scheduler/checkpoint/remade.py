"""Which results of versions stock could make again: what each was made from is followed once.

That takes as long as there are tasks on the way, on the loop of the scheduler, and in a program that goes
step by step each result hangs on all steps before. So it ends at results of which it is known already: those
that a version protects, or that have been written of one that is not whole yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.tables.state import State


class Remade:
    """What is known of that on one scheduler."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: Keys that stock could make again, or that are read. An object anew when that may hold no more.
        self._keys: dict[Any, bool] = {}
        self._made_plain = state.made_plain

    def finder(self) -> Callable[[Collection[Any]], set[Any]]:
        """Gives what finds those of some keys that stock could not make again (`reads.not_remade`).

        Of what it has seen on the way it looks at nothing twice.
        """
        known: dict[Any, bool] = {}
        of: dict[Any, bool] | None = None

        def find(keys: Collection[Any]) -> set[Any]:
            """Those of these keys."""
            nonlocal known, of
            if self._made_plain != self._state.made_plain:
                self.outdate()
            tasks = self._state.scheduler.tasks
            if not (new := [key for key in keys if key in tasks and key not in self._keys]):
                return set()
            if of is not self._keys:
                of, known = self._keys, dict(self._keys)
            found = reads.not_remade(self._state.scheduler, new, known)
            self._keys.update((key, False) for key in new if key not in found)
            return found

        return find

    def drop(self, key: Any) -> None:
        """No version has it any more, or it is forgotten: another one may come to have its name."""
        self._keys.pop(key, None)

    def outdate(self) -> None:
        """Something is made as before again, was made plain data, or is lost: others may hang on that."""
        self._keys, self._made_plain = {}, self._state.made_plain
