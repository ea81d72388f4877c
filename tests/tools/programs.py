"""What the tests of programs share: a heat program, and how to wait for it and to end it."""

from __future__ import annotations

import asyncio

from helpers import engine, until

from dask_hpc.demo.heat import Heat

#: Small enough to be computed in one piece beside every test.
HEAT = Heat(24, 8)
_shared = []


class Shared:
    """A function that goes to workers of this process by reference, with what it closes over."""

    def __init__(self, function):
        self.function = function
        self.number = len(_shared)
        _shared.append(self)

    def __call__(self, *args):
        return self.function(*args)

    def __reduce__(self):
        return shared, (self.number,)

    def __dask_tokenize__(self):
        return ("shared", self.number)


def shared(number):
    """The function of that number."""
    return _shared[number]


def going(program):
    """Steps go on until `finish`."""
    return not program.data.get("stop")


def heat(job, steps=going, *, adapt=None, after=None, **options):
    program = job.program(HEAT.rows, "y", **options)
    return program.init(HEAT.start).elastic(HEAT.step, steps, halo=1, adapt=adapt, after=after, name="steps")


def start(program):
    """Let the program run beside the test."""
    program.data["stop"] = False
    return asyncio.ensure_future(program.run())


async def stepped(program, run, more=3):
    """Wait until the program has made some steps more."""
    goal = program.step + more
    await until(lambda: program.step >= goal or run.done(), f"{more} steps more")
    if run.done():
        run.result()


async def finish(program, run):
    """Let the program end; its field must be right."""
    program.data["stop"] = True
    await asyncio.wait_for(run, 25)
    await same(program)


async def same(program):
    """The field is that of an undisturbed run."""
    assert (await program.field()).identical(HEAT.undisturbed(program.step))


def members(s, job):
    """The nodes that the scheduler thinks the state lies on."""
    return engine(s).rounds.windows.producers[job.id].members


def worker_of(s, workers, node):
    """The worker that is a node."""
    return next(w for w in workers if w.address in engine(s).state.nodes.nodes[node].workers)


def whole(program):
    """The versions in the store that are whole, as the program knows them."""
    return [row for row in program.commits if row["state"] == "complete" and row["why"] != "kept"]


async def committed(program, run, more=1):
    """Wait until the program has so many whole versions more."""
    goal = len(whole(program)) + more
    await until(lambda: len(whole(program)) >= goal or run.done(), f"{more} versions more")
    if run.done():
        run.result()
