"""The table of small results holds so much and no more."""

from types import SimpleNamespace

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


def test_what_is_told_of_a_result_is_as_of_now(monkeypatch):
    state = SimpleNamespace(
        settings=SimpleNamespace(checkpoint_small_bytes=10), scheduler="scheduler", made_plain=0
    )
    monkeypatch.setattr(table.runs, "is_asked_for", lambda scheduler, key, run: run == 1)
    results, lost = table.SmallResults(state), []
    results.lost = lambda key, copy: lost.append(key)
    for nbytes in (9, 10, 11):
        results.came(f"x-{nbytes}", nbytes)
    assert results.fresh == ["x-9"]
    for run, key in enumerate(("old", "wanted", "forgotten")):
        results.hold(key, SmallCopy(run, b"none"))
    results.doubtful |= {"forgotten": True, "other": False}
    results.left_memory("old")
    results.left_memory("wanted")
    results.forget("forgotten")
    results.forget("never held")
    assert (lost, results.held, results.nbytes) == (["wanted"], {}, 0)
    assert results.doubtful == {"other": False}
    results.look_again()
    assert (results.doubtful, results.outdated, state.made_plain) == ({}, True, 1)
    # where what others hold takes all there is
    results.hold("x", SmallCopy(1, b"none"), besides_bytes=table.MOST_BYTES)
    assert results.held == {}
    # with the runtime all of it goes
    results.hold("x", SmallCopy(1, b"none"))
    results.doubtful["x"], results.waiting["a"] = True, {"x": 1}
    results.clear()
    assert not any((results.fresh, results.waiting, results.held, results.doubtful, results.nbytes))
