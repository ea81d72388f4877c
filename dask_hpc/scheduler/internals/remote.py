"""What workers carry of this package: its version, and the plugin that each of them is given."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialize, Serialized, ToPickle, deserialize

from dask_hpc._version import __version__, package_version
from dask_hpc.errors import InstallError, WorkerError
from dask_hpc.wire import COUNT_IO, HEARTBEAT, ROLE_RESOURCE, RPC, WORKER_PLUGIN
from dask_hpc.worker.carried import carried
from dask_hpc_policies.model import COMPUTE, ROLES

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState


logger = logging.getLogger(__name__)
#: A worker whose interpreter is busy must not keep users waiting.
_PATIENCE_S = 5.0


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


async def equip(scheduler: Scheduler) -> None:
    """Give our plugin to every worker, those that join later included, unless we have gone by now."""
    if RPC not in scheduler.handlers:
        return
    plugin = dumps(carried(__version__))
    await _told_all(
        scheduler.register_worker_plugin(comm=None, plugin=plugin, name=WORKER_PLUGIN, idempotent=False)
    )


async def count_io(scheduler: Scheduler, *, on: bool) -> None:
    """Have all workers, those that join later included, count what tasks read and write, or not any more."""
    if WORKER_PLUGIN in scheduler.worker_plugins:
        scheduler.worker_plugins[WORKER_PLUGIN] = dumps(carried(__version__, on))
    await tell(scheduler, list(scheduler.workers), COUNT_IO, on=on)


async def strip(scheduler: Scheduler) -> None:
    """Take our plugin from every worker again."""
    if WORKER_PLUGIN in scheduler.worker_plugins:
        await _told_all(scheduler.unregister_worker_plugin(comm=None, name=WORKER_PLUGIN))


def sections_of(ws: WorkerState) -> Mapping[str, Any]:
    """What the worker's last heartbeat carries of ours (`dask_hpc.worker.heartbeat`), by section."""
    told = ws.metrics.get(HEARTBEAT)
    # the first test is for speed: it is asked of every worker at every tick
    return told if type(told) is dict or isinstance(told, Mapping) else {}


def transfers(ws: WorkerState) -> bool:
    """Whether data came or went as the worker sent its last heartbeat."""
    told = ws.metrics.get("transfer")
    return isinstance(told, dict) and bool(told.get("incoming_count") or told.get("outgoing_count"))


def role_said(ws: WorkerState) -> str:
    """The role of its node that a worker says by an abstract resource."""
    said = [name.removeprefix(ROLE_RESOURCE) for name in ws.resources if name.startswith(ROLE_RESOURCE)]
    return next((role for role in said if role in ROLES), COMPUTE)


async def _told_all(telling: Coroutine[Any, Any, Any]) -> None:
    try:
        await asyncio.wait_for(telling, _PATIENCE_S)
    except TimeoutError:
        logger.warning("Not every worker answered within %g s; going on", _PATIENCE_S)
    except OSError as error:
        # it is about to leave, or to come back: then it is told as it registers
        logger.info("A worker could not be told: %s", error)


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
    sending = asyncio.ensure_future(scheduler.broadcast(msg=message, workers=[address]))
    try:
        answers = await asyncio.wait_for(asyncio.shield(sending), timeout_s)
    except (TimeoutError, asyncio.CancelledError):
        # cut off, it would leave a task behind whose error nobody hears
        sending.add_done_callback(_heard)
        raise
    except OSError:
        raise
    except Exception as error:  # as one answers that has not got this package
        raise WorkerError(str(error) or repr(error)) from None
    answer = opened(answers[address])
    if answer.get("status") != "OK":
        raise WorkerError(str(answer.get("exception_text") or answer.get("exception")))
    return opened(answer.get("result"))


async def ask(scheduler: Scheduler, address: str, handler: str, timeout_s: float, **arguments: Any) -> Any:
    """Call a handler of a worker; gives its answer, plain data like the arguments.

    Raises
    ------
    OSError
        When the worker cannot be reached or does not answer within `timeout_s` seconds.
    Exception
        What the handler raises.
    """
    return await asyncio.wait_for(getattr(scheduler.rpc(address), handler)(**arguments), timeout_s)


async def tell(scheduler: Scheduler, addresses: list[str], handler: str, **arguments: Any) -> None:
    """Call a handler of several workers; what they answer, or that they do not, is passed over."""
    message = {"op": handler, **arguments}
    await _told_all(scheduler.broadcast(msg=message, workers=addresses, on_error="return"))


def _heard(task: asyncio.Future[Any]) -> None:
    """What comes of a question that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
