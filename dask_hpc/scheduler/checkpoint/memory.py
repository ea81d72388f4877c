"""Versions in the memories of hosts: L1 on the host itself, L2 as parities on others.

Every host has a manager, which holds what its workers have written whatever becomes of them
(`dask_hpc.worker.manager`). Who holds parities of whom is decided by
`dask_hpc_policies.resilience.redundancy_sets`; managers make them from what they ask each other for.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from dask_hpc.checkpoint.blobs import Group, Home, finder
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.record import Record, made
from dask_hpc.checkpoint.whereabouts import Whereabouts
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint.asked import managers_of
from dask_hpc.scheduler.checkpoint.dropping import Dropping
from dask_hpc.scheduler.checkpoint.listed import Listed
from dask_hpc.scheduler.checkpoint.to_memory import InMemory, Kept, copies_in
from dask_hpc.scheduler.checkpoint.writing import Writing
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker.fetching import Patience, ask, be_patient
from dask_hpc.worker.keeping import keep
from dask_hpc.worker.parities import blobs_of, protect
from dask_hpc.worker.repairing import TooManyLostError, repaired
from dask_hpc.worker.saved import MEMORY
from dask_hpc_policies.resilience.redundancy_sets import Scheme
from dask_hpc_policies.wording import counted

logger = logging.getLogger(__name__)

#: Who reads a version that is made whole again meanwhile has read it by then, in seconds.
_READ_S = 60.0
#: Versions that are not whole, of which managers are told with the next ones.
_REMEMBERED = 100
#: One that is there says so by then; versions that go with the scheduler are dropped by then, in seconds.
_LOOKED_S, _CLOSES_S = 2.0, 3.0


class Memory:
    """All versions in the memories of the hosts of one cluster."""

    def __init__(self, state: State, watched: Watched) -> None:
        self._state, self._scheduler, self._watched = state, state.scheduler, watched
        #: Segments of each version by whose they are.
        self._segments: dict[str, dict[Home, set[str]]] = {}
        #: What is known of each whole version.
        self.records: dict[str, Record] = {}
        #: Of those, which an earlier scheduler has left and nobody has asked for yet.
        self.untouched: set[str] = set()
        #: Stores that say where the managers are.
        self._listed: dict[str, Listed] = {}
        self._dropping = Dropping(state, self._look)
        #: Those that have ended while somebody may still have been writing: told with the next one.
        self._over: deque[str] = deque(maxlen=_REMEMBERED)
        #: Until when versions may be read that are made again, on the clock of the loop.
        self._given_s: dict[str, float] = {}
        #: The same of those that somebody has asked for and reads in a moment.
        self._about_s: dict[str, float] = {}
        self._ended = False

    @property
    def manager(self) -> dict[str, Any]:
        """What a manager is told when it is started."""
        scheduler, settings = self._scheduler, self._state.settings
        return {
            "cluster": scheduler.id,
            "scheduler": scheduler.address,
            "share": settings.checkpoint_host_memory,
            "linger_s": settings.checkpoint_linger_s,
            "patience": (settings.checkpoint_silence_s, settings.checkpoint_ask_again_s),
        }

    async def write(
        self, plan: Plan, number: int, writing: Writing, scheme: Scheme | None, created_s: float | None
    ) -> tuple[dict[Any, Kept], str]:
        """Have all blocks of a version in the memories of their hosts, and parities of them in others'.

        Parameters
        ----------
        plan, number, created_s
            What it is made of, which version of its name it is, and when that was first written; None: now.
        scheme
            None: there are to be no parities.

        Returns
        -------
        tuple
            Where each result can be read; and why there are no parities of some or all, or larger ones than
            asked for.

        Raises
        ------
        CheckpointError
            When not all can be written.
        """
        # versions may follow each other at once, where there is room for two
        await self._dropping.done(_LOOKED_S)
        begun = version = await self._begin(writing)
        writing.draft = version.version
        try:
            version = await self._written(version, writing)
            copies, groups, note = await self._protect(version, writing, scheme, plan.name)
            homes = {str(block.pack): home for home, block in writing.held}
            written = [writing.every[at].written for at in range(plan.count)]
            record = await asyncio.to_thread(
                made, version.version, plan, number, written, homes, tuple(groups), created_s
            )
            every = await self._keep(record, version.domains)
            # who has not its record does not know what it names
            if writing.unheard and every:
                self._over.append(version.version)
            return copies, note
        except BaseException:
            self._note(version, writing)
            late_s = asyncio.get_running_loop().time() + self._state.settings.checkpoint_ask_again_s
            # any may have what nobody has heard of, and hang
            for home in {**begun.domains, **version.domains}:
                self._dropping.drop_at(late_s, home, (), version.version)
            self.drop([version.version])
            self._over.append(version.version)
            raise

    def holders(self) -> set[str]:
        """Addresses of managers that hold something of a version."""
        return {home.address for homes in self._segments.values() for home in homes}

    async def lacking(self, names: Iterable[str]) -> list[str]:
        """Those of these versions of which a host has something on which there is no worker any more.

        Raises
        ------
        CheckpointError
            When there is no manager at all.
        """
        there = (await self._begin()).domains.keys()
        held = {name: self._segments.get(name.removeprefix(MEMORY), {}) for name in names}
        return [name for name, homes in held.items() if homes.keys() - there]

    def shared(self, name: str) -> bool:
        """Whether hosts have parities of what others hold of a version."""
        record = self.records.get(name.removeprefix(MEMORY))
        return record is not None and bool(record.groups)

    async def answers(self, names: Iterable[str]) -> bool:
        """Whether all that these versions are made of is still there, also where there is no worker."""
        homes = {home for name in names for home in self._segments.get(name.removeprefix(MEMORY), {})}
        return await self.there(homes) == homes

    async def repair(self, name: str, scheme: Scheme) -> tuple[str, str]:
        """Make a version whole again of which hosts are lost: managers do so, of what they hold.

        Returns
        -------
        tuple
            What it is called from now on, and why it has not the redundancy of the scheme; empty: it has.

        Raises
        ------
        OSError, CheckpointError
            When that cannot be; it stays as it is. `TooManyLostError`: nor later.
        """
        old = self.records[name.removeprefix(MEMORY)]
        new: dict[Home, set[str]] = {}

        def note(home: Home, segment: str) -> None:
            new.setdefault(home, set()).add(segment)

        try:
            domains = (await self._begin()).domains
            record, reason = await repaired(self._scheduler.rpc, old, domains, scheme, note)
            await self._keep(record, domains)
        except TooManyLostError:
            if not old.readable(await self.there(old.all_homes)):
                raise
            raise CheckpointError("hosts that hold it have no worker just now") from None
        except BaseException:
            for home, segments in new.items():
                # its record is nobody's: that of the old one stays
                self._dropping.drop(home, segments, uuid.uuid4().hex)
            raise
        self._segments[record.id] = kept = record.segments()
        if old.id not in self.records:
            # nobody wants it any more
            self.drop([record.id])
            raise CheckpointError("it was replaced meanwhile")
        self.records.pop(old.id)
        loop = asyncio.get_running_loop()
        for home, segments in self._segments.pop(old.id, {}).items():
            self._dropping.drop(home, set(), old.id)
            if unused := segments - kept.get(home, set()):  # who reads it by its old record goes on
                self._dropping.drop_at(loop.time() + _READ_S, home, unused, old.id)
        return f"{MEMORY}{record.id}", reason

    async def _begin(self, writing: Writing | None = None) -> InMemory:
        """Have a manager on every host, for a version; see `managers_of`.

        Where there is no worker yet results are waited for: who writes them then has a manager started.
        """
        manager = self.manager
        be_patient(Patience(*manager["patience"]))
        waits = writing is not None and writing.left and not self._scheduler.workers
        domains = {} if waits else await managers_of(self._scheduler, manager, writing)
        self._dropping.again(domains)
        return InMemory(domains, manager, self._state.settings.checkpoint_transfer, tuple(self._over))

    async def _written(self, version: InMemory, writing: Writing) -> InMemory:
        """Have all blocks of a version written, those of hosts that are lost meanwhile by others.

        Gives it with the hosts of now, if some may have come or gone.
        """
        while True:
            await writing.run(version.call)
            held = {home for home, _ in writing.held}
            if held <= version.domains.keys() and not (writing.waits or writing.unheard):
                return version
            try:
                there = (await self._begin(writing)).domains
            except CheckpointError:  # nobody is there any more; managers are, for a while
                return version
            away = held - there.keys()
            if not (lost := away - await self.there(away)):
                known = {home: domain for home, domain in version.domains.items() if home in held}
                return replace(version, domains={**known, **there})
            writing.again(lost)

    async def _protect(
        self, version: InMemory, writing: Writing, scheme: Scheme | None, name: str
    ) -> tuple[dict[Any, Kept], list[Group], str]:
        copies = copies_in(version.version, writing.blocks, name)
        self._note(version, writing)
        if scheme is None:
            return copies, [], ""
        blobs = blobs_of(writing.held)

        def note(home: Home, segment: str) -> None:
            self._segments.setdefault(version.version, {}).setdefault(home, set()).add(segment)

        try:
            groups, reason = await protect(
                self._scheduler.rpc, blobs, version.domains, scheme, note, version.version
            )
        except (OSError, CheckpointError) as error:
            return copies, [], f"L2: {error}"
        told = [reason] if reason else []
        if alone := [home.address for home in blobs if home not in version.domains]:
            told.append(
                f"no other host has parities of what is on {counted(len(alone), 'host')} without a worker "
                f"(the first manager: {min(alone)})"
            )
        groups = [each for each in groups if any(blob.segments for blob in each.blobs)]
        find, grouped = finder(groups), dict[Any, Kept]()
        for key, (copy, type_name) in copies.items():
            group, blob, start = find(copy.home, str(copy.written.pack))
            grouped[key] = replace(copy, group=group, blob=blob, start=start), type_name
        return grouped, groups, f"L2: {'; '.join(told)}" if told else ""

    def _note(self, version: InMemory, writing: Writing) -> None:
        """What a version has so far, whether or not it becomes whole."""
        known = self._segments.setdefault(version.version, {})
        for home, block in writing.held:
            known.setdefault(home, set()).add(str(block.pack))

    async def _keep(self, record: Record, domains: Mapping[Home, str]) -> bool:
        """Have the record of a whole version with all hosts that have something of it; whether all have it.

        Raises
        ------
        CheckpointError
            When too few have it (`keeping`): it would be lost with this scheduler, or one of them then. When
            these do not hold all of it.
        """
        homes = sorted(record.all_homes, key=attrgetter("address"))
        kept, problem = await keep(self._scheduler.rpc, record, homes, domains)
        if not (problem or record.readable(kept)):
            away = min({home.address for home in homes} - {home.address for home in kept})
            problem = f"what the manager at {away} has cannot be had, and no parities make up for that"
        if problem:
            # one that has not answered may have it all the same
            for home in homes:
                self._dropping.drop(home, set(), record.id)
            raise CheckpointError(problem)
        self.records[record.id] = record
        self._look()
        await self._save()
        return len(kept) == len(homes)

    async def _save(self) -> None:
        """Have the store say where the managers are, if there is one."""
        store = self._state.settings.checkpoint_store
        if store is None:
            return
        homes = {home for record in self.records.values() for home in record.all_homes}
        me, listed = self._scheduler.id, tuple(sorted(homes, key=attrgetter("address")))
        said = self._listed.setdefault(store, Listed(store, me))
        await said.want(Whereabouts(me, self._scheduler.address, listed))

    def take_over(self, record: Record) -> None:
        """A version that an earlier scheduler has had written is this one's from now on."""
        self.records[record.id], self._segments[record.id] = record, record.segments()
        self.touch(record.id, False)

    def touch(self, id: str, touched: bool = True) -> None:
        """Somebody has asked for a version that an earlier scheduler has left, or did not want it."""
        (self.untouched.discard if touched else self.untouched.add)(id)
        self._look()

    def _look(self) -> None:
        """Listen while something would go with this scheduler: what nobody has asked for stays anyway."""
        goes = self.records.keys() - self.untouched or self._dropping.plans
        (self._watched.listen if goes and not self._ended else self._watched.leave)(self)

    async def there(self, homes: Iterable[Home]) -> set[Home]:
        """Those of these managers that answer."""
        asked = list(homes)
        answers = await asyncio.gather(
            *(ask(self._scheduler.rpc, home.address, "identity", _LOOKED_S) for home in asked),
            return_exceptions=True,
        )
        return {home for home, answer in zip(asked, answers, strict=True) if isinstance(answer, dict)}

    def again(self, name: str) -> None:
        """A version is about to be made again: who reads the one that it replaces may go on for a while."""
        now_s = asyncio.get_running_loop().time()
        self._given_s = {id: until_s for id, until_s in self._given_s.items() if until_s > now_s}
        self._given_s[name.removeprefix(MEMORY)] = now_s + _READ_S

    def about_to_be_read(self, id: str) -> None:
        """Somebody was told of a version: one that replaces it may come before it is read."""
        self._about_s[id] = asyncio.get_running_loop().time() + _READ_S

    def read(self, id: str) -> None:
        """Its results have come to be there: they say how long it is needed."""
        self._about_s.pop(id, None)

    def drop(self, names: Iterable[str]) -> None:
        """Nobody needs these versions any more, which are called as `MemoryCopy.folder` says.

        One that was made `again` goes a while later.
        """
        loop = asyncio.get_event_loop()
        for name in names:
            version = name.removeprefix(MEMORY)
            until_s = max(self._given_s.pop(version, 0.0), self._about_s.pop(version, 0.0))
            self.records.pop(version, None)
            self.untouched.discard(version)
            for home, segments in self._segments.pop(version, {}).items():
                if loop.time() < until_s:
                    self._dropping.drop_at(until_s, home, segments, version)
                else:
                    self._dropping.drop(home, segments, version)
        self._look()

    # ------------------------------------------------------------------ events

    async def closing(self) -> None:
        """The scheduler is closing: versions in memory go with it, as those of one that is lost do not."""
        homes = {home for of_version in self._segments.values() for home in of_version}
        self.end(await self._dropping.closing(homes))
        await self._dropping.done(_CLOSES_S)

    def end(self, there: Collection[Home] | None = None) -> None:
        """Have managers keep for nobody what they hold; they end soon after the last worker has gone.

        What an earlier scheduler has left and nobody has asked for is still there for the next one.

        Parameters
        ----------
        there
            No task reads any more, either: the next cluster on a host has the room at once, where these
            managers are. None: tasks may still read.
        """
        for version, homes in self._segments.items():
            if version not in self.untouched:
                for home, segments in homes.items():
                    if there is None or home in there:
                        self._dropping.drop(home, () if there is None else segments, version)
        for listed in self._listed.values():  # a store may take its time
            self._dropping.later(listed.want(None))
        self._segments.clear()
        self.records.clear()
        self.untouched.clear()
        # what is given up from now on may still be planned to be dropped later
        self._ended = True
        self._look()
