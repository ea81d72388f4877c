"""The corridor for those who look at the scheduler: its page on the dashboard, its gauges on /metrics."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from helpers import live, until

import dask_hpc
from dask_hpc.scheduler.power.draw import Sample
from dask_hpc.scheduler.power.recent import MOST_ROWS, Recent

pytest.importorskip("bokeh")
pytest.importorskip("prometheus_client")

from panel_pages import DASHBOARD, get

from dask_hpc.scheduler.dashboard.power import PowerPanel, heading
from dask_hpc.scheduler.rpc import service


def gauges(text: str) -> dict[str, float]:
    """Samples of ours on the page of metrics."""
    lines = [line for line in text.splitlines() if line.startswith("dask_hpc_power_")]
    return {name: float(value) for name, value in map(str.split, lines)}


def shown(panel: PowerPanel, s: Any) -> str:
    panel.show(service.of(s).status)
    return str(panel.root.title.text)


@live(workers=2, scheduler_kwargs=DASHBOARD)
async def test_the_page_and_the_gauges_show_the_corridor_while_it_is_set(c, s, *workers):
    panel = PowerPanel(10, False)
    rt = await dask_hpc.install(c, tick_s=0.02)
    assert gauges(await get(s, "/metrics")) == {}
    assert shown(panel, s).startswith("No corridor is set")
    await rt.update(power_model_idle_w=70, power_model_busy_w=200)
    assert shown(panel, s) == "140 W (modelled)\nNo corridor is set."
    await rt.corridor(upper_w=300)
    recent = (await rt.power())["recent"]
    assert all(row[0] <= 0 and row[1:4] == [140, 0, 300] for row in recent)
    await until(lambda: shown(panel, s) and len(panel.source.data["t_s"]) > 1, "two points")
    assert (await rt.power())["recent"]
    # what is asked twice a second has no rows of the past
    assert "recent" not in (await rt.status())["power"]
    assert panel.source.data["upper_w"][-1] == 300
    assert panel.source.data["max_w"][-1] == 140
    text = shown(panel, s)
    assert text.startswith("140 W (modelled); at most 300 W (enforce); expected 140 to 140 W\n0.")
    assert panel.root.y_range.end == pytest.approx(330)
    found = gauges(await get(s, "/metrics"))
    assert (found["dask_hpc_power_draw_watts"], found["dask_hpc_power_upper_watts"]) == (140, 300)
    assert found["dask_hpc_power_measured_nodes"] == 0
    assert 0 < found["dask_hpc_power_energy_joules_total"] <= (await rt.power())["energy_j"]
    await rt.corridor(clear=True)
    assert gauges(await get(s, "/metrics")) == {}
    assert shown(panel, s) == "140 W (modelled)\nNo corridor is set."
    await rt.corridor(upper_w=300)
    assert gauges(await get(s, "/metrics"))
    await rt.uninstall()
    assert gauges(await get(s, "/metrics")) == {}


def test_what_is_not_known_is_no_number() -> None:
    assert heading({"draw_w": None, "mode": None}) == "The draw is not known\nNo corridor is set."
    row = {"draw_w": None, "mode": "monitor", "lower_w": 0.0, "upper_w": 1e9, "energy_j": None}
    assert heading(row) == "The draw is not known; no bounds now (monitor)\n0.0 kJ, 0 W s outside"
    recent = Recent()
    recent.add(Sample(0.0), None, None)
    assert recent.told(1.0) == [[-1.0, None, None, None, None, None]]


def test_rows_reach_from_the_beginning_to_now_however_long_that_is() -> None:
    recent = Recent()
    for number in range(4000):
        recent.add(Sample(float(number), "measured", number), (0.0, 1.0, 2.0), None)
        assert len(recent.rows) < MOST_ROWS
    times = [row[0] for row in recent.rows]
    assert times[0] == 0
    assert times[-1] > 3960
    assert len(times) >= MOST_ROWS // 2 - 1
    assert max(b - a for a, b in pairwise(times)) == times[1]
    # those that have come last are about as far apart
    assert times[1] <= 8 * (times[-1] - times[-2])


def test_rows_are_a_quarter_of_a_second_apart_at_first() -> None:
    recent = Recent()
    for number in range(11):
        recent.add(Sample(number / 10, "measured", 1.0), None, None)
    assert [row[0] for row in recent.rows] == [0.0, 0.3, 0.6, 0.9]
