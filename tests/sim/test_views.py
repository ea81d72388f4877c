"""What a policy is shown is how jobs stand, also where the view of before is shown again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from random_worlds import DETERMINED, options_of, policy_of, world

from dask_hpc import sim
from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.views import mtct, pending_view, running_view
from dask_hpc_policies import registry
from dask_hpc_policies.decision import UNEXPLAINED, Decision, Hold
from dask_hpc_policies.model import ClusterSnapshot


@pytest.mark.parametrize("seed", range(24))
def test_each_view_is_as_if_it_were_made_now(seed, tmp_path):
    source = tmp_path / "world.yaml"
    source.write_text(world(seed), encoding="utf-8")
    work = sim.load(source)
    policy = registry.create("fair") if seed % 2 else policy_of(seed, DETERMINED)
    engine = Engine(work, policy, work.machine, options_of(seed))
    asker, jobs = engine.enactor.asker, engine.world.by_id
    if not hasattr(asker, "snapshot"):
        return  # asked through its incremental form, which is shown nothing
    shown = asker.snapshot

    def compared(trigger):
        view = shown(trigger)
        for job in view.jobs:
            active = jobs[job.id]
            if active.state == "pending":
                assert job == pending_view(active)
            else:
                assert job == running_view(active, view.now_s)
                assert job.mtct == mtct(active.job, active.nodes)
        return view

    asker.snapshot = compared
    try:
        engine.run()
    except SimulationError:
        return  # a world in which nodes fail too often


class Asked:
    """A policy that is asked briefly and at length, and must answer both alike."""

    brief = True

    def __init__(self, policy: Any) -> None:
        self.policy, self.name, self.initial_state = policy, policy.name, policy.initial_state
        #: How often it was asked briefly.
        self.times = 0

    def decide(self, view: ClusterSnapshot, state: Any) -> tuple[Decision, Any]:
        full, after = self.policy.decide(replace(view, brief=False), state)
        found, kept = self.policy.decide(view, state)
        self.times += view.brief
        assert _done(found) == _done(full)
        assert kept == after
        return found, kept


def _done(decision: Decision) -> list[Any]:
    """What is carried out of a decision, without its reasons."""
    return [replace(one, reason=UNEXPLAINED) for one in decision.actions if not isinstance(one, Hold)]


@pytest.mark.parametrize("name", registry.names())
def test_a_brief_question_gets_the_same_starts_resizes_and_state(name, tmp_path):
    asked = Asked(registry.create(name))
    for seed in range(12):
        source = tmp_path / f"{seed}.yaml"
        source.write_text(world(seed), encoding="utf-8")
        work = sim.load(source)
        with suppress(SimulationError):  # a world in which nodes fail too often
            Engine(work, asked, work.machine, replace(options_of(seed), snapshots=False)).run()
    assert asked.times > 100
