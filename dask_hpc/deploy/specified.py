"""Which workers, of which pool, the specifications of a cluster stand for, and which of them are there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from distributed.core import Status
from distributed.deploy.spec import SpecCluster

#: The pool of workers that are in none with a name.
DEFAULT_POOL = ""


class SpecifiedWorkers(SpecCluster):
    """A cluster made of worker specifications, each of which stands for one worker or a group of them.

    They change in the loop and on threads that ask for another size: who goes through them takes a copy.
    """

    #: Specifications that were taken out by hand, and are there until their workers have left.
    _outgoing: set[Any]

    def forget_ended(self) -> None:
        """Do not count workers that have ended of themselves: retired by somebody, or by their lifetime."""
        for spec, worker in list(self.workers.items()):
            if worker.status in (Status.closed, Status.failed):
                self.worker_spec.pop(spec, None)
                self.workers.pop(spec, None)

    @property
    def queued(self) -> set[Any]:
        """Names of workers whose node has not begun to start: it is still others'."""
        return set()

    @property
    def workers_per_node(self) -> int:
        """Workers that come and go together."""
        return max((len(self._workers_of(spec)) for spec in list(self.worker_spec)), default=1)

    def together(self, workers: Iterable[Any]) -> list[set[Any]]:
        """Workers (by name) in groups that can only go together, with the rest of each group."""
        return [set(self._workers_of(spec)) for spec in {self._spec_of(name) for name in workers}]

    def busy(self) -> set[str]:
        """Names of workers that have something to execute."""
        return {str(ws.name) for ws in cast(Any, self.scheduler).workers.values() if ws.processing}

    def _pool_of(self, spec: Any) -> str:
        """The pool that a specification belongs to; there is one, unless a subclass has more."""
        return str(self.worker_spec.get(spec, {}).get("pool", DEFAULT_POOL))

    def _specs(self, pool: str) -> list[Any]:
        return [spec for spec in list(self.worker_spec) if self._pool_of(spec) == pool]

    def _staying(self, pool: str) -> list[Any]:
        """Specifications of a pool but for those whose workers were taken out by hand."""
        return [spec for spec in self._specs(pool) if spec not in self._outgoing]

    def _limits(self, pool: str, specs: Collection[Any] | None = None) -> dict[str, Any]:
        """What a release is limited to: the workers of a pool, or of these in it, when there are others."""
        specs = self._staying(pool) if specs is None else specs
        names = [name for spec in specs for name in self._workers_of(spec)]
        # somebody may have started workers by hand: those are not the cluster's
        others = self._there() - set(map(str, names))
        return {"among": names} if others or len(specs) < len(self.worker_spec) else {}

    def _next_spec(self, pool: str) -> dict[Any, Any]:
        """Name and specification of the next worker of a pool, under a name that none has any more."""
        while self._new_worker_name(self._i) in {*self.worker_spec, *self.workers}:
            self._i += 1
        return dict(self.new_worker_spec())

    def _starting(self, specs: Iterable[Any]) -> bool:
        """Whether some are being started: they may execute tasks already, and cannot be stopped halfway."""
        return any(spec in self.worker_spec and spec not in self.workers for spec in list(specs))

    def _workers_of(self, spec: Any) -> list[Any]:
        """Names of the workers that one specification stands for."""
        return names_of(spec, self.worker_spec.get(spec, {}))

    def _spec_of(self, worker: Any) -> Any:
        """The specification that a worker, by name, comes from; the name itself when there is none."""
        for spec in list(self.worker_spec):
            if str(worker) in map(str, self._workers_of(spec)):
                return spec
        return worker

    def _there(self) -> set[str]:
        """Names of the workers that are connected to the scheduler."""
        return {str(ws.name) for ws in cast(Any, self.scheduler).workers.values()}

    def _coming(self, pool: str) -> list[Any]:
        """Specifications of which no worker is connected: there is nothing to lose."""
        there = self._there()
        return [s for s in self._specs(pool) if not any(str(name) in there for name in self._workers_of(s))]


def names_of(name: Any, specification: Mapping[str, Any]) -> list[Any]:
    """Names of the workers that a specification of that name stands for."""
    group = specification.get("group")
    return [f"{name}{suffix}" for suffix in group] if group else [name]
