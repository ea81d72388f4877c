"""Keys that somebody watches: one plugin for all of them, in the scheduler only while there is something.

Results on disk and data that is still to come have to be followed also while no job is active. Each plugin in
the scheduler costs every task something; so there is one table, and one look into it a transition. What that
costs comes back: two plugins of stock's are called through it, for the steps that they look at alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_hpc.scheduler.internals.stock_plugins import ENDS, NO_RUN, StockPlugins

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: What is told that a key has gone from one state to another: key, start, finish.
Hears = Callable[[Any, str, str], None]


class Hearing(Protocol):
    """Wants to know what events are logged."""

    def heard(self, topic: str, message: Any) -> None:
        """An event was logged; anybody may log events, so the message may be anything."""
        ...


class Leaving(Protocol):
    """Wants to know which workers go."""

    def left(self, address: str) -> None:
        """A worker has gone."""
        ...


class Parting(Protocol):
    """Wants to know which clients go."""

    def parted(self, client: str) -> None:
        """A client has gone, and what only it wanted."""
        ...


class Closing(Protocol):
    """Wants to know when it ends."""

    async def closing(self) -> None:
        """The scheduler is closing."""
        ...


#: Wants to know more than what becomes of keys, by what methods it has.
Listener = Hearing | Leaving | Parting | Closing


class Watched(SchedulerPlugin):
    """What is watched on one scheduler, and by whom."""

    name = "dask-hpc-watched"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        #: Always this very object.
        self._keys: dict[Any, tuple[Hears, ...]] = {}
        self._listeners: list[Listener] = []
        self._stock = StockPlugins(scheduler)

    def watch(self, key: Any, hears: Hears) -> None:
        """Tell `hears` of every transition of the key, after those that were told before."""
        self._keys[key] = (*self._keys.get(key, ()), hears)
        self._look()

    def unwatch(self, key: Any, hears: Hears) -> None:
        """Tell it no more."""
        left = tuple(one for one in self._keys.pop(key, ()) if one != hears)
        if left:
            self._keys[key] = left
        self._look()

    def listen(self, listener: Listener) -> None:
        """Tell it what it has methods for, from now on; once is enough."""
        if listener not in self._listeners:
            self._listeners.append(listener)
        self._look()

    def leave(self, listener: Listener) -> None:
        """Tell it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        self._look()

    def _look(self) -> None:
        """Be in the scheduler while there is something to watch."""
        there = self._scheduler.plugins.get(self.name) is self
        if there != bool(self._keys or self._listeners):
            if there:
                self._scheduler.remove_plugin(self.name)
                self._stock.give_back()
            else:
                # one that was uninstalled may have something left to do: in its place this one would keep it
                # from giving back what it has taken of stock's, for good
                while self.name in self._scheduler.plugins:
                    self.name += "-too"
                self.transition = _telling(self._keys, *self._stock.take())  # type: ignore[method-assign]
                self._scheduler.add_plugin(self, name=self.name)

    def log_event(self, topic: str, msg: Any) -> None:
        """An event was logged."""
        for heard in self._methods("heard"):
            heard(topic, msg)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """A worker has gone."""
        for left in self._methods("left"):
            left(worker)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """A client has gone; the scheduler has dropped what only it wanted."""
        for parted in self._methods("parted"):
            parted(client)

    async def before_close(self) -> None:
        """The scheduler is closing."""
        for closing in self._methods("closing"):
            await closing()

    def _methods(self, name: str) -> list[Callable[..., Any]]:
        """Those of this name, of the listeners that have one."""
        return [found for each in self._listeners if (found := getattr(each, name, None)) is not None]


def _telling(
    keys: Mapping[Any, tuple[Hears, ...]], shuffles: Callable[..., Any], stealing: Callable[..., Any]
) -> Callable[..., None]:
    """The plugin's ``transition``: a key has gone from one state to another. Runs for every task.

    `shuffles` and `stealing` get those that stock's plugins look at. What workers report with a result is
    named, as in `core.counting`: the rest of a call's arguments would be put into a dictionary.
    """

    def transition(
        key: Any,
        start: str,
        finish: str,
        stimulus_id: str = "",
        worker: Any = None,
        metadata: Any = None,
        nbytes: Any = None,
        startstops: Any = None,
        type: Any = None,
        typename: Any = None,
        thread: Any = None,
        **more: Any,
    ) -> None:
        # as with stock, an error of one plugin, which it logs, keeps nothing from the others
        try:
            if finish in ENDS:
                shuffles(key, start, finish, stimulus_id=stimulus_id)
        finally:
            try:
                if (start == "processing" or finish == "processing") and startstops is not NO_RUN:
                    stealing(key, start, finish)
            finally:
                if key in keys:
                    for hears in keys[key]:
                        hears(key, start, finish)

    return transition
