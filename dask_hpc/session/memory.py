"""Versions of a session in the memories of hosts: level L1, and parities in those of other hosts, level L2.

Every process writes its blocks to the memory of its host, whose manager holds them whatever becomes of the
program. The process of rank 0 has the parities made, and then the record kept: from that moment on there is
the version. The newest one stays; it goes when the next one is whole.

Rules of the file: all processes call the same methods, in the same order. What a manager refuses, or does not
answer, is a value that all of them get; what cannot be gone on from is raised in all.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Security

from dask_hpc.checkpoint.blobs import Group, Home
from dask_hpc.checkpoint.branch import branch, past_of
from dask_hpc.checkpoint.inside import no_memory
from dask_hpc.checkpoint.plan import Plan, Written
from dask_hpc.checkpoint.record import Record, made, parse, records_by_file
from dask_hpc.checkpoint.segments import NO_ROOM, segment_names
from dask_hpc.checkpoint.services import closed, most_added
from dask_hpc.checkpoint.values import to_bytes
from dask_hpc.errors import CheckpointError
from dask_hpc.session import keys
from dask_hpc.session.calls import Calls
from dask_hpc.session.held import Held, blocks_of
from dask_hpc.session.host import Host, this_host
from dask_hpc.session.ranks import Ranks, caught, first_problem
from dask_hpc.session.shares import Piece
from dask_hpc.worker.fetching import ManagerSilentError, Patience, ask, be_patient, is_silent, listens
from dask_hpc.worker.host_memory import fill, slots_bytes
from dask_hpc.worker.host_process import memory_folder
from dask_hpc.worker.keeping import keep
from dask_hpc.worker.managers import reserved
from dask_hpc.worker.node import node_settings
from dask_hpc.worker.parities import blobs_of, protect
from dask_hpc.worker.saved import copies_of
from dask_hpc.worker.serving import served
from dask_hpc_policies.resilience.redundancy_sets import Scheme

logger = logging.getLogger(__name__)

#: A manager that is there says so by then, in seconds.
_ANSWERS_S = 3.0
#: How often one is asked that does not answer, at first.
_TRIES = 3
_LOST = "is not in memory any more: too many hosts that held it are lost"


@dataclass(frozen=True, slots=True)
class Put:
    """What has become of a version: its levels, none when it is not in memory, and why there are not more."""

    levels: tuple[str, ...]
    problem: str
    #: Bytes of its blocks, as managers hold them.
    nbytes: int = 0


class Memory:
    """The versions of one name.

    Parameters
    ----------
    parities
        Whether there is to be level L2.
    """

    def __init__(self, name: str, ranks: Ranks, parities: bool) -> None:
        self._name, self._ranks = name, ranks
        self._settings = settings = node_settings()
        be_patient(Patience(settings.checkpoint_silence_s, settings.checkpoint_ask_again_s))
        self._calls = Calls(Security())
        self._scheme = None
        if parities:
            self._scheme = Scheme(self._settings.checkpoint_redundancy, self._settings.checkpoint_set_size)
        self._host: Host | None = None
        #: What is known of each whole version, and the managers that may have something of them: the process
        #: of rank 0 knows all.
        self._records: dict[str, Record] = {}
        self.written = 0  #: The newest version that this session has written.
        self._homes: set[Home] = set()
        #: Versions that came to nothing, and of which some managers may hear late.
        self._undone: list[Record] = []
        #: Why versions that were there are not known any more, by their files.
        self.damaged: dict[str, str] = {}

    def open(self) -> str:
        """Have a manager on the host of every process; gives why that cannot be, or nothing.

        Raises
        ------
        CheckpointError
            When another run of that name is on a host.
        """
        told = self._ranks.together(lambda: [this_host(), uuid.uuid4().hex])
        nearby = all(host == told[0][0] for host, _ in told)
        kept = self._ranks.together(partial(self._join, told[0][1], nearby))
        if problem := first_problem(kept):
            return problem
        known = self._ranks.first(partial(caught, partial(_key, [each["key"] for each in kept])))
        there = [known] if "problem" in known else self._managers(str(known["key"]))
        # also those of managers that do not come up are whole
        self._know(self._ranks.together(partial(caught, self._texts)))
        if problem := first_problem(there):
            return problem
        self._homes = {Home(**each["home"]) for each in there}
        return ""

    def _managers(self, key: str) -> list[dict[str, Any]]:
        """A manager on every host, who know each other by a key, or by what is configured without one."""

        def had() -> dict[str, Any]:
            assert self._host is not None
            if key:
                keys.keep(self._host.folder, key)
                self._host.security = keys.security(key)
            self._calls.close()
            self._calls = Calls(self._host.security)
            return self._calls(self._tidied)

        return self._ranks.together(partial(caught, had))

    @property
    def newest(self) -> int:
        """Number of the newest whole version; 0: there is none."""
        return max((each.manifest.version for each in self._records.values()), default=0)

    def readable(self) -> list[tuple[int, str]]:
        """Numbers and ids of versions that can be read from the managers that answer, newest first."""
        self._know(self._ranks.together(partial(caught, self._texts)))

        def find() -> list[Any]:
            there = self._calls(self._there)
            gone = [home.address for home in self._homes - there]
            found = [each for each in self._records.values() if each.readable(there)]
            for each in self._records.values():
                if each not in found:
                    logger.warning("Version %d of %s %s", each.manifest.version, self._name, _LOST)
            found.sort(key=lambda each: (each.manifest.version, each.manifest.created_s), reverse=True)
            return [[(each.manifest.version, each.id) for each in found], gone]

        found, gone = self._ranks.first(find)
        for address in gone:
            # so that not every process waits for it
            is_silent(address)
        return [(number, id) for number, id in found]

    def record(self, id: str) -> tuple[Record, Callable[[int], Any]]:
        """A version, and what reads one of its blocks, by number over all arrays."""
        record = self._records[id]
        copies = copies_of(record)

        def read(at: int) -> Any:
            content: np.ndarray = self._calls(copies[at].content)
            return copies[at].value(content, False)

        return record, read

    def write(
        self, plan: Plan, pieces: Sequence[Sequence[Piece]], arrays: Mapping[str, Held], number: int
    ) -> Put:
        """Have a version; the one before goes when it is whole, and stays otherwise."""
        blocks = blocks_of(plan, pieces, arrays, self._ranks.rank)
        id = self._ranks.first(lambda: uuid.uuid4().hex)
        put = partial(caught, partial(self._calls, partial(self._put, plan, blocks)))
        told = self._ranks.together(put)
        if NO_ROOM in first_problem(told) and self._ranks.first(partial(self._made_room, told, id)):
            told = self._ranks.together(put)

        def finish() -> dict[str, Any]:
            whole = caught(lambda: {"plan": closed(plan)})
            if problem := first_problem([*told, whole]):
                self._calls(partial(self._drop, _segments(told), id))
                return {"problem": problem}
            return self._calls(partial(self._finish, whole["plan"], number, id, told))

        answer = self._ranks.first(partial(caught, finish))
        if "levels" not in answer:
            return Put((), f"L1: {answer['problem']}")
        note = f"L2: {answer['note']}" if answer["note"] else ""
        nbytes = sum(Written(*row).nbytes for each in told for _, row in each["blocks"])
        return Put(tuple(answer["levels"]), note, nbytes)

    def forget(self, newest: int) -> None:
        """Drop versions up to a number."""
        if self._ranks.rank == 0:
            self._let_go(each for each in self._records.values() if each.manifest.version <= newest)

    def gone(self) -> bool:
        """Whether the folder of a host was removed: no manager comes up there any more."""
        return any(self._ranks.together(lambda: self._host is not None and self._host.is_gone()))

    def close(self) -> None:
        """Let go of managers; they linger with what they hold."""
        self._calls.close()
        if self._host is not None:
            self._host.stop()
            self._host = None

    # ------------------------------------------------------------------ of each process

    def _join(self, word: str, nearby: bool) -> dict[str, Any]:
        """Have this host; gives the key that the run before has left there, or what is wrong."""
        try:
            if self._host is None:
                self._host = Host(self._name, word, self._settings, nearby)
            return {"key": keys.kept(self._host.folder)}
        except OSError as error:
            return {"problem": no_memory(memory_folder(), error)}

    async def _home(self) -> Home:
        assert self._host is not None
        return await self._host.home()

    async def _tidied(self, pool: Any) -> dict[str, Any]:
        """Have a manager on this host, without what a run that was killed has left unfinished."""
        for last in (*[False] * _TRIES, True):
            home = await self._home()
            try:
                await ask(pool, home.address, "tidy")
                break
            except CheckpointError as error:
                logger.warning("What an earlier run has left unfinished stays in memory: %s", error)
                break
            except ManagerSilentError:
                raise
            except OSError:
                # one that was killed a moment ago seems to be there until it is gone
                if last:
                    raise
                listens(home.address)
        return {"home": asdict(home)}

    def _texts(self) -> dict[str, Any]:
        assert self._host is not None
        folder, home = str(self._host.folder), self._host.now()
        names = [] if home is None else segment_names(folder)
        told = {"records": records_by_file(folder), "segments": names}
        return told if home is None else {**told, "home": asdict(home)}

    def _know(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Take over the records that hosts have."""
        # a manager that was started anew may listen elsewhere: it is known by what it holds
        now = {name: Home(**each["home"]) for each in told if "home" in each for name in each["segments"]}
        texts = {text: file for each in told for file, text in each.get("records", {}).items()}
        self._records, damaged = {}, {}
        for text, file in texts.items():
            try:
                record = parse(text)
            except CheckpointError as error:
                damaged[file] = str(error)
                continue
            if record.name == self._name:
                homes = {
                    home: now[one] for home, all in record.segments().items() for one in all if one in now
                }
                self._records[record.id] = record.at(homes)
        # others may have kept the same one well
        whole = {f"{id}.version" for id in self._records}
        self.damaged = {file: why for file, why in damaged.items() if Path(file).name not in whole}
        for file, why in self.damaged.items():
            logger.warning("A version of %s in memory is not gone back to: %s: %s", self._name, file, why)

    async def _put(self, plan: Plan, blocks: Mapping[int, Any], pool: Any) -> dict[str, Any]:
        """Write the blocks of this process to the memory of its host."""
        assert self._host is not None
        made = await asyncio.to_thread(_made, plan, blocks)
        home, segment = await self._home(), ""
        placed = {}
        if made:
            more = max(map(most_added, plan.arrays))
            home, segment = await reserved(pool, self._home, slots_bytes(made, more))
            placed = await asyncio.to_thread(fill, home.folder, segment, made, more)
            of = {at: (place, number) for at, (place, number, _) in blocks.items()}
            digests = {at: digest for at, (_, digest) in made.items()}
            placed = await served(pool, home, segment, plan.arrays, of, placed, digests)
            await ask(pool, home.address, "seal", segment=segment)
        rows = [(at, astuple(Written(*place, made[at][1], segment))) for at, place in placed.items()]
        return {"home": asdict(home), "domain": self._host.domain, "segment": segment, "blocks": rows}

    # ------------------------------------------------------------------ of the process of rank 0

    async def _finish(
        self, plan: Plan, number: int, id: str, told: Sequence[Mapping[str, Any]], pool: Any
    ) -> dict[str, Any]:
        """Have parities made of what all have written, and its record kept by all."""
        domains = {Home(**each["home"]): str(each["domain"]) for each in told}
        self._homes |= domains.keys()
        home_of = {each["segment"]: Home(**each["home"]) for each in told if each["segment"]}
        written = dict(sorted((at, Written(*row)) for each in told for at, row in each["blocks"]))
        groups: list[Group] = []
        parities: dict[Home, set[str]] = {}
        note, passed_over = "", False
        if self._scheme is not None:
            blobs = blobs_of((home_of[str(each.pack)], each) for each in written.values())
            try:
                groups, note = await protect(
                    pool, blobs, domains, self._scheme, lambda home, one: _add(parities, home, one)
                )
            except (OSError, CheckpointError) as error:
                await self._drop(parities, id, pool)
                groups, note, passed_over = [], str(error), True
        record = made(id, plan, number, list(written.values()), home_of, tuple(groups))
        self._undone.append(record)  # whoever is interrupted does not know who has it by now
        there, problem = await keep(pool, record, domains, domains)
        if problem or not record.readable(there):
            await self._drop_record(record, pool)
            lacking = ", ".join(home.address for home in domains if home not in there)
            why = problem or f"{lacking} cannot be had, and no parities make up for that"
            raise CheckpointError(f"not all hosts keep version {number} of {self._name!r}: {why}")
        self._undone.pop()
        before, self._records, self.written = list(self._records.values()), {record.id: record}, number
        pasts = {each.manifest.version: past_of(each.manifest) for each in [*before, record]}
        line = set(branch(sorted(pasts, reverse=True), pasts.__getitem__))
        safer = [each for each in before if each.groups and each.manifest.version in line]
        if passed_over and safer:
            # what survives the loss of a host stays until there is a newer one that does
            newest = max(safer, key=lambda each: each.manifest.version)
            self._records[newest.id] = newest
        for each in [each for each in before if each.id not in self._records] + self._undone:
            await self._drop_record(each, pool)
        self._undone.clear()
        grouped = any(stripe.parities for group in groups for stripe in group.stripes)
        return {"levels": ["L1", "L2"] if grouped else ["L1"], "note": note}

    def _made_room(self, told: Sequence[Mapping[str, Any]], id: str) -> bool:
        """Let go of what stays beside the newest version, for one that has no room; whether there was any."""
        older = sorted(self._records.values(), key=lambda each: each.manifest.version)[:-1]
        if older:
            self._calls(partial(self._drop, _segments(told), id))
            self._let_go(older)
        return bool(older)

    async def _there(self, pool: Any) -> set[Home]:
        self._homes |= {home for record in self._records.values() for home in record.all_homes}
        homes = list(self._homes)
        answers = await asyncio.gather(
            *(ask(pool, home.address, "identity", _ANSWERS_S) for home in homes), return_exceptions=True
        )
        return {home for home, answer in zip(homes, answers, strict=True) if isinstance(answer, dict)}

    def _let_go(self, records: Iterable[Record]) -> None:
        for record in list(records):
            self._calls(partial(self._drop_record, record))
            self._records.pop(record.id, None)

    async def _drop_record(self, record: Record, pool: Any) -> None:
        homes: dict[Home, Iterable[str]] = dict.fromkeys(self._homes, ())
        await self._drop(homes | record.segments(), record.id, pool)

    async def _drop(self, segments: Mapping[Home, Iterable[str]], version: str, pool: Any) -> None:
        answers = await asyncio.gather(
            *(
                ask(pool, home.address, "drop", segments=sorted(each), version=version)
                for home, each in segments.items()
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, Exception):
                # it goes with its manager
                logger.info("Something of session %r stays in memory: %s", self._name, answer)


def _key(kept: Sequence[str]) -> dict[str, Any]:
    """The key that all hosts are to have, of those that they have; none where certificates are configured."""
    key = "" if Security().require_encryption else next(filter(None, kept), "") or keys.drawn()
    return {"key": key}


def _made(plan: Plan, blocks: Mapping[int, tuple[int, int, Any]]) -> dict[int, Any]:
    """The bytes of blocks, by number over all arrays."""
    found = {}
    for at, (place, number, value) in blocks.items():
        found[at] = to_bytes(plan.arrays[place], number, value)
    return found


def _segments(told: Iterable[Mapping[str, Any]]) -> dict[Home, set[str]]:
    """What processes have written, of those that have."""
    found: dict[Home, set[str]] = {}
    for each in told:
        if each.get("segment"):
            _add(found, Home(**each["home"]), each["segment"])
    return found


def _add(segments: dict[Home, set[str]], home: Home, segment: str) -> None:
    segments.setdefault(home, set()).add(segment)
