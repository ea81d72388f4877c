"""`dask hpc convert`, and `--recorded`: workloads kept as YAML, estimates from earlier runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import read, refused, run


@pytest.mark.parametrize("source", ["builtin:esp-10", "builtin:five-jobs", "builtin:node-stealing"])
def test_what_is_converted_runs_as_the_source_does(source: str, tmp_path: Path) -> None:
    out = tmp_path / "kept.yaml"
    chosen = ("--malleable-share", "0.5", "--seed", "7")
    written = read("convert", source, str(out), *chosen)
    text = out.read_text()
    assert text.startswith(f"# converted from {source} by dask-hpc ")
    assert "declared malleable (seed 7)" in text
    first = read("simulate", source, "--policy", "pwma-fpsma", *chosen)
    second = read("simulate", str(out), "--policy", "pwma-fpsma")
    assert written["jobs"] == len(first["jobs"])
    times = [[(job["id"], job["start_s"], job["end_s"]) for job in run["jobs"]] for run in (first, second)]
    assert times[0] == times[1]
    assert first["machine"]["nodes"] == second["machine"]["nodes"] == written["nodes"]


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "kept.yaml"
    out.write_text("mine")
    refused(run("convert", "builtin:esp-10", str(out)), 2, "kept.yaml exists; --force replaces it")
    assert out.read_text() == "mine"
    result = run("convert", "builtin:esp-10", str(out), "--force")
    assert result.stdout == f"10 jobs written to {out}\n"
    refused(run("convert", "builtin:esp-10", str(tmp_path / "a.swf")), 2, "must end in .yaml or .yml")
    refused(run("convert", "builtin:esp-10", str(tmp_path / "no" / "a.yml")), 1, "cannot be written")
    refused(run("convert", "builtin:none", str(tmp_path / "b.yml")), 2, "unknown workload")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.yaml"]


def test_a_job_of_no_length_is_backfilled_also_after_it_was_converted(tmp_path: Path) -> None:
    # the second waits for all nodes; of the third it is known that it takes no time
    rows = ((1, 0, 10, 3, 10), (2, 1, 5, 4, 5), (3, 2, 0, 1, -1))
    lines = [f"{id} {at} -1 {s} {n} -1 -1 {n} {asked}" + " 1" * 9 for id, at, s, n, asked in rows]
    source, out = tmp_path / "a.swf", tmp_path / "kept.yaml"
    source.write_text("\n".join(["; MaxProcs: 4", *lines, ""]))
    read("convert", str(source), str(out))
    found = [read("simulate", str(path), "--policy", "easy")["jobs"] for path in (source, out)]
    assert [[job["start_s"] for job in jobs] for jobs in found] == [[0, 10, 2]] * 2


def late(folder: Path) -> str:
    """A workload whose walltimes are far too long: the last job could go ahead, and EASY does not know."""
    path = folder / "late.yaml"
    path.write_text(
        "machine: {nodes: 4}\njobs:\n"
        "- {name: long, nodes: 3, runtime: 10, walltime: 100}\n"
        "- {name: wide, nodes: 4, runtime: 10, walltime: 100, submit: 1}\n"
        "- {name: small, nodes: 1, runtime: 8, walltime: 1000, submit: 2}\n"
    )
    return str(path)


def starts(found: dict[str, Any]) -> dict[str, float]:
    return {job["name"]: job["start_s"] for job in found["jobs"]}


@pytest.mark.parametrize("form", ["trace", "result", "sacct"])
def test_recorded_runs_become_estimates(form: str, tmp_path: Path) -> None:
    source = late(tmp_path)
    trace = tmp_path / "run.jsonl.gz"
    first = read("simulate", source, "--policy", "easy", "--trace", str(trace))
    assert starts(first) == {"long": 0, "wide": 10, "small": 20}
    files = {"trace": trace, "result": tmp_path / "result.json", "sacct": tmp_path / "jobs.sacct"}
    files["result"].write_text(json.dumps(first))
    files["sacct"].write_text(
        "JobID|JobName|State|NNodes|Submit|Start|ElapsedRaw\n"
        "1|long|COMPLETED|3|2024-01-01T00:00:00|2024-01-01T00:00:00|10\n"
        "2|wide|COMPLETED|4|2024-01-01T00:00:00|2024-01-01T00:00:10|10\n"
        "3|small|COMPLETED|1|2024-01-01T00:00:00|2024-01-01T00:00:20|8\n"
    )
    again = read("simulate", source, "--policy", "easy", "--recorded", str(files[form]))
    assert starts(again) == {"long": 0, "wide": 10, "small": 2}
    assert "3 of 3 jobs have estimates from recorded runs" in again["workload"]["notes"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "", "ends in .jsonl, .json, .sacct"),
        ("a.json", "[]", "is no result of a simulation"),
        ("a.json", "{", "the file may be cut off"),
        ("a.json", '{"kind": "simulation", "jobs": [{"nodes": [[0, 1, 2]]}]}', "jobs[0].nodes[0]"),
        ("a.json", '{"kind": "simulation", "jobs": [{"nodes": [[0, -1]]}]}', "jobs[0].nodes[0][1]"),
        ("a.json", '{"kind": "simulation", "jobs": []}', "none of 0 runs"),
        ("a.jsonl", "what?", "line 1"),
        ("a.sacct", "what?", "line 1"),
    ],
)
def test_no_recorded_runs_is_one_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text + "\n")
    result = run("simulate", "builtin:esp-10", "--policy", "easy", "--recorded", str(path))
    refused(result, 1, name, said)
