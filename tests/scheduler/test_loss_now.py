"""What a loss now would cost: work of protected jobs that no whole version stands for."""

from __future__ import annotations

import time

import dask
import pytest
from distributed import wait
from helpers import Gate, live, through, until
from hypothesis import given
from hypothesis import strategies as st

import dask_hpc
from dask_hpc.scheduler.checkpoint import loss
from dask_hpc.scheduler.internals import durations


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 64)), max_size=6),
    st.integers(0, 70),
    st.integers(1, 64),
)
def test_a_program_loses_at_most_what_its_nodes_held_since_its_version_began(changes, since_s, threads):
    sizes, t_s = [], 0
    for step_s, nodes in changes:
        t_s += step_s
        sizes.append((float(t_s), nodes))
    now_s = t_s + 10
    # second by second
    held = [next((nodes for from_s, nodes in sizes[::-1] if from_s <= at), 0) for at in range(now_s)]
    found = loss.of_state(sizes, float(since_s), float(now_s), threads)
    assert found == loss.Loss(threads * sum(held[since_s:]), "at most")
    assert loss.of_state(sizes, None, float(now_s), threads).core_s == threads * sum(held)


def made(number):
    time.sleep(0.02)
    return number


def twice(number):
    time.sleep(0.01)
    return 2 * number


@live(workers=2)
async def test_results_that_no_version_has_count_with_what_they_are_made_from(c, s, a, b, tmp_path):
    settings = {"hpc.checkpoint.store": str(tmp_path), "hpc.checkpoint.every": "1 h", "hpc.tick": "50 ms"}
    with dask.config.set(settings):
        rt = await dask_hpc.install(c, "fcfs")

        async def row():
            (found,) = (await rt.status())["protected_jobs"]
            return found

        def usual_s(name):
            return durations.of_kind(s.task_prefixes[name])

        async with rt.job("night", nodes=2, protect=True) as job:
            assert (await row())["loss_core_s"] == 0
            one, two = (dask.delayed(twice)(dask.delayed(made)(number)) for number in (1, 2))
            first = c.compute([one, two])
            await wait(first)
            found = await row()
            assert found["loss_core_s"] == pytest.approx(2 * usual_s("made") + 2 * usual_s("twice"), abs=2e-3)
            assert (found["writes"], found["loss_is"], found["version_age_s"]) == ("results", "about", None)
            assert 3500 < found["due_in_s"] <= 3600
            # it is due at once, and written
            await rt.update(checkpoint_every_s=0.01)
            await until(lambda: (tmp_path / "night" / "000001").exists(), "it is written")
            await rt.update(checkpoint_every_s=None)
            while (found := await row())["under_way"] or not found["written_results"]:
                pass
            assert found["loss_core_s"] == 0
            assert found["version_age_s"] >= 0
            assert found["due_in_s"] is None
            # what a version has is not computed again, nor is what only that needs
            (more,) = c.compute([dask.delayed(made)(one)])
            await wait(more)
            assert (await row())["loss_core_s"] == pytest.approx(usual_s("made"), abs=2e-3)
            before_s = (await row())["loss_core_s"]
            gate = Gate()
            executing = c.submit(through, 1, gate)
            await until(lambda: gate.arrived, "it executes")

            async def heard():
                for worker in (a, b):
                    await worker.heartbeat()
                return (await row())["loss_core_s"] > before_s

            while not await heard():
                pass
            gate.open()
            assert await executing == 1
        await job.wait()


@live(workers=1)
async def test_so_many_tasks_are_looked_at_and_no_more(c, s, a, monkeypatch):
    futures = c.map(made, range(10))
    await wait(futures)
    keys = [future.key for future in futures]
    usual_s = durations.of_kind(s.task_prefixes["made"])
    assert loss.of_results(s, keys, ()) == loss.Loss(pytest.approx(10 * usual_s), "about")
    monkeypatch.setattr(loss, "MOST_TASKS", 10)
    assert loss.of_results(s, keys, ()).bound == "about"
    monkeypatch.setattr(loss, "MOST_TASKS", 4)
    assert loss.of_results(s, keys, ()) == loss.Loss(pytest.approx(4 * usual_s), "at least")
    assert loss.of_results(s, keys, keys[:7]) == loss.Loss(pytest.approx(3 * usual_s), "about")
    # what several need counts once
    sides = [c.submit(twice, futures[0], key=f"twice-{side}") for side in range(2)]
    top = c.submit(max, *sides)
    await top
    twice_s, max_s = (durations.of_kind(s.task_prefixes[name]) for name in ("twice", "max"))
    assert loss.of_results(s, [top.key, sides[0].key], ()).core_s == pytest.approx(
        usual_s + 2 * twice_s + max_s
    )
