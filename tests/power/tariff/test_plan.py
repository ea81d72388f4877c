"""Series as CSV, rules, and what ``dask hpc power plan`` makes of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import refused, run

from dask_hpc.scheduler.power.tariff import read
from dask_hpc_policies.power.bounds import MOST_W

CSV = """time,zone,price,carbon
2026-01-31T23:00Z,DE,50,300
2026-02-01T01:00+01:00,DE,150,n/e
2026-02-01T01:00Z,DE,,40

2026-02-01T02:00Z,DE,-5,40
"""
RULES = """# the first that fits
- {above: 100, upper_w: 2 kW}
- {of: carbon, below: 100, lower_w: 3000}
- {below: 50.5, upper_w: 4 kW}
"""
DAY_S = 1769900400.0


def files(folder: Path, series: str, rules: str | None = None) -> list[str]:
    (folder / "s.csv").write_text(series)
    if rules is None:
        return [str(folder / "s.csv")]
    (folder / "r.yaml").write_text(rules)
    return [str(folder / "s.csv"), "--rules", str(folder / "r.yaml")]


def test_rules_make_a_corridor_of_prices_and_gaps_hold_the_last_value(tmp_path: Path) -> None:
    given = files(tmp_path, CSV, RULES)
    found = json.loads(run("power", "plan", *given, "--json").stdout)
    # at 01:00Z the price of the hour before holds: above 100 comes first
    assert found["steps"] == [
        [DAY_S, 0, 4000],
        [DAY_S + 3600, 0, 2000],
        [DAY_S + 3 * 3600, 3000, MOST_W],
    ]
    assert (found["gaps"], found["clock"], found["columns"]) == (2, "utc", {"price": 3, "carbon": 3})
    text = run("power", "plan", *given).stdout
    assert "2026-02-01 00:00Z  -          2000       120" in text
    assert "2026-02-01 02:00Z  3000       -          -" in text


def test_bounds_stand_in_the_series_themselves(tmp_path: Path) -> None:
    series = "\ufeffT_s;Lower_W;upper_w\n0;1000;2 kW\n60;;2 kW\n90;1500;2.5 kW\n"
    found = json.loads(run("power", "plan", *files(tmp_path, series), "--json").stdout)
    assert found["steps"] == [[0, 1000, 2000], [90, 1500, 2500]]
    assert found["clock"] == "from-set"


@pytest.mark.parametrize(
    ("series", "rules", "parts"),
    [
        ("time,price\n2026-01-01T00:00,5\n", RULES, ["s.csv, line 2: ", "without a zone"]),
        ("time,price\nyesterday,5\n", RULES, ["s.csv, line 2: ", "'yesterday'"]),
        ("t_s,price\n5,1\n\n5,2\n", RULES, ["s.csv, line 4: ", "times rise"]),
        ("t_s,price\n-5,1\n", RULES, ["s.csv, line 2: ", "below 0"]),
        ("t_s,price\n0,inf\n", RULES, ["s.csv, line 2: ", "price is 'inf'"]),
        ("t_s,upper_w\n0,2 kg\n", None, ["s.csv, line 2: ", "upper_w"]),
        ("t_s,upper_w\n0,1e30\n", None, ["s.csv, line 2: ", "allowed: 0 to"]),
        ("t_s,lower_w,upper_w\n0,5,9\n1,,3\n", None, ["s.csv, line 3: ", "swap them"]),
        ("t_s,time,price\n0,0,0\n", RULES, ["s.csv, line 1: ", "one of time, t_s"]),
        ("t_s,prise\n0,0\n", RULES, ["s.csv, line 1: ", "did you mean 'price'"]),
        ("t_s,price,price\n0,0,1\n", RULES, ["s.csv, line 1: ", "stands twice"]),
        ("t_s,price\n0,\n", RULES, ["s.csv: ", "no value"]),
        ("", RULES, ["s.csv, line 1: ", "nothing"]),
        ("t_s,price\n0,5\n", None, ["s.csv: ", "give rules"]),
        ("t_s,upper_w\n0,5\n", RULES, ["s.csv: ", "leave one out"]),
        ("t_s,price\n0,5\n", RULES, ["s.csv: rule 2 goes by carbon"]),
        (
            "t_s,price\n0,5\n",
            "- {abov: 5, upper_w: 1}",
            ["r.yaml: rule 1 has 'abov'", "did you mean 'above'"],
        ),
        ("t_s,price\n0,5\n", "- {above: 5}", ["r.yaml: rule 1 has no bounds"]),
        ("t_s,price\n0,5\n", "- {above: 5, below: 5, upper_w: 1}", ["never holds"]),
        ("t_s,price\n0,5\n", "- {above: .nan, upper_w: 1}", ["above is nan"]),
        ("t_s,price\n0,5\n", f"- {{above: {10**400}, upper_w: 1}}", ["rule 1: above is 1000", "number"]),
        ("t_s,price\n0,5\n", "- {upper_w: 1, lower_w: 2}", ["swap them"]),
        ("t_s,price\n0,5\n", "- &a {upper_w: 1}\n- *a", ["aliases are not allowed"]),
        ("t_s,price\n0,5\n", "- !!python/object/apply:os.getpid []", ["no YAML that is taken"]),
        ("t_s,price\n0,5\n", "upper_w: 1", ["rules is None"]),
        ("<!DOCTYPE a>", RULES, ["s.csv, line 1: ", "document type"]),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, series: str, rules: str | None, parts: list[str]) -> None:
    refused(run("power", "plan", *files(tmp_path, series, rules)), 1, *parts)


def test_a_ramp_beyond_the_last_year_has_its_seconds(tmp_path: Path) -> None:
    series = "time,upper_w\n9999-12-31T23:00Z,100\n9999-12-31T23:59Z,5000\n"
    result = run("power", "plan", *files(tmp_path, series), "--ramp", "1")
    assert (result.exit_code, "9999-12-31 23:00Z" in result.stdout) == (0, True)
    assert "253402305640 s" in result.stdout
    # nor has the machine's own clock all of them
    for ramp in ("1e-14", "1e-16", "1e-300"):
        assert run("power", "plan", *files(tmp_path, series), "--ramp", ramp).exit_code == 0
    # bounds that no draw can follow are named by the second
    crossing = "time,lower_w,upper_w\n2026-01-01T00:00Z,0,100\n2026-01-01T01:00Z,300,400\n"
    refused(run("power", "plan", *files(tmp_path, crossing), "--ramp", "1"), 1, "around 1767229200 s")


def test_what_has_no_end_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(run("power", "plan", str(tmp_path / "pipe")), 1, "pipe is no file")
    monkeypatch.setattr(read, "MOST_BYTES", 10)
    refused(run("power", "plan", *files(tmp_path, "t_s,upper_w\n0,5\n")), 1, "s.csv is longer than 10 bytes")


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes(b"t_s,price\n0,1\n1,\xff\n")
    refused(run("power", "plan", str(tmp_path / "s.csv")), 1, "s.csv, line 3: no UTF-8 text")
