"""`dask hpc interval`: figures of the models, as text and as JSON; wrong input is one line."""

from __future__ import annotations

import json

import pytest
from command_line import refused, run

from dask_hpc_policies.resilience.intervals import Costs, daly, expected_s


def test_it_says_how_long_and_what_that_costs() -> None:
    told = run("interval", "--cost", "5 min", "--mtbf", "12 d", "--nodes", "48", "--interval", "1 h").stdout
    assert [line.split()[0] for line in told.splitlines()[1:]] == [
        "young", "daly-first", "daly", "exact", "given", "none"
    ]  # fmt: skip
    found = json.loads(run("interval", "--cost", "5 min", "--mtbf", "12 d", "--nodes", "48", "--json").stdout)
    assert found["mtbf_s"] == 6 * 3600
    costs = Costs(300.0, 6 * 3600.0)
    row = next(row for row in found["rows"] if row["method"] == "daly")
    assert row["interval_s"] == pytest.approx(daly(costs))
    assert row["expected_s"] == pytest.approx(expected_s(costs, 86_400.0, daly(costs)))
    assert row["overhead"] == pytest.approx(row["expected_s"] / 86_400 - 1)


def test_a_run_that_never_ends_has_no_length() -> None:
    found = json.loads(run("interval", "--cost", "5 s", "--mtbf", "1 s", "--work", "30 d", "--json").stdout)
    assert found["rows"][-1] == {"method": "none", "interval_s": None, "expected_s": None, "overhead": None}


def test_checkpoints_that_cost_nothing_are_taken_all_the_time() -> None:
    given = ("interval", "--cost", "0", "--mtbf", "1 h", "--work", "1 d", "--restart", "6 min", "--json")
    rows = json.loads(run(*given).stdout)["rows"]
    # as with ever cheaper ones
    cheap = expected_s(Costs(1e-9, 3600.0, 360.0), 86_400.0, 1e-3)
    assert [row["expected_s"] for row in rows[:4]] == pytest.approx([cheap] * 4, rel=1e-5)
    assert rows[4]["expected_s"] > cheap


@pytest.mark.parametrize(
    "options",
    [
        ("--cost", "-1 s"), ("--mtbf", "0 s"), ("--nodes", "0"), ("--nodes", "9" * 400), ("--work", "never"),
        *((name, "1e300") for name in ("--cost", "--mtbf", "--work", "--restart", "--interval")),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(options: tuple[str, str]) -> None:
    given = {"--cost": "5 s", "--mtbf": "1 d", **dict([options])}
    refused(run("interval", *(text for pair in given.items() for text in pair)), 2, options[0])


def test_the_longest_times_give_numbers() -> None:
    given = (text for name in ("--cost", "--mtbf", "--work", "--restart") for text in (name, "1e12 s"))
    found = json.loads(run("interval", *given, "--json").stdout)
    assert all(row["interval_s"] >= 0 for row in found["rows"][:-1])
