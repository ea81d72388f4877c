"""A Dask cluster inside one Slurm allocation: every task of ``srun`` runs the same script.

The first becomes the scheduler, the second goes on with the script as the client, the others become
workers. All end with the allocation: before its walltime is over, and on a notice (SIGUSR1), the workers
finish what they execute, and what then is lost is named in the log and in the events of the workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from typing import Any

from distributed import Nanny
from distributed.utils import import_term

from dask_hpc.deploy.arguments import with_preload
from dask_hpc.deploy.slurm import stock
from dask_hpc.scheduler.install import attach
from dask_hpc.worker import agent

#: What workers and nannies preload.
AGENT = "dask_hpc.agent"

_LOOK_S = 0.2
_CLOSE_S = 5.0
_DEATH_S = 60.0


class SLURMRunner(stock.Runner):
    """`dask_jobqueue.slurm.SLURMRunner` with the runtime on the scheduler and the agent on the workers.

    Takes the same arguments.

    Raises
    ------
    RuntimeError
        When the script was not started by ``srun``, or with fewer than three tasks.
    InstallError
        On the scheduler, when the installed `distributed` is not one this release knows.

    Examples
    --------
    >>> with SLURMRunner() as runner, Client(runner) as client:  # doctest: +SKIP
    ...     client.wait_for_workers(runner.n_workers)
    ...     rt = dask_hpc.runtime(client)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # one file a step: that of an earlier one in the same job leads nowhere
        step, restarts = (os.environ.get(f"SLURM_{name}", "0") for name in ("STEP_ID", "RESTART_COUNT"))
        kwargs.setdefault("scheduler_file", f"scheduler-{{job_id}}-{step}-{restarts}.json")
        options = kwargs["worker_options"] = dict(kwargs.get("worker_options") or {})
        # not the whole walltime when there is no scheduler any more
        options.setdefault("death_timeout", _DEATH_S)
        options |= with_preload(options, "worker", "preload", AGENT)
        if (worker_class := kwargs.get("worker_class")) and issubclass(import_term(worker_class), Nanny):
            options |= with_preload(options, "nanny", "preload_nanny", AGENT)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            # Slurm tells every process, and those that do not listen would end
            with suppress(ValueError):
                signal.signal(signal.SIGUSR1, self._notice)
        stock.exit_on_interrupt()
        super().__init__(*args, **kwargs)

    def _notice(self, *_: Any) -> None:
        if self.loop is not None:
            self.loop.add_callback(agent.notice_all)

    async def on_scheduler_start(self, scheduler: Any) -> None:
        """Switch the runtime on."""
        service = attach(scheduler)
        service.releases.wrap()

    async def get_scheduler_address(self) -> str:
        """Address of the scheduler, waited for."""
        while True:
            # it may be written just now
            with suppress(FileNotFoundError, json.JSONDecodeError):
                return str(json.loads(self.scheduler_file.read_text())["address"])
            await asyncio.sleep(_LOOK_S)

    async def _close(self) -> None:
        if self.scheduler_comm is not None:
            # workers that end now have nothing to move
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(self.scheduler_comm.hpc(method="closing", arguments={}), _CLOSE_S)
        await super()._close()
