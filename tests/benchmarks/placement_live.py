"""Placement live: the split that `placement` comes to, beside fixed ones, and what it does of drift.

A 2-D simulation (heat on 512 x 512, numpy, and a sleep that makes its steps equally long) hands over its
field; six analyses sleep as long as they are said to. It has one node with two helper cores, staging one with
three, in one process; the node of the simulation gives its data to others no faster than a link of 40 MB/s
does, one transfer after the other. A fixed split is declared (``where=``) in a flow of its own. Time a step
is that of the producer, over the steps after the first ones. The fixed splits that were best are measured
again, in turns with ours.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client, Scheduler, Worker
from harness import Options, Row, main, row
from machine import SEED

import dask_hpc
from dask_hpc import sim
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc.sim.model.job import Job, Program
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload
from dask_hpc.wire import ROLE_RESOURCE
from dask_hpc_policies.codec import decode
from dask_hpc_policies.placement.replan import application_of, phases
from dask_hpc_policies.placement.view import FlowView, Split

#: Seconds of a value of each analysis, and of a step; the one that gets dearer, how much, and when.
WORK_S = {"mean": 0.04, "peak": 0.06, "edges": 0.08, "modes": 0.10, "flux": 0.12, "spectrum": 0.20}
STEP_S, DEARER, FACTOR, DEAR_STEP = 0.08, "peak", 4.0, 30
SHAPE, QUEUE, LINK_BYTES_S = (512, 512), 3, 40e6
HELPERS, STAGING = 2, 3
#: Steps that are not timed; from the first dear value to the change; after it, with at most one change more.
WARM, SOON, AFTER = 6, 3, 20
BEST = 3
#: Splits are equal whose steps differ by no more, relative: what is measured of an analysis does.
EQUAL = 0.02
Where = Mapping[str, str]


class Linked(Worker):
    """A worker whose link to others is slow."""

    async def get_data(self, comm: Any, keys: Any, who: Any = None, serializers: Any = None) -> Any:
        """Data of tasks, after as long as they take on the link."""
        if not hasattr(self, "link"):
            self.link = asyncio.Lock()
        async with self.link:
            await asyncio.sleep(sum(self.state.tasks[key].nbytes for key in keys) / LINK_BYTES_S)
        return await super().get_data(comm, keys, who, serializers)


def analysis(work_s: float, dearer: int | None) -> Callable[[Any], float]:
    """It takes as long as it is said to, and more from a step on."""

    def analyse(ds: Any) -> float:
        step = int(ds["step"][-1])
        time.sleep(work_s if dearer is None or step < dearer else FACTOR * work_s)
        return float(step)

    return analyse


def simulate(address: str, name: str, steps: int) -> list[float]:
    """Run the simulation; gives when each of its steps was handed over."""
    source = dask_hpc.Source(name, address, rank=0, size=1)
    field, handed_s = np.zeros(SHAPE), []
    field[SHAPE[0] // 2, SHAPE[1] // 2] = 1e6
    try:
        for step in range(steps):
            began_s = time.monotonic()
            inner = field[1:-1, 1:-1]
            around = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
            field[1:-1, 1:-1] = inner + 0.1 * (around - 4 * inner)
            time.sleep(max(0.0, began_s + STEP_S - time.monotonic()))
            source.send(step, {"T": field}, at={"y": 0, "x": 0})
            handed_s.append(time.monotonic())
    finally:
        source.close()
    return handed_s


class Bed:
    """The cluster, and flows on it, one after the other."""

    def __init__(self, rt: Any, address: str) -> None:
        self.rt, self.address, self.numbers = rt, address, itertools.count()

    async def flow(self, where: Where, steps: int, dearer: int | None = None) -> dict[str, Any]:
        """Run it: when steps were handed over, where each began to be, what was planned in the end."""
        name = f"heat-{next(self.numbers)}"
        flow = await self.rt.couple(name, {"T": (("y", "x"), SHAPE, "float64")}, queue=QUEUE)
        for one, work_s in WORK_S.items():
            late = dearer if one == DEARER else None
            await flow.analyse(analysis(work_s, late), name=one, where=where[one])
        values = flow.results(DEARER, timeout=60)
        running = asyncio.create_task(asyncio.to_thread(simulate, self.address, name, steps))
        found: dict[str, Any] = {"given": {}, "splits": []}
        for _ in range(steps):
            step, _ = await anext(values)
            status = await flow.status()
            found["given"][step] = status["steps"]
            if not found["splits"] or found["splits"][-1][1] != status["split"]:
                found["splits"].append((status["steps"], status["split"]))
        found["handed_s"] = await running
        found["view"] = (await flow.plan())["view"]
        await flow.close()
        return found

    async def step_s(self, where: Where, steps: int, settling: int = 0) -> float:
        """Time a step, over so many but the first; a policy has some more before them to find its split."""
        handed_s = (await self.flow(where, settling + steps))["handed_s"]
        return _mean_s(handed_s[settling + WARM :])


def _mean_s(handed_s: list[float]) -> float:
    return (handed_s[-1] - handed_s[0]) / (len(handed_s) - 1)


def decided(view: FlowView, before: Where) -> Split:
    """What the simulator comes to from the split before, by the same policy and what was measured here."""
    begin = Split(
        in_situ=tuple([name for name in WORK_S if name not in outside(before)]),
        in_transit=outside(before),
        nodes=view.nodes,
        helper_cores=view.helper_cores,
    )
    coupled = Coupled(flow="heat", steps=10, application=application_of(view), split=begin)
    job = Job(
        id="j", submit_s=0.0, start_nodes=2, min_nodes=2, max_nodes=2, program=Program(stages=(coupled,))
    )
    work = Workload(name="w", jobs=(job,), machine=Machine(nodes=2))
    found = sim.simulate(work, "placement").flows[0]["splits"][-1]
    return replace(begin, in_situ=tuple(found["in_situ"]), in_transit=tuple(found["in_transit"]))


def alike(view: FlowView, one: Split, other: Split) -> bool:
    """Whether by what was measured a step is as long with both: analyses of like times may change places."""
    application = application_of(view)
    steps_s = [phases(application, view, each).step_s(view.mode) for each in (one, other)]
    return abs(steps_s[0] / steps_s[1] - 1) <= EQUAL


def outside(split: Where) -> tuple[str, ...]:
    """Analyses of a split that run in transit."""
    return tuple(sorted([one for one, where in split.items() if where == "in-transit"]))


def fixed(count: int) -> list[Where]:
    """Fixed splits: the two ends, and others in an order of chance, so many in all."""
    sides = itertools.product(("in-situ", "in-transit"), repeat=len(WORK_S))
    inside, *others, out = [dict(zip(WORK_S, one, strict=True)) for one in sides]
    return [inside, out, *random.Random(SEED).sample(others, count - 2)]


async def _run(options: Options) -> list[Row]:
    steps, rounds = options.pick(24, 18, 10), options.pick(5, 3, 1)
    splits = fixed(options.pick(64, 12, 2))
    auto = dict.fromkeys(WORK_S, "auto")
    async with (
        Scheduler(port=0, dashboard_address=":0") as s,
        Linked(s.address, nthreads=HELPERS, name="simulation"),
        Worker(s.address, nthreads=STAGING, name="staging", resources={f"{ROLE_RESOURCE}staging": 1}),
        Client(s.address, asynchronous=True) as client,
    ):
        bed = Bed(await dask_hpc.install(client, "placement"), s.address)
        once = [(await bed.step_s(where, steps), number) for number, where in enumerate(splits)]
        best = [number for _, number in sorted(once)[:BEST]]
        ours, again = [], {number: [once[number][0]] for number in {*best, 0, 1}}
        for _ in range(rounds):
            ours.append(await bed.step_s(auto, steps, settling=WARM))
            for number in again:
                again[number].append(await bed.step_s(splits[number], steps))
        # one that is short enough to see that it works would show nothing
        lengths = options.pick([2 * DEAR_STEP], [2 * DEAR_STEP], [])
        drifts = [await bed.flow(auto, length, dearer=DEAR_STEP) for length in lengths]
    medians = {number: statistics.median(times_s) for number, times_s in again.items()}
    least = min(best, key=medians.__getitem__)
    all_in, all_out = medians[0], medians[1]
    mine = statistics.median(ours)
    note = f"{len(splits)} of 64 fixed splits; best: {', '.join(outside(splits[least])) or 'none'} in transit"
    over = [one / medians[least] for one in ours]
    said = [f"which takes {one * 1e3:.0f} ms" for one in (all_in, all_out)]
    return [
        row("step with our split over the best fixed one", over, "x", bar=1.05, note=note),
        Row(name="over all in situ", value=mine / all_in, unit="x", bar=1.0, note=said[0]),
        Row(name="over all in transit", value=mine / all_out, unit="x", bar=1.0, note=said[1]),
        row("step, ours", [one * 1e3 for one in ours], "ms"),
        *(each for drift in drifts for each in _drift_rows(drift, DEAR_STEP)),
    ]


def _drift_rows(drift: Mapping[str, Any], first: int) -> list[Row]:
    """What became of the split once one analysis was four times as dear."""
    known = drift["given"][first]
    changes = [(at, split) for at, split in drift["splits"][1:] if at >= known]
    told = f"{DEARER} {FACTOR:g} times as dear from step {first}"
    soon = changes[0][0] - known if changes else 1e3
    later = sum(at - changes[0][0] <= AFTER for at, _ in changes[1:]) if changes else 0
    view = decode(FlowView, drift["view"])
    before = [split for at, split in drift["splits"] if at < known][-1]
    simulated, settled = decided(view, before), ", ".join(outside(drift["splits"][-1][1])) or "none"
    same = alike(view, simulated, view.present)
    return [
        Row(
            name="iterations from the first dear value to the new split",
            value=float(soon), unit="steps", bar=SOON, note=told,
        ),
        Row(name=f"further changes in {AFTER} steps", value=float(later), unit="changes", bar=1),
        Row(
            name="splits that the simulator decides otherwise",
            value=float(not same), unit="of 1", bar=0,
            note=f"in transit in the end: {settled}; simulated: {', '.join(simulated.in_transit) or 'none'}",
        ),
    ]  # fmt: skip


def run(options: Options) -> list[Row]:
    """All of it."""
    return asyncio.run(_run(options))


if __name__ == "__main__":
    main("placement_live", "Placement live: our split beside fixed ones, and what it does of drift", run)
