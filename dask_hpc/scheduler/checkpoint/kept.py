"""Versions in memory that are nobody's results: the state of a program, and what a client has let go of.

A newer version takes the place of the one before only once it is whole, as John (2024, section 6.2.3.2) has
it. A loop that lets go of the results of one step before those of the next are written would have none in
between. So the newest stays until the next one of its name is whole, or nobody has begun one for a while.
That takes the room of two versions of a name at most, of one of results that a store has, too: where there
is no more room, they go from memory before the next ones come (`Held.make_room`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from typing import Any

from dask_hpc.scheduler.checkpoint.memory import Memory

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Kept:
    """What is kept of a name: one version, or a newer one beside it that has less redundancy."""

    folders: set[str]
    #: Its results.
    keys: Collection[Any] = ()


class Kept:
    """The versions of one scheduler that are kept though no result is read from them.

    Those of a program's state and those of results are apart, also where they have one name.

    Parameters
    ----------
    stays
        Whether what is kept of a name stays: the next version is being written, or somebody has one of its
        results, which versions of other names may have, too.
    ended
        Called when one was let go of that nobody began a newer one of.
    used
        Folders that results may be read from (again): those go with the last of these results.
    """

    def __init__(
        self,
        memory: Memory,
        stays: Callable[[str, Collection[Any]], bool],
        ended: Callable[[], None],
        used: Callable[[], Set[str]],
    ) -> None:
        self._memory, self._stays, self._ended, self._used = memory, stays, ended, used
        #: By name, and whether they are of a state.
        self._of: dict[tuple[str, bool], _Kept] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    @property
    def folders(self) -> dict[str, str]:
        """Name of each."""
        return {folder: name for (name, _), one in self._of.items() for folder in one.folders}

    def has_state(self, name: str) -> bool:
        """Whether the state of a program is kept under this name."""
        return (name, True) in self._of

    def keep(self, name: str, folders: Collection[str], state: bool, keys: Collection[Any] = ()) -> None:
        """Keep these, too, with the results `keys`; a version that is made again is told by `remade`."""
        before = self._of.get((name, state))
        if before is None:
            self._of[name, state] = _Kept(set(folders), keys)
        else:
            # what reads it has other keys
            self._of[name, state] = _Kept(before.folders | set(folders), {*before.keys, *keys})

    def linger(self, name: str, state: bool, after_s: float) -> None:
        """Let go of what is kept of a name now after so long, unless it stays then."""
        if (one := self._of.get((name, state))) is not None:
            asyncio.get_running_loop().call_later(after_s, self._expire, name, state, one, after_s)

    def replace(self, name: str, state: bool, as_asked: bool) -> None:
        """A newer version is whole. Where it has not the redundancy that was asked for, older ones that have
        it stay: hosts may have been lost while parities were made.
        """
        one = self._of.pop((name, state), None)
        if one is not None and not as_asked and (shared := self._shared(one.folders)):
            self._of[name, state] = _Kept(shared, one.keys)
            one.folders -= shared
        if one is not None:
            self._memory.drop(one.folders - self._used())

    def make_room(self, name: str, state: bool) -> None:
        """Of what stayed beside a newer version, the newer one goes: there is room for two versions."""
        one = self._of.get((name, state))
        if one is not None and len(one.folders) > 1 and (alone := one.folders - self._shared(one.folders)):
            one.folders -= alone
            self._memory.drop(alone - self._used())

    def remade(self, folder: str, made: str) -> bool:
        """A version has another name in memory from now on; whether it is still kept."""
        for one in self._of.values():
            if folder in one.folders:
                one.folders -= {folder}
                one.folders |= {made}
                return True
        return False

    def clear(self) -> None:
        """Keep nothing any more, whatever becomes of it."""
        self._of.clear()

    def _expire(self, name: str, state: bool, one: _Kept, after_s: float) -> None:
        if self._of.get((name, state)) is not one:
            return  # a newer one has come
        if self._stays(name, one.keys):
            self.linger(name, state, after_s)
            return
        del self._of[name, state]
        unused = one.folders - self._used()
        if unused and not state:
            logger.warning(
                "The last version of %r is gone: it was in the memory of hosts alone, and nobody has had its "
                "results for %g s; a version in a store stays (hpc.checkpoint.store)",
                name,
                after_s,
            )
        self._memory.drop(unused)
        self._ended()

    def _shared(self, folders: Set[str]) -> set[str]:
        return {folder for folder in folders if self._memory.shared(folder)}
