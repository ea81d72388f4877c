"""Which nodes leave the pool when so many are to go: those whose leaving costs least, and why others stay."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.leaving.pins import Pins
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc_policies.jobs.constraints import largest_at_most, next_lower, smallest_at_least
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.wording import counted

NO_ROOM = "no other worker has room for what only it holds"


@dataclass
class Choice:
    """Nodes that can leave, and why others cannot."""

    #: Groups of nodes that leave together: all of one job, or a single one of plain work.
    groups: list[list[Node]] = field(default_factory=list)
    #: Ids of nodes that a job gives up with others, for a size it may have, and that stay in the pool.
    spare: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    #: Names of the workers it is limited to; None: no limit.
    among: frozenset[str] | None = None

    @property
    def nodes(self) -> list[Node]:
        """Those that leave the pool."""
        return [node for group in self.groups for node in group if node.id not in self.spare]


class Choosing:
    """Chooses nodes that leave."""

    def __init__(self, engine: Engine, pins: Pins) -> None:
        self._engine = engine
        self._pins = pins

    def choose(self, count: int, among: Collection[Any] | None = None, force: bool = False) -> Choice:
        """The `count` nodes whose leaving costs least; fewer when no more can leave.

        Nodes that no job holds go first, then those of jobs above their minimum: of those that rest first,
        of the latest job first.

        Parameters
        ----------
        count
            How many. Where a node is a whole host (``hpc.node.by: host``), workers are counted, as clusters
            do there: hosts are chosen as long as they fit into it.
        among
            Names of workers: only nodes that have no others are looked at; None: all nodes.
        force
            If those that can leave are too few, take free nodes that should stay, unless they are pinned.
        """
        state = self._engine.state
        choice = Choice(among=None if among is None else frozenset(map(str, among)))
        # those for something else last, whatever they cost, and only where somebody has named them
        unheld = state.nodes.unheld() if among is not None else state.nodes.free()
        free = self._movable(unheld, choice)
        for computes in (True, False):
            some = [node for node in free if (node.role == COMPUTE) == computes]
            taken = self._easiest(some, count - self._chosen(choice), choice)
            choice.groups += [[node] for node in taken]
        latest_first = list(reversed(state.jobs.named))
        for job in sorted(latest_first, key=lambda job: not job.resting):
            wanted = count - self._chosen(choice)
            if wanted > 0:
                choice.groups += self._of_job(job, wanted, choice)
        if not force:
            self._keep_one(choice)
            return choice
        # no job is asked to shrink, so none gives up more than leaves
        choice.groups = [[node for node in group if node.id not in choice.spare] for group in choice.groups]
        choice.spare.clear()
        should_stay = [node for node in state.nodes.unheld() if node.id in choice.refused]
        unpinned = [node for node in should_stay if self._pins.why(node) is None]
        for node in unpinned:
            if self.size(node) <= count - self._chosen(choice):
                del choice.refused[node.id]
                choice.groups.append([node])
        return choice

    def size(self, node: Node) -> int:
        """As how many a node counts: see `choose`."""
        return len(node.workers) if self._engine.state.nodes.by == "host" else 1

    def counted(self, count: int) -> str:
        """So many, in words."""
        return counted(count, "worker" if self._engine.state.nodes.by == "host" else "node")

    def _chosen(self, choice: Choice) -> int:
        return sum(self.size(node) for group in choice.groups for node in group)

    def _easiest(self, nodes: list[Node], count: int, choice: Choice) -> list[Node]:
        """Those whose leaving costs least, no more than `count`; hosts that are too large are refused."""
        easiest = self._engine.rounds.reductions.choose
        if self._engine.state.nodes.by != "host":
            return easiest(nodes, count)
        taken: list[Node] = []
        while fitting := [node for node in nodes if node not in taken and self.size(node) <= count]:
            taken += easiest(fitting, 1)
            count -= self.size(taken[-1])
        for node in nodes if count > 0 else ():
            if node not in taken:
                text = f"the {self.size(node)} workers of one host leave together (hpc.node.by: host)"
                choice.refused[node.id] = f"{text}, and no more than {count} may go"
        return taken

    def _keep_one(self, choice: Choice) -> None:
        """Keep the node with most data when nobody else could take over what is there."""
        scheduler = self._engine.scheduler
        nodes = {address: node for node in choice.nodes for address in node.workers}
        if reads.others_running(scheduler, nodes):
            return
        if not any(reads.is_needed(scheduler.workers[address]) for address in nodes):
            return
        kept = nodes[max(nodes, key=lambda address: scheduler.workers[address].nbytes)]
        choice.groups = [[n for n in group if n is not kept] for group in choice.groups if group != [kept]]
        choice.refused[kept.id] = NO_ROOM

    def _of_job(self, job: JobRecord, wanted: int, choice: Choice) -> list[list[Node]]:
        state = self._engine.state
        held = [node for node in state.nodes_of(job) if node.up]
        up, low = len(held), job.request.min_nodes
        held = [node for node in held if self.is_among(node, choice.among)]
        if not held:
            return []
        kind, constraint = job.request.kind, job.request.constraint
        can = job.state == "running" and kind == "malleable" and next_lower(constraint, up, low) is not None
        # of a job that keeps all its nodes, each stays because of that, whatever else keeps it
        movable = self._movable(held, choice) if can else held
        first = self._easiest(movable, wanted, choice)
        if can and not first:
            return []
        wanted = len(first)
        # at most as many as it may have then; else it gives fewer up, as far as the sizes it may have allow
        most, least = max(low, up - wanted), max(low, up - len(movable))
        fitting = largest_at_most(constraint, most, least) or smallest_at_least(constraint, most, up - 1)
        if not can or fitting is None or fitting >= up:
            text = f"{job.id} holds it: {job.state}, {kind}, {up} of at least {counted(low)}"
            choice.refused.update(dict.fromkeys((node.id for node in movable), text))
            return []
        others = [node for node in movable if node not in first]
        given = first[: up - fitting]
        given += self._engine.rounds.reductions.choose(others, up - fitting - len(given))
        choice.spare |= {node.id for node in given[wanted:]}
        return [given]

    def _movable(self, nodes: Iterable[Node], choice: Choice) -> list[Node]:
        movable = []
        for node in nodes:
            if not self.is_among(node, choice.among):
                continue
            why = self.veto(node)
            if why is None:
                movable.append(node)
            else:
                choice.refused[node.id] = why
        return movable

    def names(self, node: Node) -> list[Any]:
        """Names of its workers."""
        return [self._engine.scheduler.workers[address].name for address in node.workers]

    def is_among(self, node: Node, names: Collection[str] | None) -> bool:
        """Whether all its workers are among these (None: all there are)."""
        return names is None or all(str(name) in names for name in self.names(node))

    def veto(self, node: Node) -> str | None:
        """Why it has to stay, if it has to."""
        why = self._engine.parts.veto(node, None)
        return None if why is None else why.text
