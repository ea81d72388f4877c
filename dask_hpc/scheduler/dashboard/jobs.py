"""The page of jobs: nodes of each as steps over the last minutes, a row each.

Imported only where there is a dashboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Range1d
from bokeh.models.annotations import Title
from bokeh.models.text import PlainText
from bokeh.plotting import figure

from dask_hpc.report.looks import format_seconds, printable, ticks
from dask_hpc.scheduler.dashboard.chart import COLUMNS, chart
from dask_hpc.scheduler.dashboard.documents import DARK_TEXT, GONE, Watched
from dask_hpc_policies.wording import counted

#: Rows of the chart are no higher than with so many jobs.
_FEWEST_ROWS = 4


class JobsPanel:
    """Nodes of each job as steps over the last minutes, a row each."""

    title = "Dask: HPC jobs"

    def __init__(self, minutes: float, dark: bool) -> None:
        self._window_s = 60 * minutes
        self._labels: tuple[str, ...] | None = None
        self.source = ColumnDataSource({name: [] for name in COLUMNS})
        moments = [-t_s for t_s in ticks(self._window_s, most=4)]
        self._rows = Range1d(start=_FEWEST_ROWS, end=0)
        # two lines, for narrow pages
        self._heading = Title(text="")
        self.root: Any = figure(
            title=self._heading,
            tools="",
            toolbar_location=None,
            x_range=Range1d(start=-self._window_s, end=0),
            y_range=self._rows,
            min_border_right=20,
            sizing_mode="stretch_both",
        )
        self.root.ygrid.visible = False
        self.root.xaxis.ticker = FixedTicker(ticks=moments)
        self.root.xaxis.major_label_overrides = {
            t_s: f"{format_seconds(-t_s)} ago" if t_s else "now" for t_s in moments
        }
        bars = self.root.quad(
            left="left", right="right", bottom="bottom", top="top", fill_color="color", source=self.source,
            line_color=DARK_TEXT if dark else "#000000", line_width=0.5, line_alpha=0.5,
        )  # fmt: skip
        self.root.text(
            x="text_x", y="text_y", text="text", text_color="ink", text_align="center",
            text_baseline="middle", text_font_size="12px", source=self.source,
        )  # fmt: skip
        tooltips = [("job", "@job"), ("nodes", "@nodes"), ("since", "@since")]
        self.root.add_tools(HoverTool(renderers=[bars], tooltips=tooltips))

    def show(self, watched: Watched) -> None:
        """Show the state of now."""
        jobs, summary = watched.engine.state.jobs, watched.summary()
        drawn = chart(jobs.named, reversed(jobs.ended), summary["now_s"], self._window_s)
        self._set_title(summary, drawn.hidden)
        if drawn.labels != self._labels:
            self._labels = drawn.labels
            self._rows.start = max(_FEWEST_ROWS, len(drawn.labels))
            # as plain text: in any other a name could hold a formula
            rows: dict[Any, Any] = {r + 0.5: PlainText(text=one) for r, one in enumerate(drawn.labels)}
            self.root.yaxis.ticker = FixedTicker(ticks=list(rows))
            self.root.yaxis.major_label_overrides = rows
        if drawn.columns != self.source.data:
            self.source.data = drawn.columns

    def _set_title(self, summary: Mapping[str, Any], hidden: int) -> None:
        idle = "" if summary["idle_nodes"] is None else f" ({summary['idle_nodes']} idle)"
        title = (
            f"{summary['jobs_running']} running, {summary['jobs_pending']} waiting\n"
            f"{counted(summary['pool_nodes'])}{idle}, {printable(summary['policy']['policy'])}"
        )
        if hidden:
            title += f"; {counted(hidden, 'job')} not shown"
        if summary["policy_failure"]:
            title += "; the policy fails: jobs keep their nodes"
        elif summary["policy_dropped"]:
            title += "; the policy before it has failed"
        if title != self._heading.text:
            self._heading.text = title

    def gone(self) -> None:
        """Say that there is nothing to show any more."""
        self._heading.text = GONE
