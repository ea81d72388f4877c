"""A run as one HTML page that needs nothing else: no network, no scripts.

Rules of the file: records in, text out; only `write_report` touches a file. What the page says is put
together here, how it looks is in ``templates/report.html``, which forbids itself scripts and requests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dask_hpc.report import svg
from dask_hpc.report.coarse import coarse, told_row
from dask_hpc.report.looks import Look, format_seconds
from dask_hpc.report.markup import render, seconds
from dask_hpc.report.timeline import FeedEntry, JobHistory, Timeline, build_timeline
from dask_hpc.trace.records import Record

#: The size chart shows this many jobs, and the feed this many lines; the table shows all jobs.
MAX_CHART_JOBS = 60
MAX_FEED = 500

#: A column: heading, and whether it holds numbers.
Column = tuple[str, bool]

_JOB_COLUMNS: tuple[Column, ...] = (
    ("Job", False),
    ("Kind", False),
    ("State", False),
    ("Submitted", True),
    ("Wait", True),
    ("Turnaround", True),
    ("Nodes over time", False),
    ("Resizes", False),
)
_FEED_COLUMNS: tuple[Column, ...] = (
    ("Time", True),
    ("Trigger", False),
    ("Action", False),
    ("Job", False),
    ("Reason", False),
    ("Result", False),
)
#: By the figure that each shows (`trace.steps`).
_FLOW_COLUMNS: Mapping[str, Column] = {
    "steps": ("Steps", True),
    "step_s": ("A step", True),
    "simulation_s": ("Simulation", True),
    "in_situ_s": ("In situ", True),
    "in_transit_s": ("In transit", True),
    "in_situ_work_share": ("Of the work in situ", True),
    "in_situ_memory_share": ("Of the memory in situ", True),
    "idle_helper_core_s": ("Idle helper core seconds", True),
}
_SETTING_COLUMNS: tuple[Column, ...] = (("Setting", False), ("Value", False))


def build_report(
    records: Iterable[Record], title: str = "Cluster run", notes: Mapping[str, str] | None = None
) -> str:
    """The HTML page about the run that `records` describe.

    Parameters
    ----------
    records
        Records of one trace, live or simulated; an empty one gives an empty report.
    title
        Heading of the page.
    notes
        Short statements about the run, by label, shown under the figures of merit.
    """
    timeline = build_timeline(records)
    styles = timeline.spans.looks()
    page = render(
        "dask_hpc.report",
        "report.html",
        title=title,
        about=_about(timeline),
        facts=_facts(timeline),
        notes=notes or {},
        looks=list(styles.values()),
        axis=svg.axis(0.0, timeline.end_s),
        nodes=_nodes(timeline, styles),
        legend=[(styles[job.run.id], job.label) for job in timeline.jobs[:MAX_CHART_JOBS]],
        sizes=_sizes(timeline, styles),
        used=_used(timeline),
        power=svg.power_lane(timeline.spans) if timeline.spans.power else None,
        job_columns=_JOB_COLUMNS,
        jobs=_jobs(timeline, styles),
        flow_columns=(("Flow", False), *_FLOW_COLUMNS.values()),
        flows=_flows(timeline),
        feed_columns=_FEED_COLUMNS,
        feed=_feed(timeline, styles),
        feed_count=len(timeline.feed),
        setting_columns=_SETTING_COLUMNS,
        policies=[(f"policy from {use.t_s:.1f} s", _flat(use.spec)) for use in timeline.policies],
        settings=_settings(timeline),
    )
    # plain text for whoever writes or cuts it
    return str(page)


def write_report(
    path: str | os.PathLike[str],
    records: Iterable[Record],
    title: str = "Cluster run",
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write :func:`build_report` to `path`; an existing file is replaced.

    Raises
    ------
    OSError
        When the file cannot be written.
    """
    Path(path).write_text(build_report(records, title, notes), encoding="utf-8")


def _about(timeline: Timeline) -> str:
    header = timeline.header
    started = f", started {header.started}" if header.started else ""
    policies = ", ".join(_policy_name(use.spec) for use in timeline.policies) or "none"
    return f"{header.source} run{started}; policy: {policies}"


def _facts(timeline: Timeline) -> list[tuple[str, str]]:
    summary = timeline.summary
    return [
        ("Makespan", seconds(summary["makespan_s"])),
        ("Utilization", "n/a" if summary["utilization"] is None else f"{summary['utilization']:.0%}"),
        ("Mean wait", seconds(summary["mean_wait_s"])),
        ("Mean turnaround", seconds(summary["mean_turnaround_s"])),
        ("Jobs", str(len(timeline.jobs))),
        ("Nodes", str(len(timeline.spans.nodes))),
        ("Resizes", f"{summary['expansions']} up, {summary['shrinks']} down"),
        ("Longest decision", f"{1000 * timeline.longest_decide_s:.2g} ms"),
    ]


def _nodes(timeline: Timeline, styles: Mapping[str, Look]) -> dict[str, Any]:
    spans = coarse(timeline.spans)
    if not spans.nodes:
        return {}
    return {
        "names": spans.nodes,
        "row": told_row(timeline.spans),
        "height": svg.NODE_ROW_PX,
        "chart": svg.node_map(spans, styles),
    }


def _sizes(timeline: Timeline, styles: Mapping[str, Look]) -> dict[str, Any]:
    jobs = timeline.jobs[:MAX_CHART_JOBS]
    if not jobs:
        return {}
    return {
        "names": [f"{styles[job.run.id].letter} {job.label}" for job in jobs],
        "count": len(timeline.jobs),
        "height": svg.JOB_ROW_PX,
        "chart": svg.job_sizes(timeline.spans, [job.run.id for job in jobs], styles),
    }


def _used(timeline: Timeline) -> dict[str, Any]:
    if not timeline.spans.nodes:
        return {}
    levels = timeline.levels()
    return {"most": max(up for _, up, _ in levels), "chart": svg.utilization(levels, timeline.end_s)}


def _jobs(timeline: Timeline, styles: Mapping[str, Look]) -> list[dict[str, Any]]:
    resizes = resizes_by_job(timeline)
    return [
        {
            "look": styles[job.run.id],
            "label": job.label,
            "texts": _job_texts(job),
            "resizes": [
                f"{entry.action} to {entry.nodes} at {entry.t_s:.1f} s: {entry.text}"
                for entry in resizes.get(job.run.id, ())
            ],
        }
        for job in timeline.jobs
    ]


def _job_texts(job: JobHistory) -> list[str]:
    """Kind, state, submission, wait, turnaround and sizes."""
    run = job.run
    bounds = "" if job.min_nodes is None else f", {job.min_nodes} to {job.max_nodes} nodes"
    if job.kind == "rigid":
        bounds = f", {job.max_nodes} node{'' if job.max_nodes == 1 else 's'}"
    why = f": {job.reason}" if job.reason and run.state in ("failed", "cancelled") else ""
    sizes = " → ".join(f"{n} at {t_s:.1f} s" for t_s, n in run.nodes if n)
    return [
        f"{job.kind}{bounds}",
        f"{run.state}{why}",
        f"{run.submit_s:.1f} s",
        seconds(run.wait_s),
        seconds(run.turnaround_s),
        sizes or "none",
    ]


def resizes_by_job(timeline: Timeline) -> dict[str, list[FeedEntry]]:
    """The expansions and shrinks that were carried out, by job id, in order of time."""
    resizes: dict[str, list[FeedEntry]] = {}
    for entry in timeline.feed:
        if entry.action in ("expand", "shrink") and entry.result == "done":
            resizes.setdefault(entry.job, []).append(entry)
    return resizes


def _flows(timeline: Timeline) -> list[Sequence[str]]:
    return [
        (flow, *(_figure(name, row[name]) for name in _FLOW_COLUMNS)) for flow, row in timeline.flows.items()
    ]


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "n/a"
    if name.endswith("_share"):
        return f"{value:.0%}"
    return f"{value:.3g} s" if name.endswith("_s") else f"{value:g}"


def _feed(timeline: Timeline, styles: Mapping[str, Look]) -> list[dict[str, Any]]:
    found = []
    for entry in timeline.feed[-MAX_FEED:]:
        style = styles.get(entry.job)
        word = "on" if entry.action == "start" else "to"
        target = "" if entry.nodes is None else f" {word} {entry.nodes}"
        times = f" ({entry.times} times)" if entry.times > 1 else ""
        texts = (f"{entry.t_s:.2f} s", entry.trigger, f"{entry.action}{target}{times}")
        found.append(
            {
                "texts": texts,
                "letter": style.letter if style else "",
                "name": timeline.labels.get(entry.job, entry.job),
                "code": entry.code,
                "reason": entry.text,
                "result": _result(entry),
            }
        )
    return found


def _result(entry: FeedEntry) -> str:
    took = f" after {format_seconds(entry.latency_s)}" if entry.latency_s and entry.result == "done" else ""
    told = entry.result in ("refused", "aborted") and entry.result_text
    return f"{entry.result}{took}" + (f": {entry.result_text}" if told else "")


def _settings(timeline: Timeline) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    if timeline.passes:
        mean_ms = 1000 * timeline.total_decide_s / timeline.passes
        rows.append(("policy calls", f"{timeline.passes}, {mean_ms:.2g} ms each on average"))
        rows.append(("lock", timeline.lock))
    rows += sorted(timeline.header.versions.items())
    rows.append(("trace layout", str(timeline.header.schema)))
    return rows


def _policy_name(spec: Mapping[str, Any]) -> str:
    return str(spec.get("policy") or spec.get("name") or "unnamed")


def _flat(spec: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}: {{{_flat(value)}}}" if isinstance(value, Mapping) else f"{key}: {value}"
        for key, value in spec.items()
    )
