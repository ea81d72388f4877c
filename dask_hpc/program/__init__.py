"""Programs that keep state between steps, and are resized while they run."""

from __future__ import annotations

from dask_hpc.program.producer import Change, Producer, Status
from dask_hpc.program.program import Program

__all__ = ["Change", "Producer", "Program", "Status"]
