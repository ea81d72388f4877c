"""Departures: workers that will be gone in a while, whatever is left on them.

The end of a walltime, a notice, SIGTERM and the end of a lifetime cannot be refused. The worker gets no
new tasks, finishes what it executes while there is time, and what only it holds is moved to others; what
nobody has room for is written to disk (``hpc.spill.directory``). Actors move if their class gives their
state. What has to be lost is named: in the answer, in the log, and in the event topic of the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import data, reads
from dask_hpc.scheduler.leaving.actors import Actors
from dask_hpc.scheduler.leaving.releases import drain
from dask_hpc.scheduler.leaving.spilled import Spilled
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc_policies.decision import Reason, ReasonCode

logger = logging.getLogger(__name__)

#: What becomes of the keys of an answer, in words.
_SAID = {"executing": "to be run again", "lost": "lost with it", "actors": "actors that end with it"}
_SPILLED = "Worker %s leaves (%s); %d of its results are on disk and come back with the next worker"
#: Keys named in a line of the log.
_NAMED = 20
#: How often a worker with room is looked for.
_LOOK_S = 0.5
#: What is left of a worker: keys of tasks that were cut short and run again elsewhere (``executing``), of
#: results and scattered data that nobody else could take (``lost``), and of its ``actors``. Keys that are
#: on disk (``spilled``) come back.
Left = dict[str, list[str]]


class Departures:
    """Empties workers that have to go."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        #: The whole cluster is going: nothing has to be moved any more.
        self.closing = False
        self.spilled = Spilled(engine.scheduler)
        self.actors = Actors(engine.scheduler)
        #: Departures under way, by the addresses that leave together.
        self._under_way: dict[tuple[str, ...], asyncio.Task[dict[str, Left]]] = {}

    async def depart(self, address: str, within_s: float, why: str) -> Left:
        """A worker will be gone in `within_s` seconds; says what is left of it.

        All workers of a batch job depart together (``hpc.node.by: job``), when the first of them does.
        """
        scheduler = self.engine.scheduler
        nothing: Left = {"executing": [], "lost": [], "actors": [], "spilled": []}
        if self.closing or address not in scheduler.workers:
            return nothing
        async with self.engine.kept_awake():
            table = self.engine.state.nodes
            node = table.at.get(address)
            together: tuple[str, ...] = (address,)
            if node is not None and table.by == "job":
                together = tuple(sorted(node.workers))
            if together not in self._under_way:
                task = asyncio.ensure_future(self._leave(together, node, within_s, why))
                self._under_way[together] = task
                task.add_done_callback(lambda _: self._under_way.pop(together, None))
            answers = await asyncio.shield(self._under_way[together])
        return answers.get(address, nothing)

    async def _leave(
        self, addresses: tuple[str, ...], node: Node | None, within_s: float, why: str
    ) -> dict[str, Left]:
        scheduler, state = self.engine.scheduler, self.engine.state
        deadline_s = state.now_s() + within_s
        whole = node is not None and set(node.workers) == set(addresses) and not node.reserved
        if whole and node is not None:
            reason = Reason(ReasonCode.USER_REQUEST, f"{node.id} leaves: {why}")
            moving_s = reads.moving_s(scheduler, addresses)
            reserved_s = 0.0
            if not reads.others_running(scheduler, addresses):
                reserved_s = self._writing_s(addresses, within_s)
            await drain(self.engine, [node], reason, max(0.0, within_s - moving_s - reserved_s))
        executing = {address: reads.keys_on(scheduler, address) for address in addresses}
        answers: dict[str, Left] = {}
        await self._move_off(addresses, within_s, deadline_s, why)
        spilled = await self._spill(addresses, deadline_s)
        # from here on nothing else happens until the first of them is out of the scheduler
        self.spilled.release((key for keys in spilled.values() for key in keys), addresses)
        for address in addresses:
            there = address in scheduler.workers
            # what one of them holds and another one, too, is lost all the same
            lost = reads.sole_keys(scheduler, {address}, addresses) if there else []
            answers[address] = {
                "executing": reads.unfinished(scheduler, executing[address]),
                "lost": lost,
                "actors": reads.actors_on(scheduler, address) if there else [],
                "spilled": spilled.get(address, []),
            }
            if any(answers[address].values()):
                self._announce(address, why, answers[address])
            await data.remove(scheduler, address)
        if whole and node is not None:
            state.give([node], None)
        return {
            address: {what: [str(key) for key in keys] for what, keys in left.items()}
            for address, left in answers.items()
        }

    def _writing_s(self, addresses: Collection[str], within_s: float) -> float:
        """How much of `within_s` seconds writing what only these workers hold may need."""
        if self.engine.state.settings.spill_directory is None:
            return 0.0
        there = [address for address in addresses if address in self.engine.scheduler.workers]
        return self.spilled.writing_s(reads.sole_bytes(self.engine.scheduler, there), within_s)

    async def _spill(self, addresses: Collection[str], deadline_s: float) -> dict[str, list[Any]]:
        """Write what only these workers hold to disk, if the user wants that; gives the keys by worker."""
        scheduler, state = self.engine.scheduler, self.engine.state
        directory = state.settings.spill_directory
        there = [address for address in addresses if address in scheduler.workers]
        keys = reads.sole_keys(scheduler, there, addresses)
        if directory is None or not keys or self.closing:
            return {}
        return await self.spilled.write(directory, keys, addresses, deadline_s - state.now_s())

    async def _move_off(self, addresses: Sequence[str], within_s: float, deadline_s: float, why: str) -> None:
        """Move what only these workers hold, actors first; where nobody has room, wait for a worker that has.

        As long before the deadline as writing may need it is given up.
        """
        scheduler, state = self.engine.scheduler, self.engine.state
        waited = False
        there = [address for address in addresses if address in scheduler.workers]
        actors = await self.actors.movable(there)
        while True:
            staying = [address for address, node in state.nodes.at.items() if not node.reserved]
            reserved_s = self._writing_s(addresses, within_s)
            while actors and (target := reads.host_for_actor(scheduler, addresses, staying)) is not None:
                # data needs time, too, if a call of the actor takes for ever
                left_s = max(1.0, (deadline_s - reserved_s - state.now_s()) / 3)
                key, source = actors.popitem()
                await self.actors.move(key, source, target, left_s)
            if not waited or reads.others_running(scheduler, addresses):
                left_s = max(1.0, deadline_s - reserved_s - state.now_s())
                await data.move_off(scheduler, addresses, staying, left_s)
            there = [address for address in addresses if address in scheduler.workers]
            keys = reads.sole_keys(scheduler, there, addresses)
            left_s = deadline_s - reserved_s - state.now_s()
            if not (keys or actors) or left_s <= 0 or self.closing:
                return
            if not waited and keys:
                text = "Worker %s leaves (%s) and nobody has room for %d of its results; waiting %.0f s"
                logger.warning(text, ", ".join(there), why, len(keys), left_s)
            waited = True
            await asyncio.sleep(min(left_s, _LOOK_S))

    def _announce(self, address: str, why: str, left: Mapping[str, list[Any]]) -> None:
        if left["spilled"]:
            logger.warning(_SPILLED, address, why, len(left["spilled"]))
        for what, keys in left.items():
            if keys and what in _SAID:
                names = ", ".join(repr(key) for key in keys[:_NAMED])
                more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
                logger.warning("Worker %s leaves (%s); %s: %s%s", address, why, _SAID[what], names, more)
        event = {what: [str(key) for key in keys] for what, keys in left.items()}
        self.engine.scheduler.log_event(address, {"action": "hpc-departure", "reason": why, **event})
