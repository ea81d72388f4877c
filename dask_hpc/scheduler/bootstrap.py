"""What a client has a scheduler run to put the runtime on it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from dask_hpc._version import __version__
from dask_hpc.errors import DaskHPCError, InstallError
from dask_hpc.wire import RPC

#: Held while a client installs: what it installs goes again when its settings are refused, which others that
#: find it there would not hear.
_installing: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()


async def bootstrap(
    version: str,
    policy: Any = None,
    pickled: bytes | None = None,
    parameters: Mapping[str, Any] | None = None,
    dask_scheduler: Any = None,
) -> dict[str, Any]:
    """Install on the scheduler that runs this function (a client sends it there).

    Returns
    -------
    dict
        ``{}``, or ``{"error": [class, text]}`` (see `Service.call`) when versions differ, a worker lacks
        the package, a self-check fails, or policy and settings are refused. Nothing is installed then.
    """
    try:
        await _bootstrap(version, policy, pickled, parameters, dask_scheduler)
    except (DaskHPCError, ValueError) as error:
        return {"error": [type(error).__name__, str(error)]}
    return {}


def require_version(client: str, scheduler: str) -> None:
    """Raise `InstallError` unless a client and its scheduler have the same version."""
    if client != scheduler:
        raise InstallError(
            f"the client has dask_hpc {client}, the scheduler {scheduler}; install the same "
            "version in both environments"
        )


async def _bootstrap(
    version: str,
    policy: Any,
    pickled: bytes | None,
    parameters: Mapping[str, Any] | None,
    dask_scheduler: Any,
) -> None:
    require_version(version, __version__)
    # what only a scheduler needs: whoever sends this does not load it
    from dask_hpc.scheduler.install import attach
    from dask_hpc.scheduler.internals import remote, selfcheck

    selfcheck.require(dask_scheduler)
    await remote.require(dask_scheduler, sorted(dask_scheduler.workers))
    async with _installing.setdefault(dask_scheduler, asyncio.Lock()):
        was_there = RPC in dask_scheduler.handlers
        service = attach(dask_scheduler)
        try:
            if policy is not None or pickled is not None or parameters:
                await service.update(policy, pickled, parameters)
        except Exception:
            # a job of somebody who has found it there meanwhile keeps it
            if not (was_there or service.engine.awake or service.engine.state.jobs.announced):
                await service.detach()
            raise
