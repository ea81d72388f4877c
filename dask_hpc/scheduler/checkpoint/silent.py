"""Workers that do not answer while versions are written to the memory of hosts, and when they are asked next.

As John (2024, section 6.5) has it: one that is silent sends the version that is being written to the file
system as a whole, and is asked again some time after that (his t_wait), by itself. Until then versions that
need it go to the store at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any

from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint.writing import Writing
from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.tables.state import State
from dask_hpc.worker.fetching import silent

#: Who has not said where its manager is, in the rest of the time, has this share of it to answer at all.
_SHARE = 0.5


class Silent:
    """The workers of one scheduler that have not answered lately."""

    def __init__(self, state: State) -> None:
        self._state, self._scheduler = state, state.scheduler
        #: When each was found silent, on the runtime's clock.
        self._since_s: dict[str, float] = {}

    def known(self) -> set[str]:
        """Those that are there and not to be asked yet."""
        now_s, wait_s = self._state.now_s(), self._state.settings.checkpoint_ask_again_s
        there = self._scheduler.workers
        self._since_s = {
            address: since_s
            for address, since_s in self._since_s.items()
            if address in there and now_s - since_s < wait_s
        }
        return set(self._since_s)

    async def among(self, addresses: Iterable[str], share: float = 1.0) -> set[str]:
        """Those of these workers that do not answer; those that are known to be silent are not asked.

        They have that `share` of the time, when they have not answered something else before.
        """
        known, every = self.known(), list(addresses)
        asked = [address for address in every if address not in known]
        within_s = share * self._state.settings.checkpoint_silence_s
        answers = await asyncio.gather(*(self._answers(address, within_s) for address in asked))
        for address, answer in zip(asked, answers, strict=True):
            if not answer:
                self._since_s[address] = self._state.now_s()
        return known.intersection(every) | {
            address for address, answer in zip(asked, answers, strict=True) if not answer
        }

    @asynccontextmanager
    async def done_without(self, writing: Writing) -> AsyncIterator[None]:
        """Have a version written by those who answer, as long as the block is.

        It is given up once one of the workers that write it is silent.

        Raises
        ------
        CheckpointError
            When nobody else holds what silent ones hold.
        """

        async def late(addresses: Collection[str]) -> set[str]:
            silent = await self.among(addresses, _SHARE)
            self._without(writing, silent)
            return silent

        self._without(writing, self.known())
        writing.late = self._state.settings.checkpoint_silence_s * (1 - _SHARE), late
        watching = asyncio.ensure_future(self._watch(writing))
        try:
            yield
        finally:
            watching.cancel()

    def _without(self, writing: Writing, silent: Collection[str]) -> None:
        """Have a version written without these; raises `CheckpointError` when it needs them."""
        writing.avoided |= set(silent)
        if writing.needs(writing.avoided):
            raise CheckpointError(self.why(writing.avoided))

    async def _watch(self, writing: Writing) -> None:
        while True:
            await asyncio.sleep(self._state.settings.checkpoint_silence_s / 2)
            if silent := await self.among(writing.asked):
                writing.give_up(self.why(silent))
                return

    def why(self, silent: Collection[str]) -> str:
        """What is said of a version that needs these."""
        settings = self._state.settings
        first, more = min(silent), f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        return (
            f"worker {first}{more} has not answered within {settings.checkpoint_silence_s:g} s "
            f"(hpc.checkpoint.silence), and is asked again {settings.checkpoint_ask_again_s:g} s after that "
            "(hpc.checkpoint.ask-again)"
        )

    def status(self, holders: Iterable[str]) -> list[dict[str, Any]]:
        """Address of each worker, then of each manager that hangs, and in how many seconds it is asked again.

        Parameters
        ----------
        holders
            Addresses of managers that hold versions: of hosts without workers, too.
        """
        now_s, wait_s = self._state.now_s(), self._state.settings.checkpoint_ask_again_s
        rows: list[dict[str, Any]] = [
            {"worker": address, "again_s": round(wait_s - (now_s - self._since_s[address]), 3)}
            for address in sorted(self.known())
        ]
        told = [remote.sections_of(ws).get("manager", {}) for ws in self._scheduler.workers.values()]
        ours = {each["address"] for each in told if "address" in each}.union(holders)
        again_s: dict[str, float] = {}
        for hang in (silent(), *(each.get("silent", {}) for each in told)):
            for address in hang.keys() & ours:
                again_s[address] = min(max(again_s.get(address, 0.0), hang[address]), wait_s)
        return rows + [{"manager": address, "again_s": again_s[address]} for address in sorted(again_s)]

    async def _answers(self, address: str, within_s: float) -> bool:
        try:
            await remote.ask(self._scheduler, address, "identity", within_s)
        except TimeoutError:
            return False
        except OSError:
            pass  # it is gone, or about to go: the scheduler hears of it
        return True
