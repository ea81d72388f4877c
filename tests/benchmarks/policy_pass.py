"""What deciding costs: the policies alone, and all that a tick does on the scheduler's event loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from harness import Options, Row, main, percentile, row
from machine import Graph, Machine, fresh_turns, run_async, turns, until, without_gc

from dask_hpc_policies import registry
from dask_hpc_policies.jobs.constraints import CONSTRAINTS, largest_at_most, smallest_at_least
from dask_hpc_policies.model import ClusterSnapshot, Demand, JobView, NodeView

BAR_MS = 1.0
BAR_TICK_MS = 5.0
JOBS = 100
NODES = 1000


def run(options: Options) -> list[Row]:
    jobs, nodes = options.pick((JOBS, NODES), (JOBS, NODES), (10, 64))
    decisions = options.pick(200, 60, 3)
    ticks = options.pick(400, 150, 10)
    views = {
        "growing": _view(jobs, nodes, pending=0, idle=nodes // 10, need=1),
        "head fits after shrinks": _view(jobs, nodes, pending=jobs // 2, idle=3, need=nodes * 6 // 10),
        "head waits in vain": _view(jobs, nodes, pending=jobs // 2, idle=3, need=nodes),
        "many start": _view(jobs, nodes, pending=jobs * 9 // 10, idle=nodes // 2, need=3),
    }
    rows = []
    for name in registry.BUILTIN:
        policy = registry.create(name)
        medians = {label: _decide_ms(policy, view, decisions) for label, view in views.items()}
        worst = max(medians, key=lambda label: sorted(medians[label])[decisions // 2])
        note = f"slowest of {len(views)} pictures: {worst}"
        rows.append(row(f"decide: {name}", medians[worst], "ms", bar=BAR_MS, note=note))
    rows.sort(key=lambda r: -r.value)
    for name in options.pick(registry.BUILTIN, ("pwma-fpsma",), ("pwma-fpsma",)):
        rows += _tick_rows(name, *run_async(_ticks(name, jobs, nodes, ticks)))
    return rows


def _decide_ms(policy: registry.Policy, view: ClusterSnapshot, decisions: int) -> list[float]:
    state = policy.initial_state()
    policy.decide(view, state)
    samples = []
    with without_gc():
        for _ in range(decisions):
            began_s = time.thread_time()
            policy.decide(view, state)
            samples.append((time.thread_time() - began_s) * 1e3)
    return samples


def _view(jobs: int, nodes: int, *, pending: int, idle: int, need: int) -> ClusterSnapshot:
    """`pending` jobs wait for `need` nodes each; the others hold all but `idle` nodes."""
    running = jobs - pending
    views = []
    for i in range(running):
        constraint = CONSTRAINTS[i % len(CONSTRAINTS)]
        low = smallest_at_least(constraint, 1, nodes) or 1
        views.append(
            JobView(
                id=f"running-{i}",
                state="running",
                nodes=largest_at_most(constraint, max(low, (nodes - idle) // running), low) or low,
                min_nodes=low,
                max_nodes=nodes,
                constraint=constraint,
                submit_s=float(i),
                start_s=float(i * 7 % 100),
                remaining_s=500.0 + i,
                io_intensity=(i * 37 % 100) / 100,
                mtct=(i * 37 % 100) / 50,
            )
        )
    views += [
        JobView(
            id=f"pending-{i}",
            min_nodes=need,
            max_nodes=nodes,
            submit_s=200.0 + i,
            io_intensity=(i * 61 % 100) / 100,
        )
        for i in range(pending)
    ]
    return ClusterSnapshot(
        now_s=1000.0,
        trigger="tick",
        nodes=tuple(NodeView(id=f"n{i}") for i in range(nodes)),
        jobs=tuple(views),
        idle_nodes=nodes - sum(view.nodes for view in views),
        demand=Demand(occupancy_s=1e5, ready_tasks=10 * nodes, processing_tasks=nodes),
    )


@dataclass(frozen=True)
class Tick:
    """CPU milliseconds on the loop that one tick set off."""

    #: The longest turn of the loop: one pass with all it enacts at once.
    longest: float
    #: All turns, those of the passes included that the end of a round asks for.
    total: float
    passes: int


def _tick_rows(policy: str, first: list[Tick], quiet: list[Tick], busy: list[Tick]) -> list[Row]:
    rows = []
    for text, ticks, bar in (
        ("all jobs new", first, None),
        ("nothing new", quiet, BAR_TICK_MS),
        ("a job ended, another came", busy, BAR_TICK_MS),
    ):
        p99 = percentile([tick.longest for tick in ticks], 0.99)
        total = percentile([tick.total for tick in ticks], 0.99)
        rows.append(
            Row(
                name=f"tick, {policy}, {text}: p99",
                value=p99,
                unit="ms",
                low=percentile([tick.longest for tick in ticks], 0.25),
                high=percentile([tick.longest for tick in ticks], 0.75),
                bar=bar,
                note=f"of {len(ticks)} ticks; up to {max(tick.passes for tick in ticks)} passes a tick, "
                f"their sum p99 {total:.2f} ms",
            )
        )
    return rows


async def _ticks(policy: str, jobs: int, nodes: int, ticks: int) -> tuple[list[Tick], list[Tick], list[Tick]]:
    """Ticks until all new jobs settle, with nothing new, and after a job took another's place."""
    async with Machine(nodes, 1) as machine:
        # no ticks and sweeps but those that are measured
        engine = machine.install(policy, tick_s=3600.0, sweep_s=10.0)
        # nothing starts before all jobs are there
        early = await machine.open_job("early", nodes=1)
        engine.controller.enabled = False
        records = []
        for i in range(jobs - 1):
            constraint = CONSTRAINTS[i % len(CONSTRAINTS)]
            # about a third of the jobs find no room
            low = smallest_at_least(constraint, 3 * nodes // (2 * jobs), nodes)
            records.append(await machine.queue_job(f"job-{i}", min_nodes=low, constraint=constraint))
        waits = await machine.queue_job("waits", min_nodes=nodes, priority=-1, exclusive=True)
        await machine.submit(Graph("roots", 10 * nodes, "held"), waits)
        await machine.end_job(early)
        await _settled(machine)
        first, quiet, busy = [], [], []
        with without_gc():
            engine.controller.enabled = True
            while not first or first[-1].passes > 1:
                first.append(await _tick(machine))
            assert {job.state for job in records} >= {"running", "pending"}
            assert waits.state == "pending"
            assert waits.held == 10 * nodes
            for i in range(ticks):
                quiet.append(await _tick(machine))
                engine.controller.enabled = False
                ended = next(job for job in records if job.state == "running")
                await machine.end_job(ended)
                records.remove(ended)
                low, constraint = ended.spec.min_nodes, ended.spec.constraint
                records.append(await machine.queue_job(f"later-{i}", min_nodes=low, constraint=constraint))
                await _settled(machine)
                engine.controller.enabled = True
                busy.append(await _tick(machine))
                while (await _tick(machine)).passes > 1:
                    pass
        return first, quiet, busy


async def _tick(machine: Machine) -> Tick:
    await fresh_turns()
    passes = len(machine.engine.controller.pass_s)
    machine.engine._tick()
    await _settled(machine)
    took = [turn_s * 1e3 for turn_s in turns()]
    return Tick(max(took), sum(took), len(machine.engine.controller.pass_s) - passes)


async def _settled(machine: Machine) -> None:
    """Until no round is under way and nothing waits for its turn."""
    for _ in range(3):
        await asyncio.sleep(0)
    await until(lambda: not machine.engine.rounds.active, "the end of the rounds")
    for _ in range(3):
        await asyncio.sleep(0)


if __name__ == "__main__":
    main("policy_pass", f"Cost of deciding with {JOBS} jobs on {NODES} nodes: CPU milliseconds", run)
