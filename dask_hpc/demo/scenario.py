"""What the demo runs, when, and how a run is driven: the same with dask_hpc and without.

A simulation steps all the time; the other workloads arrive beside it, one after another. When one
arrives depends on the steps of the simulation and on the end of the one before, so that the same
arrivals meet the same jobs on a fast machine and on a slow one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from dask_hpc.demo import simulation
from dask_hpc.demo.simulation import Simulation
from dask_hpc.demo.workloads import WORKLOADS
from dask_hpc.errors import DaskHPCError

#: Worker processes, each a node with one thread and this memory limit.
NODES = 6
MEMORY_LIMIT = "1 GiB"
#: Times and amounts of work are multiplied by this in a fast run.
FAST_SCALE = 0.2
#: A run that takes longer than this is given up.
DEADLINE_S = 300.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A workload that arrives during the run."""

    workload: str
    #: Not before so many seconds at scale 1.
    at_s: float = 0.0
    #: Not before this workload has ended, if any.
    after: str | None = None
    #: Steps that the simulation takes first: since the end of `after`, or since its beginning.
    steps: int = 0
    #: Arguments of `Runtime.job`; None for plain Dask code.
    request: Mapping[str, Any] | None = field(default_factory=dict)


#: A simulation that may have up to four of the six nodes, a malleable job beside it, and plain code. Then
#: a rigid job of three nodes and one that starts on four: with either, the simulation has to shrink even
#: when nobody else is there any more, and it grows when they end.
ARRIVALS: tuple[Arrival, ...] = (
    Arrival(workload="primes", request=None),
    Arrival(workload=simulation.NAME, request={"nodes": 2, "min_nodes": 1, "max_nodes": 4}),
    Arrival(
        workload="monte-carlo", at_s=1.0, steps=5, request={"nodes": 2, "min_nodes": 1, "max_nodes": NODES}
    ),
    Arrival(workload="el-nino", at_s=2.5, steps=15, request={"nodes": 3}),
    Arrival(
        workload="climate-field",
        after="el-nino",
        steps=10,
        request={"nodes": 4, "min_nodes": 1, "max_nodes": 4, "constraint": "pof2"},
    ),
)


@dataclass(frozen=True, slots=True)
class Finished:
    """One workload of a finished run: its result, and its times since the run began."""

    result: Any
    submit_s: float
    end_s: float

    @property
    def turnaround_s(self) -> float:
        """End less submission, as the client sees them."""
        return self.end_s - self.submit_s


class DemoError(DaskHPCError, RuntimeError):
    """The demo could not be carried out; the message says at which workload."""


def build_collections(scale: float) -> dict[str, Any]:
    """The dask collection of every arrival that has one, by the name of its workload."""
    names = [arrival.workload for arrival in ARRIVALS]
    return {name: WORKLOADS[name].build(scale) for name in names if name in WORKLOADS}


def play(
    scale: float,
    submit: Callable[[Arrival, Any, Simulation], Any],
    watch: Callable[[float, Sequence[str], Simulation], Collection[str]],
) -> dict[str, Finished]:
    """Let all workloads arrive, and wait for them.

    Parameters
    ----------
    submit
        Called with an arrival, its collection (None for the simulation) and the simulation when its time
        has come; gives a future, or the simulation. Must not block.
    watch
        Called several times a second with the seconds since the run began, the names of the workloads
        that have arrived and not ended, and the simulation; gives those of them that wait for nodes.

    Raises
    ------
    DemoError
        When a workload fails, or is not finished after `DEADLINE_S`.
    """
    collections = build_collections(scale)
    heat = Simulation()
    waiting = list(ARRIVALS)
    futures: dict[str, Any] = {}
    submit_s: dict[str, float] = {}
    end_s: dict[str, float] = {}
    #: Steps of the simulation at the end of each workload.
    end_steps: dict[str, int] = {}

    def due(arrival: Arrival, now_s: float) -> bool:
        if arrival.at_s * scale > now_s or (arrival.after is not None and arrival.after not in end_s):
            return False
        since = 0 if arrival.after is None else end_steps[arrival.after]
        return heat.done() or heat.steps - since >= arrival.steps

    begin = time.monotonic()
    try:
        while len(end_s) < len(ARRIVALS):
            now_s = time.monotonic() - begin
            for arrival in [arrival for arrival in waiting if due(arrival, now_s)]:
                waiting.remove(arrival)
                name = arrival.workload
                submit_s[name] = time.monotonic() - begin
                futures[name] = submit(arrival, collections.get(name), heat)
            for name, future in futures.items():
                if name not in end_s and future.done():
                    end_s[name] = time.monotonic() - begin
                    end_steps[name] = heat.steps
            active = [name for name in futures if name not in end_s]
            going = set(active) - set(watch(now_s, active, heat)) - {simulation.NAME}
            # not for those that wait for nodes, or for those that come after them: it may hold the nodes
            heat.needed = bool(going) or any(
                arrival.after is None or arrival.after in end_s for arrival in waiting
            )
            if now_s > DEADLINE_S:
                raise DemoError(f"not finished after {DEADLINE_S:.0f} s: {', '.join(active)}")
            time.sleep(POLL_S)
    finally:
        heat.stop()
    return {name: Finished(_result(name, futures[name]), submit_s[name], end_s[name]) for name in futures}


def _result(name: str, future: Any) -> Any:
    if future.status != "finished":
        raise DemoError(f"the workload {name} ended as {future.status}: {future.exception()!r}")
    return future.result()


def unfinished_tasks(client: Client) -> int:
    """Number of tasks on the scheduler that have no result yet."""
    return int(client.run_on_scheduler(_count_unfinished))


def _count_unfinished(dask_scheduler: Any) -> int:
    return sum(
        task.state in ("waiting", "queued", "no-worker", "processing")
        for task in dask_scheduler.tasks.values()
    )
