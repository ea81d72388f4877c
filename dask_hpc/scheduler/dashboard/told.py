"""What pages of text share: one element that fills the page, changed when there is something new.

Imported only where there is a dashboard.
"""

from __future__ import annotations

from typing import Any

from bokeh.models.widgets import Div
from markupsafe import Markup

from dask_hpc.report.looks import printable
from dask_hpc.scheduler.dashboard.documents import DARK_PAGE, DARK_TEXT, GONE

#: Bokeh makes what is inside of a `Div` as wide as its words; a table that wraps them needs a width.
_WIDE = ".bk-clearfix { display: block; width: 100%; }"


class ToldPanel:
    """A page of text; what it says is up to those that are made from it."""

    def __init__(self, minutes: float, dark: bool) -> None:
        style: dict[str, Any] = {"overflow-y": "auto", "font-family": "sans-serif", "padding": "0 8px"}
        sheets: list[Any] = [_WIDE]
        if dark:
            sheets.append(f".bk-clearfix {{ color: {DARK_TEXT}; background: {DARK_PAGE}; }}")
        self.root: Any = Div(
            text="", styles=style, stylesheets=sheets, sizing_mode="stretch_both", disable_math=True
        )

    def tell(self, text: str) -> None:
        """Show `text`, which is HTML; what is shown already is not sent again."""
        if text != self.root.text:
            self.root.text = text

    def gone(self) -> None:
        """Say that there is nothing to show any more."""
        self.root.text = GONE


def plain(text: str) -> str:
    """Plain text as HTML: what is shown without the package of the panel."""
    return printable(Markup("<pre>{}</pre>").format(text))
