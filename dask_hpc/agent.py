"""The preload of workers by its stable name (``--preload dask_hpc.agent``): `dask_hpc.worker.agent`."""

from __future__ import annotations

from dask_hpc.worker.agent import Agent, dask_setup, dask_teardown

__all__ = ["Agent", "dask_setup", "dask_teardown"]
