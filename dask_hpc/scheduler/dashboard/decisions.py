"""The page of decisions: a table of the latest, newest first, each with its reason.

Imported only where there is a dashboard.
"""

from __future__ import annotations

from typing import Any

from bokeh.models.widgets import Div
from markupsafe import Markup

from dask_hpc.report.looks import printable
from dask_hpc.scheduler.dashboard.documents import DARK_PAGE, DARK_TEXT, GONE, Watched
from dask_hpc.show import html

#: The latest decisions that are shown.
_DECISIONS = 30
#: Bokeh makes what is inside of a `Div` as wide as its words; a table that wraps them needs a width.
_WIDE = ".bk-clearfix { display: block; width: 100%; }"


class DecisionsPanel:
    """A table of the latest decisions, newest first, each with its reason."""

    title = "Dask: HPC decisions"

    def __init__(self, minutes: float, dark: bool) -> None:
        style: dict[str, Any] = {"overflow-y": "auto", "font-family": "sans-serif", "padding": "0 8px"}
        sheets: list[Any] = [_WIDE]
        if dark:
            sheets.append(f".bk-clearfix {{ color: {DARK_TEXT}; background: {DARK_PAGE}; }}")
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
        self.root.text = GONE
