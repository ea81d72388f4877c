"""Whether forecasts deserve trust: ends inside the stated interval, and candidates in the predicted order.

A cluster of four nodes, threads of this process, runs five to eight jobs of sleeping tasks at once; their
numbers of tasks and lengths are unknown at first, and lengths differ within a job. All begin under fcfs. Once
every job that runs has shown some tasks, the simulator says from there what the candidates would come to (the
mean time to the end), and one of them is given to the cluster; as many runs of the same jobs give it the
others. A pair of candidates is compared when what came of them differs by more than a tenth.
"""

from __future__ import annotations

import argparse
import itertools
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
#: Each run of the same jobs gives the cluster another one.
CANDIDATES = ("fcfs", "pwma-fpsma", "equipartition")
#: Lengths of tasks, how far those of a job differ from their mean, and node-seconds of a job.
TASK_S, APART_TASKS, WORK_S = (0.03, 0.15), 0.3, (1.0, 8.0)
_PATIENCE_S = 180.0


@dataclass(kw_only=True)
class Ran:
    """One run: what was predicted for every candidate, and what came of the one that was given."""

    seed: int
    candidate: str
    #: Seconds from the question to the ends of jobs, on average.
    predicted: dict[str, float] = field(default_factory=dict)
    came_s: float = 0.0
    #: What was said of each job, and what it took.
    forecasts: list[dict[str, Any]] = field(default_factory=list)


def jobs_of(seed: int, number: int) -> list[tuple[Sleeps, list[float]]]:
    """The jobs of a seed with the lengths of their tasks, under names of their own in each run."""
    chance, found = random.Random(seed), []
    for i in range(chance.randint(5, 8)):
        task_s = chance.uniform(*TASK_S)
        low, high = sorted(chance.choices(range(1, NODES + 1), k=2))
        kind = chance.choice(("rigid", "malleable", "malleable"))
        request = {"nodes": low} if kind == "rigid" else {"nodes": low, "min_nodes": 1, "max_nodes": high}
        tasks = max(8, round(chance.uniform(*WORK_S) / task_s))
        # letters alone: the kind of a task is the part of its key before the first digit
        name = f"nap{'abcdefgh'[i]}" + "".join(chr(97 + int(digit)) for digit in str(number))
        lengths = [task_s * chance.uniform(1 - APART_TASKS, 1 + APART_TASKS) for _ in range(tasks)]
        found.append((Sleeps(name=name, tasks=tasks, task_s=task_s, request=request), lengths))
    return found


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
    learned, _ = learn(view, rows, ASSUMED_S)
    for name in CANDIDATES:
        result = simulate_from(learned, registry.spec_of(registry.create(name)))
        made.predicted[name] = statistics.fmean(run.end_s - view.now_s for run in result.runs)
    asked = {run.id for run in result.runs}
    runtime.update(policy=candidate)
    ended = [job.wait(_PATIENCE_S) for job in handles]
    assert all(one["state"] == "completed" for one in ended), ended
    made.came_s = statistics.fmean(one["end_s"] - view.now_s for one in ended if one["id"] in asked)
    runtime.status()  # what has ended is held against what was said
    ids = {job.id for job in handles}
    made.forecasts = [one["forecast"] for one in runtime.jobs() if one["id"] in ids and one["forecast"]]
    return made


def order(ran: list[Ran]) -> tuple[int, list[str]]:
    """Pairs of candidates whose outcomes are far enough apart, and those that were predicted otherwise."""
    pairs, wrong = 0, []
    for _, some in itertools.groupby(ran, key=lambda one: one.seed):
        for one, other in itertools.combinations(some, 2):
            if abs(one.came_s - other.came_s) <= APART * max(one.came_s, other.came_s):
                continue
            pairs += 1
            said = one.predicted  # one question about both, as the panel asks it
            if (said[one.candidate] < said[other.candidate]) != (one.came_s < other.came_s):
                wrong.append(
                    f"{one.candidate}, {other.candidate} (seed {one.seed}): predicted "
                    f"{said[one.candidate]:.2f}, {said[other.candidate]:.2f} s; came {one.came_s:.2f}, "
                    f"{other.came_s:.2f} s"
                )
    return pairs, wrong


def run(options: Options) -> list[Row]:
    runs = options.given.runs or options.pick(40, 12, 3)
    with cluster() as made, made.get_client() as client:
        runtime = dask_hpc.install(client, policy="fcfs", tick="50 ms")
        ran = [
            run_once(client, runtime, options.given.seed + i // len(CANDIDATES), CANDIDATES[i % 3], i)
            for i in range(runs)
        ]
        status = runtime.status()["forecasts"]
    said = [one for each in ran for one in each.forecasts]
    outside = [one for one in said if not one["low_s"] <= one["took_s"] <= one["high_s"]]
    widths = [(one["high_s"] - one["low_s"]) / one["predicted_s"] for one in said if one["part"] >= 0.25]
    pairs, wrong = order(ran)
    by = ", ".join(f"{name} {one['inside']:.0%} of {one['ends']}" for name, one in status["by"].items())
    return [
        Row(
            name=f"{runs} runs: jobs that ended outside the interval said at a quarter",
            value=len(outside) / max(1, len(said)),
            unit="of 1",
            bar=OUTSIDE_BAR,
            note=f"{len(outside)} of {len(said)}",
        ),
        Row(
            name="all forecasts: ends outside the stated 90 % interval",
            value=1 - (status["inside"] or 0.0),
            unit="of 1",
            bar=OUTSIDE_BAR,
            note=f"{status['ends']} forecasts; inside: {by}",
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
            value=len(wrong) / pairs if pairs else 0.0,
            unit="of 1",
            bar=WRONG_BAR,
            note=f"{len(wrong)} of {pairs}" + "".join(f"; WRONG {text}" for text in wrong),
        ),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark alone."""
    parser.add_argument("--runs", type=int, help="live runs in place of 40")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first jobs")


if __name__ == "__main__":
    main("calibration", "Whether ends and the order of candidates are as forecast", run, arguments)
