"""A run as one HTML page that needs nothing else: no network, no scripts.

Rules of the file: records in, text out; only `write_report` touches a file. Names come from users, so
every piece of text passes through `escape`, and the page forbids itself scripts and requests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from dask_hpc.report.svg import (
    TEXT_ROW_PX,
    Look,
    axis,
    definitions,
    escape,
    format_seconds,
    job_sizes,
    looks,
    node_map,
    row_px,
    state_swatch,
    swatch,
    utilization,
)
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
    styles = looks(timeline.jobs)
    sections = [
        _head(timeline, title),
        _facts(timeline),
        _notes(notes or {}),
        definitions(styles),
        _node_section(timeline, styles),
        _size_section(timeline, styles),
        _utilization_section(timeline),
        _job_section(timeline, styles),
        _feed_section(timeline, styles),
        _settings_section(timeline),
    ]
    css = resources.files("dask_hpc").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


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


def _head(timeline: Timeline, title: str) -> str:
    header = timeline.header
    started = f", started {header.started}" if header.started else ""
    policies = ", ".join(_policy_name(use.spec) for use in timeline.policies) or "none"
    return (
        f"<h1>{escape(title)}</h1>"
        f'<p class="soft">{escape(header.source)} run{escape(started)}; policy: {escape(policies)}</p>'
    )


def _facts(timeline: Timeline) -> str:
    summary = timeline.summary
    resizes = f"{summary['expansions']} up, {summary['shrinks']} down"
    facts = [
        ("Makespan", _seconds(summary["makespan_s"])),
        ("Utilization", "n/a" if summary["utilization"] is None else f"{summary['utilization']:.0%}"),
        ("Mean wait", _seconds(summary["mean_wait_s"])),
        ("Mean turnaround", _seconds(summary["mean_turnaround_s"])),
        ("Jobs", str(len(timeline.jobs))),
        ("Nodes", str(len(timeline.nodes))),
        ("Resizes", resizes),
        ("Longest decision", f"{1000 * timeline.longest_decide_s:.2g} ms"),
    ]
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return f'<dl class="facts">{items}</dl>'


def _notes(notes: Mapping[str, str]) -> str:
    rows = "".join(f"<li><strong>{escape(k)}</strong>: {escape(v)}</li>" for k, v in notes.items())
    return f"<ul>{rows}</ul>" if rows else ""


def _chart(names: str, plot: str, end_s: float) -> str:
    return (
        f'<div class="chart"><div class="names">{names}</div>'
        f'<div class="plot">{plot}{axis(end_s)}</div></div>'
    )


def _name_rows(names: Sequence[str], height: int) -> str:
    return "".join(
        f'<div style="height:{height}px;line-height:{height}px" title="{escape(name)}">{escape(name)}</div>'
        for name in names
    )


def _node_section(timeline: Timeline, styles: dict[str, Look]) -> str:
    heading = "<h2>Node map</h2>"
    if not timeline.nodes:
        return heading + "<p>The trace names no nodes.</p>"
    height = row_px(len(timeline.nodes))
    if height >= TEXT_ROW_PX:
        names = _name_rows(timeline.nodes, height)
    else:
        names = f"<div>{len(timeline.nodes)} nodes</div>"
    entries = [
        f"<li>{swatch(styles[job.run.id].fill_id)} <strong>{styles[job.run.id].letter}</strong> "
        f"{escape(job.label)}</li>"
        for job in timeline.jobs[:MAX_CHART_JOBS]
    ]
    entries += [
        f"<li>{state_swatch('idle')} no named job (plain work or idle)</li>",
        f"<li>{state_swatch('draining')} draining (dashed)</li>",
        f"<li>{state_swatch('lost')} lost</li>",
    ]
    return (
        f"{heading}<figure><figcaption>One row a node; letter, pattern and colour say which job held it."
        f"</figcaption>{_chart(names, node_map(timeline, styles), timeline.end_s)}"
        f'<ul class="legend">{"".join(entries)}</ul></figure>'
    )


def _size_section(timeline: Timeline, styles: dict[str, Look]) -> str:
    jobs = timeline.jobs[:MAX_CHART_JOBS]
    if not jobs:
        return "<h2>Job sizes</h2><p>No job was submitted.</p>"
    rest = len(timeline.jobs) - len(jobs)
    more = f" The first {len(jobs)} jobs; the table has all {len(timeline.jobs)}." if rest else ""
    names = _name_rows([f"{styles[job.run.id].letter} {job.label}" for job in jobs], 40)
    return (
        "<h2>Job sizes</h2><figure><figcaption>Nodes held over time; the dashed line is the wait."
        f"{escape(more)}</figcaption>"
        f"{_chart(names, job_sizes(timeline, jobs, styles), timeline.end_s)}</figure>"
    )


def _utilization_section(timeline: Timeline) -> str:
    if not timeline.nodes:
        return ""
    most = max(up for _, up, _ in timeline.levels())
    names = f'<div class="ends" style="height:96px"><span>{most} nodes</span><span>0</span></div>'
    return (
        "<h2>Utilization</h2><figure><figcaption>Filled: nodes held by named jobs. Line: nodes in the pool. "
        "Nodes that no named job holds serve plain work.</figcaption>"
        f"{_chart(names, utilization(timeline), timeline.end_s)}</figure>"
    )


def _table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are markup already."""
    kind = {True: ' class="number"', False: ""}
    head = "".join(f"<th{kind[number]}>{escape(label)}</th>" for label, number in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind[number]} data-label="{escape(label)}">{cell}</td>'
            for (label, number), cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _job_section(timeline: Timeline, styles: dict[str, Look]) -> str:
    if not timeline.jobs:
        return ""
    resizes = resizes_by_job(timeline)
    rows = [_job_row(job, styles[job.run.id], resizes.get(job.run.id, [])) for job in timeline.jobs]
    return f"<h2>Jobs</h2>{_table(_JOB_COLUMNS, rows)}"


def _job_row(job: JobHistory, style: Look, resizes: Sequence[FeedEntry]) -> list[str]:
    run = job.run
    bounds = "" if job.min_nodes is None else f", {job.min_nodes} to {job.max_nodes} nodes"
    if job.kind == "rigid":
        bounds = f", {job.max_nodes} node{'' if job.max_nodes == 1 else 's'}"
    sizes = " → ".join(f"{n} at {t_s:.1f} s" for t_s, n in run.nodes if n)
    state = run.state + (f": {job.reason}" if job.reason and run.state in ("failed", "cancelled") else "")
    changes = "<br>".join(
        escape(f"{entry.action} to {entry.nodes} at {entry.t_s:.1f} s: {entry.text}") for entry in resizes
    )
    return [
        f"{swatch(style.fill_id)} <strong>{style.letter}</strong> {_name(job.label)}",
        escape(f"{job.kind}{bounds}"),
        escape(state),
        escape(f"{run.submit_s:.1f} s"),
        escape(_seconds(run.wait_s)),
        escape(_seconds(run.turnaround_s)),
        escape(sizes or "none"),
        changes or "none",
    ]


def resizes_by_job(timeline: Timeline) -> dict[str, list[FeedEntry]]:
    """The expansions and shrinks that were carried out, by job id, in order of time."""
    resizes: dict[str, list[FeedEntry]] = {}
    for entry in timeline.feed:
        if entry.action in ("expand", "shrink") and entry.result == "done":
            resizes.setdefault(entry.job, []).append(entry)
    return resizes


def _feed_section(timeline: Timeline, styles: dict[str, Look]) -> str:
    if not timeline.feed:
        return "<h2>Decisions</h2><p>No decision was recorded.</p>"
    names = timeline.labels
    shown = timeline.feed[-MAX_FEED:]
    cut = len(timeline.feed) - len(shown)
    note = f'<p class="soft">The last {len(shown)} of {len(timeline.feed)}.</p>' if cut else ""
    rows = [_feed_row(entry, styles.get(entry.job), names.get(entry.job, entry.job)) for entry in shown]
    return f"<h2>Decisions</h2>{note}{_table(_FEED_COLUMNS, rows)}"


def _feed_row(entry: FeedEntry, style: Look | None, name: str) -> list[str]:
    word = "on" if entry.action == "start" else "to"
    target = "" if entry.nodes is None else f" {word} {entry.nodes}"
    times = f" ({entry.times} times)" if entry.times > 1 else ""
    took = f" after {format_seconds(entry.latency_s)}" if entry.latency_s and entry.result == "done" else ""
    result = entry.result + took
    if entry.result in ("refused", "aborted") and entry.result_text:
        result += f": {entry.result_text}"
    letter = f"<strong>{style.letter}</strong> " if style else ""
    return [
        escape(f"{entry.t_s:.2f} s"),
        escape(entry.trigger),
        escape(entry.action + target + times),
        letter + _name(name),
        f"<code>{escape(entry.code)}</code> {escape(entry.text)}",
        escape(result),
    ]


def _name(text: str) -> str:
    # Users' names may be one long word: only they may break anywhere.
    return f'<span class="name">{escape(text)}</span>'


def _policy_name(spec: Mapping[str, Any]) -> str:
    return str(spec.get("policy") or spec.get("name") or "unnamed")


def _settings_section(timeline: Timeline) -> str:
    rows = [
        [escape(f"policy from {use.t_s:.1f} s"), f"<code>{escape(_flat(use.spec))}</code>"]
        for use in timeline.policies
    ]
    if timeline.passes:
        mean_ms = 1000 * timeline.total_decide_s / timeline.passes
        rows.append(["policy calls", escape(f"{timeline.passes}, {mean_ms:.2g} ms each on average")])
        rows.append(["lock", escape(timeline.lock)])
    rows += [[escape(name), escape(version)] for name, version in sorted(timeline.header.versions.items())]
    rows.append(["trace layout", escape(timeline.header.schema)])
    table = _table((("Setting", False), ("Value", False)), rows)
    return f"<h2>Settings and versions</h2>{table}"


def _flat(spec: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}: {{{_flat(value)}}}" if isinstance(value, Mapping) else f"{key}: {value}"
        for key, value in spec.items()
    )


def _seconds(value: float | None) -> str:
    return "n/a" if value is None else format_seconds(value)
