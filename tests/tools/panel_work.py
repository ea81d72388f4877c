"""Jobs for the tests of panels on a live cluster, and a wait with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from helpers import Gate

PATIENCE_S = 30.0
#: A task whose futures are gone is forgotten.
kept: list[Any] = []


def until(true: Callable[[], Any], what: str) -> Any:
    """Ask until it is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < deadline_s, f"not in {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)
    return found


def working(rt: Any, name: str, tasks: int = 1500, gate: Gate | None = None, **request: Any) -> Any:
    """A job that runs for as long as it is not cancelled, or as its tasks of 50 ms take.

    Where these wait at a gate, what is known of the job and left of it is the same however long a test takes:
    nobody has measured a task of it.
    """
    with rt.job(name, **request) as job:
        # Dask has measured tasks of other tests by their names
        key = name if gate is None else f"{name}-at-gate"
        futures = rt.client.map(gate.wait if gate else time.sleep, [0.05] * tasks, pure=False, key=key)
    kept.append(futures)
    # what opens it and its tasks travels beside the questions
    until(lambda: rt.find(job.id).status()["unfinished_tasks"], "its tasks are there")
    return job
