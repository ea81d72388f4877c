"""Versions in the memories of hosts by name: the newest takes the place of the one before, and is made again
when a host that had some of it is lost. One that has no parities on others leaves the one before that has.

Until then one more loss may be one too many. Results are made again of what workers have, or soon will have;
what nobody has any more, or not all of, by managers of what they hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from dask_hpc.checkpoint.plan import Plan
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint.kept import Kept
from dask_hpc.scheduler.checkpoint.memory import Memory
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.to_memory import by_place, copies_in, made_again
from dask_hpc.scheduler.checkpoint.writing import Writing
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker.repairing import TooManyLostError
from dask_hpc.worker.saved import MEMORY, copies_of
from dask_hpc_policies.resilience.redundancy_sets import Scheme

logger = logging.getLogger(__name__)

_HOLDER = "hpc-checkpoint-again"
#: After a worker has gone others of its host go, in seconds; one that was killed is back by then, if at all.
_SETTLE_S, _BACK_S = 1.0, 20.0
#: How often it is tried, each time so much later than before, at most in so many seconds: a manager that
#: hangs is asked again after ``hpc.checkpoint.ask-again``.
_TRIES, _LATER, _LATEST_S = 20, 1.25, 10.0


@dataclass(frozen=True, slots=True)
class _Version:
    """What is known of one."""

    plan: Plan
    #: Which one of its name, and its results in the order of the plan.
    number: int
    keys: tuple[Any, ...]
    #: Who holds parities of whom; None: nobody.
    scheme: Scheme | None


class Held:
    """The versions in memory of one scheduler."""

    def __init__(
        self,
        state: State,
        watched: Watched,
        protected: Protected,
        memory: Memory,
        store_instead: Callable[[Plan, int, Sequence[Any]], str],
        under_way: Callable[[str], bool],
    ) -> None:
        self._state, self._scheduler = state, state.scheduler
        self._watched = watched
        self._protected = protected
        self._memory = memory
        #: By folder, those in use.
        self._versions: dict[str, _Version] = {}
        #: Those that are in no use and stay.
        self._kept = Kept(memory, self._stays, self._leave, protected.folders)
        self._under_way = under_way
        #: Number of the newest whole version of results of each name, and whether a store has it, too.
        self._newest: dict[str, tuple[int, bool]] = {}
        #: Has a version of results in the store, where there is one.
        self._store_instead = store_instead
        #: What has become of versions that a host was lost of, by name.
        self._repairs: dict[str, dict[str, Any]] = {}
        self._left = False
        self._task: asyncio.Task[None] | None = None

    async def write(
        self,
        plan: Plan,
        number: int,
        keys: Sequence[Any],
        writing: Writing,
        scheme: Scheme | None,
        protect: bool = True,
        created_s: float | None = None,
        same: Mapping[Any, Any] | None = None,
    ) -> tuple[tuple[str, ...], str, bool]:
        """Write a version; its results are read from memory from then on. See `Memory.write`.

        Parameters
        ----------
        protect
            Whether they are. The state of a program stays until a newer one of its name has all that
            was asked for, or `let_go` is told.
        created_s
            When it was first written, of one that is written again: that is no newer for it. None: now.
        same
            Keys of results that are read from it, too, and which of `keys` each is the same as.

        Returns
        -------
        tuple
            The levels that have it, why there is less of them than was asked for, and whether it survives as
            many losses as that.
        """
        self._kept.make_room(plan.name, not protect)
        if protect:
            writing.wrote = self._protected.from_draft(
                lambda blocks: copies_in(writing.draft, blocks, plan.name, writing.draft)
            )
        try:
            copies, note = await self._memory.write(plan, number, writing, scheme, created_s)
        except BaseException:
            self._protected.give_up(writing.draft)
            raise
        copies |= {key: copies[of] for key, of in (same or {}).items()}
        self._repairs.pop(plan.name, None)
        made = {copy.folder for copy, _ in copies.values()}
        grouped = [copy.group is not None for copy, _ in copies.values()]
        as_asked = scheme is None or all(grouped)
        if protect:
            self._protected.add(copies, beside=not as_asked)
            self._replace(plan.name, made, _Version(plan, number, tuple(keys), scheme), as_asked)
        else:
            self._kept.replace(plan.name, True, as_asked)
            self._kept.keep(plan.name, made, True)
            self._watched.listen(self)
        return ("L1", "L2") if any(grouped) else ("L1",), note, as_asked

    def _safer(self, before: Set[str], as_asked: bool) -> set[str]:
        """Of older versions, those that stay: the newer one has not the redundancy that was asked for.

        Its hosts may have been lost while parities were made.
        """
        if as_asked:
            return set()
        return {folder for folder in before if self._memory.shared(folder)}

    def know(self, folder: str, plan: Plan, number: int, keys: Sequence[Any]) -> None:
        """A version that others have written is read: with the next host that is lost it is made again."""
        settings = self._state.settings
        scheme = Scheme(settings.checkpoint_redundancy, settings.checkpoint_set_size)
        self._versions.setdefault(folder, _Version(plan, number, tuple(keys), scheme))
        self._newest[plan.name] = max((number, False), self._newest.get(plan.name, (0, False)))
        self._watched.listen(self)

    def let_go(self, name: str, after_s: float) -> None:
        """A job has ended: the state of its program stays so long for the next one."""
        self._kept.linger(name, True, after_s)

    def newest(self, name: str) -> int:
        """Number of the newest whole version of results of a name; 0: there is none."""
        return self._newest.get(name, (0, False))[0]

    def is_stored(self, name: str, number: int) -> bool:
        """Whether a store has this version of results, or what is newer."""
        newest, stored = self._newest.get(name, (0, False))
        return stored and number <= newest

    def stored(self, name: str, number: int) -> None:
        """A store has what is newer than the versions of results up to this number, or just that."""
        if 0 < self.newest(name) <= number:
            self._newest[name] = number, True
            self._kept.replace(name, False, True)
            self._leave()

    def make_room(self, name: str) -> bool:
        """Memory has no room for a version beside the one before: that goes first, if the store has it, or
        what is newer; whether it goes.
        """
        of_name = {folder for folder, one in self._versions.items() if one.plan.name == name}
        return self._newest.get(name, (0, False))[1] and self._protected.leave_memory(of_name)

    def has_state(self, name: str) -> bool:
        """Whether the state of a program is held under this name."""
        return self._kept.has_state(name)

    def left(self, address: str) -> None:
        """A worker has gone."""
        self._left = True
        if (self._versions or self._kept) and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._look())

    def drop(self, folders: Collection[str]) -> None:
        """No result is read from these any more; those that are no versions in memory are left alone.

        The newest of a name, of what a client had, stays for a while, unless a store has it.
        """
        unused = {folder: self._versions.pop(folder, None) for folder in folders}
        for folder, one in unused.items():
            if one is not None and self._is_last(one):
                self._kept.keep(one.plan.name, [folder], False, one.keys)
                self._kept.linger(one.plan.name, False, self._state.settings.checkpoint_linger_s)
        self._memory.drop(unused.keys() - self._kept.folders.keys())
        self._leave()

    def _stays(self, name: str, keys: Collection[Any]) -> bool:
        return self._under_way(name) or any(key in self._scheduler.tasks for key in keys)

    def _is_last(self, version: _Version) -> bool:
        """Whether nothing newer of its name is whole, nor has a store just that.

        Of a job's results a version has those that are wanted: it has nothing to go back to.
        """
        newest = self._newest.get(version.plan.name)
        return newest == (version.number, False) and not version.plan.extra.get("run")

    def status(self) -> list[dict[str, Any]]:
        """What has become of each version that a host was lost of, as long as it is the newest of its name.

        Its name, number, ``state`` and the reason: ``whole``, it has the redundancy that was asked for again;
        ``less``, it has less; ``failed``, what is lost of it is not held again.
        """
        return list(self._repairs.values())

    def _leave(self) -> None:
        if not self._versions and not self._kept:
            self._watched.leave(self)

    def end(self) -> None:
        """Make nothing again any more."""
        self._versions.clear()
        self._kept.clear()
        self._newest.clear()
        self._repairs.clear()
        self._watched.leave(self)
        if self._task is not None:
            self._task.cancel()

    def _replace(self, name: str, made: Set[str], version: _Version, as_asked: bool) -> None:
        """Keep only the newest version of a name in memory, and those that are in use."""
        if version.number > self.newest(name):
            self._newest[name] = version.number, False
            self._kept.replace(name, False, as_asked)
        before = {folder for folder, one in self._versions.items() if one.plan.name == name}
        self._protected.let_go_of(before - self._safer(before, as_asked))
        used = self._protected.folders()
        # those of other names that are in use no more are about to be told to `drop`
        self._versions = {
            folder: one for folder, one in self._versions.items() if folder in used or one.plan.name != name
        }
        self._versions |= dict.fromkeys(made, version)
        self._watched.listen(self)
        # its results may all be forgotten by now
        self.drop(made - used)

    async def _look(self) -> None:
        """Make again what was held by hosts that are lost, once workers leave no more."""
        tries, told, unfinished = 0, False, False
        since_s: float | None = None
        while self._left or unfinished:
            if self._left and tries == _TRIES:
                tries, since_s = 0, None
            self._left = False
            await asyncio.sleep(min(_SETTLE_S * _LATER**tries, _LATEST_S))
            if self._left:
                told = False
                continue
            now_s = asyncio.get_running_loop().time()
            since_s = now_s if since_s is None else since_s
            waits, problems = await self._make_again(now_s - since_s < _BACK_S, tries + 1 == _TRIES)
            for problem in problems:
                # each try would say it again, and where no worker is left the cluster may be ending
                level = logging.DEBUG if told or not self._scheduler.workers else logging.WARNING
                logger.log(level, "What a lost host held in memory is not held elsewhere yet: %s", problem)
            if problems:
                tries, told = tries + 1, told or bool(self._scheduler.workers)
            unfinished = waits or (bool(problems) and tries < _TRIES)
            if not waits and not problems:
                tries, since_s = 0, None

    async def _make_again(self, waits: bool, last: bool) -> tuple[bool, list[Exception]]:
        """Make each again that can be.

        Parameters
        ----------
        waits
            Whether a worker that was killed may come back to what its host still holds.
        last
            Whether it is not tried again.

        Returns
        -------
        tuple
            Whether such a worker is waited for, and what is in the way of versions that are not made again.
        """
        try:
            lacking = await self._memory.lacking([*self._versions, *self._kept.folders])
            if lacking and waits and await self._memory.answers(lacking):
                return True, []
        except (CheckpointError, OSError) as error:
            return False, [error]
        problems: list[Exception] = []
        for folder in lacking:
            try:
                await (self._again(folder, last) if folder in self._versions else self._remake(folder))
            except (CheckpointError, OSError) as error:
                problems.append(error)
        return False, problems

    async def _again(self, folder: str, last: bool) -> None:
        version = self._versions.get(folder)
        if version is None:
            return  # a newer one has come
        of_version = self._protected.of(folder)
        states = reads.states(self._scheduler, of_version)
        keys = [key for key in of_version if states.get(key, "released") not in ("released", "erred")]
        if not keys:
            return
        # all of it is what a client goes back to, also when some is nobody's result any more
        there = by_place(version.plan, version.keys, of_version)
        partly = self._is_last(version) and len(there) < version.plan.count
        named = any(copy.key_file for copy in of_version.values())
        if partly or named:
            try:
                if await self._remake(folder):
                    return
            except (CheckpointError, OSError):
                # rather all of it in a moment than a part of it now
                if not last or named:
                    raise
            if named:
                return  # who writes it anew has another key, or none
        at = by_place(version.plan, version.keys, {key: of_version[key] for key in keys})
        plan, every = made_again(version.plan, at)
        # several may have restored it, beside who has written it
        places = {key: (copy.array.path, copy.number) for key, copy in of_version.items()}
        same = {key: at[place] for key, place in places.items() if place in at}
        writing = Writing(self._scheduler, self._watched, plan, every, _HOLDER, 0.0)
        self._memory.again(folder)
        old = self._memory.records.get(folder.removeprefix(MEMORY))
        created_s = None if old is None else old.manifest.created_s
        try:
            _, note, as_asked = await self.write(
                plan, version.number, every, writing, version.scheme, created_s=created_s, same=same
            )
        except (CheckpointError, OSError) as error:
            self._tell(plan.name, version.number, "failed", str(error))
            raise
        finally:
            writing.end()
        less = "" if as_asked else note
        if less:
            less += self._store_instead(plan, version.number, every)
        self._tell(plan.name, version.number, "less" if less else "whole", less)

    async def _remake(self, folder: str) -> bool:
        """Have managers make a version whole again, no worker need have it; whether they have.

        Raises
        ------
        OSError, CheckpointError
            When they cannot do so now: who is silent may answer in a moment.
        """
        record = self._memory.records.get(folder.removeprefix(MEMORY))
        if record is None or not record.groups:
            return False  # a newer one has come, or nobody else was to hold it
        settings, number, name = self._state.settings, record.manifest.version, record.name
        scheme = Scheme(settings.checkpoint_redundancy, settings.checkpoint_set_size)
        try:
            made, less = await self._memory.repair(folder, scheme)
        except (CheckpointError, OSError) as error:
            self._tell(name, number, "failed", str(error))
            if isinstance(error, TooManyLostError):
                # the program goes back to another version, or writes the next one
                return False
            raise
        if version := self._versions.pop(folder, None):
            self._versions[made] = version
            copies = copies_of(self._memory.records[made.removeprefix(MEMORY)])
            at = {(copy.array.path, copy.number): copy for copy in copies}
            # several may have restored it, each with the key that they have named
            there = {
                key: replace(at[old.array.path, old.number], key_file=old.key_file)
                for key, old in self._protected.of(folder).items()
            }
            self._protected.add({key: (copy, "object") for key, copy in there.items()})
            if made not in self._protected.folders():
                self.drop([made])
        elif not self._kept.remade(folder, made):
            self._memory.drop([made])
        self._tell(name, number, "less" if less else "whole", less)
        return True

    def _tell(self, name: str, number: int, state: str, reason: str) -> None:
        row = {"name": name, "version": number, "state": state, "reason": reason}
        known, self._repairs[name] = self._repairs.get(name) == row, row
        if state == "whole":
            logger.info("Version %d of %r is held again by as many hosts as before", number, name)
        elif not known:
            logger.warning("Version %d of %r has lost a host: %s", number, name, reason)
