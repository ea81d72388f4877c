"""The acts in their order, played on one cluster of stock Dask and on one with dask_hpc.

The cluster shrinks in the last act: each act begins with all nodes, and starting workers takes long.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass
from typing import Any

import dask_hpc
from dask_hpc.demo import corridor, killed, shrinking, simulation, stepping, three_users
from dask_hpc.demo.clusters import client_of, stock_cluster
from dask_hpc.demo.parts import Part
from dask_hpc.demo.progress import JobProgress, ProgressDisplay, Tally
from dask_hpc.demo.stage import Stage, in_background
from dask_hpc.errors import ConfigError, DaskHPCError
from dask_hpc.report.timeline import PLAIN_WORK
from dask_hpc.trace.files import parse_trace
from dask_hpc.trace.records import Record
from dask_hpc_policies.model import DEFAULT_JOB

#: An act that takes longer than this is given up.
DEADLINE_S = 300.0
POLL_S = 0.2
#: Jobs whose results are there end within this.
_ENDED_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act."""

    name: str
    title: str
    #: Plays it, and gives what `verdict` looks at.
    play: Callable[[Stage], Any]
    verdict: Part
    #: Whether it is played when nobody asks for an act.
    usual: bool = True


ACTS = (
    Act(
        name=three_users.NAME,
        title=three_users.TITLE,
        play=three_users.play,
        verdict=three_users.verdict,
    ),
    Act(name=stepping.NAME, title=stepping.TITLE, play=stepping.play, verdict=stepping.verdict),
    Act(name=killed.NAME, title=killed.TITLE, play=killed.play, verdict=killed.verdict),
    Act(name=shrinking.NAME, title=shrinking.TITLE, play=shrinking.play, verdict=shrinking.verdict),
    # the last one: the policy is another one from then on
    Act(name=corridor.NAME, title=corridor.TITLE, play=corridor.play, verdict=corridor.verdict, usual=False),
)


class DemoError(DaskHPCError, RuntimeError):
    """The demo could not be carried out; the message says in which act."""


def chosen(only: str | None) -> Sequence[Act]:
    """The acts that are played: the one of that name, or all usual ones.

    Raises
    ------
    ConfigError
        When there is none of that name.
    """
    found = [act for act in ACTS if act.name == only or (only is None and act.usual)]
    if not found:
        names = ", ".join(act.name for act in ACTS)
        raise ConfigError(f"there is no act {only!r} (--only); allowed: {names}")
    return found


def run_stock(scale: float, progress: ProgressDisplay, only: str | None = None) -> dict[str, Any]:
    """Play the `chosen` acts on a plain LocalCluster; what each gave, by its name."""
    with client_of(stock_cluster) as client:
        stage = Stage(client=client, runtime=None, scale=scale)
        tally = Tally()

        def show(now_s: float) -> None:
            progress.show(now_s, [_all_work(stage, tally)])

        return _play(stage, chosen(only), progress, show)


def run_managed(
    scale: float, policy: str, progress: ProgressDisplay, make: Callable[[], Any], only: str | None = None
) -> tuple[dict[str, Any], list[Record]]:
    """Play the `chosen` acts under `policy` on the cluster that `make` gives.

    Returns what each gave, by its name, and the records of the trace, the header first.
    """
    with client_of(make) as client:
        runtime = dask_hpc.install(client, policy=policy)
        stage = Stage(client=client, runtime=runtime, scale=scale)
        tallies: dict[str, Tally] = defaultdict(Tally)

        def show(now_s: float) -> None:
            rows = [row for row in runtime.jobs() if row["end_s"] is None]
            jobs = [_job_progress(row, tallies[row["id"]], stage.told) for row in rows]
            progress.show(now_s, jobs or [_all_work(stage, tallies[PLAIN_WORK])])

        given = _play(stage, chosen(only), progress, show)
        deadline_s = time.monotonic() + _ENDED_S
        while any(row["end_s"] is None for row in runtime.jobs() if row["id"] != DEFAULT_JOB):
            if time.monotonic() > deadline_s:
                break
            time.sleep(POLL_S)
        read = parse_trace(runtime.trace())
        return given, [read.header, *read.records]


def _play(
    stage: Stage, acts: Sequence[Act], progress: ProgressDisplay, show: Callable[[float], None]
) -> dict[str, Any]:
    begin_s = time.monotonic()
    given = {}
    for act in acts:
        progress.say(f"     {act.title}")
        # in a thread, so that this one shows how far it is and hears of an interrupt
        playing = in_background(act.play, stage)
        act_s = time.monotonic()
        while True:
            try:
                given[act.name] = playing.result(timeout=POLL_S)
                break
            except NotDone as error:
                if playing.done():
                    raise DemoError(f"{act.name}: {error}") from error
            except Exception as error:
                raise DemoError(f"{act.name}: {error!r}") from error
            now_s = time.monotonic()
            if now_s - act_s > DEADLINE_S:
                raise DemoError(f"{act.name}: not finished after {DEADLINE_S:.0f} s")
            show(now_s - begin_s)
        stage.told.clear()
    return given


def _all_work(stage: Stage, tally: Tally) -> JobProgress:
    tally.see(unfinished_tasks(stage.client))
    told = [f"{tally.done}/{tally.total} tasks", *map(" ".join, stage.told.items())]
    return JobProgress(
        name="all work",
        state="running",
        nodes=None,
        done=tally.done,
        total=tally.total,
        text=", ".join(told),
    )


def _job_progress(row: Mapping[str, Any], tally: Tally, told: Mapping[str, str]) -> JobProgress:
    tally.see(row["unfinished_tasks"])
    name = PLAIN_WORK if row["name"] == DEFAULT_JOB else row["name"]
    text = told.get(simulation.NAME, "") if name == simulation.NAME else ""
    return JobProgress(
        name=name, state=row["state"], nodes=row["nodes"], done=tally.done, total=tally.total, text=text
    )


def unfinished_tasks(client: Any) -> int:
    """Number of tasks on the scheduler that have no result yet."""
    return int(client.run_on_scheduler(_count_unfinished))


def _count_unfinished(dask_scheduler: Any) -> int:
    return sum(
        task.state in ("waiting", "queued", "no-worker", "processing")
        for task in dask_scheduler.tasks.values()
    )
