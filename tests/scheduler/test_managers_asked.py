"""Every worker is asked where the manager of its host is before a version is written to memory."""

from __future__ import annotations

import shutil

import numpy as np
from distributed.utils_test import captured_logger
from helpers import live

import dask_hpc
from dask_hpc.wire import HEARTBEAT
from dask_hpc.worker.host_memory import SECTION, manager_folder


@live(workers=1)
async def test_a_worker_that_has_left_its_manager_has_none_and_logs_no_error(c, s, a, tmp_path):
    rt = await dask_hpc.install(c)
    (value,) = await c.scatter([np.arange(5)])
    await rt.checkpoint([value], "values", levels=["L1"])
    folder = manager_folder(a)
    # as when it closes: nobody is there any more, and the manager has ended with its folder
    a.metrics[HEARTBEAT].section(SECTION).stop()
    shutil.rmtree(folder)
    with captured_logger("distributed.worker") as log:
        commit = await rt.checkpoint([value], "values", levels=["L1", "L3"], store=tmp_path)
    assert "Run Failed" not in log.getvalue()
    row = await commit.status()
    assert row["levels"] == ["L3"]
    assert "FileNotFoundError" in row["reason"]
