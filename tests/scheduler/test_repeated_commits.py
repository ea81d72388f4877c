"""Checkpoints in a loop: `every=` says how often, and what the loop lets go of is written all the same."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest
from distributed import wait
from helpers import Gate, live, through, until
from losses import kill

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import remembered
from dask_hpc.scheduler.rpc.service import of

#: How often each step was computed.
STEPS: Counter[int] = Counter()


def stepped(values, number):
    """One step of a simulation, counted."""
    STEPS[number] += 1
    return values + 1


def versions(store, name):
    """Numbers of the whole versions of a name."""
    return [version.version for version in Store(store).versions(name) if version.complete]


def clients(s):
    """Who wants results of the scheduler as one that writes them."""
    return [name for name in s.clients if name.startswith("hpc-checkpoint")]


@live(workers=2)
async def test_within_the_interval_nothing_is_written_and_the_last_commit_is_given(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    field, of_step = c.submit(np.zeros, 10), {}
    for number in range(4):
        field = c.submit(stepped, field, number)
        of_step[number] = await rt.checkpoint(field, "field", every="1 h")
    assert [commit.version for commit in of_step.values()] == [1, 1, 1, 1]
    assert (await of_step[3].status())["state"] == "complete"
    # the first step, and nothing of the others
    assert (await c.gather(await dask_hpc.restore("field", c, store=tmp_path)))[0] == 1
    assert versions(tmp_path, "field") == [1]
    # another name has times of its own, and without `every` it is written
    assert (await rt.checkpoint(field, "other", every=3600)).version == 1
    assert (await rt.checkpoint(field, "field")).version == 2
    # which counts for the next one
    assert (await rt.checkpoint(field, "field", every="1 h")).version == 2


@live(workers=1)
async def test_after_the_interval_the_next_call_writes(c, s, a, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    clock, passed_s = of(s).engine.state.clock, 0.0
    now_s = clock.now_s
    monkeypatch.setattr(clock, "now_s", lambda: now_s() + passed_s)
    value = c.submit(np.zeros, 10)
    await rt.checkpoint(value, "value", every="10 min")
    # what is asked for every so often is not forgotten because there is much else
    monkeypatch.setattr(remembered, "_WHOLE", 1)
    for name in ("one", "two", "three"):
        await rt.checkpoint(value, name)
    passed_s = 500.0
    assert (await rt.checkpoint(value, "value", every="10 min")).version == 1
    passed_s = 600.0
    assert (await rt.checkpoint(value, "value", every="10 min")).version == 2
    passed_s = 1190.0
    assert (await rt.checkpoint(value, "value", every="10 min")).version == 2
    # an interval of another length
    assert (await rt.checkpoint(value, "value", every=60)).version == 3


@pytest.mark.errors("no new version")
@live(workers=1)
async def test_only_the_call_that_has_begun_a_version_waits_and_hears_of_its_failure(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    gate = Gate()
    slow = c.submit(through, 1, gate)
    first = await rt.checkpoint(slow, "value", every="10 ms", wait=False)
    # one is under way
    second = await asyncio.wait_for(rt.checkpoint(slow, "value", every="10 ms"), 30)
    assert (await second.status())["state"] in ("waiting", "writing")
    gate.open()
    await first.wait()
    assert (await second.wait()).version == first.version == 1
    bad = c.submit(lambda: 1 / 0, key="bad")
    with pytest.raises(CheckpointError, match="its task has failed"):
        await rt.checkpoint(bad, "bad", every="1 h")
    assert (await (await rt.checkpoint(bad, "bad", every="1 h")).status())["state"] == "failed"


@live(workers=1)
async def test_an_interval_that_is_none_is_refused(c, s, a, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    value = c.submit(np.zeros, 10)
    for wrong in (0, -1, "often", "10 parsecs", True, float("nan"), [600]):
        with pytest.raises(ValueError, match=r"'every' cannot be .*from 10 ms to 30 d, or none"):
            await rt.checkpoint(value, "value", every=wrong)
    assert not list(tmp_path.iterdir())


@live(workers=2)
async def test_what_a_loop_lets_go_of_is_written_while_it_goes_on(c, s, a, b, tmp_path, monkeypatch):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    gate, begin = Gate(), Store.begin
    monkeypatch.setattr(Store, "begin", lambda *args: gate.wait(begin(*args)))
    field = c.submit(np.zeros, 10)
    for number in range(6):
        field = c.submit(stepped, field, number)
        # nobody keeps the commit
        await rt.checkpoint(field, "field", every="1 h", wait=False)
    await wait(field)
    await until(lambda: gate.arrived, "it is begun")
    assert clients(s)
    gate.open()
    await until(lambda: versions(tmp_path, "field"), "it is written")
    await until(lambda: not clients(s), "and let go of")
    assert (await c.gather(await dask_hpc.restore("field", c, store=tmp_path)))[0] == 1


@live(workers=2)
async def test_a_loop_goes_back_to_its_newest_version_and_leaves_no_more_than_the_last_ones(
    c, s, a, b, tmp_path
):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    STEPS.clear()
    # one store, whatever it is called
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    field, commit = c.submit(np.zeros, 10), None
    for number in range(20):
        field = c.submit(stepped, field, number, workers=[a.address], allow_other_workers=True)
        await wait(field)
        if number <= 15:
            commit = await rt.checkpoint(field, "field", every=0.01, store=(tmp_path, link)[number % 2])
    assert commit.version > 3
    assert versions(tmp_path, "field") == [commit.version - 1, commit.version]
    assert sum(STEPS.values()) == 20
    await kill(s, [a])
    assert (await asyncio.wait_for(field, 30))[0] == 20
    again = {number for number, times in STEPS.items() if times > 1}
    assert again >= set(range(16, 20))
    # the newest version may be of some steps before the last call: what lies before it was not run again
    values = await c.gather(await dask_hpc.restore("field", c, store=tmp_path))
    assert again == set(range(int(values[0]), 20))
    s.validate_state()
