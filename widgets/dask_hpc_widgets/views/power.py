"""Power: draw, bounds and what is expected on one axis, and who has drawn what; how to set a corridor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dask_hpc_policies.power.bill import J_PER_KWH
from dask_hpc_policies.power.checks import MOST_TOTAL_W
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.view import Picture, View

#: Height of the drawing, which is 100 wide, and the room above the highest line, as a share.
_HEIGHT, _ROOM = 40.0, 0.05
#: Jobs beyond these are counted and not shown.
_MAX_JOBS = 20
_HOW = "rt.corridor(lower_w=..., upper_w=...) sets one, or dask hpc power set"
_NO_WATTS = (
    "Nothing says what a node draws: set hpc.power.model.idle and hpc.power.model.busy (watts), or have "
    "workers measure (dask hpc power sensors). Then a corridor can be set: "
)
_LEGEND = (
    "Solid: the draw. Dashed: bounds. Band: what is expected at the present sizes. Dotted: the forecast."
)
_BILL: tuple[Column, ...] = (
    ("Who", False),
    ("Energy (kWh)", True),
    ("Draws now (W)", True),
    ("Cost", True),
    ("CO2 (g)", True),
)
#: Pairs of seconds from now and watts.
_Line = list[tuple[float, float]]


def html(picture: Picture) -> Markup:
    """What is drawn in words, the chart, what was outside, the bill, and what else is done about it."""
    row = picture.section("power")
    if not row:
        return markup.soft(f"{_NO_WATTS}{_HOW}.")
    if row.get("mode") is None:
        return Markup().join(
            [markup.element("p", markup.strong(_drawn(row))), markup.soft(f"No corridor is set: {_HOW}.")]
        )
    parts: list[str] = [markup.element("p", markup.strong(_drawn(row)), f"; {_bounds(row)}.")]
    if row.get("problem"):
        parts.append(markup.alert(row["problem"]))
    if chart := _chart(row):
        parts += [chart, markup.soft(_LEGEND)]
    outside = f"{row['outside_ws']:.0f} W s outside, over {markup.roughly(row['outside_s'])}"
    parts.append(markup.element("p", f"Since it was set: {outside}."))
    if texts := [*_planned(row), *_done(row)]:
        parts.append(markup.items(texts))
    parts.append(markup.table(_BILL, _bill(picture, row), "Who has drawn what"))
    hidden = len(row["jobs"]) - _MAX_JOBS
    if hidden > 0:
        parts.append(markup.soft(f'{hidden} more jobs are not shown; rt.power()["bill"] has all.'))
    return Markup().join(parts)


def _drawn(row: Mapping[str, Any]) -> str:
    draw_w = row.get("draw_w")
    return "The draw is not known" if draw_w is None else f"{draw_w:.0f} W ({row['label']})"


def _bounds(row: Mapping[str, Any]) -> str:
    told = [
        f"{word} {row[name]:.0f} W"
        for word, name in (("at least", "lower_w"), ("at most", "upper_w"))
        if row.get(name) is not None and 0 < row[name] < MOST_TOTAL_W
    ]
    return f"{' and '.join(told) or 'no bounds now'} ({row['mode']})"


def _planned(row: Mapping[str, Any]) -> Iterable[str]:
    """What is to come."""
    if row.get("min_w") is not None:
        yield f"Expected at the present sizes: {row['min_w']:.0f} to {row['max_w']:.0f} W"
    if row.get("next_step"):
        after_s, lower_w, upper_w = row["next_step"]
        yield f"In {markup.roughly(after_s)}: {_bounds({**row, 'lower_w': lower_w, 'upper_w': upper_w})}"
    if reason := (row.get("plan") or {}).get("reason"):
        yield reason


def _done(row: Mapping[str, Any]) -> Iterable[str]:
    """What is done beside sizes of jobs."""
    if reason := row.get("withheld", {}).get("reason"):
        yield reason
    for host in row.get("caps", ()):
        watts = "" if host["watts"] is None else f" at {host['watts']:.0f} W"
        yield ": ".join([f"Cap of {host['host']}{watts}", host["state"], *filter(None, [host.get("reason")])])


def _bill(picture: Picture, row: Mapping[str, Any]) -> list[list[str]]:
    settings = picture.status.get("settings", {})
    price, carbon = settings.get("power_price"), settings.get("power_carbon")
    names = {job["id"]: job["name"] for job in picture.jobs}
    total_j = row["energy_j"]

    def line(who: str, energy_j: float, watts: float | None = None) -> list[str]:
        kwh = energy_j / J_PER_KWH
        return [
            who,
            f"{kwh:.4g}",
            "" if watts is None else f"{watts:.0f}",
            "" if price is None else f"{kwh / 1000 * price:.4g}",
            "" if carbon is None else f"{kwh * carbon:.4g}",
        ]

    rows = [line(markup.strong("all"), total_j, row.get("draw_w"))]
    rows += [
        line(markup.named(names.get(job["job"], ""), job["job"]), job["energy_j"], job["draw_w"])
        for job in row["jobs"][-_MAX_JOBS:]
    ]
    others = (("plain work", "plain_j"), ("idle nodes", "idle_j"), ("earlier jobs", "earlier_jobs_j"))
    return rows + [line(who, row[name]) for who, name in others if row[name]]


def _chart(row: Mapping[str, Any]) -> Markup | None:
    """The chart of the rows that are told; None where there are not two."""
    rows: Sequence[Sequence[float | None]] = row.get("chart") or ()
    if len(rows) < 2:
        return None
    ahead = _ahead(row.get("forecast"))
    columns: list[_Line] = [
        [(float(one[0] or 0.0), watts) for one in rows if (watts := one[i]) is not None] for i in range(1, 6)
    ]
    bounds = [[one for one in line if 0 < one[1] < MOST_TOTAL_W] for line in columns[1:3]]
    every = [one for line in (columns[0], *bounds, *columns[3:], ahead) for one in line]
    if not every:
        return None
    begin_s, end_s = float(rows[0][0] or 0.0), max([0.0, *(one[0] for one in every)])
    top_w = (1 + _ROOM) * max([1.0, *(one[1] for one in every)])

    def at(t_s: float, watts: float) -> str:
        across = 100 * (t_s - begin_s) / max(1e-3, end_s - begin_s)
        return f"{across:.1f} {_HEIGHT * (1 - watts / top_w):.1f}"

    drawn = [one[1] for one in columns[0]] or [0.0]
    told = f"{markup.roughly(end_s - begin_s)}: {min(drawn):.0f} to {max(drawn):.0f} W"
    return markup.template(
        "power.html",
        height=f"{_HEIGHT:g}",
        label=f"The draw over {told}; {_bounds(row)}",
        band=_band(columns[3], columns[4], at),
        bounds=[path for line in bounds if (path := _stepped(line, at))],
        forecast=_straight(ahead, at),
        draw=[path for line in _whole(rows) if (path := _straight(line, at))],
    )


def _ahead(forecast: Mapping[str, Any] | None) -> _Line:
    """The forecast, from now on."""
    if not forecast or not forecast.get("mean_w"):
        return []
    step_s = float(forecast.get("step_s") or 1.0)
    return [(number * step_s, watts) for number, watts in enumerate(forecast["mean_w"], start=1)]


def _whole(rows: Sequence[Sequence[float | None]]) -> list[_Line]:
    """The draw in pieces: the line is broken where it was not known."""
    pieces: list[_Line] = [[]]
    for t_s, watts, *_ in rows:
        if watts is None or t_s is None:
            pieces.append([])
        else:
            pieces[-1].append((t_s, watts))
    return pieces


def _straight(line: _Line, at: Callable[[float, float], str]) -> str:
    return "M" + " L".join(at(*one) for one in line) if line else ""


def _stepped(line: _Line, at: Callable[[float, float], str]) -> str:
    """A line that stays at its value until the next one."""
    points: _Line = []
    for t_s, watts in line:
        if points:
            points.append((t_s, points[-1][1]))
        points.append((t_s, watts))
    return _straight(points, at)


def _band(low: _Line, high: _Line, at: Callable[[float, float], str]) -> str:
    return _straight([*low, *reversed(high)], at) + "Z" if low and high else ""


VIEW = View(name="power", title="Power", section="power", html=html)
