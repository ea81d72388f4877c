"""Scheduler preload: ``dask scheduler --preload dask_hpc.preload``, or in the configuration

.. code-block:: yaml

    distributed:
      scheduler:
        preload: [dask_hpc.preload]

With no job declared, the scheduler works exactly as without it, but for the answer that adaptive clusters
get: they keep workers for a while (``hpc.pool.hold``).
"""

from __future__ import annotations

import logging
from typing import Any

from dask_hpc.errors import DaskHPCError
from dask_hpc.scheduler.install import attach

logger = logging.getLogger(__name__)


def dask_setup(scheduler: Any) -> None:
    """Install the runtime on `scheduler`; when that is not possible, say so and leave it alone."""
    try:
        attach(scheduler)
    except (DaskHPCError, ValueError) as error:
        logger.error("dask_hpc is not installed on this scheduler: %s", error)
