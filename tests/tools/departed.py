"""Clusters whose workers write what nobody has room for, and what is left of one that has to go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Worker
from elastic_clusters import Shrinkable, shrinkable
from waits import until, within

from dask_hpc.scheduler.rpc.service import of


def double(value: int) -> int:
    """A task."""
    return 2 * value


@asynccontextmanager
async def spilling(directory: Path | None, workers: int = 1) -> AsyncIterator[Shrinkable]:
    """A cluster whose workers write what nobody has room for."""
    folder = None if directory is None else str(directory)
    with dask.config.set({"hpc.spill.directory": folder}):
        async with shrinkable(workers) as made:
            made.scheduler.validate = True
            yield made


@asynccontextmanager
async def another(made: Shrinkable) -> AsyncIterator[Worker]:
    """A worker that comes after the others have gone."""
    async with Worker(made.cluster.scheduler_address, nthreads=1, name="another") as worker:
        yield worker


async def depart(made: Shrinkable, name: int | str = 0, within_s: float = 1.0) -> dict[str, list[str]]:
    """Have a worker leave; gives what it leaves behind."""
    return await within(of(made.scheduler).departures.depart(made.address(name), within_s, "a test"))


def files(directory: Path) -> list[Path]:
    """Files with results, each of all that a worker was asked to write at once."""
    return [path for path in directory.rglob("*") if path.is_file() and path.name != "zarr.json"]


def lost(made: Shrinkable) -> list[Any]:
    rows = [row for _, row in made.scheduler.get_events("all") if row.get("action") == "remove-worker"]
    return [key for row in rows for kind in ("computed", "scattered") for key in row[f"lost-{kind}-tasks"]]


async def everything_put_right(made: Shrinkable, directory: Path) -> None:
    await until(lambda: not list(directory.iterdir()), "nothing is left on disk")
    await until(lambda: "dask-hpc-watched" not in made.scheduler.plugins, "nobody looks any more")
    made.scheduler.validate_state()
