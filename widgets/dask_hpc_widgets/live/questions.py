"""What the panel asks a cluster. The one module of the package that calls the runtime's coroutines.

Each runs in the loop of the client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dask_hpc.client.job import ask_cancel
from dask_hpc.client.runtime import Runtime
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.views import Picture

#: Ended jobs and decisions of a picture.
_ENDED, _DECISIONS = 12, 30


async def picture(runtime: Runtime, since: int = 0) -> Picture:
    """What is shown over and over, and what has happened since the record of that number."""
    found = await runtime.channel.ask("picture", ended=_ENDED, decisions=_DECISIONS, since=since)
    return Picture(**found)


class Present(NamedTuple):
    """What a change or a simulation goes on from, of one moment."""

    view: ClusterSnapshot
    #: As `Runtime.jobs` gives them.
    rows: list[dict[str, Any]]
    #: The policy that runs, as `Runtime.status` gives it.
    running: dict[str, Any]


async def state(runtime: Runtime) -> Present:
    """What a change or a simulation goes on from."""
    view, found = await asyncio.gather(
        runtime.ask_snapshot(), runtime.channel.ask("picture", ended=0, decisions=0)
    )
    return Present(view, found["jobs"], found["status"]["policy"])


async def at_work(runtime: Runtime) -> tuple[int, bool]:
    """How many jobs run; and where none does, whether plain work is on workers."""
    found = await runtime.channel.ask("picture", ended=0, decisions=0)
    running: int = found["status"]["jobs_running"]
    return running, not running and await _tasks(runtime) > 0


async def _tasks(runtime: Runtime) -> int:
    """How many tasks are on workers, of anybody: before the first job nobody else counts plain work."""
    scheduler: Any = runtime.client.scheduler
    return sum(map(len, (await scheduler.processing(workers=None)).values()))


async def update(runtime: Runtime, policy: Mapping[str, Any]) -> dict[str, Any]:
    """Have the cluster decide by `policy`, a specification; gives what it says it runs."""
    status = await runtime.ask_update(dict(policy), {})
    found: dict[str, Any] = status["policy"]
    return found


async def change(runtime: Runtime, settings: Mapping[str, str]) -> dict[str, Any]:
    """Have the cluster work by other settings, by key; gives all that it has then."""
    status = await runtime.ask_update(None, dict(settings))
    found: dict[str, Any] = status["settings"]
    return found


async def job(runtime: Runtime, id: str) -> dict[str, Any]:
    """One job, as `Job.status` gives it."""
    found: dict[str, Any] = await runtime.channel.ask("job", job=id)
    return found


async def cancel(runtime: Runtime, id: str) -> dict[str, Any]:
    """Cancel a job; gives its row."""
    found: dict[str, Any] = await ask_cancel(runtime.channel, id, "cancelled in the panel")
    return found


async def resize(runtime: Runtime, id: str, nodes: int) -> dict[str, Any]:
    """Resize a job; gives the outcome, when it is known."""
    found: dict[str, Any] = await runtime.channel.ask("resize", job=id, nodes=nodes, wait=True)
    return found


async def corridor(runtime: Runtime, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Set or clear the power corridor, as `Runtime.corridor` does; gives what holds then."""
    found: dict[str, Any] = await runtime.channel.ask("corridor", **arguments)
    return found


class Example(NamedTuple):
    """A job to be started: its fields as `Runtime.job` takes them, and how many tasks it has."""

    name: str
    fields: Mapping[str, int]
    tasks: int


async def start(runtime: Runtime, examples: Callable[[int], Iterable[Example]], task_s: float) -> list[Any]:
    """Start jobs whose tasks sleep for `task_s`, given the threads of all workers; gives their futures.

    Raises
    ------
    RuntimeError
        When tasks of anybody run, which would get fewer nodes.
    """
    held: list[Any] = []
    scheduler: Any = runtime.client.scheduler
    if busy := await _tasks(runtime):
        there = f"{counted(busy, 'task')} on workers"
        raise RuntimeError(f"the cluster is at work ({there}), and the examples would take nodes from that")
    threads = sum((await scheduler.ncores(workers=None)).values())
    for one in examples(threads):
        async with runtime.job({"name": one.name, **one.fields}):
            held += runtime.client.map(time.sleep, [task_s] * one.tasks, pure=False, key=one.name)
    return held
