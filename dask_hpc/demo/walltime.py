"""A node whose walltime ends, as a batch system ends it: the worker's process is killed.

With dask_hpc the agent, which workers on Slurm carry, watches over the worker and has it emptied before.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

from distributed import Nanny

from dask_hpc.agent import Agent
from dask_hpc.config import settings
from dask_hpc.demo.stage import Stage

#: So long before the end a worker is told at least, and everything has left it.
NOTICE_S, MARGIN_S = 1.5, 0.3
#: So much of the notice goes into having an agent watch over the worker.
_LEAD_S = 0.1


def can_end(stage: Stage) -> bool:
    """Whether the nodes are worker processes of this machine, watched over by nannies of this process."""
    workers = stage.cluster.workers.values()
    return bool(workers) and all(isinstance(worker, Nanny) for worker in workers)


def end_walltime(stage: Stage, after_s: float, notice_s: float = NOTICE_S) -> bool:
    """Let the walltime of a node end in so many seconds, at least `notice_s` and `MARGIN_S`.

    It is the one with the most data when it is time for the notice, so that there is something to lose.
    Returns when it has ended, and whether its process was killed: with the runtime it has left by then.
    """
    ends_s = time.time() + max(after_s, notice_s + MARGIN_S)
    time.sleep(max(0.0, ends_s - notice_s - MARGIN_S - time.time()))
    nanny = fullest(stage)
    if stage.runtime is not None:
        stage.cluster.sync(_watch, nanny, ends_s, notice_s)
    pid = nanny.pid
    time.sleep(max(0.0, ends_s - time.time()))
    if pid is None or nanny.pid != pid:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


def fullest(stage: Stage) -> Nanny:
    """The node that holds the most bytes of results."""
    held = stage.client.run_on_scheduler(_held_bytes)
    return max(stage.cluster.workers.values(), key=lambda nanny: held.get(nanny.worker_address, 0))


def _held_bytes(dask_scheduler: Any) -> dict[str, int]:
    return {worker.address: worker.nbytes for worker in dask_scheduler.workers.values()}


async def _watch(nanny: Nanny, ends_s: float, notice_s: float) -> None:
    # of a walltime that is shorter than its notice an agent would leave the worker half
    left_s = max(0.0, ends_s - MARGIN_S - _LEAD_S - time.time())
    known = settings().updated(walltime_notice_s=min(notice_s, left_s), walltime_margin_s=MARGIN_S)
    Agent(nanny, known).start(ends_s)
