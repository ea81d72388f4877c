"""The view of power: draw, bounds, forecast on one axis, the bill, and how a corridor is set."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_widgets import views
from dask_hpc_widgets.views import Picture
from dask_hpc_widgets.views.power import VIEW, table

EVIL = "<script>alert('x')</script>\"&"


def row(**changes: Any) -> dict[str, Any]:
    return {
        "draw_w": 512.0, "label": "measured", "mode": "enforce", "lower_w": 300.0, "upper_w": 600.0,
        "min_w": 480.0, "max_w": 560.0, "energy_j": 7.2e6, "idle_j": 1.8e6, "plain_j": 1.8e6,
        "earlier_jobs_j": 0.0, "outside_ws": 90.0, "outside_s": 4.0, "problem": "",
        "next_step": [90.0, 0.0, 400.0], "plan": {"reason": "20 W above; lower what runs"},
        "jobs": [{"job": "heat-1", "draw_w": 200.0, "energy_j": 3.6e6}],
        "forecast": {"model": "naive", "mean_w": [510.0, 520.0], "step_s": 1.0},
        "chart": [[-4.0, 500, 300, 600, 480, 560], [-2.0, None, 300, 600, 480, 560],
                  [-1.0, 505, 300, 600, 480, 560], [0.0, 512, 300, 600, 480, 560]],
        "caps": [{"host": "n1", "watts": 120.0, "state": "written"},
                 {"host": "n2", "watts": None, "state": "refused", "reason": "no leave"}],
        "withheld": {"nodes": ["n3"], "reason": "plain work has 1 node of 2"}, **changes,
    }  # fmt: skip


def shown(power: Any, **status: Any) -> str:
    jobs = [{"id": "heat-1", "name": EVIL}]
    return str(VIEW.body(Picture(status={"power": power, **status}, jobs=jobs)))


def paths(text: str) -> list[str]:
    return re.findall(r'<path d="([^"]*)"', text)


def test_it_is_registered_and_says_how_a_corridor_is_set() -> None:
    assert views.named("power") is VIEW
    assert "rt.corridor(" in shown(None)
    assert "hpc.power.model.idle" in shown(None)
    text = shown({"draw_w": 140.0, "label": "modelled", "mode": None})
    assert "140 W (modelled)" in text
    assert "No corridor is set: rt.corridor(" in text


def test_draw_bounds_and_forecast_are_on_one_axis_and_said_in_words() -> None:
    text = shown(row())
    assert "512 W (measured)" in text
    assert "at least 300 W and at most 600 W (enforce)" in text
    band, lower, upper, forecast, *draw = paths(text)
    # the draw is broken where it was not known; 4 s of 6 are past
    assert [one.count("L") for one in draw] == [0, 1]
    assert draw[0].startswith("M0.0 ")
    assert draw[1].split()[-2] == "L66.7"
    assert forecast.split()[-2] == "L100.0"
    assert band.endswith("Z")
    # a bound that stays is two points, whatever is known of the time between
    assert [line.count("L") for line in (lower, upper)] == [1, 1]
    heights = [float(one.split()[-1]) for one in (upper, draw[1], lower)]
    assert heights == sorted(heights)
    for said in ("90 W s outside", "In 90 s" if "In 90 s" in text else "In 1.5 min", "at most 400 W",
                 "20 W above", "plain work has 1 node of 2", "Cap of n1 at 120 W: written",
                 "Cap of n2: refused: no leave"):  # fmt: skip
        assert said in text
    assert 'aria-label="The draw over' in text
    assert "sizes: 480 to 560 W." in text
    assert "sizes: 480 to 560 W, with 40 W that nothing explains." in shown(row(unexplained_w=40.0))


def test_the_chart_is_small_and_seldom_another_one() -> None:
    many = {"model": "naive", "mean_w": [500.0 + i % 2 for i in range(3600)], "step_s": 1.0}
    _, _, _, forecast, *_ = paths(shown(row(forecast=many)))
    assert forecast.count("L") < 48
    assert forecast.split()[-2] == "L100.0", "it ends where it did"

    def chart(now_s: float) -> Any:
        return table(Picture(status={"power": row(draw_w=now_s), "now_s": now_s})).rows["chart"]

    assert chart(100.0) == chart(101.9)
    assert chart(100.0) != chart(102.0)


def test_the_bill_is_of_all_and_of_each_and_names_are_escaped() -> None:
    text = shown(row(), settings={"power_price": 100.0, "power_carbon": 300.0})
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text)
    table = [cells[i : i + 5] for i in range(0, len(cells), 5)]
    assert table[0][1:] == ["2", "512", "0.2", "600"]
    assert table[1][1:] == ["1", "200", "0.1", "300"]
    assert [line[0] for line in table[2:]] == ["plain work", "idle nodes"]
    assert EVIL not in text
    # without prices nothing is said of money
    assert re.findall(r"<td[^>]*>(.*?)</td>", shown(row()))[3:5] == ["", ""]


@given(
    st.lists(
        st.tuples(st.floats(-1e5, 0), *[st.none() | st.floats(0, 1e13)] * 5).map(list), max_size=6
    ).map(lambda rows: sorted(rows, key=lambda one: one[0])),
    st.none() | st.just({"mean_w": []}),
)  # fmt: skip
def test_whatever_is_known_of_the_draw_it_does_not_fail(rows: list[list[Any]], forecast: Any) -> None:
    text = shown(row(chart=rows, forecast=forecast, draw_w=None, lower_w=None, upper_w=None))
    assert "failed" not in text
    assert "nan" not in "".join(paths(text))
