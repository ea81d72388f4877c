"""The node table: which workers make up a node, and which job holds it.

A node is known by a name that survives restarts (worker name or host), never by an address. Its
holder is the id of a named job, or None: then it serves plain work. A *reserved* node belongs to a
round under way and serves nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask_hpc_policies.model import NodeFacts, NodeState, NodeView
from dask_hpc_policies.views import node_view


def node_id(by: str, name: Any, host: str) -> str:
    """Id of the node that a worker of that name on that host belongs to.

    `by` is ``worker`` (each is a node), ``host``, or ``job``: all workers of one batch job, which are
    called like it with ``-0``, ``-1`` and so on behind.
    """
    if by == "host":
        return host
    job, dash, number = str(name).rpartition("-")
    return job if by == "job" and dash and number.isdigit() else str(name)


class Node:
    """One node and its workers."""

    def __init__(self, id: str) -> None:
        self.id = id
        #: address -> (threads, memory limit in bytes) of its workers that are connected.
        self.workers: dict[str, tuple[int, int]] = {}
        self.job: str | None = None
        #: Reconfiguration it takes part in (leaving a job, or promised to one); 0: none.
        self.reserved = 0
        self.host: str | None = None
        self._facts: NodeFacts | None = None
        self._view: NodeView | None = None
        #: How it looks when it is up and nobody holds it, as most nodes are most of the time.
        self._free_view: NodeView | None = None

    def __repr__(self) -> str:
        return f"<Node {self.id} {self.state} job={self.job}>"

    @property
    def up(self) -> bool:
        """Whether any of its workers is connected."""
        return bool(self.workers)

    @property
    def state(self) -> NodeState:
        """``lost`` without workers, ``draining`` while reserved, else ``up``."""
        if not self.workers:
            return "lost"
        return "draining" if self.reserved else "up"

    def changed(self) -> None:
        """Forget how it looked."""
        self._view = None

    def workers_changed(self) -> None:
        """Forget how it looked, and what its workers have."""
        self._facts = self._view = self._free_view = None

    @property
    def facts(self) -> NodeFacts:
        """What the node is, by its workers."""
        if self._facts is None:
            workers = self.workers.values()
            self._facts = NodeFacts(
                workers=len(workers),
                nthreads=sum(threads for threads, _ in workers),
                memory_bytes=sum(limit for _, limit in workers),
                domain=self.host,
            )
        return self._facts

    def view(self) -> NodeView:
        """The node as a policy sees it."""
        if self._view is None:
            if self.job is not None or self.reserved or not self.workers:
                self._view = node_view(self.facts, id=self.id, job=self.job, state=self.state)
            else:
                if self._free_view is None:
                    self._free_view = node_view(self.facts, id=self.id)
                self._view = self._free_view
        return self._view


class NodeTable:
    """All nodes of the pool in order of arrival."""

    def __init__(self, by: str) -> None:
        #: What a node is: ``worker``, ``host`` or ``job`` (see `node_id`).
        self.by = by
        self.nodes: dict[str, Node] = {}
        self.at: dict[str, Node] = {}
        self._views: tuple[NodeView, ...] | None = None

    def join(self, address: str, *, name: Any, host: str, nthreads: int, memory_bytes: int) -> Node:
        """A worker has connected; returns its node, which may have been lost before."""
        id = node_id(self.by, name, host)
        node = self.nodes.get(id)
        if node is None:
            node = self.nodes[id] = Node(id)
        node.workers[address] = (nthreads, memory_bytes)
        node.host = host
        self.at[address] = node
        node.workers_changed()
        self._views = None
        return node

    def leave(self, address: str) -> Node | None:
        """A worker has gone; returns its node (without it), None for an unknown address."""
        node = self.at.pop(address, None)
        if node is None:
            return None
        del node.workers[address]
        node.workers_changed()
        self._views = None
        return node

    def forget(self, node: Node) -> None:
        """Drop a lost node that nobody expects back."""
        if self.nodes.get(node.id) is node:  # not one that has come under its name since
            del self.nodes[node.id]
            self._views = None

    def touch(self, nodes: Iterable[Node]) -> None:
        """Note that nodes have another holder, or are reserved or not."""
        for node in nodes:
            node.changed()
        self._views = None

    def views(self) -> tuple[NodeView, ...]:
        """All nodes as a policy sees them."""
        if self._views is None:
            self._views = tuple([node.view() for node in self.nodes.values()])
        return self._views

    def free(self) -> list[Node]:
        """Nodes that are up, held by no named job and promised to none."""
        return [n for n in self.nodes.values() if n.job is None and not n.reserved and n.workers]

    def up(self) -> int:
        """Number of nodes with a connected worker."""
        return sum(1 for node in self.nodes.values() if node.workers)
