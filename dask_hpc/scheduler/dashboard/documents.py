"""Documents of our panels on the dashboard: jobs over time, and decisions with their reasons.

Rules of the file: imported only where there is a dashboard. A document is made when a browser opens the page
and forgotten when that is closed; meanwhile it looks at most every `INTERVAL_MS` at what the runtime keeps
anyway. Nothing of it raises into the loop, nothing is on the path of a task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Range1d
from bokeh.models.annotations import Title
from bokeh.models.text import PlainText
from bokeh.models.widgets import Div
from bokeh.plotting import figure
from distributed.dashboard.components.scheduler import BOKEH_THEME
from markupsafe import Markup

from dask_hpc.errors import InstallError
from dask_hpc.report.looks import format_seconds, printable, ticks
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.dashboard.chart import COLUMNS, picture
from dask_hpc.show import html
from dask_hpc_policies.wording import counted

logger = logging.getLogger(__name__)

#: A page that is looked at changes no more often.
INTERVAL_MS = 500
#: Minutes that the chart of jobs shows: what ``?minutes=`` is without, at least and at most.
MINUTES = (10.0, 1.0, 1440.0)
#: Rows of the chart of jobs are no higher than with so many jobs.
_FEWEST_ROWS = 4
#: The latest decisions that are shown.
_DECISIONS = 30
_DARK_PAGE, _DARK_TEXT = "#15191C", "#E0E0E0"
_DARK_STYLE = (
    "{% block postamble %}<style>body { background: " + _DARK_PAGE + "; color: " + _DARK_TEXT + "; }</style>"
    "{% endblock %}"
)
#: Bokeh makes what is inside of a `Div` as wide as its words; a table that wraps them needs a width.
_WIDE = ".bk-clearfix { display: block; width: 100%; }"
_GONE = "dask_hpc has been switched off on this scheduler."


class Watched(Protocol):
    """The runtime of one scheduler, as far as the pages show it."""

    engine: Engine

    def summary(self) -> Mapping[str, Any]:
        """State of the whole, cheap whatever the size of the cluster."""
        ...


class Panel(Protocol):
    """What a document shows."""

    title: str
    #: The Bokeh model.
    root: Any

    def show(self, watched: Watched) -> None:
        """Show the state of now."""

    def gone(self) -> None:
        """Show that there is nothing to show any more."""


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
            line_color=_DARK_TEXT if dark else "#000000", line_width=0.5, line_alpha=0.5,
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
        drawn = picture(jobs.named, reversed(jobs.ended), summary["now_s"], self._window_s)
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
        if title != self._heading.text:
            self._heading.text = title

    def gone(self) -> None:
        """Say that there is nothing to show any more."""
        self._heading.text = _GONE


class DecisionsPanel:
    """A table of the latest decisions, newest first, each with its reason."""

    title = "Dask: HPC decisions"

    def __init__(self, minutes: float, dark: bool) -> None:
        style: dict[str, Any] = {"overflow-y": "auto", "font-family": "sans-serif", "padding": "0 8px"}
        sheets: list[Any] = [_WIDE]
        if dark:
            sheets.append(f".bk-clearfix {{ color: {_DARK_TEXT}; background: {_DARK_PAGE}; }}")
        self.root: Any = Div(
            text="", styles=style, stylesheets=sheets, sizing_mode="stretch_both", disable_math=True
        )

    def show(self, watched: Watched) -> None:
        """Show the state of now."""
        rows = list(watched.engine.controller.decisions)[-_DECISIONS:]
        text = html("decisions", rows, watched.engine.state.now_s())
        if text is None:
            # without the package of the panel, as plain text
            told = (f"{row['job']} {row['action']} {row['result']}: {row['reason']}" for row in rows[::-1])
            text = printable(Markup("<pre>{}</pre>").format("\n".join(told)))
        if text != self.root.text:
            self.root.text = text

    def gone(self) -> None:
        """Say that there is nothing to show any more."""
        self.root.text = _GONE


#: What is shown at each address.
DOCUMENTS: Mapping[str, type[JobsPanel] | type[DecisionsPanel]] = {
    "/individual-hpc-jobs": JobsPanel,
    "/individual-hpc-decisions": DecisionsPanel,
}


def document(
    kind: Callable[[float, bool], Panel], watched: Callable[[], Watched], scheduler: Any, extra: Any, doc: Any
) -> None:
    """Fill `doc` with a panel of `kind`; the last three are the arguments of stock's documents."""
    arguments = _arguments(doc)
    dark = arguments.get("theme") == "dark"
    panel = kind(_minutes(arguments.get("minutes", "")), dark)
    doc.title = panel.title
    doc.add_root(panel.root)
    doc.theme = "dark_minimal" if dark else BOKEH_THEME
    if dark:
        doc.template = _DARK_STYLE
    if _look(panel, watched):
        callback: Any = None

        def again() -> None:
            # a document lives on for a while after its browser has gone
            if _is_looked_at(doc) and not _look(panel, watched):
                doc.remove_periodic_callback(callback)

        callback = doc.add_periodic_callback(again, INTERVAL_MS)


def _look(panel: Panel, watched: Callable[[], Watched]) -> bool:
    """Show the state of now; False when there is no more to come."""
    try:
        panel.show(watched())
    except InstallError:
        panel.gone()
        return False
    except Exception:
        # a chart must not fill the scheduler's log twice a second
        logger.exception("A panel on the dashboard cannot be shown any more")
        return False
    return True


def _is_looked_at(doc: Any) -> bool:
    session = getattr(doc.session_context, "session", None)
    return session is None or session.connection_count > 0


def _arguments(doc: Any) -> dict[str, str]:
    request = getattr(doc.session_context, "request", None)
    found = getattr(request, "arguments", None) or {}
    return {name: values[-1].decode("utf-8", "replace") for name, values in found.items() if values}


def _minutes(text: str) -> float:
    default, least, most = MINUTES
    try:
        minutes = float(text)
    except ValueError:
        return default
    return min(max(minutes, least), most) if minutes == minutes else default


def applications(watched: Callable[[], Watched]) -> dict[str, Callable[..., None]]:
    """Documents by address, as `distributed.dashboard.core.BokehApplication` takes them.

    `watched` gives the runtime, or raises `InstallError` when it is switched off.
    """
    return {path: partial(document, kind, watched) for path, kind in DOCUMENTS.items()}
