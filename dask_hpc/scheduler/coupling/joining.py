"""Producers that come: which worker takes the blocks of each.

Producers may be thousands, and come long before whoever couples them. So who has to wait is answered late, at
most so often as it asks for that, and not woken before there is what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.again import Again
from dask_hpc.scheduler.coupling.bells import Bell, rung
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.coupling.workers import Workers
from dask_hpc_policies.coupling.turns import Turns

#: A producer that has to wait is answered by then, in seconds: it may be gone.
_MOST_S = 10.0
#: One that asks no more for a worker that is not there has given up after so many seconds.
_GIVEN_UP_S = 30.0


class Joining:
    """Producers of the flows of one scheduler, until they know their worker.

    Parameters
    ----------
    named, found
        The open flow of a name, if there is one; that of an id, `CouplingError` when it is no more.
    """

    def __init__(
        self,
        engine: Engine,
        workers: Workers,
        again: Again,
        named: Callable[[str], Flow | None],
        found: Callable[[str], Flow],
    ) -> None:
        self._workers, self._again = workers, again
        self._named, self._found = named, found
        self._bell = Bell()
        #: When a producer has last asked for a worker where none was.
        self._lacked_s = float("-inf")

    def waits(self) -> bool:
        """Whether a producer waits for a worker."""
        return stopwatch_s() - self._lacked_s < _GIVEN_UP_S

    def ring(self) -> None:
        """A flow was declared."""
        self._bell.ring()

    async def flow_join(
        self, name: str, rank: int, size: int, token: str, hosts: Sequence[str], before: str | None = None,
        lost: str | None = None, last: int | None = None, kept: Sequence[int] = (), within_s: float = 0.0,
    ) -> dict[str, Any]:  # fmt: skip
        """Where the blocks of a producer go, all that it has to know; or ``wait``: why it has to ask again.

        Parameters
        ----------
        token, hosts
            Drawn by the producer; names and addresses of its host.
        before, lost, last
            Id of the flow that it has joined before, the worker that it cannot reach any more, and the last
            step that it has sent there.
        kept
            Steps that it can send again.
        within_s
            How long it waits for the flow and for the others, in seconds, before it is told to wait.

        Raises
        ------
        ValueError
            For a rank that another producer has, or another `size` than others have said.
        CouplingError
            When the flow has failed.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(within_s, _MOST_S)
        if before is not None:
            self._found(before)
        waited = False
        while (flow := self._named(name)) is None:
            waited = True
            if not await rung(self._bell, until_s - loop.time()):
                return {"wait": f"there is no flow {name!r} (rt.couple declares one)"}
        if waited:
            # it may be gone by now, and would keep its rank from one that is started anew
            return {"wait": f"flow {name!r} was declared a moment ago", "again_s": 0}
        flow.check()
        if flow.inside:
            raise CouplingError(f"flow {name!r} is that of a program on the cluster; declare another flow")
        there = flow.ranks.get(rank)
        if there is None or there.token != token:
            if flow.on_its_way(rank):
                return {"wait": f"another source of rank {rank} is on its way"}
            flow.admit(rank, size, token, hosts)
        # Dask serves a connection by a task that ends with it
        flow.ranks[rank].served = asyncio.current_task()
        while len(flow.ranks) < size:
            if not await rung(flow.bell, until_s - loop.time()):
                missing = next(one for one in range(size) if one not in flow.ranks)
                return {"wait": f"rank {missing} of {size} has not come"}
            flow.check()
        if flow.ranks[rank].token != token:
            raise ValueError(f"rank is {rank}, which another source of {name!r} that came later has")
        return self._placed(flow, rank, lost, last, kept)

    async def flow_moves(self, flow: str, place: int, worker: str) -> bool:
        """Whether what goes to a place goes to another worker than this one from now on, between two steps.

        Its producers come and ask for that one.
        """
        found = self._found(flow)
        found.check()
        if found.places[place] == worker and place not in found.adrift:
            if not self._workers.has_next(found, worker):
                return False
            self._again.left(found, place)
        return True

    def _placed(
        self, flow: Flow, rank: int, lost: str | None, last: int | None, kept: Sequence[int]
    ) -> dict[str, Any]:
        try:
            workers = self._workers.hosts(flow.client)
        except CouplingError as error:
            # the first may be about to come, or one in the place of one that is lost
            self._lacked_s = stopwatch_s()
            return {"wait": str(error)}
        self._lacked_s = float("-inf")
        if not flow.places:
            _place(flow, workers)
            flow.say("ready", places=len(flow.places))
        place = flow.ranks[rank].place
        if place in flow.adrift:
            # also where another has come in its place and was lost before anybody reached it
            flow.move(place, workers)
        elif flow.places[place] == lost and not flow.ranks[rank].moved:
            return {"wait": f"worker {lost} does not answer"}
        flow.ranks[rank].moved = False
        again = [] if lost is None else self._again.wanted(flow, place, lost, last, kept)
        return flow.joined(place) | {"again": again}


def _place(flow: Flow, workers: Mapping[str, Collection[str]]) -> None:
    """Choose the worker of every producer, now that all are there.

    Those on a producer's host come first, and of these the one that has the fewest; `workers` gives the
    names and addresses of each worker's host.
    """
    count = dict.fromkeys(sorted(workers), 0)
    on: dict[str, list[str]] = {}
    for address in count:
        for host in workers[address]:
            on.setdefault(host, []).append(address)
    of: dict[str, list[int]] = {}
    for number in sorted(flow.ranks):
        rank = flow.ranks[number]
        near = sorted({address for host in rank.hosts for address in on.get(host, ())})
        chosen = min(near or count, key=count.__getitem__)
        count[chosen] += 1
        of.setdefault(chosen, []).append(number)
    flow.places, flow.members = list(of), list(of.values())
    for place, members in enumerate(flow.members):
        for number in members:
            flow.ranks[number].place = place
    flow.turns = Turns(flow.queue, flow.when_full, len(flow.places))
    flow.widen(flow.window)
    flow.await_all(flow.ranks)
