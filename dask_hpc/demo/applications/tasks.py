"""A graph that is built task by task, in a time that grows as it does.

`dask.delayed` has each task carry the graphs of all before it: a thousand steps of a simulation would take
longer to write down than to compute.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from dask.delayed import Delayed

from dask_hpc.demo.paced import paced


class Tasks:
    """Tasks with keys of their own in each graph: what is built twice is computed twice.

    Parameters
    ----------
    task_s
        What `work` takes at least, so that a worker counts as a node where the machine has fewer cores.
    """

    def __init__(self, task_s: float = 0.0) -> None:
        self._task_s = task_s
        self._graph: dict[str, Any] = {}
        self._token = uuid.uuid4().hex[:12]

    def add(self, function: Callable[..., Any], *arguments: Any) -> str:
        """A call of `function`, some of whose arguments, or items of lists, are keys of earlier tasks."""
        key = f"{function.__name__.strip('_')}-{self._token}-{len(self._graph)}"
        self._graph[key] = (function, *arguments)
        return key

    def work(self, function: Callable[..., Any], *arguments: Any) -> str:
        """`add` a call that is the application's work, in the time that such a one is given."""
        key = self.add(function, *arguments)
        if self._task_s:
            self._graph[key] = (paced, self._task_s, *self._graph[key])
        return key

    def result(self, key: str) -> Any:
        """What the task `key` gives, as a `dask.delayed` object."""
        return Delayed(key, self._graph)
