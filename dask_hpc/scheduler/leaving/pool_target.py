"""How many workers a cluster should have: the pool policy on what tasks, jobs and the job policy ask for.

Stock looks at tasks alone. A job that waits for eight nodes has none that run, and a job between two
steps has none at all: without this, an adaptive cluster would never grow for the one, and take the
nodes of the other away. What a job keeps is said in `dask_hpc_policies.rules.giving_back`. A job policy that
requests and releases nodes takes the place of stock's answer.

Whoever asks, stock's `Adaptive` or ours, the pool policy answers (`dask_hpc_policies.pool`), with one
memory for both. Only ours tells which nodes are on their way and within which bounds; only from ours do jobs
that rest get nodes back, because stock's closes also those that may not leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dask
from dask.utils import parse_timedelta

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals.demand import demand_without
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import Away
from dask_hpc.scheduler.tables.parts import Enactor
from dask_hpc_policies import pool
from dask_hpc_policies.decision import Outcome, Reason, ReasonCode, ReleaseNodes, RequestNodes
from dask_hpc_policies.model import COMPUTE
from dask_hpc_policies.protocol import Policy
from dask_hpc_policies.rules.dask_default import target_nodes
from dask_hpc_policies.rules.giving_back import kept_nodes

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: RPC by which adaptive clusters ask how many workers there should be.
TARGET = "adaptive_target"
#: Nobody who has asked longer ago than this still follows the answers.
_FOLLOWED_S = 300.0


class PoolTarget:
    """Answers adaptive clusters.

    Parameters
    ----------
    coupled
        Whether a program outside Dask needs a node: it has no task that would ask for one.
    """

    def __init__(self, engine: Engine, coupled: Callable[[], bool]) -> None:
        self.engine, self._coupled = engine, coupled
        self._stock: Any = None
        self._memory = pool.PoolState()
        self._asked_s: float | None = None
        #: Most workers that there may be; None: no limit.
        self._most: int | None = None
        #: Whether jobs that rest give nodes back: who asks lets those stay that may not leave.
        self._gives_back = False
        #: Most workers of a node that were seen.
        self._per_node = 1.0
        #: What a job policy has asked for last, in nodes, with the policy.
        self._wish: tuple[Policy, int] | None = None

    def enactors(self) -> Mapping[type[Any], Enactor]:
        """It follows what a job policy asks of the pool."""
        return {RequestNodes: self.take, ReleaseNodes: self.take}

    def section(self) -> Mapping[str, Any]:
        """How nodes come to a cluster that follows the load: the wait for one, and how many there may be."""
        if not self._followed:
            self.engine.state.nodes.away = Away()
            return {}
        told: dict[str, Any] = {"wait_s": self._memory.startup_s} if self._memory.waits_s else {}
        if self._most is not None:
            told["most_nodes"] = math.floor(self._most / self._workers_per_node())
        return {"pool": told}

    def wrap(self) -> None:
        """Answer whoever asks for the target."""
        handlers = self.engine.scheduler.handlers
        if self._stock is None:
            self._stock = handlers[TARGET]
            handlers[TARGET] = self.target

    def unwrap(self) -> None:
        """Let stock answer again."""
        if self._stock is not None and self.engine.scheduler.handlers.get(TARGET) == self.target:
            self.engine.scheduler.handlers[TARGET] = self._stock
        self._stock = None

    def target(self, **options: Any) -> int:
        """Workers that there should be, for stock's `Adaptive`, which tells nothing about them."""
        always = self.engine.state.settings.pool_stock == "always"
        if not (self.engine.awake or always or self._coupled()):
            # it has asked for what a cluster without the package does
            stock: int = self._stock(**options)
            return stock
        there = [ws.name for ws in self.engine.scheduler.workers.values()]
        return self.decide(there=there, pending=None, **options).nodes

    def decide(
        self,
        there: Iterable[Any],
        pending: Iterable[Any] | None = (),
        leaving: Iterable[Any] = (),
        queued: Collection[Any] = (),
        minimum: int = 0,
        maximum: int | None = None,
        elsewhere: Collection[str] = (),
        resources: Collection[str] = (),
        unit: str = "node",
        **options: Any,
    ) -> pool.PoolDecision:
        """Workers that there should be, and why.

        Parameters
        ----------
        there, pending, leaving
            Names of workers that are connected and stay, were asked for and have not come (None: who asks
            does not know), go.
        queued
            Of those that were asked for they wait for a node that is still others'.
        minimum, maximum
            Bounds, in workers; None: no limit.
        elsewhere, resources
            Names of workers that are none of these, and of the resources that only they have: they do a part
            of the work, and what only they may run is not counted.
        unit
            What a worker is called in the reason.
        **options
            Those of stock's `adaptive_target`.
        """
        now_s = self._asked_s = self.engine.state.now_s()
        self._most = maximum
        there, leaving = list(there), list(leaving)
        pending = None if pending is None else list(pending)
        self._note_away(len(there) + len(leaving), len(pending or ()), len(queued), len(there) - minimum)
        self._gives_back = pending is not None
        view = pool.PoolView(
            now_s=now_s,
            demand_nodes=self._demand(frozenset(elsewhere), frozenset(resources), **options),
            there=frozenset(map(str, there)),
            pending=None if pending is None else frozenset(map(str, pending)),
            leaving=frozenset(map(str, leaving)),
            minimum_nodes=minimum,
            maximum_nodes=maximum,
            unit=unit,
        )
        view = self._within_range(view, frozenset(elsewhere))
        params = {"hold_s": self.engine.state.settings.pool_hold_s}
        decision, self._memory = pool.decide(view, self._memory, params)
        return replace(decision, stay=decision.stay | self._aside(elsewhere))

    def _note_away(self, up: int, coming: int, queued: int, spare: int) -> None:
        """Note which nodes are not there, from numbers of workers."""
        per_node, most = self._workers_per_node(), self._most
        off = 0 if most is None else max(0, math.floor((most - up - coming) / per_node))
        starting = math.ceil((coming - queued) / per_node)
        nodes, beyond = self.engine.state.nodes, max(0, math.floor(spare / per_node))
        up_now = nodes.up() if self.engine.awake else None
        nodes.away = Away(starting=starting, off=off, up=up_now, spare=beyond)

    def _within_range(self, view: pool.PoolView, elsewhere: frozenset[str]) -> pool.PoolView:
        """The view with what a power corridor leaves the pool, in workers; its own bounds come first."""
        allowed = self.engine.state.pool_range
        if allowed is None:
            return view
        workers, per_node = self.engine.scheduler.workers.values(), self._workers_per_node()
        others = sum(str(ws.name) in elsewhere and self._computes(ws) for ws in workers)
        more = len(self._aside(elsewhere)) - others
        enough = None if allowed.enough is None else math.ceil(allowed.enough * per_node) + more
        least, most = math.ceil(allowed.least * per_node) + more, math.floor(allowed.most * per_node) + more
        again = math.ceil(allowed.again * per_node) + more if allowed.again else 0
        return pool.within(view, least, most, enough, again)

    def take(self, action: RequestNodes | ReleaseNodes) -> Outcome:
        """Have the pool follow a job policy's action; refused when nobody asks for the target."""
        if not self._followed:
            text = "the cluster does not follow the load: switch that on with cluster.adapt()"
            why = Reason(ReasonCode.POOL_NOT_MANAGED, text)
            return Outcome(action=action, result="refused", reason=why)
        self._wish = (self.engine.controller.policy, action.nodes)
        return Outcome(action=action, result="done", reason=action.reason)

    @property
    def _followed(self) -> bool:
        """Whether somebody acts on the answers."""
        asked_s = self._asked_s
        return asked_s is not None and self.engine.state.now_s() - asked_s <= _FOLLOWED_S

    def _workers_per_node(self) -> float:
        up = [len(node.workers) for node in self.engine.state.nodes.nodes.values() if node.up]
        if not up:
            return self._per_node
        # of a pool without a node those that come are like those that were there, before they began to go
        self._per_node = max(self._per_node, sum(up) / len(up))
        return sum(up) / len(up)

    def _demand(self, elsewhere: Collection[str], resources: Collection[str], **options: Any) -> int:
        """Workers that are asked for now, by whomever, besides those `elsewhere`."""
        workers = self.engine.scheduler.workers.values()
        there = sum(str(ws.name) in elsewhere for ws in workers if self._computes(ws))
        # what is not for computing takes no part in it, and stays
        return len(self._aside(elsewhere)) + self._computing(there, elsewhere, resources, **options)

    def _computes(self, ws: WorkerState) -> bool:
        return self.engine.state.role_of(ws) == COMPUTE

    def _aside(self, elsewhere: Collection[str]) -> frozenset[str]:
        """Names of workers that are not for computing, besides those `elsewhere`."""
        workers = self.engine.scheduler.workers.values()
        return frozenset(str(ws.name) for ws in workers if not self._computes(ws)) - frozenset(elsewhere)

    def _computing(
        self, there: int, elsewhere: Collection[str], resources: Collection[str], **options: Any
    ) -> int:
        """Workers that should compute, besides the `there` ones elsewhere that do."""
        state = self.engine.state
        workers_per_node = self._workers_per_node()
        needed = math.ceil(self._needed() * workers_per_node) - there
        if self._wish is not None and self.engine.awake and self._wish[0] is self.engine.controller.policy:
            return max(0, needed, math.ceil(self._wish[1] * workers_per_node) - there)
        # a policy that is asked no more, or is not there any more, asks for nothing
        self._wish = None
        if not elsewhere and not resources and not state.awaited:
            stock: int = self._stock(**options)
            return max(needed, stock)
        rest, workers = demand_without(state.scheduler, elsewhere, resources)
        workers = [ws for ws in workers if self._computes(ws)]
        duration = options.get("target_duration") or dask.config.get("distributed.adaptive.target-duration")
        nthreads = sum(ws.nthreads for ws in workers)
        target = target_nodes(rest, len(workers), nthreads, parse_timedelta(duration))
        return max(0, needed, target - sum(str(ws.name) in elsewhere for ws in workers))

    def _needed(self) -> int:
        """Nodes that jobs keep or wait for, plain work that has something to do included; 0 without a job.

        One at least while a program outside Dask needs one.
        """
        state, least = self.engine.state, int(self._coupled())
        named = state.jobs.named
        if not named:
            return least
        held = sum(self._kept(job) for job in named if job.state != "pending")
        awaited = sum(job.smallest_start for job in named if job.state == "pending")
        return max(least, held + awaited + state.reserve_for_plain())

    def _kept(self, job: JobRecord) -> int:
        """Nodes that a job keeps."""
        rests = job.resting and self._gives_back
        nodes = [node for node in self.engine.state.nodes_of(job) if node.up]
        fixed = sum(self.engine.parts.veto(node, None) is not None for node in nodes) if rests else 0
        return kept_nodes(job.request, len(nodes), fixed, rests)
