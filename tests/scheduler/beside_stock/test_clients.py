"""Several clients, and what one can ask, are for users beside a job and inside one what they are in stock.

Values, exceptions and what is left on the scheduler: see `three_ways`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask.array as da
import pytest
from distributed import (
    Variable,
    get_worker,
    wait,
)
from distributed.utils_test import gen_test
from helpers import Gate, through, until
from tasks import inc
from three_ways import Way, outcome, same


def fail(value):
    """A task that fails."""
    raise ZeroDivisionError(f"no {value}")


async def handed(future, mine, other):
    """The future, as it comes to another client."""
    variable = Variable("handed", client=mine)
    await variable.set(future)
    same = await Variable("handed", client=other).get(timeout=5)
    variable.delete()
    return same


async def same_keys(w: Way):
    """Two clients with the same key, then one cancels: the other still has its result."""
    gate = Gate()
    async with w.another() as other:
        mine = w.c.submit(through, 1, gate, key="shared")
        await w.known("shared")
        theirs = other.submit(through, 1, gate, key="shared")
        await until(lambda: len(w.s.tasks["shared"].who_wants) == 2, "both want it")
        await w.c.cancel(mine)
        gate.open()
        return await outcome(mine), await outcome(theirs), gate.arrived


async def futures_of_others(w: Way):
    """By key, published, sent in a task; released by whom they came from."""
    future = w.c.submit(inc, 1, key="given")
    await future
    async with w.another() as other:
        same = await handed(future, w.c, other)
        value = await same
        used = await other.submit(inc, same, key="used")
        future.release()
        await until(lambda: len(w.s.tasks["given"].who_wants) == 1, "one wants it")
        again = await same
    return value, used, again


async def client_dies(w: Way):
    """Without a word: its tasks are forgotten, what others depend on stays."""
    gate = Gate()
    async with w.another() as other:
        first = other.submit(through, 1, gate, key="of-the-dead")
        await w.known("of-the-dead")
        mine = w.c.submit(inc, await handed(first, other, w.c), key="needs-it")
        gone = other.submit(through, 2, gate, key="gone")
        await w.known("needs-it", "gone")
        other.status = "closing"  # or it would come back
        other.scheduler_comm.abort()
        await until(lambda: other.id not in w.s.clients, "its client has gone")
        gate.open()
        value = await mine
        del first, gone
    await w.forgotten("gone")
    return value


async def cancelled(w: Way):
    """Waiting, executing and finished ones, and what depends on them."""
    gate = Gate()
    running = w.c.submit(through, 1, gate, key="running")
    depends = w.c.submit(inc, running, key="depends")
    done = w.c.submit(inc, 1, key="done")
    await done
    await until(lambda: gate.arrived, "it executes")
    await w.c.cancel([running, done], reason="enough", msg="said so")
    await until(depends.cancelled, "what depends on it has gone, too")
    statuses = running.status, done.status
    gate.open()
    return statuses, [await outcome(future) for future in (running, done, depends)]


async def submitted_again(w: Way):
    """The same key after it was cancelled, and after it was released."""
    gate = Gate()
    first = w.c.submit(through, 1, gate, key="again")
    await until(lambda: gate.arrived, "it executes")
    await w.c.cancel(first)
    gate.open()
    await w.forgotten("again")
    await w.c.submit(inc, 0, key="between")  # the client has been told by now
    second = w.c.submit(inc, 5, key="again")
    value = await second
    del first, second
    await w.forgotten("again")
    return value, await w.c.submit(inc, 6, key="again")


async def metadata(w: Way):
    """Set, nested, missing, with a default; of a task."""
    await w.c.set_metadata(["x", "y"], 1)
    await w.c.set_metadata("z", {"a": 2})
    found = await w.c.get_metadata(["x", "y"]), await w.c.get_metadata("z")
    missing = await outcome(w.c.get_metadata("nothing")), await w.c.get_metadata("nothing", default=3)
    future = w.c.submit(with_metadata, key="with-metadata")
    await future
    return found, missing, w.s.tasks["with-metadata"].metadata


def with_metadata():
    """A task that notes something of itself."""
    worker = get_worker()
    worker.state.tasks[worker.get_current_task()].metadata["mine"] = 1


async def datasets(w: Way):
    """Published twice, listed, found by another client, missing; they outlive their client."""
    future = w.c.submit(inc, 1, key="published")
    await w.c.publish_dataset(mine=future)
    twice = await outcome(w.c.publish_dataset(mine=future))
    await w.c.publish_dataset(future, name="mine", override=True)
    listed = await w.c.list_datasets()
    future.release()
    async with w.another() as other:
        found = await other.get_dataset("mine")
        value = await found
    missing = await outcome(w.c.get_dataset("nothing"))
    await w.c.publish_dataset(da.ones(4, chunks=2), name="lazy")
    lazy = float(await w.c.compute((await w.c.get_dataset("lazy")).sum()))
    await w.c.unpublish_dataset("mine")
    await w.c.unpublish_dataset("lazy")
    return twice, listed, value, missing, lazy, await outcome(w.c.unpublish_dataset("mine"))


async def uploaded(w: Way):
    """A module comes to the workers."""
    name = "uploaded_" + w.name.replace(" ", "_")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.py")
        path.write_text("def answer():\n    return 42\n")
        await w.c.upload_file(str(path))
        return await w.c.submit(imported, name, pure=False), len(await w.c.run(imported, name))


def imported(name):
    """What the uploaded module answers."""
    return __import__(name).answer()


async def run_everywhere(w: Way):
    """On workers, on the scheduler, with errors."""
    names = await w.c.run(lambda dask_worker: dask_worker.name)
    tasks = await w.c.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.workers))
    failed = await outcome(w.c.run(fail, 1)), await outcome(w.c.run_on_scheduler(fail, 2))
    told = await w.c.run(fail, 3, on_error="return")
    return sorted(names.values()), tasks, failed, sorted(map(repr, told.values()))


async def asked(w: Way):
    """What a client can ask of tasks that are done."""
    futures = w.c.map(inc, range(6), key="asked")
    await wait(futures)
    keys = [future.key for future in futures]
    who_has, has_what = await w.c.who_has(futures), await w.c.has_what()
    return (
        sorted(map(str, who_has)) == sorted(map(str, keys)),
        {len(places) for places in who_has.values()},
        sum(len(found) for found in has_what.values()),
        sorted((await w.c.nthreads()).values()),
        sum(map(len, (await w.c.processing()).values())),
        len(await w.c.nbytes(keys, summary=False)),
        {future.status for future in futures},
        {future.type for future in futures},
        bool(await w.c.story(*keys)),
        await w.c.call_stack(keys=keys),
        sorted(w.c.scheduler_info()["workers"]) == sorted(w.s.workers),
    )


GROUPS = {
    "clients": (
        same_keys,
        futures_of_others,
        client_dies,
        cancelled,
        submitted_again,
    ),
    "client state": (
        metadata,
        datasets,
        uploaded,
        run_everywhere,
        asked,
    ),
}


@pytest.mark.parametrize("group", GROUPS)
@gen_test(timeout=120, clean_kwargs={"threads": False})
async def test_users_see_the_same(group):
    await same(GROUPS[group])
