"""What a corridor is when it is asked for, and what it has done at a tick: the rules alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dask_hpc.errors import CorridorError
from dask_hpc.scheduler.power.corridor import Corridor
from dask_hpc.scheduler.power.counted import counted
from dask_hpc.scheduler.power.draw import Sample
from dask_hpc.scheduler.power.request import read_wanted, wanted
from dask_hpc_policies.power.bounds import MOST_W
from dask_hpc_policies.power.tariff import Series
from dask_hpc_policies.ranges import MOST_NODE_W

PRICES = Series(columns={}, absolute=False)


@pytest.mark.parametrize(
    ("mode", "levers", "label", "asked"),
    [
        ("enforce", ("cap",), "measured", [(900.0, 700.0)]),
        ("enforce", ("cap",), "unavailable", []),
        ("enforce", (), "measured", ["end"]),
        ("monitor", ("cap",), "measured", ["end"]),
        (None, ("cap",), "measured", ["end"]),
    ],
)
def test_hosts_are_capped_where_that_is_a_lever_and_a_corridor_holds(
    mode: str | None, levers: tuple[str, ...], label: Any, asked: list[Any]
) -> None:
    said: list[Any] = []
    corridor: Any = object.__new__(Corridor)
    corridor._wanted = None if mode is None else wanted(0.0, upper_w=900, mode=mode)
    corridor._state = SimpleNamespace(settings=SimpleNamespace(power_levers=levers))
    corridor._books = SimpleNamespace(draw=SimpleNamespace(hosts=lambda now_s: {}))
    corridor._caps = SimpleNamespace(
        end=lambda: said.append("end"), look=lambda upper_w, total_w, hosts: said.append((upper_w, total_w))
    )
    corridor._cap(Sample(1.0, total_w=700.0, label=label))
    assert said == asked


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "no bounds; give lower_w and upper_w"),
        ({"upper_w": 5, "mode": "enforced"}, "mode is 'enforced'; allowed: enforce, advise, monitor"),
        ({"upper_w": 5, "over": "2 days"}, "over is '2 days'; allowed: 0 s"),
        ({"upper_w": 5, "over": 1e-4}, "over is 0.0001; allowed: 0 s"),
        ({"upper_w": 5, "ramp_w_s": 0}, "ramp_w_s is 0; allowed: above 0 W/s"),
        ({"upper_w": 5, "rules": "- {upper_w: 1}"}, "give series, or leave rules out"),
        ({"series": PRICES, "lower_w": 1}, "a series stands in place of"),
        ({"series": PRICES, "schedule": [[0, 1, 2]]}, "a series stands in place of"),
        ({"lower_w": 5, "upper_w": 4}, "lower_w is 5 W, above upper_w, which is 4 W; swap them"),
        ({"upper_w": 1e30}, "upper_w is 1e"),
        ({"schedule": []}, r"schedule is \[\]; allowed: 1 to"),
        ({"schedule": "abc"}, "schedule is 'abc'; allowed: 1 to"),
        ({"schedule": 7}, "schedule is 7; allowed: 1 to"),
        ({"schedule": ["abc"]}, "step 1 is 'abc'; give"),
        ({"schedule": [7]}, "step 1 is 7; give"),
        ({"schedule": [[0, 1]]}, r"step 1 is \[0, 1\]; give"),
        ({"schedule": [[0, 1, 2], [0, 1, 2]]}, "step 2: t_s is 0 s, not after 0 s; times rise"),
    ],
)
def test_a_corridor_that_cannot_be_says_what_is_wrong(given: dict[str, Any], text: str) -> None:
    with pytest.raises(CorridorError, match=text):
        wanted(10.0, **given)


def test_what_holds_when_bounds_and_a_schedule_are_given() -> None:
    assert wanted(10.0, lower_w=1).bounds.steps == ((10.0, 1.0, MOST_W),)
    assert wanted(10.0, upper_w=2).bounds.steps == ((10.0, 0.0, 2.0),)
    assert wanted(10.0, lower_w=2, upper_w=2).bounds.steps == ((10.0, 2.0, 2.0),)
    # the schedule says what holds from now on, or later
    now = wanted(10.0, upper_w=9, schedule=[[0, 1, 2], [5, None, 3]])
    assert now.bounds.steps == ((10.0, 1.0, 2.0), (15.0, 0.0, 3.0))
    later = wanted(10.0, upper_w=9, schedule=[[5, 1, 2]])
    assert later.bounds.steps == ((10.0, 0.0, 9.0), (15.0, 1.0, 2.0))
    alone = wanted(10.0, schedule=[[0, 1, 2]])
    assert (alone.bounds.steps, alone.mode, alone.over_s) == (((10.0, 1.0, 2.0),), "enforce", 0.0)
    asked = wanted(10.0, upper_w=9, mode="monitor", over="1 day")
    assert (asked.mode, asked.over_s) == ("monitor", 86_400.0)
    assert wanted(10.0, upper_w=9, over=1e-3).over_s == 1e-3
    assert wanted(10.0, upper_w=MOST_W).bounds.steps[0][2] == MOST_W


def test_a_file_says_what_it_holds_and_nothing_else(tmp_path: Path) -> None:
    file, other = tmp_path / "corridor.yaml", tmp_path / "series.csv"
    file.write_text("{upper_w: 900, over: 2}")
    found = read_wanted({"file": str(file), "upper_w": None}, 10.0, 0.0)
    assert (found.bounds.steps, found.over_s) == (((10.0, 0.0, 900.0),), 2.0)
    assert [path for path, _ in found.marks] == [str(file)]
    other.write_text("t_s,lower_w,upper_w\n0,5,9\n60,6,8\n")
    found = read_wanted({"file": None, "series": str(other), "mode": "monitor"}, 10.0, 0.0)
    assert (found.bounds.steps[:2], found.mode) == (((10.0, 5.0, 9.0), (70.0, 6.0, 8.0)), "monitor")
    for given, text in (
        ({"file": str(file), "upper_w": 5}, "file stands alone"),
        ({"file": "corridor.yaml"}, "file is 'corridor.yaml'; allowed: an absolute path"),
        ({"file": 7}, "file is 7; allowed: an absolute path"),
        ({"series": "series.csv"}, "series is 'series.csv'; allowed: an absolute path"),
    ):
        with pytest.raises(CorridorError, match=text):
            read_wanted(given, 0.0, 0.0)
    for text, why in (("[1]", "holds .*; allowed: a mapping"), ("{uper_w: 5}", "has 'uper_w'; allowed: ")):
        file.write_text(text)
        with pytest.raises(CorridorError, match=why):
            read_wanted({"file": str(file)}, 0.0, 0.0)


def test_the_mean_of_what_was_counted_holds_where_it_can_be_one() -> None:
    first = counted(None, 10.0, 1000.0, 7.0)
    assert first == (10.0, 1000.0, 7.0)
    assert counted(first, 12.0, 1300.0, 9.0) == (12.0, 1300.0, 150.0)
    # heard of twice: what holds holds
    assert counted(first, 10.0, 1000.0, 9.0) is first
    # begun anew, stood still, set back, too long ago, or more than a node may draw
    for at_s, energy_j in ((12.0, 900.0), (12.0, 1000.0), (9.0, 1300.0), (311.0, 1300.0), (11.0, 1e12)):
        assert counted(first, at_s, energy_j, 9.0) == (at_s, energy_j, 9.0)
    assert counted(first, 310.0, 31_000.0, 9.0)[2] == 100.0
    assert counted(first, 11.0, 1000.0 + MOST_NODE_W, 9.0)[2] == MOST_NODE_W
