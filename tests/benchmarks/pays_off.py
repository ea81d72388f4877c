"""What sharing a cluster costs and gives: users who arrive at fixed times, stock Dask beside ours.

Six worker processes of one thread. Stock, stock with the priorities of somebody who knows all jobs (the
oracle: shortest first) and our policies take turns in shuffled order within each round, on two clusters that
live all the time: one is stock's, on the other the runtime is installed anew for each run. Ours is told a
job's name and user, nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import arrivals
import one_user
from arrivals import NODES, Arrival
from distributed import Client
from harness import Options, Row, listed, local_cluster, main
from machine import SEED

import dask_hpc
from dask_hpc.demo.users import Served, serve
from dask_hpc_policies import registry

STOCK, ORACLE = "stock", "oracle"
#: The policy that is proposed for people who declare nothing.
PROPOSED = "fair"
#: Times of a tiny run are so much shorter; it has fewer nodes and tasks, and a job of each user.
TINY_SCALE = 0.05
TINY_NODES = 2
TINY_TASKS = 8
#: What a tiny run runs when nothing is named: the others take long on a busy machine, and go the same way.
TINY_SCENARIOS = ("three-users", "interactive")
#: Turnaround is held against the time alone, and against this where that is less.
BOUND_S = 1.0

Run = Mapping[str, Served]
Figure = Callable[[Run], float]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of one scenario: one of each way in each round, and every job alone on stock Dask."""

    arrivals: Sequence[Arrival]
    by_way: Mapping[str, Sequence[Run]]
    #: Turnaround of each job alone on stock Dask, by name.
    alone_s: Mapping[str, float]

    def figures(self, way: str, figure: Figure) -> list[float]:
        """A figure of every round."""
        return [figure(run) for run in self.by_way[way]]

    def summary(self, way: str) -> list[Row]:
        """Mean turnaround, makespan and, where jobs were measured alone, worst slowdown; without bars."""
        figures = {"mean turnaround": (mean_turnaround_s, "s"), "makespan": (makespan_s, "s")}
        if self.alone_s:
            figures["worst bounded slowdown"] = worst_slowdown(self.alone_s), "times"
        rows = []
        for name, (figure, unit) in figures.items():
            found = self.figures(way, figure)
            middle = statistics.median(found)
            rows.append(Row(name=f"{way}: {name}", value=middle, unit=unit, low=min(found), high=max(found)))
        if self.alone_s:
            rows[-1] = replace(rows[-1], note=f"of {self._slowest(way)}")
        return rows

    def _slowest(self, way: str) -> str:
        """Whose slowdown is the worst of the rounds, and the time of that job alone."""
        rounds = [slowdowns(self.alone_s, run) for run in self.by_way[way]]
        name = statistics.mode(max(each, key=each.__getitem__) for each in rounds)
        return f"{name}, alone {self.alone_s[name]:.2f} s"

    def against(
        self, way: str, base: str, figure: Figure, name: str, bar: float | None, each: float | None = None
    ) -> list[Row]:
        """The ratio of the medians of a figure; in brackets the least and largest of the rounds.

        With `each`, a further row holds the worst ratio of a round to `base` in the same round.
        """
        ours, theirs = self.figures(way, figure), self.figures(base, figure)
        pairs = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        middle = statistics.median(theirs)
        value = statistics.median(ours)
        note = f"medians of {len(ours)}, in brackets the rounds"
        name = f"{way}: {name}, ratio to {base}"
        ratios = [
            Row(name=name, value=value / middle, unit="", low=min(pairs), high=max(pairs), bar=bar, note=note)
        ]
        if each is not None:
            ratios.append(Row(name=f"{name}, worst round", value=max(pairs), unit="", bar=each))
        return ratios


def mean_turnaround_s(run: Run) -> float:
    """Mean over the jobs."""
    return statistics.mean(served.turnaround_s for served in run.values())


def makespan_s(run: Run) -> float:
    """From the first arrival to the last result."""
    return max(served.end_s for served in run.values()) - min(served.at_s for served in run.values())


def slowdowns(alone_s: Mapping[str, float], run: Run) -> dict[str, float]:
    """Bounded slowdown of every job: turnaround over the time alone, or over `BOUND_S` where that is more."""
    return {name: served.turnaround_s / max(alone_s[name], BOUND_S) for name, served in run.items()}


def worst_slowdown(alone_s: Mapping[str, float]) -> Figure:
    """The largest bounded slowdown of a run."""
    return lambda run: max(slowdowns(alone_s, run).values())


def turnaround_of(name: str) -> Figure:
    """That of the jobs of a user."""
    return lambda run: statistics.mean(served.turnaround_s for served in run.values() if served.user == name)


# -------------------------------------------------------------------- scenarios


def pattern(to_stock: float | None = None) -> Callable[[Runs, str], list[Row]]:
    """The rows of an arrival pattern; `to_stock` is the bar of the mean turnaround against stock."""

    def rows(runs: Runs, way: str) -> list[Row]:
        return [
            *runs.against(way, STOCK, mean_turnaround_s, "mean turnaround", to_stock),
            *runs.against(way, ORACLE, mean_turnaround_s, "mean turnaround", 1.15),
            *runs.against(way, STOCK, worst_slowdown(runs.alone_s), "worst bounded slowdown", 1.0),
            *runs.against(way, STOCK, makespan_s, "makespan", 1.02, each=1.05),
        ]

    return rows


def chain_and_wide(runs: Runs, way: str) -> list[Row]:
    """Neither a job that leaves nodes idle nor the one behind it is served later than by stock."""
    return [
        *runs.against(way, STOCK, turnaround_of("chain"), "chain", 1.0),
        *runs.against(way, STOCK, turnaround_of("wide"), "wide job behind it", 1.15),
    ]


def seven_users(runs: Runs, way: str) -> list[Row]:
    """More jobs than nodes: nobody waits for a node."""
    samples = runs.figures(way, turnaround_of("question"))
    stock_s = statistics.median(runs.figures(STOCK, turnaround_of("question")))
    return [
        *runs.against(way, STOCK, mean_turnaround_s, "mean turnaround", 1.05),
        *runs.against(way, STOCK, makespan_s, "makespan", None),
        Row(
            name=f"{way}: the question",
            value=statistics.median(samples),
            unit="s",
            low=min(samples),
            high=max(samples),
            bar=2.0,
            stock=stock_s,
        ),
    ]


def question_s(runs: Runs) -> float:
    """A question on an empty cluster of stock's."""
    return statistics.median(runs.figures(STOCK, turnaround_of(arrivals.ALONE)))


def interactive(runs: Runs, way: str, users: int, bar: float, worst: float | None = None) -> list[Row]:
    """Questions beside a backlog, against a question on an empty cluster.

    In brackets the least and largest median of a round; `worst` is the bar of the slowest question of all.
    """
    alone_s = question_s(runs)
    asked = (arrivals.ALONE, arrivals.BACKLOG)

    def ratios(run: Run) -> list[float]:
        return [served.turnaround_s / alone_s for served in run.values() if served.user not in asked]

    rounds = [ratios(run) for run in runs.by_way[way]]
    medians = [statistics.median(each) for each in rounds]
    stock = [ratio for run in runs.by_way[STOCK] for ratio in ratios(run)]
    rows = [
        Row(
            name=f"{way}: a question of {users} users beside the backlog, ratio to alone",
            value=statistics.median(itertools.chain.from_iterable(rounds)),
            unit="",
            low=min(medians),
            high=max(medians),
            bar=bar,
            stock=statistics.median(stock),
            note=f"alone {alone_s:.2f} s",
        )
    ]
    if worst is not None:
        rows.append(
            Row(
                name=f"{way}: the slowest question, ratio to alone",
                value=max(itertools.chain.from_iterable(rounds)),
                unit="",
                bar=worst,
                stock=max(stock),
            )
        )
    # 3 % less throughput; questions are few enough to leave that to the backlog
    held = 1 / 0.97 if users == 1 else None
    rows += runs.against(way, STOCK, turnaround_of(arrivals.BACKLOG), "time of the backlog", held)
    return rows


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Who arrives, and what the runs are held to."""

    arrivals: Sequence[Arrival]
    rows: Callable[[Runs, str], list[Row]]
    #: Whether the oracle and every job alone are measured, too.
    oracle: bool = False


SCENARIOS = {
    "three-users": Scenario(arrivals=arrivals.THREE_USERS, rows=pattern(0.5), oracle=True),
    "chain-and-wide": Scenario(arrivals=arrivals.CHAIN_AND_WIDE, rows=chain_and_wide),
    "seven-users": Scenario(arrivals=arrivals.SEVEN_USERS, rows=seven_users),
    "interactive": Scenario(arrivals=arrivals.INTERACTIVE, rows=partial(interactive, users=1, bar=2.0)),
    "ten-interactive": Scenario(
        arrivals=arrivals.TEN_INTERACTIVE, rows=partial(interactive, users=10, bar=4.0, worst=8.0)
    ),
    "arrays": Scenario(arrivals=arrivals.ARRAYS, rows=pattern(), oracle=True),
    "dataframes": Scenario(arrivals=arrivals.DATAFRAMES, rows=pattern(), oracle=True),
    "learning": Scenario(arrivals=arrivals.LEARNING, rows=pattern(), oracle=True),
    "studies": Scenario(arrivals=arrivals.STUDIES, rows=pattern(), oracle=True),
}
#: One user, eight shapes; not a matter of arrivals.
ONE_USER = "alone"


# ----------------------------------------------------------------- measurements


@contextmanager
def two_clusters(nodes: int) -> Iterator[tuple[Client, Client]]:
    """A cluster of stock's, and one for ours; imports of tasks are done, except in a tiny run."""
    with local_cluster(nodes) as stock, local_cluster(nodes) as ours:
        for client in (stock, ours):
            client.wait_for_workers(nodes)
            if nodes == NODES:
                client.run(_warm)
        yield stock, ours


def _warm() -> None:
    import dask.array
    import dask.dataframe  # noqa: F401


def once(stock: Client, ours: Client, way: str, jobs: Sequence[Arrival]) -> Run:
    """Let jobs arrive in one of the ways."""
    asked = arrivals.submissions(jobs)
    if way in (STOCK, ORACLE):
        return serve(stock.scheduler.address, asked, managed=False, priorities=way == ORACLE)
    runtime = dask_hpc.install(ours, policy=way)
    try:
        return serve(ours.scheduler.address, asked, managed=True)
    finally:
        runtime.uninstall()


def measure(
    scenario: Scenario, options: Options, ways: Sequence[str], run: Callable[[str, Sequence[Arrival]], Run]
) -> Runs:
    """All runs of a scenario."""
    jobs = list(scenario.arrivals)
    if options.size == "tiny":
        first = {job.user: job for job in reversed(jobs)}
        jobs = [job.scaled(TINY_SCALE, TINY_TASKS) for job in jobs if first[job.user] is job]
    alone_s: dict[str, float] = {}
    for job in jobs if scenario.oracle else ():
        (served,) = run(STOCK, [job.arriving(0.0)]).values()
        alone_s[job.name] = served.turnaround_s
    chance = random.Random(SEED)
    by_way: dict[str, list[Run]] = {way: [] for way in ways}
    for number in range(options.given.rounds or options.pick(5, 3, 1)):
        for way in chance.sample(list(ways), len(ways)):
            served = run(way, jobs)
            by_way[way].append(served)
            told = ", ".join(f"{name} {each.turnaround_s:.2f}" for name, each in served.items())
            print(f"round {number}, {way}: mean {mean_turnaround_s(served):.2f} s; {told}", file=sys.stderr)
    return Runs(arrivals=jobs, by_way=by_way, alone_s=alone_s)


def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    policies = options.given.policy or [PROPOSED]
    with two_clusters(options.pick(NODES, NODES, TINY_NODES)) as (stock, ours):
        every = [*SCENARIOS, ONE_USER]
        for name in options.given.only or options.pick(every, every, TINY_SCENARIOS):
            print(name, file=sys.stderr)
            if name == ONE_USER:
                found = [row for way in policies for row in one_user.rows(options, stock, ours, way)]
            else:
                scenario = SCENARIOS[name]
                ways = [STOCK, *([ORACLE] if scenario.oracle else []), *policies]
                runs = measure(scenario, options, ways, partial(once, stock, ours))
                found = [row for way in ways for row in runs.summary(way)]
                found += [row for way in policies for row in scenario.rows(runs, way)]
            rows += [replace(row, name=f"{name}: {row.name}") for row in found]
    return rows


def arguments(parser: argparse.ArgumentParser) -> None:
    """What this benchmark can be told beside what all can."""

    every = [*SCENARIOS, ONE_USER]
    known = [*registry.names(), *registry.library_names()]
    parser.add_argument(
        "--only",
        type=listed(every),
        action="extend",
        metavar="NAMES",
        help=f"scenarios, of {', '.join(every)}; all if not said",
    )
    parser.add_argument(
        "--policy",
        type=listed(known),
        action="extend",
        metavar="NAMES",
        help=f"policies of ours, of {', '.join(known)}; {PROPOSED} if not said",
    )
    parser.add_argument("--rounds", type=int, help="how often each way is run; 5, 3 (fast) or 1 (tiny)")


if __name__ == "__main__":
    main("pays_off", "Users who share a cluster: stock Dask beside ours", run, arguments)
