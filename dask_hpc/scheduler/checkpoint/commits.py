"""Commits: versions of checkpoints from the call of a client to the name that a whole version gets.

One version of a name is written at a time. What has not become whole is given up without a trace; the version
before it stays what it was. The last versions are kept, and all that protected results may be read from.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from dask_hpc.checkpoint.levels import checked_levels, levels_of, what_there_is
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.record import Record
from dask_hpc.checkpoint.services import checked_services, chosen_services, services_of, unserved
from dask_hpc.errors import CheckpointError, ConfigError
from dask_hpc.scheduler.checkpoint.commit import Commit
from dask_hpc.scheduler.checkpoint.held import Held
from dask_hpc.scheduler.checkpoint.left import Left
from dask_hpc.scheduler.checkpoint.memory import Memory
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.reading import Reading
from dask_hpc.scheduler.checkpoint.remembered import Remembered
from dask_hpc.scheduler.checkpoint.to_levels import ToLevels
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.tables.parts import Departure, Method
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker.saved import Copy
from dask_hpc_policies.codec import decode

logger = logging.getLogger(__name__)

#: What is given up when the scheduler closes has gone by then, in seconds.
_CLOSES_S = 3.0
#: What Python says to who needs a thread when the script of a cluster has ended, and that is being closed.
_NO_THREADS = "cannot schedule new futures after"
#: A call that waits is answered after so long at the latest, in seconds.
_LONGEST_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class _AtEnd:
    """Hears that the scheduler closes."""

    closing: Callable[[], Coroutine[Any, Any, None]]


class Commits:
    """The checkpoints of one scheduler."""

    def __init__(self, engine: Engine, watched: Watched) -> None:
        self._state = engine.state
        self._scheduler = engine.scheduler
        self._watched = watched
        self._memory = memory = Memory(engine.state, watched)
        self.protected = Protected(engine.state, watched, engine.ownership.let_run_anywhere)
        self._held = Held(engine.state, watched, self.protected, memory, self._store_instead, self._under_way)
        lost = engine.losses.scheduler_lost
        self.left = Left(engine.state, watched, self.protected, memory, self._held, lost)
        self._reading = Reading(engine.state, watched, self.protected.folders)
        self._levels = ToLevels(
            engine.state, engine.admission.gate, watched, self.protected, self._held, self.left, self._reading
        )
        self.protected.unused.append(self._unused)
        self._remembered = Remembered()
        #: Always this very object.
        self._commits = self._remembered.commits
        self._tasks: set[asyncio.Task[None]] = set()
        #: Hears of it while there are some.
        self._at_end = _AtEnd(self._closing)
        #: One version of a name is written at a time: see `Commit.turns`.
        self._turns: WeakValueDictionary[tuple[str | None, str], asyncio.Lock] = WeakValueDictionary()
        #: One that is installed again begins elsewhere: it knows no commits of the one before.
        self._last = uuid.uuid4().int >> 80

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        own: dict[str, Method] = {"checkpoint": self.checkpoint, "checkpoint_row": self.row}
        own["checkpoint_cancel"] = self.cancel
        return {**own, **self.left.methods(), **self._reading.methods()}

    async def checkpoint(
        self,
        plan: Mapping[str, Any],
        keys: Sequence[Any],
        store: str | None = None,
        levels: Sequence[str] | None = None,
        every_s: float | None = None,
        services: str | None = None,
    ) -> dict[str, Any]:
        """Begin a version: the results of `keys` are its blocks, in order; protected once it is whole.

        Parameters
        ----------
        levels
            None: the store; where there is none, the memory of hosts.
        every_s
            Not before this has passed since the last one of that name has ended; None: now.
        services
            What is done to blocks on their way to the store; None: what the setting says.

        Returns
        -------
        dict
            Row of the commit, or of the last one; ``begun`` says which.

        Raises
        ------
        ConfigError
            When no store is named and one is needed.
        ValueError
            For levels or services that there are not.
        """
        if services is not None:
            checked_services(services)
        folder = store or self._state.settings.checkpoint_store
        asked = levels_of(folder) if levels is None else checked_levels(levels)
        if folder is None and "L3" in asked:
            raise ConfigError(
                "hpc.checkpoint.store is not set; name a folder that the scheduler and all workers can write "
                "to: rt.update(checkpoint_store=...), the configuration, or store=...; or have the memory of "
                "hosts alone: levels=('L1', 'L2')"
            )
        instead = None
        if "L3" not in asked:
            folder, instead = None, folder
        made, now_s = decode(Plan, dict(plan)), self._state.now_s()
        if every_s is not None:
            repeated, place = self._remembered.repeated, (folder, made.name)
            repeated[place] = max(every_s, repeated.get(place, 0.0))
            last = self._remembered.latest().get(place)
            if last is not None and last.due(now_s, every_s) is None:
                return {**last.row(now_s), "begun": False}
        services = chosen_services(services, self._state.settings.checkpoint_services)
        commit = self.begin(made, keys, folder, levels=asked, services=services, instead=instead)
        return {**commit.row(now_s), "begun": True}

    def begin(
        self,
        plan: Plan,
        keys: Sequence[Any],
        store: str | None,
        job: str | None = None,
        known: Mapping[Any, tuple[Copy, str]] | None = None,
        protect: bool = True,
        levels: Sequence[str] | None = None,
        services: str | None = None,
        instead: str | None = None,
    ) -> Commit:
        """Begin a version.

        Parameters
        ----------
        job
            The job whose state or results it is of: they are there, or were lost since. None: what a client
            has, which may come to be.
        known
            Copies of results that an earlier version has: they are not written again.
        protect
            Whether its results are read back when they are lost. Of the state of a program, which goes back
            to a whole version itself, they are not.
        levels
            See `checked_levels`; None: the store, or the memory of hosts without one.
        services
            None: what the setting says.
        instead
            Folder that it goes to where the memory of hosts does not take it as was asked for.
        """
        self._last += 1
        services = services or self._state.settings.checkpoint_services
        now_s, asked = self._state.now_s(), tuple(levels_of(store) if levels is None else levels)
        made = Commit(self._last, plan, services, store, now_s, asked, job=job, protect=protect)
        made.instead = instead
        if (last := self._remembered.latest().get(made.place)) is not None:
            # those of the newest are compared, and there may be many
            last.keys = ()
        made.keys = tuple(keys)
        self._commits[made.id] = made
        made.task = task = asyncio.ensure_future(self._run(made, keys, known))
        self._tasks.add(task)
        self._watched.listen(self._at_end)
        task.add_done_callback(self._done)
        return made

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._watched.leave(self._at_end)

    async def _closing(self) -> None:
        """The scheduler is closing, and its process may end then: what is written leaves nothing behind."""
        for task in self._tasks:
            task.cancel()
        for commit in self._commits.values():
            for writing in commit.writings.values():
                # workers that write are not waited for
                writing.give_up("the scheduler closes")
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSES_S):
                while going := self._tasks | self._levels.given_up:
                    await asyncio.wait(going)

    def section(self) -> Mapping[str, Any]:
        """What the file system of the store does, as far as versions have shown: at least so many bytes/s."""
        known = self._levels.written_bytes_s
        return {"file_system": {"written_bytes_s": known}} if known else {}

    async def row(self, commit: int, wait_s: float = 0.0) -> dict[str, Any]:
        """Row of a commit, once it has ended or `wait_s` seconds (at most 10) have passed.

        Raises
        ------
        ValueError
            When it is not known (any more).
        """
        one = self._commits.get(commit)
        if one is not None and wait_s > 0:
            waiting = asyncio.wait_for(one.ended.wait(), min(wait_s, _LONGEST_WAIT_S))
            await asyncio.gather(waiting, return_exceptions=True)
        now_s = self._state.now_s()
        return self._remembered.row(commit, now_s) if one is None else one.row(now_s)

    async def cancel(self, commit: int) -> dict[str, Any]:
        """Give a version up, unless it gets its name by now; its row, which says what has become of it later.

        Raises
        ------
        ValueError
            When it is not known (any more).
        """
        one = self._commits.get(commit)
        over = one is None or one.ended.is_set() or one.named or one.cancelled
        if one is not None and one.task is not None and not over:
            one.cancelled = True
            one.task.cancel()
        return self._remembered.row(commit, self._state.now_s())

    def status(self) -> Mapping[str, Any]:
        """What is protected, what has come back, and the latest commit of each name.

        Of one that hosts hold in memory also how many of them may be lost at once, and how many bytes they
        hold of it a byte of its blocks, when it was written, or made again after a loss (``repairs``); None
        of another.
        """
        left = self.left.status()
        if not self._commits and not left:
            return {}
        now_s = self._state.now_s()
        held: dict[tuple[str, int | None], Record] = {}
        for record in self._memory.records.values():
            held[record.name, record.manifest.version] = record
        repairs = self._held.status()
        failed = {row["name"] for row in repairs if row["state"] == "failed"}
        latest = {}
        for one in self._commits.values():
            row = latest[one.plan.name] = one.row(now_s)
            safe = "L1" in one.levels and one.plan.name not in failed
            found = held.get((one.plan.name, one.version)) if safe else None
            row["losses_survived"] = None if found is None else found.losses_survived
            row["storage_ratio"] = None if found is None else round(found.storage_ratio, 3)
        return {
            "checkpoints": {
                "protected_results": len(self.protected),
                "restored_results": self.protected.restored,
                "recomputed_results": self.protected.recomputed,
                "lost_results": self.protected.lost,
                "commits": Counter(one.state for one in self._commits.values()),
                "latest": list(latest.values()),
                "managers": self._managers(),
                "repairs": repairs,
                "silent": self._levels.silent.status(self._memory.holders()),
                **left,
            }
        }

    def saving(self) -> Collection[str]:
        """Workers that write blocks of versions now."""
        return {
            address
            for one in self._commits.values()
            for writing in one.writings.values()
            for address in writing.asked
        }

    def _managers(self) -> list[dict[str, Any]]:
        """What checkpoints have, and may have, of the memory of each host; what of that is on disk."""
        told = (remote.sections_of(ws).get("manager", {}) for ws in self._scheduler.workers.values())
        rows = {each["host"]: dict(each) for each in told if "host" in each}
        known = ("host", "held_bytes", "disk_bytes", "limit_bytes")
        return [{key: row[key] for key in known} for row in rows.values()]

    async def leave(self, departure: Departure) -> bool:
        """What is protected need not find room elsewhere: at last it is let go, and is read back."""
        if departure.last:
            there = [address for address in departure.addresses if address in self._scheduler.workers]
            for address, keys in self.protected.sole(there, departure.addresses).items():
                departure.kept.setdefault(address, []).extend(keys)
        return False

    def unwrap(self) -> None:
        """The runtime is being uninstalled: nothing is protected any more, what is in the store stays."""
        for commit in self._commits.values():
            for writing in commit.writings.values():
                writing.end()
        for task in self._tasks:
            task.cancel()
        self._watched.leave(self._at_end)
        self.left.given.end()
        self._held.end()
        self._reading.end()
        self.protected.unwrap()
        self._memory.end()

    def _store_instead(self, plan: Plan, number: int, keys: Sequence[Any]) -> str:
        """Have results in the store of which too few hosts are left; what is said of that."""
        if self._held.is_stored(plan.name, number):
            return "; the store has that version, or a later one"
        if number < self._held.newest(plan.name):
            # who restores the name would have this one of the store, which is written last
            return "; there is a later version, so the loss of their hosts loses what this one alone has"
        folder = self._state.settings.checkpoint_store
        if folder is None:
            return "; hpc.checkpoint.store is not set, so the loss of their hosts loses them"
        services, plan = services_of(plan), unserved(plan)
        last = self._remembered.latest().get((folder, plan.name))
        # the next version of a loop may have the same plan: that says nothing of results
        if last is None or (last.plan, last.keys) != (plan, tuple(keys)) or last.state == "failed":
            self.begin(plan, keys, folder, services=services).urgent = True
        return f"; they are written to {folder}"

    def _under_way(self, name: str) -> bool:
        return any(one.plan.name == name and not one.ended.is_set() for one in self._commits.values())

    def _unused(self, folders: Collection[str]) -> None:
        self._held.drop(self.left.unneeded(folders))
        self._reading.look()

    async def _run(
        self, commit: Commit, keys: Sequence[Any], known: Mapping[Any, tuple[Copy, str]] | None
    ) -> None:
        try:
            # after the answer to whoever asked, and before all that they say next
            self._levels.hold(commit, keys, known)
            async with AsyncExitStack() as turns:
                for each in commit.turns:
                    await turns.enter_async_context(self._turns.setdefault(each, asyncio.Lock()))
                commit.state = "writing"
                notes = await self._levels.write(commit, keys)
        except (CheckpointError, OSError, ValueError) as error:
            self._end(commit, "failed", str(error) or repr(error))
        except asyncio.CancelledError:
            if commit.cancelled:
                self._end(commit, "failed", "it was cancelled")
                return
            self._end(commit, "failed", "dask_hpc was uninstalled, or the scheduler closes")
            raise
        except Exception as error:
            if isinstance(error, RuntimeError) and str(error).startswith(_NO_THREADS):
                self._end(commit, "failed", "the process of the scheduler ends")
            else:
                logger.exception("Checkpoint %r failed", commit.plan.name)
                self._end(commit, "failed", f"{type(error).__name__}: {error}")
        else:
            self.left.newer(commit.plan.name)
            self._end(commit, "complete", notes)

    def _end(self, commit: Commit, state: str, reason: str) -> None:
        commit.state, commit.reason = state, reason
        commit.unwritable = {key for each in commit.writings.values() for key in each.unwritable}
        for each in commit.writings.values():
            each.end()
        commit.writings, commit.ended_s = {}, self._state.now_s()
        if state == "failed":
            # a job writes the next one; what a client asked for has failed
            level = logging.ERROR if commit.job is None else logging.WARNING
            level = logging.INFO if commit.cancelled else level
            there = what_there_is(commit.version, commit.levels)
            logger.log(level, "Checkpoint %r: %s: %s", commit.plan.name, there, reason)
        commit.ended.set()
        self._remembered.forget(self._state.now_s())
