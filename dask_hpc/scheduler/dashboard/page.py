"""Which pages of ours the dashboard has: one row each. Another one takes one file and one `register`.

Rules of the file: knows no Bokeh. What a page shows is loaded where there is a dashboard.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Dask calls pages so that show one thing alone; the Dask extension of JupyterLab lists no others.
_PREFIX = "/individual-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page on the dashboard of the scheduler."""

    #: Address, which begins with ``/individual-``.
    path: str
    #: What the menu of the dashboard calls it.
    title: str
    #: A class as `dask_hpc.scheduler.dashboard.documents.PagePanel`, made with the minutes to be shown and
    #: whether the page is dark; or where it is, as ``module:Class``.
    panel: str | Callable[[float, bool], Any]

    def panel_class(self) -> Callable[[float, bool], Any]:
        """What `panel` names."""
        found: Callable[[float, bool], Any] = (
            pkgutil.resolve_name(self.panel) if isinstance(self.panel, str) else self.panel
        )
        return found


_pages: dict[str, Page] = {}


def register(page: Page) -> None:
    """Have the dashboard of every scheduler on which the runtime is switched on from now on show `page`.

    Raises
    ------
    TypeError
        When it is no `Page`.
    ValueError
        When its address does not begin as it must, or another page has it.
    """
    if not isinstance(page, Page):
        raise TypeError(f"register takes a Page(path=..., title=..., panel=...), not {page!r}")
    if not page.path.startswith(_PREFIX):
        raise ValueError(f"path of a page is {page.path!r}; it must begin with {_PREFIX}")
    if _pages.get(page.path, page) != page:
        raise ValueError(f"a page at {page.path} is registered; choose another path")
    _pages[page.path] = page


def registered() -> tuple[Page, ...]:
    """All pages in order of registration."""
    return tuple(_pages.values())


for _path, _title, _panel in (
    ("/individual-hpc-jobs", "HPC Jobs", "dask_hpc.scheduler.dashboard.jobs:JobsPanel"),
    ("/individual-hpc-decisions", "HPC Decisions", "dask_hpc.scheduler.dashboard.decisions:DecisionsPanel"),
    (
        "/individual-hpc-checkpoints",
        "HPC Checkpoints",
        "dask_hpc.scheduler.dashboard.checkpoints:CheckpointsPanel",
    ),
    ("/individual-hpc-io", "HPC I/O", "dask_hpc.scheduler.dashboard.io:IoPanel"),
    ("/individual-hpc-power", "HPC Power", "dask_hpc.scheduler.dashboard.power:PowerPanel"),
):
    register(Page(path=_path, title=_title, panel=_panel))
