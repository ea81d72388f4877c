"""Adaptive scaling by the pool policy; its shrinking loses nothing and never keeps the cluster from growing.

How many workers there should be, and which have just come and stay, the pool policy says
(`dask_hpc_policies.pool`), on the scheduler. Stock waits for workers to retire before it looks again, and
closes those that would not. Here workers leave in the background, those on their way out are not counted,
so that others come meanwhile, and those that could not go are left alone for a while.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import distributed

from dask_hpc.wire import FOLLOWS_LOAD

logger = logging.getLogger(__name__)

#: How long a worker that could not be released is not asked again.
_AGAIN_S = 10.0


class PolicyAdaptive(distributed.Adaptive):
    """`distributed.Adaptive` by the pool policy, for `dask_hpc.LocalCluster` and `dask_hpc.SLURMCluster`.

    Takes the same arguments, and ``interval`` and ``wait_count`` mean the same: how often it looks, and in
    how many looks in a row a worker must have been superfluous. A worker is so only when ``hpc.pool.hold``
    has passed since it was last needed, and since it came; looks that this took count.

    Examples
    --------
    >>> adaptive = cluster.adapt(minimum=1, maximum=20)  # doctest: +SKIP
    >>> adaptive.reason  # doctest: +SKIP
    '0 nodes asked for; all 6 are kept for 6 s after they were needed or came (hpc.pool.hold: auto, and they
    have taken 3 s to come)'
    """

    cluster: Any
    #: Why there should be as many workers as the latest look said.
    reason: str = ""
    #: Whether it is asking for another size just now.
    scaling: bool = False

    def __init__(self, cluster: Any = None, *args: Any, **kwargs: Any) -> None:
        before = getattr(cluster, "_adaptive", None)
        #: Names of workers on their way out, those that its predecessor lets go among them: see `_recall`.
        self.leaving: set[Any] = before.leaving if isinstance(before, PolicyAdaptive) else set()
        #: Until when workers that could not go are left alone, by name, on the loop's clock.
        self._kept_until_s: dict[Any, float] = {}
        self._releases: set[asyncio.Task[None]] = set()
        #: Names of workers that have just come, as the policy knows them.
        self._young: set[str] = set()
        #: How long workers have been kept that are superfluous now.
        self._hold_s = 0.0
        super().__init__(cluster, *args, **kwargs)

    @property
    def plan(self) -> set[Any]:
        """Names of workers that there should be."""
        return super().plan - self._going

    @property
    def requested(self) -> set[Any]:
        """Names of workers that have been started."""
        return super().requested - self._going

    @property
    def observed(self) -> set[Any]:
        """Names of workers that are connected."""
        return super().observed - self._going

    @property
    def _going(self) -> set[Any]:
        return self.leaving | self.cluster.expiring

    @property
    def elsewhere(self) -> dict[str, list[str]]:
        """Names of workers that are not counted here and do a part of the work, and what only they have."""
        return {}

    async def safe_target(self) -> int:
        """Workers that there should be, within the bounds, as whole nodes."""
        self.cluster.forget_ended()
        if not self.cluster.has_runtime:
            self._young, self._hold_s = set(), 0.0
            self.reason = "as stock Dask: the runtime was uninstalled"
            return self._whole_nodes(await super().safe_target())
        there = self.observed
        answer = await self.cluster.ask(
            "pool",
            there=list(there),
            pending=list(self.plan - there),
            queued=list((self.plan - there) & self.cluster.queued),
            leaving=list(self._going),
            unit="node" if self.cluster.workers_per_node == 1 else "worker",
            **self.elsewhere,
            minimum=self.minimum,
            maximum=None if math.isinf(self.maximum) else self.maximum,
            target_duration=self.target_duration,
        )
        self._young = set(answer["stay"])
        self._hold_s = answer["hold_s"]
        if answer["reason"] != self.reason:
            logger.debug("Pool: %s", answer["reason"])
        self.reason = answer["reason"]
        return self._whole_nodes(answer["nodes"])

    def _whole_nodes(self, workers: int) -> int:
        """So many workers as whole nodes, within the maximum."""
        size = self.cluster.workers_per_node
        nodes = math.ceil(workers / size)
        return size * (nodes if size * nodes <= self.maximum else int(self.maximum // size))

    async def workers_to_close(self, target: int) -> list[Any]:
        """Names of workers that should go: not those that go already, could not, or have just come."""
        now_s = asyncio.get_running_loop().time()
        self._kept_until_s = {name: at for name, at in self._kept_until_s.items() if at > now_s}
        stay = self._left_alone() | {name for name in self.observed if str(name) in self._young}
        # those that stay may be the first choice for ever: ask for as many more
        chosen = await super().workers_to_close(max(0, target - len(stay)))
        going = [name for name in chosen if name not in self._going and name not in stay]
        looks = int(self._hold_s / self.interval) if self.interval else 0
        counts: Any = self.close_counts
        for name in going:
            counts[name] = max(counts[name], min(looks, self.wait_count - 1))
        return going[: max(0, len(self.observed) - target)]

    def _left_alone(self) -> set[Any]:
        """Names of workers that are not asked to go now."""
        return set(self._kept_until_s)

    async def scale_up(self, n: Any) -> None:
        """Have `n` workers besides those on their way out."""
        await self._recall(n - len(self.plan))
        if self.state == "stopped":
            return  # meanwhile `adapt` was called anew, or `scale` by somebody who stopped this
        self.scaling = True
        try:
            await super().scale_up(n + len(self._besides()))
        finally:
            self.scaling = False

    def _besides(self) -> set[Any]:
        """Names of those on their way out that others come for now."""
        # what is being closed is specified no more, and its name may be given anew
        self.leaving &= self.cluster.plan
        # the cluster itself keeps successors and those they replace apart
        return self.leaving - self.cluster.expiring

    async def _recall(self, count: int) -> None:
        """Have up to `count` workers on their way out stay: they are there, others would have to come."""
        names = self._besides()
        nodes = len(self.cluster.together(names))
        if count > 0 and nodes and self.cluster.has_runtime:
            going = max(0, nodes - math.ceil(count / self.cluster.workers_per_node))
            kept = await self.cluster.ask("recall", going=going, among=list(names))
            self.leaving -= {name for name in self.leaving if str(name) in map(str, kept)}

    async def scale_down(self, workers: Any) -> None:
        """Let workers go in the background, each as soon as it can."""
        if self.state == "stopped":  # while it looked: how many there are is another's to say
            return
        groups = self.cluster.together(set(workers) - self.leaving)
        busy = self.cluster.busy()
        wait = [names for names in groups if not busy.isdisjoint(map(str, names))]
        # the others in one call: of several, the first would have data moved to workers that the next lets go
        idle = set().union(*groups).difference(*wait)
        for names in (*([idle] if idle else []), *wait):
            self.leaving |= names
            task = asyncio.ensure_future(self._release(names))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, names: set[Any]) -> None:
        try:
            await self.cluster.let_go(names, stimulus_id=FOLLOWS_LOAD)
            again_s = asyncio.get_running_loop().time() + _AGAIN_S
            self._kept_until_s |= dict.fromkeys(names & self.cluster.plan, again_s)
        finally:
            self.leaving -= names
