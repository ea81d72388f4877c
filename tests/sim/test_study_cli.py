"""`dask hpc study`: what it prints, writes and refuses, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from command_line import refused, run

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.study.study import run_study

TWO = """
description: Two policies
workload: builtin:figure-5-1
policies: {fcfs: fcfs, easy: easy}
baseline: fcfs
metrics: [makespan_s, mean_wait_s, starts_s]
expect: [{that: makespan_s == 12}]
notes: [the sizes are ours]
"""


def call(*arguments: str) -> Result:
    return run("study", *arguments)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(TWO, encoding="utf-8")
    return path


def test_text_has_a_line_for_each_row(study: Path) -> None:
    result = call(str(study))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].split() == [
        "POLICY",
        "MAKESPAN",
        "(s)",
        "CHANGE",
        "WAIT",
        "(s)",
        "CHANGE",
        "STARTS",
        "(s)",
    ]
    assert lines[1].split() == ["fcfs", "12", "-", "4", "-", "0", "4", "4", "8"]
    assert lines[2].split() == ["easy", "12", "+0.0", "%", "3", "-25.0", "%", "0", "4", "0", "8"]
    assert "Conditions: 2 hold, 0 do not" in result.stdout
    assert "Note: the sizes are ours" in result.stdout


def test_json_has_rows_and_conditions(study: Path) -> None:
    result = call(str(study), "--json")
    found = json.loads(result.stdout)
    assert (found["schema"], found["kind"], found["name"]) == (1, "study", "two")
    assert [row["starts_s"] for row in found["rows"]] == [[0, 4, 4, 8], [0, 4, 0, 8]]
    assert found["rows"][1]["mean_wait_s"]["change_percent"] == pytest.approx(-25)
    assert [one["ok"] for one in found["conditions"]] == [True, True]
    assert found["failures"] == []
    assert "runs" not in found


def test_a_folder_gets_all_runs_and_the_table(study: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = call(str(study), "--output", str(folder), "--plot", str(tmp_path / "a.svg"))
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[0] == f"written to {folder}: study.json, table.csv"
    whole = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    assert [run["spec"]["policy"] for run in whole["runs"]] == ["fcfs", "easy"]
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["runs"], row["makespan_s"], row["starts_s"]) for row in rows] == [
        ("fcfs", "1", "12.0", "0.0 4.0 4.0 8.0"),
        ("easy", "1", "12.0", "0.0 4.0 0.0 8.0"),
    ]
    assert float(rows[1]["mean_wait_s_change_percent"]) == pytest.approx(-25)
    assert "<svg" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_a_condition_that_does_not_hold_has_a_line_and_exit_code_1(study: Path) -> None:
    study.write_text(TWO.replace("== 12", "== 13"), encoding="utf-8")
    result = call(str(study))
    assert result.exit_code == 1
    assert "Conditions: 0 hold, 2 do not" in result.stdout
    assert result.stderr.splitlines() == [
        f"Error: {study}, line 7: does not hold for figure-5-1, {policy}: makespan_s == 13 (makespan_s is 12)"
        for policy in ("fcfs", "easy")
    ]


def test_a_run_that_fails_has_a_line_and_exit_code_1(study: Path) -> None:
    result = call(str(study), "--set", "nodes=4,10")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["run failed"]
    assert "(1 more for the same reason)" in lines[0]
    assert "fcfs on figure-5-1, nodes=4" in lines[0]
    assert len(result.stdout.split("\n\n")[0].splitlines()) == 5, "a heading and four rows"


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_hpc.terminal import progress_bar

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", io.StringIO())
    with progress_bar("esp") as show:
        assert show is None
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with progress_bar("esp") as show:
        assert show is not None
        for done in range(1, 31):
            show(done, 30)
    assert "esp" in terminal.getvalue()
    assert "30/30" in terminal.getvalue()


def test_the_builtin_studies_are_listed() -> None:
    result = call("--list")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert {"builtin:esp-10", "builtin:node-stealing", "builtin:esp"} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("builtin:esp-11",), 2, "did you mean 'esp-10'"),
        (("absent.yaml",), 2, "absent.yaml' does not exist"),
        (("builtin:esp-10", "--set", "seed"), 2, "'seed' is not NAME=VALUE"),
        (("builtin:esp-10", "--set", "seed=soon"), 2, "--set: seed: expected a whole number"),
        (("builtin:esp-10", "--set", "option.jobs=5"), 2, "--set: option.jobs: no 'jobs' here"),
        (("builtin:figure-5-1", "--jobs", "0"), 2, "--jobs"),
        (("builtin:figure-5-1", "--plot", "none/a.png"), 1, "the figure cannot be written"),
        (("builtin:figure-5-1", "--plot", "there.png"), 2, "there.png exists"),
        (("builtin:figure-5-1", "--output", "there.png/a"), 1, "nothing can be written there: Not a"),
        (("builtin:figure-5-1", "--set", "seed=\u00b2..3"), 2, "--set: seed: expected a whole number"),
        (("unknown a.yaml",), 1, "unknown a.yaml, line 1: a study has 'workload'"),
        ((), 2, "Missing argument 'FILE'"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    arguments: tuple[str, ...], code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.png").write_text("mine")
    (tmp_path / "unknown a.yaml").write_text("{}")
    refused(call(*arguments), code, text)


def test_what_a_study_found_is_shown_although_it_cannot_be_written(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise WorkloadError("results: the results cannot be written: No space left on device")

    monkeypatch.setattr("dask_hpc.sim.study.study.write", full)
    result = call(str(study), "--jobs", "1", "--output", str(tmp_path / "results"))
    assert (result.exit_code, result.stdout) == (1, call(str(study), "--jobs", "1").stdout)
    assert "No space left" in result.stderr


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_was_done_before_ctrl_c_is_shown_and_written(
    jobs: str, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, progress: Any = None, **more: Any) -> Any:
        def stop(done: int, all: int) -> None:
            if done == 2:
                raise KeyboardInterrupt

        return run_study(*arguments, progress=stop, **more)

    monkeypatch.setattr("dask_hpc.sim.study.study.run_study", interrupted)
    folder = tmp_path / "out"
    result = call(str(study), "--set", "seed=0..3", "--jobs", jobs, "--output", str(folder))
    said = "interrupted: 2 of 8 runs are done, conditions were not checked"
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"Error: {said}"
    assert f"Note: {said}" in result.stdout
    assert "Conditions" not in result.stdout
    whole = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    assert len(whole["runs"]) == 2
    assert whole["notes"][-1] == said
    # a whole study stays
    (folder / "study.json").write_text("{}", encoding="utf-8")
    again = call(str(study), "--set", "seed=0..3", "--jobs", jobs, "--output", str(folder), "--force")
    assert again.exit_code == 1
    assert "study.json is of an earlier study and stays" in again.stderr
    assert (folder / "study.json").read_text(encoding="utf-8") == "{}"
