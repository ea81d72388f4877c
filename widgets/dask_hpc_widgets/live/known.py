"""What the timeline tells of jobs beside their nodes: sizes they may have, and what was predicted.

Rules of the file: pure; what is said once is not said again, and nothing is kept of jobs that are not shown.
A row is ``[job, min_nodes, max_nodes, forecast]``, jobs by the numbers that `live.events` gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask_hpc_widgets.live.events import Events
from dask_hpc_widgets.views.jobs import predicted

Row = list[Any]


class Known:
    """What a page has been told of jobs."""

    def __init__(self) -> None:
        #: By id. Never changed in place: another thread may read it.
        self._told: Mapping[str, Row] = {}

    def news(self, rows: Iterable[Mapping[str, Any]], events: Events, anew: bool) -> list[Row]:
        """What is new in `rows` of `Runtime.jobs`; of all jobs when the page begins `anew`."""
        before = {} if anew else self._told
        now: dict[str, Row] = {}
        for row in rows:
            number = events.number(row["id"])
            # a job is told with its name first
            if number is not None:
                now[row["id"]] = [number, row["min_nodes"], row["max_nodes"], predicted(row)]
        self._told = now
        return [told for id, told in now.items() if before.get(id) != told]

    @property
    def all(self) -> list[Row]:
        """All that was told of the jobs of now."""
        return list(self._told.values())
