"""The page of power: draw, bounds and what is expected, over the time since the corridor was set.

Imported only where there is a dashboard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bokeh.models import ColumnDataSource, Range1d
from bokeh.models.annotations import Title
from bokeh.plotting import figure

from dask_hpc.scheduler.dashboard.documents import DARK_TEXT, GONE, Watched
from dask_hpc_policies.power.checks import MOST_TOTAL_W

#: Columns of the chart, as the rows of `dask_hpc.scheduler.power.recent`.
COLUMNS = ("t_s", "draw_w", "lower_w", "upper_w", "min_w", "max_w")
#: Colours that differ also where red and green do not (Okabe and Ito 2008).
_DRAW, _BOUND, _EXPECTED = "#0072B2", "#D55E00", "#56B4E9"
#: The chart reaches this many times as high as the highest line; a line is broken where nothing is known.
_ROOM, _GAP = 1.1, math.nan


class PowerPanel:
    """Draw, bounds and what is expected, over time."""

    title = "Dask: HPC power"

    def __init__(self, minutes: float, dark: bool) -> None:
        self._window_s = 60 * minutes
        self.source = ColumnDataSource({name: [] for name in COLUMNS})
        # two lines, for narrow pages
        self._heading = Title(text="")
        self._times, self._watts = Range1d(start=-self._window_s, end=0), Range1d(start=0, end=1)
        self.root: Any = figure(
            title=self._heading,
            tools="",
            toolbar_location=None,
            x_range=self._times,
            y_range=self._watts,
            x_axis_label="seconds from now",
            y_axis_label="W",
            sizing_mode="stretch_both",
        )
        self.root.varea(x="t_s", y1="min_w", y2="max_w", color=_EXPECTED, alpha=0.3, source=self.source)
        for name in ("lower_w", "upper_w"):
            self.root.step(
                x="t_s",
                y=name,
                mode="after",
                color=_BOUND,
                line_width=2,
                line_dash="dashed",
                source=self.source,
            )
        self.root.line(
            x="t_s", y="draw_w", color="#FFFFFF" if dark else _DRAW, line_width=2, source=self.source
        )
        if dark:
            self._heading.text_color = DARK_TEXT

    def show(self, watched: Watched) -> None:
        """Show the state of now."""
        sections, _ = watched.sections()
        row: Mapping[str, Any] = sections.get("power", {})
        drawn = watched.engine.parts.charted().get("power", ())
        rows = [one for one in drawn if one[0] >= -self._window_s]
        columns = {
            name: [_GAP if one[place] is None else one[place] for one in rows]
            for place, name in enumerate(COLUMNS)
        }
        known = [
            watts
            for name in COLUMNS[1:]
            for watts in columns[name]
            # an open bound is as far as can be
            if watts < MOST_TOTAL_W
        ]
        self._watts.end = _ROOM * max(known, default=1.0) or 1.0
        self._times.start = min(-1.0, rows[0][0]) if rows else -self._window_s
        text = heading(row)
        if text != self._heading.text:
            self._heading.text = text
        if columns != self.source.data:
            self.source.data = columns

    def gone(self) -> None:
        """Say that there is nothing to show any more."""
        self._heading.text = GONE


def heading(row: Mapping[str, Any]) -> str:
    """Two lines about the section ``power`` of the status."""
    if not row:
        return "No corridor is set, and nothing says what a node draws."
    draw_w = row.get("draw_w")
    drawn = "The draw is not known" if draw_w is None else f"{draw_w:.0f} W ({row['label']})"
    if row.get("mode") is None:
        return f"{drawn}\nNo corridor is set."
    bounds = [
        f"{word} {row[name]:.0f} W"
        for word, name in (("at least", "lower_w"), ("at most", "upper_w"))
        if row.get(name) is not None and 0 < row[name] < MOST_TOTAL_W
    ]
    first = f"{drawn}; {' and '.join(bounds) or 'no bounds now'} ({row['mode']})"
    if row.get("min_w") is not None:
        first += f"; expected {row['min_w']:.0f} to {row['max_w']:.0f} W"
    model = (row.get("forecast") or {}).get("model")
    second = f"{(row.get('energy_j') or 0.0) / 1000:.1f} kJ, {row.get('outside_ws') or 0.0:.0f} W s outside"
    return f"{first}\n{second}{f', forecast by {model}' if model else ''}"
