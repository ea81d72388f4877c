"""Cluster classes: drop-in replacements of the stock ones that lose nothing when they shrink.

Stock closes workers with what only they hold, and workers that Dask has refused to retire. Here every
way to a smaller cluster goes through the scheduler side first: `dask_hpc.scheduler.leaving.releases`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Self, cast

from dask.utils import parse_bytes
from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.deploy.spec import NoOpAwaitable

from dask_hpc.deploy.adaptive import PolicyAdaptive
from dask_hpc.deploy.arguments import adapt_options, check_counts, check_flags, check_scale
from dask_hpc.deploy.sizes import Sizes
from dask_hpc.deploy.specified import DEFAULT_POOL
from dask_hpc.deploy.with_runtime import WithRuntime
from dask_hpc.errors import DaskHPCError

logger = logging.getLogger(__name__)

#: The cluster does nothing any more.
ENDED = (Status.closing, Status.closed, Status.failed)
#: How long nodes that could not be released are left alone.
_AGAIN_S = 5.0
#: How long the scheduler has to hear that the cluster closes.
_CLOSING_S = 5.0
#: Clusters whose size was changed and not waited for yet, where it was changed.
_RESIZED: ContextVar[frozenset[weakref.ref[SafeScaling]]] = ContextVar("hpc_resized", default=frozenset())


class SafeScaling(WithRuntime, Sizes):
    """Scaling for clusters that are made of worker specifications: nothing is lost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Whether what was asked for last is to be had by force, by pool.
        self._force: dict[str, bool] = {}
        #: How often somebody has asked for a size, by pool; what the load wants does not count.
        self._asked: Counter[str] = Counter()
        #: Set when none of the workers of a pool that are too many could leave.
        self._stuck: dict[str, asyncio.Event] = {}
        #: What makes each pool smaller.
        self._shrinking: dict[str, asyncio.Task[None]] = {}
        super().__init__(*args, **kwargs)

    async def _start(self) -> Any:
        result = await super()._start()
        try:
            self._install()
        except Exception:
            await self._close()  # nobody else has it to close
            raise
        for pool in self._wanted:
            # it was asked for before there was anything to change
            cast(Any, self.loop).add_callback(self._adjust, pool)
        return result

    def _update_worker_status(self, op: str, msg: Any) -> None:
        if op == "remove":
            if msg not in self.scheduler_info["workers"]:
                return  # it died while it registered, and leaves without having come: stock would end here
            self._lost(self.scheduler_info["workers"][msg]["name"])
        # without stock's own look: it closes what stands for a worker that takes longer to start again
        Cluster._update_worker_status(self, op, msg)

    def _lost(self, name: Any) -> None:
        """A worker has left the scheduler; it may come again."""

    def scale(
        self,
        n: int = 0,
        memory: Any = None,
        cores: int | None = None,
        dry_run: bool = False,
        force: bool = False,
        **others: Any,
    ) -> Any:
        """Have `n` workers: grow at once, shrink as workers are emptied.

        Those that leave get no new tasks, finish what they execute, take part in shuffles to the end, and
        hand what only they hold to others. A worker that cannot be emptied (an actor lives there, nobody
        has room for its data, its tasks take longer than ``hpc.shrink-deadline``) stays; `refused` says
        why, and it is tried again. Workers of one host leave together where that is a node
        (``hpc.node.by: host``), and only if no more leave than are too many.

        Parameters
        ----------
        n, memory, cores
            As in stock: a number of workers, or as many as have that memory or those cores together.
        dry_run
            Change nothing; return what would be done.
        force
            Let also those go that cannot be emptied, or where an actor lives, when ``hpc.shrink-deadline``
            has passed. What is lost is named, in the log and in the events of the worker. Pinned workers
            and nodes that jobs need stay.

        Returns
        -------
        dict
            With `dry_run`: ``add`` (workers), ``release`` (names of workers by node), ``bytes`` that would
            be moved, ``refused`` (reasons by node).
        """
        check_scale(others)
        if self.status in ENDED:
            if self.status == Status.closed:
                logger.warning("The cluster is closed: its size does not change any more")
            return super().scale(n, memory, cores)
        if n is None:
            raise ValueError("n is None; allowed: a whole number, 0 or more")
        check_counts(n=n, cores=cores)
        check_flags(dry_run=dry_run, force=force)
        if memory is not None:
            n = max(n, math.ceil(parse_bytes(memory) / self._memory_per_worker()))
        if cores is not None:
            n = max(n, math.ceil(cores / self._threads_per_worker()))
        return self._scale_pool(DEFAULT_POOL, n, dry_run, force)

    def scale_up(self, *args: Any, **kwargs: Any) -> Any:
        """Another name of `scale`, as in stock."""
        return self.scale(*args, **kwargs)

    def __await__(self) -> Generator[Any, Any, Self]:
        """Wait until it is there and, after a resize, has that size.

        Workers that cannot leave are waited for until it is known why (`refused`). Who has not asked for the
        size, as a client that connects meanwhile, does not wait for what leaves.
        """
        before = set(self._taken_out)
        yield from super().__await__()
        if taken_out := self._taken_out - before:
            yield from asyncio.wait(taken_out).__await__()
        if (resized := weakref.ref(self)) in _RESIZED.get():
            yield from self._settled().__await__()
            _RESIZED.set(_RESIZED.get() - {resized})  # what others ask for later is theirs
        return self

    def pin(self, *workers: Any) -> Any:
        """Have workers (by name) stay, whatever asks for a smaller cluster; gives the names of all that do.

        A node stays with each of its workers. The end of a walltime, of a lifetime or a signal is stronger.

        Raises
        ------
        ValueError
            When the cluster has no such worker.
        """
        known = {str(name) for spec in list(self.worker_spec) for name in self._workers_of(spec)}
        for name in workers:
            if str(name) not in known:
                raise ValueError(f"worker is {name!r}; allowed: {', '.join(sorted(known)) or 'none now'}")
        return self.sync(self._pin, list(workers), True)

    def unpin(self, *workers: Any) -> Any:
        """Let workers (by name) go again; gives the names of those that are still pinned."""
        return self.sync(self._pin, list(workers), False)

    async def _pin(self, workers: list[Any], keep: bool) -> Any:
        self._install()
        return await self.ask("pin", workers=workers, keep=keep)

    def _scale_pool(self, pool: str, n: int, dry_run: bool, force: bool) -> Any:
        self.forget_ended()
        n = int(n)
        if dry_run:
            return self.sync(self._rehearse, pool, n)
        if pool == DEFAULT_POOL:
            self._warn_if_adaptive()
        self._asked[pool] += not getattr(self._adaptive, "scaling", False)
        _RESIZED.set(frozenset(ref for ref in _RESIZED.get() if ref() is not None) | {weakref.ref(self)})
        self._stuck.setdefault(pool, asyncio.Event()).clear()
        self._wanted[pool] = n
        self._force[pool] = force
        if self._releases is not None and self._excess(pool) <= 0:
            # nobody has to go any more
            self._releases.refused.clear()
        self._grow(pool, self._at_once(pool))
        cast(Any, self.loop).add_callback(self._adjust, pool, anew=True)
        return NoOpAwaitable() if self.asynchronous else None

    async def scale_down(self, workers: Iterable[Any]) -> None:
        """Let workers go by name, those that can; all workers of a batch job go together."""
        if self.status == Status.running:
            self._install()
        await self.let_go(workers)

    async def let_go(self, workers: Iterable[Any], **cause: str) -> None:
        """`scale_down`, as the scheduler does it: stock's retirement where the runtime was uninstalled."""
        specs = {self._spec_of(name) for name in workers}
        asked = {pool: self._asked[pool] for pool in map(self._pool_of, specs)}
        if self._starting(specs):
            await self._open()
        if self.has_runtime:
            # by whomever it was installed last
            self._install()
        names = [name for spec in specs for name in self._workers_of(spec)]
        how = {"close_workers": False, "remove": True, **cause}
        await cast(Any, self.scheduler_comm).retire_workers(names=names, **how)
        stay = self._there()
        gone = [spec for spec in specs if not any(str(name) in stay for name in self._workers_of(spec))]
        anew = [pool for pool in asked if self._asked[pool] != asked[pool]]
        # before they are forgotten, which takes a while: whoever looks meanwhile would replace them
        self._want_no_more(asked.keys() - anew, gone)
        await self._forget(gone)
        for pool in anew:
            await self._adjust(pool)  # these were counted as there when that size was asked for

    def adapt(self, Adaptive: Any = PolicyAdaptive, *args: Any, **kwargs: Any) -> Any:
        """Follow the load; as in stock, but by the pool policy, and shrinking loses nothing.

        Workers come at once, and are kept for ``hpc.pool.hold`` after they were last needed: unless it is
        set, a small multiple of the time that they have taken to come. See `dask_hpc.PolicyAdaptive`.
        """
        if isinstance(Adaptive, type) and issubclass(Adaptive, PolicyAdaptive):
            kwargs = adapt_options(kwargs, cores=self._threads_per_worker, memory=self._memory_per_worker)
        adaptive = super().adapt(Adaptive, *args, **kwargs)
        if self._excess(DEFAULT_POOL) > 0:
            # that size is not asked for any more: those that can stay do, until the load wants fewer
            self._wanted.pop(DEFAULT_POOL, None)
            cast(Any, self.loop).add_callback(self._adjust, DEFAULT_POOL)
        return adaptive

    def _warn_if_adaptive(self) -> None:
        """Say so when `adapt` will change the size again that somebody else has asked for."""
        adaptive = self._adaptive
        if adaptive is None or adaptive.state != "running" or getattr(adaptive, "scaling", True):
            return
        between = f"between {adaptive.minimum} and {adaptive.maximum} workers"
        logger.warning(
            f"This cluster follows the load (adapt), {between}, and changes its size again; "
            "cluster.adapt(minimum=n, maximum=n) fixes it at n"
        )

    # ------------------------------------------------------------ internals

    async def _adjust(self, pool: str, anew: bool = False) -> None:
        """Have the pool come to the size that was asked for; `anew`: that was just now."""
        if self.status in (Status.created, Status.starting):
            return  # there is nothing yet that could be opened, and it is when it starts
        await self._open()
        if self.status != Status.running:
            return
        if anew and self._excess(pool) > 0:
            self._install()
        task = self._shrinking.get(pool)
        if task is None or task.done():
            self._shrinking[pool] = asyncio.ensure_future(self._shrink(pool))
        elif self._releases is not None:
            # of those on their way out some may be wanted again
            with suppress(DaskHPCError, OSError):
                await self.ask("recall", going=max(0, self._excess(pool)), **self._limits(pool))

    async def _settled(self) -> None:
        """Wait until every pool has the size that was asked for, or cannot have it now."""
        if self._taken_out:
            await asyncio.wait(self._taken_out)
        for pool in list(self._wanted):
            while self.status == Status.running and self._excess(pool) and not self._stuck[pool].is_set():
                await self._adjust(pool)
                stuck = asyncio.ensure_future(self._stuck[pool].wait())
                await asyncio.wait((self._shrinking[pool], stuck), return_when=asyncio.FIRST_COMPLETED)
                stuck.cancel()

    async def _shrink(self, pool: str) -> None:
        """Release workers until there are as many as wanted; what cannot be released is tried again."""
        while self.status == Status.running and (excess := self._excess(pool)):
            if self._starting(self.worker_spec):
                await self._open()
            elif excess < 0:
                # more were asked for while workers were leaving
                self._grow(pool, self._at_once(pool))
                await self._open()
                if self._excess(pool) < 0:
                    # it could not be started, and whoever looks after the jobs asks again
                    self._stuck[pool].set()
                    return
            else:
                await self._release(pool)
        others = [task for other, task in self._shrinking.items() if other != pool]
        if self._releases is not None and all(task.done() for task in others):
            self._releases.refused.clear()

    async def _release(self, pool: str) -> None:
        """Let those go that are too many, as far as they can."""
        if not self.has_runtime:
            # nothing leaves safely without it
            logger.warning(
                "The cluster stays as it is, with %d more than asked for: the runtime was uninstalled "
                "meanwhile. Scaling again brings it back",
                self._excess(pool),
            )
            self._wanted[pool] += self._excess(pool)
            self._stuck[pool].set()
            return
        gone = set()
        try:
            excess, specs = self._surplus(pool)
            coming = [spec for spec in self._coming(pool) if spec in specs]
            if coming or not excess:
                await self._forget(coming[:excess])
                return
            limits, before = self._limits(pool, specs), dict(self.workers)
            answer = await self.ask("release", count=excess, **limits)
            excess, _ = self._surplus(pool)
            if not answer["released"] and excess and self._force.get(pool):
                self._going[pool] = excess
                try:
                    answer = await self.ask("release", count=excess, force=True, **limits)
                finally:
                    del self._going[pool]
            gone = {self._spec_of(name) for names in answer["released"].values() for name in names}
            # one that has left before others may have ended since, and its name been given anew
            gone = {spec for spec in gone if self.workers.get(spec) is before.get(spec)}
        except (DaskHPCError, OSError) as error:
            logger.warning("The cluster could not be made smaller: %s", error)
        await self._forget(gone)
        if not gone and self._excess(pool) > 0:
            self._stuck[pool].set()
            await asyncio.sleep(_AGAIN_S)

    async def _open(self, again: bool = False) -> None:
        """Start and close workers as specified; what cannot be started is said, and asked for no more.

        With `again` it is as wanted as before: whoever calls it asks again.
        It goes on when the caller is cancelled: others wait for the same task, and a worker whose closing is
        cut off never ends.
        """
        known = set(self.worker_spec)
        try:
            await asyncio.shield(self._correct_state())
        except Exception as error:
            known.update(self.workers)
            failed = [spec for spec in list(self.worker_spec) if spec in known and not self._has_begun(spec)]
            logger.error("%d of the workers could not be started: %s", len(failed), _first_line(error))
            pools = {self._pool_of(spec) for spec in failed}
            for spec in failed:
                del self.worker_spec[spec]
                if (worker := self.workers.pop(spec, None)) is not None:
                    worker.status = Status.failed
            if not again:
                self._want_no_more(pools)
            self._not_started(pools)

    def _has_begun(self, spec: Any) -> bool:
        worker = self.workers.get(spec)
        return worker is not None and worker.status not in (Status.created, *ENDED)

    def _not_started(self, pools: Iterable[str]) -> None:
        """Some of these pools could not be started."""

    async def _forget(self, specs: Iterable[Any]) -> None:
        """Close what specifications stand for: their workers have left the scheduler, or never came."""
        for spec in specs:
            self.worker_spec.pop(spec, None)
        await self._open()

    async def _rehearse(self, pool: str, n: int) -> dict[str, Any]:
        excess = self._excess(pool, n)
        plan: dict[str, Any] = {"add": max(0, -excess), "release": {}, "bytes": 0, "refused": {}}
        if excess > 0:
            self._install()
            # those that have not come are given up first
            coming = self._coming(pool)[:excess]
            plan["release"] = {str(spec): self._workers_of(spec) for spec in coming}
            if len(coming) < excess:
                count = excess - len(coming)
                answer = await self.ask("release", count=count, dry_run=True, **self._limits(pool))
                plan["release"] |= {node: list(names) for node, names in answer["nodes"].items()}
                plan |= {"bytes": answer["bytes"], "refused": answer["refused"]}
        return plan

    async def _close(self) -> None:
        if self._releases is not None:
            self._releases.refused.clear()
        self._wanted.clear()  # whatever was asked for, nothing is to be started any more
        for task in self._shrinking.values():
            task.cancel()
        if self.status == Status.running:
            with suppress(DaskHPCError, OSError, TimeoutError):
                await asyncio.wait_for(self.ask("closing"), _CLOSING_S)
        await super()._close()


def _first_line(error: Exception) -> str:
    """What went wrong, without the pages that commands may print."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
