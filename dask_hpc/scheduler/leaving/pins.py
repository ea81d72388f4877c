"""Pins: workers that their user wants to stay, whatever asks for a smaller cluster.

Nothing of others comes to them either: who keeps a worker keeps something there. Where jobs that asked for no
nodes have no other ones to share, pins tell none from the rest, and these are shared as without pins: nobody
who declared nothing waits for a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.decision import Action, Reason, ReasonCode


class Pins:
    """Knows which nodes stay: those with a worker that is pinned."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: Names of workers.
        self.names: frozenset[str] = frozenset()
        #: Whether there are other nodes to share, and of which nodes and pins that is true.
        self._others = False
        self._seen: tuple[int, frozenset[str]] = (-1, self.names)

    def put(self, workers: Iterable[str], keep: bool) -> None:
        """Have nodes with these workers (by name) stay, or no longer."""
        names = frozenset(workers)
        self.names = self.names | names if keep else self.names - names

    def why(self, node: Node) -> str | None:
        """Why the node stays; None when nobody has said so."""
        if not self.names:
            return None
        workers = self._state.scheduler.workers
        pinned: list[Any] = [
            name
            for address in node.workers
            # one that is lost is there until the plugin hears of that
            if address in workers and str(name := workers[address].name) in self.names
        ]
        return f"worker {pinned[0]!r} is pinned (cluster.unpin lets it go)" if pinned else None

    def veto(self, subject: JobRecord | Node, action: Action | None) -> Reason | None:
        """Why a node must stay: the user says so."""
        pinned = self.why(subject) if isinstance(subject, Node) else None
        return None if pinned is None else Reason(ReasonCode.KEPT, pinned)

    def lends(self, node: Node) -> bool:
        """Nothing of others comes to a node that the user keeps, unless there is no other one to share."""
        if self.why(node) is None:
            return True
        return self._shared(node) and not self._has_others()

    def _has_others(self) -> bool:
        table = self._state.nodes
        seen = (table.version, self.names)
        if self._seen != seen:
            self._seen = seen
            nodes = table.nodes.values()
            self._others = any(node.up and self._shared(node) and self.why(node) is None for node in nodes)
        return self._others

    def _shared(self, node: Node) -> bool:
        """Whether jobs that asked for no nodes take turns there."""
        job = self._state.jobs.active.get(node.job) if node.job is not None else None
        return node.serves and (job is None or job.undeclared)
