"""Releases: nodes leave the pool without losing anything.

A node that leaves is first drained like one that changes jobs: no new tasks, what has not started is
asked back, what executes and shuffles that it takes part in are waited for until a deadline. Then
Dask moves what only its workers hold to others, and they retire. What cannot be emptied stays, with
the reason: nothing is released that has not been emptied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import data, reads
from dask_hpc.scheduler.leaving.draining import drain, why_retired
from dask_hpc.scheduler.leaving.pins import Pins
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.jobs.constraints import largest_at_most, next_lower, smallest_at_least
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.wording import counted

logger = logging.getLogger(__name__)

#: Options of stock's ``retire_workers`` that say how, not which.
_HOW = ("close_workers", "remove", "stimulus_id")
_NO_ROOM = "no other worker has room for what only it holds"
_WANTED = Reason(ReasonCode.USER_REQUEST, "it is wanted again")
#: Empties a worker (by address) that will be gone in so many seconds, for that reason.
Depart = Callable[[str, float, str], Awaitable[Any]]


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


class Releases:
    """Empties nodes and has Dask retire their workers."""

    def __init__(self, engine: Engine, depart: Depart) -> None:
        self.engine = engine
        self.depart = depart
        self.scheduler = engine.scheduler
        #: Why nodes that should have gone have stayed, by node.
        self.refused: dict[str, str] = {}
        self.pins = Pins(engine.state)
        #: Groups of nodes on their way out, in the order in which they were chosen.
        self._leaving: list[list[Node]] = []
        #: Ids of nodes in such groups that stay in the pool: see `Choice.spare`.
        self._spare: set[str] = set()
        self._retire: Any = None

    # ---------------------------------------------------------------- choose

    def choose(self, count: int, among: Collection[Any] | None = None, force: bool = False) -> Choice:
        """The `count` nodes whose leaving costs least; fewer when no more can leave.

        Nodes that no job holds go first, then those of jobs above their minimum: of those that rest first,
        of the latest job first.

        Parameters
        ----------
        count
            How many.
        among
            Names of workers: only nodes that have no others are looked at; None: all nodes.
        force
            If those that can leave are too few, take free nodes that should stay, unless they are pinned.
        """
        state = self.engine.state
        choice = Choice(among=None if among is None else frozenset(map(str, among)))
        # those for something else last, whatever they cost, and only where somebody has named them
        unheld = state.nodes.unheld() if among is not None else state.nodes.free()
        free = self._movable(unheld, choice)
        easiest = self.engine.rounds.reductions.choose
        taken = easiest([node for node in free if node.role == COMPUTE], count)
        taken += easiest([node for node in free if node.role != COMPUTE], count - len(taken))
        choice.groups += [[node] for node in taken]
        latest_first = list(reversed(state.jobs.named))
        for job in sorted(latest_first, key=lambda job: not job.resting):
            wanted = count - sum(map(len, choice.groups))
            if wanted > 0:
                choice.groups += self._of_job(job, wanted, choice)
        if not force:
            self._keep_one(choice)
            return choice
        # no job is asked, so none is left with nodes that it cannot use
        choice.spare.clear()
        should_stay = [node for node in state.nodes.unheld() if node.id in choice.refused]
        unpinned = [node for node in should_stay if self.pins.why(node) is None]
        for node in unpinned[: max(0, count - sum(map(len, choice.groups)))]:
            del choice.refused[node.id]
            choice.groups.append([node])
        return choice

    def _keep_one(self, choice: Choice) -> None:
        """Keep the node with most data when nobody else could take over what is there."""
        scheduler = self.scheduler
        nodes = {address: node for node in choice.nodes for address in node.workers}
        if reads.others_running(scheduler, nodes):
            return
        if not any(reads.is_needed(scheduler.workers[address]) for address in nodes):
            return
        kept = nodes[max(nodes, key=lambda address: scheduler.workers[address].nbytes)]
        choice.groups = [[n for n in group if n is not kept] for group in choice.groups if group != [kept]]
        choice.refused[kept.id] = _NO_ROOM

    def _of_job(self, job: JobRecord, wanted: int, choice: Choice) -> list[list[Node]]:
        state = self.engine.state
        held = [node for node in state.nodes_of(job) if node.up]
        up, low = len(held), job.request.min_nodes
        held = [node for node in held if self._is_among(node, choice.among)]
        if not held:
            return []
        kind, constraint = job.request.kind, job.request.constraint
        can = job.state == "running" and kind == "malleable" and next_lower(constraint, up, low) is not None
        # of a job that keeps all its nodes, each stays because of that, whatever else keeps it
        movable = self._movable(held, choice) if can else held
        wanted = min(wanted, len(movable))
        # at most as many as it may have then; else it gives fewer up, as far as the sizes it may have allow
        most, least = max(low, up - wanted), max(low, up - len(movable))
        fitting = largest_at_most(constraint, most, least) or smallest_at_least(constraint, most, up - 1)
        if not can or fitting is None or fitting >= up:
            text = f"{job.id} holds it: {job.state}, {kind}, {up} of at least {counted(low)}"
            choice.refused.update(dict.fromkeys((node.id for node in movable), text))
            return []
        given = self.engine.rounds.reductions.choose(movable, up - fitting)
        choice.spare |= {node.id for node in given[wanted:]}
        return [given]

    def _movable(self, nodes: Iterable[Node], choice: Choice) -> list[Node]:
        movable = []
        for node in nodes:
            if not self._is_among(node, choice.among):
                continue
            why = self._veto(node)
            if why is None:
                movable.append(node)
            else:
                choice.refused[node.id] = why
        return movable

    def _is_among(self, node: Node, names: Collection[str] | None) -> bool:
        return names is None or all(str(name) in names for name in self._names(node))

    def _veto(self, node: Node) -> str | None:
        why = self.engine.parts.veto(node, None)
        return None if why is None else why.text

    def pin(self, workers: Iterable[str], keep: bool) -> None:
        """Have nodes with these workers (by name) stay, also those that are being drained, or no longer."""
        self.pins.put(workers, keep)
        for group in list(self._leaving):
            if any(map(self.pins.why, group)):
                self.engine.rounds.take_back(group, _WANTED)

    # --------------------------------------------------------------- release

    async def plan(self, count: int, among: Collection[Any] | None = None) -> dict[str, Any]:
        """What `release` would do now: worker names by node, bytes that only they hold, refusals."""
        async with self.engine.kept_awake():
            choice = self.choose(count, among)
            addresses = {address for node in choice.nodes for address in node.workers}
            return {
                "nodes": {node.id: self._names(node) for node in choice.nodes},
                "bytes": reads.sole_bytes(self.scheduler, addresses),
                "refused": choice.refused,
            }

    async def release(
        self, count: int, among: Collection[Any] | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Let `count` nodes go, chosen by `choose` (see there), each as soon as it is empty.

        By force, those that cannot be emptied go as well, as workers do whose walltime ends.

        Returns
        -------
        dict
            ``released``: names of the workers that have retired, by node; ``refused``: why others have
            not, by node.
        """
        async with self.engine.kept_awake():
            choice = self.choose(count, among, force)
            let_go = self._let_go_by_force if force else self._let_go
            self._spare |= choice.spare
            try:
                answers = await asyncio.gather(*(let_go(group, count) for group in choice.groups))
            finally:
                self._spare -= choice.spare
            self._forget(choice)
        answer: dict[str, Any] = {"released": {}, "refused": {}}
        for one in answers:
            answer["released"].update(one["released"])
            answer["refused"].update(one["refused"])
        if len(answer["released"]) < count:
            answer["refused"] = {**choice.refused, **answer["refused"]}
        self._note([], answer["refused"])
        return answer

    def recall(self, going: int, among: Collection[Any] | None = None) -> list[Any]:
        """Have no more than `going` nodes leave, of those that have no workers but `among` (by name).

        Those that were chosen last are kept first, unless there is nothing left to wait for on them and
        they are being retired. Gives the names of the workers that are kept.
        """
        names = None if among is None else frozenset(map(str, among))
        groups = [g for g in self._leaving if all(self._is_among(node, names) for node in g)]
        too_many = sum(map(self._leave, groups)) - going
        kept: list[Any] = []
        for group in reversed(groups):
            if too_many > 0 and self.engine.rounds.take_back(group, _WANTED):
                too_many -= self._leave(group)
                kept += [name for node in group for name in self._names(node)]
        return kept

    def _leave(self, group: list[Node]) -> int:
        """How many of a group leave the pool."""
        return sum(node.id not in self._spare for node in group)

    async def _drain(self, group: list[Node], reason: Reason) -> tuple[list[Node], str | None]:
        """Drain nodes that are in `_leaving`; gives them, or none, and why: None when they were recalled."""
        drained, why = await drain(self.engine, group, reason)
        return drained, None if why == _WANTED.text else why

    def _forget(self, choice: Choice) -> None:
        """Forget why nodes have stayed that could be chosen, or are gone."""
        nodes = self.engine.state.nodes.nodes
        for id in list(self.refused):
            if id not in nodes or self._is_among(nodes[id], choice.among):
                del self.refused[id]

    def _note(self, gone: Iterable[str], stay: dict[str, str]) -> None:
        """Remember and say why nodes stay that should have gone."""
        for node in gone:
            self.refused.pop(node, None)
        for node, why in stay.items():
            if self.refused.get(node) != why:
                logger.warning("Node %s stays: %s", node, why)
        self.refused |= stay

    async def _let_go(self, group: list[Node], count: int) -> dict[str, Any]:
        names = {node.id: self._names(node) for node in group if node.id not in self._spare}
        reason = Reason(ReasonCode.USER_REQUEST, f"{counted(count)} of the pool to be released")
        self._leaving.append(group)
        try:
            drained, why = await self._drain(group, reason)
            if not drained:
                return {"released": {}, "refused": {} if why is None else dict.fromkeys(names, why)}
            retired = await self._retire_nodes(drained)
        finally:
            self._leaving.remove(group)
        return {
            "released": {id: names[id] for id in names if id in retired},
            "refused": {id: _NO_ROOM for id in names if id not in retired},
        }

    async def _let_go_by_force(self, group: list[Node], count: int) -> dict[str, Any]:
        names = {node.id: self._names(node) for node in group}
        within_s = self.engine.state.settings.shrink_deadline_s
        addresses = [address for node in group for address in node.workers]
        why = f"{counted(count)} of the pool to be released by force"
        await asyncio.gather(*(self.depart(address, within_s, why) for address in addresses))
        return {"released": names, "refused": {}}

    async def _retire_nodes(self, nodes: list[Node]) -> set[str]:
        """Have Dask move what only these nodes hold and retire them; gives the ids of those that did."""
        there = {node.id: set(node.workers) for node in nodes if node.id not in self._spare}
        addresses = [address for workers in there.values() for address in workers]
        retired: Collection[str] = ()
        try:
            if addresses:
                retired = await data.retire(self.scheduler, addresses, "hpc-release")
        finally:
            state = self.engine.state
            gone = {id for id, workers in there.items() if workers <= set(retired)}
            for node in nodes:
                state.give([node], None)
            if len(gone) < len(nodes):
                self.engine.admission.scan(*state.plain)
        return gone

    def _names(self, node: Node) -> list[Any]:
        return [self.scheduler.workers[address].name for address in node.workers]

    # ---------------------------------------------------------- stock's retire

    def wrap(self) -> None:
        """Have whatever asks Dask to retire workers go through here."""
        handlers = self.scheduler.handlers
        if self._retire is None:
            self._retire = handlers["retire_workers"]
            handlers["retire_workers"] = self.retire

    def unwrap(self) -> None:
        """Put stock's handler back."""
        if self._retire is not None and self.scheduler.handlers.get("retire_workers") == self.retire:
            self.scheduler.handlers["retire_workers"] = self._retire
        self._retire = None

    async def retire(
        self, workers: Sequence[str] | None = None, names: Sequence[Any] | None = None, **options: Any
    ) -> Any:
        """Stock's ``retire_workers``, with the nodes drained first.

        Nodes that cannot be drained in time are left out, as stock leaves out those whose data cannot be
        moved. A worker that retires by itself, at the end of its lifetime, goes in any case (`depart`).
        """
        stock = self._retire
        how = {name: options.pop(name) for name in _HOW if name in options}
        if (workers is not None) + (names is not None) + bool(options) > 1:
            return await stock(workers=workers, names=names, **how, **options)  # which says what is wrong
        leaving = reads.to_retire(self.scheduler, workers, names, options)
        if str(how.get("stimulus_id", "")).startswith("worker-close-gracefully"):
            within_s = self.engine.state.settings.shrink_deadline_s
            return {
                address: await self.depart(address, within_s, "its lifetime is over") for address in leaving
            }
        async with self.engine.kept_awake():
            await self._until_free(leaving)
            whole, others, stay = self._whole_nodes(leaving)
            groups = self._by_holder(whole)
            cause = how.get("stimulus_id", "")
            whys = [why_retired(self.engine, group, len(leaving), cause) for group in groups]
            drains = [self._drain(group, why) for group, why in zip(groups, whys, strict=True)]
            drained: list[Node] = []
            self._leaving += groups
            try:
                for group, (quiet, why) in zip(groups, await asyncio.gather(*drains), strict=True):
                    drained += quiet
                    if why is not None and not quiet:
                        stay |= dict.fromkeys((node.id for node in group), why)
            finally:
                self._leaving = [group for group in self._leaving if group not in groups]
            there = {node.id: set(node.workers) for node in drained}
            addresses = [*others, *(address for node in drained for address in node.workers)]
            retired: Any = {}
            try:
                if addresses:
                    retired = await stock(workers=addresses, **how)
            finally:
                stay |= {id: _NO_ROOM for id, held in there.items() if not held <= set(retired)}
                self._note(there.keys() - stay.keys(), stay)
                for node in drained:
                    self.engine.state.give([node], None)
                self.engine.admission.scan(*self.engine.state.plain)
            return retired

    async def _until_free(self, addresses: list[str]) -> None:
        """Wait for nodes that are being drained already: by then they have left, or can be asked anew."""
        table, settings = self.engine.state.nodes, self.engine.state.settings
        while any((node := table.at.get(address)) is not None and node.reserved for address in addresses):
            await asyncio.sleep(settings.sweep_s)

    def _whole_nodes(self, addresses: list[str]) -> tuple[list[Node], list[str], dict[str, str]]:
        """The nodes whose workers are all among these, the addresses of the rest, and what must stay."""
        table = self.engine.state.nodes
        nodes = {id(node): node for address in addresses if (node := table.at.get(address)) is not None}
        vetoes = {node.id: self._veto(node) for node in nodes.values()}
        stay = {id: why for id, why in vetoes.items() if why is not None}
        free = [node for node in nodes.values() if node.id not in stay]
        whole = [node for node in free if set(node.workers) <= set(addresses)]
        part = {address for node in free if node not in whole for address in node.workers}
        return whole, [address for address in addresses if address in part], stay

    def _by_holder(self, nodes: list[Node]) -> list[list[Node]]:
        groups: dict[str, list[Node]] = {}
        for node in nodes:
            groups.setdefault(node.job if node.job is not None else f" {node.id}", []).append(node)
        return list(groups.values())
