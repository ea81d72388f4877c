"""Adaptive scaling whose shrinking loses nothing and never keeps the cluster from growing.

Stock waits for workers to retire before it looks again, and closes those that would not. Here workers
leave in the background, those on their way out are not counted, and those that stay are left alone
for a while.
"""

from __future__ import annotations

import asyncio
from typing import Any

import distributed

#: How long a worker that could not be released is not asked again.
_AGAIN_S = 10.0


class SafeAdaptive(distributed.Adaptive):
    """`distributed.Adaptive` for clusters with `SafeScaling`; takes the same arguments."""

    cluster: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Names of workers on their way out.
        self.leaving: set[Any] = set()
        #: Until when workers that could not go are left alone, by name, on the loop's clock.
        self._kept_until_s: dict[Any, float] = {}
        self._releases: set[asyncio.Task[None]] = set()
        super().__init__(*args, **kwargs)

    @property
    def plan(self) -> set[Any]:
        """Names of workers that there should be."""
        return super().plan - self.leaving

    @property
    def requested(self) -> set[Any]:
        """Names of workers that have been started."""
        return super().requested - self.leaving

    @property
    def observed(self) -> set[Any]:
        """Names of workers that are connected."""
        return super().observed - self.leaving

    async def workers_to_close(self, target: int) -> list[Any]:
        """Names of workers that should go, without those that go already or could not a moment ago."""
        now_s = asyncio.get_running_loop().time()
        self._kept_until_s = {name: at for name, at in self._kept_until_s.items() if at > now_s}
        # those that stay may be the first choice for ever: ask for as many more
        chosen = await super().workers_to_close(max(0, target - len(self._kept_until_s)))
        going = [name for name in chosen if name not in self.leaving and name not in self._kept_until_s]
        return going[: max(0, len(self.observed) - target)]

    async def scale_up(self, n: Any) -> None:
        """Have `n` workers besides those on their way out."""
        await super().scale_up(n + len(self.leaving))

    async def scale_down(self, workers: Any) -> None:
        """Let workers go in the background, each as soon as it can."""
        for names in self.cluster.together(set(workers) - self.leaving):
            self.leaving |= names
            task = asyncio.ensure_future(self._release(names))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, names: set[Any]) -> None:
        try:
            await self.cluster.scale_down(names)
            again_s = asyncio.get_running_loop().time() + _AGAIN_S
            self._kept_until_s |= dict.fromkeys(names & self.cluster.plan, again_s)
        finally:
            self.leaving -= names
