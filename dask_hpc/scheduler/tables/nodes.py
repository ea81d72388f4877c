"""The node table: which workers make up a node, and which job holds it.

A node is known by a name that survives restarts (worker name or host), never by an address. Its
holder is the id of a named job, or None: then it serves plain work. A *reserved* node belongs to a
round under way and serves nobody, but for idle threads that are lent where it changes hands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dask_hpc_policies.model import COMPUTE, NodeFacts, NodeState, NodeView
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


#: Walltimes that are left are kept up to date to within this.
_STEP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one worker says of its node; None: it does not."""

    #: Labels: who shares memory, and who fails together.
    host: str | None = None
    domain: str | None = None
    #: When the walltime ends, on the runtime's clock.
    end_s: float | None = None
    #: Whether that is sooner than it knows: its own agent will be late.
    sooner: bool = False


_NOTHING = Told()


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """Nodes of a cluster that follows the load which are not there."""

    #: That start, and have no worker yet.
    starting: int = 0
    #: That the cluster may have, as its maximum says, and has not asked for.
    off: int = 0
    #: Nodes that were up when that was told; None: they were not looked at.
    up: int | None = 0
    #: That are up beyond the least that the cluster has to have.
    spare: int = 0


class Node:
    """One node and its workers."""

    def __init__(self, id: str) -> None:
        self.id = id
        #: address -> (threads, memory limit in bytes) of its workers that are connected.
        self.workers: dict[str, tuple[int, int]] = {}
        self.job: str | None = None
        #: Reconfiguration it takes part in (leaving a job, or promised to one); 0: none.
        self.reserved = 0
        #: While it is reserved as it changes hands, whether a job has to leave it. None: everybody has.
        self.leaves: Callable[[Any], bool] | None = None
        #: What it is for; only compute nodes serve jobs and plain work.
        self.role = COMPUTE
        #: Whether plain work gets nothing new here while nobody holds it.
        self.withheld = False
        #: The machine.
        self.host: str | None = None
        #: What those of its workers say that say anything, by address.
        self.told: dict[str, Told] = {}
        #: Seconds until the first of its workers has to end, as they were when last looked at; see `age`.
        self.left_s: float | None = None
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
    def serves(self) -> bool:
        """Whether tasks of jobs and of plain work may be placed on it."""
        return not self.reserved and self.role == COMPUTE

    @property
    def serves_plain(self) -> bool:
        """Whether tasks of plain work may be placed on it."""
        return self.job is None and self.serves and not self.withheld

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
    def end_s(self) -> float | None:
        """When the first of its workers has to end, on the runtime's clock; None: never."""
        return min((told.end_s for told in self.told.values() if told.end_s is not None), default=None)

    def age(self, now_s: float) -> bool:
        """Bring the walltime that is left up to date; whether that has changed anything."""
        end_s = self.end_s
        left_s = None if end_s is None else max(0.0, end_s - now_s)
        was_s = self.left_s
        if left_s == was_s or (left_s and was_s and abs(left_s - was_s) < _STEP_S):
            return False
        self.left_s = left_s
        self._view = self._free_view = None
        return True

    @property
    def facts(self) -> NodeFacts:
        """What the node is, by its workers."""
        if self._facts is None:
            workers = self.workers.values()
            # one machine may be several hosts or domains, one label has several machines: the first says
            host = next((told.host for told in self.told.values() if told.host is not None), self.host)
            self._facts = NodeFacts(
                workers=len(workers),
                nthreads=sum(threads for threads, _ in workers),
                memory_bytes=sum(limit for _, limit in workers),
                domain=next((told.domain for told in self.told.values() if told.domain is not None), host),
                host=host,
                role=self.role,
            )
        return self._facts

    def view(self) -> NodeView:
        """The node as a policy sees it."""
        if self._view is None:
            if self.job is not None or self.reserved or not self.workers:
                self._view = node_view(
                    self.facts, id=self.id, job=self.job, state=self.state, walltime_left_s=self.left_s
                )
            else:
                if self._free_view is None:
                    self._free_view = node_view(self.facts, id=self.id, walltime_left_s=self.left_s)
                self._view = self._free_view
        return self._view


class NodeTable:
    """All nodes of the pool in order of arrival."""

    def __init__(self, by: str) -> None:
        #: What a node is: ``worker``, ``host`` or ``job`` (see `node_id`).
        self.by = by
        self.nodes: dict[str, Node] = {}
        self.away = Away()
        self.at: dict[str, Node] = {}
        self._views: tuple[NodeView, ...] | None = None
        self._free: list[Node] | None = None
        #: It is another one whenever nodes have come or gone, or have other workers, another holder or role.
        self.version = 0
        #: Nodes that end some day, and when it was last looked how long they have left.
        self._limited: dict[str, Node] = {}
        self._aged_s = -math.inf

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
        self._changed()
        return node

    def leave(self, address: str) -> Node | None:
        """A worker has gone; returns its node (without it), None for an unknown address."""
        node = self.at.pop(address, None)
        if node is None:
            return None
        del node.workers[address]
        node.told.pop(address, None)
        node.workers_changed()
        self._changed()
        return node

    def hear(self, address: str, told: Told) -> bool:
        """A worker says something of its node; whether that is news."""
        node = self.at.get(address)
        if node is None or not _differs(node.told.get(address, _NOTHING), told):
            return False
        node.told[address] = told
        node.workers_changed()
        if told.end_s is not None:
            self._limited[node.id] = node
            self._aged_s = -math.inf
        self._changed()
        return True

    def forget(self, node: Node) -> None:
        """Drop a lost node that nobody expects back."""
        if self.nodes.get(node.id) is node:  # not one that has come under its name since
            del self.nodes[node.id]
            self._changed()

    def absent(self) -> Away:
        """Nodes that are not there, as was told; those that have come since start no more."""
        away = self.away
        if not away.starting or away.up is None:
            return away
        came = max(0, self.up() - away.up)
        return replace(away, starting=max(0, away.starting - came))

    def clear(self) -> None:
        """Forget all of them, lost ones included."""
        self.nodes.clear()
        self._changed()

    def touch(self, nodes: Iterable[Node]) -> None:
        """Note that nodes have another holder, or are reserved or not."""
        for node in nodes:
            node.changed()
        self._changed()

    def _changed(self) -> None:
        """Forget how the nodes looked."""
        self._views = self._free = None
        self.version += 1

    def views(self, now_s: float) -> tuple[NodeView, ...]:
        """All nodes as a policy sees them."""
        if now_s - self._aged_s >= _STEP_S:
            self._aged_s = now_s
            self._limited = {id: node for id, node in self._limited.items() if self.nodes.get(id) is node}
            aged = [node.age(now_s) for node in self._limited.values()]  # every one of them, not the first
            if any(aged):
                self._views = None
        if self._views is None:
            self._views = tuple([node.view() for node in self.nodes.values()])
        return self._views

    def sooner(self, before_s: float) -> dict[str, float]:
        """When workers end that do so before `before_s` and sooner than they know, by address."""
        return {
            address: told.end_s
            for node in self._limited.values()
            for address, told in node.told.items()
            if told.sooner and told.end_s is not None and told.end_s < before_s
        }

    def free(self) -> list[Node]:
        """Compute nodes that are up, held by no named job and promised to none; not to be changed."""
        # asked at every pass, again and again
        if self._free is None:
            self._free = [node for node in self.unheld() if node.role == COMPUTE]
        return self._free

    def unheld(self) -> list[Node]:
        """Nodes of any role that are up, held by no named job and promised to none."""
        return [n for n in self.nodes.values() if n.job is None and not n.reserved and n.workers]

    def up(self) -> int:
        """Number of nodes with a connected worker, whatever their role."""
        return sum([1 for node in self.nodes.values() if node.workers])

    def computing(self) -> int:
        """Number of compute nodes with a connected worker."""
        return sum([1 for node in self.nodes.values() if node.workers and node.role == COMPUTE])


def _differs(known: Told, told: Told) -> bool:
    """Whether a worker says something else than before; clocks that go a little apart are none."""
    if (known.host, known.domain) != (told.host, told.domain):
        return True
    if known.end_s is None or told.end_s is None or known.sooner != told.sooner:
        return known.end_s is not told.end_s or known.sooner != told.sooner
    return abs(known.end_s - told.end_s) >= _STEP_S / 2
