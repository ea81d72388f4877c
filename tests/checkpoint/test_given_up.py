"""A draft that is given up while others still write into it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask.array as da
import pytest

from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.inside import open_inside
from dask_hpc.checkpoint.store import Store


@pytest.mark.parametrize("writers", [1, 4])
def test_nothing_is_left_of_it_and_who_writes_finds_no_folder(tmp_path: Path, writers: int) -> None:
    begun = threading.Barrier(writers + 1)

    def write(folder: str, number: int) -> None:
        begun.wait(10)
        for file in range(100_000):
            place = f"field/{number}-{file % 50}/{file}"
            os.close(open_inside(folder, place, os.O_WRONLY | os.O_CREAT, make=True))

    plan, _ = describe(da.arange(20, chunks=6), "field")
    with ThreadPoolExecutor(writers) as pool:
        for _ in range(20):
            draft = Store(tmp_path).begin(plan)
            writing = [pool.submit(write, draft.path, number) for number in range(writers)]
            begun.wait(10)
            draft.abandon()
            assert not list(tmp_path.glob("field/.0*"))
            assert [type(each.exception(30)) for each in writing] == [FileNotFoundError] * writers
            assert not list(tmp_path.glob("field/.0*"))
