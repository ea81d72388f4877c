"""Versions in the memories of hosts by name, those that an earlier scheduler has left among them.

Dask has one scheduler for its workers, and they end with it. So nobody stands by to go on with a cluster:
who comes next takes over. Workers that join find the managers of clusters of this user that are not there any
more (`dask_hpc.worker.left_behind`) and tell what those hold; a store names those on other hosts. It stays
until a newer version of its name is whole, or nobody has asked for it for ``hpc.checkpoint.linger``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dask_hpc.checkpoint import keys as keys_of
from dask_hpc.checkpoint import whereabouts
from dask_hpc.checkpoint.describe import PROGRAM, RESULTS
from dask_hpc.checkpoint.record import Record, dump, parse
from dask_hpc.checkpoint.store_threads import begin, soon
from dask_hpc.checkpoint.whereabouts import Whereabouts
from dask_hpc.errors import CheckpointError, WorkerError
from dask_hpc.scheduler.checkpoint.given import Given
from dask_hpc.scheduler.checkpoint.held import Held
from dask_hpc.scheduler.checkpoint.memory import Memory
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.to_memory import Kept
from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.watched import Watched
from dask_hpc.worker import host_memory
from dask_hpc.worker.fetching import ask
from dask_hpc.worker.left_behind import Owner, answers
from dask_hpc.worker.saved import MEMORY, copies_of
from dask_hpc_policies.wording import counted

logger = logging.getLogger(__name__)

#: A worker has looked at its host by then, in seconds.
_LOOKED_S = 30.0
#: A worker that has joined a moment ago carries our plugin by then; how often one looks, in seconds.
_JOINED_S, _AGAIN_S = 5.0, 0.1


class Left:
    """What one scheduler knows of versions in memory.

    Parameters
    ----------
    lost
        Called once for each earlier scheduler that has left something.
    """

    def __init__(
        self,
        state: State,
        watched: Watched,
        protected: Protected,
        memory: Memory,
        held: Held,
        lost: Callable[[], None],
    ) -> None:
        self._state, self._scheduler = state, state.scheduler
        self._protected = protected
        self._memory, self._held, self._lost = memory, held, lost
        #: Ids of schedulers that have left something, and of this one.
        self._schedulers = {self._scheduler.id}
        #: Names of all that was ever taken over, by id, and what of it when.
        self._taken: dict[str, str] = {}
        #: Those that anybody has had use of.
        self._used: set[str] = set()
        #: Names that anybody has asked for.
        self._wanted: set[str] = set()
        self.results = 0
        self._since_s: float | None = None
        #: Workers that have looked at their hosts.
        self._workers: set[str] = set()
        #: Stores that were asked for managers of earlier schedulers.
        self._stores: set[str] = set()
        #: Names of jobs that still may ask for results that were left.
        self._jobs: set[str] = set()
        self.given = Given(watched, protected, memory, held, self._unclaimed)

    def methods(self) -> Mapping[str, Method]:
        """What clients and workers may call."""
        return {
            "manager_settings": self.manager_settings,
            "took_over": self.took_over,
            "version_in_memory": self.version_in_memory,
        }

    async def manager_settings(self) -> dict[str, Any]:
        """What a worker that takes over a manager has to know."""
        return {key: self._memory.manager[key] for key in ("share", "linger_s")}

    async def took_over(
        self, address: str, folder: str, cluster: str, records: Sequence[str], age_s: float = 0.0
    ) -> None:
        """A worker has taken over the manager that listens there, with these records of that cluster.

        So many seconds ago another scheduler had done so, which has had no use of them.
        """
        names, ids = set[str](), set[str]()
        for text in records:
            try:
                record = await asyncio.to_thread(parse, text)
            except CheckpointError as error:
                logger.warning("Something that was left in %s is not taken over: %s", folder, error)
                continue
            if record.id in self._taken or record.id in self._memory.records:
                continue
            self._taken[record.id] = record.name
            self._memory.take_over(record)
            self._since_s = self._state.now_s()
            self.results += len(record.places)
            names.add(record.name)
            ids.add(record.id)
            logger.info(
                "Version %d of %r in memory was left by another scheduler, and is ours now",
                record.manifest.version,
                record.name,
            )
        if names and cluster not in self._schedulers:
            # one that has left nothing may have ended as it should
            self._schedulers.add(cluster)
            self._lost()
        for name in names:
            await self._tidy(name)
        if names:
            self._expire_later(ids, age_s)

    async def version_in_memory(
        self,
        name: str,
        version: int | None = None,
        allow_pickle: bool = False,
        key_file: str | None = None,
    ) -> dict[str, Any] | None:
        """The newest version of a name, or the one asked for, that hosts hold and that can be read.

        Returns
        -------
        dict
            ``records``, several of the results of a job, their ``bytes``, the ``version`` of the newest and
            when it was written (``created_s``); or ``why`` none is known of, or can be read, or not the last
            one, which was written then (``lost_s``). None: there is none.
        """
        self._wanted.add(name)
        unseen = await self._looked()
        while True:
            known = [each for each in self._of(name) if version in (None, each.manifest.version)]
            if not known:
                return {"records": [], "why": _unseen(unseen)} if unseen else None
            whole = await self._readable(known)
            # one that was made again meanwhile, as a host was lost, has another record
            if all(each.id in self._memory.records for each in known):
                break
        told: dict[str, Any] = {}
        if not whole or whole[-1] is not known[-1]:
            last = known[-1].manifest
            lost = f"hosts that held version {last.version} of {name!r} in memory are lost"
            told["why"] = f"{lost}, and so are those that held what stands for it"
            told["lost_s"] = last.created_s
        if not whole:
            return {"records": [], **told}
        newest = whole[-1]
        chosen = [each for each in whole if _run(each) == _run(newest) is not None] or [newest]
        for record in chosen:
            self.given.give(record, allow_pickle, key_file)
        await self._use(chosen)
        texts = [await asyncio.to_thread(dump, record) for record in chosen]
        return {
            "records": texts,
            "created_s": newest.manifest.created_s,
            "version": newest.manifest.version,
            "bytes": sum(record.manifest.bytes for record in chosen),
            **told,
        }

    # ------------------------------------------------------------------ jobs

    async def states_of(self, name: str) -> list[str]:
        """Versions of the state of a program that can be read, oldest first, as records."""
        self._wanted.add(name)
        await self._looked()
        states = await self._readable([each for each in self._of(name) if _is_state(each)])
        await self._use(states)
        return [await asyncio.to_thread(dump, each) for each in states]

    async def results_of(self, name: str) -> tuple[str, dict[Any, Kept]]:
        """Results of an earlier run of a job, by key, and the run; empty when none were left."""
        self._wanted.add(name)
        await self._looked()
        left = [
            each for each in self._of(name) if each.id in self._memory.untouched and _run(each) is not None
        ]
        left = await self._readable(left)
        await self._use(left)
        found: dict[Any, Kept] = {}
        run = _run(left[-1]) if left else None
        for record in left:
            told = record.manifest.plan.extra.get("keys", ())
            copies = copies_of(record)
            if _run(record) == run and len(told) == len(copies):
                for key, copy in zip(told, copies, strict=True):
                    try:
                        found[keys_of.from_json(key)] = copy, "object"
                    except ValueError as error:
                        logger.warning("A result of %r that was left is nobody's: %s", name, error)
        return run or "", found

    def hold(self, name: str) -> None:
        """A job may ask for what was left of this name, as long as it runs."""
        self._jobs.add(name)

    def keep(self, name: str) -> None:
        """It does not run after all: what was left stays for the next one."""
        self._jobs.discard(name)
        self._expire_later()

    def let_go(self, name: str) -> None:
        """It asks for no more of it."""
        self._jobs.discard(name)
        self._held.let_go(name, self._state.settings.checkpoint_linger_s)
        self.newer(name)
        self._expire_later()

    def newer(self, name: str) -> None:
        """There is a newer version of a name, or none is wanted: what was left of it goes.

        The state of a program does when there is a newer one.
        """
        if name not in self._jobs:
            left = [each for each in self._of(name) if each.id in self._memory.untouched]
            again = self._held.has_state(name)
            self._drop([each for each in left if again or not _is_state(each)])

    def unneeded(self, folders: Collection[str]) -> set[str]:
        """Those of these folders, which no result is read from, that no job may still ask for more of."""
        records = self._memory.records
        kept = {
            MEMORY + id for id, record in records.items() if record.name in self._jobs and id in self._taken
        }
        return set(folders) - kept

    def newest(self, name: str) -> int:
        """Number of the newest version of a name in memory; 0: there is none."""
        return max((each.manifest.version for each in self._of(name)), default=0)

    def status(self) -> dict[str, Any]:
        """What was taken over, how long ago, and the names of it that were asked for; empty: nothing was."""
        if self._since_s is None:
            return {}
        told = {
            "versions": len(self._taken),
            "results": self.results,
            "age_s": round(self._state.now_s() - self._since_s, 3),
            "asked": sorted(self._wanted & set(self._taken.values())),
        }
        return {"taken_over": told}

    # ------------------------------------------------------------------ inside

    def _of(self, name: str) -> list[Record]:
        """Versions of a name, oldest first."""
        found = [each for each in self._memory.records.values() if each.name == name]
        return sorted(found, key=lambda each: (each.manifest.created_s, each.id))

    async def _readable(self, records: Sequence[Record]) -> list[Record]:
        there = await self._memory.there({home for each in records for home in each.all_homes})
        return [each for each in records if each.readable(there)]

    async def _use(self, records: Sequence[Record]) -> None:
        """Have hosts know that what another scheduler has left is in use: it is left anew with this one."""
        new = [each for each in records if each.id in self._taken and each.id not in self._used]
        self._used.update(each.id for each in new)
        asked = [(home, each.id) for each in new for home in each.all_homes]
        calls = (ask(self._scheduler.rpc, home.address, "used", version=id) for home, id in asked)
        await asyncio.gather(*calls, return_exceptions=True)

    async def _looked(self) -> list[str]:
        """Wait until all workers have looked for what was left on their hosts; gives those that have not."""
        new = [address for address in self._scheduler.workers if address not in self._workers]
        await asyncio.gather(*(self._looked_at(address) for address in new))
        store = self._state.settings.checkpoint_store
        if store is not None and store not in self._stores:
            self._stores.add(store)
            try:
                listed = await soon(whereabouts.load, store)  # what is in memory needs no store
            except OSError as error:
                logger.warning("The store does not say where managers of earlier schedulers are: %s", error)
                self._stores.discard(store)
                listed = []
            for told in listed:
                if told.cluster != self._scheduler.id:
                    await self._asked(store, told)
        return [each for each in new if each in self._scheduler.workers and each not in self._workers]

    async def _asked(self, store: str, told: Whereabouts) -> None:
        """Ask managers that a store knows, whose scheduler is not there any more."""
        if await answers(self._scheduler.rpc, Owner(told.cluster, told.scheduler)):
            return
        found = await asyncio.gather(
            *(ask(self._scheduler.rpc, home.address, "records") for home in told.homes),
            return_exceptions=True,
        )
        there = False
        for home, answer in zip(told.homes, found, strict=True):
            if isinstance(answer, dict):
                there = True
                await self.took_over(home.address, home.folder, told.cluster, answer["records"])
        if not there:
            # not waited for: one that hangs keeps nobody from what is in memory
            begin(whereabouts.forget, store, told.cluster)

    async def _looked_at(self, address: str) -> None:
        for _ in range(int(_JOINED_S / _AGAIN_S)):
            try:
                if await remote.run(self._scheduler, address, host_memory.looked, {}, _LOOKED_S):
                    self._workers.add(address)
            except WorkerError:
                await asyncio.sleep(_AGAIN_S)
                continue
            except OSError as error:
                logger.info("Worker %s has not looked at its host: %s", address, error)
            return

    async def _tidy(self, name: str) -> None:
        """Of what was left of a name keep the newest version that can be read, or all of the newest run."""
        left = await self._readable(self._of(name))
        if not left or name in self._jobs:
            return
        newest = left[-1]
        same_run = {each.id for each in left if _run(each) == _run(newest) is not None}
        old = [
            each for each in self._of(name)[:-1] if each.id in self._memory.untouched and each is not newest
        ]
        self._drop(
            [
                each
                for each in old
                if each.id not in same_run and each.manifest.created_s <= newest.manifest.created_s
            ]
        )

    def _unclaimed(self, record: Record) -> None:
        """Whoever was given a version has not read it: one that was left may be dropped again."""
        if record.id in self._taken:
            self._memory.touch(record.id, False)
            self._expire_later()

    def _expire_later(self, ids: Collection[str] | None = None, age_s: float = 0.0) -> None:
        left_s = max(0.0, self._state.settings.checkpoint_linger_s - age_s)
        which = set(self._memory.untouched if ids is None else ids)
        asyncio.get_running_loop().call_later(left_s, self._expire, which)

    def _expire(self, ids: Collection[str]) -> None:
        """Nobody has asked for these for so long."""
        records = [self._memory.records[id] for id in self._memory.untouched & set(ids)]
        self._drop([each for each in records if each.name not in self._jobs])

    def _drop(self, records: Sequence[Record]) -> None:
        used = self._protected.folders()
        for record in records:
            if MEMORY + record.id in used:
                # it goes with the last result that is read from it
                self._memory.touch(record.id)
            else:
                logger.info(
                    "Version %d of %r in memory is dropped: nobody wants it any more",
                    record.manifest.version,
                    record.name,
                )
                self._memory.drop([record.id])


def _unseen(workers: Sequence[str]) -> str:
    """That these have not looked, in words."""
    they = counted(len(workers), "worker")
    return f"{they} did not tell what the host has in memory, the first is {workers[0]}; ask again soon"


def _is_state(record: Record) -> bool:
    """Whether a program goes back to it."""
    return PROGRAM in record.manifest.plan.extra


def _run(record: Record) -> str | None:
    """The run of a job whose results they are; None: they are no job's."""
    plan = record.manifest.plan
    return str(plan.extra["run"]) if plan.kind == RESULTS and plan.extra.get("run") else None
