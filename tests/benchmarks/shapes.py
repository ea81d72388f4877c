"""What Dask users submit, in small: shapes of work whose tasks mostly sleep.

A sleeping task has a node of its own, however few cores the machine has. Each function takes a client and
returns futures; none blocks.
"""

from __future__ import annotations

import time
from typing import Any

from distributed import Client, Future


def sleeps(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Independent tasks: parameter studies, downloads."""
    return client.map(time.sleep, [task_s] * tasks, pure=False)


def chain(client: Client, tasks: int, task_s: float) -> list[Future]:
    """Each task needs the one before: time steps, epochs."""
    link = None
    for _ in range(tasks):
        link = client.submit(_after, link, task_s, pure=False)
    assert link is not None
    return [link]


def _after(_: Any, task_s: float) -> float:
    time.sleep(task_s)
    return task_s
