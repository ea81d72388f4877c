"""Results that are protected and hang on what is not: the one is lost first, the other a moment later.

Stock forgets, or gives up, what was made from scattered data or with an actor once that is gone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, wait

from dask_hpc.chaos import work

#: Results of a family.
_CHILDREN = 2
#: They are there by then, in seconds.
_MADE_S = 90.0


@dataclass(frozen=True, slots=True)
class Kin:
    """A family of results; who holds it keeps it alive."""

    #: Scattered data or an actor, on one worker alone, and results on another one.
    parent: Future
    children: Sequence[Future]

    def first(self, client: Client) -> set[str]:
        """Workers that are to be lost first."""
        return _holders(client, [self.parent])

    def then(self, client: Client) -> set[str]:
        """Workers that are to be lost once those are."""
        return _holders(client, self.children)


def family(client: Client, kind: str, first: int, elements: int, notes: str, chance: Any) -> Kin:
    """A family whose results have the numbers from `first` on.

    Parameters
    ----------
    kind
        What they hang on: ``scattered`` data, or an ``actor``.

    Raises
    ------
    RuntimeError
        When they do not come to be.
    """
    deadline_s = time.monotonic() + _MADE_S
    # most may have been killed a moment ago, and be on their way back
    while len(there := sorted(client.run(work.host, on_error="ignore"))) < 2:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"results of {kind} need two workers; {len(there)} answer")
        time.sleep(0.1)
    here, elsewhere = chance.sample(there, 2)
    parent: Future
    between: Any
    function: Any
    if kind == "actor":
        parent = client.submit(work.Source, first, elements, actor=True, workers=[here], pure=False)
        between, function = parent, work.asked
    else:
        (parent,) = client.scatter([work.values(first, elements)], workers=[here], hash=False)
        # what is read over the network would have another copy of the parent
        between, function = client.submit(work.passed, parent, workers=[here], pure=False), work.derived
    numbers = range(first, first + _CHILDREN)
    children = [client.submit(function, n, between, notes, workers=[elsewhere], pure=False) for n in numbers]
    # else it would ask the default client, which a command does not have
    with client.as_current():
        wait(children, timeout=_MADE_S)
    if problem := next((each.exception() for each in children if each.status != "finished"), None):
        raise RuntimeError(f"results of {kind} do not come to be: {problem}")
    return Kin(parent, children)


def _holders(client: Client, futures: Sequence[Future]) -> set[str]:
    # of futures that are lost the client itself knows nothing any more
    scheduler: Any = client.scheduler
    held = client.sync(scheduler.who_has, keys=[future.key for future in futures])
    return {address for addresses in held.values() for address in addresses}
