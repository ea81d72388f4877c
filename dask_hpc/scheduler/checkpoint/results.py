"""Results of a protected job: what a new version has of them, and what an earlier run has left.

A version in the store has all results that clients wanted of the job, were there and could be written, since
its first run. What an earlier version has is not written again: its files get another name (`Draft.link`).
One in the memory of hosts has what is new; what nobody wants any more is in none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dask_hpc.checkpoint import keys as keys_of
from dask_hpc.checkpoint.describe import PROGRAM, RESULTS, describe_results
from dask_hpc.checkpoint.manifest import UnreadManifestError, check_signed
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.versions import numbers
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint.copies import InVersions
from dask_hpc.scheduler.internals import reads
from dask_hpc.worker.saved import Copy, MemoryCopy
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: A copy of a result in the store, and in either, and the name of its type.
Kept = tuple[Copy, str]
AnyKept = tuple[Copy | MemoryCopy, str]
#: Plan and keys of a version, and what the one before has of them.
Next = tuple[Plan, list[Any], dict[Any, Kept]]


@dataclass(slots=True, eq=False)
class Results:
    """The results of one job."""

    name: str
    #: Of a run and those that have gone on from it.
    run: str
    #: What clients have wanted of the job and is not forgotten, in the order in which they asked.
    wanted: dict[Any, None] = field(default_factory=dict)
    #: Whether versions are in the store; else they are in memory, and what they have is protected.
    in_store: bool = True
    #: What the newest version in the store has.
    written: dict[Any, Kept] = field(default_factory=dict)
    #: What an earlier run has left, there or in memory, and nobody has asked for yet.
    found: dict[Any, AnyKept] = field(default_factory=dict)
    #: What cannot be written.
    unwritable: set[Any] = field(default_factory=set)
    #: The newest version of the name when it is a program's, which nobody has said may be replaced.
    theirs: str = ""

    def saved(self, protected: InVersions) -> Collection[Any]:
        """Results that need not be computed again; for `protected` see `next`."""
        if self.in_store:
            return self.written
        there = protected.in_memory(self.name)
        return [key for key in self.wanted if key in there]

    def take_up(self, run: str, left: Mapping[Any, AnyKept], resume: bool | None) -> None:
        """What an earlier run has left in the memory of hosts.

        Raises
        ------
        CheckpointError
            When `resume` does not say what is to become of it.
        """
        if not left or resume is False:
            return
        if resume is None:
            raise CheckpointError(
                f"hosts hold in memory {counted(len(left), 'result')} of an earlier run of {self.name!r}; "
                "go on from them with resume=True, drop them with resume=False, or give this job's versions "
                "another name with protect='NAME'"
            )
        if not self.written:
            self.run = run
        self.found = {**left, **self.found}

    def take(self, keys: Iterable[Any]) -> dict[Any, AnyKept]:
        """Clients want these now; gives those that an earlier run has left."""
        self.wanted.update(dict.fromkeys(keys))
        return {key: self.found.pop(key) for key in keys if key in self.found}

    def next(self, scheduler: Scheduler, protected: InVersions) -> Next | None:
        """Plan and keys of the next version, and what the last one has of it; None: there is nothing new.

        Parameters
        ----------
        protected
            Keys that are the same results as when they were written: one that was forgotten and made again
            is another.
        """
        states = reads.states(scheduler, {**self.wanted, **self.written})
        self.wanted = {key: None for key in self.wanted if key in states}
        self.unwritable &= states.keys()
        # what others have made of the same name, and nobody wants of the job, is none of it
        old = {
            key: kept
            for key, kept in self.written.items()
            if key in protected or key not in states or key not in self.wanted
        }
        # a version of another name may go before, and nobody asks for that after this job
        saved = old if self.in_store else protected.in_memory(self.name)
        new = [
            key
            for key in reads.writable(scheduler, self.wanted)
            if key not in saved and key not in self.unwritable
        ]
        # no manifest could say whose they are
        self._leave_out({key for key in new if keys_of.as_json(key) is None})
        new = [key for key in new if key not in self.unwritable]
        if not new:
            return None
        keys = [*old, *new]
        return describe_results(self.name, keys, self.run), keys, old

    def wrote(self, copies: Mapping[Any, Kept]) -> None:
        """A version is whole; these are its results in the store."""
        if not self.in_store:
            return
        # in its own order, so that the next one has them in the same
        self.written = dict(sorted(copies.items(), key=lambda one: one[1][0].number))
        self.found = {
            key: copies.get(key, kept)
            for key, kept in self.found.items()
            if key in copies or _in_memory(kept)
        }

    def failed(self, unwritable: Set[Any], removed: Set[str]) -> bool:
        """There is no new version; whether the next one may do without the reason.

        That is what cannot be written, or what the last version had and somebody has removed (by folder).
        """
        self._leave_out(unwritable)
        there = {key: kept for key, kept in self.written.items() if kept[0].folder not in removed}
        self.written = there
        self.found = {key: kept for key, kept in self.found.items() if key in there or _in_memory(kept)}
        return bool(removed or unwritable)

    def _leave_out(self, keys: Set[Any]) -> None:
        for key in keys - self.unwritable:
            logger.warning("Result %r of protected %r cannot be written and is left out", key, self.name)
        self.unwritable |= keys


def _in_memory(kept: AnyKept) -> bool:
    return isinstance(kept[0], MemoryCopy)


def found_in(store: str, name: str, resume: bool | None, run: str) -> Results:
    """The results of a job that begins: none, or those that an earlier run of its name has left.

    Raises
    ------
    CheckpointError
        When there are some and `resume` does not say what of them, or they cannot be read.
    """
    fresh, folder = Results(name, run), Store(store)
    newest = max(numbers(folder.folder / name), default=None)
    if resume is False or newest is None:
        return fresh
    try:
        version = folder.find(name)
        try:
            manifest = version.manifest()
        except UnreadManifestError:
            raise  # nobody knows what is wrong with it: what it alone has would be left, and removed
        except CheckpointError:
            whole = [each for each in folder.versions(name) if each.complete]
            if not whole:
                raise
            manifest = (version := whole[-1]).manifest()
            logger.warning("Version %d of %r is damaged; it goes on from %s", newest, name, version.path)
        check_signed(version.path, manifest)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; or begin anew with resume=False") from None
    if PROGRAM in manifest.plan.extra:
        # it says itself what it wants of it; results alone are not to take its place
        fresh.theirs = version.path
        return fresh
    if manifest.plan.kind != RESULTS:
        raise CheckpointError(
            f"{version.path} is no version of a job: rt.checkpoint or a CheckpointSession has written it, "
            "and those of this job would take its place; give them another name with protect='NAME', or "
            "replace it with resume=False"
        )
    if resume is None:
        raise CheckpointError(
            f"{version.path} has results of an earlier run of {name!r}; go on from them with resume=True, "
            "replace them with resume=False, or give this job's another name with protect='NAME'"
        )
    array = manifest.plan.arrays[0]
    try:
        keys = [keys_of.from_json(each) for each in manifest.plan.extra["keys"]]
        if len(keys) != array.count:
            raise ValueError(f"{len(keys)} keys for {array.count} results")
        fresh.run = str(manifest.plan.extra["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the manifest of {version.path} does not say whose results it has ({error!r}); replace them "
            "with resume=False"
        ) from None
    fresh.written = {
        key: (Copy(version.path, array, number, manifest.written(number)), "object")
        for number, key in enumerate(keys)
    }
    fresh.found.update(fresh.written)
    return fresh
