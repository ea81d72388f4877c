"""Documents of our pages on the dashboard: made, kept up to date, forgotten.

Rules of the file: imported only where there is a dashboard. A document is made when a browser opens the page
and forgotten when that is closed; meanwhile it looks at most every `INTERVAL_MS` at what the runtime keeps
anyway. Nothing of it raises into the loop, nothing is on the path of a task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from distributed.dashboard.components.scheduler import BOKEH_THEME

from dask_hpc.errors import InstallError
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.dashboard.page import Page

logger = logging.getLogger(__name__)

#: A page that is looked at changes no more often.
INTERVAL_MS = 500
#: Minutes that the chart of jobs shows: what ``?minutes=`` is without, at least and at most.
MINUTES = (10.0, 1.0, 1440.0)
DARK_PAGE, DARK_TEXT = "#15191C", "#E0E0E0"
_DARK_STYLE = (
    "{% block postamble %}<style>body { background: " + DARK_PAGE + "; color: " + DARK_TEXT + "; }</style>"
    "{% endblock %}"
)
GONE = "dask_hpc has been switched off on this scheduler."


class Watched(Protocol):
    """The runtime of one scheduler, as far as the pages show it."""

    engine: Engine

    def summary(self) -> Mapping[str, Any]:
        """State of the whole, cheap whatever the size of the cluster."""
        ...

    def sections(self) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """What the parts of the runtime tell about themselves by name, and why some cannot, by part."""
        ...


class PagePanel(Protocol):
    """What a document shows."""

    title: str
    #: The Bokeh model.
    root: Any

    def show(self, watched: Watched) -> None:
        """Show the state of now."""

    def gone(self) -> None:
        """Show that there is nothing to show any more."""


def document(page: Page, watched: Callable[[], Watched], scheduler: Any, extra: Any, doc: Any) -> None:
    """Fill `doc` with the panel of a page; the last three are the arguments of stock's documents."""
    arguments = _arguments(doc)
    dark = arguments.get("theme") == "dark"
    panel: PagePanel = page.panel_class()(_minutes(arguments.get("minutes", "")), dark)
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


def _look(panel: PagePanel, watched: Callable[[], Watched]) -> bool:
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


def applications(pages: Iterable[Page], watched: Callable[[], Watched]) -> dict[str, Callable[..., None]]:
    """Documents by address, as `distributed.dashboard.core.BokehApplication` takes them.

    `watched` gives the runtime, or raises `InstallError` when it is switched off.
    """
    return {page.path: partial(document, page, watched) for page in pages}
