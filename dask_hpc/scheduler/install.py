"""Putting the runtime on a scheduler. All three ways (client, preload, cluster class) end here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc import capabilities
from dask_hpc._version import __version__
from dask_hpc.config import Settings, settings
from dask_hpc.config.policy import configured_policy
from dask_hpc.errors import DaskHPCError, InstallError
from dask_hpc.scheduler.checkpoint.departing import problem
from dask_hpc.scheduler.internals import remote, selfcheck
from dask_hpc.scheduler.rpc.service import Service
from dask_hpc.wire import RPC

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)


def attach(scheduler: Scheduler, wanted: Settings | None = None, policy: Any = None) -> Service:
    """Install the runtime on a scheduler in this process; returns what is there if it was installed.

    Raises
    ------
    InstallError
        When a self-check of Dask's internals fails; the scheduler is left as it was.
    ConfigError
        For settings, or parameters of the policy in them, that are not allowed.
    """
    present = service_of(scheduler)
    if present is not None:
        return present
    selfcheck.require(scheduler)
    capabilities.load()
    wanted = wanted if wanted is not None else settings()
    if wanted.spill_directory is not None and (why := problem(wanted.spill_directory)) is not None:
        text = (
            "Nothing can be written to %s (hpc.spill.directory): what nobody has room for would be lost (%s)"
        )
        logger.warning(text, wanted.spill_directory, why)
    service = Service(scheduler, wanted, policy if policy is not None else configured_policy(wanted))
    scheduler.loop.add_callback(service.equip)
    return service


def service_of(scheduler: Scheduler) -> Service | None:
    """The runtime that is installed on a scheduler of this process, if any is."""
    present = getattr(scheduler.handlers.get(RPC), "__self__", None)
    return present if isinstance(present, Service) else None


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


async def _bootstrap(
    version: str,
    policy: Any,
    pickled: bytes | None,
    parameters: Mapping[str, Any] | None,
    dask_scheduler: Any,
) -> None:
    if version != __version__:
        raise InstallError(
            f"the client has dask_hpc {version}, the scheduler {__version__}; install the same "
            "version in both environments"
        )
    selfcheck.require(dask_scheduler)
    await remote.require(dask_scheduler, sorted(dask_scheduler.workers))
    was_there = RPC in dask_scheduler.handlers
    service = attach(dask_scheduler)
    try:
        if policy is not None or pickled is not None or parameters:
            await service.update(policy, pickled, parameters)
    except Exception:
        if not was_there:
            await service.detach()
        raise
