"""dask-jobqueue, without its taking over Ctrl-C.

Importing it has SIGINT end the program with exit code 0, which it needs in the processes of a runner. A
script that is interrupted while it uses a cluster has to end as any other does, with an error.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import Any

_before = signal.getsignal(signal.SIGINT)
try:
    import dask_jobqueue.slurm
except ImportError as error:
    text = "SLURMCluster and SLURMRunner need dask-jobqueue; pip install 'dask-hpc[slurm]'"
    raise ImportError(text) from error
finally:
    # handlers belong to the main thread
    with suppress(ValueError, TypeError):
        signal.signal(signal.SIGINT, _before)

Cluster = dask_jobqueue.slurm.SLURMCluster
Job = dask_jobqueue.slurm.SLURMJob
Runner = dask_jobqueue.slurm.SLURMRunner


def exit_on_interrupt() -> None:
    """Have SIGINT end this process with exit code 0, as runners tell theirs to end."""

    def end(*_: Any) -> None:
        sys.exit()

    with suppress(ValueError):
        signal.signal(signal.SIGINT, end)
