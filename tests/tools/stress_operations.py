"""The operations of random sequences: a table, and the running sequence that they change."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import stress_invariants as invariants
from stress_cluster import Cluster
from stress_graphs import GRAPHS, Goal, Maker
from stress_plans import Sequence, random_settings

from dask_hpc.scheduler.rpc import service
from dask_hpc_policies import registry
from dask_hpc_policies.jobs.constraints import CONSTRAINTS
from dask_hpc_policies.model import ROLES

#: How long a job may be below its minimum while the pool has the nodes.
BELOW_MINIMUM_S = 1.0
#: How often it must have been found so in that time.
BELOW_MINIMUM_LOOKS = 5


@dataclass
class Report:
    """What one sequence did, and what was wrong."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    #: Seconds, by what took so long.
    longest_s: dict[str, float] = field(default_factory=dict)
    duration_s: float = 0.0


@dataclass
class OpenJob:
    """A job whose context is open in a task of its own."""

    inbox: asyncio.Queue[Any]
    driver: asyncio.Task[None] | None = None
    id: str = ""


class Run:
    """One sequence that is running."""

    def __init__(self, made: Cluster, runtime: Any, report: Report) -> None:
        self.cluster = made
        self.runtime = runtime
        self.report = report
        self.engine = service.of(made.scheduler).engine
        self.goals: list[Goal] = []
        self.jobs: list[OpenJob] = []
        self.numbers = itertools.count()
        self.background: set[asyncio.Task[Any]] = set()
        #: Roles that were asked for: a node may have to be drained first.
        self.role_changes: list[asyncio.Future[Any]] = []
        #: Whether the result of a shuffle was given up, by the sequence, while the shuffle ran.
        self.gave_up_shuffles = False
        self._below_since: dict[str, tuple[float, int]] = {}
        #: Faults that have been reported: most of them stay once they are there.
        self._known: set[str] = set()

    @property
    def shuffling(self) -> bool:
        """Whether a P2P shuffle runs or may begin while a worker leaves: stock's may fail or hang then."""
        pending = any(goal.shuffles and not goal.future.done() for goal in self.goals)
        return pending or self.cluster.shuffling

    def give_up(self, goals: Iterable[Goal]) -> None:
        """Note that these results are not wanted any more."""
        self.gave_up_shuffles |= any(goal.shuffles and not goal.future.done() for goal in goals)

    def spawn(self, work: Awaitable[Any]) -> None:
        """Run something beside the sequence; it must end by the end of it."""
        self.background.add(asyncio.ensure_future(work))

    def check(self, when: str) -> None:
        """Everything that must be true at any moment."""
        self.cluster.scheduler.validate_state()
        faults = invariants.now(self.engine)
        below = invariants.below_minimum(self.engine)
        now_s = time.monotonic()
        seen = self._below_since
        self._below_since = {
            job: (since_s, looks + 1)
            for job, (since_s, looks) in ((job, seen.get(job, (now_s, 0))) for job in below)
        }
        late = [
            job
            for job, (since_s, looks) in self._below_since.items()
            # a machine that stood still has given nobody a chance
            if now_s - since_s > BELOW_MINIMUM_S and looks > BELOW_MINIMUM_LOOKS
        ]
        faults += [f"{job} is below its minimum while the pool has the nodes" for job in late]
        self.report.faults += [f"{when}: {fault}" for fault in faults if fault not in self._known]
        self._known.update(faults)

    def submit(self, rng: random.Random, kinds: tuple[str, ...]) -> None:
        """Submit a random graph; the present context says which job it belongs to."""
        name = rng.choices(kinds, [GRAPHS[kind][1] for kind in kinds])[0]
        alive = [goal for goal in self.goals if not goal.fails and isinstance(goal.value, int)]
        maker = Maker(
            client=self.cluster.client,
            rng=rng,
            addresses=[worker.address for worker in self.cluster.workers.values()],
            earlier=[(goal.future, goal.value) for goal in alive if goal.future.status == "finished"],
            numbers=self.numbers,
        )
        goals = GRAPHS[name][0](maker)
        self.goals += goals
        self.report.counts["graphs"] += 1
        self.report.log.append(f"  graph {name} with {len(goals)} results, first {goals[0].future.key}")


# ------------------------------------------------------------------- operations


async def submit(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """A graph for one of the open jobs, or plain work."""
    kinds = tuple(name for name in GRAPHS if not (sequence.calm and name in _STARTS_AGAIN))
    if not run.cluster.workers:
        kinds = tuple(name for name in kinds if name != "restricted")
    if run.jobs and rng.random() < 0.7:
        job = rng.choice(run.jobs)
        job.inbox.put_nowait(lambda: run.submit(rng, kinds))
        return f"to {job.id}"
    run.submit(rng, kinds)
    return "plain"


async def open_job(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """A job of any kind; some cannot be and are refused."""
    pool = len(run.cluster.names)
    low, high = sorted(rng.choices(range(1, pool + 1), k=2))
    fields: dict[str, Any] = rng.choice(
        (
            {"nodes": low},
            {"min_nodes": low, "max_nodes": high},
            {"min_nodes": low, "max_nodes": high, "rigid": True},
            {"nodes": low, "min_nodes": 1, "max_nodes": high},
            {"min_nodes": 1, "max_nodes": pool, "constraint": rng.choice(list(CONSTRAINTS))},
            {},
        )
    )
    if rng.random() < 0.3:
        fields |= {"priority": rng.randint(-2, 2)}
    if rng.random() < 0.2:
        fields |= {"walltime": rng.choice((1, 60))}
    job = OpenJob(asyncio.Queue())
    opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    job.driver = asyncio.create_task(_drive(run, job, fields, opened))
    try:
        job.id = await asyncio.wait_for(opened, 10)
    except ValueError as error:
        run.report.counts["jobs refused"] += 1
        return f"{fields} refused: {error}"
    run.report.counts["jobs"] += 1
    run.jobs.append(job)
    return f"{job.id} {fields}"


class _LeftOnPurpose(Exception):
    """An exception that leaves a job's context."""


async def _drive(run: Run, job: OpenJob, fields: dict[str, Any], opened: asyncio.Future[str]) -> None:
    """Keep a job's context open and do in it what is put into the inbox."""
    try:
        async with run.runtime.job("j", **fields) as handle:
            opened.set_result(handle.id)
            while (work := await job.inbox.get()) is not None:
                if isinstance(work, Exception):
                    raise work
                work()
    except _LeftOnPurpose:
        return
    except Exception as error:
        if opened.done():
            raise
        opened.set_exception(error)


def leave(run: Run, rng: random.Random, last: Exception | None) -> str:
    """Leave one of the open contexts, by `last` when that is given."""
    if not run.jobs:
        return "no job"
    job = run.jobs.pop(rng.randrange(len(run.jobs)))
    job.inbox.put_nowait(last)
    if last is not None:
        run.give_up(run.goals)
    assert job.driver is not None
    run.spawn(job.driver)
    return job.id


async def close_job(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Leave a job's context."""
    return leave(run, rng, None)


async def fail_in_context(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Leave a job's context by an exception: that cancels it."""
    return leave(run, rng, _LeftOnPurpose())


async def cancel_job(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Cancel an active job, open or closed; what is submitted in its context later is plain work."""
    active = run.engine.state.jobs.named
    if not active:
        return "no job"
    job = rng.choice(active).id
    run.give_up(run.goals)
    await run.runtime.cancel(job, reason="cancelled by the sequence")
    return job


async def resize(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Ask for another size of an active job, in or out of its bounds."""
    active = run.engine.state.jobs.named
    if not active:
        return "no job"
    job, nodes = rng.choice(active).id, rng.randint(1, max(1, len(run.cluster.names)))
    run.spawn(run.runtime.find(job).resize(nodes))
    return f"{job} to {nodes}"


async def change_policy(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Decide by another policy from now on."""
    policy = rng.choice(registry.names())
    await run.runtime.update(policy=policy)
    return policy


async def change_settings(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Other settings from now on."""
    settings = random_settings(rng)
    await run.runtime.update(**settings)
    return str(settings)


async def force_pass(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """A pass of the policy without a change."""
    await run.runtime.update()
    return ""


async def lose_worker(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """A worker goes, cut off or closed."""
    if not run.cluster.workers or run.shuffling:
        return "no worker, or one that a shuffle needs"
    name, abrupt = rng.choice(sorted(run.cluster.workers)), rng.random() < 0.5
    run.cluster.lose(name, abrupt=abrupt)
    run.report.counts["worker losses"] += 1
    return f"{name} {'cut off' if abrupt else 'closed'}"


async def return_worker(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """A worker comes back under its name."""
    if not run.cluster.missing:
        return "none is missing"
    name = rng.choice(run.cluster.missing)
    await run.cluster.start(name)
    return name


async def add_worker(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """A worker under a new name."""
    if len(run.cluster.names) >= sequence.workers + 2:
        return "enough"
    name = f"w{len(run.cluster.names)}"
    await run.cluster.start(name)
    return name


async def pause_worker(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """A worker changes its status, to paused or back."""
    if not run.cluster.workers:
        return "no worker"
    name, paused = rng.choice(sorted(run.cluster.workers)), rng.random() < 0.5
    run.cluster.pause(name, paused)
    return f"{name} {'paused' if paused else 'running'}"


async def retire_worker(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Dask retires a worker."""
    if len(run.cluster.workers) < 2 or run.shuffling:
        return "no worker, or one that a shuffle needs"
    name = rng.choice(sorted(run.cluster.workers))
    await asyncio.wait_for(run.cluster.retire(name), 20)
    run.report.counts["worker losses"] += 1
    return name


async def cancel_futures(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Cancel some futures."""
    chosen = _some(run, rng)
    run.give_up(chosen)
    await run.cluster.client.cancel([goal.future for goal in chosen], force=rng.random() < 0.3)
    return f"{len(chosen)} futures"


async def release_futures(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """Want some futures no more."""
    chosen = _some(run, rng)
    run.give_up(chosen)
    run.goals = [goal for goal in run.goals if not any(goal is one for one in chosen)]
    for goal in chosen:
        goal.future.release()
    return f"{len(chosen)} futures"


async def restart(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """`Client.restart`: all tasks are forgotten, the workers come back."""
    run.give_up(run.goals)
    run.goals.clear()
    await run.cluster.restart()
    run.report.counts["restarts"] += 1
    return ""


async def change_role(run: Run, rng: random.Random, sequence: Sequence) -> str:
    """A node is to play another role; not waited for, it may have to be drained."""
    if not run.cluster.workers:
        return "no worker"
    name, role = rng.choice(sorted(run.cluster.workers)), rng.choice(("compute", "compute", *ROLES))
    change = asyncio.ensure_future(run.runtime.set_role(name, role))
    run.role_changes.append(change)
    run.spawn(change)
    run.report.counts["roles asked for"] += 1
    return f"{name} for {role}"


def _some(run: Run, rng: random.Random) -> list[Goal]:
    return rng.sample(run.goals, rng.randint(0, len(run.goals) // 3))


#: Operations by name, with their weight, and whether tasks may have to start again after them.
OPERATIONS: dict[str, tuple[Callable[[Run, random.Random, Sequence], Awaitable[str]], float, bool]] = {
    "submit": (submit, 12, False),
    "open_job": (open_job, 5, False),
    "close_job": (close_job, 3, False),
    "resize": (resize, 6, False),
    "change_policy": (change_policy, 2, False),
    "change_settings": (change_settings, 1, False),
    "force_pass": (force_pass, 1, False),
    "add_worker": (add_worker, 1, False),
    "pause_worker": (pause_worker, 3, False),
    "release_futures": (release_futures, 1, False),
    "change_role": (change_role, 2, False),
    "lose_worker": (lose_worker, 2, True),
    "return_worker": (return_worker, 2, False),
    "retire_worker": (retire_worker, 0.5, True),
    "cancel_job": (cancel_job, 1, True),
    "fail_in_context": (fail_in_context, 0.5, True),
    "cancel_futures": (cancel_futures, 1, True),
    "restart": (restart, 0.3, True),
}
#: Graphs whose tasks start again by themselves: retries, and what a shuffle restarts.
_STARTS_AGAIN = frozenset({"rechunk", "failing"})
