"""Draws the picture at the top of the README: three users on six nodes, stock Dask above, dask-hpc below.

``python tests/tools/before_after.py FILE.png`` runs the first act of the demo on both, and draws which
worker computed for which job when, as the workers themselves measured it; a triangle is the end of a job's
last task. Nothing is simulated, and the same code reads both schedulers.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from dataclasses import replace
from typing import Any

import dask
import distributed
from distributed.diagnostics.plugin import SchedulerPlugin
from matplotlib.figure import Figure

import dask_hpc
from dask_hpc.demo.three_users import JOBS, mean_turnaround_s, submissions
from dask_hpc.demo.users import Served, Submission, serve
from dask_hpc.demo.workloads import warm_up
from dask_hpc.report.figure import draw_spans
from dask_hpc.report.spans import NodeSpan, Spans

NODES = 6
#: Tasks of one job that follow each other within this time are one stretch.
_GAP_S = 0.1
#: The annotation that says whose a task is.
_OF = "picture_of"


class Computed(SchedulerPlugin):
    """What each worker computed for whom, by its own clock."""

    name = "picture"

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        #: Job, start and stop, by worker.
        self.rows: dict[str, list[tuple[str, float, float]]] = defaultdict(list)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """See `SchedulerPlugin`."""
        ts = self._scheduler.tasks.get(key)
        job = (ts.annotations or {}).get(_OF) if ts is not None else None
        for one in kwargs.get("startstops") or () if start == "processing" and job else ():
            if one["action"] == "compute":
                self.rows[kwargs["worker"]].append((job, one["start"], one["stop"]))


def marked(one: Submission) -> Submission:
    """The submission with the name of its job at all its tasks."""

    def submit(client: Any) -> Any:
        with dask.annotate(**{_OF: one.name}):
            return one.submit(client)

    return replace(one, submit=submit)


def measured(made: Any, managed: bool, scale: float) -> tuple[Spans, dict[str, Served]]:
    """One run: who computed where and when, from the first task on, and what became of the jobs."""
    with made(n_workers=NODES, threads_per_worker=1, dashboard_address=":0") as cluster:
        with cluster.get_client() as client:
            client.run(warm_up)
        computed = Computed(cluster.scheduler)
        cluster.scheduler.add_plugin(computed)
        served = serve(cluster, [marked(one) for one in submissions(scale)], managed=managed)
    begin_s = min(start for rows in computed.rows.values() for _, start, _ in rows)
    found: list[NodeSpan] = []
    for node, address in enumerate(sorted(computed.rows)):
        stretch: NodeSpan | None = None
        for job, start, stop in sorted(computed.rows[address], key=lambda row: row[1]):
            start_s, end_s = start - begin_s, stop - begin_s
            if stretch is not None and stretch.job == job and start_s - stretch.end_s < _GAP_S:
                stretch = found[-1] = replace(found[-1], end_s=end_s)
            else:
                stretch = NodeSpan(node=str(node), start_s=start_s, end_s=end_s, job=job)
                found.append(stretch)
    spans = Spans(
        end_s=max(one.end_s for one in found),
        nodes=tuple(map(str, range(NODES))),
        node_spans=tuple(found),
        labels={job.name: job.name for job in JOBS},
    )
    return spans, served


def figure_of(runs: dict[str, tuple[Spans, dict[str, Served]]]) -> Figure:
    """Both runs on one axis of time."""
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    all_axes = figure.subplots(len(runs), 1, sharex=True)
    end_s = max(spans.end_s for spans, _ in runs.values())
    for axes, (title, (spans, served)) in zip(all_axes, runs.items(), strict=True):
        styles = spans.looks()
        draw_spans(axes, replace(spans, end_s=1.01 * end_s))
        for name in served:
            last_s = max(one.end_s for one in spans.node_spans if one.job == name)
            axes.plot(last_s, -0.85, "v", color=styles[name].color, clip_on=False, markersize=9)
        short = statistics.fmean(one.turnaround_s for one in served.values() if one.user != JOBS[0].user)
        axes.set_title(
            f"{title}: on average a question is answered after {short:.1f} s, a job after "
            f"{mean_turnaround_s(served):.1f} s",
            loc="left",
            pad=14,
        )
        axes.set_ylabel("node")
        axes.set_xlabel("")
    styles = spans.looks()
    patches = [
        axes.bar(
            0, 0, color=styles[job.name].color, label=f"{styles[job.name].letter} {job.user}: {job.name}"
        )
        for job in JOBS
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(JOBS), frameon=False)
    all_axes[-1].set_xlabel("time (s); a triangle: the last task of the job has ended")
    return figure


def main() -> None:
    """Run both and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", help="such as before-after.png")
    parser.add_argument("--scale", type=float, default=1.0, help="how long tasks take, of the demo's")
    given = parser.parse_args()
    runs = {
        "stock Dask": measured(distributed.LocalCluster, False, given.scale),
        "dask-hpc": measured(dask_hpc.LocalCluster, True, given.scale),
    }
    figure_of(runs).savefig(given.file, dpi=110)


if __name__ == "__main__":
    main()
