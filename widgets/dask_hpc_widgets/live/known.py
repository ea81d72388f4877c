"""What the timeline tells of jobs beside their nodes: sizes they may have, and what was predicted.

Rules of the file: pure; what is said once is not said again, and nothing is kept of jobs that are not shown.
A row is ``[job, min_nodes, max_nodes, forecast, ends]``, jobs by the numbers that `live.events` gives them;
the ends are the least, the expected and the most time at which it may end, in seconds, or null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask_hpc_widgets.live.events import Events
from dask_hpc_widgets.views.jobs import predicted

Row = list[Any]
#: An interval that has moved by less than this part of its width looks the same.
_SAME = 0.05
#: Jobs that are told of in an update.
_MOST = 20


class Known:
    """What a page has been told of jobs."""

    def __init__(self) -> None:
        #: By id. Never changed in place: another thread may read it.
        self._told: Mapping[str, Row] = {}
        self._turn = 0

    def news(self, rows: Iterable[Mapping[str, Any]], events: Events, anew: bool) -> list[Row]:
        """What is new in `rows` of `Runtime.jobs`; of all jobs when the page begins `anew`."""
        before = {} if anew else self._told
        now: dict[str, Row] = {}
        for row in rows:
            id = row["id"]
            number = events.number(id)
            # a job is told with its name first
            if number is not None:
                text, ends = "", None
                if row.get("forecast"):
                    told = self._told.get(id)
                    text, ends = predicted(row), _ends(row, told[4] if told else None)
                now[id] = [number, row["min_nodes"], row["max_nodes"], text, ends]
        news = [id for id, told in now.items() if before.get(id) != told]
        if not anew and len(news) > _MOST:
            begin = self._turn % len(news)
            self._turn += _MOST
            # others wait for the next time, each in its turn
            later = {*[*news[begin:], *news[:begin]][_MOST:]}
            news = [id for id in news if id not in later]
            now = {id: before.get(id, []) if id in later else told for id, told in now.items()}
        self._told = {id: told for id, told in now.items() if told}
        return [now[id] for id in news]

    @property
    def all(self) -> list[Row]:
        """All that was told of the jobs of now."""
        return list(self._told.values())


def _ends(row: Mapping[str, Any], before: list[float] | None) -> list[float] | None:
    """When a job is predicted to end, or what was told `before`, where that looks the same."""
    ends = row["forecast"].get("ends_s")
    if not ends:
        return None
    least = max(0.1, _SAME * (ends[2] - ends[0]))
    if before and all(abs(new - old) < least for new, old in zip(ends, before, strict=True)):
        return before
    return [round(t_s, 1) for t_s in ends]
