"""A version of a session in the store: each process writes its blocks, that of rank 0 gives it its name."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from dask_hpc.checkpoint.blocks import write_blocks
from dask_hpc.checkpoint.draft import Draft
from dask_hpc.checkpoint.plan import Plan, Written
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.store_threads import PATIENCE_S, Asked, SilentStoreError
from dask_hpc.checkpoint.versions import Version, look_for, numbers
from dask_hpc.clock import stopwatch_s
from dask_hpc.config import find
from dask_hpc.errors import CheckpointError
from dask_hpc.session.held import Held, blocks_of
from dask_hpc.session.ranks import Ranks
from dask_hpc.session.shares import Piece
from dask_hpc_policies.codec import decode, encode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """A version that was written, and what that took."""

    version: Version
    writing_s: float
    finishing_s: float


def asked(store: Store) -> Asked:
    """What calls functions that read or write a store: one whose mount hangs keeps nobody from Ctrl-C."""
    return Asked(store.folder, find("checkpoint.silence").configured())


def check_newest(store: Store, name: str, newest: int, written: int = 0) -> None:
    """Raise CheckpointError when a store has a version that a session does not know of.

    Parameters
    ----------
    written
        The one that the session has written there last, which is looked for; 0: none.
    """
    there = max(numbers(store.folder / name), default=0)
    if there > newest:
        raise CheckpointError(unknown(str(store.folder), there, name))
    look_for(store.folder, name, written)


def unknown(where: str, version: int, name: str) -> str:
    """What a session is told that has not gone on from a version."""
    return (
        f"{where} has version {version} of {name!r}, which this session has neither written nor gone on "
        "from: call restart() or restart_all() before the first commit(), or give the session another name"
    )


def write_version(
    store: Store,
    ranks: Ranks,
    plan: Plan,
    pieces: Sequence[Sequence[Piece]],
    arrays: Mapping[str, Held],
    newest: int,
    before: int,
    levels: tuple[str, ...],
) -> Stored:
    """Write what all processes hold as the version after `newest`.

    Parameters
    ----------
    before
        The version that the session has written there last; 0: none.
    levels
        Where else it is.

    Raises
    ------
    CheckpointError
        When it cannot be written, or another run has written one meanwhile. The store is as it was.
    """
    began_s, ask, drafting = stopwatch_s(), asked(store), _Drafting()

    def begin() -> str:
        check_newest(store, plan.name, newest, before)
        return drafting.begun(store.begin(plan, newest))

    def finish() -> Any:
        assert drafting.draft is not None
        blocks = {number: Written(*row) for each in written for number, row in each}
        return encode(drafting.draft.finish(blocks, levels=(*levels, "L3")))

    try:
        folder = str(store.folder / plan.name / ranks.first(lambda: ask.to_end(begin)))
        write = partial(_write, folder, plan, pieces, arrays, ranks.rank)
        written = ranks.together(lambda: ask.to_end(write))
        written_s = stopwatch_s()
        version = decode(Version, ranks.first(lambda: ask.to_end(finish)))
    except BaseException:
        drafting.give_up(store)
        raise
    return Stored(version, written_s - began_s, stopwatch_s() - written_s)


def collect_older(store: Store, name: str) -> None:
    """Remove all but the last two versions; where that cannot be, they stay until the next time."""
    try:
        asked(store).to_end(store.collect, keep=2, name=name)
    except CheckpointError as error:
        logger.warning("Old versions of %s stay: %s", name, error)


class _Drafting:
    """A draft, which a thread begins and finishes that may come to it when nobody waits any more."""

    def __init__(self) -> None:
        self.draft: Draft | None = None
        self._turn, self._over = threading.Lock(), False

    def begun(self, draft: Draft) -> str:
        """There is one; gives the name of its folder."""
        with self._turn:
            if not self._over:
                self.draft = draft
                return os.path.basename(draft.path)
        draft.abandon()
        raise CheckpointError(f"{draft.path} was given up")

    def give_up(self, store: Store) -> None:
        """Nobody waits for it any more: it is never a version, and goes when the store answers."""
        with self._turn:
            self._over = True
        if self.draft is not None:
            self.draft.given_up = True
            with suppress(SilentStoreError):
                Asked(store.folder, PATIENCE_S)(self.draft.abandon)


def _write(
    folder: str, plan: Plan, pieces: Sequence[Sequence[Piece]], arrays: Mapping[str, Held], rank: int
) -> list[tuple[int, tuple[Any, ...]]]:
    """Write the blocks of this process; gives what is known of each, by number."""
    of_array: dict[int, list[tuple[int, int, Any]]] = {}
    for at, (place, number, value) in blocks_of(plan, pieces, arrays, rank).items():
        of_array.setdefault(place, []).append((at, number, value))
    found = []
    for place, blocks in of_array.items():
        array = plan.arrays[place]
        done = write_blocks(folder, array, [each[1] for each in blocks], [each[2] for each in blocks])
        for (at, number, _), written in zip(blocks, done, strict=True):
            if isinstance(written, str):
                raise CheckpointError(f"block {number} of {array.path} cannot be written: {written}")
            found.append((at, astuple(written)))
    return found
