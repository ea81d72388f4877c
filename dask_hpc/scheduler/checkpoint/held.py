"""Versions in the memories of hosts by name: the newest takes the place of the one before, and is made again
when a host that had some of it is lost. One that has no parities on others leaves the one before that has.

Until then one more loss may be one too many. Results are made again of what workers have, or soon will have;
the state of a program, which nobody has any more, by managers of what they hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from typing import Any

from dask_hpc.checkpoint.describe import describe_results
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.services import closed, served, services_of
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint.memory import Memory
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.writing import Writing
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker.saved import MEMORY
from dask_hpc_policies.resilience.redundancy_sets import Scheme

logger = logging.getLogger(__name__)

_HOLDER = "hpc-checkpoint-again"
#: After a worker has gone others of its host go, in seconds; how often it is tried.
_SETTLE_S, _TRIES = 1.0, 20


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
        store_instead: Callable[[Plan, Sequence[Any]], str],
    ) -> None:
        self._state, self._scheduler = state, state.scheduler
        self._watched = watched
        self._protected = protected
        self._memory = memory
        #: By folder, those in use.
        self._versions: dict[str, _Version] = {}
        #: Of each name, the newest state of a program: it is nobody's result.
        self._states: dict[str, set[str]] = {}
        #: What tells a state from the one after it; one that is made again is still itself.
        self._newest: dict[str, object] = {}
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
    ) -> tuple[tuple[str, ...], str, bool]:
        """Write a version; its results are read from memory from then on. See `Memory.write`.

        Parameters
        ----------
        protect
            Whether they are. The state of a program stays until a newer one of its name has all that
            was asked for, or `let_go` is told.

        Returns
        -------
        tuple
            The levels that have it, why there is less of them than was asked for, and whether it survives as
            many losses as that.
        """
        if not protect:
            self._make_room(plan.name)
        copies, note = await self._memory.write(plan, number, writing, scheme)
        self._repairs.pop(plan.name, None)
        made = {copy.folder for copy, _ in copies.values()}
        grouped = [copy.group is not None for copy, _ in copies.values()]
        as_asked = scheme is None or all(grouped)
        if protect:
            self._protected.add(copies, beside=not as_asked)
            self._replace(plan.name, made, _Version(plan, number, tuple(keys), scheme), as_asked)
        else:
            before = self._states.pop(plan.name, set())
            kept = self._safer(before, as_asked)
            self._memory.drop(before - kept)
            self._states[plan.name] = made | kept
            self._newest[plan.name] = object()
            self._watched.listen(self)
        return ("L1", "L2") if any(grouped) else ("L1",), note, as_asked

    def _make_room(self, name: str) -> None:
        """Of a state that stayed beside a newer one, the newer one goes: there is room for two versions."""
        states = self._states.get(name, set())
        if len(states) > 1 and (alone := {folder for folder in states if not self._memory.shared(folder)}):
            self._states[name] = states - alone
            self._memory.drop(alone)

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
        self._watched.listen(self)

    def let_go(self, name: str, after_s: float) -> None:
        """A job has ended: the state of its program stays so long for the next one."""
        if (newest := self._newest.get(name)) is not None:
            asyncio.get_running_loop().call_later(after_s, self._drop_state, name, newest)

    def has_state(self, name: str) -> bool:
        """Whether the state of a program is held under this name."""
        return name in self._states

    def _drop_state(self, name: str, newest: object) -> None:
        if self._newest.get(name) is newest:
            del self._newest[name]
            self._memory.drop(self._states.pop(name, ()))
            self._leave()

    def left(self, address: str) -> None:
        """A worker has gone."""
        self._left = True
        if (self._versions or self._states) and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._look())

    def drop(self, folders: Collection[str]) -> None:
        """No result is read from these any more; those that are no versions in memory are left alone."""
        self._versions = {folder: one for folder, one in self._versions.items() if folder not in folders}
        self._memory.drop(folders)
        self._leave()

    def status(self) -> list[dict[str, Any]]:
        """What has become of each version that a host was lost of, as long as it is the newest of its name.

        Its name, number, ``state`` and the reason: ``whole``, it has the redundancy that was asked for again;
        ``less``, it has less; ``failed``, what is lost of it is not held again.
        """
        return list(self._repairs.values())

    def _leave(self) -> None:
        if not self._versions and not self._states:
            self._watched.leave(self)

    def end(self) -> None:
        """Make nothing again any more."""
        self._versions.clear()
        self._states.clear()
        self._newest.clear()
        self._repairs.clear()
        self._watched.leave(self)
        if self._task is not None:
            self._task.cancel()

    def _replace(self, name: str, made: Set[str], version: _Version, as_asked: bool) -> None:
        """Keep only the newest version of a name in memory, and those that are in use."""
        before = {folder for folder, one in self._versions.items() if one.plan.name == name}
        self._protected.let_go_of(before - self._safer(before, as_asked))
        used = self._protected.folders()
        self._versions = {folder: one for folder, one in self._versions.items() if folder in used}
        self._versions |= dict.fromkeys(made & used, version)
        if self._versions:
            self._watched.listen(self)
        # its results may all be forgotten by now
        self._memory.drop(made - used)

    async def _look(self) -> None:
        """Make again what was held by hosts that are lost, once workers leave no more."""
        tries = 0
        while self._left and tries < _TRIES:
            self._left = False
            await asyncio.sleep(_SETTLE_S)
            if self._left:
                continue
            try:
                of_states = {folder: name for name, state in self._states.items() for folder in state}
                lacking = await self._memory.lacking([*self._versions, *of_states])
                if lacking and tries + 1 < _TRIES and await self._memory.answers(lacking):
                    # a worker that was killed comes back to what its host still holds
                    self._left, tries = True, tries + 1
                    continue
                for folder in lacking:
                    await (
                        self._remake(of_states[folder], folder)
                        if folder in of_states
                        else self._again(folder)
                    )
            except (CheckpointError, OSError) as error:
                logger.warning("What a lost host held in memory is not held elsewhere yet: %s", error)
                self._left, tries = True, tries + 1

    async def _again(self, folder: str) -> None:
        version = self._versions.get(folder)
        if version is None:
            return  # a newer one has come
        of_version = self._protected.of(folder)
        states = reads.states(self._scheduler, of_version)
        keys = [key for key in of_version if states.get(key, "released") not in ("released", "erred")]
        if not keys:
            return
        plan, every = _again(version, keys)
        writing = Writing(self._scheduler, self._watched, plan, every, _HOLDER, 0.0)
        self._memory.again(folder)
        try:
            levels, note, _ = await self.write(plan, version.number, every, writing, version.scheme)
        except (CheckpointError, OSError) as error:
            self._tell(plan.name, version.number, "failed", str(error))
            raise
        finally:
            writing.end()
        less = note if version.scheme is not None and "L2" not in levels else ""
        if less:
            less += self._store_instead(plan, every)
        self._tell(plan.name, version.number, "less" if less else "whole", less)

    async def _remake(self, name: str, folder: str) -> None:
        """Have managers make the state of a program whole again: no worker need have it."""
        record = self._memory.records.get(folder.removeprefix(MEMORY))
        if record is None or folder not in self._states.get(name, ()):
            return  # a newer one has come
        if not record.groups:
            return  # nobody else was to hold it
        settings, number = self._state.settings, record.manifest.version
        scheme = Scheme(settings.checkpoint_redundancy, settings.checkpoint_set_size)
        try:
            made, less = await self._memory.repair(folder, scheme)
        except (CheckpointError, OSError) as error:
            # the program goes back to another version, or writes the next one
            self._tell(name, number, "failed", str(error))
            return
        if folder in self._states.get(name, ()):
            self._states[name] = self._states[name] - {folder} | {made}
        else:
            self._memory.drop([made])
        self._tell(name, number, "less" if less else "whole", less)

    def _tell(self, name: str, number: int, state: str, reason: str) -> None:
        self._repairs[name] = {"name": name, "version": number, "state": state, "reason": reason}
        if state == "whole":
            logger.info("Version %d of %r is held again by as many hosts as before", number, name)
        else:
            logger.warning("Version %d of %r has lost a host: %s", number, name, reason)


def _again(version: _Version, keys: Sequence[Any]) -> tuple[Plan, Sequence[Any]]:
    """Plan and keys of the same version once more, or of those of its results that somebody still wants."""
    if set(version.keys) <= set(keys):
        return version.plan, version.keys
    # what is left of a collection is none
    plan = describe_results(version.plan.name, list(keys), version.plan.extra.get("run", ""))
    return closed(served(plan, services_of(version.plan))), keys
