"""The picture of a run that people look at: nodes over time, jobs below them, as SVG, PNG and a table.

picture = rt.timeline()
picture.save("run.png")

Rules of the file: draws what `Spans` say; only `TimelinePicture.save` touches a file.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from dask_hpc.report import svg
from dask_hpc.report.coarse import coarse, each, told_row
from dask_hpc.report.figure import spans_figure
from dask_hpc.report.looks import format_seconds
from dask_hpc.report.markup import render
from dask_hpc.report.spans import JobSpan, Spans
from dask_hpc_policies.wording import counted

#: Rows of jobs, the latest; the table has as many again.
MAX_JOBS = 24
_MAX_TABLE = 2 * MAX_JOBS
_WHISKERS = "A whisker is where a job is predicted to end."
#: Letters of a name beside a row.
_NAME = 16
#: Kinds of files that can be written, by the end of their names.
_KINDS = (".svg", ".png", ".pdf")


class TimelinePicture:
    """Nodes over time: a row a node, filled by the job that had it, and a row a job below. White is idle.

    Shows itself in a notebook. Made by ``rt.timeline()``, ``job.timeline()`` and ``result.timeline()``.

    Parameters
    ----------
    spans
        What is drawn.
    title
        What it is of.
    note
        What a reader has to know besides, a sentence; empty: nothing.
    """

    def __init__(self, spans: Spans, title: str, note: str = "") -> None:
        self.spans = spans
        self.title = title
        self.note = note
        #: Begins the names that it gives out in a page: fills of another picture there may be hidden.
        said = repr((title, note, spans.start_s, spans.end_s, spans.now_s, spans.nodes, dict(spans.labels)))
        self._id = f"dask-hpc-{zlib.crc32(said.encode()):08x}"

    def __repr__(self) -> str:
        spans = self.spans
        seconds = format_seconds(spans.end_s - spans.start_s)
        return (
            f"<TimelinePicture {self.title!r} nodes={len(spans.nodes)} jobs={len(spans.labels)} of {seconds}>"
        )

    def _repr_html_(self) -> str:
        return str(render("dask_hpc.report", "timeline.html", width="100%", **self._values()))

    def svg(self, width: str = "960") -> str:
        """The picture alone, as a file of its own; `width` is that of SVG, such as ``100%`` in a page."""
        return str(render("dask_hpc.report", "timeline.svg", width=width, **self._values()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to `path`: SVG, PNG or PDF, by the end of its name.

        Raises
        ------
        ValueError
            For another kind of file.
        ImportError
            When PNG or PDF is asked for and matplotlib is missing; the extra ``plot`` brings it.
        OSError
            When the file cannot be written.
        """
        kind = Path(path).suffix.lower()
        if kind not in _KINDS:
            raise ValueError(f"path is {os.fspath(path)!r}; allowed: names that end in {', '.join(_KINDS)}")
        if kind == ".svg":
            Path(path).write_text(self.svg(), encoding="utf-8")
        else:
            spans_figure(self.spans, self.title).savefig(os.fspath(path), dpi=150)

    # ---------------------------------------------------------------- what is shown

    def _values(self) -> dict[str, Any]:
        spans = coarse(self.spans)
        styles = {
            job: replace(look, fill_id=f"{self._id}-{look.fill_id}")
            for job, look in self.spans.looks().items()
        }
        jobs = list(spans.labels)[-MAX_JOBS:]
        told = self._told()
        parts = [svg.marks(spans, styles), svg.node_map(spans, styles), svg.job_sizes(spans, jobs, styles)]
        if spans.power:
            parts.append(svg.power_lane(spans))
        tops, names, top = [], [], svg.TITLE_PX
        for part in parts:
            tops.append(top)
            top += part.height + svg.GAP_PX
        names += [(tops[1] + (i + 0.5) * svg.NODE_ROW_PX + 4, node) for i, node in enumerate(spans.nodes)]
        names += [
            (tops[2] + (i + 0.6) * svg.JOB_ROW_PX, f"{styles[job].letter} {spans.labels[job]}")
            for i, job in enumerate(jobs)
        ]
        if spans.power:
            names.append((tops[3] + 12, "power"))
        axis = svg.axis(spans.start_s, spans.end_s, spans.now_s)
        return {
            "id": self._id,
            "title": self.title,
            "told": told,
            "note": " ".join(filter(None, (self._shared(), _WHISKERS if spans.ends else "", self.note))),
            "looks": list(styles.values()),
            "height": top + axis.height,
            "charts": [*zip(tops, parts, strict=True), (top, axis)],
            "names": [
                (y, name if len(name) <= _NAME else name[: _NAME - 1] + "…", name) for y, name in names
            ],
            "rows": [self._row(job, styles[job].letter) for job in list(spans.labels)[-_MAX_TABLE:]],
            "hidden": max(0, len(spans.labels) - _MAX_TABLE),
        }

    def _told(self) -> str:
        """The picture in a sentence, for those who hear it."""
        spans = self.spans
        until = ""
        if spans.now_s is not None:
            until = f", of which the last {format_seconds(spans.end_s - spans.now_s)} are predicted"
        styles = spans.looks()
        ends = [
            f"{styles[job].letter} {label} ends at {end}"
            for job, label in list(spans.labels.items())[-MAX_JOBS:]
            for end in self._ends(job)
        ]
        told = f" {'; '.join(ends)}." if ends else ""
        return (
            f"{counted(len(spans.nodes))} and {counted(len(spans.labels), 'job')} over "
            f"{format_seconds(spans.end_s - spans.start_s)}{until}.{told} {self._shared()} "
            "The table has the same by job."
        ).replace("  ", " ")

    def _shared(self) -> str:
        """What a row is where it is not one node."""
        return told_row(self.spans) if each(self.spans) > 1 else ""

    def _row(self, job: str, letter: str) -> tuple[str, str, str, str, str]:
        """Letter, name, how long it waited and ran, and its sizes."""
        own = [span for span in self.spans.job_spans if span.job == job]
        waits = sum(span.end_s - span.start_s for span in own if not span.nodes)
        runs = sum(span.end_s - span.start_s for span in own if span.nodes)
        told = [self._stretch(span) for span in own if span.nodes]
        told += [f"ends at {end}" for end in self._ends(job)]
        return (
            letter,
            self.spans.labels[job],
            format_seconds(waits),
            format_seconds(runs),
            "; ".join(told) or "none yet",
        )

    def _ends(self, job: str) -> list[str]:
        """When the job is predicted to end, if that is known, and the interval."""
        spans = self.spans
        return [svg.told_end(end, spans.start_s) for end in spans.ends if end.job == job]

    def _stretch(self, span: JobSpan) -> str:
        begin_s, end_s = span.start_s - self.spans.start_s, span.end_s - self.spans.start_s
        predicted = ", predicted" if span.predicted else ""
        return f"{counted(span.nodes)} from {format_seconds(begin_s)} to {format_seconds(end_s)}{predicted}"
