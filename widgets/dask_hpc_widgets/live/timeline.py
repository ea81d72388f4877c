"""The timeline of the panel: who has which nodes, moving while a cell computes, and who is predicted to.

Rules of the file: `heard` runs in the loop of the client, whatever the kernel does, and is the only one that
numbers and sends events; what the kernel brings (a forecast, an answer) waits for it. The browser draws
(``timeline*.js``) from what is new alone. Without anywidget the static twin is shown, which the kernel draws.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask_hpc.report.looks import PATTERNS, printable
from dask_hpc.report.picture import TimelinePicture
from dask_hpc.report.spans import Mark, ends_of
from dask_hpc.report.timeline import build_timeline
from dask_hpc.trace.records import Other, Record, decode_line
from dask_hpc_policies.metrics import unended
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base.drawn import AnyWidget, drawn
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.live import tiles
from dask_hpc_widgets.live.events import Events
from dask_hpc_widgets.live.forecast import Forecast, followed
from dask_hpc_widgets.live.known import Known
from dask_hpc_widgets.views import Picture

#: Records that are kept, the latest: with them a page that is loaded again is filled.
_KEPT = 8_000
#: Of what was drawn, which changes again and again, so many.
_DRAWN = 4_000
#: Bytes of a message; longer news is told in several.
_MESSAGE_BYTES = 6_000
#: Letters of an answer about a job.
_ANSWER = 3_000
#: Jobs in a message about what is known of them.
_JOBS = 50
#: Parts of the module, in their order; no build step puts them together.
_PARTS = (
    "elements.js", "waits.js", "timeline_model.js", "timeline_draw.js", "timeline_jobs.js", "timeline.js",
)  # fmt: skip

#: Asked what blocks a job, by its id; brings the answer by `TimelinePart.answered`.
Why = Callable[[str], None]
#: Told what a person wants of a job: a message with ``ask`` and ``job``; answers in the same way.
Act = Callable[[Mapping[str, Any]], None]


class TimelinePart:
    """Nodes over time, in the panel.

    Parameters
    ----------
    picture
        What the panel begins with.
    why
        Asked when a person chooses a job.
    act
        Told when a person wants a job cancelled or resized.

    Attributes
    ----------
    box
        The widget.
    number
        What has been heard of, to ask with the next time.
    """

    def __init__(
        self, picture: Picture, why: Why = lambda job: None, act: Act = lambda content: None
    ) -> None:
        self.number = 0
        #: Up to what the static twin was shown last.
        self._shown: Any = None
        #: What nodes and jobs have done; what is drawn takes no place of it.
        self._done: deque[Record] = deque(maxlen=_KEPT)
        self._drawn: deque[Record] = deque(maxlen=_DRAWN)
        self._picture = picture
        self._events = Events()
        self._known = Known()
        #: What is predicted, and the messages that tell it.
        self._forecast: Forecast | None = None
        self._lanes: list[dict[str, Any]] = []
        self._told: Forecast | None = None
        self._take(picture)
        self._known.news(picture.jobs, self._events, anew=True)
        if AnyWidget is None:
            self.box = widgets.HTML(layout={"width": "auto"})
        else:
            self.box = drawn(_PARTS, "timeline.css", self._whole)
            self.box.on_msg(lambda widget, content, buffers: self._asked(content, why, act))

    # ------------------------------------------------------ in the client's loop

    def heard(self, answer: Any) -> None:
        """Take an answer about the cluster, and have what is new drawn. Runs in the client's loop."""
        if isinstance(answer, Picture):
            before = len(self._events.all)
            whole = self._take(answer)
            forecast = self._forecast
            again = whole or forecast is not self._told
            if again:
                # what only it knows is named among the events, which are told first
                self._lanes, self._told = self._drawn_lanes(forecast), forecast
            if AnyWidget is not None:
                self._tell(0 if whole else before)
                if again:
                    self._tell_lanes()
                self._tell_known(self._known.news(answer.jobs, self._events, anew=whole))

    def _take(self, picture: Picture) -> bool:
        """Note what is new; whether it takes the place of all that was known."""
        happened = picture.happened
        records = [decode_line(line) for line in happened.get("lines", ())]
        whole = bool(happened.get("whole"))
        if whole:
            self._done.clear()
            self._drawn.clear()
            self._events = Events()
        self.number = happened.get("number", 0)
        self._picture = picture
        for record in records:
            (self._drawn if isinstance(record, Other) else self._done).append(record)
        self._events.take(records)
        self._events.decided(picture.decisions)
        if len(self._events.all) > 2 * _KEPT:
            whole, self._events = True, self._events.anew(self._records())
        return whole

    def _records(self) -> list[Record]:
        return [*self._done, *self._drawn]

    def _drawn_lanes(self, forecast: Forecast | None) -> list[dict[str, Any]]:
        """The messages that tell a forecast, each small."""
        if forecast is None:
            return [{"lanes": []}]
        found: list[dict[str, Any]] = [
            {
                "lanes": [
                    {
                        "title": name,
                        "policy": printable(run.policy["policy"]) if run else "",
                        "known": run is not None,
                        "left": unended(run.runs) if run else 0,
                    }
                    for name, run in forecast.lanes
                ],
                "from": round(max(run.from_s or 0.0 for _, run in forecast.lanes if run is not None), 2),
                "end": round(forecast.end_s, 2),
                "stale": forecast.stale,
            }
        ]
        for place, (_, run) in enumerate(forecast.lanes):
            if run is None:
                continue
            names = {one.id: one.name or one.id for one in run.runs}
            piece: list[Any] = []
            size = 0
            for job, start_s, end_s, held in forecast.rows[place]:
                span = [self._events.job(job, names.get(job, job)), start_s, end_s, self._events.ranges(held)]
                bytes_ = len(json.dumps(span))
                if size + bytes_ > _MESSAGE_BYTES:
                    found.append({"lane": place, "spans": piece})
                    piece, size = [], 0
                piece.append(span)
                size += bytes_
            found.append({"lane": place, "spans": piece})
        return found

    def _tell(self, since: int) -> None:
        """Send the events from that number on, in pieces."""
        events, size, begin = self._events.all, 0, since
        for index in range(since, len(events)):
            size += len(json.dumps(events[index]))
            if size > _MESSAGE_BYTES:
                self._send(begin, index)
                begin, size = index, 0
        self._send(begin, len(events))

    def _send(self, begin: int, end: int) -> None:
        self.box.send({"since": begin, "events": self._events.all[begin:end], **self._moment()})

    def _tell_lanes(self) -> None:
        for message in self._lanes:
            self.box.send(message)

    def _tell_known(self, rows: Sequence[Any]) -> None:
        for begin in range(0, len(rows), _JOBS):
            self.box.send({"known": list(rows[begin : begin + _JOBS])})

    def _whole(self) -> dict[str, Any]:
        """What a page begins with; what a message still tells then is known."""
        events = list(self._events.all)
        told = {"events": events, "known": self._known.all, "future": list(self._lanes)}
        return {**told, "patterns": PATTERNS, **self._moment()}

    def _moment(self) -> dict[str, Any]:
        """What every message tells: the time, and the tiles."""
        found = tiles.tiles(self._picture, self._forecast)
        return {"now": self.now_s, "tiles": [list(one) for one in found]}

    # ------------------------------------------------------ in the kernel's loop

    def predict(self, forecast: Forecast | None) -> None:
        """Show what is predicted from the next answer of the cluster on; None: nothing is."""
        self._forecast = forecast

    @property
    def now_s(self) -> float:
        """The time of the latest answer, on the clock of the cluster."""
        return float(self._picture.status.get("now_s", 0.0))

    @property
    def forecast(self) -> Forecast | None:
        """What is predicted."""
        return self._forecast

    def answered(self, job: str, text: str, confirm: str = "", came: bool = False, nodes: str = "") -> None:
        """Tell what a person has asked about a job, a line a sentence; see `live.acts.Told`."""
        if AnyWidget is not None:
            told = {"why": printable(job), "text": printable(text)[:_ANSWER]}
            self.box.send({**told, "confirm": confirm, "came": came, "nodes": nodes})

    def _asked(self, content: Mapping[str, Any], why: Why, act: Act = lambda content: None) -> None:
        """The browser has lost something, or a person has chosen a job."""
        if content.get("ask") == "all":
            self._tell(0)
            self._tell_lanes()
            self._tell_known(self._known.all)
        elif content.get("ask") == "here":
            # what was clicked before is through
            self.box.send({"here": content.get("n"), "of": str(content.get("of"))[:20]})
        elif content.get("ask") == "why":
            why(str(content.get("job", "")))
        elif content.get("ask") in ("cancel", "resize"):
            act(content)

    def draw(self) -> None:
        """Show the static twin, where the browser does not draw, when something has happened."""
        if AnyWidget is None and self._shown != (self.number, self._forecast):
            self._shown = (self.number, self._forecast)
            self.box.value = self.html()

    def _marks(self, origin_s: float) -> tuple[Mark, ...]:
        """The decisions that are marked, for the static twin; times count from `origin_s`."""
        # their passes are not told, as each has all of the state that it was about
        return tuple(
            Mark(
                t_s=row["t_s"] - origin_s,
                job=row["job"],
                action=row["action"],
                nodes=row["nodes"],
                text=row["reason"],
            )
            for row in self._events.marks
            if row["t_s"] >= origin_s
        )

    def html(self) -> Markup:
        """The static twin; the tables of the panel have the same in words."""
        forecast = self._forecast
        line = build_timeline(self._records(), self.now_s)
        spans = replace(line.spans, marks=self._marks(line.origin_s))
        head = tiles.html(tiles.tiles(self._picture, forecast))
        if forecast is None:
            return head + Markup(TimelinePicture(spans, "Nodes over time").svg("100%"))
        stale = f" (stale: {forecast.stale})" if forecast.stale else ""
        ends = ends_of(self._picture.jobs, line.origin_s)
        pictures = [
            TimelinePicture(
                # what the cluster says of ends is about the policy that runs
                whole.with_ends(ends) if run is forecast.runs else whole,
                f"Nodes over time, {name}{stale}",
            )
            for name, run in forecast.lanes
            if run is not None
            for whole in [followed(spans, line.origin_s, run, forecast.end_s)]
        ]
        return head + Markup().join(Markup(one.svg("100%")) for one in pictures)
