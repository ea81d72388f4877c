"""What the runtime does now and then while it is awake."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tornado.ioloop import PeriodicCallback

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


class Periodic:
    """Calls by name, shown among the scheduler's own."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._shown = scheduler.periodic_callbacks
        self._callbacks: dict[str, PeriodicCallback] = {}

    def start(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        """Call every so many seconds from now on."""
        self._callbacks[name] = self._shown[name] = callback = PeriodicCallback(call, seconds * 1000)
        callback.start()

    def change(self, name: str, seconds: float) -> None:
        """Call every so many seconds instead, if it is called at all."""
        callback = self._callbacks.get(name)
        # begun anew at every update, its turn would never come
        if callback is not None and callback.callback_time != seconds * 1000:
            callback.stop()
            callback.callback_time = seconds * 1000
            callback.start()

    def stop(self) -> None:
        """Call nothing any more."""
        for name, callback in self._callbacks.items():
            callback.stop()
            self._shown.pop(name, None)
        self._callbacks.clear()
