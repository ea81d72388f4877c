"""Scheduler preload: ``dask scheduler --preload dask_hpc.preload``, or in the configuration

.. code-block:: yaml

    distributed:
      scheduler:
        preload: [dask_hpc.preload]

With no job declared, the scheduler works exactly as without it.
"""

from __future__ import annotations

import logging
from typing import Any

from distributed import Scheduler

from dask_hpc.errors import DaskHPCError
from dask_hpc.scheduler.install import attach

logger = logging.getLogger(__name__)


def dask_setup(scheduler: Any) -> None:
    """Install the runtime on `scheduler`; when that is not possible, say so and leave it alone."""
    if not isinstance(scheduler, Scheduler):
        # with --preload, or in distributed.worker.preload
        logger.warning(
            "dask_hpc.preload is for schedulers, which send workers what they need: it does nothing in a %s; "
            "--preload dask_hpc.agent has workers emptied before they are ended",
            type(scheduler).__name__.lower(),
        )
        return
    try:
        attach(scheduler)
    except (DaskHPCError, ValueError) as error:
        logger.error("dask_hpc is not installed on this scheduler: %s", error)
