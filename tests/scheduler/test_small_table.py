"""The table of small results holds so much and no more."""

from dask_hpc.scheduler.tables import small as table
from dask_hpc.worker.small import SmallCopy


def test_the_oldest_go_when_all_take_too_much(monkeypatch):
    monkeypatch.setattr(table, "MOST_BYTES", 3 * (table.EACH_BYTES + 4))
    results = table.SmallResults(None)
    for run in range(5):
        results.hold(f"x-{run}", SmallCopy(run, b"none"))
    assert list(results.held) == ["x-2", "x-3", "x-4"]
    results.hold("x-3", SmallCopy(7, b"none"))
    assert list(results.held) == ["x-2", "x-4", "x-3"]
    results.hold("x-9", SmallCopy(9, b"none"), besides_bytes=2 * (table.EACH_BYTES + 4))
    assert list(results.held) == ["x-9"]
    assert results.nbytes == table.EACH_BYTES + 4
