"""Losses are told apart, planned exits counted by themselves, and what went with them is counted right.

`tests/tools/losses.py` has the runs, and makes as many of them as it is asked for.
"""

from __future__ import annotations

from math import inf

import losses as runs
import pytest
from distributed import Worker, wait
from helpers import asleep, engine, live, traces_of_ours, until
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.tables import losses
from dask_hpc.trace import LossEvent

# nothing of other tests is taken over
pytestmark = pytest.mark.usefixtures("memory")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize("kind", [*runs.KINDS, runs.BOTH])
@pytest.mark.parametrize("plain", [False, True], ids=["job", "plain"])
def test_losses_are_classed_and_counted(kind, seed, plain):
    outcome = runs.run_once(kind, seed, plain)
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


def losses_told(s):
    return [one for one in engine(s).state.records if isinstance(one, LossEvent)]


@live(workers=2)
async def test_a_loss_is_told_although_no_job_is_active_and_nobody_asks(c, s, a, b, monkeypatch):
    monkeypatch.setattr(losses, "TOGETHER_S", 0.05)
    await dask_hpc.install(c)
    results = c.map(inc, range(20), pure=False)
    await wait(results)
    assert traces_of_ours(s) == [], "no task passes anything of ours"
    lost = {key for key, ts in s.tasks.items() if {ws.address for ws in ts.who_has} == {a.address}}
    assert lost
    await runs.kill(s, [a])
    await until(lambda: losses_told(s), "it is told")
    (told,) = losses_told(s)
    assert (told.severity, told.nodes, told.results) == ("process", (str(a.name),), len(lost))
    assert await c.gather(results) == list(range(1, 21))
    assert engine(s).losses.recomputed == len(lost)
    await until(lambda: traces_of_ours(s) == [], "nothing is watched any more")
    await a.close()


@live(workers=2)
async def test_lost_results_that_nobody_wants_any_more_are_watched_no_more(c, s, a, b):
    await dask_hpc.install(c)
    held = c.submit(inc, 1, workers=[a.address], pure=False)
    await wait(held)
    await runs.kill(s, [a])
    key = held.key
    await until(lambda: s.tasks[key].state == "no-worker", "there is nobody to make it again")
    assert traces_of_ours(s) == ["plugin dask-hpc-watched"]
    del held
    await until(lambda: key not in s.tasks, "it is forgotten")
    assert traces_of_ours(s) == []
    told = engine(s).losses
    told.status()
    assert told.recomputed == told.restored == 0
    await a.close()


@live(workers=2)
async def test_node_seconds_are_counted_from_the_installation_on(c, s, a, b, monkeypatch):
    await dask_hpc.install(c)
    state, told = engine(s).state, engine(s).losses
    now_s = state.now_s()
    monkeypatch.setattr(state, "now_s", lambda: now_s)
    begun_node_s = told.status()["losses"]["exposure_node_s"]
    now_s += 1000
    async with Worker(s.address, name="late", nthreads=1) as late:
        await until(lambda: late.address in told._workers, "it is known")
        now_s += 100
        await c.retire_workers([a.address])
        now_s += 10
        assert not engine(s).awake
        found = told.status()["losses"]
    assert found["exposure_node_s"] - begun_node_s == pytest.approx(2 * 1000 + 3 * 100 + 2 * 10, abs=0.01)
    assert found["planned"] == 1
    (exit,) = losses_told(s)
    assert exit.exposure_node_s - begun_node_s == pytest.approx(2 * 1000 + 3 * 100, abs=0.01)


@live(workers=2)
async def test_after_uninstalling_nothing_is_counted(c, s, a, b):
    before = s.log_event
    rt = await dask_hpc.install(c)
    told = engine(s).losses
    assert s.log_event != before
    results = c.map(inc, range(20), pure=False)
    await wait(results)
    await runs.kill(s, [a])
    assert told._open
    await rt.uninstall()
    assert s.log_event == before
    assert traces_of_ours(s) == []
    # what was lost before is told
    assert told.count["process"] == 1
    count = dict(told.count)
    await runs.kill(s, [b])
    assert dict(told.count) == count
    assert not told._open
    await a.close()
    await b.close()


@pytest.mark.errors("cannot tell what becomes of a worker")
@live(workers=2)
async def test_what_anybody_logs_is_no_loss_and_stops_no_removal(c, s, a, b):
    await dask_hpc.install(c)
    told = engine(s).losses
    for message in (
        {"action": "remove-worker"},
        {"action": "remove-worker", "worker": b.address},
        {"action": "remove-worker", "worker": ["nobody"]},
        {"action": "add-worker", "worker": 3},
        {"action": "add-worker", "worker": "tcp://127.0.0.1:1"},
        "remove-worker",
    ):
        s.log_event("all", message)
    assert sum(told.count.values()) == 0
    assert not told._open
    await runs.kill(s, [a])
    assert len(told._open) == 1
    assert a.address not in s.workers
    await a.close()


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        (runs.Outcome("host", 1, True, {"host": 1}, {"host": 1}), []),
        (runs.Outcome("host", 1, False, {"host": 0}, {"host": 1}), ["host: 0, should be 1"]),
        (runs.Outcome("host", 1, False, {"host": 1}, {"host": 1}, ["results differ"]), ["results differ"]),
    ],
)
def test_a_run_in_which_something_was_wrong_fails_them_all(outcome, wrong, monkeypatch, capsys):
    monkeypatch.setattr(runs, "run_once", lambda kind, seed, plain: outcome)
    assert runs.main(["--seeds", "2"]) == bool(wrong)
    told = capsys.readouterr().out
    assert all(f"seed 1, host: {what}\n" in told for what in wrong)
    assert told.splitlines()[-1].split()[:2] == ["all", "2"]
    assert told.splitlines()[-1].split()[-1] == str(2 * bool(wrong))
