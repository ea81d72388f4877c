"""How many workers of each pool there are, how many there should be, and which of those too many go first."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from dask_hpc.deploy.by_hand import ChangedByHand


class Sizes(ChangedByHand):
    """A cluster made of worker specifications that knows what size was asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Workers (batch jobs) asked for last, by pool; a pool that is absent has what was started with.
        self._wanted: dict[str, int] = {}
        #: How many are on their way out by force, by pool: whatever is asked for now, they go.
        self._going: dict[str, int] = {}
        super().__init__(*args, **kwargs)

    @property
    def expiring(self) -> set[Any]:
        """Names of workers whose end is near and whose successors have been asked for."""
        return set()

    def _followed(self, pool: str) -> list[Any]:
        """Specifications of a pool whose successors have been asked for."""
        return []

    def _excess(self, pool: str, wanted: int | None = None) -> int:
        """By how much a pool is larger than wanted (None: last)."""
        staying = len(self._specs(pool)) - self._going.get(pool, 0)
        wanted = self._wanted.get(pool) if wanted is None else wanted
        if wanted is None:
            return 0
        # what is followed and its successor count once, as long as that is wanted
        excess = staying - wanted - min(len(self._followed(pool)), wanted)
        # what was taken out by hand goes; where it cannot, it is wanted again
        by_hand = len(self._specs(pool)) - len(self._staying(pool))
        return min(excess, max(0, excess - by_hand))

    def _surplus(self, pool: str) -> tuple[int, list[Any]]:
        """How many are to go next, and of which specifications: as many as are wanted last."""
        excess, followed, staying = max(0, self._excess(pool)), self._followed(pool), self._staying(pool)
        spare = len([spec for spec in staying if spec not in followed]) - self._wanted.get(pool, 0)
        if not followed or not excess:
            return excess, staying
        return (min(excess, spare), staying) if spare > 0 else (excess, followed)

    def _at_once(self, pool: str) -> float:
        """How many of a pool may be started at once; infinity: as many as are wanted."""
        return math.inf

    def _grow(self, pool: str, most: float) -> None:
        """Specify as many as are missing, and no more than `most` of them."""
        while self._excess(pool) < 0 and most > 0:
            self.worker_spec.update(self._next_spec(pool))
            most -= 1

    def _want_no_more(self, pools: Iterable[str], gone: Collection[Any] = ()) -> None:
        """What has gone, is about to (`gone`), or could not be started, is not asked for again."""
        for pool in pools:
            if pool in self._wanted:
                left = set(self._specs(pool)) - set(gone)
                if gone:
                    # those that stay until they end count for no more than their successors do
                    left.difference_update(self._followed(pool))
                self._wanted[pool] = min(self._wanted[pool], len(left))
