"""Rounds in which several ways to schedule the same arrivals take turns, and what comes of them.

A run that does not end within `HUNG_S` hung. That costs its round, which is broken off and left out of the
figures of every way, and nothing else: it is named, its cluster is replaced, and the next round goes on.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace

import arrivals
from arrivals import NODES, Arrival
from distributed import Client
from harness import Options, Row, local_cluster
from machine import SEED

import dask_hpc
from dask_hpc.demo.users import Served, serve

STOCK, ORACLE = "stock", "oracle"
#: Times of a tiny run are so much shorter; it has fewer nodes and tasks, and a job of each user.
TINY_SCALE = 0.05
TINY_NODES = 2
TINY_TASKS = 8
#: Turnaround is held against the time alone, and against this where that is less.
BOUND_S = 1.0
#: A run that takes longer hung.
HUNG_S = 300.0
#: So often a job alone is tried, which all slowdowns of its scenario are held against.
ATTEMPTS = 2

Run = Mapping[str, Served]
Figure = Callable[[Run], float]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of one scenario: one of each way in each round, and every job alone on stock Dask."""

    arrivals: Sequence[Arrival]
    by_way: Mapping[str, Sequence[Run]]
    #: Turnaround of each job alone on stock Dask, by name.
    alone_s: Mapping[str, float]
    #: Runs that hung, by way: which, in words. Their rounds are not among the runs.
    hung: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def hangs(self, ours: Collection[str]) -> list[Row]:
        """A row for each way that hung: none of `ours` may."""
        return [
            Row(
                name=f"{way}: runs that hung",
                value=len(which),
                unit="",
                bar=0 if way in ours else None,
                note=f"{', '.join(which)}; left out of the figures of every way",
            )
            for way, which in self.hung.items()
        ]

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


class TwoClusters(AbstractContextManager["TwoClusters"]):
    """A cluster of stock's, and one for ours; imports of tasks are done, except in a tiny run (`warm` no)."""

    def __init__(self, nodes: int, warm: bool = True) -> None:
        self._nodes, self._warm = nodes, warm
        self._stacks = {stocks: ExitStack() for stocks in (True, False)}
        self._clients = {stocks: self._start(stocks) for stocks in (True, False)}

    def _start(self, stocks: bool) -> Client:
        client = self._stacks[stocks].enter_context(local_cluster(self._nodes))
        client.wait_for_workers(self._nodes)
        if self._warm:
            client.run(_warm)
        return client

    def client(self, way: str) -> Client:
        """Of the cluster on which that way runs."""
        return self._clients[way in (STOCK, ORACLE)]

    def replace(self, way: str) -> None:
        """Have another cluster in place of the one of that way, on which something hangs."""
        stocks = way in (STOCK, ORACLE)
        with suppress(TimeoutError, OSError):
            self._stacks[stocks].close()
        self._clients[stocks] = self._start(stocks)

    def __exit__(self, *error: object) -> None:
        for stack in self._stacks.values():
            stack.close()


def _warm() -> None:
    import dask.array
    import dask.dataframe  # noqa: F401


def once(clusters: TwoClusters, way: str, jobs: Sequence[Arrival]) -> Run:
    """Let jobs arrive in one of the ways.

    Raises
    ------
    TimeoutError
        When they hang; the cluster is another one by then.
    """
    asked, client = arrivals.submissions(jobs), clusters.client(way)
    address = client.scheduler.address
    try:
        if way in (STOCK, ORACLE):
            return serve(address, asked, managed=False, priorities=way == ORACLE, timeout_s=HUNG_S)
        runtime = dask_hpc.install(client, policy=way)
        served = serve(address, asked, managed=True, timeout_s=HUNG_S)
    except TimeoutError:
        clusters.replace(way)
        raise
    runtime.uninstall()
    return served


def measure(
    arriving: Sequence[Arrival],
    alone: bool,
    options: Options,
    ways: Sequence[str],
    run: Callable[[str, Sequence[Arrival]], Run],
) -> Iterator[Runs]:
    """All runs of a scenario so far, after each round; with `alone` also those of each job by itself.

    Those are stock's; the last of the ways has run each job once, too, when the rounds begin.
    """
    jobs = list(arriving)
    if options.size == "tiny":
        first = {job.user: job for job in reversed(jobs)}
        jobs = [job.scaled(TINY_SCALE, TINY_TASKS) for job in jobs if first[job.user] is job]
    elif options.given.nodes != NODES:
        share = options.given.nodes / NODES
        jobs = [replace(job, tasks=max(1, round(job.tasks * share))) for job in jobs]
    alone_s: dict[str, float] = {}
    hung: dict[str, list[str]] = {}
    by_way: dict[str, list[Run]] = {way: [] for way in ways}
    runs = Runs(arrivals=jobs, by_way=by_way, alone_s=alone_s, hung=hung)

    def told(way: str, jobs: Sequence[Arrival], which: str) -> Run | None:
        try:
            return run(way, jobs)
        except TimeoutError as error:
            print(f"{which}, {way}: hung: {error}", file=sys.stderr)
            hung.setdefault(way, []).append(which)
            return None

    for job in jobs if alone else ():
        tries = (told(STOCK, [job.arriving(0.0)], f"{job.name} alone") for _ in range(ATTEMPTS))
        served = next(filter(None, tries), None)
        if served is None:
            yield runs  # there is nothing to hold it against
            return
        alone_s[job.name] = served[job.name].turnaround_s
        if options.size != "tiny":
            told(ways[-1], [job.arriving(0.0)], f"{job.name} alone, before")
    chance = random.Random(SEED)
    rounds = options.given.rounds or options.pick(5, 3, 1)
    for number in range(1, rounds + 1):
        ended: dict[str, Run] = {}
        for way in chance.sample(list(ways), len(ways)):
            served = told(way, jobs, f"round {number} of {rounds}")
            if served is None:
                break
            ended[way] = served
            each_s = ", ".join(f"{name} {each.turnaround_s:.2f}" for name, each in served.items())
            print(f"round {number}, {way}: mean {mean_turnaround_s(served):.2f} s; {each_s}", file=sys.stderr)
        else:
            for way, served in ended.items():
                by_way[way].append(served)
        yield runs
