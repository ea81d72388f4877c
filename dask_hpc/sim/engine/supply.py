"""Nodes that are asked for, come, are given back and go: what a batch system does, in one run.

Rules of the file: a request brings what computes and what is on its way up to its number, a release brings
both down to it: what has not come goes first (what was asked for last before the rest), then what is idle,
the node with the least walltime left first. A node that a job holds never goes by a release. Each action has
an outcome with a reason, also where less was done than asked for (`ReasonCode.CLAMPED`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import exp, inf, log

from dask_hpc.errors import SimulationError
from dask_hpc.sim.engine.active import ActiveJob
from dask_hpc.sim.engine.calendar import NODE_GOES, NODE_GRANTED, NODE_UP, Calendar
from dask_hpc.sim.engine.failures import Lost, survives
from dask_hpc.sim.engine.nodes import NodePool
from dask_hpc.sim.engine.world import World
from dask_hpc.sim.model.pool import Pool
from dask_hpc_policies.decision import Outcome, Reason, ReasonCode, ReleaseNodes, RequestNodes
from dask_hpc_policies.wording import counted

#: Actions at one moment after which a policy is taken to go round in circles.
_MOST_ACTIONS = 10_000


@dataclass(slots=True)
class Moves:
    """How many nodes have moved in a run, one by one."""

    #: Asked for, and of these withdrawn before they came; came; given back; gone at the end of a walltime.
    requested: int = 0
    withdrawn: int = 0
    came: int = 0
    released: int = 0
    expired: int = 0


class Supply:
    """The nodes that come and go in one run; none does without `Machine.pool`."""

    def __init__(self, world: World, calendar: Calendar, nodes: NodePool) -> None:
        self._world = world
        self._calendar = calendar
        self._nodes = nodes
        self._pool = world.machine.pool
        # a stream of its own: failures are the same with and without requests
        self._rng = random.Random(f"pool {world.options.seed}")
        #: Nodes on their way, in the order in which they were asked for.
        self._coming: dict[int, None] = {}
        #: Grows whenever a node is asked for, comes or goes: entries of the calendar with another number are
        #: stale.
        self._lives = [0] * (world.machine.nodes if self._pool is not None else 0)
        self.moves = Moves()
        #: Nodes that are there over time, failed ones too: (time, nodes from then on).
        self.steps: list[tuple[float, int]] = []
        #: Time of the latest action, and how many there were at that very time.
        self._acted_s = -inf
        self._acted = 0

    def begin(self) -> None:
        """The run begins now: from here on the walltimes of the nodes that are there count."""
        pool = self._pool
        if pool is None:
            return
        given = pool.initial_walltimes_s
        for node in range(pool.initial_nodes):
            self._stay(node, given[node] if node < len(given) else pool.walltime_s)
        self._step()

    # ---------------------------------------------------------------- actions

    def request(self, action: RequestNodes) -> Outcome:
        """Ask for nodes until there are, or are on their way, as many as the action says."""
        pool = self._granting(action)
        if isinstance(pool, Outcome):
            return pool
        there, coming = self._nodes.computing, len(self._coming)
        missing = action.nodes - there - coming
        text = f"{counted(there)} there and {coming} on their way"
        if missing <= 0:
            return _done(action, Reason(ReasonCode.DONE, f"{text}: none is missing"))
        absent = self._nodes.absent
        off = sorted(node for node, state in absent.items() if state == "off")[:missing]
        for node in off:
            self._ask(node, pool)
        if len(off) == missing:
            return _done(action, Reason(ReasonCode.DONE, f"{text}: {missing} more asked for"))
        total = self._nodes.total
        text += f": {len(off)} of {missing} more asked for, the machine has {total} in all"
        return self._less(action, len(off), Reason(ReasonCode.CLAMPED, text))

    def release(self, action: ReleaseNodes) -> Outcome:
        """Give nodes back until there are, or are on their way, no more than the action says."""
        pool = self._granting(action)
        if isinstance(pool, Outcome):
            return pool
        there, coming = self._nodes.computing, len(self._coming)
        surplus = there + coming - max(0, action.nodes)
        text = f"{counted(there)} there and {coming} on their way"
        if surplus <= 0:
            return _done(action, Reason(ReasonCode.DONE, f"{text}: none is to go"))
        withdrawn = self._withdraw(surplus)
        ends_s = self._nodes.ends_s
        idle = sorted(self._nodes.free_ids(), key=lambda node: (ends_s.get(node, inf), node))
        going = idle[: max(0, min(surplus - withdrawn, self._nodes.idle))]
        for node in going:
            self._leave(node)
        self.moves.released += len(going)
        if going:
            self._world.news.changed("node-lost")
        gone = withdrawn + len(going)
        text += f": {withdrawn} not waited for any more, {len(going)} given back"
        if gone == surplus:
            return _done(action, Reason(ReasonCode.DONE, text))
        text += f" of {surplus}; jobs hold the others, or are about to"
        return self._less(action, gone, Reason(ReasonCode.CLAMPED, text))

    def _granting(self, action: RequestNodes | ReleaseNodes) -> Pool | Outcome:
        """The pool that grants nodes, else the refusal.

        Raises
        ------
        SimulationError
            When nodes have been asked for so often at this moment that there seems to be no end to it.
        """
        now_s = self._world.now_s
        self._acted = self._acted + 1 if now_s == self._acted_s else 1
        self._acted_s = now_s
        if self._acted > _MOST_ACTIONS:
            raise SimulationError(
                f"the policy asks for nodes and gives them back for ever at {now_s:g} s: "
                f"{_MOST_ACTIONS} times without an end"
            )
        if self._pool is None or self._pool.wait_s is None:
            text = "the machine's nodes do not come and go: give it a pool whose wait_s is known"
            reason = Reason(ReasonCode.POOL_NOT_MANAGED, text)
            return Outcome(action=action, result="refused", reason=reason)
        return self._pool

    def _less(self, action: RequestNodes | ReleaseNodes, some: int, reason: Reason) -> Outcome:
        """The outcome of an action of which not all could be done: refused when nothing was."""
        if not some:
            return Outcome(action=action, result="refused", reason=reason)
        self._world.reduce(action, reason)
        return _done(action, reason)

    def _ask(self, node: int, pool: Pool) -> None:
        wait_s = pool.wait_s or 0.0
        if pool.wait_sigma and wait_s:
            wait_s = exp(self._rng.gauss(log(wait_s), pool.wait_sigma))
        self._nodes.become(node, "waiting")
        self._coming[node] = None
        self._lives[node] += 1
        self.moves.requested += 1
        self._enter(wait_s, NODE_GRANTED, node)

    def _withdraw(self, most: int) -> int:
        """Ask for at most so many of the nodes on their way no longer; gives how many."""
        latest = list(reversed(self._coming))
        absent = self._nodes.absent
        # those that start already are nearer; a sort keeps the order of what is equal
        chosen = sorted(latest, key=lambda node: absent[node] != "waiting")[: max(0, most)]
        for node in chosen:
            del self._coming[node]
            self._lives[node] += 1
            self._nodes.become(node, "off")
        self.moves.withdrawn += len(chosen)
        return len(chosen)

    # ------------------------------------------------- what the calendar says

    def granted(self, node: int, life: int) -> None:
        """A node that was asked for begins to start."""
        if life == self._lives[node]:
            assert self._pool is not None
            self._nodes.become(node, "booting")
            self._enter(self._pool.boot_s, NODE_UP, node)

    def up(self, node: int, life: int) -> bool:
        """A node that was asked for is there; False when it was withdrawn."""
        if life != self._lives[node]:
            return False
        assert self._pool is not None
        del self._coming[node]
        self._nodes.come(node)
        self._stay(node, self._pool.walltime_s)
        self.moves.came += 1
        self._step()
        return True

    def over(self, node: int, life: int) -> Lost | None:
        """The walltime of a node is over: it is off, whoever holds it; None when it has gone already."""
        if life != self._lives[node]:
            return None
        active = self._leave(node)
        self.moves.expired += 1
        return Lost(active, active is not None and survives(active))

    # ---------------------------------------------------------------- parts

    def _stay(self, node: int, walltime_s: float | None) -> None:
        """A node is there from now on, for so long."""
        self._lives[node] += 1
        if walltime_s is not None:
            self._nodes.ends_s[node] = self._world.now_s + walltime_s
            self._enter(walltime_s, NODE_GOES, node)

    def _leave(self, node: int) -> ActiveJob | None:
        self._lives[node] += 1
        active = self._nodes.leave(node)
        self._step()
        return active

    def _enter(self, after_s: float, kind: int, node: int) -> None:
        self._calendar.enter(self._world.now_s + after_s, kind, None, (node, self._lives[node]))

    def _step(self) -> None:
        now_s = self._world.now_s
        if self.steps and self.steps[-1][0] == now_s:
            self.steps.pop()
        self.steps.append((now_s, self._nodes.total - self._nodes.away))


def _done(action: RequestNodes | ReleaseNodes, reason: Reason) -> Outcome:
    return Outcome(action=action, result="done", reason=reason)
