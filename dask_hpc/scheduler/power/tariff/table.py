"""A series as CSV.

A heading, then a row for each time: ``time`` (with its zone) or ``t_s`` (seconds from when the corridor is
set), and one or more of ``lower_w``, ``upper_w`` (watts, or text such as ``2 kW``), ``price`` (money per MWh)
and ``carbon`` (g of CO2 per kWh). Other columns are not looked at. An empty cell is a gap.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from dask_hpc.scheduler.power.tariff.lines import MOST_POINTS, LineError, moment, number
from dask_hpc_policies.params import ParameterError, parse_power, suggestion
from dask_hpc_policies.power.bounds import MOST_W
from dask_hpc_policies.power.tariff import LIMITS, SIGNALS, Series

_COLUMNS = (*LIMITS, *SIGNALS)
_TIMES = ("time", "t_s")
#: How tables say that there is no value.
_NONE = frozenset({"", "-", "n/e", "n/a", "nan", "null", "none"})


def read_table(text: str) -> Series:
    """The series of a table.

    Raises
    ------
    LineError
        For columns that are missing or doubled, times that do not rise, and what is no value.
    """
    rows = _rows(text)
    line, first = next(rows, (1, []))
    heading = [name.strip().lower() for name in first]
    for name in (*_TIMES, *_COLUMNS):
        if heading.count(name) > 1:
            raise LineError(line, f"the column {name} stands twice")
    names = [name for name in _COLUMNS if name in heading]
    clocks = [name for name in _TIMES if name in heading]
    if len(clocks) != 1 or not names:
        close = "".join(filter(None, (suggestion(name, (*_TIMES, *_COLUMNS)) for name in heading)))
        raise LineError(
            line,
            f"the heading has {', '.join(heading)[:200] or 'nothing'}; needed: one of {', '.join(_TIMES)}, "
            f"and at least one of {', '.join(_COLUMNS)}{close[:200]}",
        )
    absolute = clocks[0] == "time"
    at = heading.index(clocks[0])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    before_s, gaps = -1.0, 0
    for count, (line, row) in enumerate(rows, start=1):
        if count > MOST_POINTS:
            raise LineError(line, f"more than {MOST_POINTS} rows; give fewer")
        cells = dict(zip(heading, row, strict=False))
        text_s = row[at] if at < len(row) else ""
        time_s = moment(text_s, line, "time") if absolute else number(text_s, line, "t_s")
        if time_s <= before_s:
            what = "below 0" if before_s < 0 else "not after the one before; times rise"
            raise LineError(line, f"{clocks[0]} is {text_s.strip()}, {what}")
        before_s = time_s
        for name in names:
            cell = cells.get(name, "").strip()
            if cell.lower() in _NONE:
                gaps += 1
            else:
                found[name].append((time_s, _value(name, cell, line)))
        pair = [found[name][-1][1] if found.get(name) else None for name in LIMITS]
        if pair[0] is not None and pair[1] is not None and pair[0] > pair[1]:
            raise LineError(
                line, f"lower_w is {pair[0]:g} W, above upper_w, which is {pair[1]:g} W; swap them"
            )
    for name, points in found.items():
        if not points:
            raise LineError(None, f"the column {name} has no value below its heading")
    return Series(
        columns={name: tuple(points) for name, points in found.items()}, absolute=absolute, gaps=gaps
    )


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with its line."""
    heading = text.lstrip().partition("\n")[0]
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff")), delimiter=";" if ";" in heading else ",")
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise LineError(reader.line_num, f"no CSV: {error}") from None
        if row is None:
            return
        if any(cell.strip() for cell in row):
            yield reader.line_num, row


def _value(name: str, cell: str, line: int) -> float:
    if name in SIGNALS:
        return number(cell, line, name)
    try:
        watts = parse_power(cell)
    except ParameterError as error:
        raise LineError(line, f"{name}: {error}") from None
    if watts > MOST_W:
        raise LineError(line, f"{name} is {watts:g} W; allowed: 0 to {MOST_W:g} W")
    return watts
