"""Traces that are well formed and make no sense: one error with file, line and field, nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dask_hpc.cli import hpc

HEADER = {"kind": "header", "schema": 1}


def event(t_s: float, state: str, nodes: Any = 0) -> dict[str, Any]:
    return {"kind": "job", "t_s": t_s, "job": "a", "state": state, "nodes": nodes}


def seen(idle_nodes: int = 4, now_s: float = 1.0, jobs: int = 1, **job: Any) -> dict[str, Any]:
    view = {"id": "a", "start_nodes": 2, "max_nodes": 4, "walltime_s": 5.0, **job}
    snapshot = {"now_s": now_s, "idle_nodes": idle_nodes, "jobs": [view] * jobs}
    return {"kind": "pass", "policy": {}, "snapshot": snapshot, "decision": {}}


WHOLE = [event(1, "pending"), seen(), event(2, "running", 2), event(5, "completed")]


def simulate(path: Path, *records: dict[str, Any], at: bool = False) -> Any:
    # a number too large for a float is read as infinite
    text = "\n".join(json.dumps(record).replace("Infinity", "1e400") for record in (HEADER, *records))
    path.write_text(text + "\n")
    arguments = ["simulate", str(path), "--policy", "easy", "--output", str(path.parent / "out"), "--force"]
    return CliRunner().invoke(hpc, [*arguments, *(["--at", "1"] if at else [])], prog_name="dask hpc")


def test_what_makes_sense_is_simulated(tmp_path: Path) -> None:
    for at in (False, True):
        result = simulate(tmp_path / "t.jsonl", *WHOLE, at=at)
        assert result.exit_code == 0, result.output


INF = float("inf")


@pytest.mark.parametrize("at", [False, True])
@pytest.mark.parametrize(
    ("place", "record", "said"),
    [
        (0, event(INF, "pending"), "line 2, t_s: expected a finite time, got inf"),
        (2, event(2, "running", -2), "line 4, nodes: expected a whole number from 0 to 10000000, got -2"),
        (2, event(2, "running", 10**30), "line 4, nodes: expected a whole number"),
        (3, event(1.5, "completed"), "line 5, t_s: expected a time from 2 s on, as before, got 1.5"),
        (1, seen(constraint="prime"), "line 3, job 'a', constraint: expected one of any, "),
        (1, seen(min_nodes=5), "line 3, job 'a', max_nodes: expected a whole number from 5"),
        (1, seen(start_nodes=0), "line 3, job 'a', start_nodes: expected a whole number from 1"),
        (1, seen(walltime_s=-1.0), "line 3, job 'a', walltime_s: expected a time of at least 0 s, got -1"),
        (1, seen(remaining_s=INF), "line 3, job 'a', remaining_s: expected a finite time, got inf"),
        (1, seen(deadline_s=-1.0), "line 3, job 'a', deadline_s: expected a time of at least 0 s, got -1"),
        (1, seen(value=INF), "line 3, job 'a', value: expected a finite number, got inf"),
    ],
)
def test_what_makes_none_is_one_line(
    at: bool, place: int, record: dict[str, Any], said: str, tmp_path: Path
) -> None:
    records = [*WHOLE[:place], record, *WHOLE[place + 1 :]]
    refused(simulate(tmp_path / "t.jsonl", *records, at=at), said, tmp_path)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (seen(idle_nodes=-1), "line 3, snapshot.idle_nodes: expected a whole number from 0"),
        (seen(idle_nodes=10**20), "line 3, snapshot.idle_nodes: expected a whole number from 0"),
        (seen(jobs=2), "line 3, snapshot.jobs.id: expected one job of each id, got a"),
        (seen(now_s=10**400), "line 3: Pass.snapshot.now_s: expected a number that a float holds"),
    ],
)
def test_a_state_that_makes_none_is_one_line(record: dict[str, Any], said: str, tmp_path: Path) -> None:
    refused(simulate(tmp_path / "t.jsonl", WHOLE[0], record, *WHOLE[2:], at=True), said, tmp_path)


def test_times_that_go_back_before_the_first_call_of_a_policy_are_one_line(tmp_path: Path) -> None:
    late = {"kind": "nodes", "t_s": 3.0, "nodes": ["n0"]}
    refused(simulate(tmp_path / "t.jsonl", late, *WHOLE, at=True), "line 2: times go back", tmp_path)


def refused(result: Any, said: str, folder: Path) -> None:
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {folder / 't.jsonl'}, {said}")
    assert [path.name for path in folder.iterdir()] == ["t.jsonl"]
