"""Whether forecasts deserve trust: ends inside the stated interval, and candidates in the predicted order.

A cluster of four nodes, threads of this process, runs five to eight jobs of sleeping tasks at once; their
numbers of tasks and lengths are unknown at first, and lengths differ within a job. Half of the jobs are
rigid, of any width up to the whole cluster; in three of four worlds jobs keep their nodes to themselves
(``exclusive``), so that who has nodes is who computes. All begin under fcfs. Once every job that runs has
shown some tasks, the simulator says from there what the candidates of this world, drawn from the policies
that decide about nodes of jobs, would come to by the goals that *Try all policies* ranks by; one of them is
given to the cluster; as many runs of the same jobs give it the others, and all of them again, as the machine
has its moods. A pair of candidates is compared by a goal when every run of the one came to more than a tenth
less than every run of the other; that the two were said to come to the same is wrong then.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from distributed import Client
from harness import Options, Row, main
from machine import SEED
from what_if import NODES, Sleeps, cluster, until_learned

import dask_hpc
from dask_hpc.sim.learned import learn
from dask_hpc.sim.waiting import ASSUMED_S
from dask_hpc.sim.what_if import simulate_from
from dask_hpc_policies import registry

#: Of the ends so many may be outside intervals that state 90 %.
OUTSIDE_BAR = 0.15
#: Median width of an interval over the predicted time, once a quarter of a job's tasks has run.
WIDTH_BAR = 0.5
#: Of the pairs of candidates so many may be in the wrong order; pairs that differ by no more than `APART` of
#: the longer are not compared.
WRONG_BAR, APART = 0.1, 0.1
#: So many candidates a world, each in so many runs of its jobs; drawn from those that decide about nodes of
#: jobs by what is known of any job: not by power, reads and writes, versions, or the load of the pool.
EACH, AGAIN = 5, 2
#: Live runs of a whole benchmark, which has to find pairs.
MANY = 50
CANDIDATES = (
    "fcfs", "easy", "conservative", "fair", "prma-fpsma", "prma-egs", "pwma-fpsma", "pwma-egs",
    "equipartition", "performance-aware", "fcfs-malleable", "mebf", "sfsj",
)  # fmt: skip
#: What candidates are compared by, less is better: from the question on, of the jobs that were there.
GOALS = ("mean end", "last end")
#: Lengths of tasks, how far those of a job differ from their mean, and node-seconds of a job.
TASK_S, APART_TASKS, WORK_S = (0.06, 0.3), 0.3, (0.7, 14.0)
_PATIENCE_S = 180.0


@dataclass(kw_only=True)
class Ran:
    """One run: what was predicted for every candidate, and what came of the one that was given."""

    seed: int
    candidate: str
    #: Seconds by candidate and goal, and what came of the one that was given.
    predicted: dict[str, dict[str, float]] = field(default_factory=dict)
    came: dict[str, float] = field(default_factory=dict)
    #: Jobs of which little was known when it was asked.
    guesses: int = 0
    #: What was said of each job, and what it took.
    forecasts: list[dict[str, Any]] = field(default_factory=list)


def candidates(seed: int) -> list[str]:
    """Those of the world of a seed."""
    return random.Random(f"candidates {seed}").sample(CANDIDATES, EACH)


def jobs_of(seed: int, number: int) -> list[tuple[Sleeps, list[float]]]:
    """The jobs of a seed with the lengths of their tasks, under names of their own in each run."""
    chance, found = random.Random(seed), []
    exclusive = chance.random() < 3 / 4
    for i in range(chance.randint(5, 8)):
        task_s = chance.uniform(*TASK_S)
        rigid, sizes = chance.random() < 0.5, chance.choices(range(1, NODES + 1), k=2)
        request: dict[str, Any] = {"nodes": sizes[0]}
        if not rigid:
            request = {"nodes": min(sizes), "min_nodes": 1, "max_nodes": NODES}
        # most jobs are short, most work is of few
        work_s = math.exp(chance.uniform(*map(math.log, WORK_S)))
        tasks = max(8, round(work_s / task_s))
        # letters alone: the kind of a task is the part of its key before the first digit
        name = f"nap{'abcdefgh'[i]}" + "".join(chr(97 + int(digit)) for digit in str(number))
        lengths = [task_s * chance.uniform(1 - APART_TASKS, 1 + APART_TASKS) for _ in range(tasks)]
        request |= {"exclusive": exclusive}
        found.append((Sleeps(name=name, tasks=tasks, task_s=task_s, request=request), lengths))
    return found


def by_goal(ends_s: list[float]) -> dict[str, float]:
    """What ends, seconds from the question on, come to by each goal."""
    return dict(zip(GOALS, (statistics.fmean(ends_s), max(ends_s)), strict=True))


def run_once(client: Client, runtime: Any, seed: int, candidate: str, number: int) -> Ran:
    """Run the jobs of a seed, ask about all candidates, give the cluster one, and wait."""
    runtime.update(policy="fcfs")
    made = Ran(seed=seed, candidate=candidate)
    handles, futures = [], []
    for one, lengths in jobs_of(seed, number):
        with runtime.job(one.name, **one.request) as job:
            futures.append(client.map(time.sleep, lengths, pure=False, key=one.name))
        handles.append(job)
    until_learned(runtime)
    view, rows = runtime.snapshot(), runtime.jobs()
    learned, known = learn(view, rows, ASSUMED_S)
    made.guesses = sum(one.confidence == "poor" for one in known)
    for name in candidates(seed):
        result = simulate_from(learned, registry.spec_of(registry.create(name)))
        made.predicted[name] = by_goal([run.end_s - view.now_s for run in result.runs])
    asked = {run.id for run in result.runs}
    runtime.update(policy=candidate)
    ended = [job.wait(_PATIENCE_S) for job in handles]
    assert all(one["state"] == "completed" for one in ended), ended
    made.came = by_goal([one["end_s"] - view.now_s for one in ended if one["id"] in asked])
    runtime.status()  # what has ended is held against what was said
    ids = {job.id for job in handles}
    made.forecasts = [one["forecast"] for one in runtime.jobs() if one["id"] in ids and one["forecast"]]
    return made


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two candidates whose outcomes are far enough apart by a goal."""

    goal: str
    less: list[Ran]
    more: list[Ran]

    @property
    def said(self) -> tuple[float, float]:
        """What was said of both, by one question, as the panel asks it."""
        asked = self.less[0].predicted
        return asked[self.less[0].candidate][self.goal], asked[self.more[0].candidate][self.goal]

    def __str__(self) -> str:
        came = ["/".join(f"{one.came[self.goal]:.2f}" for one in some) for some in (self.less, self.more)]
        first, second = self.said
        return (
            f"{self.less[0].candidate}, {self.more[0].candidate} ({self.goal}, seed {self.less[0].seed}, of "
            f"{self.less[0].guesses} jobs little known): predicted {first:.2f}, {second:.2f} s; "
            f"came {came[0]}, {came[1]} s"
        )


def pairs_of(ran: list[Ran]) -> list[Pair]:
    """Pairs of candidates, by each goal, of which one came to less in every run, by more than `APART`."""
    found = []
    for _, world in itertools.groupby(ran, key=lambda one: one.seed):
        runs: dict[str, list[Ran]] = {}
        for one in world:
            runs.setdefault(one.candidate, []).append(one)
        # one run may be a chance
        whole = [one for one in runs.values() if len(one) >= AGAIN]
        for (less, more), goal in itertools.product(itertools.permutations(whole, 2), GOALS):
            if max(one.came[goal] for one in less) < (1 - APART) * min(one.came[goal] for one in more):
                found.append(Pair(goal=goal, less=less, more=more))
    return found


def run(options: Options) -> list[Row]:
    runs = options.given.runs or options.pick(MANY, EACH * AGAIN, 3)
    with cluster() as made, made.get_client() as client:
        runtime = dask_hpc.install(client, policy="fcfs", tick="50 ms")
        ran = []
        for i in range(runs):
            seed = options.given.seed + i // (EACH * AGAIN)
            ran.append(run_once(client, runtime, seed, candidates(seed)[i % EACH], i))
        status = runtime.status()["forecasts"]
    all_said = [one for each in ran for one in each.forecasts]
    # an interval that was assumed states no share
    said = [one for one in all_said if one["errors"]]
    outside = [one for one in said if not one["low_s"] <= one["took_s"] <= one["high_s"]]
    widths = [(one["high_s"] - one["low_s"]) / one["predicted_s"] for one in said if one["part"] >= 0.25]
    pairs = pairs_of(ran)
    wrong = [pair for pair in pairs if pair.said[0] >= pair.said[1]]
    by = ", ".join(
        f"{name} {one['inside']:.0%} of {one['ends']}" for name, one in status["by"].items() if one["ends"]
    )
    inside = status["inside"]
    return [
        Row(
            name=f"{runs} runs: jobs that ended outside the interval said at a quarter",
            value=len(outside) / max(1, len(said)),
            unit="of 1",
            bar=OUTSIDE_BAR if said else None,
            note=f"{len(outside)} of {len(said)}; {len(all_said) - len(said)} more were assumed",
        ),
        Row(
            name="all forecasts: ends outside the stated 90 % interval",
            value=0.0 if inside is None else 1 - inside,
            unit="of 1",
            bar=None if inside is None else OUTSIDE_BAR,
            note=f"{status['ends']} stated, {status['assumed']} assumed; inside: {by or 'none'}",
        ),
        Row(
            name="median width over predicted time, once a quarter of the tasks ran",
            value=statistics.median(widths) if widths else float("inf"),
            unit="of 1",
            bar=WIDTH_BAR,
            note=f"{len(widths)} jobs",
        ),
        Row(
            name=f"pairs of candidates that differ by more than {APART:.0%}: in the wrong order",
            value=len(wrong) / len(pairs) if pairs else float("inf"),
            unit="of 1",
            bar=WRONG_BAR if pairs or runs >= MANY else None,
            note=f"{len(wrong)} of {len(pairs)}, seeds from {options.given.seed}"
            + "".join(f"; WRONG {pair}" for pair in wrong),
        ),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark alone."""
    parser.add_argument("--runs", type=int, help="live runs in place of 50")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first jobs")


if __name__ == "__main__":
    main("calibration", "Whether ends and the order of candidates are as forecast", run, arguments)
