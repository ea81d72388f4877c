"""Act 3: a worker is killed without a word; what is protected is read back, not computed again."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from distributed import get_worker, wait

from dask_hpc.demo.parts import DemoRun, Row, Verdict
from dask_hpc.demo.shrinking import values
from dask_hpc.demo.stage import NODES, Stage
from dask_hpc.demo.starts import Starts
from dask_hpc.demo.walltime import can_end, fullest
from dask_hpc.errors import CheckpointError

NAME = "killed"
TITLE = f"a worker of {NODES} is killed; results and scattered data are protected by a checkpoint"
#: Results, each of two tasks of which the first is dropped, and scattered objects.
RESULTS = SCATTERED = 30
HELD = RESULTS + SCATTERED
#: What a task takes, at scale 1.
TASK_S = 0.2
_TOPIC = "demo-runs-killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What was left of everything."""

    #: Objects that were there before and cannot be had any more, and values that are not what they should be.
    lost: int
    wrong: int
    #: Runs of tasks beyond the first one of each.
    repeated: int
    #: From the end of the worker until everything could be had, or was known to be lost.
    recovery_s: float
    #: What protecting it took; None: it was not.
    commit_s: float | None
    #: Why it was not; empty: on stock Dask, or because it was.
    problem: str = ""


def field(number: int) -> np.ndarray:
    """A value of forty kilobytes that tells which one it is."""
    return np.full(5_000, float(number))


def computed(seconds: float, what: str, value: Any) -> np.ndarray:
    """A task that says that it runs: one that is read back does not."""
    get_worker().log_event(_TOPIC, what)
    time.sleep(seconds)
    return field(value) if isinstance(value, int) else value + 1


def play(stage: Stage) -> Killed | None:
    """Compute, scatter, protect, kill the worker that holds the most, ask for everything.

    None where the nodes are no processes of this machine.
    """
    if not can_end(stage):
        return None
    client = stage.client
    stage.fill()
    runs = Starts()
    client.subscribe_topic(_TOPIC, runs.see)
    try:
        with tempfile.TemporaryDirectory(prefix="dask-hpc-demo-") as store:
            compute = partial(computed, TASK_S * stage.scale)
            numbers = range(RESULTS)
            first = client.map(compute, [f"first {n}" for n in numbers], numbers, pure=False)
            results = client.map(compute, [f"second {n}" for n in numbers], first, pure=False)
            scattered = client.scatter([field(n) for n in range(SCATTERED)], hash=False)
            wait(results)
            del first
            stage.told[NAME] = "protecting"
            commit_s, problem = _protect(stage, [*results, *scattered], store)
            nanny = fullest(stage)
            stage.told[NAME] = "a worker is killed"
            begin_s = time.monotonic()
            if nanny.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(nanny.pid, signal.SIGKILL)
            stage.until_gone(nanny.worker_address)
            found = [*values(results), *values(scattered)]
            recovery_s = time.monotonic() - begin_s
            expected = [*(field(n) + 1 for n in numbers), *map(field, range(SCATTERED))]
            lost = sum(value is None for value in found)
            right = sum(
                value is not None and np.array_equal(value, known)
                for value, known in zip(found, expected, strict=True)
            )
            # what comes back now would look for a store that has gone
            client.cancel([*results, *scattered])
            return Killed(
                lost=lost,
                wrong=HELD - lost - right,
                repeated=runs.repeated(),
                recovery_s=recovery_s,
                commit_s=commit_s,
                problem=problem,
            )
    finally:
        client.unsubscribe_topic(_TOPIC)


def _protect(stage: Stage, futures: list[Any], store: str) -> tuple[float | None, str]:
    """What it took, and why it could not be done."""
    if stage.runtime is None:
        return None, ""
    begin_s = time.monotonic()
    try:
        stage.runtime.checkpoint(futures, NAME, store=store)
    except CheckpointError as error:
        return None, str(error)
    return time.monotonic() - begin_s, ""


def verdict(run: DemoRun) -> Verdict:
    """What was lost and computed again."""
    pairs = run.pairs(NAME)
    if any(one is None for pair in pairs for one in pair):
        return Verdict(unpaid=["no worker was killed: the nodes are no processes of this machine"])
    if problem := next((ours.problem for _, ours in pairs if ours.problem), ""):
        return Verdict(unpaid=[f"nothing was protected when a worker was killed: {problem}"])
    lost = Row.of(
        "worker killed: results and data lost", pairs, lambda one: one.lost, lambda n: f"{n:g} of {HELD}"
    )
    repeated = Row.of("worker killed: tasks computed twice", pairs, lambda one: one.repeated)
    recovery = Row.of("", pairs, lambda one: one.recovery_s)
    ours = [ours for _, ours in pairs]
    errors = []
    if most := max(one.lost for one in ours):
        errors.append(f"{most} of {HELD} protected objects were lost when a worker was killed")
    if wrong := max(one.wrong for one in ours):
        errors.append(f"{wrong} protected objects are wrong after a worker was killed")
    unpaid = []
    if most := max(one.repeated for one in ours):
        unpaid.append(f"{most} protected tasks were computed again when a worker was killed")
    if not (lost.stock_median or repeated.stock_median):
        unpaid.append("stock Dask lost nothing and repeated nothing either when a worker was killed")
    last_stock, last = pairs[-1]
    told = {"stock Dask": _told(last_stock), "dask-hpc": _told(last)}
    return Verdict(
        results={NAME: told["dask-hpc"]},
        notes={TITLE: f"{told['dask-hpc']}; stock Dask: {told['stock Dask']}"},
        summary={
            NAME: {
                **lost.as_data("lost"),
                **repeated.as_data("repeated"),
                **recovery.as_data("recovery_s"),
                "commit_s": [one.commit_s for one in ours],
                "held": HELD,
            }
        },
        table=[lost, repeated],
        unpaid=unpaid,
        errors=errors,
    )


def _told(one: Killed) -> str:
    took = "" if one.commit_s is None else f", protected in {one.commit_s:.1f} s"
    return (
        f"{one.lost} of {HELD} results and scattered objects lost, {one.repeated} tasks computed twice, all "
        f"is there again after {one.recovery_s:.1f} s{took}"
    )
