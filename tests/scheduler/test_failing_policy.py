"""A policy that fails never becomes what a cluster is left with: the last good one stays."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
from helpers import engine, installed, live, started, until, within
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.install import attach
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision, Reason, ReasonCode, Start
from dask_hpc_policies.protocol import InvalidPolicy


class Fails:
    """Decides as fcfs does, but fails once as many jobs are there as it is told."""

    name = "fails"

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.params: dict[str, Any] = {}
        self.fcfs = registry.create("fcfs")

    def initial_state(self) -> Any:
        return self.fcfs.initial_state()

    def decide(self, view: Any, state: Any) -> Any:
        if len(view.jobs) >= self.jobs:
            raise ZeroDivisionError("no node to divide by")
        return self.fcfs.decide(view, state)


#: What a status calls it: an object that no data describes.
NAME = f"{Fails.__module__}:{Fails.__qualname__}"


def failures(s: Any) -> list[str]:
    """What is said of policies that failed."""
    rows = engine(s).controller.decisions
    return [row["reason"] for row in rows if row["reason_code"] == "policy-failed"]


@live(workers=2)
async def test_a_policy_that_fails_on_the_present_state_is_refused(c, s, *workers):
    rt = await dask_hpc.install(c, "easy", tick="50 ms")
    async with rt.job("heat", nodes=1) as job:
        await started(s, job, 1)
        with pytest.raises(InvalidPolicy, match="ZeroDivisionError: no node to divide by; easy stays"):
            await rt.update(policy=Fails(jobs=1), tick="2 s")
        status = await rt.status()
        assert status["policy"]["policy"] == "easy"
        assert status["settings"]["tick_s"] == 0.05, "all or nothing"
        assert (status["policy_failure"], status["policy_dropped"]) == (None, None)
        assert await c.submit(inc, 1) == 2


@pytest.mark.parametrize(
    ("value", "said"),
    [(math.inf, "JSON cannot hold inf"), (object(), "cannot encode object"), (b"x", "bytes"), (2.5, "")],
)
@live(workers=0)
async def test_a_policy_whose_parameters_no_trace_can_hold_is_refused(c, s, value, said):
    rt = await dask_hpc.install(c, "easy")
    policy = Fails(jobs=9)
    policy.params = {"limit": value}
    if said:
        with pytest.raises(InvalidPolicy, match=f"params of policy fails are no JSON data: .*{said}.*easy"):
            await rt.update(policy=policy)
    else:
        await rt.update(policy=policy)
    status = await rt.status()
    assert status["policy"]["policy"] == ("easy" if said else NAME)
    assert await rt.trace()


@pytest.mark.errors("Policy fails failed")
@live(workers=2)
async def test_a_policy_that_fails_when_it_is_first_asked_gives_way_to_the_last_good_one(c, s, *workers):
    rt = await dask_hpc.install(c, "easy", tick="50 ms")
    # nothing to decide about yet, so that nothing is wrong with it
    status = await rt.update(policy=Fails(jobs=1))
    assert (status["policy"]["policy"], status["policy_dropped"]) == (NAME, None)
    async with rt.job("heat", nodes=1) as job:
        await until(lambda: failures(s), "it was asked")
        status = await rt.status()
        assert status["policy"]["policy"] == "easy"
        await started(s, job, 1)
        status = await rt.status()
        error = "ZeroDivisionError: no node to divide by"
        dropped = f"fails failed, easy decides: {error}"
        assert (status["policy_dropped"], status["policy_failure"]) == (dropped, None)
        assert failures(s) == [error]
        assert await c.submit(inc, 1) == 2
        status = await rt.update(policy="fcfs")
        assert (status["policy"]["policy"], status["policy_dropped"]) == ("fcfs", None)


class Elsewhere(Fails):
    """Is in a module that the scheduler does not have."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("module_of_a_user",)


@live(workers=0)
async def test_a_policy_that_the_scheduler_cannot_load_is_refused_with_a_remedy(c, s):
    said = "ModuleNotFoundError: No module named 'module_of_a_user'.*register_pickle_by_value"
    with pytest.raises(InvalidPolicy, match=said):
        await dask_hpc.install(c, policy=Elsewhere(jobs=9))
    assert not installed(s)
    rt = await dask_hpc.install(c, "easy")
    with pytest.raises(InvalidPolicy, match=said):
        await rt.update(policy=Elsewhere(jobs=9))
    assert (await rt.status())["policy"]["policy"] == "easy"


class Misspelt(Fails):
    """Gives a text where a reason belongs, once a job waits."""

    def decide(self, view: Any, state: Any) -> Any:
        why: Any = "it fits"
        waiting = [job.id for job in view.jobs if job.state == "pending"]
        return Decision(actions=tuple(Start(job=id, nodes=1, reason=why) for id in waiting)), state


@pytest.mark.errors("Policy fails failed")
@live(workers=1)
async def test_a_policy_whose_decision_cannot_be_carried_out_gives_way(c, s, worker):
    rt = await dask_hpc.install(c, "easy", tick="50 ms")
    await rt.update(policy=Misspelt(jobs=1))
    async with rt.job("heat", nodes=1) as job:
        await started(s, job, 1)
        status = await rt.status()
        assert status["policy"]["policy"] == "easy"
        assert "reason: expected an object, got 'it fits'" in status["policy_dropped"]
        assert await rt.trace()
        async with rt.job("late", nodes=1) as late:
            await until(lambda: late.id in engine(s).state.jobs.active, "it waits")
            with pytest.raises(InvalidPolicy, match="expected an object, got 'it fits'; easy stays"):
                await rt.update(policy=Misspelt(jobs=1))
            await late.cancel()


class Boundless(Fails):
    """Asks for more nodes than a message can say, once a job waits."""

    def decide(self, view: Any, state: Any) -> Any:
        why = Reason(ReasonCode.FITS, "it fits")
        waiting = [job.id for job in view.jobs if job.state == "pending"]
        return Decision(actions=tuple(Start(job=id, nodes=10**30, reason=why) for id in waiting)), state


@pytest.mark.errors("Policy fails failed")
@live(workers=1)
async def test_a_policy_that_asks_for_nodes_without_end_gives_way_and_what_it_said_can_be_read(c, s, worker):
    rt = await dask_hpc.install(c, "easy", tick="50 ms")
    await rt.update(policy=Boundless(jobs=1))
    async with rt.job("heat", nodes=1) as job:
        await started(s, job, 1)
        rows = await within(rt.decisions(), 5)
        told = [row["reason"] for row in rows if row["reason_code"] == "policy-failed"]
        assert told == [f"ValueError: an action with nodes={10**30}; allowed: at most 1_000_000_000"]
        assert (await rt.status())["policy"]["policy"] == "easy"


@pytest.mark.errors("Policy fails failed")
@pytest.mark.parametrize("before", ["easy", None])
@live(workers=2)
async def test_a_policy_that_fails_later_gives_way_and_nobody_waits_for_it(c, s, *workers, before):
    if before:
        rt = await dask_hpc.install(c, before, tick="50 ms")
        await rt.update(policy=Fails(jobs=2))
    else:
        attach(s, policy=Fails(jobs=2))
        rt = await dask_hpc.runtime(c)
    good = before or "fair"
    async with rt.job("heat", nodes=1) as first:
        await started(s, first, 1)
        assert (await rt.status())["policy"]["policy"] == NAME, "it decides, and can"
        async with rt.job("late", nodes=1) as late:
            await started(s, late, 1)
            status = await rt.status()
            assert (status["policy"]["policy"], status["policy_failure"]) == (good, None)
            error = "ZeroDivisionError: no node to divide by"
            assert status["policy_dropped"] == f"fails failed, {good} decides: {error}"
            assert failures(s) == [error]
    rows = await rt.jobs()
    assert [row["sizes"][0][1] for row in rows] == [1, 1]


@pytest.mark.errors("Policy fails failed", "Policy fair failed")
@live(workers=2)
async def test_when_no_policy_can_decide_the_nodes_of_jobs_stay(c, s, *workers):
    attach(s, policy=Fails(jobs=2))
    rt = await dask_hpc.runtime(c)
    async with rt.job("heat", nodes=1) as first:
        await started(s, first, 1)
        with pytest.MonkeyPatch.context() as patch:
            at_last = _Fair()
            patch.setattr(registry, "create", lambda name: at_last)
            async with rt.job("late", nodes=1):
                await until(lambda: engine(s).controller.failure, "no policy decides")
                assert [row["nodes"] for row in await rt.jobs()] == [1, 0]
                patch.undo()
                await rt.update(policy="fcfs")
                await until(lambda: not engine(s).controller.failure, "another policy decides")
    assert [row["sizes"][0][1] for row in await rt.jobs()] == [1, 1]


class _Fair(Fails):
    """What decides at last, and fails as well."""

    name = "fair"

    def __init__(self) -> None:
        super().__init__(jobs=1)
