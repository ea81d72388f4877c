"""Roles of nodes in the simulator: jobs get compute nodes alone, and a policy may say what is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import BECAUSE, fitting, malleable, mixed_workloads, rigid, soon_given_up, workload

from dask_hpc.sim import Machine, Options, Result, Workload, simulate
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.model.machine import AdaptationCost, Failures, NodeFailure
from dask_hpc.sim.model.pool import Pool
from dask_hpc.trace.files import Trace
from dask_hpc.trace.records import Header
from dask_hpc.trace.records import Result as Done
from dask_hpc.trace.replay import replay
from dask_hpc_policies.decision import (
    Action,
    Decision,
    Outcome,
    ReasonCode,
    ReleaseNodes,
    RequestNodes,
    SetRole,
    Shrink,
    Start,
)
from dask_hpc_policies.model import ROLES, ClusterSnapshot


class Casting:
    """Gives nodes roles at given times, {time: {node: role}}, then starts what fits in order."""

    name = "casting"

    def __init__(self, script: Mapping[float, Mapping[str, str]]) -> None:
        self.script = script
        self.params: dict[str, Any] = {}
        self.seen: list[ClusterSnapshot] = []

    def initial_state(self) -> float:
        return -1.0

    def decide(self, view: ClusterSnapshot, state: float) -> tuple[Decision, float]:
        self.seen.append(view)
        if view.now_s in self.script and view.now_s > state:
            roles = self.script[view.now_s]
            actions: list[Action] = [SetRole(node=n, role=role, reason=BECAUSE) for n, role in roles.items()]
            return Decision(actions=tuple(actions)), view.now_s
        return Decision(actions=tuple(fitting(view.pending, view.idle_nodes))), state


def run(work: Workload, policy: Any) -> Result:
    return simulate(work, policy, options=Options())


def outcomes(work: Workload, policy: Any) -> list[Outcome]:
    """What became of the roles."""
    assert work.machine is not None
    engine = Engine(work, policy, work.machine, Options(snapshots=True, node_ids=True))
    header, *records = recorded(engine)
    assert isinstance(header, Header)
    assert replay(Trace("simulated", header, tuple(records)), Casting(policy.script)).ok
    found = [record.outcome for record in records if isinstance(record, Done)]
    return [one for one in found if isinstance(one.action, SetRole)]


@pytest.mark.parametrize("policy", ["fcfs", "easy", "pwma-fpsma", "equipartition"])
def test_jobs_get_compute_nodes_alone(policy: str) -> None:
    jobs = [rigid(f"j{i}", 2, 10.0) for i in range(6)]
    result = simulate(
        workload(*jobs, nodes=8, roles={"staging": 1, "reserve": 1}), policy, options=Options(node_ids=True)
    )
    # 6 of 8 nodes, so 3 jobs at a time
    assert max(one.end_s or 0.0 for one in result.runs) == 20.0
    assert {node for node, *_ in result.node_log} == set(range(6))


def test_the_nodes_with_the_highest_numbers_have_the_roles() -> None:
    policy = Casting({})
    run(workload(rigid("a", 1, 1.0), nodes=5, roles={"staging": 2, "reserve": 1}), policy)
    view = policy.seen[0]
    assert [node.role for node in view.nodes] == ["compute", "compute", "reserve", "staging", "staging"]
    assert (view.pool_nodes, view.idle_nodes, view.of_role("staging")) == (2, 2, 2)


def test_a_node_that_comes_to_compute_is_handed_out_at_once() -> None:
    policy = Casting({5.0: {"n3": "compute"}})
    jobs = (rigid("a", 3, 10.0), rigid("b", 1, 10.0, 5.0))
    result = run(workload(*jobs, nodes=4, roles={"reserve": 1}), policy)
    assert result.runs[1].start_s == 5.0
    assert [view.trigger for view in policy.seen if view.now_s == 5.0] == ["submit", "node-added"]


def test_a_node_that_stops_computing_is_handed_out_no_more() -> None:
    jobs = (rigid("a", 1, 10.0), rigid("b", 3, 10.0, 5.0))
    result = run(workload(*jobs, nodes=4, roles={}), Casting({5.0: {"n3": "staging"}}))
    assert result.runs[1].start_s == 10.0


@pytest.mark.parametrize(
    ("script", "roles", "code", "words"),
    [
        ({"n0": "staging"}, {}, ReasonCode.WRONG_STATE, "a holds node n0; shrink it first"),
        ({"n12": "staging"}, {}, ReasonCode.NODES_GONE, "there is no node 'n12' for the role 'staging'"),
        ({"n03": "staging"}, {}, ReasonCode.NODES_GONE, "there is no node 'n03'"),
        ({"n3": "kitchen"}, {}, ReasonCode.NODES_GONE, "there is no node 'n3' for the role 'kitchen'"),
        ({"n3": "staging"}, None, ReasonCode.UNSUPPORTED, "have no roles"),
    ],
)
def test_what_cannot_be_is_refused_with_the_words_of_a_live_cluster(
    script: dict[str, str], roles: Any, code: ReasonCode, words: str
) -> None:
    work = workload(rigid("a", 2, 10.0), rigid("b", 1, 1.0, 5.0), nodes=12, roles=roles)
    (found,) = outcomes(work, Casting({5.0: script}))
    assert (found.result, found.reason.code) == ("refused", code)
    assert words in found.reason.text
    assert [one.reason for one in run(work, Casting({5.0: script})).refusals] == [found.reason.text]


def test_a_role_that_a_node_has_already_is_no_news() -> None:
    policy = Casting({5.0: {"n3": "compute"}})
    jobs = (rigid("a", 2, 10.0), rigid("b", 4, 1.0, 5.0))
    run(workload(*jobs, nodes=4, roles={}), policy)
    assert [view.trigger for view in policy.seen if view.now_s == 5.0] == ["submit"]


def test_an_idle_node_that_a_round_has_set_aside_keeps_its_role() -> None:
    class Rearranging(Casting):
        def decide(self, view: ClusterSnapshot, state: float) -> tuple[Decision, float]:
            if view.now_s == 30.0:
                return super().decide(view, state)
            actions: list[Action] = []
            for job in view.pending if view.now_s <= 10.0 else ():
                actions.append(Start(job=job.id, nodes=job.start_nodes or 0, reason=BECAUSE))
                if job.id == "b":
                    actions.append(Shrink(job="a", nodes=2, reason=BECAUSE))
            return Decision(actions=tuple(actions)), state

    # a gives up two of its four nodes for 100 s, for which the four idle ones are set aside
    jobs = (malleable("a", 4, 2, 4, 500.0), rigid("b", 6, 10.0, 10.0), rigid("c", 8, 10.0, 30.0))
    work = workload(*jobs, nodes=8, roles={}, adaptation=AdaptationCost(shrink_base_s=100.0))
    refused = run(work, Rearranging({30.0: {"n7": "staging"}})).refusals
    assert [one.reason for one in refused] == ["node n7 is changing hands; ask again"]


def test_a_node_that_goes_and_comes_anew_computes() -> None:
    class Asking(Casting):
        def decide(self, view: ClusterSnapshot, state: float) -> tuple[Decision, float]:
            decision, state = super().decide(view, state)
            request = RequestNodes(nodes=4, reason=BECAUSE)
            return Decision(actions=(request, *decision.actions)), state

    policy = Asking({})
    pool = Pool(initial_nodes=4, wait_s=5.0, initial_walltimes_s=(None, None, None, 10.0))
    run(workload(rigid("a", 3, 30.0), nodes=4, roles={"reserve": 1}, pool=pool), policy)
    assert [node.role for node in policy.seen[0].nodes] == ["compute"] * 3 + ["reserve"]
    assert [node.role for node in policy.seen[-1].nodes] == ["compute"] * 4


def test_the_last_compute_node_stays_one() -> None:
    work = workload(rigid("a", 1, 10.0), nodes=2, roles={})
    found = outcomes(work, Casting({0.0: {"n0": "reserve", "n1": "reserve"}}))
    assert [one.result for one in found] == ["done", "refused"]
    assert found[1].reason.text == "node n1 is the last one for computing"


def test_a_node_that_is_down_keeps_its_role_and_cannot_get_another() -> None:
    failures = Failures(listed=(NodeFailure(t_s=2.0, node=3, downtime_s=6.0),))
    jobs = (rigid("a", 3, 10.0), rigid("b", 1, 10.0, 5.0), rigid("c", 1, 10.0, 9.0))
    policy = Casting({5.0: {"n3": "compute"}})
    result = run(workload(*jobs, nodes=4, roles={"reserve": 1}, failures=failures), policy)
    assert result.counts.refused == 1
    assert [one.start_s for one in result.runs] == [0.0, 10.0, 10.0]
    assert policy.seen[-1].of_role("reserve") == 1


def test_a_node_of_another_role_is_not_given_back_and_one_that_comes_anew_computes() -> None:
    class Back(Casting):
        def decide(self, view: ClusterSnapshot, state: float) -> tuple[Decision, float]:
            decision, state = super().decide(view, state)
            release = ReleaseNodes(nodes=1, reason=BECAUSE)
            return Decision(actions=(release, *decision.actions)), state

    policy = Back({})
    work = workload(rigid("a", 1, 9.0), nodes=4, roles={"reserve": 2}, pool=Pool(initial_nodes=4))
    result = run(work, policy)
    assert result.pool == ((0.0, 3),)
    assert policy.seen[-1].of_role("reserve") == 2


NODES = st.sampled_from([f"n{i}" for i in range(9)])
SCRIPTS = st.dictionaries(
    st.integers(0, 40).map(float),
    st.dictionaries(NODES, st.sampled_from(ROLES), min_size=1, max_size=4),
    max_size=8,
)


@examples(60)
@given(mixed_workloads(), SCRIPTS, st.integers(0, 5), st.booleans())
def test_nodes_add_up_whatever_they_play(
    work: Workload, script: dict[float, dict[str, str]], staging: int, coming: bool
) -> None:
    machine = Machine(
        nodes=8,
        roles={"staging": staging},
        failures=Failures(node_mtbf_s=200.0, downtime_s=3.0),
        pool=Pool(initial_nodes=7, initial_walltimes_s=(30.0, None, 12.0, 5.0)) if coming else None,
    )
    engine = Engine(work, Casting(script), machine, Options(node_ids=True))
    with soon_given_up():
        for _ in engine.moments():
            nodes = engine.nodes
            up = [node for node in range(8) if nodes.state(node) in ("idle", "busy")]
            assert nodes.aside == sum(node in nodes.roles for node in up)
            assert list(nodes.free_ids()) == [
                node for node in up if node not in nodes.roles and nodes.holder[node] is None
            ]
            assert nodes.free == len(list(nodes.free_ids()))
            assert not any(node in nodes.roles for active in engine.world.active.values()
                           for node in active.node_ids)  # fmt: skip
