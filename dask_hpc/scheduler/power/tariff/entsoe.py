"""Day-ahead prices as the ENTSO-E Transparency Platform gives them: ``Publication_MarketDocument``.

Each ``Period`` has a resolution (15, 30 or 60 minutes) and points with positions. Of a curve of type ``A03``
a point that repeats the one before is left out; of ``A01`` one that is missing is a gap. Where the document
has several auctions (``classificationSequence...position``), the first one counts and others fill
what it lacks.

Rules of the file: the parser sees no document type, hence no entities, and opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn
from xml.parsers import expat

from dask_hpc.scheduler.power.tariff.lines import MOST_POINTS, LineError, moment, number
from dask_hpc_policies.params import shown
from dask_hpc_policies.power.tariff import Series

_ROOT = "Publication_MarketDocument"
_REFUSAL = "Acknowledgement_MarketDocument"
#: Minutes by name.
_RESOLUTIONS = {"PT15M": 15, "PT30M": 30, "PT60M": 60, "PT1H": 60}
#: MWh that a price is for.
_PER_MWH = {"MWH": 1.0, "KWH": 1000.0}
_DEEPEST, _LONGEST = 20, 1000


@dataclass(slots=True)
class _Period:
    line: int
    fields: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: Position, price and line of each point.
    points: list[tuple[str, str, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Curve:
    line: int
    fields: dict[str, tuple[str, int]] = field(default_factory=dict)
    periods: list[_Period] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A period that was read: points rise, all of them from `begin_s` to before `end_s`."""

    order: int
    begin_s: float
    end_s: float
    points: tuple[tuple[float, float], ...]
    gaps: int
    line: int


def read_xml(text: str) -> Series:
    """The prices of a document.

    Raises
    ------
    LineError
        For what is no such document, is about several areas or currencies, or contradicts itself.
    """
    curves = _Reader().read(text)
    if not curves:
        raise LineError(None, "there is no TimeSeries in it")
    currency = _one(curves, "currency_Unit.name")
    _one(curves, "in_Domain.mRID")
    stretches = sorted(
        (_stretch(curve, period) for curve in curves for period in curve.periods if period.points),
        key=lambda one: (one.order, one.begin_s),
    )
    if not stretches:
        raise LineError(None, "there is no Point in it")
    kept: list[_Stretch] = []
    for order in dict.fromkeys(one.order for one in stretches):
        kept = _filled(kept, [one for one in stretches if one.order == order])
    points = [point for one in kept for point in one.points]
    if len(points) > MOST_POINTS:
        raise LineError(None, f"it has {len(points)} points; allowed: {MOST_POINTS}")
    between = sum(after.begin_s > before.end_s for before, after in pairwise(kept))
    return Series(
        columns={"price": tuple(points)},
        absolute=True,
        currency=currency,
        gaps=between + sum(one.gaps for one in kept),
        end_s=kept[-1].end_s,
    )


def _filled(kept: list[_Stretch], more: list[_Stretch]) -> list[_Stretch]:
    """`kept`, and of `more`, which are of one auction, what lies beside it; in order of time."""
    added: list[_Stretch] = []
    for one in more:
        last = added[-1] if added else None
        if last is not None and one.begin_s < last.end_s:
            if (one.begin_s, one.end_s, one.points) != (last.begin_s, last.end_s, last.points):
                raise LineError(
                    one.line,
                    f"the Period overlaps that of line {last.line} and says something else; ask for one "
                    "resolution and one auction",
                )
            continue
        added.append(one)
    found = list(kept)
    for one in added:
        pieces = [(one.begin_s, one.end_s)]
        for other in kept:
            pieces = [
                (begin, end)
                for low, high in pieces
                for begin, end in ((low, min(high, other.begin_s)), (max(low, other.end_s), high))
                if begin < end
            ]
        found += [_cut(one, begin, end) for begin, end in pieces]
    return sorted(found, key=lambda one: one.begin_s)


def _cut(one: _Stretch, begin_s: float, end_s: float) -> _Stretch:
    """The part of a stretch between two times."""
    if (begin_s, end_s) == (one.begin_s, one.end_s):
        return one
    before = [value for time, value in one.points if time <= begin_s][-1:]
    inside = [point for point in one.points if begin_s < point[0] < end_s]
    points = (*((begin_s, value) for value in before), *inside)
    return _Stretch(one.order, begin_s, end_s, points, one.gaps, one.line)


def _stretch(curve: _Curve, period: _Period) -> _Stretch:
    kind, kind_line = curve.fields.get("curveType", ("A01", curve.line))
    if kind not in ("A01", "A03"):
        raise LineError(kind_line, f"curveType is {shown(kind)}; allowed: A01, A03")
    unit, unit_line = curve.fields.get("price_Measure_Unit.name", ("MWH", curve.line))
    if unit.upper() not in _PER_MWH:
        raise LineError(
            unit_line, f"price_Measure_Unit.name is {shown(unit)}; allowed: {', '.join(_PER_MWH)}"
        )
    order, order_line = curve.fields.get(
        "classificationSequence_AttributeInstanceComponent.position", ("1", curve.line)
    )
    for name in ("start", "end", "resolution"):
        if name not in period.fields:
            raise LineError(period.line, f"the Period has no {name}")
    begin_s, end_s = (moment(*period.fields[name], name) for name in ("start", "end"))
    resolution, line = period.fields["resolution"]
    if resolution not in _RESOLUTIONS:
        raise LineError(line, f"resolution is {shown(resolution)}; allowed: {', '.join(_RESOLUTIONS)}")
    step_s = 60.0 * _RESOLUTIONS[resolution]
    count = (end_s - begin_s) / step_s
    if count < 1 or not count.is_integer() or count > MOST_POINTS:
        raise LineError(
            period.line,
            f"the Period lasts {end_s - begin_s:g} s; allowed: 1 to {MOST_POINTS} times "
            f"its resolution, {resolution}",
        )
    points, before = [], 0
    for place, price, at_line in period.points:
        position = _whole(place, at_line, "position")
        if not before < position <= count:
            raise LineError(
                at_line, f"position is {position}; allowed here: {before + 1} to {count:g}, rising"
            )
        value = number(price, at_line, "price.amount") * _PER_MWH[unit.upper()]
        points.append((begin_s + (position - 1) * step_s, value))
        before = position
    # a curve of type A03 leaves out what repeats itself, but never its first point
    first = round((points[0][0] - begin_s) / step_s) if points else int(count)
    missing = first if kind == "A03" else int(count) - len(points)
    return _Stretch(
        _whole(order, order_line, "position of the auction"),
        begin_s,
        end_s,
        tuple(points),
        missing,
        period.line,
    )


def _whole(text: str, line: int, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise LineError(line, f"{name} is {shown(text)}; give a whole number")
    return int(text)


def _one(curves: list[_Curve], name: str) -> str:
    """What all of them say under that name; empty: none says anything."""
    found = ""
    for curve in curves:
        text, line = curve.fields.get(name, ("", curve.line))
        if found and text and text != found:
            raise LineError(line, f"{name} is {shown(text)} after {shown(found)}; give one document for each")
        found = found or text
    return found


class _Reader:
    """Keeps what counts of a document, with the lines."""

    def __init__(self) -> None:
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.ExternalEntityRefHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._more
        self._path: list[str] = []
        self._text = ""
        self._line = 0
        self._point: dict[str, str] = {}
        self._point_line = 0
        self._curves: list[_Curve] = []
        self._points = 0

    def read(self, text: str) -> list[_Curve]:
        """The curves of a document."""
        try:
            # the text is decoded: what the document says of its encoding no longer holds
            self._parser.Parse(text, True)
        except expat.ExpatError as error:
            raise LineError(error.lineno, f"no XML: {expat.ErrorString(error.code)}") from None
        return self._curves

    def _refuse(self, *_: object) -> NoReturn:
        raise LineError(
            self._parser.CurrentLineNumber,
            "a document type or an entity is declared; documents with one are not read",
        )

    def _start(self, name: str, _: dict[str, str]) -> None:
        line = self._parser.CurrentLineNumber
        name = name.rpartition(":")[2]
        if not self._path and name not in (_ROOT, _REFUSAL):
            raise LineError(line, f"the document is a {shown(name)}; allowed: {_ROOT} (day-ahead prices)")
        if len(self._path) >= _DEEPEST:
            raise LineError(line, f"elements are nested deeper than {_DEEPEST}")
        self._path.append(name)
        self._text, self._line = "", line
        match self._path[1:]:
            case ["TimeSeries"]:
                self._curves.append(_Curve(line))
            case ["TimeSeries", "Period"]:
                self._curves[-1].periods.append(_Period(line))
            case ["TimeSeries", "Period", "Point"]:
                self._point, self._point_line = {}, line

    def _more(self, text: str) -> None:
        self._text += text
        if len(self._text) > _LONGEST:
            raise LineError(self._line, f"{self._path[-1]} is longer than {_LONGEST} characters")

    def _end(self, _: str) -> None:
        text, line = self._text.strip(), self._line
        match self._path:
            case [root, "Reason", "text"] if root == _REFUSAL:
                raise LineError(line, f"the platform had no data: {text}")
            case [_, "TimeSeries", name]:
                self._curves[-1].fields[name] = text, line
            case [_, "TimeSeries", "Period", "resolution"]:
                self._curves[-1].periods[-1].fields["resolution"] = text, line
            case [_, "TimeSeries", "Period", "timeInterval", name]:
                self._curves[-1].periods[-1].fields[name] = text, line
            case [_, "TimeSeries", "Period", "Point", name]:
                self._point[name] = text
            case [_, "TimeSeries", "Period", "Point"]:
                self._add_point()
        self._path.pop()
        self._text = ""

    def _add_point(self) -> None:
        line, point = self._point_line, self._point
        for name in ("position", "price.amount"):
            if name not in point:
                raise LineError(line, f"the Point has no {name}")
        self._points += 1
        if self._points > MOST_POINTS:
            raise LineError(line, f"more than {MOST_POINTS} points; give fewer")
        self._curves[-1].periods[-1].points.append((point["position"], point["price.amount"], line))
