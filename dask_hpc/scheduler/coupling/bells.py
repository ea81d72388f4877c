"""Waiting for what happens in a flow: with one timer, however many wait and however often they are woken.

Each step wakes whoever waits for room, for each of its workers. A time limit of its own would cost each of
them about as much as all else that it does.
"""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes all who wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Wake all who wait now; who waits later waits for the next time."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def wait(self, most_s: float | None = None) -> None:
        """Wait until it is rung; with `most_s` it is, for all who wait, within that many seconds."""
        loop = asyncio.get_running_loop()
        if most_s is not None and self._timer is None:
            self._timer = loop.call_later(most_s, self._due)
        self._waiting[waits := loop.create_future()] = None
        try:
            await waits
        finally:
            # who gives up is not remembered until it is rung, which may never be
            self._waiting.pop(waits, None)

    def _due(self) -> None:
        self._timer = None
        self.ring()


async def rung(bell: Bell, within_s: float) -> bool:
    """Wait for a bell; whether it was rung within so many seconds."""
    try:
        async with asyncio.timeout(within_s):
            await bell.wait()
    except TimeoutError:
        return False
    return True
