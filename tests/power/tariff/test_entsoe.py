"""Prices of ENTSO-E: both curve types, every resolution, several auctions; and what is no such document."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.scheduler.power.tariff.entsoe import read_xml
from dask_hpc.scheduler.power.tariff.lines import LineError
from dask_hpc_policies.power.tariff import Series

NAMESPACE = "urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3"
#: 2026-01-31T23:00Z.
DAY_S = 1769900400.0


def period(points: dict[int, float], begin: str, end: str, resolution: str = "PT60M") -> str:
    rows = "\n".join(
        f"<Point><position>{place}</position><price.amount>{price}</price.amount></Point>"
        for place, price in points.items()
    )
    return (
        f"<Period><timeInterval><start>{begin}</start><end>{end}</end></timeInterval>\n"
        f"<resolution>{resolution}</resolution>\n{rows}</Period>"
    )


def curve(*periods: str, kind: str = "A03", more: str = "") -> str:
    return (
        f"<TimeSeries>{more}<currency_Unit.name>EUR</currency_Unit.name>"
        f"<price_Measure_Unit.name>MWH</price_Measure_Unit.name><curveType>{kind}</curveType>\n"
        f"{''.join(periods)}</TimeSeries>\n"
    )


def auction(number: int) -> str:
    name = "classificationSequence_AttributeInstanceComponent.position"
    return f"<{name}>{number}</{name}>"


def document(*curves: str) -> str:
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n<Publication_MarketDocument xmlns="{NAMESPACE}">\n'
    span = "<period.timeInterval><start>2000-01-01T00:00Z</start></period.timeInterval>\n"
    return f"{head}{span}{''.join(curves)}</Publication_MarketDocument>\n"


def prices(series: Series) -> list[tuple[float, float]]:
    return [((time - DAY_S) / 60, value) for time, value in series.columns["price"]]


def test_a_curve_of_type_a03_leaves_out_what_repeats_itself() -> None:
    found = read_xml(
        document(
            curve(period({1: 50, 3: -2.5}, "2026-01-31T23:00Z", "2026-02-01T03:00Z")),
            curve(period({1: 70, 2: 80}, "2026-02-01T03:00Z", "2026-02-01T04:00Z", "PT15M")),
        )
    )
    assert prices(found) == [(0, 50), (120, -2.5), (240, 70), (255, 80)]
    assert (found.absolute, found.currency, found.gaps, found.end_s) == (True, "EUR", 0, DAY_S + 5 * 3600)


def test_a_point_that_is_missing_of_type_a01_is_a_gap_as_is_time_between_periods() -> None:
    found = read_xml(
        document(
            curve(
                period({1: 50, 4: 60}, "2026-01-31T23:00Z", "2026-02-01T03:00Z"),
                period({1: 7}, "2026-02-01T05:00Z", "2026-02-01T06:00Z"),
                kind="A01",
            )
        )
    )
    assert prices(found) == [(0, 50), (180, 60), (360, 7)]
    assert found.gaps == 3


def test_the_first_auction_counts_and_others_fill_what_it_lacks() -> None:
    first = curve(period({1: 10, 2: 11}, "2026-02-01T00:00Z", "2026-02-01T02:00Z"), more=auction(1))
    second = curve(period({1: 90, 4: 94}, "2026-01-31T23:00Z", "2026-02-01T04:00Z"), more=auction(2))
    assert prices(read_xml(document(second, first))) == [(0, 90), (60, 10), (120, 11), (180, 94)]
    late = curve(period({1: 90}, "2026-01-31T23:00Z", "2026-02-01T04:00Z"), more=auction(2))
    assert prices(read_xml(document(first, late))) == [(0, 90), (60, 10), (120, 11), (180, 90)]
    same = curve(period({1: 90, 2: 91}, "2026-02-01T00:00Z", "2026-02-01T02:00Z"), more=auction(2))
    assert prices(read_xml(document(first, same))) == [(60, 10), (120, 11)]


def test_prices_of_a_kwh_are_those_of_as_much_of_a_mwh() -> None:
    text = document(curve(period({1: 0.05}, *HOUR)))
    assert prices(read_xml(text.replace(">MWH<", ">KWH<"))) == [(0, 50)]


@given(
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    resolution=st.sampled_from([("PT15M", 15), ("PT30M", 30), ("PT60M", 60)]),
)
def test_both_types_say_the_same(values: list[int], resolution: tuple[str, int]) -> None:
    name, minutes = resolution
    last = minutes * len(values)
    end = f"{2 + last // 1440:02d}T{last % 1440 // 60:02d}:{last % 60:02d}Z"
    points = {place: float(value) for place, value in enumerate(values, start=1)}
    changes = {place: value for place, value in points.items() if points.get(place - 1) != value}
    both = []
    for kind, rows in (("A01", points), ("A03", changes)):
        text = document(curve(period(rows, "2026-02-02T00:00Z", f"2026-02-{end}", name), kind=kind))
        found = read_xml(text)
        assert found.gaps == 0
        held = dict(found.columns["price"])
        value, row = 0.0, []
        for number in range(len(values)):
            value = held.get(DAY_S + 25 * 3600 + 60 * minutes * number, value)
            row.append(value)
        both.append(row)
    assert both[0] == both[1] == values


HOUR = ("2026-01-31T23:00Z", "2026-02-01T00:00Z")


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b">]>\n<Publication_MarketDocument/>', 1, "document type"),
        ('<?xml version="1.0"?>\n<!DOCTYPE x SYSTEM "file:///etc/passwd">\n<x/>', 2, "document type"),
        ("<GL_MarketDocument/>", 1, "allowed: Publication_MarketDocument"),
        (
            "<Acknowledgement_MarketDocument>\n<Reason><text>No matching data found</text></Reason>"
            "</Acknowledgement_MarketDocument>",
            2,
            "No matching data found",
        ),
        ("<Publication_MarketDocument>\n<TimeSeries>", 2, "no XML"),
        (document(), None, "no TimeSeries"),
        (document(curve(period({}, *HOUR))), None, "no Point"),
        (document(curve(period({1: 5, 2: 6}, *HOUR))), 8, "position is 2"),
        (document(curve(period({1: 5, 3: 6, 2: 7}, *HOUR, "PT15M"))), 9, "position is 2"),
        (document(curve(period({1: float("nan")}, *HOUR))), 7, "price.amount is 'nan'"),
        (document(curve(period({1: 5}, *HOUR, "P1Y"))), 6, "resolution is 'P1Y'"),
        (document(curve(period({1: 5}, HOUR[0], "2026-01-31T23:50Z", "PT15M"))), 5, "lasts 3000 s"),
        (document(curve(period({1: 5}, "2026-01-31T23:00", HOUR[1]))), 5, "without a zone"),
        (document(curve(period({1: 5}, *HOUR), kind="A02")), 4, "curveType is 'A02'"),
        (
            document(curve(period({1: 5}, *HOUR), period({1: 6, 2: 7}, *HOUR, "PT15M"))),
            7,
            "overlaps that of line 5",
        ),
        (
            document(curve(period({1: 5}, *HOUR)) + curve(period({1: 5}, *HOUR)).replace("EUR", "PLN")),
            8,
            "'PLN'",
        ),
        (document(curve(period({1: 5}, *HOUR)).replace(">MWH<", ">TWH<")), 4, "allowed: MWH, KWH"),
        (
            document(
                *(curve(period({1: 5}, *HOUR), more=f"<in_Domain.mRID>{of}</in_Domain.mRID>") for of in "AB")
            ),
            8,
            "in_Domain.mRID is 'B' after 'A'",
        ),
        ("<a>" * 50, 1, "allowed: Publication"),
        (document("<b>" * 50), 4, "nested deeper"),
        (document(f"<b>{'x' * 5000}</b>"), 4, "longer than 1000"),
    ],
)
def test_what_is_no_such_document_is_told_with_its_line(text: str, line: int | None, part: str) -> None:
    with pytest.raises(LineError) as caught:
        read_xml(text)
    assert part in str(caught.value)
    assert caught.value.line == line


def test_the_same_period_twice_counts_once() -> None:
    one = curve(period({1: 5}, *HOUR))
    assert prices(read_xml(document(one, one))) == [(0, 5)]


def test_a_plan_that_rises_beyond_the_end_of_its_prices_has_no_length_below_0(tmp_path: Path) -> None:
    prices = curve(period({1: 150, 2: 50}, "2026-01-31T23:00Z", "2026-02-01T01:00Z"))
    (tmp_path / "s.xml").write_text(document(prices))
    (tmp_path / "r.yaml").write_text("[{above: 100, upper_w: 800}, {upper_w: 4000}]")
    # 3,200 W more take nine hours
    given = (str(tmp_path / "s.xml"), "--rules", str(tmp_path / "r.yaml"), "--ramp", "0.1")
    text = run("power", "plan", *given).stdout
    rows = [line.split() for line in text.splitlines() if line.startswith("2026-")]
    assert rows[-1][-2:] == ["4000", "-"]
    assert all(float(row[-1]) > 0 for row in rows[:-1])
