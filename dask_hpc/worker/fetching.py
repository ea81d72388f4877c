"""Reading what hosts hold of checkpoints: from the file where it is on this host, else from its manager.

What a host that is lost held is made of what others hold: the same range of other parts and of parities.
A manager that hangs is not waited for: whoever asks it goes on without, and asks it again a while later.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from dask_hpc.checkpoint.blobs import Group, Home, Part, Range, Stripe
from dask_hpc.checkpoint.redundancy import recover
from dask_hpc.checkpoint.segments import read_segment, segment_path
from dask_hpc.errors import CheckpointError, ConfigError
from dask_hpc.worker.node import node_settings
from dask_hpc_policies.resilience.redundancy_sets import parity_bytes

T = TypeVar("T")

#: Bytes that are asked for at once.
CHUNK = 8 << 20
#: A manager is connected to and has answered by then, or is not asked again for a while, in seconds.
_CONNECT_S, _ANSWER_S, _AGAIN_S = 3.0, 30.0, 10.0
#: Calls that are under way to one manager for one reader, and connections that may be none any more.
_AT_ONCE = _STALE = 4
#: Who is there takes a connection by then, in seconds.
_OPEN_S = 1.0


class ManagerSilentError(OSError):
    """A manager hangs: it is there, and has not answered within ``hpc.checkpoint.silence``."""


class ManagerAwayError(OSError):
    """A manager cannot be reached, and its host has not said that it is gone: the network may come back."""


class PartsAwayError(CheckpointError):
    """What is left of a group is too little, while some of its hosts are away."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How this process waits for managers."""

    #: Who has not answered for so long is silent, and is asked again so long after that, in seconds.
    silence_s: float = 30.0
    again_s: float = 60.0

    def why(self, address: str) -> str:
        """What is said of one that is silent."""
        return (
            f"the manager at {address} has not answered within {self.silence_s:g} s "
            f"(hpc.checkpoint.silence), and is asked again {self.again_s:g} s after that "
            "(hpc.checkpoint.ask-again)"
        )


@dataclass(slots=True)
class _Known:
    """What this process knows of managers."""

    patience: Patience | None = None


_known = _Known()
#: When managers did not answer, by address, and why.
_silent: dict[str, tuple[float, OSError]] = {}


def be_patient(patience: Patience) -> None:
    """Have this process wait so for managers from now on."""
    _known.patience = patience


def patience() -> Patience:
    """How this process waits for managers: as its node is configured, unless it was told."""
    if _known.patience is None:
        try:
            own = node_settings()
            _known.patience = Patience(own.checkpoint_silence_s, own.checkpoint_ask_again_s)
        except ConfigError:
            # what is wrong with the configuration is said by the section `node`
            _known.patience = Patience()
    return _known.patience


async def ask(pool: Any, address: str, op: str, within_s: float = _ANSWER_S, **arguments: Any) -> Any:
    """Ask a manager. As long as it is busy with that it is waited for, if it says that it is there.

    Raises
    ------
    ManagerSilentError
        When it hangs, or did a moment ago.
    OSError
        When it cannot be reached, or does not answer in time; `ManagerAwayError`: nor says its host that it
        is gone.
    CheckpointError
        When it refuses, with its reason.
    """
    if (silent := _silent.get(address)) is not None:
        since_s, known = silent
        if time.monotonic() - since_s < (patience().again_s if _hangs(known) else _AGAIN_S):
            raise type(known)(str(known))
    for last in (*[False] * _STALE, True):
        away = False
        try:
            try:
                comm = await asyncio.wait_for(pool.connect(address), _CONNECT_S)
            except OSError as error:
                # its host says when nobody listens there
                away = not isinstance(await _probe(address), ConnectionRefusedError)
                if isinstance(error, TimeoutError):
                    raise TimeoutError(f"no connection within {_CONNECT_S:g} s") from None
                raise
            pool.reuse(address, comm)
            answer = await _answer(pool, address, getattr(pool(address), op)(**arguments), within_s)
            break
        except ManagerSilentError:
            raise hangs(address) from None
        except OSError as error:
            # connections to one that was started anew since then are found closed one by one
            if last or isinstance(error, TimeoutError):
                why = f"the manager at {address} does not answer: {error}"
                known = ManagerAwayError(why) if away else OSError(why)
                _silent[address] = time.monotonic(), known
                raise type(known)(why) from None
    _silent.pop(address, None)
    if not isinstance(answer, dict) or "error" in answer:
        raise CheckpointError(f"the manager at {address}: {answer.get('error')}")
    return answer


async def _answer(pool: Any, address: str, call: Awaitable[T], within_s: float) -> T:
    """What a manager answers; raises ManagerSilentError when it hangs, TimeoutError when it is slow."""
    asked, deadline_s = asyncio.ensure_future(call), time.monotonic() + within_s
    try:
        while not asked.done():
            half_s = patience().silence_s / 2
            if (left_s := deadline_s - time.monotonic()) <= 0:
                raise TimeoutError(f"not within {within_s:g} s")
            await asyncio.wait([asked], timeout=min(half_s, left_s))
            if not asked.done() and left_s > half_s and not await _is_there(pool, address, half_s):
                raise ManagerSilentError(patience().why(address))
        return asked.result()
    finally:
        if not asked.cancel() and not asked.cancelled():
            asked.exception()  # nobody else may ask for it


async def _is_there(pool: Any, address: str, within_s: float) -> bool:
    try:
        await asyncio.wait_for(pool(address).identity(), within_s)
    except TimeoutError:
        return False
    except OSError:
        pass  # it has gone: what it was asked for fails, too
    return True


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """What all of these give, once all have ended; raises what the first that has failed raises.

    Who is told of a failure may undo what the others have done.
    """
    answers = await asyncio.gather(*calls, return_exceptions=True)
    found: list[T] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    return found


async def in_pieces(nbytes: int, one: Callable[[int, int], Awaitable[None]], at_once: int = _AT_ONCE) -> None:
    """Do something with bytes `start` to `stop` of all pieces of so many bytes, with some of them at once.

    When it fails with one, no further one is begun; raises that once all others have ended.
    """
    starts = (start for start in range(0, nbytes, CHUNK))

    async def some() -> None:
        try:
            for start in starts:
                await one(start, min(nbytes, start + CHUNK))
        finally:
            starts.close()

    await all_of(some() for _ in range(at_once))


async def _probe(address: str, within_s: float = _OPEN_S) -> OSError | None:
    """What becomes of a connection to whoever listens there; None: it is taken."""
    told = urlsplit(address)
    opening = asyncio.open_connection(told.hostname, told.port)
    try:
        _, writer = await asyncio.wait_for(opening, within_s)
    except OSError as error:
        return error
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return None


async def is_open(address: str, within_s: float = _OPEN_S) -> bool:
    """Whether somebody listens there. A comm would try again and again where nobody does."""
    return await _probe(address, within_s) is None


def listens(address: str) -> None:
    """A manager is known to listen: it may be asked again, whatever it has not answered before."""
    _silent.pop(address, None)


def is_silent(address: str) -> None:
    """A manager is known not to answer: it is not asked for a while."""
    why = OSError(f"the manager at {address} did not answer a moment ago")
    _silent.setdefault(address, (time.monotonic(), why))


def hangs(address: str) -> ManagerSilentError:
    """A manager is known to hang: it is not asked for a while. Gives the error that says so."""
    _silent[address] = time.monotonic(), ManagerSilentError(patience().why(address))
    return ManagerSilentError(patience().why(address))


def _hangs(error: OSError) -> bool:
    return isinstance(error, ManagerSilentError)


def silent() -> dict[str, float]:
    """Managers that hang, as this process knows them, and in how many seconds each may be asked again."""
    until_s = patience().again_s - time.monotonic()
    left_s = {address: since_s + until_s for address, (since_s, why) in _silent.items() if _hangs(why)}
    return {address: round(again_s, 3) for address, again_s in left_s.items() if again_s > 0}


async def fetch(pool: Any, home: Home, ranges: Sequence[Range]) -> np.ndarray:
    """Bytes of ranges that a host holds, one behind the other.

    Raises
    ------
    OSError, ValueError, CheckpointError
        When it does not hold them (any more).
    """
    found = np.empty(sum(one.nbytes for one in ranges), np.uint8)
    turns, calls, at = asyncio.Semaphore(_AT_ONCE), [], 0
    for one in ranges:
        # names of segments are drawn: a file of that name is it
        local = os.path.exists(segment_path(home.folder, one.segment))
        for offset in range(0, one.nbytes, CHUNK):
            piece = Range(one.segment, one.offset + offset, min(CHUNK, one.nbytes - offset))
            into = found[at : at + piece.nbytes]
            calls.append(_here(home, piece, into) if local else _there(pool, home, piece, into, turns))
            at += piece.nbytes
    await asyncio.gather(*calls)
    return found


async def _here(home: Home, piece: Range, into: np.ndarray) -> None:
    await asyncio.to_thread(read_segment, home.folder, piece.segment, piece.offset, into)


async def _there(pool: Any, home: Home, piece: Range, into: np.ndarray, turns: asyncio.Semaphore) -> None:
    async with turns:
        answer = await ask(
            pool, home.address, "read", segment=piece.segment, offset=piece.offset, nbytes=piece.nbytes
        )
    into[:] = np.frombuffer(answer["data"], np.uint8)


async def remake(pool: Any, group: Group, blob: int, start: int, stop: int) -> np.ndarray:
    """Bytes `start` to `stop` of a blob, from what others of its group hold.

    Raises
    ------
    CheckpointError
        When too many of them are lost, too; `PartsAwayError`: or away.
    """
    covered = list(group.cover(blob, start, stop))
    found = await asyncio.gather(
        *(_remade(pool, group, stripe, number, first, last) for stripe, number, first, last in covered)
    )
    return np.concatenate([*found, np.empty(0, np.uint8)])


async def _remade(pool: Any, group: Group, stripe: Stripe, number: int, first: int, last: int) -> np.ndarray:
    whole = [part.stop - part.start for part in stripe.parts]
    begin, end = first // stripe.unit * stripe.unit, min(-(-last // stripe.unit) * stripe.unit, stripe.nbytes)
    lengths = [max(0, min(length, end) - begin) for length in whole]
    nbytes = parity_bytes(lengths, len(stripe.parities))
    others = [place for place in range(len(whole)) if place != number]
    asked = [_part(pool, group, stripe.parts[place], begin, end) for place in others]
    asked += [fetch(pool, home, [Range(segment, begin, nbytes)]) for home, segment in stripe.parities]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            raise answer
    there = [answer if isinstance(answer, np.ndarray) else None for answer in answers]
    parts = {place: data for place, data in zip(others, there, strict=False) if data is not None}
    parities = {place: data for place, data in enumerate(there[len(others) :]) if data is not None}
    try:
        found = recover(parts, parities, lengths, len(stripe.parities))[number]
    except ValueError as error:
        why = next((str(each) for each in answers if isinstance(each, Exception)), "")
        away = any(isinstance(each, ManagerAwayError) for each in answers)
        raise (PartsAwayError if away else CheckpointError)(f"{error}; {why}") from None
    return found[first - begin : last - begin]


async def _part(pool: Any, group: Group, part: Part, first: int, last: int) -> np.ndarray:
    blob = group.blobs[part.blob]
    stop = min(part.start + last, part.stop)
    return await fetch(pool, blob.home, blob.ranges(min(part.start + first, part.stop), stop))
