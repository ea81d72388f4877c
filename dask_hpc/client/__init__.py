"""The client's side: the runtime's handle and its jobs."""

from __future__ import annotations

from dask_hpc.client.job import Job
from dask_hpc.client.runtime import Runtime, install, runtime

__all__ = ["Job", "Runtime", "install", "runtime"]
