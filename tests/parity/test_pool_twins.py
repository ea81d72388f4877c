"""A policy that asks for nodes, gives them back and changes roles decides the same live and simulated.

The pool grows by request; an idle node is kept back as a reserve, another one switched off; the walltime of a
node ends under a job, and the node is replaced; the reserve computes again when it is wanted.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import dask
from distributed import Client
from outside import until, workers

import dask_hpc
from dask_hpc.agent import Agent
from dask_hpc.config import settings
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.machine import Machine, Options
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.workload import Workload
from dask_hpc.trace.files import parse_trace
from dask_hpc.trace.records import Pass
from dask_hpc_policies.decision import (
    Decision,
    Reason,
    ReasonCode,
    ReleaseNodes,
    RequestNodes,
    SetRole,
    Start,
)
from dask_hpc_policies.model import COMPUTE, ClusterSnapshot

WHY = Reason(ReasonCode.DEMAND, "the pool follows the jobs")
RESERVE = "reserve"


@dataclass(frozen=True)
class Keeper:
    """Starts the job that came first when it fits; has as many nodes as jobs have, and one in reserve."""

    name: str = "keeper"

    def initial_state(self) -> tuple[int, int]:
        """Nodes that were asked for last (0: none yet), and those that there were."""
        return 0, 0

    def decide(self, view: ClusterSnapshot, state: tuple[int, int]) -> tuple[Decision, tuple[int, int]]:
        """See the class."""
        asked, before = state
        actions: list[Any] = []
        pending = [job for job in view.pending if not job.is_default]
        held = sum(job.nodes for job in view.jobs if not job.is_default)
        idle = [node.id for node in view.nodes if (node.role, node.job, node.state) == (COMPUTE, None, "up")]
        kept = [node.id for node in view.nodes if node.role == RESERVE]
        there, wanted = view.pool_nodes, asked
        if pending:
            need = pending[0].start_nodes or pending[0].min_nodes
            if need <= view.idle_nodes:
                start = Start(job=pending[0].id, nodes=need, reason=WHY)
                return Decision(actions=(start,)), (asked, there)
            actions += [SetRole(node=id, role=COMPUTE, reason=WHY) for id in kept]
            wanted = max(asked, held + need)
        elif idle and held:
            if len(idle) > 1 and not kept:
                actions.append(SetRole(node=idle[-1], role=RESERVE, reason=WHY))
            wanted = held
        if wanted > asked or there < min(asked, before):  # a node that was there has gone
            actions.append(RequestNodes(nodes=wanted, reason=WHY))
        elif wanted < asked:
            actions.append(ReleaseNodes(nodes=wanted, reason=WHY))
        return Decision(actions=tuple(actions)), (wanted, there)


#: What it decides: kind, job, and the size or role. Which of two idle nodes is the reserve is open: live,
#: either may have come first.
EXPECTED = [
    ("start", "a", 2),
    ("request-nodes", None, 4),
    ("start", "b", 2),
    ("set-role", None, RESERVE),
    ("release-nodes", None, 2),
    ("request-nodes", None, 2),  # the walltime of a node of a's has ended
    ("release-nodes", None, 1),
    ("set-role", None, COMPUTE),
    ("request-nodes", None, 3),
    ("start", "d", 2),
]


def decided(records: Any) -> list[tuple[str, str | None, Any]]:
    """The actions of all passes in their order, with names that do not depend on who runs them."""
    found: list[tuple[str, str | None, Any]] = []
    for one in records:
        for action in one.decision.actions if isinstance(one, Pass) else ():
            job = getattr(action, "job", None)
            size = getattr(action, "nodes", getattr(action, "role", None))
            found.append((action.TAG, None if job is None else job.partition("-")[0], size))
    return found[: len(EXPECTED)]


def simulated() -> list[tuple[str, str | None, Any]]:
    """The run in the simulator: nodes take 0.7 s to come, and the walltime of the first ends after 6 s."""
    common = {"kind": "rigid", "runtime_s": 2.0, "start_nodes": 2, "min_nodes": 2, "max_nodes": 2}
    jobs = (
        Job(id="a", submit_s=0.0, **{**common, "kind": "malleable", "min_nodes": 1, "runtime_s": 60.0}),
        Job(id="b", submit_s=1.0, **common),
        Job(id="d", submit_s=10.0, **common),
    )
    pool = Pool(initial_nodes=2, wait_s=0.5, boot_s=0.2, initial_walltimes_s=(6.0, None))
    machine = Machine(nodes=5, pool=pool, roles={})
    engine = Engine(Workload(name="twins", jobs=jobs), Keeper(), machine, Options(snapshots=True))
    return decided(recorded(engine))


async def _end_soon(nanny: Any, at_s: float) -> None:
    known = settings().updated(walltime_notice_s=0.4, walltime_margin_s=0.2)
    Agent(nanny, known).start(at_s)


def live() -> list[tuple[str, str | None, Any]]:
    """The same on worker processes, step by step as what was decided has come about."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": "1 GiB"}
    with dask.config.set({"hpc.pool.hold": "0 s", "hpc.tick": "200 ms"}), ExitStack() as stack:
        cluster = stack.enter_context(dask_hpc.LocalCluster(n_workers=2, **options))
        client = stack.enter_context(Client(cluster))
        rt = dask_hpc.install(client, Keeper())
        cluster.adapt(minimum=1, maximum=5, interval="100 ms")

        def names() -> set[str]:
            return set(workers(client))

        def so_far() -> list[tuple[str, str | None, Any]]:
            return decided(parse_trace(rt.trace()).records)

        def state(job: Any) -> str:
            return str(job.status()["state"])

        a = rt.job("a", nodes=2, min_nodes=1, max_nodes=2)
        a.activate()
        until(lambda: state(a) == "running", "a runs")
        b = rt.job("b", nodes=2)
        b.activate()
        until(lambda: state(b) == "running", "b has nodes that were asked for")
        b.close()
        until(lambda: len(names()) == 3, "what nobody needs is switched off, but for the reserve")
        cluster.sync(_end_soon, cluster.workers[0], time.time() + 0.7)
        until(lambda: len(so_far()) >= 7, "the node is replaced, and not needed")
        until(lambda: len(names()) == 2, "it is switched off")
        d = rt.job("d", nodes=2)
        d.activate()
        until(lambda: state(d) == "running", "d has the reserve and a node that was asked for")
        found = so_far()
        roles = {node["id"]: node.get("role", COMPUTE) for node in rt.status()["nodes"]}
        assert set(roles.values()) == {COMPUTE}
        d.close()
        a.close()
        return found


def test_the_simulator_decides_as_expected() -> None:
    assert simulated() == EXPECTED


def test_a_live_cluster_decides_as_the_simulator_does() -> None:
    assert live() == EXPECTED
