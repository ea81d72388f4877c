"""Nodes that go, or are to go, while a round of resizes has set them aside, in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from sim_worlds import BECAUSE, malleable, rigid, workload

from dask_hpc.sim import simulate
from dask_hpc.sim.model.machine import AdaptationCost, Failures, NodeFailure
from dask_hpc.sim.model.pool import Pool
from dask_hpc_policies.decision import Action, Decision, ReleaseNodes, Shrink, Start
from dask_hpc_policies.model import ClusterSnapshot


class Rearranging:
    """Shrinks a to two nodes for the start of b on six; at times it does something else: {time: action}."""

    name = "rearranging"

    def __init__(self, others: Mapping[float, Action]) -> None:
        self.others = others
        self.params: dict[str, Any] = {}
        self.seen: list[ClusterSnapshot] = []

    def initial_state(self) -> None:
        return None

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        self.seen.append(view)
        actions = [self.others[view.now_s]] if view.now_s in self.others else []
        if view.now_s == 10.0 and any(job.id == "b" for job in view.pending):
            actions.append(Shrink(job="a", nodes=2, reason=BECAUSE))
            actions.append(Start(job="b", nodes=6, reason=BECAUSE))
        elif view.now_s < 10.0:
            actions += [Start(job=job.id, nodes=4, reason=BECAUSE) for job in view.pending]
        return Decision(actions=tuple(actions)), None


#: a gives up two of its four nodes for 100 s, for which the four idle ones are set aside.
SLOW = AdaptationCost(shrink_base_s=100.0)
REARRANGED = (malleable("a", 4, 2, 4, 500.0), rigid("b", 6, 10.0, 10.0), rigid("c", 8, 10.0, 30.0))


@pytest.mark.parametrize("cause", ["walltime", "failure"])
def test_no_fewer_than_no_node_is_idle_when_one_goes_that_was_set_aside(cause: str) -> None:
    failures = Failures(listed=(NodeFailure(t_s=20.0, node=7, downtime_s=900.0),))
    pool = Pool(initial_nodes=8, initial_walltimes_s=(*[None] * 7, 20.0))
    more: dict[str, Any] = {"failures": failures} if cause == "failure" else {"pool": pool}
    policy = Rearranging({})
    simulate(workload(*REARRANGED, nodes=8, adaptation=SLOW, **more), policy)
    lost = [view for view in policy.seen if view.trigger == "node-lost"]
    assert [view.idle_nodes for view in lost] == [0]


def test_nodes_that_a_round_has_set_aside_are_not_given_back() -> None:
    pool = Pool(initial_nodes=8)
    work = workload(*REARRANGED[:2], rigid("c", 8, 10.0, 30.0), nodes=8, adaptation=SLOW, pool=pool)
    policy = Rearranging({30.0: ReleaseNodes(nodes=0, reason=BECAUSE)})
    result = simulate(work, policy)
    assert [one.reason for one in result.refusals] == [
        "8 nodes there and 0 on their way: 0 not waited for any more, 0 given back of 8; jobs hold the "
        "others, or are about to"
    ]
    assert [(one.start_s, one.end_s) for one in result.runs if one.id == "b"] == [(110.0, 120.0)]
