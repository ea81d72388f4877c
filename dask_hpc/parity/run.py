"""The same workload live and simulated, under the same policy, and whether both did the same.

Rules of the file: nothing is tried again and nothing is left out. Both sides get the same jobs on the same
scale of time, policies of the same class with the same parameters, the same tick and the same lock; what the
live side adds is real: a scheduler, workers, tasks, messages and their delays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from distributed import Client

from dask_hpc.parity.compare import (
    GAP_TASKS,
    MAKESPAN_TOLERANCE,
    Change,
    Comparison,
    action_of,
    close_events,
    compare,
    makespan_s,
    shifted,
)
from dask_hpc.parity.live import play, prepared
from dask_hpc.parity.tasks import plan
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.listening import Listener
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.machine import Machine, Options
from dask_hpc.sim.model.workload import Workload, fitted
from dask_hpc_policies import registry
from dask_hpc_policies.model import Lock
from dask_hpc_policies.protocol import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Both runs and how they compare."""

    workload: str
    #: `registry.spec_of` the policy of both.
    policy: Mapping[str, Any]
    nodes: int
    task_length_s: float
    tasks: int
    tick_s: float
    lock: Lock
    simulated: tuple[Change, ...]
    #: On the clock of the simulated run: the first arrival is at the same time.
    live: tuple[Change, ...]
    comparison: Comparison
    simulated_makespan_s: float
    live_makespan_s: float
    #: By which share the tasks took longer than they should: what a busy machine costs, without Dask.
    overrun: float

    @property
    def ratio(self) -> float:
        """Live makespan over the simulated one."""
        return self.live_makespan_s / self.simulated_makespan_s

    @property
    def within_tolerance(self) -> bool:
        """Whether the makespans differ by no more than `MAKESPAN_TOLERANCE`."""
        return abs(self.ratio - 1.0) <= MAKESPAN_TOLERANCE

    @property
    def holds(self) -> bool:
        """Whether both runs did the same, in makespans within tolerance."""
        return self.comparison.same and self.within_tolerance

    @property
    def close(self) -> tuple[Change, Change] | None:
        """Events whose order is open and that may be why the runs differ; see `close_events`."""
        return close_events(self.simulated, self.comparison, GAP_TASKS * self.task_length_s)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON data."""
        comparison = self.comparison
        return {
            "schema": 1,
            "kind": "parity",
            "workload": self.workload,
            "policy": dict(self.policy),
            "nodes": self.nodes,
            "task_length_s": self.task_length_s,
            "tasks": self.tasks,
            "tick_s": self.tick_s,
            "lock": self.lock,
            "gap_s": GAP_TASKS * self.task_length_s,
            "holds": self.holds,
            "same_sequence": comparison.same,
            "changes": len(self.simulated),
            "pairs": comparison.pairs,
            "ordered_pairs": comparison.ordered_pairs,
            "simulated_makespan_s": self.simulated_makespan_s,
            "live_makespan_s": self.live_makespan_s,
            "makespan_ratio": self.ratio,
            "task_overrun": self.overrun,
            "latest_s": comparison.latest_s,
            "earliest_s": comparison.earliest_s,
            "missing": [asdict(change) for change in comparison.missing],
            "extra": [asdict(change) for change in comparison.extra],
            "swaps": [asdict(swap) for swap in comparison.swaps],
            "close_events": None if self.close is None else [asdict(event) for event in self.close],
            "simulated": [asdict(change) for change in self.simulated],
            "live": [asdict(change) for change in self.live],
        }


def check(
    client: Client,
    workload: Workload,
    policy: Any,
    *,
    nodes: int,
    task_length_s: float,
    tick_s: float,
    lock: Lock = "system",
    patience_s: float = 0.0,
    progress: Callable[[str], None] | None = None,
) -> Parity:
    """Run `workload` on the cluster of `client` and in the simulator, and compare.

    The times of the workload are taken as they are; see `dask_hpc.parity.tasks.scaled`.

    Parameters
    ----------
    client
        Of a cluster of `nodes` workers with one thread each, on which nobody else works; its policy and
        settings are given back.
    policy
        Anything that `dask_hpc_policies.registry.create` takes.
    task_length_s
        No task is longer.
    lock
        With ``job``, live rounds overlap while the tasks of leaving nodes end. Simulated resizes take no
        time and cannot.
    patience_s
        How long to wait for workers.
    progress
        Called with a sentence now and then.

    Raises
    ------
    WorkloadError
        For a workload that cannot be made of tasks.
    ParityError
        When the cluster is not as it must be, or a live job does not end well.
    """
    workload = fitted(workload, nodes)
    plans = plan(workload, nodes, task_length_s)
    made: Policy = registry.create(policy)
    simulated = simulate(workload, made, nodes=nodes, tick_s=tick_s, lock=lock)
    expected_s = makespan_s(simulated)
    if expected_s is None or sum(change.action == "finish" for change in simulated) < len(plans):
        raise workload.wrong(f"not every job ends in the simulator under {made.name!r}")
    tell = progress or (lambda text: None)
    tasks = sum(plan.tasks for plan in plans)
    tell(f"{len(plans)} jobs, {tasks} tasks; the simulated run takes {expected_s:.1f} s")
    ready = prepared(client, made, nodes=nodes, tick_s=tick_s, lock=lock, patience_s=patience_s)
    with ready as runtime:
        live, overrun = play(client, runtime, plans, expected_s, tell)
    live_s = makespan_s(live)
    assert live_s is not None, "every job was waited for"
    live = shifted(live, simulated[0].t_s - live[0].t_s)
    return Parity(
        workload=workload.origin,
        policy=registry.spec_of(made),
        nodes=nodes,
        task_length_s=task_length_s,
        tasks=tasks,
        tick_s=tick_s,
        lock=lock,
        simulated=tuple(simulated),
        live=tuple(live),
        comparison=compare(simulated, live, GAP_TASKS * task_length_s),
        simulated_makespan_s=expected_s,
        live_makespan_s=live_s,
        overrun=overrun,
    )


# ---------------------------------------------------------------- simulated


class _Changes(Listener):
    """Notes every change of a run."""

    def __init__(self, world: World) -> None:
        self.noted: list[Change] = []
        self._world = world
        self._nodes: dict[str, int] = {}

    def job(self, active: ActiveJob, reason: str = "") -> None:
        """See `Listener`."""
        before = self._nodes.get(active.job.id)
        nodes = 0 if active.state == "pending" else active.nodes
        if before is None:
            self._note("submit", active, 0)
        elif nodes != before:
            action = action_of(before, nodes) if before else "start"
            self._note(action if nodes else "interrupt", active, nodes)

    def ended(self, active: ActiveJob, state: str) -> None:
        """See `Listener`."""
        self._note("finish", active, 0)

    def _note(self, action: str, active: ActiveJob, nodes: int) -> None:
        id = active.job.id
        self.noted.append(Change(self._world.now_s, action, id, self._nodes.get(id, 0), nodes))
        self._nodes[id] = nodes


def simulate(workload: Workload, policy: Policy, *, nodes: int, tick_s: float, lock: Lock) -> list[Change]:
    """What the simulator does with `workload`, asked with snapshots and ticks as a live policy is."""
    options = Options(tick_s=tick_s, lock=lock, snapshots=True)
    engine = Engine(workload, policy, Machine(nodes=nodes), options)
    engine.world.listener = changes = _Changes(engine.world)
    engine.run()
    return changes.noted
