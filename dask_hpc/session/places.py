"""Where the versions of a session are: in the memories of hosts (L1, L2), in the store (L3), or in both.

When the memories cannot be had, or have less than was asked for, a version goes to the store, where one is
named: in all processes, for that version (iCheck, section 6.5). Managers are tried again after a while.
"""

from __future__ import annotations

import logging
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint.branch import SESSION, Past, past_of
from dask_hpc.checkpoint.levels import checked_levels, levels_of
from dask_hpc.checkpoint.services import served
from dask_hpc.checkpoint.store import Store
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointError
from dask_hpc.session.going_back import Found, go_back
from dask_hpc.session.held import Held, plan_of
from dask_hpc.session.in_store import asked, check_newest, collect_older, unknown, write_version
from dask_hpc.session.probing import SETTING, Probe, configured, probe
from dask_hpc.session.ranks import Ranks

if TYPE_CHECKING:
    from dask_hpc.session.memory import Memory

logger = logging.getLogger(__name__)

#: Where processes speak to each other, below the folder of the name.
_EXCHANGE = ".session"
#: Managers that could not be had are tried again after that, in seconds.
_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Done:
    """A version that is whole, and what that took."""

    version: int
    #: Its folder; None: it is in no store.
    path: str | None
    levels: tuple[str, ...]
    #: Why it has not all levels that were asked for.
    problem: str
    blocks: int
    bytes: int
    writing_s: float
    finishing_s: float


def asked_levels(name: str, levels: str | Sequence[str] | None, store: Any) -> tuple[str, ...]:
    """Levels that a session asks for; raises ValueError when they cannot be."""
    asked = levels_of(store) if levels is None else checked_levels(levels)
    if store is None and "L3" in asked:
        raise ValueError(f"no store is named: give store=..., or set {SETTING}")
    if store is None and levels is None:
        warnings.warn(
            f"versions of session {name!r} are in the memory of hosts alone: {SETTING} is not set, so the "
            "loss of these hosts loses them; name a folder, store=..., or say levels=('L1', 'L2')",
            stacklevel=3,
        )
    return asked


class Places:
    """The places of one session.

    Parameters
    ----------
    name, ranks, store
        Of the session.
    levels
        That it asks for, as `checked_levels` gives them.
    services
        What is done to blocks on their way to the store, and to memory.
    configured
        What the configuration said of the store; None: it is not asked.
    """

    def __init__(
        self,
        name: str,
        ranks: Ranks,
        store: Store | None,
        levels: tuple[str, ...],
        services: str,
        configured: Any,
    ) -> None:
        self.name, self._ranks = name, ranks
        self.store, self.levels = store, levels
        self._services, self._configured = services, configured
        self._memory: Memory | None = None
        #: Why the memories cannot be had, and when that was found.
        self._without: tuple[str, float] | None = None
        #: The newest version in memories that cannot be had.
        self._left = 0
        #: What was logged of the last version.
        self._told = ""
        #: The newest version that this session knows of: it replaces no other.
        self.newest = 0
        #: The newest version that it has written to the store.
        self._stored = 0
        #: What is before the next version: that which it goes on from, and what was left on the way there.
        self._past = Past(0)

    def check(self) -> None:
        """Raise CheckpointError when nothing can be written to the store."""
        if self.store is not None and (problem := asked(self.store)(self.store.problem)) is not None:
            raise CheckpointError(problem)

    def meeting(self) -> Path:
        """Folder in which processes speak to each other; raises CheckpointError when there is none."""
        if self.store is None:
            raise CheckpointError(
                f"the {self._ranks.size} processes have no way to speak to each other: give exchange=..., "
                "such as comm.allgather, or a store that all see"
            )
        return asked(self.store)(self.store.home, self.name) / _EXCHANGE

    def open(self) -> None:
        """Have the memories of hosts, where they are asked for.

        Raises
        ------
        CheckpointError
            When nothing can be written anywhere, or another run has the memories.
        """
        if "L1" in self.levels:
            self._have_memory()
            if self._without is not None and self.store is None:
                raise CheckpointError(f"no version can be written: {self._without[0]}")

    def write(self, arrays: Mapping[str, Held], values: Mapping[str, Any]) -> Done:
        """Write what all processes hold as the next version.

        Raises
        ------
        CheckpointError
            When it cannot be written, or another run has written one meanwhile; those before stay.
        CheckpointValueError
            When what the processes hold does not go together.
        """
        began_s = stopwatch_s()
        if self._memory is not None and self._memory.written > self.newest:
            self._went_on(self._memory.written)  # whoever wrote it did not wait until older ones were gone
        made, pieces = plan_of(self.name, self._ranks, arrays, values)
        # all processes do the same, and encrypt for the same version
        told = {**made.extra[SESSION], **self._past.noted()}
        made = replace(made, extra={**made.extra, SESSION: told})
        plan = served(made, *self._ranks.first(lambda: [self._services, uuid.uuid4().hex]))
        self._check_newest()
        number, problem, nbytes = self.newest + 1, "", 0
        levels: tuple[str, ...] = ()
        if "L1" in self.levels:
            memory = self._have_memory()
            if memory is None:
                assert self._without is not None
                problem = f"L1: {self._without[0]}"
            else:
                put = memory.write(plan, pieces, arrays, number)
                levels, problem, nbytes = put.levels, put.problem, put.nbytes
                if not levels and memory.gone():
                    # others are had next time, or after a while where there is a store
                    problem = f"{problem}; its folder was removed, which is made anew"
                    memory.close()
                    self._memory, self._without = None, (problem, stopwatch_s())
            if problem and problem != self._told:
                logger.warning("Version %d of %s is not in all memories: %s", number, self.name, problem)
            self._told = problem
        in_memory_s = stopwatch_s()
        lacking = set(self.levels) - set(levels)
        if self.store is None and not levels:
            raise CheckpointError(problem)
        if self.store is None or not lacking:
            self._went_on(number)
            return Done(number, None, levels, problem, plan.count, nbytes, in_memory_s - began_s, 0.0)
        try:
            stored = write_version(
                self.store, self._ranks, plan, pieces, arrays, self.newest, self._stored, levels
            )
        except CheckpointError as error:
            if not levels:
                raise
            self._went_on(number)
            raise CheckpointError(
                f"version {number} of {self.name!r} is in memory alone ({', '.join(levels)}): {error}"
            ) from error
        self._stored = stored.version.version
        self._went_on(self._stored)
        if self._ranks.rank == 0:
            # it is known by now: whoever does not wait for this goes on from it
            collect_older(self.store, self.name)
        writing_s = in_memory_s - began_s + stored.writing_s
        done = Done(self.newest, stored.version.path, (*levels, "L3"), problem, plan.count, 0, writing_s, 0.0)
        return replace(done, bytes=stored.version.bytes, finishing_s=stored.finishing_s)

    def go_back(self, version: int | None, targets: Mapping[str, Held]) -> Found | None:
        """The newest version that can be read, or the one asked for; raises as `going_back.go_back`."""
        memory = self._have_memory() if "L1" in self.levels else None
        newest, found = go_back(self.store, memory, self.name, self._ranks, version, targets)
        if memory is None and version is None and self._left > newest:
            assert self._without is not None
            raise CheckpointError(
                f"version {self._left} of {self.name!r} is in the memory of hosts, which cannot be read: "
                f"{self._without[0]}; run it again, restart from version={newest or None} to do without, or "
                "begin anew under another name"
            )
        before, number = Past(), 0
        if found is not None:
            before, number = past_of(found.manifest), found.manifest.version
        self.newest, self._past = newest, before.gone_back(number, newest)
        return found

    def probe(self) -> Probe:
        """Look at all places anew, and whether another store is configured by now."""
        now = None if self._configured is None else configured()
        changed_to = None if now == self._configured else now
        had, memory = self._memory is not None, None
        if "L1" in self.levels:
            if self._without is not None:
                # now, not after a while
                self._without = self._without[0], -_AGAIN_S
            memory = self._have_memory()
        found = Probe(**self._ranks.first(lambda: asdict(probe(self.store, self.name, changed_to))))
        if found.changed:
            assert found.store is not None
            self.store, self._configured, self._stored = Store(found.store), now, 0
            self.newest = 0 if memory is None else memory.newest
            self._past = self._past.up_to(self.newest)
        without = "" if self._without is None else self._without[0]
        return replace(
            found,
            changed=found.changed or had != (memory is not None),
            problem=found.problem or without or None,
            memory=memory is not None,
        )

    def remove(self) -> None:
        """Remove the versions that this session has written or gone on from, and no cluster reads."""
        if self._memory is not None:
            self._memory.forget(self.newest)
        if self.store is not None and self._ranks.rank == 0:
            asked(self.store)(self.store.remove, self.name, self.newest)

    def close(self) -> None:
        """Let go of all places; versions stay, those in memory for a while."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _went_on(self, number: int) -> None:
        """There is a version of that number, and the next one goes on from it."""
        self.newest, self._past = number, replace(self._past, after=number)

    def _check_newest(self) -> None:
        """Raise CheckpointError when there is a version that this session does not know of."""
        if self._memory is not None and self._memory.newest > self.newest:
            raise CheckpointError(unknown("the memory of hosts", self._memory.newest, self.name))
        if self._memory is not None and (store := self.store) is not None:
            # before anything is written to memory
            self._ranks.first(lambda: asked(store).to_end(check_newest, store, self.name, self.newest))

    def _have_memory(self) -> Memory | None:
        """The memories of hosts; None: they cannot be had, and `_without` says why."""
        before = self._without
        if self._memory is None and before is not None and self.store is not None:
            late = stopwatch_s() - before[1] >= _AGAIN_S
            if not self._ranks.first(lambda: late):
                return None
        if self._memory is None:
            # programs that have none need no cluster library
            from dask_hpc.session.memory import Memory

            memory = Memory(self.name, self._ranks, "L2" in self.levels)
            try:
                problem = memory.open()
            except BaseException:
                memory.close()
                raise
            if problem:
                self._left = memory.newest
                memory.close()
                self._without = problem, stopwatch_s()
            else:
                self._memory, self._without = memory, None
        return self._memory
