"""Steps of flows have a policy asked that may place analyses, and plans made that take longer than a pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from distributed.utils_test import gen_test
from helpers import until

from dask_hpc.scheduler.coupling import planning as module
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.coupling.planning import Planning
from dask_hpc.scheduler.coupling.splits import Splits
from dask_hpc_policies import registry
from dask_hpc_policies.combine.guards import Cooldown, Hysteresis
from dask_hpc_policies.combine.merge import Chain
from dask_hpc_policies.placement.replan import known, plan_of
from dask_hpc_policies.placement.view import AnalysisView, FlowView, PlatformView, SimulationView


def test_policies_that_place_nothing_are_not_asked_because_of_steps():
    asked, now = [], 0.0
    controller = SimpleNamespace(request=asked.append, policy=None)
    engine = SimpleNamespace(
        scheduler=None, tracing=SimpleNamespace(last_words=[]), controller=controller,
        state=SimpleNamespace(now_s=lambda: now, listeners=[]),
    )  # fmt: skip
    workers = SimpleNamespace(
        may_stage=lambda: ["s"], node_threads=lambda addresses: (1, 2), job=lambda flow: None
    )
    splits = Splits(engine, workers, None)
    flow = Flow("heat", "hpc-flow-heat-1", (), queue=2, when_full="wait", client="c", places=["a"])
    flow.analyses["mean"] = {"where": "auto", "first": 0, "window": 1, "every": 1}
    mine = SimpleNamespace()
    for policy, times in (
        (registry.create("fcfs"), 0),
        (Hysteresis(registry.create("easy")), 0),
        (registry.create("placement"), 1),
        (Chain(registry.create("fair"), registry.create("placement")), 1),
        (Cooldown(registry.create("placement")), 1),
        # nobody knows what a user's does
        (mine, 1),
    ):
        controller.policy, now = policy, now + 1.0
        for turn in range(3):
            splits.whole(flow, turn)
        assert len(asked) == times, policy
        asked.clear()


@gen_test(timeout=30)
async def test_flows_that_take_long_to_plan_are_planned_beside_the_loop_and_now_and_then():
    asked, now = [], [0.0]
    controller = SimpleNamespace(request=asked.append)
    planning = Planning(SimpleNamespace(controller=controller, state=SimpleNamespace(now_s=lambda: now[0])))
    made = plan_of

    def slow(view):
        now[0] += 2.0
        return made(view)

    def view(step_s, count=13):
        names = [f"a{number}" for number in range(count)]
        return FlowView(
            simulation=SimulationView(one_core_s=step_s), platform=PlatformView(nodes=3, cores=4),
            analyses=tuple([AnalysisView(name=name, one_core_s=1.0) for name in names]),
        )  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "plan_of", slow)
        assert planning.planned("heat", view(9.0)).plan is None
        await until(lambda: asked, "it is planned")
        plan = planning.planned("heat", view(9.0)).plan
        assert (plan.found_for, asked, now) == (known(view(9.0)), ["answer"], [2.0])
        # it took two seconds: what has changed is looked at after 18 more
        now[0] = 19.9
        assert planning.planned("heat", view(9.1)).plan == plan
        assert not planning._under_way
        now[0] = 20.0
        assert planning.planned("heat", view(9.1)).plan == plan
        await until(lambda: asked[1:], "it is planned again")
        assert planning.planned("heat", view(9.1)).plan.found_for == known(view(9.1))
        # what is quick to plan is not, and of what is over nothing is remembered
        assert planning.planned("quick", view(9.0, 3)).plan is None
        planning.keep(())
        assert planning.planned("heat", view(9.1)).plan is None
        await until(lambda: asked[2:], "it is planned anew, at once")
        assert len(asked) == 3
