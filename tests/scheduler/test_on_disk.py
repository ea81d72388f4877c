"""Versions in the memory of a host that has no room for them."""

from __future__ import annotations

import logging
import os
import shutil

import dask
import numpy as np
from helpers import live, until
from losses import kill

import dask_hpc
from dask_hpc.checkpoint import disk
from dask_hpc.doctor.store import _on_disk
from dask_hpc.scheduler.internals import remote
from dask_hpc.worker import managers
from dask_hpc.worker.host_memory import manager_folder
from dask_hpc.worker.host_process import collect


@live(workers=2)
async def test_what_a_small_memory_has_no_room_for_is_on_disk_and_said_to_be(
    c, s, a, b, monkeypatch, caplog, tmp_path
):
    monkeypatch.setattr(managers, "SPARE_BYTES", 2**60)
    monkeypatch.setattr(disk, "_MEMORY", ())  # wherever this machine has its temporary files
    monkeypatch.setitem(dask.config.config, "temporary-directory", str(tmp_path))
    rt = await dask_hpc.install(c)
    values = c.map(np.full, [3000, 3001], [1.0, 2.0], workers=[a.address])
    with caplog.at_level(logging.WARNING, logger="distributed.dask_hpc.managers"):
        commit = await rt.checkpoint(values, "field", levels="L1")
        await rt.checkpoint(values[:1], "other", levels="L1")
    assert list((await commit.status())["levels"]) == ["L1"]
    assert caplog.text.count("has no room for") == 1
    place = disk.linked(manager_folder(a))
    assert str(place) in caplog.text
    assert [path.suffix for path in manager_folder(a).iterdir()].count(".segment") == 0

    def heard():
        told = [remote.sections_of(ws).get("manager", {}) for ws in s.workers.values()]
        return all(each.get("disk_bytes", 0) > 3 * 24_000 for each in told)

    await until(heard, "heartbeats tell of both versions on disk")
    (row,) = (await rt.status())["checkpoints"]["managers"]
    assert row["disk_bytes"] == row["held_bytes"]
    (found,) = _on_disk([row])
    assert (found.verdict, "kiB of what is to be in memory" in found.text) == ("warn", True)
    await kill(s, [a])
    _, second = await c.gather(values)
    np.testing.assert_array_equal(second, np.full(3001, 2.0))
    assert (await rt.status())["checkpoints"]["restored_results"] == 2
    # as when the machine was started anew
    shutil.rmtree(manager_folder(b))

    def collected():
        os.utime(place, (0, 0))
        return place in collect(10_000.0)

    await until(collected, "who collects what was left looks where managers of workers have it")
    assert not place.exists()
