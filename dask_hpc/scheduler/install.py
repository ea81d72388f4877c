"""Putting the runtime on a scheduler. All three ways (client, preload, cluster class) end here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dask_hpc import capabilities
from dask_hpc.config import Settings, settings
from dask_hpc.config.policy import configured_policy
from dask_hpc.errors import LEAVES, InstallError
from dask_hpc.scheduler.checkpoint.departing import problem
from dask_hpc.scheduler.internals import selfcheck
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
        When a self-check of Dask's internals fails: the scheduler is left as it was. Or while the runtime
        that is there is being uninstalled.
    ConfigError
        For settings, or parameters of the policy in them, that are not allowed.
    """
    present = service_of(scheduler)
    if present is not None:
        if present.engine.leaving:
            raise InstallError(LEAVES)
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
