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
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import data, reads
from dask_hpc.scheduler.leaving.choosing import NO_ROOM, Choice, Choosing
from dask_hpc.scheduler.leaving.draining import drain, finish, why_retired
from dask_hpc.scheduler.leaving.pins import Pins
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc_policies.decision import Reason, ReasonCode

logger = logging.getLogger(__name__)

#: Options of stock's ``retire_workers`` that say how, not which.
_HOW = ("close_workers", "remove", "stimulus_id")
#: Why a worker stays that others of its node were to stay without.
NOT_ENDED = "what one of its workers executes had not ended (hpc.shrink-deadline)"
_WANTED = Reason(ReasonCode.USER_REQUEST, "it is wanted again")
#: Empties a worker (by address) that will be gone in so many seconds, for that reason (`Departures.depart`).
Depart = Callable[..., Awaitable[Any]]


class Releases:
    """Empties nodes and has Dask retire their workers."""

    def __init__(self, engine: Engine, depart: Depart) -> None:
        self.engine = engine
        self.depart = depart
        self.scheduler = engine.scheduler
        #: Why nodes that should have gone have stayed, by node.
        self.refused: dict[str, str] = {}
        self.pins = Pins(engine.state)
        self._choosing = Choosing(engine, self.pins)
        self.choose = self._choosing.choose
        #: Groups of nodes on their way out, in the order in which they were chosen.
        self._leaving: list[list[Node]] = []
        #: Ids of nodes in such groups that stay in the pool: see `Choice.spare`.
        self._spare: set[str] = set()
        self._ours = {"retire_workers": self.retire, "restart": self.restart}
        #: Stock's handlers of these names.
        self._stock: dict[str, Any] = {}

    def pin(self, workers: Iterable[str], keep: bool) -> None:
        """Have nodes with these workers (by name) stay, also those that are being drained, or no longer."""
        self.pins.put(workers, keep)
        if self.engine.awake:
            self.engine.admission.sweep()  # who takes turns where
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
                "nodes": {node.id: self._choosing.names(node) for node in choice.nodes},
                "bytes": reads.sole_bytes(self.scheduler, addresses),
                "refused": choice.refused,
            }

    async def release(
        self, count: int, among: Collection[Any] | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Let `count` nodes go, chosen by `Choosing.choose` (see there), each as soon as it is empty.

        By force, those that cannot be emptied go as well, as workers do whose walltime ends.

        Returns
        -------
        dict
            ``released``: names of the workers that have retired, by node; ``refused``: why others have
            not, by node.
        """
        async with self.engine.kept_awake():
            choice = self.choose(count, among, force)
            sizes = {node.id: self._choosing.size(node) for node in choice.nodes}
            let_go = self._let_go_by_force if force else self._let_go
            self._spare |= choice.spare
            try:
                answers = await asyncio.gather(*(let_go(group, count) for group in choice.groups))
            finally:
                self._spare -= choice.spare
        answer: dict[str, Any] = {"released": {}, "refused": {}}
        for one in answers:
            answer["released"].update(one["released"])
            answer["refused"].update(one["refused"])
        if sum(sizes[id] for id in answer["released"]) < count:
            answer["refused"] = {**choice.refused, **answer["refused"]}
        # in one go: of those that still stay, and why, all was said before
        self._note(self._looked_at(choice) - answer["refused"].keys(), answer["refused"])
        return answer

    def recall(self, going: int, among: Collection[Any] | None = None) -> list[Any]:
        """Have no more than `going` leave of the nodes that have no workers but `among` (by name).

        They are counted as `Choosing.choose` does.
        Those that were chosen last are kept first, unless there is nothing left to wait for on them and
        they are being retired. Gives the names of the workers that are kept.
        """
        names = None if among is None else frozenset(map(str, among))
        groups = [g for g in self._leaving if all(self._choosing.is_among(node, names) for node in g)]
        too_many = sum(map(self._leave, groups)) - going
        kept: list[Any] = []
        for group in reversed(groups):
            if too_many > 0 and self.engine.rounds.take_back(group, _WANTED):
                too_many -= self._leave(group)
                kept += [name for node in group for name in self._choosing.names(node)]
        return kept

    def _leave(self, group: list[Node]) -> int:
        """How many of a group leave the pool: see `Choosing.choose`."""
        return sum(self._choosing.size(node) for node in group if node.id not in self._spare)

    def _looked_at(self, choice: Choice) -> set[str]:
        """Those that have stayed before and could be chosen, or are gone."""
        nodes, among = self.engine.state.nodes.nodes, choice.among
        return {id for id in self.refused if id not in nodes or self._choosing.is_among(nodes[id], among)}

    def _note(self, gone: Iterable[str], stay: dict[str, str]) -> None:
        """Remember and say why nodes stay that should have gone."""
        for node in gone:
            self.refused.pop(node, None)
        for node, why in stay.items():
            if self.refused.get(node) != why:
                logger.warning("Node %s stays: %s", node, why)
        self.refused |= stay

    def _let_go(self, group: list[Node], count: int) -> Awaitable[dict[str, Any]]:
        so_many = self._choosing.counted(count)
        reason = Reason(ReasonCode.USER_REQUEST, f"{so_many} of the pool to be released")
        names = {node.id: self._choosing.names(node) for node in group if node.id not in self._spare}
        self._leaving.append(group)
        draining = drain(self.engine, group, reason)
        if draining.done():
            # it is quiet already, and takes nothing from those that leave beside it
            leaving = {at for node in draining.result()[0] if node.id in names for at in node.workers}
            takes = [ws.address for ws in self.scheduler.running if ws.address in leaving]
            data.give_no_more(self.scheduler, takes, "hpc-release")
        return self._retired(group, names, draining)

    async def _retired(
        self, group: list[Node], names: dict[str, list[Any]], draining: Awaitable[tuple[list[Node], str]]
    ) -> dict[str, Any]:
        try:
            drained, why = await draining
            if not drained:
                # recalled ones are none that could not leave
                stay = () if why == _WANTED.text else names
                return {"released": {}, "refused": dict.fromkeys(stay, why)}
            retired = await self._retire_nodes(drained)
        finally:
            self._leaving.remove(group)
        return {
            "released": {id: names[id] for id in names if id in retired},
            "refused": {id: NO_ROOM for id in names if id not in retired},
        }

    async def _let_go_by_force(self, group: list[Node], count: int) -> dict[str, Any]:
        names = {node.id: self._choosing.names(node) for node in group}
        within_s = self.engine.state.settings.shrink_deadline_s
        addresses = [address for node in group for address in node.workers]
        why = f"{self._choosing.counted(count)} of the pool to be released by force"
        await asyncio.gather(*(self.depart(address, within_s, why) for address in addresses))
        return {"released": names, "refused": {}}

    async def _retire_nodes(self, nodes: list[Node]) -> set[str]:
        """Have Dask move what only these nodes hold and retire them; gives the ids of those that did."""
        there = {node.id: set(node.workers) for node in nodes if node.id not in self._spare}
        addresses = [address for workers in there.values() for address in workers]
        retired: Collection[str] = ()
        try:
            if addresses:
                stock, how = self.scheduler.retire_workers, {"stimulus_id": "hpc-release"}
                retired = await data.retire_or_keep(self.scheduler, addresses, stock, **how)
        finally:
            state = self.engine.state
            gone = {id for id, workers in there.items() if workers <= set(retired)}
            for node in nodes:
                state.give([node], None)
            if len(gone) < len(nodes):
                self.engine.admission.scan(*state.plain)
        return gone

    # --------------------------------------------------- stock's retire and restart

    def wrap(self) -> None:
        """Have whatever asks Dask to retire workers, or to start them anew, go through here."""
        if not self._stock:
            for name, ours in self._ours.items():
                self._stock[name], self.scheduler.handlers[name] = self.scheduler.handlers[name], ours

    def unwrap(self) -> None:
        """Put stock's handlers back."""
        for name, stock in self._stock.items():
            if self.scheduler.handlers.get(name) == self._ours[name]:
                self.scheduler.handlers[name] = stock
        self._stock.clear()

    async def restart(self, **options: Any) -> Any:
        """Stock's ``restart``, which waits for as many workers as before: those on their way out go first.

        All that has kept them is forgotten.
        """
        stock = self._stock["restart"]
        nodes = [node for group in self._leaving for node in group if node.id not in self._spare]
        addresses = [address for node in nodes for address in node.workers]
        await asyncio.gather(*(data.remove(self.scheduler, address) for address in addresses))
        return await stock(**options)

    async def retire(
        self, workers: Sequence[str] | None = None, names: Sequence[Any] | None = None, **options: Any
    ) -> Any:
        """Stock's ``retire_workers``, with the nodes drained first.

        Nodes that cannot be drained in time are left out, as stock leaves out those whose data cannot be
        moved. A worker that retires by itself, at the end of its lifetime, goes in any case (`depart`).
        """
        stock = self._stock["retire_workers"]
        how = {name: options.pop(name) for name in _HOW if name in options}
        if (workers is not None) + (names is not None) + bool(options) > 1:
            return await stock(workers=workers, names=names, **how, **options)  # which says what is wrong
        leaving = reads.to_retire(self.scheduler, workers, names, options)
        if str(how.get("stimulus_id", "")).startswith("worker-close-gracefully"):
            within_s = self.engine.state.settings.shrink_deadline_s
            why = "its lifetime is over"
            return {address: await self.depart(address, within_s, why, ends=True) for address in leaving}
        async with self.engine.kept_awake():
            await self._until_free(leaving)
            whole, others, stay = self._whole_nodes(leaving)
            parts = {address: self.engine.state.nodes.at[address].id for address in others}
            groups = self._by_holder(whole)
            cause = how.get("stimulus_id", "")
            whys = [why_retired(self.engine, group, len(leaving), cause) for group in groups]
            drains = [drain(self.engine, group, why) for group, why in zip(groups, whys, strict=True)]
            drained: list[Node] = []
            self._leaving += groups
            try:
                found, busy = await asyncio.gather(asyncio.gather(*drains), finish(self.engine, parts))
                for group, (quiet, why) in zip(groups, found, strict=True):
                    drained += quiet
                    if why != _WANTED.text and not quiet:
                        stay |= dict.fromkeys((node.id for node in group), why)
                stay |= {parts[address]: NOT_ENDED for address in busy}
            finally:
                self._leaving = [group for group in self._leaving if group not in groups]
            there = {node.id: set(node.workers) for node in drained}
            addresses = [address for address in parts if address not in busy]
            addresses += [address for node in drained for address in node.workers]
            retired: Any = {}
            try:
                if addresses:
                    retired = await data.retire_or_keep(self.scheduler, addresses, stock, **how)
            finally:
                stay |= {id: NO_ROOM for id, held in there.items() if not held <= set(retired)}
                data.take_again(self.scheduler, parts.keys() - set(retired), "hpc-release")
                self._note({*there, *parts.values()} - stay.keys(), stay)
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
        vetoes = {node.id: self._choosing.veto(node) for node in nodes.values()}
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
