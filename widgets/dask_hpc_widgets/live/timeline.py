"""The timeline of the panel: who has which nodes, moving while a cell computes.

Rules of the file: `heard` runs in the loop of the client, whatever the kernel does; the browser draws
(``timeline.js``) from what is new alone. Without anywidget the static twin is shown, which the kernel draws.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

import ipywidgets as widgets
import traitlets

from dask_hpc.report.looks import looks, printable
from dask_hpc.report.picture import TimelinePicture
from dask_hpc.report.timeline import build_timeline
from dask_hpc.trace.records import JobEvent, NodeEvent, Record, decode_line
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.views import Picture


def _any_widget() -> Any:
    try:
        from anywidget import AnyWidget
    except ImportError:
        return None
    return AnyWidget


#: The base of widgets that bring their own module; None: it is not installed.
AnyWidget: Any = _any_widget()

#: Records that are kept, the latest: with them a page that is loaded again is filled.
_KEPT = 8_000
#: Bytes of a message; longer news is told in several.
_MESSAGE_BYTES = 6_000
_STATES = {"up": 0, "draining": 1, "lost": 2, "removed": 3}


class TimelinePart:
    """Nodes over time, in the panel.

    Attributes
    ----------
    box
        The widget.
    number
        What has been heard of, to ask with the next time.
    """

    def __init__(self, picture: Picture) -> None:
        self.number = 0
        #: Up to what the static twin was shown last.
        self._shown = -1
        self._records: list[Record] = []
        self._now_s = 0.0
        self._names = _Names()
        self._events: list[Any] = []
        self._take(picture)
        if AnyWidget is None:
            self.box = widgets.HTML(layout={"width": "auto"})
        else:
            self.box = _drawn()(first={"events": list(self._events), "now": self._now_s})
            self.box.on_msg(lambda widget, content, buffers: self._tell(0))

    def heard(self, answer: Any) -> None:
        """Take an answer about the cluster, and have what is new drawn. Runs in the client's loop."""
        if isinstance(answer, Picture):
            before = len(self._events)
            whole = self._take(answer)
            if AnyWidget is not None:
                self._tell(0 if whole else before)

    def draw(self) -> None:
        """Show the static twin, where the browser does not draw, when something has happened."""
        if AnyWidget is None and self._shown != self.number:
            self._shown = self.number
            self.box.value = self.html()

    def html(self) -> Markup:
        """The static twin; the tables of the panel have the same in words."""
        spans = build_timeline(list(self._records), self._now_s).spans
        return Markup(TimelinePicture(spans, "Nodes over time").svg("100%"))

    def _take(self, picture: Picture) -> bool:
        """Note what is new; whether it takes the place of all that was known."""
        happened = picture.happened
        records = [decode_line(line) for line in happened.get("lines", ())]
        whole = bool(happened.get("whole"))
        if whole:
            self._records, self._events, self._names = [], [], _Names()
        self.number = happened.get("number", 0)
        self._now_s = float(picture.status.get("now_s", 0.0))
        self._records = [*self._records, *records][-_KEPT:]
        self._events += self._names.events(records)
        if len(self._events) > 2 * _KEPT:
            whole, self._names = True, _Names()
            self._events = self._names.events(self._records)
        return whole

    def _tell(self, since: int) -> None:
        """Send the events from that number on, in pieces."""
        events, size, begin = self._events, 0, since
        for index in range(since, len(events)):
            size += len(json.dumps(events[index]))
            if size > _MESSAGE_BYTES:
                self._send(begin, index)
                begin, size = index, 0
        self._send(begin, len(events))

    def _send(self, begin: int, end: int) -> None:
        self.box.send({"since": begin, "events": self._events[begin:end], "now": self._now_s})


class _Names:
    """Numbers for jobs and nodes, so that each name is told once."""

    def __init__(self) -> None:
        self._jobs: dict[str, int] = {}
        self._nodes: dict[str, int] = {}

    def events(self, records: Iterable[Record]) -> list[Any]:
        """Plain lists: ``["job", id, name, letter, colour]``, ``["node", name]``, of nodes that changed hands
        ``[t_s, job, state, *nodes]`` (job -1: nobody), and of a job ``[t_s, job, "state", nodes]``.
        """
        found: list[Any] = []
        for record in records:
            if isinstance(record, NodeEvent):
                job = -1 if record.job is None else self._job(record.job, record.job, found)
                nodes = [self._node(node, found) for node in record.nodes]
                found.append([round(record.t_s, 2), job, _STATES.get(record.state, 0), *nodes])
            elif isinstance(record, JobEvent):
                job = self._job(record.job, record.name or record.job, found)
                found.append([round(record.t_s, 2), job, record.state, record.nodes])
        return found

    def _job(self, id: str, name: str, found: list[Any]) -> int:
        if id not in self._jobs:
            self._jobs[id] = len(self._jobs)
            look = looks([id])[id]
            found.append(["job", printable(id), printable(name), look.letter, look.color])
        return self._jobs[id]

    def _node(self, name: str, found: list[Any]) -> int:
        if name not in self._nodes:
            self._nodes[name] = len(self._nodes)
            found.append(["node", printable(name)])
        return self._nodes[name]


def _drawn() -> Any:
    """The class of the widget; made when anywidget is there."""
    global _class
    if _class is None:
        code = resources.files("dask_hpc_widgets").joinpath("templates")

        class Drawn(AnyWidget):  # type: ignore[misc]
            _esm = code.joinpath("timeline.js").read_text(encoding="utf-8")
            _css = code.joinpath("timeline.css").read_text(encoding="utf-8")
            #: What a page begins with.
            first: traitlets.Dict[str, Mapping[str, Any]] = traitlets.Dict().tag(sync=True)

        _class = Drawn
    return _class


_class: Any = None
