"""Commits of long ago: who waits for one has its end, though the cluster has forgotten it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import live

import dask_hpc
from dask_hpc.checkpoint.describe import describe_results
from dask_hpc.scheduler.checkpoint import remembered, to_levels
from dask_hpc.scheduler.checkpoint.commit import Commit
from dask_hpc.scheduler.checkpoint.remembered import Remembered
from dask_hpc.scheduler.rpc.service import of


def ended(known: Remembered, *ids: int, at_s: float) -> None:
    """Have commits that end there and then."""
    for id in ids:
        one = Commit(
            id, describe_results(f"step-{id}", ["key"], "run"), "plain", "/store", submitted_s=at_s - 1.0
        )
        one.state, one.version, one.ended_s = "complete", 1, at_s
        known.commits[id] = one
        known.forget(at_s)


def test_rows_of_what_is_forgotten_stay_for_an_hour_and_are_bounded(monkeypatch):
    monkeypatch.setattr(remembered, "_WHOLE", 2)
    known = Remembered()
    ended(known, 1, 2, 3, at_s=10.0)
    assert list(known.commits) == [2, 3]
    for id in (1, 2, 3):
        row = known.row(id, 100.0)
        assert (row["id"], row["name"], row["state"], row["age_s"]) == (id, f"step-{id}", "complete", 91.0)
    ended(known, 4, at_s=3610.0)
    assert known.row(1, 3610.0)["state"] == "complete"
    ended(known, 5, at_s=3611.0)
    with pytest.raises(ValueError, match=r"commit is 1, which is not known \(any more\); see rt.status"):
        known.row(1, 3611.0)
    monkeypatch.setattr(remembered, "_ROWS", 3)
    ended(known, *range(6, 10), at_s=3611.0)
    assert list(known.commits) == [8, 9]
    assert [known.row(id, 3611.0)["id"] for id in range(5, 10)] == [5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="commit is 4"):
        known.row(4, 3611.0)


def test_what_is_written_every_so_often_is_known_until_the_next_one_is_due(monkeypatch):
    monkeypatch.setattr(remembered, "_WHOLE", 1)
    known = Remembered()
    known.repeated[("/store", "step-1")] = 100.0
    ended(known, 1, 2, 3, at_s=10.0)
    assert list(known.commits) == [1, 3]
    ended(known, 4, at_s=109.0)
    assert list(known.commits) == [1, 4]
    # each has all keys of its results, and the loop may be over
    ended(known, 5, at_s=110.0)
    assert (list(known.commits), known.repeated) == ([5], {})
    assert known.row(1, 110.0)["state"] == "complete"


@live(workers=1)
async def test_a_version_that_was_written_can_be_waited_for_when_many_came_after_it(
    c, s, a, tmp_path, monkeypatch
):
    monkeypatch.setattr(remembered, "_WHOLE", 1)
    monkeypatch.setattr(to_levels, "_NAMES", 2)
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    value = c.submit(np.zeros, 10)
    first = await rt.checkpoint(value, "first", wait=False)
    for number in range(3):
        await rt.checkpoint(value, f"later-{number}")
    known = of(s).commits
    assert len(known._commits) == 1
    assert list(known._levels._stored) == [(str(tmp_path), f"later-{number}") for number in (1, 2)]
    assert not known._turns
    # another one asks for it now, as a program does that has been busy
    row = await known.row(first._row["id"], 1.0)
    assert (row["name"], row["version"], row["state"]) == ("first", 1, "complete")
    assert (await known.cancel(row["id"]))["state"] == "complete"
    # and who has heard of its end need not ask
    await first.wait()
    monkeypatch.setattr(known._remembered, "_rows", {})
    assert (await first.wait()).version == 1
    assert (await first.status())["path"] == first.path == str(tmp_path / "first" / "000001")
