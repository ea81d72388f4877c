"""Writes versions in processes that are killed at every point, and looks at what is left each time.

Arguments: a folder, and a name. Prints how many points there were.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from saved import computed, save, written
from write_points import Points

from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.plan import Plan
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify


def content(version: int) -> xr.Dataset:
    """What a version holds: an array in a shard, one in files, one with an array a block, one in memory."""
    return xr.Dataset(
        {
            "shard": (("y", "x"), da.full((5, 600), version, chunks=(3, 400), dtype="i8")),
            "grid": ("y", da.from_array(np.array([f"v{version}"] * 5, "T"), chunks=3)),
            "apart": ("y", da.full(5, version, chunks=((1, 3, 1),))),
        },
        {"y": np.arange(5) + version},
    )


@functools.cache
def prepared(version: int) -> tuple[Plan, list[list[Any]]]:
    """Plan and values of a version: every process needs them, and making them changes no file."""
    plan, keys = describe(content(version), "field")
    return plan, computed(plan, keys, content(version))


@functools.cache
def expected(version: int) -> xr.Dataset:
    return content(version).compute(scheduler="sync")


def main(folder: Path) -> None:
    store = Store(folder)
    save(content(1), folder)
    points = 0
    while True:
        points += 1
        before = [each.version for each in store.versions("field") if each.complete]
        plan, values = prepared(before[-1] + 1)
        child = os.fork()
        if child == 0:
            Points(points).wrap()
            draft = store.begin(plan)
            draft.finish(written(draft, values))
            store.collect(keep=2, older_than_s=0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        whole = [each for each in store.versions("field") if each.complete]
        numbers = [each.version for each in whole]
        assert numbers[-1] in (before[-1], before[-1] + 1), (points, before, numbers)
        assert numbers == [n for n in [*before, before[-1] + 1] if n in numbers]
        assert set(before[-1:]) <= set(numbers)
        hidden = [each.path for each in store.versions("field") if not each.complete]
        assert all(Path(path).name.startswith(".") for path in hidden), (points, hidden)
        for version in whole:
            assert verify(version) == [], (points, version)
        newest = store.newest("field")
        found = open_checkpoint(newest.path).compute(scheduler="sync")
        xr.testing.assert_identical(found, expected(newest.version))
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            assert not hidden
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        store.collect(keep=3, older_than_s=0)
        assert all(each.complete for each in store.versions("field"))
    print(points)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
