"""A version of a checkpoint from a client's side: how far it is, waiting for it, and giving it up."""

from __future__ import annotations

import asyncio
import logging
import math
import warnings
from concurrent.futures import Future as Answer
from contextlib import suppress
from typing import Any

from dask_hpc.channel import Channel, answered
from dask_hpc.checkpoint.levels import what_there_is
from dask_hpc.errors import CheckpointError, InstallError
from dask_hpc.show import line
from dask_hpc_policies.params import Duration

logger = logging.getLogger(__name__)

#: How long a commit is waited for.
_TIMEOUT = Duration("timeout", None, lo=0.0, hi=30 * 86400.0, none_ok=True)
#: A question after a commit is answered after so long at the latest, in seconds.
_ASK_S = 5.0
#: States of what goes on no more.
_OVER = ("complete", "failed")


class Commit:
    """One version of a checkpoint, asked for, under way or ended. Made by `Runtime.checkpoint`."""

    def __init__(
        self, channel: Channel, name: str, kept: Any, asked: Answer[Any], default: bool, wait: bool
    ) -> None:
        self._channel = channel
        self._row: dict[str, Any] = {"name": name, "version": None, "state": "asked", "path": None}
        #: What is being written must not be forgotten meanwhile.
        self._kept = kept
        #: Whether nobody has said which levels it is to have, and whether the caller hears of a refusal.
        self._default, self._heard = default, wait
        self._asked = asked
        asked.add_done_callback(self._answered)

    def __repr__(self) -> str:
        row = self._row
        return line("Commit", name=row["name"], version=row["version"], state=row["state"], path=row["path"])

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return str(self._row["name"])

    @property
    def version(self) -> int | None:
        """Number of the version; None: it was not known when the cluster was asked last."""
        version: int | None = self._row["version"]
        return version

    @property
    def path(self) -> str | None:
        """Folder of the version, a Zarr group; None: it was not whole when the cluster was asked last."""
        path: str | None = self._row["path"]
        return path

    def wait(self, timeout: float | str | None = None) -> Any:
        """Wait until the version is whole; gives this commit.

        Parameters
        ----------
        timeout
            Seconds to wait at most, or text such as ``"5 min"``; None: as long as it takes, which may
            include computing what is written.

        Raises
        ------
        CheckpointError
            When there is no new version; earlier ones are as they were.
        ConfigError, InstallError, ValueError
            When the cluster has refused it, or `timeout` is none.
        TimeoutError
            When it takes longer. It goes on all the same.
        """
        return self._channel.run(self.whole, _TIMEOUT.validate(timeout))

    def status(self) -> Any:
        """How far it is: state, version, blocks, bytes, seconds it took, and the reason if it has failed."""
        return self._channel.run(self._status)

    def cancel(self) -> Any:
        """Give the version up; gives whether it was: False when it is whole, or just about to be, and stays.

        What is written of it is removed, from the store and from memory; it has failed then, and earlier
        versions, and what they protect, are as they were. A level that has all of it keeps it. What was to be
        written is neither cancelled nor forgotten. With ``every`` the next one is begun after the interval;
        where the call has begun none, it is the version named here that is given up, whoever has begun it.
        Once more changes nothing.

        Raises
        ------
        InstallError
            When the client is closed, or dask_hpc has been uninstalled.
        """
        return self._channel.run(self._cancel)

    def _answered(self, asked: Answer[Any]) -> None:
        """The cluster has begun it, names the last one instead, or refuses it."""
        if asked.cancelled():
            self._row |= {"state": "failed", "reason": "the client was closed before the cluster was asked"}
        elif error := asked.exception():
            self._row |= {"state": "failed", "reason": str(error) or repr(error)}
            if not self._heard:
                logger.error("Checkpoint %r: no new version: %s", self.name, self._row["reason"])
        else:
            self._row = dict(asked.result())
            if self._default and "L3" not in self._row["asked"]:
                warn_of_memory(f"checkpoint {self.name!r}", ", or say levels=('L1', 'L2')")
        if not self._row.get("begun"):
            self._kept = None
        elif not self._heard:
            loop: Any = self._channel.client.loop
            loop.add_callback(self._ended)

    async def _ended(self) -> None:
        """Keep what is being written for as long as it is, whoever asks how far it is, or lets go of this."""
        with suppress(Exception):  # nobody may be there any more
            while (await self._ask(_ASK_S))["state"] not in _OVER:
                pass
        self._kept = None

    async def begun(self) -> bool:
        """Wait until the cluster has heard of it; whether this call has begun it. Raises what it refuses."""
        return bool((await answered(self._asked))["begun"])

    def give_up(self) -> None:
        """Have what the call has begun given up, and wait for nothing: whoever waited was interrupted."""

        def told(asked: Answer[Any]) -> None:
            if not asked.cancelled() and not asked.exception() and asked.result()["begun"]:
                with suppress(InstallError):  # nobody is there any more
                    self._channel.ask_behind("checkpoint_cancel", commit=asked.result()["id"])

        self._asked.add_done_callback(told)

    async def _status(self) -> dict[str, Any]:
        await asyncio.gather(answered(self._asked), return_exceptions=True)
        return await self._ask(0.0) if "id" in self._row else dict(self._row)

    async def _ask(self, wait_s: float) -> dict[str, Any]:
        if self._row["state"] != "complete":  # what is stays so, and the cluster may have forgotten it
            most_s = min(_ASK_S, wait_s)
            self._row = dict(await self._channel.ask("checkpoint_row", commit=self._row["id"], wait_s=most_s))
        if self._row["state"] in _OVER:
            self._kept = None
        return dict(self._row)

    async def _cancel(self) -> bool:
        await asyncio.gather(answered(self._asked), return_exceptions=True)
        if self._row["state"] not in _OVER:
            self._row = dict(await self._channel.ask("checkpoint_cancel", commit=self._row["id"]))
            while self._row["state"] not in _OVER:
                await self._ask(_ASK_S)
        self._kept = None
        return bool(self._row["state"] == "failed")

    async def whole(self, timeout: float | None) -> Commit:
        """What `wait` does."""
        loop = asyncio.get_running_loop()
        deadline_s = math.inf if timeout is None else loop.time() + timeout
        try:
            # one that has been heard of says so, however busy this loop is
            await asyncio.wait_for(self.begun(), None if self._asked.done() else timeout)
        except TimeoutError:
            text = f"the cluster has not heard of checkpoint {self.name!r} after {timeout:g} s; it goes on"
            raise TimeoutError(text) from None
        while (row := await self._ask(max(0.01, deadline_s - loop.time())))["state"] not in _OVER:
            if loop.time() >= deadline_s:
                raise TimeoutError(
                    f"checkpoint {self.name!r} is not whole after {timeout:g} s: {row['blocks_left']} of "
                    f"{row['blocks']} results are not written; it goes on"
                )
        if row["state"] == "failed":
            there = what_there_is(row["version"], row["levels"])
            raise CheckpointError(f"checkpoint {self.name!r} has {there}: {row['reason']}")
        return self


def warn_of_memory(what: str, otherwise: str = "") -> None:
    """Say that something outlives workers and hosts, and not the cluster."""
    warnings.warn(
        f"{what} is in the memory of hosts alone: hpc.checkpoint.store is not set, so the loss of the whole "
        "cluster loses it, and so does letting go of its results for hpc.checkpoint.linger; name a folder, "
        f"rt.update(checkpoint_store=...){otherwise}",
        stacklevel=2,
    )
