"""What a policy is shown is how jobs stand, also where the view of before is shown again."""

from __future__ import annotations

import pytest
from random_worlds import DETERMINED, options_of, policy_of, world

from dask_hpc import sim
from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.views import mtct, pending_view, running_view
from dask_hpc_policies import registry


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
