"""Power: draw, bounds and what is expected on one axis, and who has drawn what; how to set a corridor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from dask_hpc_policies.power.bill import J_PER_KWH
from dask_hpc_policies.power.checks import MOST_TOTAL_W
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Column, Markup
from dask_hpc_widgets.views.table import EVERY, Cell, Search, Table, named, text
from dask_hpc_widgets.views.view import Picture, View

#: Height of the drawing, which is 100 wide, and the room above the highest line, as a share.
_HEIGHT, _ROOM = 40.0, 0.05
#: Seconds until the chart is drawn anew, and points of a line.
_CHART_S, _POINTS = 2.0, 48
#: Jobs, and caps of hosts, beyond these are counted and not shown.
_MAX_JOBS, _MAX_CAPS = 20, 10
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


class _Chart:
    """The chart of what is told; drawn when it is sent, and seldom another one."""

    __slots__ = ("_row", "_stamp")

    def __init__(self, row: Mapping[str, Any], now_s: float) -> None:
        self._row, self._stamp = row, now_s // _CHART_S

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Chart) and self._stamp == other._stamp

    __hash__ = None  # type: ignore[assignment]

    def cell(self) -> Cell:
        chart = _chart(self._row)
        return [] if chart is None else [["svg", str(chart)], ["soft", _LEGEND]]


def html(picture: Picture) -> Markup:
    """What is drawn in words, the chart, what was outside, the bill, and what else is done about it."""
    return table(picture).html(float(picture.status.get("now_s", 0.0)))


def table(picture: Picture, search: Search = EVERY) -> Table:
    """The same as data."""
    row = picture.section("power")
    if not row:
        return Table(caption="Power", cells=list, note=f"{_NO_WATTS}{_HOW}.")
    lines: dict[Hashable, Cell | _Chart] = {"drawn": [["strong", _drawn(row)]]}
    if row.get("mode") is None:
        note = f"No corridor is set: {_HOW}."
        return Table(caption="Power", kind="text", rows=lines, cells=_line, note=note)
    lines["drawn"] = [["strong", _drawn(row)], f"; {_bounds(row)}."]
    if row.get("problem"):
        lines["problem"] = [["alert", text(row["problem"])]]
    now_s = float(picture.status.get("now_s", 0.0))
    lines["chart"] = _Chart(row, now_s)
    outside = f"{row['outside_ws']:.0f} W s outside, over {markup.roughly(row['outside_s'])}"
    lines["outside"] = [f"Since it was set: {outside}."]
    lines |= {f"done {i}": line for i, line in enumerate([*_planned(row, now_s), *_done(row)])}
    hidden = max(0, len(row["jobs"]) - _MAX_JOBS) + row.get("more_jobs", 0)
    note = f'{counted(hidden, "more job")} not shown; rt.power()["bill"] has all.' if hidden > 0 else ""
    bill = Table(
        caption="Who has drawn what", columns=_BILL, rows=_bill(picture, row), cells=_who, note=note
    )
    return Table(caption="Power", kind="text", rows=lines, cells=_line, more=(bill,))


def _line(line: Cell | _Chart) -> list[Cell]:
    return [line.cell() if isinstance(line, _Chart) else line]


def _drawn(row: Mapping[str, Any]) -> str:
    draw_w = row.get("draw_w")
    return "The draw is not known" if draw_w is None else f"{draw_w:.0f} W ({text(row['label'])})"


def _bounds(row: Mapping[str, Any]) -> str:
    told = [
        f"{word} {row[name]:.0f} W"
        for word, name in (("at least", "lower_w"), ("at most", "upper_w"))
        if row.get(name) is not None and 0 < row[name] < MOST_TOTAL_W
    ]
    return f"{' and '.join(told) or 'no bounds now'} ({row['mode']})"


def _planned(row: Mapping[str, Any], now_s: float) -> Iterable[Cell]:
    """What is to come."""
    if row.get("min_w") is not None:
        beyond_w = row.get("unexplained_w")
        beyond = f", with {beyond_w:.0f} W that nothing explains" if beyond_w else ""
        yield [f"Expected at the present sizes: {row['min_w']:.0f} to {row['max_w']:.0f} W{beyond}."]
    if row.get("next_step"):
        after_s, lower_w, upper_w = row["next_step"]
        then = _bounds({**row, "lower_w": lower_w, "upper_w": upper_w})
        yield ["In ", ["left", round(now_s + after_s)], f": {then}."]
    if reason := (row.get("plan") or {}).get("reason"):
        yield [text(reason)]


def _done(row: Mapping[str, Any]) -> Iterable[Cell]:
    """What is done beside sizes of jobs."""
    if reason := row.get("withheld", {}).get("reason"):
        yield [text(reason)]
    caps = row.get("caps", ())
    for host in caps[:_MAX_CAPS]:
        watts = "" if host["watts"] is None else f" at {host['watts']:.0f} W"
        told = [f"Cap of {host['host']}{watts}", host["state"], *filter(None, [host.get("reason")])]
        yield [text(": ".join(told))]
    if len(caps) > _MAX_CAPS:
        yield [f"{len(caps) - _MAX_CAPS} more hosts have a cap; rt.power() has all."]


def _bill(picture: Picture, row: Mapping[str, Any]) -> dict[Hashable, tuple[Any, ...]]:
    """What a row is made of: who, maybe a job; joules and watts; what a MWh costs, and a kWh emits."""
    settings = picture.status.get("settings", {})
    rates = settings.get("power_price"), settings.get("power_carbon")
    names = {job["id"]: job["name"] for job in picture.jobs}
    rows: dict[Hashable, tuple[Any, ...]] = {"all": ("all", "", row["energy_j"], row.get("draw_w"), *rates)}
    for job in row["jobs"][-_MAX_JOBS:]:
        id = job["job"]
        rows[f"job {id}"] = (names.get(id, ""), id, job["energy_j"], job["draw_w"], *rates)
    others = (("plain work", "plain_j"), ("idle nodes", "idle_j"), ("earlier jobs", "earlier_jobs_j"))
    return {**rows, **{who: (who, "", row[name], None, *rates) for who, name in others if row[name]}}


def _who(fields: Sequence[Any]) -> list[Cell]:
    name, job, energy_j, watts, price, carbon = fields
    kwh = energy_j / J_PER_KWH
    return [
        named(name, job) if job else [["strong", name] if name == "all" else name],
        [f"{kwh:.4g}"],
        ["" if watts is None else f"{watts:.0f}"],
        ["" if price is None else f"{kwh / 1000 * price:.4g}"],
        ["" if carbon is None else f"{kwh * carbon:.4g}"],
    ]


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
    line = [(number * step_s, watts) for number, watts in enumerate(forecast["mean_w"], start=1)]
    # the last one is always there
    return line[::-1][:: -(-len(line) // _POINTS)][::-1]


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
    """A line through the points; those amid others as high are left out."""
    last = len(line) - 1
    bends = (
        one
        for i, one in enumerate(line)
        if i in (0, last) or not line[i - 1][1] == one[1] == line[i + 1][1]
    )
    return "M" + " L".join(at(*one) for one in bends) if line else ""


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


VIEW = View(name="power", title="Power", section="power", html=html, table=table)
