"""Commits: versions of checkpoints from the call of a client to the name that a whole version gets.

One version of a name is written at a time. What has not become whole is given up without a trace; the version
before it stays what it was. The last versions are kept, and all that protected results may be read from.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.store import Store
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointError, ConfigError
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.writing import UNKNOWN_S, Writing
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import data
from dask_hpc.scheduler.tables.parts import Departure, Method
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker.saved import Copy
from dask_hpc_policies.codec import decode

logger = logging.getLogger(__name__)

_STIMULUS = "hpc-checkpoint"
#: Versions of a name that are kept.
KEEP = 2
#: Commits that are remembered after their end.
_REMEMBERED = 50
#: A call that waits is answered after so long at the latest, in seconds.
_LONGEST_WAIT_S = 10.0


@dataclass(slots=True, eq=False)
class Commit:
    """One version, under way or ended."""

    id: int
    plan: Plan
    store: str
    submitted_s: float
    writing: Writing | None
    #: The job whose state or results it is of; None: it is of what a client has.
    job: str | None = None
    #: Whether its results are read back when they are lost.
    protect: bool = True
    #: Where each result can be read, once it is whole, and what workers could not make bytes of.
    copies: Mapping[Any, tuple[Copy, str]] = field(default_factory=dict)
    unwritable: Set[Any] = frozenset()
    state: str = "waiting"
    reason: str = ""
    version: int | None = None
    path: str | None = None
    nbytes: int = 0
    #: When it ended, whatever became of it, on the runtime's clock.
    ended_s: float | None = None
    #: Seconds that writing blocks, and making them a version, took; results were waited for in the first.
    writing_s: float = 0.0
    finishing_s: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def row(self, now_s: float) -> dict[str, Any]:
        """It as plain data."""
        blocks = sum(array.count for array in self.plan.arrays)
        whole = self.state == "complete"
        left = 0 if whole else blocks if self.writing is None else self.writing.left
        return {
            "id": self.id,
            "name": self.plan.name,
            "version": self.version,
            "state": self.state,
            "reason": self.reason,
            "path": self.path if whole else None,
            "blocks": blocks,
            "blocks_left": left,
            "bytes": self.nbytes,
            "age_s": round(now_s - self.submitted_s, 3),
            "writing_s": round(self.writing_s, 6),
            "finishing_s": round(self.finishing_s, 6),
        }


class Commits:
    """The checkpoints of one scheduler."""

    def __init__(self, engine: Engine, watched: Watched) -> None:
        self._state = engine.state
        self._scheduler = engine.scheduler
        self._watched = watched
        self.protected = Protected(engine.state, watched, engine.ownership.let_run_anywhere)
        self._commits: dict[int, Commit] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: One version of a name is written at a time.
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}
        self._last = 0

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {"checkpoint": self.checkpoint, "checkpoint_row": self.row}

    async def checkpoint(
        self, plan: Mapping[str, Any], keys: Sequence[Any], store: str | None = None
    ) -> dict[str, Any]:
        """Begin a version: the results of `keys` are its blocks, in order. Gives the row of the commit.

        They are protected from then on.

        Raises
        ------
        ConfigError
            When no store is named.
        """
        folder = store or self._state.settings.checkpoint_store
        if folder is None:
            raise ConfigError(
                "hpc.checkpoint.store is not set; name a folder that the scheduler and all workers can write "
                "to: rt.update(checkpoint_store=...), the configuration, or store=..."
            )
        return self.begin(decode(Plan, dict(plan)), keys, folder).row(self._state.now_s())

    def begin(
        self,
        plan: Plan,
        keys: Sequence[Any],
        store: str,
        job: str | None = None,
        known: Mapping[Any, tuple[Copy, str]] | None = None,
        protect: bool = True,
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
        """
        self._last += 1
        unknown_s = UNKNOWN_S if job is None else 0.0
        writing = Writing(self._scheduler, self._watched, plan, keys, unknown_s, known)
        made = Commit(self._last, plan, store, self._state.now_s(), writing, job, protect)
        self._commits[made.id] = made
        task = asyncio.ensure_future(self._run(made, writing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    async def row(self, commit: int, wait_s: float = 0.0) -> dict[str, Any]:
        """Row of a commit, once it has ended or `wait_s` seconds (at most 10) have passed.

        Raises
        ------
        ValueError
            When it is not known (any more).
        """
        one = self._commits.get(commit)
        if one is None:
            raise ValueError(f"commit is {commit!r}, which is not known (any more); see rt.status()")
        if wait_s > 0:
            waiting = asyncio.wait_for(one.ended.wait(), min(wait_s, _LONGEST_WAIT_S))
            await asyncio.gather(waiting, return_exceptions=True)
        return one.row(self._state.now_s())

    def status(self) -> Mapping[str, Any]:
        """What is protected, what has come back, and the latest commit of each name."""
        if not self._commits:
            return {}
        now_s = self._state.now_s()
        latest = {one.plan.name: one.row(now_s) for one in self._commits.values()}
        return {
            "checkpoints": {
                "protected_results": len(self.protected),
                "restored_results": self.protected.restored,
                "recomputed_results": self.protected.recomputed,
                "lost_results": self.protected.lost,
                "commits": Counter(one.state for one in self._commits.values()),
                "latest": list(latest.values()),
            }
        }

    async def leave(self, departure: Departure) -> bool:
        """What is protected need not find room elsewhere: at last it is let go, and is read back."""
        if departure.last:
            there = [address for address in departure.addresses if address in self._scheduler.workers]
            kept = self.protected.sole(there, departure.addresses)
            for address, keys in kept.items():
                departure.kept.setdefault(address, []).extend(keys)
            released = [key for keys in kept.values() for key in keys]
            departure.at_end.append(lambda: self._let_go(released, there))
        return False

    def unwrap(self) -> None:
        """The runtime is being uninstalled: nothing is protected any more, what is in the store stays."""
        for commit in self._commits.values():
            if commit.writing is not None:
                commit.writing.end()
        for task in self._tasks:
            task.cancel()
        self.protected.unwrap()

    def _let_go(self, keys: Sequence[Any], addresses: Sequence[str]) -> None:
        data.stop_intake(self._scheduler, addresses, _STIMULUS)
        data.release(self._scheduler, keys, _STIMULUS)

    async def _run(self, commit: Commit, writing: Writing) -> None:
        turn = self._turns.setdefault((commit.store, commit.plan.name), asyncio.Lock())
        try:
            async with turn:
                await self._write(commit, writing)
        except (CheckpointError, OSError, ValueError) as error:
            self._end(commit, "failed", str(error) or repr(error))
        except asyncio.CancelledError:
            self._end(commit, "failed", "dask_hpc was uninstalled, or the scheduler closes")
            raise
        except Exception as error:
            logger.exception("Checkpoint %r failed", commit.plan.name)
            self._end(commit, "failed", f"{type(error).__name__}: {error}")
        else:
            self._end(commit, "complete", "")
        finally:
            writing.end()

    async def _write(self, commit: Commit, writing: Writing) -> None:
        store = Store(commit.store)
        beginning = asyncio.ensure_future(asyncio.to_thread(store.begin, commit.plan))
        try:
            draft = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(_abandon)
            raise
        try:
            began_s = stopwatch_s()
            commit.state, commit.version = "writing", draft.version
            if linked := writing.linked:
                await _in_thread(draft.link, linked)
            await writing.run(draft.path)
            commit.writing_s = stopwatch_s() - began_s
            version = await _in_thread(draft.finish, writing.written)
            commit.finishing_s = stopwatch_s() - began_s - commit.writing_s
        except BaseException:
            await asyncio.shield(asyncio.to_thread(draft.abandon))
            raise
        commit.path, commit.nbytes = version.path, version.bytes
        copies = {
            key: (replace(copy, folder=version.path), name) for key, (copy, name) in writing.copies.items()
        }
        if commit.protect:
            self.protected.add(copies)
        if commit.job is not None:
            commit.copies = copies
        await self._tidy(store, commit.plan.name)

    async def _tidy(self, store: Store, name: str) -> None:
        """Keep the last versions of a name, and those that are in use."""
        try:
            await asyncio.to_thread(store.collect, KEEP, self.protected.folders(), name=name)
        except (CheckpointError, OSError) as error:
            logger.warning("Old versions of checkpoint %r stay: %s", name, error)

    def _end(self, commit: Commit, state: str, reason: str) -> None:
        commit.state, commit.reason = state, reason
        if commit.writing is not None:
            commit.unwritable = commit.writing.unwritable
        commit.writing, commit.ended_s = None, self._state.now_s()
        if state == "failed":
            # a job writes the next one; what a client asked for has failed
            level = logging.ERROR if commit.job is None else logging.WARNING
            logger.log(level, "Checkpoint %r: no new version: %s", commit.plan.name, reason)
        commit.ended.set()
        for id in list(self._commits)[:-_REMEMBERED]:
            if self._commits[id].ended.is_set():
                del self._commits[id]


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Have a thread do something that goes on when this is cancelled; it is waited for then."""
    doing = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(doing)
    finally:
        # what it has finished is not abandoned
        await asyncio.wait([doing])


def _abandon(beginning: asyncio.Future[Draft]) -> None:
    """Leave nothing of a version that was given up before it was begun."""
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().abandon()
