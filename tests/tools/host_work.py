"""What runs in other processes in the tests of a host's one process; little is imported: they start soon."""

from __future__ import annotations

import os
import time

from dask_hpc.worker.host_process import HostProcess

LINGER_S = 0.5
TARGET = f"{__name__}:serve"


def serve(folder, stop):
    """Say that it serves, until it is told to stop."""
    (folder / f"serves-{os.getpid()}").touch()
    stop.wait()


def worker(cluster):
    """What stands for a worker process: it joins, has the process started, and stays until it is killed."""
    HostProcess("tests", TARGET, cluster, linger_s=LINGER_S).start()
    print("here", flush=True)
    time.sleep(600)
