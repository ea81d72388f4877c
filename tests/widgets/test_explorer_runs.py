"""The explorer runs what was chosen, and says what came out, or in one line why nothing did."""

from __future__ import annotations

import json

import pytest
from markup import text

import dask_hpc
from dask_hpc.sim import simulate
from dask_hpc.sim.workloads.sources import READERS
from dask_hpc_widgets.explore import exploration
from dask_hpc_widgets.forms.workload_model import FILE

pytestmark = pytest.mark.usefixtures("no_figure")
EVIL = "<script>alert('x')</script>"


def of_file(explorer, path):
    explorer.workload.name.value = FILE
    explorer.workload.path.value = str(path)


def test_a_run_compares_what_was_chosen(explorer):
    assert text(explorer.html()).endswith("Nothing has been run.")
    assert explorer.save.disabled
    explorer.run.click()
    # Chadha (2019, figure 5.1): FCFS starts the four jobs at 0, 4, 4 and 8 s, EASY at 0, 4, 0 and 8 s
    starts = {name: [run.start_s for run in one.runs] for name, one in explorer._outcome.runs.items()}
    assert starts == {"fcfs": [0, 4, 4, 8], "easy": [0, 4, 0, 8]}
    said = text(explorer.results.value)
    assert "figure-5-1: 4 jobs, none of them can change size while they run, submitted within 0 s" in said
    assert "a machine of 10 nodes." in said
    assert "Mean wait 4 s 3 s (-25.0 %, better)" in said
    assert "J3 in 8 s in 4 s (4 s sooner)" in said
    # what was not asked for is not mentioned
    assert "declared malleable" not in said
    assert text(explorer.says.value) == "Done."
    assert 'role="status"' in explorer.says.value
    assert explorer.stale.value == ""
    assert not explorer.save.disabled
    twin = text(explorer.html())
    assert twin.startswith("Workload and policies What Chosen Workload builtin:figure-5-1 Machine none")
    assert "Policy 2 easy: " in twin
    assert "Mean wait 4 s 3 s (-25.0 %, better)" in twin


def test_a_workload_can_be_looked_at_before_anything_runs(explorer, tmp_path, monkeypatch):
    monkeypatch.setattr(exploration, "simulate", None)
    explorer.workload.name.value = "five-jobs"
    explorer.look.click()
    assert text(explorer.says.value) == (
        "five-jobs: 5 jobs, 5 of them can change size while they run, submitted within 6.67 min; "
        "a machine of 16 nodes. "
        "run times chosen by us: 700, 200, 600, 700 and 400 s; the source publishes none."
    )
    assert explorer.results.value == ""
    bad = tmp_path / "bad.swf"
    bad.write_text("1 2 3\n")
    of_file(explorer, bad)
    explorer.look.click()
    assert text(explorer.says.value).startswith(f"Error: not read: {bad}, line 1")
    explorer.workload.path.value = ""
    assert explorer.look.disabled


def test_settings_reach_the_simulator(explorer):
    form = explorer.workload
    form.settings.controls["nodes"].value = "22"
    explorer.run.click()
    assert "a machine of 22 nodes" in text(explorer.results.value)
    assert explorer._outcome.runs["fcfs"].metrics()["makespan_s"] == 4
    # the jobs are 8 nodes wide
    form.settings.controls["nodes"].value = "5"
    explorer.run.click()
    assert "not run: builtin:figure-5-1: job 'J1' needs 8 nodes, the machine has 5" in text(
        explorer.says.value
    )
    assert "a machine of 22 nodes" in text(explorer.results.value)
    form.settings.controls["wide"].value = "drop"
    assert explorer.says.value == "", "an error goes when what it is about is changed"
    explorer.run.click()
    assert "2 jobs wider than the machine left out" in text(explorer.results.value)
    form.settings.controls["nodes"].value = "none"
    form.settings.controls["malleable_share"].value = "0.5"
    form.settings.controls["adaptation"].value = "published"
    form.settings.controls["seed"].value = "3"
    explorer.run.click()
    assert "2 of them can change size" in text(explorer.results.value)
    assert "2 of 4 rigid jobs declared malleable (seed 3)" in text(explorer.results.value)
    run = explorer._outcome.runs["easy"]
    assert run.options.seed == 3
    assert run.machine.adaptation.expand_base_s > 0
    form.name.value = "poisson"
    form.options.controls["jobs"].value = "7"
    explorer.run.click()
    assert text(explorer.results.value).startswith("Results poisson: 7 jobs")


def files(folder):
    """A workload in each kind of file."""
    (folder / "model.json").write_text(json.dumps({"phases": [{"tasks": [{"type": "idle", "delay": 5}]}]}))
    job = {"type": "rigid", "submit_time": 0, "num_nodes": 2, "application_model": "model.json"}
    (folder / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    (folder / "jobs.swf").write_text("; MaxNodes: 4\n1 0 -1 5 2 -1 -1 2 9 -1 1 1 1 -1 1 -1 -1 -1\n")
    (folder / "jobs.yaml").write_text(
        f'machine: {{nodes: 4}}\njobs:\n- {{name: "{EVIL}", submit: 0 s, nodes: 2, runtime: 5 s}}\n'
    )
    simulate(dask_hpc.sim.load(folder / "jobs.yaml"), "fcfs", trace=folder / "run.jsonl")
    return ["jobs.json", "jobs.swf", "jobs.yaml", "run.jsonl"]


def test_every_kind_of_file_is_run(explorer, tmp_path):
    explorer.workload.settings.controls["nodes"].value = "4"
    for name in files(tmp_path):
        of_file(explorer, tmp_path / name)
        explorer.run.click()
        assert text(explorer.says.value) == "Done.", name
        said = text(explorer.results.value)
        assert "1 job, none of them can change size while they run, submitted within 0 s" in said
        assert "a machine of 4 nodes" in said
        assert explorer._outcome.runs["easy"].metrics()["makespan_s"] == 5
        assert EVIL not in explorer.results.value + explorer.html()
    assert {f".{name.rpartition('.')[2]}" for name in files(tmp_path)} < set(READERS)


def test_a_bad_file_gives_its_one_error_and_no_policy_runs(explorer, tmp_path, monkeypatch):
    explorer.run.click()
    before = explorer.results.value
    monkeypatch.setattr(exploration, "simulate", None)
    bad = tmp_path / "bad.yaml"
    bad.write_text("machine: {nodes: 4}\njobs:\n- {name: a, submit: never, nodes: 2, runtime: 5 s}\n")
    of_file(explorer, bad)
    explorer.run.click()
    said = text(explorer.says.value)
    assert said.startswith(f"Error: not run: {bad}, line 3")
    assert "never" in said
    assert explorer.results.value == before
    assert not explorer.run.disabled


@pytest.mark.parametrize(
    ("header", "nodes", "said"),
    [("", "none", "say so under Machine"), ("; MaxNodes: 4\n", "1", "larger Machine, or drop or clip")],
)
def test_errors_name_fields_and_not_options_of_the_command_line(explorer, tmp_path, header, nodes, said):
    file = tmp_path / "jobs.swf"
    file.write_text(f"{header}1 0 -1 5 2 -1 -1 2 9 -1 1 1 1 -1 1 -1 -1 -1\n")
    of_file(explorer, file)
    explorer.workload.settings.controls["nodes"].value = nodes
    explorer.run.click()
    assert said in text(explorer.says.value)
    assert "--" not in text(explorer.says.value)


def test_a_policy_that_fails_is_named_in_a_row_and_the_results_of_the_others_are_kept(
    explorer, monkeypatch, tmp_path
):
    def fails(workload, spec, **more):
        if spec["policy"] in failing:
            raise KeyError(EVIL)
        return simulate(workload, spec, **more)

    monkeypatch.setattr(exploration, "simulate", fails)
    failing = ("fcfs",)
    explorer.run.click()
    assert text(explorer.says.value) == f"Done. Error: fcfs failed: KeyError: {EVIL!r}"
    said = text(explorer.results.value)
    assert f"Policy Failed, and is not compared fcfs KeyError: {EVIL!r}" in said
    assert "The measure of the others is easy." in said
    assert "Mean wait 3 s" in said
    assert "not run to the end" not in said
    assert EVIL not in explorer.results.value
    explorer.path.value = str(tmp_path / "found.json")
    explorer.save.click()
    saved = json.loads((tmp_path / "found.json").read_text())
    assert [run["label"] for run in saved["runs"]] == ["easy"]
    assert saved["failures"] == {"fcfs": f"KeyError: {EVIL!r}"}
    failing = ("fcfs", "easy")
    explorer.run.click()
    assert text(explorer.says.value).startswith("No policy could be run. Error: fcfs failed: ")
    assert "easy KeyError" in text(explorer.results.value)


def test_results_of_other_choices_are_said_to_be_old(explorer):
    explorer.run.click()
    control = explorer.workload.settings.controls["seed"]
    control.value = "5"
    assert "The choices have changed since these results" in text(explorer.stale.value)
    assert "The choices have changed since these results" in text(explorer.html())
    control.value = "0"
    assert explorer.stale.value == ""
    control.value = "wrong"
    assert "The choices have changed" in text(explorer.stale.value)
