"""Tasks that wait for data: held until somebody on a worker provides it, and never run.

Whoever couples something to the cluster submits what is to be done with data before the data is there. Its
source tasks belong to no job, no slot admits them, nothing counts them as work that asks for nodes, and no
time limit of tasks without a worker holds for them. Data that is lost is awaited again. While any is awaited
the runtime stays awake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from distributed.core import Status

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc.scheduler.tables.watched import Watched

_STIMULUS = "hpc-data"
#: Why data is no result yet: see `Awaited.provide`; nothing: it is one.
NotYet = Literal["", "refused", "later"]


class Awaited:
    """The tasks of one scheduler that wait for data, or did."""

    def __init__(self, engine: Engine, watched: Watched) -> None:
        self._engine = engine
        self._watched = watched
        self._awaited = engine.state.awaited
        #: Those of them that were announced and not submitted yet, and by which client.
        self._announced: dict[Any, str] = {}

    def methods(self) -> Mapping[str, Method]:
        """What clients and workers may call."""
        return {"expect": self.expect, "unexpect": self.unexpect, "provide": self.provide}

    def status(self) -> Mapping[str, Any]:
        """How many tasks wait for data now; nothing when no data is awaited."""
        if not self._awaited:
            return {}
        tasks = self._engine.scheduler.tasks
        waiting = sum(key in tasks and tasks[key].state == "no-worker" for key in self._awaited)
        return {"awaited": {"tasks": waiting}}

    def needed(self) -> bool:
        """While data is awaited, or may be again, the runtime is awake."""
        return bool(self._awaited)

    def tick(self, now_s: float) -> None:
        """Forget what was announced and never submitted, once its client has gone."""
        clients = self._engine.scheduler.clients
        self._forget([key for key, client in self._announced.items() if client not in clients])

    async def unexpect(self, keys: Sequence[Any]) -> None:
        """Forget names that were announced: their client could not submit them."""
        self._forget([key for key in keys if key in self._announced])

    def _forget(self, keys: Sequence[Any]) -> None:
        for key in keys:
            self._drop(key)
        if keys:
            self._engine.rest()

    async def expect(self, keys: Sequence[Any], client: str) -> None:
        """The client is about to submit tasks of these keys, whose data somebody will provide.

        Raises
        ------
        ValueError
            When there is a task, or an announcement, of one of the keys already.
        """
        tasks = self._engine.scheduler.tasks
        for key, number in Counter(keys).items():
            if key in self._awaited or key in tasks or number > 1:
                raise ValueError(f"name is {key!r}, which is taken; choose names that no other task has")
        for key in keys:
            self._awaited.add(key)
            self._announced[key] = client
            self._watched.watch(key, self._moved)
        async with self._engine.kept_awake():
            pass

    async def provide(self, worker: str, data: Mapping[Any, tuple[int, str]]) -> dict[str, list[Any]]:
        """A worker has data that is awaited: size in bytes and name of the type of each.

        Returns
        -------
        dict
            ``refused``: keys that nobody awaits (any more); ``later``: keys that the worker cannot have now,
            because it is paused, or because they are announced and not submitted yet.
        """
        answer: dict[str, list[Any]] = {"refused": [], "later": []}
        if worker not in self._engine.scheduler.workers:
            # it calls itself by a name, as it was told to (``--contact-address``)
            worker = self._engine.scheduler.coerce_address(worker)
        for key, (nbytes, type_name) in data.items():
            if why := self.bring(worker, key, nbytes, type_name):
                answer[why].append(key)
        return answer

    def bring(
        self, worker: str, key: Any, nbytes: int, type_name: str, again: bool = False, part: bool = False
    ) -> NotYet:
        """The same of one key; nothing: the worker has it. Runs once for each part of a step of a flow.

        What may be brought `again` is, once a worker that is being emptied has gone: the others' is moved.
        A `part` is one that others still lack, see `writes.arrive`.
        """
        scheduler = self._engine.scheduler
        ts, ws = scheduler.tasks.get(key), scheduler.workers.get(worker)
        if ts is not None and ws in (ts.who_has or ()):
            return ""  # it was moved there: refused, the worker would let go of it
        if ts is None or ts.state != "no-worker" or key not in self._awaited or ws is None:
            return "later" if key in self._announced else "refused"
        if again and ws.status != Status.running:
            return "later"
        return "" if writes.arrive(scheduler, ts, ws, nbytes, type_name, _STIMULUS, part) else "later"

    def give_up(self, keys: Sequence[Any]) -> None:
        """Nobody will provide these any more: their tasks, and what depends on them, fail."""
        tasks = self._engine.scheduler.tasks
        left = [tasks[key] for key in keys if key in self._awaited and key in tasks]
        for ts in left:
            self._drop(ts.key)
            writes.unrestrict(ts)
        writes.requeue(self._engine.scheduler, left, _STIMULUS)
        self._engine.rest()

    def _moved(self, key: Any, start: str, finish: str) -> None:
        """It was submitted; or nobody wants it any more."""
        if finish == "no-worker":
            self._announced.pop(key, None)
        elif finish == "forgotten":
            self._drop(key)
            if not self._awaited:
                self._engine.rest()

    def _drop(self, key: Any) -> None:
        self._awaited.discard(key)
        self._announced.pop(key, None)
        self._watched.unwatch(key, self._moved)

    def unwrap(self) -> None:
        """The runtime is being uninstalled: what still waits says so when stock runs it."""
        scheduler = self._engine.scheduler
        left = [scheduler.tasks[key] for key in self._awaited if key in scheduler.tasks]
        for key in list(self._awaited):
            self._drop(key)
        for ts in left:
            writes.unrestrict(ts)
        writes.requeue(scheduler, left, _STIMULUS)
