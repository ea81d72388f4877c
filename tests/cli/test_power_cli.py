"""``dask hpc power``: three models from files, as text and as JSON; one line for whatever is wrong."""

from __future__ import annotations

import errno
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from click.testing import CliRunner, Result
from command_line import refused, run

import dask_hpc
from dask_hpc.cli import hpc
from dask_hpc.cli.power import _opened
from dask_hpc.terminal import Lines

UPPER: dict[str, Any] = {
    "nodes": 32,
    "lower_w": 3000,
    "upper_w": 4000,
    "idle_w": 23,
    "jobs": [
        {
            "id": "1",
            "nodes": 12,
            "min_nodes": 1,
            "max_nodes": 32,
            "constraint": "any",
            "min_w": 300,
            "max_w": 325,
        },
        {"id": "2", "nodes": 2, "min_w": 84, "max_w": 120},
    ],
}
WAITING: dict[str, Any] = {
    **UPPER,
    "nodes": 14,
    "lower_w": 2500,
    "upper_w": 3500,
    "idle_w": 71,
    "margin_w": 10,
    "off_w": 5,
    "max_off_nodes": 2,
    "rigid": {"nodes": 1, "min_w": 100, "max_w": 110},
    "jobs": [{"id": "pi", "nodes": 4, "min_nodes": 1, "table": [[4, 680, 700], [8, 1360, 1400]]}],
    "waiting": [{"id": "heat", "nodes": 2, "constraint": "pof2", "min_w": 250, "max_w": 260}],
}
CROWDED: dict[str, Any] = {**UPPER, "jobs": [{**UPPER["jobs"][0], "min_nodes": 33, "max_nodes": 40}]}


def lines(path: Path, *problems: object) -> str:
    path.write_text("".join(f"{p if isinstance(p, str) else json.dumps(p)}\n" for p in problems))
    return str(path)


def solved(*arguments: str) -> list[dict[str, Any]]:
    result = run("power", "solve", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("solver", ["highs", "cbc", "enumerate"])
def test_solve_answers_a_line_with_a_line(tmp_path: Path, solver: str) -> None:
    first, second, third = solved(
        lines(tmp_path / "p.jsonl", UPPER, "", WAITING, CROWDED), "--solver", solver
    )
    assert {
        "status", "nodes", "start", "idle_nodes", "off_nodes", "violation_w", "guaranteed_upper",
        "guaranteed_lower", "cpu_s",
    } <= set(first)  # fmt: skip
    assert (first["status"], first["nodes"], first["start"]) == ("optimal", {"1": 3, "2": 24}, None)
    assert (first["idle_nodes"], first["off_nodes"], first["violation_w"]) == (5, 0, 0)
    assert first["guaranteed_upper"]
    assert first["guaranteed_lower"]
    assert first["cpu_s"] > 0
    assert (second["status"], second["start"]) == ("optimal", "heat")
    assert sum(second["nodes"].values()) + second["idle_nodes"] + second["off_nodes"] == 13
    assert (third["status"], third["nodes"], third["violation_w"]) == ("infeasible", {}, None)
    assert "no legal size" in third["reason"]


def test_solve_reads_standard_input_and_prints_a_table() -> None:
    result = CliRunner().invoke(hpc, ["power", "solve", "-"], input=json.dumps(UPPER))
    assert result.exit_code == 0
    assert result.output.splitlines()[0].split()[:3] == ["STATUS", "NODES", "START"]
    assert "1:3 2:24" in result.output


class Ends(io.RawIOBase):
    """Gives lines, one each time it is read, and then fails."""

    def __init__(self, *lines: object) -> None:
        self._lines = [f"{json.dumps(line)}\n".encode() for line in lines]

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if not self._lines:
            raise OSError(errno.EIO, "the pipe broke")
        line = self._lines.pop(0)
        into[: len(line)] = line
        return len(line)


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_solve_prints_an_answer_before_the_next_line_comes(how: list[str]) -> None:
    given = io.BufferedReader(Ends({"nodes": 0}, UPPER, WAITING))
    result = CliRunner().invoke(hpc, ["power", "solve", "-", *how], input=given)
    assert "the pipe broke" in result.stderr
    *_, wrong, first, second = result.stdout.splitlines()
    assert "lower_w is missing" in wrong
    assert "optimal" in first
    assert "heat" in second


def test_a_column_that_needs_more_room_has_it_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    table = Lines({"a": "NAME", "b": "W"})
    for a, b in (("x", 1), ("a long name", 1000), ("y", None)):
        table.add({"a": a, "b": b})
    assert capsys.readouterr().out.splitlines() == [
        "NAME  W", "x     1", "a long name  1000", "y            -",
    ]  # fmt: skip


def test_several_gives_a_list_of_who_starts(tmp_path: Path) -> None:
    (row,) = solved(lines(tmp_path / "p.jsonl", {**WAITING, "several": True}))
    assert row["start"] == ["heat"]


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in UPPER.items() if name != field}


def job(**change: object) -> dict[str, Any]:
    found = {**UPPER["jobs"][0], **change}
    return {**UPPER, "jobs": [{name: value for name, value in found.items() if value is not None}]}


@pytest.mark.parametrize(
    ("problem", "part"),
    [
        ({**UPPER, "lower_w": 5000}, "lower_w is 5000; allowed: 0 to upper_w, which is 4000"),
        ({**UPPER, "upper_w": -1}, "upper_w is -1; allowed: watts from 0 to 1e+09"),
        ({**UPPER, "upper_w": 1e15}, "upper_w is 1000000000000000.0; allowed: watts from 0 to 1e+09"),
        ({**UPPER, "idle_w": 10**400}, "idle_w is 1000"),
        ({**UPPER, "idle_w": math.nan}, "idle_w is nan; allowed: watts from 0 to 1e+06"),
        ({**UPPER, "idle_w": "23"}, "idle_w is '23'; allowed: watts"),
        ({**UPPER, "nodes": 0}, "nodes is 0; allowed: a whole number from 1"),
        ({**UPPER, "nodes": 2.5}, "nodes is 2.5; allowed: a whole number"),
        ({**UPPER, "several": 1}, "several is 1; allowed: true, false"),
        ({**UPPER, "uper_w": 1}, "unknown field 'uper_w'; allowed: nodes, "),
        ({**UPPER, "rigid": {"nodes": 33, "min_w": 1, "max_w": 1}}, "rigid: nodes is 33; the machine has 32"),
        ({**UPPER, "rigid": {"nodes": 1}}, "rigid: min_w is missing; give nodes, min_w, max_w"),
        ({**UPPER, "jobs": {}}, "jobs is {}; give a list of jobs"),
        ({**UPPER, "jobs": [7]}, "jobs, number 1: 7 is no object"),
        ({**UPPER, "waiting": UPPER["jobs"]}, "job '1' is given twice; ids must differ"),
        (without("lower_w"), "lower_w is missing; give nodes, lower_w, upper_w, idle_w"),
        (job(max_w=None), "job '1': max_w is missing; give min_w, max_w"),
        (job(min_w=400), "job '1': min_w is 400; allowed: 0 to max_w, which is 325"),
        (job(max_w=1e7), "job '1': max_w is 10000000.0; allowed: watts from 0 to 1e+06"),
        (job(min_nodes=9, max_nodes=8), "job '1': min_nodes is 9; allowed: 1 to max_nodes, which is 8"),
        (job(constraint="pof"), "job '1': constraint is 'pof'; allowed: any, even, odd, pof2, square"),
        (job(id=""), "jobs, number 1: id is ''; give a text that is not empty"),
        (job(table=[[1, 2, 3]]), "job '1': has a table and min_w or max_w; give the one or the others"),
        (job(table=[[1, 2]], min_w=None, max_w=None), "table holds [1, 2]; each row is [nodes, min, max]"),
        (job(table=[], min_w=None, max_w=None), "table is []; give a list of [nodes, min, max]"),
        (job(table=[[2, 9, 8]], min_w=None, max_w=None), "table row of 2 nodes: min is 9; allowed: 0 to max"),
        (job(table=[[2, 1, 8], [2, 1, 9]], min_w=None, max_w=None), "table has a size twice in [2, 2]"),
        ("{", "no JSON: Expecting property name"),
        ("[1]", "[1] is no object; allowed: one with nodes, "),
        ("[" * 100_000, "it is nested too deep"),
    ],
)  # fmt: skip
def test_a_wrong_program_is_one_line_that_names_it(tmp_path: Path, problem: object, part: str) -> None:
    refused(run("power", "solve", lines(tmp_path / "p.jsonl", "", problem)), 1, "p.jsonl, line 2: ", part)


def test_a_wrong_line_leaves_the_answers_of_the_others() -> None:
    given = "\n".join([json.dumps(UPPER), "{", json.dumps(WAITING)])
    result = CliRunner().invoke(hpc, ["power", "solve", "-", "--json"], input=given)
    first, second, third = map(json.loads, result.stdout.splitlines())
    assert (first["status"], second["line"], third["status"]) == ("optimal", 2, "optimal")
    assert "no JSON" in second["error"]
    assert result.exit_code == 1
    result = CliRunner().invoke(hpc, ["power", "solve", "-"], input=given)
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 4)
    assert "line 2: no JSON" in result.stdout.splitlines()[2]
    assert result.stderr.startswith("Error: -, line 2: no JSON")


def test_an_empty_file_and_a_wrong_command_line(tmp_path: Path) -> None:
    refused(
        run("power", "solve", lines(tmp_path / "p.jsonl", "")),
        1,
        "no program in it; give one JSON object a line",
    )
    refused(run("power", "solve", "absent.jsonl"), 2, "absent.jsonl")
    hint = "(dask hpc power solve -h shows the options)\n"
    assert run("power", "solve").stderr == f"Error: Missing argument 'JSONL'. {hint}"
    given = lines(tmp_path / "p.jsonl", UPPER)
    refused(run("power", "solve", given, "--solver", "glpk"), 2, "'glpk' is not one of 'highs', 'cbc'")
    refused(run("power", "solve", given, "--limit", "nan"), 2, "nan is not in the range")
    refused(run("power", "solv"), 2, "No such command 'solv'")
    large = {
        **UPPER,
        "nodes": 200,
        "jobs": [{**UPPER["jobs"][1], "id": str(i), "max_nodes": 99} for i in range(9)],
    }
    refused(run("power", "solve", lines(tmp_path / "p.jsonl", large), "--solver", "enumerate"), 1, "too many")


# --------------------------------------------------------------------------- forecast


def table(path: Path, heading: str, *rows: object) -> str:
    path.write_text("\n".join([heading, *(row if isinstance(row, str) else f"{row}" for row in rows)]) + "\n")
    return str(path)


def forecast(path: str, *arguments: str) -> Result:
    return run("power", "forecast", path, "--horizon", "6", *arguments)


def test_forecast_gives_a_model_its_mean_and_a_band(tmp_path: Path) -> None:
    wave = (f"{5 * i},{1000 + 200 * math.sin(i * math.pi / 6) + (i * 7919 % 13):.2f}" for i in range(90))
    path = table(tmp_path / "w.csv", "t_s,watts", *wave)
    found = json.loads(forecast(path, "--json").stdout)
    assert {"model", "mean_w", "min_w", "max_w", "mape", "cpu_s"} <= set(found)
    assert len(found["mean_w"]) == 6
    assert found["min_w"] <= min(found["mean_w"]) <= max(found["mean_w"]) <= found["max_w"]
    assert found["mape"][found["model"]] < 0.02
    assert (found["season"], found["step_s"]) == (12, 5.0)
    assert found["cpu_s"] > 0
    result = forecast(path, "--season", "0")
    assert result.stderr == ""
    assert "season" not in result.stdout
    assert "seasonal-naive" not in result.stdout


def test_a_short_series_says_why_it_is_but_the_last_value(tmp_path: Path) -> None:
    found = json.loads(forecast(table(tmp_path / "w.csv", "watts,t_s", "7,0", "9,1"), "--json").stdout)
    assert (found["model"], found["mean_w"], found["mape"]) == ("naive", [9.0] * 6, {})
    assert found["reason"] == "2 samples; models need 30"


def test_a_season_that_is_too_long_for_the_series_says_so(tmp_path: Path) -> None:
    path = table(tmp_path / "w.csv", "t_s,watts", *(f"{i},{100 + i % 7}" for i in range(61)))
    assert "seasonal-naive" in json.loads(forecast(path, "--season", "29", "--json").stdout)["mape"]
    for season, fewest in ((30, 63), (61, 125), (10_000, 20_003)):
        found = json.loads(forecast(path, "--season", str(season), "--json").stdout)
        assert (found["model"], found["mean_w"]) == ("naive", [104.0] * 6)
        assert found["reason"] == f"61 samples; models need {fewest} for a season of {season}"


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([], "the file is empty; give a heading with t_s, watts"),
        (["t_s,watts"], "no row below the heading; give values of t_s, watts"),
        (["t_s,power", "0,1"], "no column 'watts'; there are t_s, power; needed: t_s, watts"),
        (["t_s,watts", "0,1", "1,nan"], "line 3: watts is nan; give a finite number, or leave the row out"),
        (["t_s,watts", "0,1", "", "1,x"], "line 4: watts is 'x'; give a number"),
        (["t_s,watts", "0,1", "1"], "line 3: watts is ''; give a number"),
        (["t_s,watts", "0,1", "1,-4"], "sample 2: watts is -4.0; allowed: watts from 0 to 1e+09"),
        (["t_s,watts", "0,1", "0,4"], "sample 2: t_s is 0 after 0; times must rise"),
        (["t_s,watts", "-1.7e308,1"], "sample 1: t_s is -1.7e+308; allowed: a number of seconds"),
        (["t_s,watts", "0,1e300"], "sample 1: watts is 1e+300; allowed: watts"),
    ],
)
def test_a_wrong_series_is_one_line_that_names_it(tmp_path: Path, rows: list[str], part: str) -> None:
    path = tmp_path / "w.csv"
    path.write_text("".join(f"{row}\n" for row in rows))
    refused(forecast(str(path)), 1, "w.csv", part)


def test_the_horizon_is_needed_and_bounded(tmp_path: Path) -> None:
    path = table(tmp_path / "w.csv", "t_s,watts", "0,1")
    refused(run("power", "forecast", path), 2, "Missing option '--horizon'")
    refused(run("power", "forecast", path, "--horizon", "0"), 2, "0 is not in the range 1<=x<=10000")


# -------------------------------------------------------------------------------- fit


def test_fit_gives_a_curve_from_idle_to_full_load(tmp_path: Path) -> None:
    path = table(tmp_path / "c.csv", "name,cpu_load,rapl_power", "a,0,20", "b,50,70", "c,100,120", "d,25,45")
    found = json.loads(run("power", "fit", path, "--json").stdout)
    assert {"curve", "error"} <= set(found)
    assert found["curve"][0] == [0.0, pytest.approx(20, abs=0.1)]
    assert found["curve"][-1] == [1.0, pytest.approx(120, abs=0.1)]
    assert found["error"] < 0.01
    assert found["idle_w"] == found["curve"][0][1]
    text = run("power", "fit", path).stdout
    assert text.split()[:2] == ["LOAD", "W"]
    assert "of the largest, points left out" in text


@pytest.mark.parametrize("name", ["rapl-load-EPYC-8024P.csv", "rapl-load-E5-2620v3.csv"])
def test_fit_reads_measured_files(data_folder: Path, name: str) -> None:
    found = json.loads(run("power", "fit", str(data_folder / name), "--json").stdout)
    assert found["error"] <= 0.055


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([], "the file is empty; give a heading with cpu_load, rapl_power"),
        (["cpu_load,rapl_power", "0,1", "120,2"], "line 3: cpu_load is 120; allowed: 0 to 100 (%)"),
        (["cpu_load,rapl_power", "0,1", "inf,2"], "line 3: cpu_load is inf; give a finite number"),
        (
            ["cpu_load,rapl_power", "0,1", "50,2", "60,-2"],
            "point 3: the power is -2.0; allowed: watts from 0",
        ),
        (["cpu_load,rapl_power", "0,1", "50,2"], "2 different loads; a curve needs 3"),
        (["cpu_load,rapl_power", "0,0", "50,0", "99,0"], "every power is 0 W: the sensor measures nothing"),
        (["cpu_load,power", "0,1"], "no column 'rapl_power'; there are cpu_load, power"),
    ],
)
def test_a_wrong_measurement_is_one_line_that_names_it(tmp_path: Path, rows: list[str], part: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text("".join(f"{row}\n" for row in rows))
    refused(run("power", "fit", str(path)), 1, "c.csv", part)


def test_bytes_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "noise.csv"
    path.write_bytes(bytes(range(256)) * 8)
    for arguments in (("fit",), ("forecast", "--horizon", "3"), ("solve",)):
        refused(run("power", *arguments, str(path)), 1, "noise.csv")


def test_the_corridor_of_a_running_cluster_is_set_shown_and_cleared(tmp_path: Path) -> None:
    with dask_hpc.LocalCluster(n_workers=2, threads_per_worker=1, processes=False) as cluster:
        where = ("--address", cluster.scheduler_address)
        refused(
            run("power", "set", "--upper", "1 kW", *where),
            1,
            "set hpc.power.model.idle and hpc.power.model.busy",
        )
        told = run("update", "power.model.idle=70", "power.model.busy=200 W", *where)
        assert told.exit_code == 0, told.stderr
        refused(run("power", "set", "--lower", "2000", "--upper", "1 kW", *where), 1, "above upper_w")
        refused(run("power", "set", *where), 2, "give --lower, --upper, --series, --file or --clear")
        refused(run("power", "set", "--upper", "5", "--mode", "hold", *where), 2, "'hold' is not one of")
        found = run("power", "set", "--lower", "100", "--upper", "1 kW", *where, "--json")
        assert found.exit_code == 0, found.stderr
        row = json.loads(found.stdout)
        assert (row["lower_w"], row["upper_w"], row["draw_w"], row["label"]) == (100, 1000, 140, "modelled")
        shown = run("power", "set", "--upper", "900", "--mode", "monitor", *where).stdout
        assert "upper w  900.00" in shown
        (tmp_path / "s.csv").write_text("t_s,price\n0,150\n")
        (tmp_path / "r.yaml").write_text("[{above: 100, upper_w: 0.8 kW}]")
        given = ("--series", str(tmp_path / "s.csv"), "--rules", str(tmp_path / "r.yaml"), "--ramp", "10")
        row = json.loads(run("power", "set", *given, *where, "--json").stdout)
        assert (row["upper_w"], row["ramp_w_s"]) == (800, 10)
        shown = run("status", *where).stdout
        assert "power:\n  draw w " in shown
        assert "label           modelled" in shown
        assert run("power", "set", "--clear", *where).stdout == "there is no corridor any more\n"
        assert '"mode": null' in json.dumps(json.loads(run("status", *where, "--json").stdout)["power"])


@pytest.mark.parametrize(("number", "about"), [("EPIPE", "output"), ("ENOSPC", "output"), ("EIO", "input")])
def test_whoever_stops_reading_is_not_taken_for_an_input_that_cannot_be_read(
    tmp_path: Path, number: str, about: str
) -> None:
    path = tmp_path / "problems.jsonl"
    path.touch()
    error = OSError(getattr(errno, number), "it fails")
    kind = type(error) if about == "output" else ClickException
    with pytest.raises(kind, match="it fails"), _opened(str(path)):
        raise error
