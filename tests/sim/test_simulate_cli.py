"""`dask hpc simulate` and `dask hpc compare`: what they print, write and refuse."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import read, refused, run

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.workloads.sources import BUILTIN


def test_json_has_the_metrics_the_jobs_and_what_was_run() -> None:
    found = read("simulate", "builtin:figure-5-1", "--policy", "easy")
    assert found["makespan_s"] == 12
    assert [job["start_s"] for job in found["jobs"]] == [0, 4, 0, 8]
    assert found["jobs"][0]["nodes"] == [[0.0, 8], [4.0, 0]]
    assert found["schema"] == 1
    assert found["policy"]["policy"] == "easy"
    assert found["machine"]["nodes"] == 10
    assert found["workload"]["source"] == "builtin:figure-5-1"
    assert found["options"]["seed"] == 0
    assert not any("energy" in key or key.endswith("_j") for key in found)


def test_text_names_the_metrics() -> None:
    result = run("simulate", "builtin:figure-5-1", "--policy", "fcfs")
    assert result.exit_code == 0
    for text in ("figure-5-1, 4 jobs", "10 nodes", "makespan_s", "12.00", "mean_wait_s"):
        assert text in result.stdout


def test_parameters_nodes_ticks_and_malleable_share() -> None:
    front = read("simulate", "builtin:figure-5-1", "--policy", "easy", "--param", "pick=front")
    assert [job["start_s"] for job in front["jobs"]] == [0, 4, 4, 8]
    wide = read("simulate", "builtin:figure-5-1", "--policy", "fcfs", "--nodes", "22")
    assert wide["makespan_s"] == 4
    share = (
        "simulate",
        "builtin:esp-10",
        "--policy",
        "pwma-fpsma",
        "--malleable-share",
        "0.5",
        "--seed",
        "7",
    )
    one, two = read(*share), read(*share)
    assert one == two
    assert one["workload"]["notes"] == ["5 of 10 rigid jobs declared malleable (seed 7)"]
    assert one["shrinks"] > 0
    ticked = read(*share, "--tick", "5 s", "--adaptation", "published")
    assert ticked["options"]["tick_s"] == 5
    assert ticked["resize_s"] > 0


def test_profile_counts_no_calls_between_events() -> None:
    found = read("simulate", "builtin:esp-10", "--policy", "easy", "--profile")["profile"]
    assert found["policy_calls"] > 0
    assert found["policy_calls_between_events"] == found["queue_scans_between_events"] == 0
    assert found["engine_s"] > found["of_which_policy_s"] > 0


def test_compare_gives_every_policy_the_same_jobs(tmp_path: Path) -> None:
    plot = tmp_path / "compared.png"
    arguments = ("compare", "builtin:esp-10", "--policy", "fcfs", "--policy", "pwma-fpsma")
    result = run(*arguments, "--malleable-share", "1", "--plot", str(plot))
    assert result.exit_code == 0, result.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    heading, *rows = result.stdout.splitlines()
    assert heading.split()[0] == "POLICY"
    assert [row.split()[0] for row in rows] == ["fcfs", "pwma-fpsma"]
    found = read(*arguments, "--malleable-share", "1")
    spans = [run["makespan_s"] for run in found["runs"]]
    assert spans[0] == 2871
    assert spans[1] < spans[0]
    assert "jobs" not in found["runs"][0]


def test_compare_takes_one_policy_as_its_help_says() -> None:
    result = run("compare", "builtin:esp-10", "--policy", "fcfs")
    assert result.exit_code == 0, result.output
    assert "twice or more" not in run("compare", "--help").stdout


def test_compare_tells_one_policy_with_two_parameters_apart(tmp_path: Path) -> None:
    plot = tmp_path / "compared.svg"
    arguments = ("compare", "builtin:figure-5-1", "--policy", "easy", "--policy", "easy:pick=front",
                 "--policy", "fcfs", "--policy", "fcfs")  # fmt: skip
    text = run(*arguments, "--plot", str(plot))
    assert text.exit_code == 0, text.output
    assert [row.split("  ")[0] for row in text.stdout.splitlines()[1:]] == [
        "easy", "easy:pick=front", "fcfs", "fcfs (2)",
    ]  # fmt: skip
    assert plot.stat().st_size
    found = read(*arguments)["runs"]
    assert [run["label"] for run in found] == ["easy", "easy:pick=front", "fcfs", "fcfs (2)"]
    waits = [run["mean_wait_s"] for run in found]
    assert waits == [3, 4, 4, 4]
    # what all share goes to those that have it; what a policy was given itself comes first
    shared = read(*arguments, "--param", "pick=front")["runs"]
    assert [run["mean_wait_s"] for run in shared] == [4, 4, 4, 4]
    own = read("compare", "builtin:figure-5-1", "--policy", "easy:pick=first-fit,order=arrival",
               "--policy", "easy", "--param", "pick=front")["runs"]  # fmt: skip
    assert [run["mean_wait_s"] for run in own] == [3, 4]
    assert own[0]["policy"]["params"]["order"] == "arrival"


def test_simulate_goes_on_from_a_time_of_a_trace(tmp_path: Path) -> None:
    path = str(tmp_path / "run.jsonl")
    read("simulate", "builtin:figure-5-1", "--policy", "fcfs", "--trace", path)
    found = read("simulate", path, "--policy", "easy", "--at", "1 s")
    assert {job["id"]: job["start_s"] for job in found["jobs"]} == {"J1": 1, "J2": 4, "J3": 1, "J4": 8}
    assert found["what_if"]["from_s"] == 1
    late = run("simulate", path, "--policy", "easy", "--at", "99")
    assert (late.exit_code, late.stdout) == (1, "")
    assert "nothing is known of 99 s" in late.stderr


def test_output_writes_tables_and_plots(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run("simulate", "builtin:five-jobs", "--policy", "pwma-fpsma", "--output", str(folder))
    assert result.exit_code == 0, result.output
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "jobs.csv", "job_statistics.csv", "utilization.csv", "node_map.csv", "result.json", "jobs.png",
        "node_map.png",
    }  # fmt: skip

    def rows(name: str) -> list[dict[str, str]]:
        return list(csv.DictReader((folder / name).open(newline="")))

    whole = json.loads((folder / "result.json").read_text())
    assert [float(row["end_s"]) for row in rows("jobs.csv")] == [job["end_s"] for job in whole["jobs"]]
    statistics = rows("job_statistics.csv")
    assert list(statistics[0]) == [
        "ID", "Type", "Submit Time", "Start Time", "End Time", "Wait Time", "Makespan", "Turnaround Time",
        "Status",
    ]  # fmt: skip
    held = sum(float(row["to_s"]) - float(row["from_s"]) for row in rows("node_map.csv"))
    assert held == pytest.approx(whole["utilization"] * 16 * whole["makespan_s"])
    last = rows("utilization.csv")[-1]
    assert [last["held_nodes"], last["running_jobs"], last["waiting_jobs"]] == ["0", "0", "0"]
    assert max(int(row["held_nodes"]) for row in rows("utilization.csv")) == 16


def test_a_trace_is_written_replayed_and_simulated(tmp_path: Path) -> None:
    path = str(tmp_path / "run.jsonl.gz")
    first = read("simulate", "builtin:figure-5-1", "--policy", "easy", "--trace", path)
    replayed = read("replay", path, "--policy", "easy")
    assert (replayed["mode"], replayed["ok"]) == ("verify", True)
    assert replayed["passes"] == first["counts"]["policy_calls"] > 0
    assert read("replay", path, "--policy", "fcfs")["differing"] > 0
    again = read("simulate", path, "--policy", "easy")
    assert [job["start_s"] for job in again["jobs"]] == [job["start_s"] for job in first["jobs"]]


def test_output_holds_the_use_of_the_file_system_when_there_was_any(tmp_path: Path) -> None:
    folder = tmp_path / "io"
    source = tmp_path / "io.yaml"
    source.write_text(
        "machine: {nodes: 4, link_bytes_s: 1e9, file_system_bytes_s: 2e9}\n"
        "jobs:\n- name: a\n  nodes: 4\n  stages: [{write: 8e9}, {compute: 4}]\n"
    )
    result = run("simulate", str(source), "--policy", "fcfs", "--output", str(folder))
    if result.exit_code:
        pytest.fail(result.output)
    with (folder / "pfs_utilization.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(float(row["Time"]), float(row["Write"])) for row in found] == [(0.0, 2e9), (4.0, 0.0)]
    assert float(found[0]["Write (relative)"]) == 1.0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("simulate", "builtin:nothing", "--policy", "easy"), 2, "unknown workload 'nothing'"),
        (("simulate", "absent.swf", "--policy", "easy"), 2, "does not exist; what we bring is builtin:NAME"),
        (("simulate", "builtin:esp-10", "--policy", "eazy"), 2, "unknown policy 'eazy'"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--param", "pick=last"), 2, "front, first-fit"),
        (
            ("simulate", "builtin:esp-10", "--policy", "easy", *("--param", "pick=front") * 2),
            2,
            "pick is given twice",
        ),
        (
            ("simulate", "127.0.0.1:1", "--policy", "easy", "--malleable-share", "0.5"),
            2,
            "cannot be used with the state of a cluster",
        ),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--nodes", "8"), 2, "needs 16 nodes"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--tick", "0"), 2, "a duration from 1 ms"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--tick", "soon"), 2, "not a duration"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--tick", "1e-9"), 2, "from 1 ms"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--trace", "run.txt"), 2, "must end in .jsonl"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--at", "5"), 2, "--at is for a recorded trace"),
        (("convert", "tcp://127.0.0.1:1", "out.yaml"), 2, "a running cluster has no workload"),
        (("simulate", "builtin:esp-10"), 2, "--policy"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--malleable-share", "nan"), 2, "0<=x<=1"),
        (("parity", "builtin:esp-10", "--policy", "easy", "--speed", "inf"), 2, "range x>0"),
        (
            ("simulate", "builtin:esp-10", "--policy", "easy", "--default-time", "5"),
            2,
            "--default-time is for",
        ),
        (("simulate", "absent.jsonl", "--policy", "easy", "--at", "5"), 2, "does not exist"),
        (("compare", "builtin:esp-10", "--policy", "easy:pick=last"), 2, "front, first-fit"),
        (("compare", "builtin:esp-10", "--policy", "easy", "--param", "none=1"), 2, "has a parameter none"),
        (("compare", "builtin:esp-10", "--policy", "easy", "--option", "x"), 2, "NAME=VALUE"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--pool", "none=1"), 2, "none: unknown key"),
        (("simulate", "builtin:poisson", "--policy", "easy", "--option", "seed=3"), 1, "(--seed)"),
        (("simulate", "builtin:poisson", "--policy", "easy", "--option", "source=3"), 2, "'source'"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--param", "name=3"), 2, "parameter 'name'"),
        (("simulate", "builtin:esp-10", "--policy", "easy", "--param", "spec=3"), 2, "parameter 'spec'"),
        (("simulate", "builtin:esp-10", "--policy", "easy:policy=3"), 2, "parameter 'policy'"),
        (
            ("compare", "builtin:esp-10", "--policy", "easy", "--corridor-mode", "enforce"),
            2,
            "--corridor-mode needs a workload whose machine has a power corridor",
        ),
    ],
)
def test_what_cannot_be_run_is_one_line(arguments: tuple[str, ...], code: int, text: str) -> None:
    refused(run(*arguments), code, text)


def test_the_builtin_workloads_are_listed_with_their_options() -> None:
    result = run("simulate", "--list")
    assert result.exit_code == 0
    assert {f"builtin:{name}" for name in BUILTIN} <= set(result.stdout.splitlines())
    assert "  --option time_scale=1.0: all times are multiplied by it" in result.stdout.splitlines()


def test_a_job_that_never_ends_is_told(tmp_path: Path) -> None:
    source = tmp_path / "jobs.yaml"
    source.write_text(
        "machine: {nodes: 2, node_mtbf: 10 s, downtime: 5 s}\njobs: [{name: a, nodes: 2, runtime: 1000}]\n"
    )
    result = run("simulate", str(source), "--policy", "pwma-fpsma")
    assert result.exit_code == 1
    assert "job 'a' was interrupted 10000 times" in result.stderr


def test_input_and_output_without_a_bandwidth_is_noted(tmp_path: Path) -> None:
    source = tmp_path / "jobs.yaml"
    source.write_text("machine: {nodes: 2}\njobs: [{name: a, nodes: 2, stages: [{write: 5}]}]\n")
    assert "reads and writes take no time" in run("simulate", str(source), "--policy", "fcfs").stderr
    assert "reads and writes" not in run("simulate", "builtin:five-jobs", "--policy", "fcfs").stderr


def test_a_full_disk_is_one_line() -> None:
    command = [sys.executable, "-m", "dask", "hpc", "compare", "builtin:esp-10", "--policy", "easy", "--json"]
    # as a shell starts it: what is printed is buffered
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["Error: the output cannot be written: No space left on device"]


def test_what_a_run_found_is_shown_although_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("simulate", "builtin:figure-5-1", "--policy", "fcfs")
    (tmp_path / "file").write_text("mine")
    result = run(*given, "--output", str(tmp_path / "file" / "a"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing can be written there: Not a directory" in result.stderr

    def full(*_: object) -> None:
        raise WorkloadError("cannot be written to: No space left on device")

    monkeypatch.setattr("dask_hpc.sim.results.outputs.write", full)
    result = run(*given, "--output", str(tmp_path / "a"))
    assert (result.exit_code, result.stdout) == (1, run(*given).stdout)
    assert "No space left" in result.stderr


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("none/a.png", 1, "the figure cannot be written: there is no folder"),
        ("a.pictures", 1, "its name must end in one of"),
        ("a", 1, "its name must end in one of"),
        ("there.png", 2, "exists; --force replaces it"),
    ],
)
def test_a_figure_that_cannot_be_written_is_told_before_anything_is_run(
    name: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there.png").write_text("mine")
    monkeypatch.setattr(
        sys.modules["dask_hpc.cli.simulate"], "_run", lambda *_, **__: pytest.fail("it was run")
    )
    result = run("compare", "builtin:figure-5-1", "--policy", "fcfs", "--plot", str(tmp_path / name))
    assert result.exit_code == code
    assert said in result.stderr
    assert (tmp_path / "there.png").read_text() == "mine"


def test_jobs_that_did_not_end_are_told_with_the_policy_whose_means_leave_them_out(tmp_path: Path) -> None:
    source = tmp_path / "jobs.yaml"
    # one node is for staging: who needs all of them waits for ever, and under fcfs all behind it
    source.write_text(
        "machine: {nodes: 4, roles: {staging: 1}}\n"
        "jobs:\n- {name: whole, nodes: 4, runtime: 5, walltime: 5}\n"
        "- {name: part, nodes: 1, runtime: 5, walltime: 5, submit: 1}\n"
    )
    result = run("compare", str(source), "--policy", "fcfs", "--policy", "easy")
    notes = [line.split(" jobs had")[0] for line in result.stderr.splitlines()]
    assert notes == ["Note: fcfs: 2 of 2", "Note: easy: 1 of 2"]
    assert "1 of 2 jobs had not ended" in run("simulate", str(source), "--policy", "easy").stderr
    assert run("simulate", "builtin:esp-10", "--policy", "easy").stderr == ""


NODES = """
name: growing
machine:
  nodes: 8
  pool: {initial_nodes: 2, wait_s: 1 min, boot_s: 30, walltime_s: 1 h}
  roles: {staging: 1}
  power: {idle_w: 100, busy_w: 300}
jobs:
- {name: a, nodes: 1, runtime: 100}
"""


def test_a_machine_of_yaml_says_how_nodes_come_and_what_they_draw(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(NODES)
    found = read("simulate", str(tmp_path / "w.yaml"), "--policy", "fcfs")
    assert found["machine"]["pool"]["wait_s"] == 60
    assert (found["energy_j"], found["energy_busy_j"], found["nodes_came"]) == (40_000, 30_000, 0)
    assert found["pool"] == [[0, 2], [3600, 0]]
    text = run("simulate", str(tmp_path / "w.yaml"), "--policy", "fcfs").stdout
    assert "2 of 8 nodes" in text
    assert "energy_j" in text
    table = run("compare", str(tmp_path / "w.yaml"), "--policy", "fcfs", "--policy", "easy").stdout
    assert "ENERGY (J)" in table


def test_options_say_of_any_workload_how_its_nodes_are() -> None:
    found = read(
        "simulate", "builtin:figure-5-1", "--policy", "fcfs", "--power", "busy_w=10", "--pool",
        "initial_nodes=10", "--pool", "wait_s=never", "--role", "reserve=0",
    )  # fmt: skip
    assert found["machine"]["pool"]["wait_s"] is None
    assert found["machine"]["roles"] == {"reserve": 0}
    assert found["energy_j"] == pytest.approx(10 * sum(job_node_s(job["nodes"]) for job in found["jobs"]))
    wrong = run("simulate", "builtin:figure-5-1", "--policy", "fcfs", "--pool", "initial_nodes=11")
    assert wrong.exit_code != 0
    assert "--pool: initial_nodes: expected a whole number from 0 to 10, got 11" in wrong.output


def test_watts_of_busy_nodes_that_were_forgotten_are_noted() -> None:
    def told(*watts: str) -> str:
        return run("simulate", "builtin:esp-10", "--policy", "easy", "--power", *watts).stderr

    assert "busy nodes draw 0 W (busy_w), less than idle ones (100 W)" in told("idle_w=100")
    assert told("idle_w=100", "--power", "busy_w=320") == ""


def test_watts_that_are_given_leave_the_others_of_the_workload(tmp_path: Path) -> None:
    source = tmp_path / "jobs.yaml"
    source.write_text(
        "machine: {nodes: 2, power: {idle_w: 100, busy_w: 300}}\njobs: [{name: a, nodes: 2, runtime: 10}]\n"
    )
    found = read("simulate", str(source), "--policy", "fcfs", "--power", "switch_w=5")
    assert found["energy_j"] == 2 * 10 * (300 + 5)


def job_node_s(steps: list[list[float]]) -> float:
    return sum(nodes * (then - t_s) for (t_s, nodes), (then, _) in itertools.pairwise(steps))
