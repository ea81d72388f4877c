"""Sizes of jobs over the last minutes, out of the records and the job table that the runtime keeps anyway.

Rules of the file: plain data in and out; no Bokeh, no clock. What was read once is not read again, and what
is older than the window is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.report_svg import COLORS, letters, printable
from dask_hpc.scheduler.jobs import ACTIVE
from dask_hpc.trace import JobEvent, Record

#: Jobs beyond these are counted and not drawn.
MAX_ROWS = 12
#: Share of a row that the largest job fills, and that a job without nodes does.
_FULL, _THIN = 0.8, 0.06
#: Bars narrower than this share of the window carry no number.
_TEXT_SHARE = 0.03
_LABEL_LETTERS = 20
_GREY = "#808080"
#: Ink that can be read on a colour, where it is not black.
_INK = {"#0072B2": "#FFFFFF"}
_COLUMNS = "left right bottom top color job nodes since text text_x text_y ink".split()


@dataclass(slots=True)
class Run:
    """What is known of one job's sizes: ``(t_s, nodes)`` from each moment on."""

    id: str
    name: str
    submit_s: float
    end_s: float | None = None
    steps: list[tuple[float, int]] = field(default_factory=list)

    def step(self, t_s: float, nodes: int) -> None:
        """It has `nodes` nodes from `t_s` on."""
        if (self.steps[-1][1] if self.steps else 0) != nodes:
            self.steps.append((t_s, nodes))

    def forget(self, before_s: float) -> None:
        """Drop the steps that do not matter after `before_s`."""
        while len(self.steps) > 1 and self.steps[1][0] <= before_s:
            del self.steps[0]

    def stretches(self, from_s: float, now_s: float) -> list[tuple[float, float, int]]:
        """``(start_s, end_s, nodes)`` from its submission to its end, cut to the window."""
        steps = [(self.submit_s, 0), *self.steps]
        ends = [*(t_s for t_s, _ in steps[1:]), now_s if self.end_s is None else self.end_s]
        cut = ((max(t_s, from_s), min(end_s, now_s), n) for (t_s, n), end_s in zip(steps, ends, strict=True))
        return [(t_s, end_s, n) for t_s, end_s, n in cut if end_s > t_s]


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn: rectangles by column, seconds relative to now, row 0 on top."""

    columns: dict[str, list[Any]]
    #: What stands beside each row.
    labels: tuple[str, ...]
    #: Jobs that found no room.
    hidden: int = 0


class History:
    """Sizes of all jobs in the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._runs: dict[str, Run] = {}
        self._last: Record | None = None
        self._until_s = float("-inf")

    def read(self, records: Sequence[Record], jobs: Iterable[tuple[Any, int]], now_s: float) -> None:
        """Take what is new in `records`, and how many nodes each active job (a `JobRecord`) has now."""
        for event in self._new(records):
            run = self._runs.setdefault(event.job, Run(event.job, event.name or event.job, event.t_s))
            run.step(event.t_s, event.nodes if event.state in ACTIVE else 0)
            run.end_s = None if event.state in ACTIVE else event.t_s
        for job, nodes in jobs:
            run = self._runs.setdefault(job.id, Run(job.id, job.name, job.submit_s))
            # records may be kept no longer than this
            since_s = now_s if run.steps or job.start_s is None else job.start_s
            run.step(since_s, nodes)
        begin_s = now_s - self.window_s
        self._runs = {id: run for id, run in self._runs.items() if run.end_s is None or run.end_s > begin_s}
        for run in self._runs.values():
            run.forget(begin_s)

    def _new(self, records: Sequence[Record]) -> list[JobEvent]:
        new = []
        for record in reversed(records):
            if record is self._last:
                break
            if isinstance(record, JobEvent):
                if record.t_s < self._until_s:
                    break
                new.append(record)
        if records:
            self._last = records[-1]
        if new:
            self._until_s = new[0].t_s
        return new[::-1]

    def picture(self, now_s: float) -> Picture:
        """Active jobs in order of submission, then the ended ones, newest first."""
        active = sorted((run for run in self._runs.values() if run.end_s is None), key=lambda r: r.submit_s)
        ended = sorted((run for run in self._runs.values() if run.end_s is not None), key=lambda r: -r.end_s)  # type: ignore[operator]
        runs = [*active, *ended]
        drawn = runs[:MAX_ROWS]
        begin_s = now_s - self.window_s
        stretches = [run.stretches(begin_s, now_s) for run in drawn]
        most = max((n for row in stretches for _, _, n in row), default=1) or 1
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        labels = []
        for row, (run, found) in enumerate(zip(drawn, stretches, strict=True)):
            letter, color = _look(run.id)
            labels.append(_short(f"{letter} {run.name}"))
            for start_s, end_s, nodes in found:
                bar = _bar(row, start_s - now_s, end_s - now_s, nodes, most, self.window_s)
                bar |= {"job": f"{letter} {printable(run.id)}", "color": color if nodes else _GREY}
                bar["ink"] = _INK.get(bar["color"], "#000000")
                for name in _COLUMNS:
                    columns[name].append(bar[name])
        return Picture(columns, tuple(labels), len(runs) - len(drawn))


def _bar(row: int, left: float, right: float, nodes: int, most: int, window_s: float) -> dict[str, Any]:
    base, tall = row + 0.9, max(_THIN, _FULL * nodes / most)
    wide = right - left >= _TEXT_SHARE * window_s
    return {
        "left": round(left, 2),
        "right": round(right, 2),
        "bottom": base,
        "top": base - tall,
        "nodes": str(nodes) if nodes else "none: it waits",
        "since": f"{-left:.0f} s ago",
        "text": str(nodes) if nodes and wide else "",
        "text_x": round((left + right) / 2, 2),
        "text_y": base - tall / 2,
    }


def _look(id: str) -> tuple[str, str]:
    """Letter and colour of a job: its number is the end of its id, so that they stay its own."""
    digits = id.rpartition("-")[2]
    number = int(digits) - 1 if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    return letters(max(0, number)), COLORS[max(0, number) % len(COLORS)]


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= _LABEL_LETTERS else text[: _LABEL_LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"
