"""Between the loop of the client, where the cluster is asked, and those of the kernel, where widgets live.

Rules of the file: knows no widget and no policy. Widgets are touched in the kernel's loops alone. What is
shown over and over is dropped, not queued, while the kernel is busy. After `Link.close` no task is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from dask_hpc.errors import InstallError
from dask_hpc.show import running_loop
from dask_hpc_widgets.base import background

#: Seconds until a scheduler that does not answer is said not to.
PATIENCE_S = 10.0
#: Of the kernel's time that showing may take.
SHARE = 0.02
#: What keeps the loop of the client waits so many times as long before it comes again.
_WAITED = 5
#: Seconds between two looks whether the client's loop is there.
LOOK_S = 2.0
#: Seconds between two questions while the runtime is not installed.
ABSENT_S = 10.0

Question = Callable[[], Awaitable[Any]]
#: Takes the answer, or the error.
Answered = Callable[[Any], None]


class Link:
    """Asks the cluster without blocking the kernel.

    Make it in the thread of the kernel: answers of `watch` go to the loop that runs there. Without a running
    loop (a script, a plain Python prompt) `ask` blocks, and there is nothing to watch with.

    Parameters
    ----------
    client
        A `distributed.Client`. It is not kept.
    """

    def __init__(self, client: Any) -> None:
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self._client = weakref.ref(client)
        self._blocks = not client.asynchronous
        self._page = running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        #: One question at a time: what was asked before a change is answered before the change.
        self._turn = asyncio.Lock()
        self._latest: Any = None
        self._offered = False
        #: Seconds that showing took the last time.
        self._shown_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    @property
    def live(self) -> bool:
        """Whether there is a loop that `watch` can show things in."""
        return self._page is not None

    def ask(
        self, question: Question, answered: Answered, *, patient: bool = False, beside: bool = False
    ) -> None:
        """Ask once; `answered` gets the answer or the error, in the loop that runs here now.

        `patient`: what is asked for may be done however late, so the answer is waited for. `beside`: other
        questions are asked meanwhile.
        """
        limit_s = None if patient else PATIENCE_S
        if self.closed:
            return
        here = running_loop()
        if here is None and self._blocks:
            client = self._client()
            answered(_gone() if client is None else self._blocking(client, question, limit_s))
            return

        async def once() -> None:
            answer = await self._answer(question, limit_s, beside)
            if here is not None and not self.closed:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
                    here.call_soon_threadsafe(self._tell, answered, answer)

        if not self._begin(once):
            answered(_gone())

    def watch(
        self,
        question: Question,
        shown: Answered,
        period_s: float,
        ended: Callable[[], bool],
        heard: Answered = lambda answer: None,
    ) -> None:
        """Ask again and again; `shown` gets the latest answer or error, in the kernel's loop.

        What takes long is done more seldom: watching takes no more than about `SHARE` of the kernel's time.

        Parameters
        ----------
        period_s
            Least time between an answer and the next question.
        ended
            Asked after each answer, in the client's loop; true ends it.
        heard
            Gets every answer or error in the client's loop, also while the kernel is busy with a cell.
        """
        page = self._page
        if page is None:
            return

        async def over_and_over() -> None:
            while not self.closed:
                self._latest = await self._answer(question)
                began_s, since_s = time.thread_time(), time.perf_counter()
                if not self.closed:
                    self._hear(heard)
                # a view that waits for something holds up the loop of the client as well
                waited_s = _WAITED * (time.perf_counter() - since_s)
                heard_s = time.thread_time() - began_s
                if not self._offered:
                    self._offered = True
                    try:
                        page.call_soon_threadsafe(self._show, shown)
                    except RuntimeError:
                        return  # the kernel's loop is closed
                if ended():
                    return
                # each question that nothing takes is a line in the scheduler's log
                absent_s = ABSENT_S if isinstance(self._latest, InstallError) else 0.0
                await asyncio.sleep(max(period_s, absent_s, waited_s, (heard_s + self._shown_s) / SHARE))

        def look() -> None:
            if self.closed:
                return
            if self._loop.is_running():
                self._timer = page.call_later(LOOK_S, look)
            else:
                # it ended before the question under way was answered
                self._tell(shown, _gone())

        self._begin(over_and_over)
        self._timer = page.call_later(LOOK_S, look)

    def close(self) -> None:
        """End everything that is under way. From another thread than the client's it waits for that."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._loop.is_closed() or not self._loop.is_running():
            return
        if running_loop() is self._loop:
            for task in self._tasks:
                task.cancel()
            return
        done = threading.Event()

        async def end() -> None:
            tasks = self._tasks - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            done.set()

        with contextlib.suppress(RuntimeError):  # closed this very moment
            self._loop.call_soon_threadsafe(lambda: self._keep(self._loop.create_task(end())))
            done.wait(PATIENCE_S)

    # ------------------------------------------------------ in the client's loop

    async def _answer(
        self, question: Question, limit_s: float | None = PATIENCE_S, beside: bool = False
    ) -> Any:
        """The answer, or the error as a value: both are for the user to see."""
        limit = asyncio.timeout(limit_s)
        try:
            async with limit, contextlib.nullcontext() if beside else self._turn:
                return await question()
        except Exception as error:
            # what took too long elsewhere says so itself
            if limit.expired():
                return TimeoutError(f"the scheduler has not answered for {PATIENCE_S:g} s")
            return error

    def _hear(self, heard: Answered) -> None:
        """Have the latest heard; where that fails, that is the latest, and the next answer is asked for."""
        try:
            heard(self._latest)
        except Exception as error:
            failed = RuntimeError(f"it cannot be shown: {type(error).__name__}: {error}")
            self._latest = failed
            with contextlib.suppress(Exception):
                heard(failed)

    def _begin(self, coroutine: Callable[[], Any]) -> bool:
        """Whether there is still a loop to ask in."""

        def begin() -> None:
            if not self.closed:
                self._keep(self._loop.create_task(coroutine()))

        if running_loop() is self._loop:
            begin()
            return True
        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            return False
        return self._loop.is_running()

    def _blocking(self, client: Any, question: Question, limit_s: float | None) -> Any:
        try:
            return client.sync(self._answer, question, limit_s)
        except RuntimeError:  # its loop has ended
            return _gone()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------- in a kernel's loop

    def _tell(self, answered: Answered, answer: Any) -> None:
        if not self.closed:
            background.shown_soon(answered, answer)

    def _show(self, shown: Answered) -> None:
        # what comes from now on is shown by another call
        self._offered = False
        began_s = time.thread_time()
        self._tell(shown, self._latest)
        self._shown_s = time.thread_time() - began_s


def _gone() -> RuntimeError:
    return RuntimeError("the client of this panel is closed")
