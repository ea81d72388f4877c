"""Slurm's commands as scripts that only pretend: no job ever runs, and what they say is the test's affair."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Worker
from outside import until

#: Of a cluster whose jobs are asked of them.
OPTIONS = {
    "cores": 1,
    "memory": "1 GB",
    "interface": "lo",
    "silence_logs": False,
    "scheduler_options": {"dashboard_address": ":0"},
}
#: Numbers the jobs.
SUBMIT = 'echo x >> "$0.asked"; echo "Submitted batch job $(wc -l < "$0.asked")"'


@contextmanager
def pretending(folder: Path) -> Iterator[Callable[[str, str], None]]:
    """A function that puts a script in `folder`, in the place of a command; no others are found."""

    def fake(name: str, script: str) -> None:
        # what the kernel is about to execute cannot be written
        new = folder / f"{name}.new"
        new.write_text(f"#!/bin/sh\n{script}\n")
        new.chmod(0o755)
        new.rename(folder / name)

    for name in ("sleep", "wc"):
        (folder / name).symlink_to(f"/bin/{name}")
    fake("scancel", "exit 0")
    with pytest.MonkeyPatch.context() as patch, dask.config.set({"hpc.slurm.poll": "100 ms"}):
        # so that a Slurm of this machine is not found either
        patch.setenv("PATH", str(folder))
        yield fake


def submitted(folder: Path) -> int:
    """How many jobs were asked for."""
    path = folder / "sbatch.asked"
    return len(path.read_text().split()) if path.exists() else 0


def row(number: int, state: str) -> str:
    """A command that shows a job as `squeue` does."""
    return f"printf '%s\\n' '{number}|{number}|x|root|{state}|1||2:00:00|2:00:00|1795201705|N/A|N/A|None|w'"


def ending() -> str:
    """The same of the first job, which ends sooner than a worker may be emptied and a successor come."""
    now_s = int(time.time())
    ends = f"RUNNING|1|n1|12:00:00|1:40|{now_s - 10}|{now_s - 10}|{now_s + 100}|None|w"
    return f"printf '%s\\n' '1|1|x|root|{ends}'"


def with_worker(made: Any, jobs: int = 1) -> Worker:
    """The worker of the job with which a cluster has so many from now on."""
    made.scale(jobs=jobs)
    until(lambda: len(made.workers) == jobs, "it is submitted")
    *_, name = made.worker_spec

    async def begin() -> Worker:
        return await Worker(made.scheduler_address, name=name, nthreads=1)

    return made.sync(begin)
