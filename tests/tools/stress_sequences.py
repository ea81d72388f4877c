"""Runs one random sequence on a real cluster to its end, and checks everything that must hold."""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import stress_invariants as invariants
from distributed import CancelledError
from stress_cluster import LATE_FOR_SHUFFLE, cluster
from stress_graphs import Goal, TaskFailedOnPurpose
from stress_operations import OPERATIONS, Report, Run, leave
from stress_plans import Sequence

import dask_hpc
from dask_hpc import wire
from dask_hpc.errors import DaskHPCError
from dask_hpc.trace.records import Pass, Result, encode_line
from dask_hpc_policies.model import COMPUTE

#: How long everything may take to end once all workers are back and all jobs are closed.
DRAIN_S = 40.0
#: What a sequence may take at most; one takes some seconds.
LIMIT_S = 300.0


async def run_sequence(sequence: Sequence) -> Report:
    """Run one sequence to its end and check everything."""
    report = Report(sequence.seed)
    began_s = time.monotonic()
    async with cluster(
        sequence.workers, sequence.nthreads, stealing=sequence.stealing, saturation=sequence.saturation
    ) as made:
        made.late_s, made.rng = sequence.late_s, random.Random(sequence.seed)
        originals = dict(made.scheduler.stream_handlers)
        runtime = await dask_hpc.install(
            made.client,
            policy=sequence.policy,
            tick_s=0.05,
            sweep_s=0.02,
            trace_keep=1_000_000,
            decisions_keep=1_000_000,
            **sequence.settings,
        )
        run = Run(made, runtime, report)
        made.executions.engine = run.engine
        for number, operation in enumerate(sequence.operations):
            said = await OPERATIONS[operation.name][0](run, random.Random(operation.seed), sequence)
            report.log.append(f"{number} {operation.name} {said}")
            report.counts["operations"] += 1
            report.counts["operations with lending on"] += sequence.settings["lend_s"] > 0
            run.check(f"after {number} {operation.name}")
            await asyncio.sleep(operation.pause_s)
            run.check(f"later than {number} {operation.name}")
        await _drain(run, sequence)
        await _finish(run, sequence, originals)
        may = LATE_FOR_SHUFFLE if run.gave_up_shuffles else "nothing of the kind"
        report.faults += [fault for fault in made.faults if may not in fault]
    report.duration_s = time.monotonic() - began_s
    return report


async def _until(run: Run, what: str, done: Callable[[], bool], seconds: float = DRAIN_S) -> bool:
    """Poll until `done`, checking what must hold meanwhile; a fault when it never comes."""
    deadline_s = time.monotonic() + seconds
    while not done():
        run.check(what)
        if time.monotonic() > deadline_s or len(run.report.faults) > 20:
            run.report.faults.append(f"{what}: has not come about in {seconds:g} s")
            return False
        await asyncio.sleep(0.02)
    return True


async def _drain(run: Run, sequence: Sequence) -> None:
    """Bring every worker back, close every job, and wait for all that was asked for."""
    if sequence.uninstalls:
        await asyncio.wait_for(run.runtime.uninstall(), DRAIN_S)
        run.report.log.append("uninstalled")
    for name in run.cluster.workers:
        run.cluster.pause(name, False)
    for name in run.cluster.missing:
        await run.cluster.start(name)
    if not sequence.uninstalls:
        await _all_compute(run)
    while run.jobs:
        leave(run, random.Random(0), None)
    await _release_unreachable(run)
    await _until(run, "contexts and resizes end", lambda: all(task.done() for task in run.background))
    for task in run.background:
        if task.done():
            if task.exception() is not None and not isinstance(task.exception(), (DaskHPCError, ValueError)):
                run.report.faults.append(f"a request failed: {task.exception()!r}")
        else:
            task.cancel()
    if not await _until(run, "all results are there", lambda: all(goal.future.done() for goal in run.goals)):
        stuck = [goal.future.key for goal in run.goals if not goal.future.done()]
        run.report.counts["stuck tasks"] += len(stuck)
        reasons = Counter(_story(run, key) for key in stuck)
        run.report.faults += [f"{count} results stuck: {reason}" for reason, count in reasons.most_common(5)]


async def _all_compute(run: Run) -> None:
    """Give every node back to jobs and plain work."""
    state = run.engine.state
    if run.role_changes:
        await asyncio.wait(run.role_changes, timeout=DRAIN_S)
    deadline_s = time.monotonic() + DRAIN_S
    while others := [name for name, role in state.roles.items() if role != COMPUTE]:
        for name in others:
            if name in state.nodes.nodes:
                await run.runtime.set_role(name, COMPUTE)
            else:
                state.roles[name] = COMPUTE
        await asyncio.sleep(0.02)
        if time.monotonic() > deadline_s:
            run.report.faults.append(f"these cannot compute again: {others}")
            return


async def _release_unreachable(run: Run) -> None:
    """Give up what the user tied to a worker that will not be back (its address has changed).

    Stock never looks again for a worker for such a task, not even when others are allowed.
    """
    scheduler = run.cluster.scheduler
    tied = {
        ts.key
        for ts in scheduler.tasks.values()
        if type(ts.worker_restrictions) is set
        and not ts.worker_restrictions & set(scheduler.workers)
        and "shuffle_original_restrictions" not in (ts.annotations or {})
    }
    hopeless = {ts.key for key in tied for ts in _with_dependents(scheduler.tasks[key])}
    gone = [goal for goal in run.goals if goal.future.key in hopeless]
    run.goals = [goal for goal in run.goals if goal.future.key not in hopeless]
    for goal in gone:
        goal.future.release()


def _with_dependents(ts: Any) -> set[Any]:
    found, todo = {ts}, [ts]
    while todo:
        for dependent in todo.pop().dependents - found:
            found.add(dependent)
            todo.append(dependent)
    return found


def _story(run: Run, key: Any) -> str:
    """What is known about a task that does not end, down to the dependency that it waits for."""
    ts = run.cluster.scheduler.tasks.get(key)
    while ts is not None and ts.waiting_on:
        ts = next(iter(ts.waiting_on))
    if ts is None:
        return f"{key!r} is not known to the scheduler"
    if ts.processing_on is None:
        where = "on no worker"
    else:
        name = str(ts.processing_on.name)
        there = run.cluster.workers[name].state.tasks.get(ts.key) if name in run.cluster.workers else None
        where = f"on {name} ({ts.processing_on.status.name}, there {there and there.state})"
    lane = run.engine.state.owner.get(ts.key)
    return f"{ts.key!r} is {ts.state} {where}, {lane}, bound to {ts.worker_restrictions!r}"


async def _finish(run: Run, sequence: Sequence, originals: dict[str, Any]) -> None:
    """Check results, sleep, trace and starts."""
    report, made = run.report, run.cluster
    for goal in run.goals:
        if goal.future.done():
            report.faults += await _judge(goal, sequence)
    await _until(
        run, "the runtime sleeps", lambda: not run.engine.awake and not run.engine._lock.locked(), 5.0
    )
    originals = {name: handler for name, handler in originals.items() if name != wire.CLOSE}
    report.faults += invariants.asleep(made.scheduler, run.engine, originals)
    made.scheduler.validate_state()
    report.faults += invariants.feed(run.engine.controller.decisions)
    records = (run.engine.tracing.header(), *run.engine.state.records)
    report.faults += invariants.trace([encode_line(record) for record in records])
    report.counts["passes"] = sum(isinstance(record, Pass) for record in records)
    report.counts["rounds that shrink and grow"] = sum(map(invariants.mixed, records))
    for record in run.engine.state.records:
        if isinstance(record, Result) and record.outcome.action.TAG in ("expand", "shrink"):
            report.counts[f"resizes {record.outcome.result}"] += 1
    report.faults += made.executions.drains(run.engine.state.records, report.counts, report.longest_s)
    report.counts["tasks"] = len(made.starts.by_key)
    report.counts["starts"] = made.starts.by_key.total()
    report.counts["recalled by a shrink"] = made.starts.recalled
    report.counts["double starts by a shrink"] = len(made.starts.recalled_after_start)
    report.faults += [
        f"{key!r} was started and then placed anew by a shrink" for key in made.starts.recalled_after_start
    ]
    if sequence.calm:
        twice = {key: count for key, count in made.starts.by_key.items() if count > 1}
        report.faults += [f"{key!r} was started {count} times" for key, count in twice.items()]
        report.faults += [
            f"{goal.future.key!r} was never started"
            for goal in run.goals
            if not made.starts.by_key[goal.future.key]
        ]


async def _judge(goal: Goal, sequence: Sequence) -> list[str]:
    """A result is right, cancelled by the sequence, or the failure that was planned."""
    try:
        value = await asyncio.wait_for(goal.future.result(), DRAIN_S)
    except TaskFailedOnPurpose:
        return [] if goal.fails else [f"{goal.future.key!r} failed like another task"]
    except CancelledError:
        may = not sequence.calm
        return [] if may else [f"{goal.future.key!r} was cancelled, and nobody asked for it"]
    except Exception as error:
        return [f"{goal.future.key!r} raised {error!r}"]
    if goal.fails or not np.array_equal(value, goal.value):
        return [f"{goal.future.key!r} gave {value!r}, should be {goal.value!r}"]
    return []


def run(sequence: Sequence) -> Report:
    """Run one sequence on an event loop of its own; one that does not end has that as its fault."""
    with suppress(asyncio.CancelledError):
        return asyncio.run(_within_limit(sequence))
    raise RuntimeError(f"sequence {sequence.seed} was cancelled")


async def _within_limit(sequence: Sequence) -> Report:
    running = asyncio.ensure_future(run_sequence(sequence))
    await asyncio.wait([running], timeout=LIMIT_S)
    if running.done():
        return running.result()
    where = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(limit=4, file=where)
    running.cancel()
    return Report(sequence.seed, faults=[f"has not ended after {LIMIT_S:g} s:\n{where.getvalue()}"])
