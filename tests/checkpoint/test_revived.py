"""A manager that was killed is started by one worker of its host at a time, and ever later while it fails."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from dask_hpc.errors import CheckpointError
from dask_hpc.worker.managers import in_turn


def tried(folder: Path, raised: Exception) -> bool:
    """Whether somebody had a turn, which ended so."""
    had = False
    with suppress(type(raised)), in_turn(folder) as mine:
        had = mine
        if mine:
            raise raised
    return had


def test_one_tries_at_a_time_and_after_each_failure_all_wait_longer(tmp_path: Path) -> None:
    with in_turn(tmp_path) as mine, in_turn(tmp_path) as other:
        assert (mine, other) == (True, False)
    path = tmp_path / "revive.lock"
    waits = []
    for _ in range(7):
        assert tried(tmp_path, CheckpointError("no manager has come up"))
        waits.append(float(path.read_text()))
        for short_s, expected in ((1.0, False), (-1.0, True)):
            os.utime(path, (time.time() - waits[-1] + short_s,) * 2)
            # as when the worker ends meanwhile: nothing is known then
            assert tried(tmp_path, RuntimeError()) == expected
    assert waits == [10, 20, 40, 80, 160, 300, 300]
    # one that has come up and is killed again is started at once
    with in_turn(tmp_path) as mine:
        assert mine
    with in_turn(tmp_path) as mine:
        assert mine
