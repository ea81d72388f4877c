"""Kill workers and retire them, by seeds: ``python tests/tools/losses.py --seeds 100``.

Every seed is a run of its own on six workers in two racks of two machines: it decides what goes (a process, a
host, a rack, several things, planned exits, planned exits and then a process), which workers that takes, how
much they hold and execute, whether others come in their places at once, and whether there is a job or plain
work alone, of which nobody told the runtime. A scheduler plugin counts for itself what is lost and what is
computed again. Exits with 1 when a loss was classed wrong or a count differs.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import inf
from typing import Any
from unittest.mock import patch

from distributed import SchedulerPlugin, Worker, wait
from helpers import Gate, asleep, engine, live, through, traces_of_ours, until
from tasks import inc

import dask_hpc
from dask_hpc.scheduler.tables import losses
from dask_hpc.trace import LossEvent, parse_trace
from dask_hpc.wire import HEARTBEAT

#: Two racks of two machines; workers by machine.
PLACES = [("h0", "d0"), ("h0", "d0"), ("h1", "d0"), ("h2", "d1"), ("h3", "d1"), ("h3", "d1")]
#: How losses are called, and which workers go then: one of these, by seed.
KINDS: dict[str, list[list[int]]] = {
    "process": [[0], [1], [2], [3], [4], [5]],
    "host": [[0, 1], [4, 5], [5, 4]],
    "domain": [[0, 1, 2], [3, 4, 5], [5, 3, 4]],
    "several": [[1, 3], [0, 4], [1, 2], [5, 3], [0, 1, 3], [2, 3], [0, 1, 4, 5]],
    "planned": [[4], [0, 1], [5, 3]],
}
#: A planned exit, and then the loss of a process.
BOTH = "both"
#: Row of the table with the runs that have no job.
PLAIN = "plain"
COUNTS = ("lost_results", "lost_scattered", "interrupted_tasks", "recomputed_results", "restored_results")


class Counting(SchedulerPlugin):
    """Counts for itself what is lost, what is interrupted, and what is computed more than once."""

    name = "counting"

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.computed: Counter[Any] = Counter()
        self.lost: Counter[str] = Counter()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if (start, finish) == ("processing", "memory"):
            self.computed[key] += 1
        elif (start, finish) == ("processing", "released"):
            self.lost["interrupted_tasks"] += 1
        elif start == "memory":
            # nothing is let go while this looks: what leaves memory is lost
            self.lost["lost_results" if finish == "released" else "lost_scattered"] += 1

    @property
    def again(self) -> int:
        """Results that were computed again."""
        return sum(count - 1 for count in self.computed.values())

    def counts(self) -> dict[str, int]:
        """All of it, by our names."""
        return {**{name: self.lost[name] for name in COUNTS}, "recomputed_results": self.again}


@dataclass
class Outcome:
    """What came of one run."""

    kind: str
    seed: int
    #: Whether no job was declared.
    plain: bool = False
    #: What the runtime says, and what is so: losses by class, then what went with them.
    ours: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    #: What else was wrong.
    faults: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Everything that was wrong."""
        differ = [
            f"{name}: {self.ours.get(name)}, should be {self.counted.get(name)}"
            for name in sorted({*self.ours, *self.counted})
            if self.ours.get(name) != self.counted.get(name)
        ]
        return [*differ, *self.faults]

    def expect(self, what: str, found: Any, expected: Any) -> None:
        """A fault when it is not so."""
        if found != expected:
            self.faults.append(f"{what}: {found!r}, should be {expected!r}")


async def labelled(worker: Worker, place: tuple[str, str]) -> None:
    """Have a worker say where it is."""
    told = {"node": {"host": place[0], "domain": place[1]}}
    worker.metrics[HEARTBEAT] = lambda worker: told
    await worker.heartbeat()


async def kill(s: Any, workers: list[Worker]) -> None:
    """Workers go, one after another, as they do when a machine fails."""
    for worker in workers:
        s.stream_comms[worker.address].abort()
        await s.remove_worker(worker.address, stimulus_id="killed", close=False)


def run_once(kind: str, seed: int, plain: bool = False) -> Outcome:
    """One run, as the seed has it, with a job or without any."""
    chance = random.Random(f"{kind}-{seed}")
    outcome = Outcome(kind, seed, plain)
    losing, leaving = ([], []) if kind == BOTH else (chance.choice(KINDS[kind]), [])
    if kind == BOTH:
        leaving, losing = [4], [chance.choice([0, 3, 5])]
    elif kind == "planned":
        leaving, losing = losing, []

    settings = {"hpc.tick": "50 ms", "hpc.checkpoint.small": 0, "distributed.scheduler.allowed-failures": 100}

    @live(workers=6, config=settings)
    async def case(c: Any, s: Any, *workers: Worker) -> None:
        async with AsyncExitStack() as more:
            await _case(c, s, workers, (losing, leaving), chance, outcome, more.enter_async_context)

    # what is lost together is told when the run says so, however busy the machine is
    with patch.object(losses, "TOGETHER_S", inf):
        case()
    return outcome


async def _case(
    c: Any,
    s: Any,
    workers: tuple[Worker, ...],
    goes: tuple[list[int], list[int]],
    chance: random.Random,
    outcome: Outcome,
    enter: Callable[[Any], Any],
) -> None:
    killed, retired = ([workers[number] for number in numbers] for numbers in goes)
    rt = await dask_hpc.install(c)
    await until(lambda: all("dask-hpc" in worker.plugins for worker in workers), "the plugin is there")
    for worker, place in zip(workers, PLACES, strict=True):
        await labelled(worker, place)
    job = None
    async with AsyncExitStack() as declared:
        if not outcome.plain:
            job = await declared.enter_async_context(
                rt.job("main", nodes=5 if chance.random() < 0.5 else None)
            )
            await until(lambda: engine(s).state.nodes.nodes, "it is awake")
        counting = Counting(s)
        s.add_plugin(counting)
        results = c.map(inc, range(chance.randrange(10, 60)), pure=False)
        data = await c.scatter(list(range(chance.randrange(1, 20))), hash=False)
        await wait([*results, *data])
        gate, busy = Gate(), []
        if retired:
            gone = await c.retire_workers([worker.address for worker in retired])
            outcome.expect("retired", sorted(gone), sorted(worker.address for worker in retired))
            # copies of what the retired workers had were made, and nothing was lost
            outcome.expect("lost with planned exits", counting.counts(), dict.fromkeys(COUNTS, 0))
        elif chance.random() < 0.5:
            busy = c.map(through, range(4), gate=gate, pure=False)
            await until(lambda: gate.arrived, "something executes")
        await kill(s, killed)
        if killed and chance.random() < 0.4:
            place = PLACES[workers.index(killed[0])]
            name = "again" if chance.random() < 0.5 else killed[0].name
            await labelled(await enter(Worker(s.address, name=name, nthreads=1)), place)
        losses.TOGETHER_S = 0.0
        gate.open()
        status = engine(s).losses
        events = len(retired) + bool(killed)

        def noted() -> bool:
            # asleep, nobody looks so soon unless somebody asks
            status.status()
            # one too many is told with the counts
            return sum(status.count.values()) >= events

        await until(noted, "all of it is noted")
        outcome.expect("results", await c.gather(results), [i + 1 for i in range(len(results))])
        outcome.expect("results of what executed", await c.gather(busy), list(range(len(busy))))
        lost = counting.lost["lost_results"]
        await until(lambda: counting.again == lost, "what was lost is computed again")
        _compare(outcome, (await rt.status())["losses"], counting, bool(killed), len(retired))
        await _recorded(rt, outcome, killed, retired)
        s.remove_plugin("counting")
        outcome.expect("awake", engine(s).awake, not outcome.plain)
    if job is not None:
        await job.wait(20)
        await asleep(s)
    outcome.expect("left in the scheduler", traces_of_ours(s), [])
    for worker in killed:
        await worker.close()


def _compare(outcome: Outcome, found: dict[str, Any], counting: Counting, killed: bool, planned: int) -> None:
    expected = {**dict.fromkeys(KINDS, 0), "planned": planned}
    if killed:
        expected["process" if outcome.kind == BOTH else outcome.kind] = 1
    exposure_node_s = found.pop("exposure_node_s")
    if not 0 < exposure_node_s < 6 * 60:
        outcome.faults.append(f"{exposure_node_s} node-seconds were watched")
    outcome.ours, outcome.counted = found, {**expected, **counting.counts()}


async def _recorded(rt: Any, outcome: Outcome, killed: list[Worker], retired: list[Worker]) -> None:
    """The trace has a record for each loss and each planned exit."""
    found = [one for one in parse_trace(await rt.trace()).records if isinstance(one, LossEvent)]
    severity = "process" if outcome.kind == BOTH else outcome.kind
    expected = [("planned", 1, (str(worker.name),)) for worker in retired]
    if killed:
        expected.append((severity, len(killed), tuple(sorted(str(worker.name) for worker in killed))))
    outcome.expect("records", sorted((r.severity, r.workers, r.nodes) for r in found), sorted(expected))
    outcome.expect("recorded results", sum(r.results for r in found), outcome.counted["lost_results"])


def table(outcomes: list[Outcome]) -> str:
    """A row for each kind of run: ours over what is so, of losses by class and of what went with them."""
    names = [*KINDS, *COUNTS]
    heads = [*KINDS, "results", "scattered", "interrupted", "recomputed"]
    lines = [f"{'':10}{'runs':>5}" + "".join(f"{head:>12}" for head in heads) + f"{'wrong':>7}"]
    for kind in [*KINDS, BOTH, PLAIN, "all"]:
        of = [one for one in outcomes if kind in (one.kind, "all") or (kind == PLAIN and one.plain)]
        cells = [f"{_sum(of, 'ours', name)}/{_sum(of, 'counted', name)}" for name in names]
        wrong = sum(bool(one.wrong) for one in of)
        lines.append(f"{kind:10}{len(of):5}" + "".join(f"{cell:>12}" for cell in cells) + f"{wrong:7}")
    return "\n".join(lines)


def _sum(outcomes: list[Outcome], whose: str, name: str) -> int:
    return sum(getattr(one, whose).get(name, 0) for one in outcomes)


def main(args: list[str] | None = None) -> int:
    """Run all seeds, print the table; 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--seeds", type=int, default=20, help="number of runs; kinds take turns, with and without a job"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    given = parser.parse_args(args)
    outcomes, kinds = [], [*KINDS, BOTH]
    for seed in range(given.first, given.first + given.seeds):
        turn, number = divmod(seed, len(kinds))
        kind, plain = kinds[number], bool(turn % 2)
        try:
            outcome = run_once(kind, seed, plain)
        except Exception as e:
            outcome = Outcome(kind, seed, plain, faults=[f"{type(e).__name__}: {e}"])
        outcomes.append(outcome)
        for wrong in outcome.wrong:
            print(f"seed {seed}, {kind}: {wrong}", flush=True)
    print(table(outcomes))
    return int(any(one.wrong for one in outcomes))


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(main())
