"""Who keeps what a session has in the memory of this host."""

from __future__ import annotations

from pathlib import Path

from dask_hpc.worker.host_process import HostProcess
from dask_hpc.worker.left_behind import MANAGER, TARGET


def home(name: str = "run") -> tuple[Path, int | None]:
    """Folder of the manager of a session here, and its process."""
    process = HostProcess(MANAGER, TARGET, f"session {name}")
    process.stop()
    return process.folder, process.pid
