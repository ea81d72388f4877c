"""The plugin that the scheduler has every worker set up, whatever made the worker.

Rules of the file: the class is pickled by value (it is made in a function), so that a worker without this
package, or with another version of it, takes no harm: a worker whose plugin cannot be loaded does not start.
"""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin

from dask_hpc.wire import WORKER_PLUGIN


def carried(version: str, counts_io: bool = False) -> WorkerPlugin:
    """The plugin for workers that have this version of the package; on others it only says why not.

    `counts_io`: they count what tasks read and write from the start.
    """

    class HPCWorkerPlugin(WorkerPlugin):
        """Has a worker's heartbeats carry what `dask_hpc.worker.heartbeat` samples, and has it answer."""

        name = WORKER_PLUGIN

        def setup(self, worker: Any) -> None:
            """Have the worker tell what it knows with its heartbeats, where this package is there."""
            import logging

            try:
                from dask_hpc._version import __version__ as there
                from dask_hpc.worker import heartbeat, small
                from dask_hpc.worker.coupling import switch as coupling_switch
                from dask_hpc.worker.io import switch as io_switch
                from dask_hpc.worker.power import switch
            except ImportError as error:
                there = f"missing ({error})"
            if there == version:
                heartbeat.start(worker)
                small.start(worker)
                switch.start(worker)
                coupling_switch.start(worker)
                io_switch.start(worker, on=counts_io)
                return
            logging.getLogger("distributed.dask_hpc").warning(
                "dask_hpc is %s on this worker and %s on the scheduler, which will not know when this "
                "worker's walltime ends, nor which labels it has",
                there,
                version,
            )

        def teardown(self, worker: Any) -> Any:
            """Have it tell no more; what takes its time is awaited by whoever closes the worker."""
            import asyncio
            import sys

            waits = []
            for name in ("heartbeat", "small", "power.switch", "coupling.switch", "io.switch"):
                module = sys.modules.get(f"dask_hpc.worker.{name}")
                if module is not None and (wait := module.stop(worker)) is not None:
                    waits.append(wait)
            return asyncio.gather(*waits) if waits else None

    return HPCWorkerPlugin()
