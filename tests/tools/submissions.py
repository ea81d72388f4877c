"""Whose a submission is, and every place of a process that a client can submit from."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

from distributed import SchedulerPlugin
from helpers import engine, owner_of, until


def bound(s):
    """Which client is bound to which job."""
    return dict(engine(s).ownership._bound)


def plain(s, key):
    """Whether a task is plain work."""
    owner = owner_of(s, key)
    return owner is not None and owner.startswith("default")


class Graphs(SchedulerPlugin):
    """Number of tasks and owners of every graph that comes, in order."""

    def __init__(self, s):
        self.seen = []
        s.add_plugin(self, name="graphs")

    def update_graph(self, scheduler, tasks, **kwargs):
        owners = {"plain" if plain(scheduler, key) else owner_of(scheduler, key) for key in tasks}
        self.seen.append((len(tasks), owners))


async def here(submit):
    return submit()


async def thread(submit):
    out = []
    runner = threading.Thread(target=lambda: out.append(submit()))
    runner.start()
    await until(lambda: not runner.is_alive(), "the thread ends")
    return out[0]


async def pool(submit):
    with ThreadPoolExecutor(1) as executor:
        return await asyncio.get_running_loop().run_in_executor(executor, submit)


async def blank_context(submit):
    return contextvars.Context().run(submit)


async def task(submit):
    async def work():
        return submit()

    return await asyncio.get_running_loop().create_task(work(), context=contextvars.Context())
