"""Act 1: three users with unequal jobs share a cluster; each submits when it is time, whoever is there.

Work and times are those of the simulator's workload ``builtin:three-users``, scaled down.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from dask_hpc.demo.parts import DemoRun, Row, Verdict
from dask_hpc.demo.stage import Stage
from dask_hpc.demo.users import Served, Submission, serve
from dask_hpc.demo.workloads import WORKLOADS, digest, warm_up

NAME = "three-users"
TITLE = "Three users share six nodes, each declares nothing but a name"
#: Seconds of the demo at scale 1 for one of the simulator's.
TIME_SCALE = 0.4
#: What one task takes, in the simulator's seconds.
TASK_S = 0.5
#: Times that differ by at most this share are the same.
_SAME = 0.05


class UserJob(NamedTuple):
    """One job of a user, in the simulator's seconds."""

    user: str
    name: str
    workload: str
    at_s: float
    work_node_s: float


JOBS = (
    UserJob("ada", "option", "option", 0.0, 156.0),
    UserJob("bob", "el-nino", "el-nino", 4.0, 12.0),
    UserJob("eve", "primes-1", "primes", 6.0, 6.0),
    UserJob("eve", "primes-2", "primes", 12.0, 6.0),
    UserJob("eve", "primes-3", "primes", 18.0, 6.0),
)
_WORKLOAD_OF = {job.name: WORKLOADS[job.workload] for job in JOBS}


def submissions(scale: float) -> list[Submission]:
    """What the users submit, at `scale`: it changes how long tasks take, not how many there are."""
    made = []
    first = 0
    for job in JOBS:
        tasks = round(job.work_node_s / TASK_S)
        submit = WORKLOADS[job.workload].prepare(first, tasks, TASK_S * TIME_SCALE * scale)
        at_s = job.at_s * TIME_SCALE * scale
        made.append(Submission(user=job.user, name=job.name, at_s=at_s, submit=submit))
        first += tasks
    return made


def play(stage: Stage) -> dict[str, Served]:
    """Let them submit, and wait for all results; what became of each job, by its name."""
    # workers import what they need before anything is timed
    stage.client.run(warm_up)
    return serve(stage.cluster, submissions(stage.scale), managed=stage.runtime is not None)


def mean_turnaround_s(served: dict[str, Served]) -> float:
    """Mean over the jobs."""
    return statistics.fmean(one.turnaround_s for one in served.values())


def makespan_s(served: dict[str, Served]) -> float:
    """From the first arrival to the last result."""
    return max(one.end_s for one in served.values()) - min(one.at_s for one in served.values())


def verdict(run: DemoRun) -> Verdict:
    """Turnarounds, makespan and results of both."""
    pairs = run.pairs(NAME)
    stock, ours = pairs[-1]
    different = sorted({name for pair in pairs for name in _different(*pair)})
    mean = Row.of("three users: mean turnaround", pairs, mean_turnaround_s, _seconds)
    makespan = Row.of("three users: makespan", pairs, makespan_s, _seconds)
    told = {name: _WORKLOAD_OF[name].describe(one.results[0]) for name, one in ours.items()}
    same = abs(makespan.ours_median / makespan.stock_median - 1) <= _SAME
    paid = mean.ours_median < mean.stock_median
    unpaid = []
    if not paid:
        unpaid.append(f"the mean turnaround of three users did not fall: {mean.change}")
    if not same and makespan.ours_median > makespan.stock_median:
        unpaid.append(f"the makespan of three users grew: {makespan.change}")
    return Verdict(
        results={
            name: (
                f"{one.user}: {stock[name].turnaround_s:.1f} s with stock Dask, {one.turnaround_s:.1f} s; "
                f"{'DIFFERS' if name in different else 'equal'}: {told[name]}"
            )
            for name, one in ours.items()
        },
        notes={
            TITLE: (
                f"mean turnaround {mean.change}, makespan {makespan.change}; "
                + (f"{', '.join(different)} NOT equal" if different else "all results equal")
                + " to stock Dask"
                + ("" if different else " in every bit")
            )
        },
        summary={
            NAME: {
                "results_equal": not different,
                **mean.as_data("mean_turnaround_s"),
                **makespan.as_data("makespan_s"),
                "jobs": [
                    {
                        "name": name,
                        "user": one.user,
                        "at_s": one.at_s,
                        "turnaround_s": one.turnaround_s,
                        "stock_turnaround_s": stock[name].turnaround_s,
                        "equal": name not in different,
                        "sha256": digest(list(one.results)),
                        "result": told[name],
                    }
                    for name, one in ours.items()
                ],
            }
        },
        table=[mean, makespan],
        quote=f"mean turnaround {mean.change}, makespan {'the same' if same else makespan.change}"
        if paid
        else "",
        unpaid=unpaid,
        errors=[f"the results of {', '.join(different)} differ from those of stock Dask"]
        if different
        else (),
    )


def _different(stock: dict[str, Served], ours: dict[str, Served]) -> Sequence[str]:
    return [name for name in stock if digest(list(stock[name].results)) != digest(list(ours[name].results))]


def _seconds(value: Any) -> str:
    return f"{value:.1f} s"
