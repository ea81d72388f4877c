"""Results that checkpoints protect: when their worker is lost they are read back, not computed again.

A protected key that is lost gets a task that reads its block, in place of how it was made; once it is in
memory again it is made as before. What stock could not make again (scattered data, what hangs on it or on an
actor) has that task from the commit on: stock forgets such keys before anybody is asked. A block that cannot
be read is tried in an earlier version, and by other workers where it is not the block's fault; then the
result is computed again. If that cannot be, it is lost and named.

All that happens while nothing is lost is a look into the table of watched keys (`tables.watched`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from dask_hpc.scheduler.checkpoint.copies import (
    InVersions,
    draft_of,
    lasting,
    small_bytes,
    staying,
    stored,
    with_newer,
)
from dask_hpc.scheduler.checkpoint.elsewhere import Elsewhere
from dask_hpc.scheduler.checkpoint.protected_result import Result
from dask_hpc.scheduler.checkpoint.remade import Remade
from dask_hpc.scheduler.checkpoint.told_lost import ToldLost
from dask_hpc.scheduler.internals import lineage, reads, writes
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker import saved
from dask_hpc.worker.saved import AnyCopy, Copy
from dask_hpc.worker.small import SmallCopy

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

T = TypeVar("T")
logger = logging.getLogger(__name__)

_STIMULUS = "hpc-checkpoint"
#: What comes back goes on to be read for so long, should it be lost again, in seconds.
_SETTLE_S = 0.5


class Protected:
    """The protected results of one scheduler, by key."""

    def __init__(self, state: State, watched: Watched, let_run_anywhere: Callable[[Any], None]) -> None:
        self._state = state
        #: Told of folders that no result is read from any more.
        self.unused: list[Callable[[Collection[str]], None]] = []
        self._uses: Counter[str] = Counter()
        self._unused: set[str] = set()
        self._let_run_anywhere = let_run_anywhere
        self._watched = watched
        self._scheduler: Scheduler = state.scheduler
        self._of: dict[Any, Result] = {}
        self._remade = Remade(state)
        #: Keys of those that a version has: they are the same results as when they were written.
        self.in_versions = InVersions(self._copies)
        #: What came back and is to be made as before.
        self._returned: set[Any] = set()
        #: Results that were read back, that were computed after all, and that are gone.
        self.restored = self.recomputed = self.lost = 0
        self._elsewhere = Elsewhere(state)
        self._told = ToldLost(state)
        #: What copies that the scheduler holds itself take.
        self.small_bytes = 0

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: Any) -> bool:
        return key in self._of

    def folders(self) -> set[str]:
        """Folders of versions that results may be read from."""
        return set(self._uses)

    def add(
        self,
        copies: Mapping[Any, tuple[AnyCopy, str]],
        beside: bool = False,
        doubtful: Set[Any] | None = None,
    ) -> None:
        """Protect results by a copy and the name of the type of each; what nobody wants is left out.

        Parameters
        ----------
        beside
            Whether an older copy of its name in the memory of a host of which others have parities stays.
        doubtful
            Those that stock could not make again, where that is known.
        """
        there = {key: found for key, found in copies.items() if key in self._scheduler.tasks}
        awaited = {key for key in there if key in self._state.awaited}
        for key in copies.keys() - there.keys():
            self._remade.drop(key)
        if doubtful is None:
            doubtful = self._remade.finder()([key for key in there if key not in self._of])
        always = doubtful | awaited
        states = reads.states(self._scheduler, there)
        if there:
            self._watched.listen(self)
        for key, (copy, type_name) in there.items():
            one = self._of.get(key)
            if one is None:
                one = self._of[key] = Result((), type_name, key in always)
                self._watched.watch(key, self._moved)
            one.bad = None
            self._elsewhere.drop(key)
            if key in awaited and isinstance(copy, Copy):
                # nobody computes it, and it is not provided twice
                copy = replace(copy, passing=False)
            self._have(key, one, with_newer(copy, one.copies, beside))
            again = states[key] == "released" or (one.always and states[key] == "memory")
            if one.lineage is None and again:
                # what was lost since it was written is being made again otherwise, and stood in for then
                self._stand_in(key, one)
        for key in awaited:
            # it need not be awaited again when it is lost
            self._state.awaited.discard(key)
            writes.unrestrict(self._scheduler.tasks[key])

    def from_draft(
        self, copies_of: Callable[[Mapping[Any, T]], Mapping[Any, tuple[AnyCopy, str]]]
    ) -> Callable[[Mapping[Any, T]], None]:
        """Has what stock could not make again be read from a version that is not whole yet.

        Gives what is to hear of what is written of it, until all is added, or given up (`give_up`).
        """
        find = self._remade.finder()

        def hears(written: Mapping[Any, T]) -> None:
            new = [key for key in written if key not in self._of and key not in self._state.awaited]
            doubtful = find(new)
            self.add(copies_of({key: written[key] for key in doubtful}), doubtful=doubtful)

        return hears

    def give_up(self, draft: str) -> None:
        """A version does not become whole: what is in memory is as before, what is read from it is lost."""
        self._remade.outdate()
        of_it = [key for key, one in self._of.items() if draft and draft in map(draft_of, one.copies)]
        for key, state in reads.states(self._scheduler, of_it).items():
            one = self._of[key]
            if left := tuple(copy for copy in one.copies if draft_of(copy) != draft):
                self._have(key, one, left)
            elif one.lineage is not None and state == "memory":
                lineage.put_back(self._scheduler, key, one.lineage)
                self._drop(key)

    def read(self, copies: Mapping[Any, tuple[AnyCopy, str]]) -> None:
        """Results that are about to be computed are read instead.

        What only they need is not computed either: stock makes what a client wants, and what that waits for.
        """
        self.add(copies)
        self._state.read_back.update(key for key in copies if key in self._of and self._of[key].lineage)

    def carry(self, key: Any, copy: SmallCopy, lost: bool) -> None:
        """Protect a result that is not protected by a copy that the scheduler holds.

        Parameters
        ----------
        lost
            Whether it has gone from memory a moment ago: it is read. Otherwise it is there, and stock could
            not make it again.
        """
        one = self._of[key] = Result((), "object", not lost)
        self._have(key, one, (copy,))
        self._watched.listen(self)
        self._watched.watch(key, self._moved)
        if lost:
            self._gone(key, one)
        else:
            self._stand_in(key, one)

    def let_go_of(self, old: Set[str]) -> None:
        """Protect no more what nobody needs now and old versions of a name alone have.

        In a loop each step hangs on the one before: nobody holds that, and it is not forgotten either, so
        that every version would be in use as long as the loop goes on. It is made as before again. Where
        that cannot be it stays: what was made from it could not be made again either.
        """
        if not old & self._uses.keys():
            return
        for key in reads.unneeded(self._scheduler, list(self._of)):
            one = self._of[key]
            made, left = one.lineage, tuple(copy for copy in one.copies if copy.folder not in old)
            stays = one.always or (made is not None and not lineage.whole(self._scheduler, made))
            if stays or left == one.copies:
                continue
            if left:
                # versions of several names have it, and each is let go of in its turn
                self._have(key, one, left)
                continue
            if made is not None:
                lineage.put_back(self._scheduler, key, made)
            self._drop(key)

    def leave_memory(self, folders: Set[str]) -> bool:
        """Read the results of versions in memory from the store alone, if it has them all; whether it has."""
        held = [(key, one) for key, one in self._of.items() if any(c.folder in folders for c in one.copies)]
        there = all(stored(one.copies) for _, one in held)
        for key, one in held if there else ():
            self._have(key, one, tuple(copy for copy in one.copies if copy.folder not in folders))
        return bool(held) and there

    def sole(self, addresses: Collection[str], leaving: Collection[str]) -> dict[str, list[Any]]:
        """Results that come back whoever leaves and that none else hold, by one of `addresses` that does.

        What is in the memory of a host may go with it.
        """
        found: dict[str, list[Any]] = {}
        for address in addresses:
            for key in reads.sole_keys(self._scheduler, {address}, leaving):
                one = self._of.get(key)
                if one is not None and any(map(staying, one.copies)):
                    found.setdefault(address, []).append(key)
        return found

    def unwrap(self) -> None:
        """Have every result be made as it was before, as far as what that needs is still there.

        What is being read goes on to be.
        """
        # the memories of hosts go with our workers' hold on them
        self.unused.clear()
        # nor is anybody told any more: that would make a topic of ours anew
        self._told.end()
        for key, state in reads.states(self._scheduler, list(self._of)).items():
            one = self._of[key]
            if (made := one.lineage) is not None and state in ("memory", "released"):
                # what is nowhere else goes on to be read, whenever that is
                stays = any(map(staying, one.copies)) and not lineage.whole(self._scheduler, made)
                if state == "memory" or not (one.always or stays):
                    lineage.put_back(self._scheduler, key, made)
            self._drop(key)

    # ------------------------------------------------------------------ events

    def heard(self, topic: str, message: Any) -> None:
        """A worker says that no copy of a result is of use, or that itself can read none."""
        if topic == saved.TOPIC and isinstance(message, dict):
            key = message.get("key")
            one = self._of.get(key) if isinstance(key, Hashable) else None
            # it has other ones by now, or several have that one
            if one is not None and one.copies[0].name == message.get("block"):
                one.bad = str(message.get("error"))
                if isinstance(unable := message.get("unable"), str):
                    self._elsewhere.failed(key, unable)
                else:
                    self._elsewhere.drop(key)

    def of(self, folder: str) -> dict[Any, Any]:
        """Results that are read from a version, and the copy of each there."""
        return {key: copy for key, one in self._of.items() for copy in one.copies if copy.folder == folder}

    def _moved(self, key: Any, start: str, finish: str) -> None:
        one = self._of[key]
        self._elsewhere.moved(key, finish)
        if finish == "released" and start == "memory":
            self._gone(key, one)
        elif finish == "released" and start == "processing" and one.lineage is not None:
            self._given_back(key, one)
        elif finish == "memory" and one.lineage is not None:
            self._back(key, one)
        elif finish == "memory" and one.always:
            self._stand_in(key, one)
        elif finish == "forgotten":
            self._drop(key)

    def _gone(self, key: Any, one: Result) -> None:
        """It is in memory nowhere any more; if somebody needs it, it is read."""
        self._state.read_back.add(key)
        if one.lineage is None:
            self._stand_in(key, one)
            # stock does not even try what was made from something that has failed
            self._later(lambda: lineage.go_on(self._scheduler, key, _STIMULUS))

    def _given_back(self, key: Any, one: Result) -> None:
        """Its worker was lost while it was read, or it cannot be read."""
        lineage.forgive(self._scheduler, key)
        if one.bad is None or one.lineage is None:
            return
        if self._elsewhere.another(key, again := lineage.whole(self._scheduler, one.lineage)):
            one.bad = None
            return
        if not again and self._elsewhere.insist(key):
            one.bad = None
            lineage.renew(self._scheduler, key, one.reading(key, insists=True))
            return
        again = lineage.fall_back(self._scheduler, key, one.lineage)
        what = "is computed again" if again else "is lost"
        logger.error("Protected result %r %s: no copy is of use (%s)", key, what, one.bad)
        if again:
            self.recomputed += 1
            self._state.read_back.discard(key)
            self._drop(key)
            return
        self.lost += 1
        self._remade.outdate()
        self._told.lost(key, one.bad)

    def _back(self, key: Any, one: Result) -> None:
        """It is in memory again."""
        lineage.forgive(self._scheduler, key)
        self.restored += 1
        # others hear of this transition after us
        self._later(lambda: self._state.read_back.discard(key))
        if not one.always or lasting(one.copies) != one.copies:
            if not self._returned:
                asyncio.get_running_loop().call_later(_SETTLE_S, self._settle)
            self._returned.add(key)

    def _settle(self) -> None:
        """Have what came back be made as before, if it still can be."""
        returned, self._returned = self._returned, set()
        states = reads.states(self._scheduler, returned)
        settled = {}
        for key in returned:
            one = self._of.get(key)
            if one is not None and one.lineage is not None and states.get(key) == "memory":
                lineage.put_back(self._scheduler, key, one.lineage)
                one.lineage = None
                if (stay := lasting(one.copies)) != one.copies:
                    self._have(key, one, stay)
                if stay:
                    settled[key] = one
                else:
                    self._drop(key)
        # all at once: each has to be followed back to its beginnings, which many share
        self._remade.outdate()
        for key in self._remade.finder()(settled):
            settled[key].always = True
            self._stand_in(key, settled[key])

    def _stand_in(self, key: Any, one: Result) -> None:
        lineage.sweep_at_restart(self._scheduler, _STIMULUS)
        one.lineage = lineage.stand_in(self._scheduler, key, one.reading(key), one.type_name)
        self._let_run_anywhere(key)

    def _drop(self, key: Any) -> None:
        """Protect it no more."""
        one = self._of.pop(key)
        self._remade.drop(key)
        self._elsewhere.drop(key)
        self._have(key, one, ())
        self._watched.unwatch(key, self._moved)
        self._later(lambda: self._state.read_back.discard(key))
        if one.lineage is not None:
            kept = one.lineage
            self._later(lambda: lineage.sweep(self._scheduler, kept, _STIMULUS))
        if not self._of:
            self._watched.leave(self)
            # not yet: it may be a restart that has released the last of them
            self._later(self._end)

    def _end(self) -> None:
        if not self._of:
            lineage.restart_as_stock(self._scheduler)

    def _have(self, key: Any, one: Result, copies: tuple[AnyCopy, ...]) -> None:
        """Have a result be read from other copies than before."""
        self._uses.update([copy.folder for copy in copies])
        for copy in one.copies:
            self._uses[copy.folder] -= 1
            if not self._uses[copy.folder]:
                del self._uses[copy.folder]
                if not self._unused:
                    self._later(self._let_go)
                if not draft_of(copy):  # whoever writes one knows what becomes of it
                    self._unused.add(copy.folder)
        self.small_bytes += small_bytes(copies) - small_bytes(one.copies)
        one.copies = copies
        if copies and one.lineage is not None:
            lineage.renew(self._scheduler, key, one.reading(key))

    def _copies(self, key: Any) -> tuple[AnyCopy, ...]:
        return one.copies if (one := self._of.get(key)) is not None else ()

    def _let_go(self) -> None:
        unused, self._unused = self._unused, set()
        for tell in self.unused:
            tell(unused - self._uses.keys())

    def _later(self, work: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_soon(work)
