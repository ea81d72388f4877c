"""How many workers a cluster should have: what stock asks for, and no fewer than jobs need.

Stock looks at tasks alone. A job that waits for eight nodes has none that run, and a job between two
steps has none at all: without this, an adaptive cluster would never grow for the one, and take the
nodes of the other away.
"""

from __future__ import annotations

import math
from typing import Any

from dask_hpc.scheduler.engine import Engine
from dask_hpc.scheduler.state import State

#: RPC by which adaptive clusters ask how many workers there should be.
TARGET = "adaptive_target"


class PoolTarget:
    """Answers adaptive clusters."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._stock: Any = None

    def wrap(self) -> None:
        """Answer whoever asks for the target."""
        handlers = self.engine.scheduler.handlers
        if self._stock is None:
            self._stock = handlers[TARGET]
            handlers[TARGET] = self.target

    def unwrap(self) -> None:
        """Let stock answer again."""
        if self._stock is not None and self.engine.scheduler.handlers.get(TARGET) == self.target:
            self.engine.scheduler.handlers[TARGET] = self._stock
        self._stock = None

    def target(self, **options: Any) -> int:
        """Workers that there should be."""
        stock: int = self._stock(**options)
        state = self.engine.state
        nodes = needed_nodes(state)
        if not nodes:
            return stock
        up = [len(node.workers) for node in state.nodes.nodes.values() if node.up]
        workers_per_node = sum(up) / len(up) if up else 1.0
        return max(stock, math.ceil(nodes * workers_per_node))


def needed_nodes(state: State) -> int:
    """Nodes that jobs hold or wait for, plain work that has something to do included; 0 without a job."""
    named = state.jobs.named
    if not named:
        return 0
    held = sum(max(state.nodes_up(job), job.resolved.min_nodes) for job in named if job.state != "pending")
    awaited = sum(job.smallest_start for job in named if job.state == "pending")
    return held + awaited + state.reserve_for_plain()
