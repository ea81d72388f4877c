"""The tables of the panel: jobs, sizes, nodes, decisions, as data that a browser changes row by row.

Rules of the file: only views that are open cost anything. What happened is told in the client's loop, also
while the kernel is busy; what a person opens or looks for, in the kernel's: one lock keeps the numbers in
order. The browser draws (``tables*.js``). Without anywidget the panel shows the views as markup.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dask_hpc_widgets.base.drawn import AnyWidget, drawn
from dask_hpc_widgets.live.wire import Told
from dask_hpc_widgets.views import Picture, View
from dask_hpc_widgets.views.table import Search, Table

#: Bytes of the news of one update, and of a piece of all there is.
UPDATE_BYTES = 5_000
_ALL = 10**9
#: No answer comes so many seconds after a later one.
_LATE_S = 5.0
#: Letters of what is looked for.
_SEARCH = 100
_PARTS = ("elements.js", "tables_cells.js", "tables.js")
_STATES = ("", "pending", "running", "ended")


class TablesPart:
    """The open views that are tables, in the panel.

    Parameters
    ----------
    all_views
        The views, in their order; those without a table are left to the panel.
    picture
        What the panel begins with.
    opened
        Names of those that are open.

    Attributes
    ----------
    box
        The widget; None without anywidget.
    views
        The views that it shows.
    """

    def __init__(self, all_views: Sequence[View], picture: Picture, opened: Collection[str]) -> None:
        self.views = tuple(one for one in all_views if one.table is not None and AnyWidget is not None)
        self._picture = picture
        self._search = Search()
        self._lock = threading.Lock()
        #: Of the latest message; a page that misses one asks for everything.
        self.number = 0
        self._told: dict[str, Told] = {}
        #: Names of the tables of each open view.
        self._parts: dict[str, tuple[str, ...]] = {}
        self._open: tuple[str, ...] = ()
        self.box: Any = None
        self._set_open(opened)
        if AnyWidget is not None:
            self._news(_ALL)
            self.box = drawn(_PARTS, "tables.css", self.whole)
            self.box.on_msg(lambda widget, content, buffers: self._asked(content))

    def heard(self, answer: Any) -> None:
        """Tell the browser what is new in an answer about the cluster. Runs in any thread."""
        with self._lock:
            if self.box is None or not isinstance(answer, Picture) or answer is self._picture:
                return
            # what another thread has asked for before; by far earlier is a scheduler that has begun anew
            if 0 < self._now(self._picture) - self._now(answer) < _LATE_S:
                return
            self._picture = answer
            self._tell()

    def show(self, opened: Collection[str]) -> None:
        """Show the views of these names alone."""
        with self._lock:
            before = self._open
            self._set_open(opened)
            if self._open != before and self.box is not None:
                self._tell_all()

    def whole(self) -> dict[str, Any]:
        """All that a page begins with."""
        with self._lock:
            news = {name: told.whole() for name, told in self._told.items() if told.begun}
            return {**self._moment(), "all": True, "views": news}

    # ------------------------------------------------------------ with the lock

    def _set_open(self, opened: Collection[str]) -> None:
        self._open = tuple(one.name for one in self.views if one.name in opened and one.is_in(self._picture))

    def _moment(self) -> dict[str, Any]:
        """What every message tells."""
        shown = [name for name, told in self._told.items() if told.begun]
        return {"n": self.number, "now": self._now(self._picture), "open": shown}

    def _news(self, allowed_bytes: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        used = 0
        views = {view.name: view for view in self.views if view.name in self._open}
        self._parts = {name: self._parts.get(name, (name,)) for name in views}
        tables: dict[str, dict[str, Table]] = {}
        # each update another table comes first, so that none waits for long where much happens
        names = [name for part in self._parts.values() for name in part]
        turn = self.number % max(1, len(names))
        todo = deque(names[turn:] + names[:turn])
        # what is not told this time is not made either
        while todo and used < allowed_bytes:
            name = todo.popleft()
            own = name.partition("/")[0]
            if own not in tables:
                tables[own] = self._tables(views[own])
                todo.extend(one for one in tables[own] if one not in self._parts[own])
                self._parts[own] = tuple(tables[own])
            if name in tables[own]:
                told = self._told.setdefault(name, Told(views[own].title))
                news, more = told.news(tables[own][name], allowed_bytes - used)
                used += more
                if news:
                    found[name] = news
        shown = [name for part in self._parts.values() for name in part]
        self._told = {name: self._told[name] for name in shown if name in self._told}
        return found, used

    def _tables(self, view: View) -> dict[str, Table]:
        """The tables of a view, those after the first one as ``view/1``."""
        first = self._table(view)
        more = {f"{view.name}/{number}": table for number, table in enumerate(first.more, start=1)}
        return {view.name: first, **more}

    def _table(self, view: View) -> Table:
        assert view.table is not None
        try:
            return view.table(self._picture, self._search)
        except Exception as error:
            # it says so and leaves the others alone
            note = f"the view {view.name} failed: {type(error).__name__}: {error}"
            return Table(caption=view.title, cells=list, note=note)

    def _tell(self, anew: bool = False) -> int:
        """Send one message; gives the bytes of its news. `anew`: it begins with nothing."""
        if anew:
            self._told = {}
        news, used = self._news(UPDATE_BYTES)
        self.number += 1
        self.box.send({**self._moment(), **({"all": True} if anew else {}), "views": news})
        return used

    def _tell_all(self, anew: bool = False) -> None:
        """Send everything that the browser does not know, in pieces."""
        while self._tell(anew):
            anew = False

    @staticmethod
    def _now(picture: Picture) -> float:
        return round(float(picture.status.get("now_s", 0.0)), 2)

    # ------------------------------------------------------ in the kernel's loop

    def _asked(self, content: Mapping[str, Any]) -> None:
        """The browser has lost something, or a person looks for a job."""
        with self._lock:
            if content.get("ask") == "all":
                self._tell_all(anew=True)
            elif content.get("ask") == "search":
                state = str(content.get("state", ""))
                self._search = Search(
                    str(content.get("text", ""))[:_SEARCH], state if state in _STATES else ""
                )
                self._tell_all()
