"""Our panels on the dashboard of a running scheduler: put on, listed, taken off.

Dask makes its dashboard before any of the three ways to switch the runtime on, so nothing is put into its
table of pages, which all schedulers of a process share: a second Bokeh application with our pages joins the
HTTP server of this one scheduler, as Dask's own has, and Dask's own is told their addresses, for it is what
``/individual-plots.json`` lists (and so the Dask extension of JupyterLab).
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.dashboard import page

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: What is passed to the function that makes an application for the dashboard.
_PARAMETERS = ("applications", "server", "prefix", "template_variables")
#: How often is looked whether pages that are still open have been closed, in seconds.
_CLOSED_S = 1.0


class Panels:
    """The panels of one scheduler; made in its loop. Never raises: the runtime does without them.

    Parameters
    ----------
    scheduler
        Its dashboard gets the pages.
    watched
        Gives the runtime that they show.

    Attributes
    ----------
    paths
        Addresses of the panels that are there; none where there is no dashboard (or no Bokeh).
    problem
        Why none is there although there is a dashboard.
    """

    def __init__(self, scheduler: Scheduler, watched: Callable[[], Any]) -> None:
        self.paths: tuple[str, ...] = ()
        self.problem = ""
        self._scheduler = scheduler
        self._watched = watched
        self._pages = page.registered()
        self._ours: Any = None
        self._stock = _stock(scheduler)
        if self._stock is None:
            return
        try:
            problems = check(scheduler, self._stock)
            if not problems:
                self._add()
                problems = self._missing()
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            self.remove()
            self.problem = "; ".join(problems)
            logger.warning(
                "The dashboard shows no jobs and decisions: %s. The runtime works without it.", self.problem
            )

    def _add(self) -> None:
        from bokeh.application import Application
        from bokeh.server.contexts import ApplicationContext
        from distributed.dashboard.core import BokehApplication

        from dask_hpc.scheduler.dashboard.documents import applications

        scheduler, stock = self._scheduler, self._stock
        ours = BokehApplication(applications(self._pages, self._watched), scheduler, prefix=stock.prefix)
        ours.initialize(scheduler.loop)
        ours.start()
        # from here on there is something to take off
        self._ours = ours
        scheduler.http_application.add_application(ours)
        self.paths = tuple(one.path for one in self._pages)
        for path in self.paths:
            # an address alone: requests come to our application, whose pages these are
            stock.applications[path] = ApplicationContext(Application(), url=path)
        menu = _menu(scheduler)
        menu += [{"url": one.path.strip("/"), "name": one.title} for one in self._pages]
        menu.sort(key=lambda entry: entry["name"])

    def _missing(self) -> list[str]:
        absent = set(self.paths) - (self._stock.app_paths & self._ours.app_paths)
        return [f"it does not list {path}" for path in sorted(absent)]

    def remove(self) -> None:
        """Take everything off; pages that are open say so."""
        ours, paths = self._ours, self.paths
        self._ours, self.paths = None, ()
        if ours is None:
            return
        try:
            self._take_off(ours, paths)
        except Exception:
            logger.exception("The panels could not be taken off the dashboard")

    def _take_off(self, ours: Any, paths: tuple[str, ...]) -> None:
        self._stop(ours)
        served = self._scheduler.http_application.applications
        if ours in served:
            served.remove(ours)
        for path in paths:
            self._stock.applications.pop(path, None)
        menu = _menu(self._scheduler)
        menu[:] = [entry for entry in menu if f"/{entry['url']}" not in paths]

    def _stop(self, ours: Any) -> None:
        """Once nobody has a page open: some releases of Bokeh cut these off, before they can say why."""
        sessions = [session for path in ours.app_paths for session in ours.get_sessions(path)]
        if any(session.connection_count for session in sessions):
            self._scheduler.loop.call_later(_CLOSED_S, self._stop, ours)
        else:
            # Bokeh refuses to wait for what runs on this very loop
            ours.stop(wait=False)


def check(scheduler: Any, stock: Any) -> list[str]:
    """What is not as expected of the dashboard, one sentence each; empty when all is well.

    Parameters
    ----------
    stock
        Dask's own Bokeh application.
    """
    from distributed.dashboard import core
    from distributed.dashboard import scheduler as pages

    problems = []
    make = getattr(core, "BokehApplication", None)
    if make is None:
        problems.append("distributed.dashboard.core.BokehApplication is missing")
    else:
        missing = [name for name in _PARAMETERS if name not in inspect.signature(make).parameters]
        problems += [f"BokehApplication has no parameter {name}" for name in missing]
    if not callable(getattr(scheduler.http_application, "add_application", None)):
        problems.append("the HTTP server takes no further application")
    listed = getattr(stock, "applications", None)
    if not isinstance(listed, dict) or set(listed) != set(getattr(stock, "app_paths", ())):
        problems.append("Bokeh does not list its pages as expected")
    elif not any(path.startswith("/individual-") for path in listed):
        problems.append("pages of the dashboard are not called as expected")
    if not isinstance(getattr(stock, "prefix", None), str):
        problems.append("BokehTornado.prefix is missing")
    if not callable(getattr(pages, "template_variables", None)):
        problems.append("distributed.dashboard.scheduler.template_variables is missing")
    elif not isinstance(_menu(scheduler), list):
        problems.append("the menu of the dashboard is not as expected")
    return problems


def _stock(scheduler: Any) -> Any:
    """Dask's own Bokeh application; None where there is no dashboard."""
    # nothing is imported for a scheduler without one
    module = sys.modules.get("bokeh.server.tornado")
    served = getattr(getattr(scheduler, "http_application", None), "applications", ())
    kind = getattr(module, "BokehTornado", None)
    return None if kind is None else next((app for app in served if isinstance(app, kind)), None)


def _menu(scheduler: Any) -> Any:
    """Entries of the dashboard's menu of plots, kept once for each scheduler."""
    from distributed.dashboard.scheduler import template_variables

    return template_variables(scheduler)["plots"]
