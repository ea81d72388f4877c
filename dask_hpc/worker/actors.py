"""Actors that move: what happens on the two workers.

An actor moves when its class says what its state is, by ``__getstate__`` and ``__setstate__`` of its own
(the protocol of pickle). Calls that have begun are finished first; those that come meanwhile wait and
are passed on to where the actor is then, for as long as the old worker lives. Everything here runs on
workers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from distributed.actor import Actor
from distributed.protocol import to_serialize
from distributed.protocol.pickle import dumps, loads

from dask_hpc.clock import stopwatch_s

#: RPCs of a worker by which actors are used.
EXECUTE, ATTRIBUTE = "actor_execute", "actor_attribute"
_STATE = ("__getstate__", "__setstate__")


def immovable(cls: type) -> str | None:
    """Why actors of a class cannot move; None when they can."""
    missing = [name for name in _STATE if not any(name in vars(base) for base in cls.__mro__[:-1])]
    if missing:
        return f"its class {cls.__name__} has no {' and no '.join(missing)} of its own"
    # they are executed by the event loop, and nobody knows which have begun
    coroutines = [name for name in dir(cls) if inspect.iscoroutinefunction(getattr(cls, name, None))]
    return f"its class {cls.__name__} has coroutines: {', '.join(coroutines)}" if coroutines else None


def examine(keys: Sequence[Any], dask_worker: Any) -> dict[Any, str | None]:
    """Why actors of this worker cannot move, by key; None for those that can."""
    actors = dask_worker.state.actors
    return {key: immovable(type(actors[key])) if key in actors else "it has ended" for key in keys}


class Forwarding:
    """Calls of actors that have left a worker, or are about to."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._execute, self._attribute = worker.handlers[EXECUTE], worker.handlers[ATTRIBUTE]
        worker.handlers.update({EXECUTE: self.execute, ATTRIBUTE: self.attribute})
        #: Where actors are, by key, as soon as that is known; None: they have stayed.
        self.homes: dict[Any, asyncio.Future[str | None]] = {}
        #: What waits for the calls of actors that are to move, by key.
        self.giving: dict[Any, asyncio.Future[bytes]] = {}
        #: Calls that wait or have been passed on.
        self.under_way = 0

    async def execute(
        self, actor: Any = None, function: Any = None, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Stock's handler of method calls, wherever the actor is."""
        sent = [to_serialize(arg) for arg in args]
        named = {name: to_serialize(value) for name, value in (kwargs or {}).items()}
        answer = await self._elsewhere(EXECUTE, actor, {"function": function, "args": sent, "kwargs": named})
        if answer is not None:
            return answer
        return await self._execute(actor=actor, function=function, args=args, kwargs=kwargs)

    async def attribute(self, actor: Any = None, attribute: Any = None) -> Any:
        """Stock's handler of attributes, wherever the actor is."""
        answer = await self._elsewhere(ATTRIBUTE, actor, {"attribute": attribute})
        return self._attribute(actor=actor, attribute=attribute) if answer is None else answer

    async def _elsewhere(self, name: str, key: Any, call: Mapping[str, Any]) -> Any:
        """The answer of the worker that has the actor now; None when that is this one."""
        home = self.homes.get(key)
        if home is None:
            return None
        self.under_way += 1
        try:
            address = await asyncio.shield(home)
            if address is None:
                return None
            answer = await getattr(self._worker.rpc(address), name)(actor=key, **call)
        finally:
            self.under_way -= 1
        return {what: value if what == "status" else to_serialize(value) for what, value in answer.items()}


def _forwarding(worker: Any) -> Forwarding:
    there = getattr(worker.handlers[EXECUTE], "__self__", None)
    return there if isinstance(there, Forwarding) else Forwarding(worker)


async def give(key: Any, within_s: float, dask_worker: Any) -> bytes:
    """The actor with its state, when the calls that have begun are done; calls wait from now on.

    `settle` lets them go on.
    """
    forwarding, loop = _forwarding(dask_worker), asyncio.get_running_loop()
    forwarding.homes[key] = loop.create_future()
    # all calls take their turn on this one thread
    thread, actor = dask_worker.executors["actor"], dask_worker.state.actors[key]
    giving = forwarding.giving[key] = loop.run_in_executor(thread, dumps, actor)
    await asyncio.wait((giving,), timeout=within_s)
    del forwarding.giving[key]
    if giving.cancel() or giving.cancelled():
        raise TimeoutError("its calls were not done in time")
    return giving.result()


def stop(key: Any, dask_worker: Any) -> None:
    """Wait for the calls of an actor no more; it is too late where its state has been taken."""
    giving = _forwarding(dask_worker).giving.get(key)
    if giving is not None:
        giving.cancel()


async def take(key: Any, source: str, within_s: float, dask_worker: Any) -> str | None:
    """Fetch an actor from another worker; gives why it could not be had."""
    began_s = stopwatch_s()
    state = dask_worker.state
    asking = dask_worker.rpc(source).run(
        function=dumps(give), kwargs=dumps({"key": key, "within_s": within_s}), wait=True
    )
    try:
        answer = await asyncio.wait_for(asking, within_s)
    except TimeoutError:
        answer = {"status": "late"}
    if answer["status"] == "error":
        return str(answer.get("exception_text") or "") or "its calls took too long"
    if answer["status"] != "OK" or stopwatch_s() - began_s > within_s:
        return f"its calls were not done within {within_s:.1f} s"
    actor = await asyncio.to_thread(loads, answer["result"])
    if key in state.tasks and state.tasks[key].state != "memory":
        return "the worker that takes it is fetching a handle of it"
    if key in state.tasks:
        follow(key, dask_worker.address, dask_worker)
        state.actors[key] = actor
        del dask_worker.data[key]
    else:
        state.actors[key] = None  # what is put into memory under this key is an actor
        dask_worker.update_data({key: actor})
    return None


async def settle(key: Any, home: str | None, within_s: float, dask_worker: Any) -> None:
    """Let calls go on where the actor is (None: here), and wait until those that waited have answers."""
    forwarding = _forwarding(dask_worker)
    waiting = forwarding.homes.get(key)
    if waiting is not None and not waiting.done():
        waiting.set_result(home)
    if home is None:
        forwarding.homes.pop(key, None)
    began_s = stopwatch_s()
    while forwarding.under_way and stopwatch_s() - began_s < within_s:
        await asyncio.sleep(0.01)


def follow(key: Any, home: str, dask_worker: Any) -> None:
    """Have the handle that tasks of this worker were given use an actor where it is now."""
    handle = dask_worker.data.get(key)
    if isinstance(handle, Actor):
        handle._address = home
