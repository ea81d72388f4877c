"""What nodes draw, in each state and in all, in the simulator."""

from __future__ import annotations

from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import (
    BECAUSE,
    Scripted,
    application,
    every,
    failures,
    fitting,
    level,
    malleable,
    mixed_workloads,
    rigid,
    soon_given_up,
    workload,
)

from dask_hpc.errors import SimulationError, WorkloadError
from dask_hpc.sim import Machine, Options, Result, Workload, simulate
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.model.job import Compute, Transfer
from dask_hpc.sim.model.machine import AdaptationCost, Failures, NodeFailure
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.power import STATES, NodePower
from dask_hpc_policies.decision import Action, Decision, ReleaseNodes, RequestNodes, SetRole, Shrink
from dask_hpc_policies.model import ROLES, ClusterSnapshot

POWER = NodePower(off_w=5.0, booting_w=150.0, idle_w=100.0, busy_w=300.0, down_w=20.0)


class Erratic:
    """Asks, gives back, casts and shrinks as a list of numbers says, and starts what fits."""

    name = "erratic"

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.params: dict[str, Any] = {}

    def initial_state(self) -> int:
        return 0

    def decide(self, view: ClusterSnapshot, state: int) -> tuple[Decision, int]:
        actions: list[Action] = []
        if state < len(self.numbers):
            number = self.numbers[state]
            kind = (RequestNodes, ReleaseNodes, SetRole, Shrink, None)[number % 5]
            number //= 5
            if kind in (RequestNodes, ReleaseNodes):
                actions.append(kind(nodes=number % 10, reason=BECAUSE))  # type: ignore[operator]
            elif kind is SetRole:
                actions.append(SetRole(node=f"n{number % 8}", role=ROLES[number % 3], reason=BECAUSE))
            elif kind is Shrink:
                actions += [
                    Shrink(job=job.id, nodes=job.min_nodes, reason=BECAUSE) for job in view.running[:1]
                ]
        return Decision(actions=(*actions, *fitting(view.pending, view.idle_nodes))), state + 1


class Asks(Erratic):
    """Asks for eight nodes each time, and starts what fits."""

    def decide(self, view: ClusterSnapshot, state: int) -> tuple[Decision, int]:
        decision, state = super().decide(view, state)
        return Decision(actions=(RequestNodes(nodes=8, reason=BECAUSE), *decision.actions)), state


def used(work: Workload, policy: Any = "fcfs", **machine: Any) -> Result:
    given = Machine(nodes=machine.pop("nodes", 4), power=POWER, **machine)
    return simulate(work, policy, machine=given, options=Options())


def by_state(result: Result) -> dict[str, float]:
    assert result.energy is not None
    return {state: spent for state, spent in result.energy.by_state_node_s.items() if spent}


def test_busy_and_idle_nodes_by_hand() -> None:
    result = used(workload(rigid("a", 3, 10.0), rigid("b", 2, 5.0, 4.0), nodes=4))
    # a: 3 nodes from 0 to 10 s, b: 2 nodes from 10 to 15 s, on 4 nodes for 15 s
    assert by_state(result) == {"busy": 40.0, "idle": 20.0}
    found = result.metrics()
    assert found["energy_j"] == 40 * 300 + 20 * 100
    assert (found["energy_busy_j"], found["energy_idle_j"], found["energy_off_j"]) == (12000.0, 2000.0, 0.0)
    assert result.to_json()["energy"]["energy_j"] == found["energy_j"]


def test_what_a_failure_takes_of_transfers_counts_as_recovery_alone() -> None:
    # four nodes send for 20 s and compute for 1 s; the host fails at 19 s, and all begins anew
    job = application("a", 4, Transfer(size_bytes=200e9), Compute(work=4.0))
    result = used(workload(job), file_system_bytes_s=10e9, failures=failures((19.0, "host")))
    assert result.energy is not None
    assert result.energy.of_busy_j == pytest.approx(
        {"compute": 4 * 300, "communicate": 80 * 300, "recovery": 76 * 300}
    )


def test_a_node_that_is_down_by_hand() -> None:
    listed = Failures(listed=(NodeFailure(t_s=4.0, node=3, downtime_s=5.0),))
    result = used(workload(rigid("a", 3, 10.0), nodes=4), failures=listed)
    assert by_state(result) == {"busy": 30.0, "idle": 5.0, "down": 5.0}
    assert result.metrics()["energy_j"] == 9000 + 500 + 100


def test_what_jobs_did_with_busy_nodes_by_hand() -> None:
    # two nodes for 117 s: three commits of 2 s, a failure at 70 s that takes 6 s of work, 5 s to read back
    job = rigid("a", 2, 100.0, checkpoints=every(30.0, level(blocking_s=2.0, restart_s=5.0)))
    result = used(workload(job), nodes=2, failures=failures((70.0, "process")))
    assert result.energy is not None
    assert result.energy.of_busy_j == pytest.approx(
        {"compute": 200 * 300, "checkpoint": 12 * 300, "restart": 10 * 300, "recovery": 12 * 300}
    )
    assert result.metrics()["energy_recovery_j"] == pytest.approx(3600)
    # a resize moves data for 5 s on the four nodes that it had
    shrunk = malleable("b", 4, 2, 4, 100.0, adaptation=AdaptationCost(shrink_base_s=5.0))
    moved = used(workload(rigid("clock", 1, 10.0), shrunk), Scripted({10.0: {"b": 2}}), nodes=5)
    assert moved.energy is not None
    assert moved.energy.of_busy_j["communicate"] == pytest.approx(5 * 4 * 300)


def test_network_cards_draw_while_in_use_and_switches_wherever_a_node_is_by_hand() -> None:
    power = NodePower(off_w=5.0, booting_w=150.0, idle_w=90.0, busy_w=290.0, nic_w=20.0, switch_w=10.0)
    # two nodes for 117 s, of which 3 x 2 s saving and 5 s reading back
    job = rigid("a", 2, 100.0, checkpoints=every(30.0, level(blocking_s=2.0, restart_s=5.0)))
    machine = Machine(nodes=3, power=power, failures=failures((70.0, "process")))
    energy = simulate(workload(job), "fcfs", machine=machine, options=Options()).energy
    assert energy is not None
    assert energy.of_busy_j == pytest.approx(
        {"compute": 200 * 300, "checkpoint": 12 * 320, "restart": 10 * 320, "recovery": 12 * 300}
    )
    assert energy.by_node_j == pytest.approx((117 * 300 + 11 * 20, 117 * 300 + 11 * 20, 117 * 100))
    # four nodes send for 20 s; a resize moves data for 5 s on the four nodes that it had
    sends = application("b", 4, Transfer(size_bytes=200e9), Compute(work=4.0))
    machine = Machine(nodes=4, power=power, file_system_bytes_s=10e9)
    sent = simulate(workload(sends), "fcfs", machine=machine, options=Options()).energy
    assert sent is not None
    assert sent.of_busy_j == pytest.approx({"compute": 4 * 300, "communicate": 80 * 320})
    shrunk = malleable("c", 4, 2, 4, 100.0, adaptation=AdaptationCost(shrink_base_s=5.0))
    work = workload(rigid("clock", 1, 10.0), shrunk)
    machine = Machine(nodes=5, power=power)
    moved = simulate(work, Scripted({10.0: {"c": 2}}), machine=machine, options=Options()).energy
    assert moved is not None
    assert moved.of_busy_j["communicate"] == pytest.approx(5 * 4 * 320)
    # a switch is there for nodes that boot, not for those that are off or waited for
    pool = Pool(initial_nodes=2, wait_s=30.0, boot_s=5.0)
    machine = Machine(nodes=10, power=power, pool=pool)
    came = simulate(workload(rigid("d", 8, 10.0), nodes=10), Asks([]), machine=machine, options=Options())
    assert came.metrics()["energy_j"] == 90 * 5 + 30 * 160 + 70 * 100 + 80 * 300


def test_off_waiting_and_booting_nodes_by_hand() -> None:
    work = workload(rigid("a", 8, 10.0), nodes=10)
    result = used(work, Asks([]), nodes=10, pool=Pool(initial_nodes=2, wait_s=30.0, boot_s=5.0))
    # 2 nodes are off all the 45 s; 6 wait for 30 s, boot for 5 s; 2 are idle for 35 s; 8 are busy for 10 s
    assert by_state(result) == {"off": 90.0, "waiting": 180.0, "booting": 30.0, "idle": 70.0, "busy": 80.0}
    assert result.metrics()["energy_j"] == 90 * 5 + 30 * 150 + 70 * 100 + 80 * 300
    assert result.metrics()["energy_waiting_j"] == 0.0


def test_a_node_of_another_role_draws_what_an_idle_one_does() -> None:
    result = used(workload(rigid("a", 3, 10.0), nodes=4), roles={"staging": 1})
    assert by_state(result) == {"busy": 30.0, "idle": 10.0}


def test_a_job_that_shrinks_by_hand() -> None:
    pool = Pool(initial_nodes=4, initial_walltimes_s=(None, None, None, 10.0), wait_s=None)
    result = used(workload(malleable("a", 4, 1, 4, 25.0), nodes=4), pool=pool)
    # 40 of 100 node-seconds are done when a node goes; the rest takes 20 s on three
    assert by_state(result) == {"busy": pytest.approx(100.0), "off": pytest.approx(20.0)}


def test_nothing_is_counted_after_the_last_job() -> None:
    failures = Failures(listed=(NodeFailure(t_s=50.0, node=3, downtime_s=5.0),))
    result = used(workload(rigid("a", 4, 10.0), nodes=4), failures=failures)
    assert by_state(result) == {"busy": 40.0}
    assert result.energy is not None
    assert (result.energy.from_s, result.energy.to_s) == (0.0, 10.0)


def test_without_power_there_is_no_energy() -> None:
    result = simulate(workload(rigid("a", 4, 10.0), nodes=4), "fcfs")
    assert result.energy is None
    assert not any("energy" in name for name in {**result.metrics(), **result.to_json()})


@pytest.mark.parametrize("policy", ["fcfs", "easy", "pwma-fpsma", "equipartition", "mebf"])
def test_metering_changes_nothing_else(policy: str) -> None:
    work = workload(malleable("a", 4, 1, 8, 50.0), rigid("b", 8, 20.0, 5.0), rigid("c", 2, 9.0, 6.0), nodes=8)
    assert used(work, policy, nodes=8).runs == simulate(work, policy).runs


@pytest.mark.parametrize("breach", ["account", "count"])
def test_a_breach_is_found(breach: str) -> None:
    work = workload(rigid("a", 3, 10.0), rigid("b", 2, 5.0, 4.0), nodes=4)
    from dask_hpc_policies.registry import create

    engine = Engine(work, create("fcfs"), Machine(nodes=4, power=POWER), Options())
    engine.run_until(4.0)
    assert engine.meter is not None
    if breach == "account":
        engine.meter._energy_j += 1.0
    else:
        engine.meter.turned(3, "down")
    words = (
        "one by one, .* together" if breach == "account" else "1 nodes are idle by their count, 0 one by one"
    )
    with pytest.raises(SimulationError, match=words):
        engine.run()


def test_a_power_that_cannot_be_is_refused() -> None:
    with pytest.raises(WorkloadError, match="busy_w is -1"):
        NodePower(busy_w=-1.0)


POOLS = st.none() | st.builds(
    Pool,
    initial_nodes=st.integers(4, 8),
    wait_s=st.sampled_from([0.0, 3.0]),
    boot_s=st.sampled_from([0.0, 2.0]),
    initial_walltimes_s=st.lists(st.sampled_from([None, 5.0, 33.0]), max_size=8).map(tuple),
)


@examples(60)
@given(mixed_workloads(), st.lists(st.integers(0, 200), max_size=20), POOLS, st.integers(0, 3), st.booleans())
def test_energy_and_node_seconds_are_conserved(
    work: Workload, numbers: list[int], pool: Pool | None, staging: int, failing: bool
) -> None:
    random = Failures(node_mtbf_s=150.0, downtime_s=4.0) if failing else Failures()
    machine = Machine(nodes=8, failures=random, pool=pool, roles={"staging": staging}, power=POWER)
    with soon_given_up():
        result = simulate(work, Erratic(numbers), machine=machine, options=Options())
    energy = result.energy
    assert energy is not None
    spent = energy.by_state_node_s
    assert energy.energy_j == pytest.approx(sum(POWER.watts(state) * spent[state] for state in STATES))
    assert sum(spent.values()) == pytest.approx(8 * (energy.to_s - energy.from_s))
    # a third account, by the jobs
    held = sum(
        nodes * (then - t_s)
        for run in result.runs
        for (t_s, nodes), (then, _) in zip(run.nodes, run.nodes[1:], strict=False)
    )
    assert spent["busy"] == pytest.approx(held)
    assert sum(energy.of_busy_j.values()) == pytest.approx(energy.by_state_j["busy"])
    assert sum(energy.by_node_j) == pytest.approx(energy.energy_j)
    assert all(used_j >= -1e-6 for used_j in energy.of_busy_j.values())


def test_a_copy_of_a_run_has_a_meter_of_its_own() -> None:
    from dask_hpc_policies.registry import create

    work = workload(rigid("a", 3, 10.0), rigid("b", 2, 5.0, 4.0), nodes=4)
    engine = Engine(work, create("fcfs"), Machine(nodes=4, power=POWER), Options())
    engine.run_until(4.0)
    other = engine.fork()
    engine.run()
    other.run()
    assert engine.energy == other.energy
    assert other.nodes.watch is other.meter is not engine.meter
