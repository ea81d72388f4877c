"""Whether the workers of a cluster carry the package, in the same version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialize, Serialized, ToPickle, deserialize

from dask_hpc._version import __version__
from dask_hpc.errors import InstallError, WorkerError

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


logger = logging.getLogger(__name__)
#: A worker whose interpreter is busy must not keep users waiting.
_PATIENCE_S = 5.0


def package_version() -> str:
    """Version of this package where it is called (it is sent to workers)."""
    return __version__


async def require(scheduler: Scheduler, addresses: list[str]) -> None:
    """Raise `InstallError` unless every worker at `addresses` has our version.

    A worker that cannot be reached is left out: it is about to leave or to come back.
    """
    message = {"op": "run", "function": dumps(package_version), "args": dumps(()), "wait": True}
    try:
        answers = await asyncio.wait_for(
            scheduler.broadcast(msg=message, workers=addresses, on_error="return"), _PATIENCE_S
        )
    except TimeoutError:
        logger.warning("Not every worker told its version of dask_hpc within %g s; going on", _PATIENCE_S)
        return
    wrong = {address: found for address, answer in answers.items() if (found := _problem(answer)) is not None}
    if wrong:
        first = next(iter(wrong))
        raise InstallError(
            f"{len(wrong)} of {len(addresses)} workers cannot take part: {first} {wrong[first]}; this is "
            f"dask_hpc {__version__}. Install that version in the workers' environment; Dask goes "
            "on as usual without dask_hpc."
        )


def _problem(answer: Any) -> str | None:
    if isinstance(answer, OSError):
        return None
    if isinstance(answer, BaseException):
        return f"has no dask_hpc ({type(answer).__name__}: {answer})"
    if isinstance(answer, dict):
        if answer.get("status") != "OK":
            return f"has no dask_hpc ({answer.get('exception_text') or answer.get('exception')})"
        answer = opened(answer.get("result"))
    return None if answer == __version__ else f"has dask_hpc {answer}"


def opened(answer: Any) -> Any:
    """What a worker has answered, whichever way it came."""
    if isinstance(answer, Serialized):
        return deserialize(answer.header, answer.frames)
    # comms inside one process pass the value through
    return answer.data if isinstance(answer, (Serialize, ToPickle)) else answer


async def run(
    scheduler: Scheduler, address: str, function: Any, arguments: Mapping[str, Any], timeout_s: float
) -> Any:
    """Call a function (of this package) on a worker; gives what it returns.

    Raises
    ------
    OSError
        When the worker cannot be reached or does not answer within `timeout_s` seconds.
    WorkerError
        When the function cannot be called there, or fails.
    """
    message = {"op": "run", "function": dumps(function), "kwargs": dumps(dict(arguments)), "wait": True}
    sending = scheduler.broadcast(msg=message, workers=[address])
    answer = opened((await asyncio.wait_for(sending, timeout_s))[address])
    if answer.get("status") != "OK":
        raise WorkerError(str(answer.get("exception_text") or answer.get("exception")))
    return opened(answer.get("result"))
