"""What sharing a cluster costs and gives: users who arrive at fixed times, stock Dask beside ours.

Six worker processes of one thread, or as many as are said: where there are fewer cores, those that compute at
once wait for each other, and for what schedules them. Stock, stock with the priorities of somebody who knows
all jobs (the oracle: shortest first) and our policies take turns in shuffled order within each round, on two
clusters that live all the time: one is stock's, on the other the runtime is installed anew for each run. Ours
is told a job's name and user, nothing else.

A run that hangs is named, and its round is left out of all figures of its scenario (`rounds`).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import arrivals
import one_user
from arrivals import NODES, Arrival
from harness import Options, Row, counted, listed, main
from rounds import (
    ORACLE,
    STOCK,
    TINY_NODES,
    Figure,
    Run,
    Runs,
    TwoClusters,
    makespan_s,
    mean_turnaround_s,
    measure,
    once,
    worst_slowdown,
)

from dask_hpc_policies import registry

#: The policy that is proposed for people who declare nothing.
PROPOSED = "fair"
#: What a tiny run runs when nothing is named: the others take long on a busy machine, and go the same way.
TINY_SCENARIOS = ("three-users", "interactive")


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


def found_in(scenario: Scenario, runs: Runs, ways: Sequence[str], policies: Sequence[str]) -> list[Row]:
    """The rows of a scenario: of the rounds that ended, and which did not."""
    found = runs.hangs(policies)
    if all(runs.by_way.values()):
        found += [row for way in ways for row in runs.summary(way)]
        found += [row for way in policies for row in scenario.rows(runs, way)]
    return found


def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    policies = options.given.policy or [PROPOSED]
    nodes = options.given.nodes
    with TwoClusters(options.pick(nodes, nodes, TINY_NODES), options.size != "tiny") as clusters:
        every = [*SCENARIOS, ONE_USER]
        for name in options.given.only or options.pick(every, every, TINY_SCENARIOS):
            print(name, file=sys.stderr)
            before = list(rows)
            for found in parts_of(name, options, clusters, policies):
                rows = [*before, *(replace(row, name=f"{name}: {row.name}") for row in found)]
                options.write(rows)
    return rows


def parts_of(
    name: str, options: Options, clusters: TwoClusters, policies: Sequence[str]
) -> Iterator[list[Row]]:
    """The rows of a scenario, after each round those of all its rounds so far."""
    if name == ONE_USER:
        stock, ours = clusters.client(STOCK), clusters.client(PROPOSED)
        yield [row for way in policies for row in one_user.rows(options, stock, ours, way)]
        return
    scenario = SCENARIOS[name]
    ways = [STOCK, *([ORACLE] if scenario.oracle else []), *policies]
    for runs in measure(scenario.arrivals, scenario.oracle, options, ways, partial(once, clusters)):
        yield found_in(scenario, runs, ways, policies)


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
    parser.add_argument(
        "--nodes",
        type=counted,
        default=NODES,
        help=f"worker processes, with as many tasks for each; {NODES} if not said",
    )
    parser.add_argument("--rounds", type=counted, help="how often each way is run; 5, 3 (fast) or 1 (tiny)")


if __name__ == "__main__":
    main("pays_off", "Users who share a cluster: stock Dask beside ours", run, arguments)
