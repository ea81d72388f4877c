"""Losses are told apart, planned exits counted by themselves, and what went with them is counted right.

`tests/tools/losses.py` has the runs, and makes as many of them as it is asked for.
"""

from __future__ import annotations

from math import inf

import losses as runs
import pytest
from distributed import Worker
from helpers import asleep, engine, live, until

import dask_hpc
from dask_hpc.scheduler.tables import losses


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize("kind", [*runs.KINDS, runs.BOTH])
def test_losses_are_classed_and_counted(kind, seed):
    outcome = runs.run_once(kind, seed)
    assert outcome.wrong == []
    assert outcome.ours == outcome.counted
    assert set(outcome.ours) == {*runs.KINDS, *runs.COUNTS}


@pytest.mark.parametrize("same_name", [True, False])
@live(workers=6, config={"hpc.tick": "50 ms"})
async def test_a_host_that_is_back_at_once_was_lost_all_the_same(c, s, *workers, same_name, monkeypatch):
    monkeypatch.setattr(losses, "TOGETHER_S", inf)
    rt = await dask_hpc.install(c)
    await until(lambda: all("dask-hpc" in worker.plugins for worker in workers), "the plugin is there")
    for worker, place in zip(workers, runs.PLACES, strict=True):
        await runs.labelled(worker, place)
    async with rt.job("main") as job:
        await until(lambda: engine(s).state.nodes.nodes, "it is awake")
        await runs.kill(s, [workers[0], workers[1]])
        names = [workers[0].name, workers[1].name] if same_name else ["new-0", "new-1"]
        async with (
            Worker(s.address, name=names[0], nthreads=1) as first,
            Worker(s.address, name=names[1], nthreads=1) as second,
        ):
            # nannies have started both again before anybody is told what was lost
            for worker in (first, second):
                await runs.labelled(worker, runs.PLACES[0])
            nodes = engine(s).state.nodes.at
            await until(
                lambda: all(
                    w.address in nodes and nodes[w.address].facts.host == "h0" for w in (first, second)
                ),
                "both are back on their host",
            )
            monkeypatch.setattr(losses, "TOGETHER_S", 0.0)
            count = engine(s).losses.count
            await until(lambda: count, "the loss is told")
            assert dict(count) == {"host": 1}
        await job.close()
    await asleep(s)


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        (runs.Outcome("host", 1, {"host": 1}, {"host": 1}), []),
        (runs.Outcome("host", 1, {"host": 0}, {"host": 1}), ["host: 0, should be 1"]),
        (runs.Outcome("host", 1, {"host": 1}, {"host": 1}, ["results differ"]), ["results differ"]),
    ],
)
def test_a_run_in_which_something_was_wrong_fails_them_all(outcome, wrong, monkeypatch, capsys):
    monkeypatch.setattr(runs, "run_once", lambda kind, seed: outcome)
    assert runs.main(["--seeds", "2"]) == bool(wrong)
    told = capsys.readouterr().out
    assert all(f"seed 1, host: {what}\n" in told for what in wrong)
    assert told.splitlines()[-1].split()[:2] == ["all", "2"]
    assert told.splitlines()[-1].split()[-1] == str(2 * bool(wrong))
