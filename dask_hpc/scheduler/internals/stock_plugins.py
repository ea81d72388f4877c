"""Two of stock's scheduler plugins, whose ``transition`` one of ours calls while that is in the scheduler.

Stock calls every plugin for every step of every task. The one for shuffles looks at tasks that end, the one
for work stealing at those that come to a worker or leave one; the other calls only cost. Ours looks at each
step anyway: it calls them for the steps that they look at, which spares every task about what ours costs it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from distributed.shuffle import ShuffleSchedulerPlugin
from distributed.stealing import WorkStealing

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: States that the plugin for shuffles looks at, when a task comes to one of them.
ENDS = frozenset(("released", "erred", "forgotten"))
_OTHERS = ("waiting", "no-worker", "queued", "processing", "memory")
#: Steps that the one for shuffles does nothing in, then those that the one for work stealing does nothing in.
_IDLE_STEPS = {
    ShuffleSchedulerPlugin: [(start, finish) for start in (*_OTHERS, *ENDS) for finish in _OTHERS],
    WorkStealing: [
        (start, finish)
        for start in (*_OTHERS, *ENDS)
        for finish in (*_OTHERS, *ENDS)
        if "processing" not in (start, finish)
    ],
}

#: What is said of the runs of a task whose data has arrived, always this very list: it has had none, no slot
#: and no place among what may be stolen.
NO_RUN: list[Any] = []
#: Takes whatever it is given and does nothing, without a frame of Python.
nothing: Callable[..., Any] = "".format


class StockPlugins:
    """Takes the ``transition`` of these plugins, and gives it back."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._taken: list[Any] = []

    def take(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What is to be called for steps that end in `ENDS`, and for those from or to ``processing``.

        Each takes what a plugin's ``transition`` does. A plugin that is not there, or looks at more than is
        said here, is left to stock; nothing has to be called for it then.
        """
        return self._transition(ShuffleSchedulerPlugin), self._transition(WorkStealing)

    def give_back(self) -> None:
        """Let stock call them again."""
        for plugin in self._taken:
            vars(plugin).pop("transition", None)
        self._taken.clear()

    def _transition(self, plugin_type: Any) -> Callable[..., Any]:
        found = [one for one in self._scheduler.plugins.values() if type(one) is plugin_type]
        looks = plugin_type.transition
        if len(found) != 1 or "transition" in vars(found[0]) or not _is_idle(plugin_type, looks):
            return nothing
        stock: Callable[..., Any] = found[0].transition
        found[0].transition = nothing  # type: ignore[method-assign]
        self._taken += found
        return stock


@cache
def _is_idle(plugin_type: Any, transition: Callable[..., Any]) -> bool:
    """Whether plugins of this type do nothing in the steps that are said to be of no concern to them.

    They are given no scheduler here, so whatever they would do fails.
    """
    try:
        for start, finish in _IDLE_STEPS[plugin_type]:
            transition(object(), "key", start, finish, stimulus_id="hpc-check")
    except Exception:
        return False
    return True
