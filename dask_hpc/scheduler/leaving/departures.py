"""Departures: workers that will be gone in a while, whatever is left on them.

The end of a walltime, a notice, SIGTERM and the end of a lifetime cannot be refused. The worker gets no
new tasks, finishes what it executes while there is time, and what only it holds is moved to others; what
nobody has room for is written to disk (``hpc.spill.directory``, or the store). Actors move if their class
gives their state. What has to be lost is named: in the answer, in the log, and in the event topic of the
worker.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import actor_homes, data, reads
from dask_hpc.scheduler.leaving.draining import drain
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.parts import Departure
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
        #: Departures under way, by the addresses that leave together.
        self._under_way: dict[tuple[str, ...], tuple[Departure, asyncio.Task[dict[str, Left]]]] = {}

    async def depart(self, address: str, within_s: float, why: str, *, ends: bool = False) -> Left:
        """A worker will be gone in `within_s` seconds; says what is left of it.

        All workers of a batch job depart together (``hpc.node.by: job``), when the first of them does. One
        that departs already and has less time than was said hurries.
        One that `ends` by itself, as it asks for this, is not told to: it may start anew.
        """
        scheduler, state = self.engine.scheduler, self.engine.state
        nothing: Left = {"executing": [], "lost": [], "actors": [], "spilled": []}
        if self.closing or address not in scheduler.workers:
            return nothing
        async with self.engine.kept_awake():
            table = state.nodes
            node = table.at.get(address)
            together: tuple[str, ...] = (address,)
            if node is not None and table.by == "job":
                together = tuple(sorted(node.workers))
            deadline_s = state.now_s() + within_s
            if together not in self._under_way:
                departure = Departure(together, why, within_s, deadline_s)
                task = asyncio.ensure_future(self._leave(departure, node))
                self._under_way[together] = departure, task
                task.add_done_callback(lambda _: self._under_way.pop(together, None))
            departure, task = self._under_way[together]
            if ends:
                departure.ending.add(address)
            if deadline_s < departure.deadline_s:
                departure.why, departure.within_s, departure.deadline_s = why, within_s, deadline_s
                if node is not None:
                    self.engine.rounds.hurry([node], self._drained_within_s(departure))
            answers = await asyncio.shield(task)
        return answers.get(address, nothing)

    def _drained_within_s(self, departure: Departure) -> float:
        """How long what executes may take from now on: what is to be moved or written needs the rest."""
        scheduler, addresses = self.engine.scheduler, departure.addresses
        there = [address for address in addresses if address in scheduler.workers]
        left_s = departure.deadline_s - self.engine.state.now_s() - reads.moving_s(scheduler, there)
        if not reads.others_running(scheduler, addresses):
            left_s -= self.engine.parts.reserved_s(departure)
        return max(0.0, left_s)

    async def _leave(self, departure: Departure, node: Node | None) -> dict[str, Left]:
        scheduler, state, addresses = self.engine.scheduler, self.engine.state, departure.addresses
        whole = node is not None and set(node.workers) == set(addresses)
        await self._finish(departure, node if whole else None)
        whole = whole and node is not None and not node.reserved
        if whole and node is not None:
            reason = Reason(ReasonCode.USER_REQUEST, f"{node.id} leaves: {departure.why}")
            await drain(self.engine, [node], reason, self._drained_within_s(departure))
        executing = {address: reads.keys_on(scheduler, address) for address in addresses}
        answers: dict[str, Left] = {}
        try:
            await self._empty(departure)
            # from here on nothing else happens until the first of them is out of the scheduler
            self._let_go(departure)
            for address in addresses:
                there = address in scheduler.workers
                # what one of them holds and another one, too, is lost all the same
                lost = reads.sole_keys(scheduler, {address}, addresses) if there else []
                answers[address] = {
                    "executing": reads.unfinished(scheduler, executing[address]),
                    "lost": lost,
                    "actors": actor_homes.actors_on(scheduler, address) if there else [],
                    "spilled": departure.kept.get(address, []),
                }
                if any(answers[address].values()):
                    self._announce(address, departure.why, answers[address])
                await data.remove(scheduler, address, close=address not in departure.ending)
        finally:
            if whole and node is not None:
                # also when that has failed: no other worker of its host would get a task
                state.give([node], None)
        return {
            address: {what: [str(key) for key in keys] for what, keys in left.items()}
            for address, left in answers.items()
        }

    async def _finish(self, departure: Departure, node: Node | None) -> None:
        """Let what executes, and shuffles, end where somebody else drains the node already.

        None: others stay on it, so the workers alone get nothing new.
        """
        scheduler, state = self.engine.scheduler, self.engine.state
        deadline_s = until_s = math.inf
        while (node is None or node.reserved) and any(
            reads.keys_on(scheduler, address) or reads.shuffles_on(scheduler, address)
            for address in departure.addresses
        ):
            if node is None:
                # in every look: a worker that was paused may say that it takes tasks again
                data.give_no_more(scheduler, departure.addresses, "hpc-departure")
            if departure.deadline_s < deadline_s:
                # reckoned once for each deadline, as for a drain: there may be many results
                deadline_s = departure.deadline_s
                until_s = state.now_s() + self._drained_within_s(departure)
            if state.now_s() >= until_s:
                break
            await asyncio.sleep(state.settings.sweep_s)

    async def _empty(self, departure: Departure) -> None:
        """Have the parts save what they can; where nobody has room, wait for a worker that has.

        As long before the deadline as parts reserve it is given up; then each has a last look.
        """
        scheduler, state, parts = self.engine.scheduler, self.engine.state, self.engine.parts
        while await parts.leave(departure):
            left_s = departure.deadline_s - parts.reserved_s(departure) - state.now_s()
            if left_s <= 0 or self.closing:
                break
            there = [address for address in departure.addresses if address in scheduler.workers]
            keys = reads.sole_keys(scheduler, there, departure.addresses)
            if not departure.waits and keys:
                text = "Worker %s leaves (%s) and nobody has room for %d of its results; waiting %.0f s"
                logger.warning(text, ", ".join(there), departure.why, len(keys), left_s)
            departure.waits += 1
            await asyncio.sleep(min(left_s, _LOOK_S))
        if not self.closing:
            departure.last = True
            await parts.leave(departure)

    def _let_go(self, departure: Departure) -> None:
        """Have what comes back without the workers come back, but for what others have got meanwhile."""
        scheduler = self.engine.scheduler
        kept = {key for held in departure.kept.values() for key in held}
        if kept:
            there = [address for address in departure.addresses if address in scheduler.workers]
            sole = reads.sole_keys(scheduler, there, departure.addresses)
            data.let_go(scheduler, [key for key in sole if key in kept], there, "hpc-departure")

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
