"""The simulation explorer, without a kernel: what can be chosen, what is refused, what comes out."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import threading
from html import unescape

import ipywidgets
import pytest
from ipywidgets.widgets.widget import _instances
from markupsafe import escape

import dask_hpc
from dask_hpc.errors import InstallError
from dask_hpc.sim import Result, results, simulate
from dask_hpc.sim.workloads.sources import READERS
from dask_hpc_policies import registry
from dask_hpc_widgets.explore import exploration
from dask_hpc_widgets.explorer import Explorer
from dask_hpc_widgets.forms.fields import below
from dask_hpc_widgets.forms.model import titles
from dask_hpc_widgets.forms.policies import FEWEST, MOST
from dask_hpc_widgets.forms.workload_model import FILE, GENERATORS, SETTINGS, WorkloadModel

EVIL = "<script>alert('x')</script>"
PATIENCE_S = 60
drawn = exploration._figure


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """No figure: those tests that look at one draw it."""
    monkeypatch.setattr(exploration, "_figure", lambda runs: "")


@pytest.fixture
def explorer():
    made = Explorer("builtin:figure-5-1", ("fcfs", "easy"))
    yield made
    made.close()


def text(html):
    """The words of a piece of markup."""
    without = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", without)).split())


def controls(explorer):
    kinds = (ipywidgets.Text, ipywidgets.Dropdown, ipywidgets.Checkbox, ipywidgets.Button)
    return [widget for widget in below(explorer) if isinstance(widget, kinds)]


def of_file(explorer, path):
    explorer.workload.name.value = FILE
    explorer.workload.path.value = str(path)


# ------------------------------------------------------------------- choosing


@pytest.mark.parametrize("name", [*GENERATORS, FILE])
def test_every_control_says_what_it_is_and_what_it_takes(explorer, name):
    explorer.workload.name.value = name
    for control in controls(explorer):
        assert control.description
        assert control.tooltip
        assert control.tabbable is not False
    fields = [(explorer.workload.settings, explorer.workload.model.settings)]
    if name != FILE:
        fields.append((explorer.workload.options, GENERATORS[name].options))
        assert escape(GENERATORS[name].summary) in explorer.workload.about.value
    for shown, declared in fields:
        assert list(shown.controls) == [one.name for one in declared]
        for one in declared:
            assert one.allowed in shown.controls[one.name].tooltip
            assert escape(one.allowed) in shown.says[one.name].value
            assert one.validate(shown.controls[one.name].value) == one.default


@pytest.mark.parametrize("name", [name for name, made in GENERATORS.items() if list(made.options)])
def test_what_is_wrong_with_an_option_stands_in_its_row_and_nothing_runs(explorer, monkeypatch, name):
    monkeypatch.setattr(exploration, "run", None)
    explorer.workload.name.value = name
    shown = explorer.workload.options
    for one in GENERATORS[name].options:
        if one.kind in ("choice", "bool"):
            continue  # nothing wrong can be chosen
        good = shown.controls[one.name].value
        shown.controls[one.name].value = EVIL
        assert "Error:" in shown.says[one.name].value
        assert escape(EVIL) in shown.says[one.name].value
        assert EVIL not in shown.says[one.name].value
        assert sum("Error:" in said.value for said in shown.says.values()) == 1
        assert explorer.run.disabled
        assert f"not valid: {one.label or one.name}." in text(explorer.why.value)
        assert EVIL not in explorer.html()
        explorer.run.click()
        assert explorer.results.value == ""
        shown.controls[one.name].value = good
        assert "Error:" not in shown.says[one.name].value
        assert not explorer.run.disabled
        assert explorer.why.value == ""


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("nodes", "0"), ("nodes", "many"), ("malleable_share", "1.5"), ("seed", "-1"), ("seed", "")],
)
def test_what_is_wrong_with_a_setting_stands_in_its_row(explorer, name, wrong):
    shown = explorer.workload.settings
    shown.controls[name].value = wrong
    said = text(shown.says[name].value)
    assert said.startswith("Error:")
    assert SETTINGS.json_spec()[[one.name for one in SETTINGS].index(name)]["allowed"] in said
    assert explorer.run.disabled
    assert sum("Error:" in one.value for one in shown.says.values()) == 1


def test_a_file_is_looked_for_while_it_is_typed(explorer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.swf").mkdir()
    (tmp_path / "there.swf").write_text("")
    form = explorer.workload
    assert form.path_says.value
    form.name.value = FILE
    expected = {
        "": "Error: no file is named; give the path of one that ends in .swf",
        "x.csv": "Error: x.csv: unknown kind of workload; a file ends in .swf",
        "x.swf": f"Error: x.swf: no such file (looked in {tmp_path})",
        "folder.swf": "Error: folder.swf: not a file",
        "~nobody-has-this-name/x.swf": "Error: ",
        " there.swf ": "Allowed: SWF, ElastiSim JSON, YAML",
    }
    for typed, said in expected.items():
        form.path.value = typed
        assert text(form.path_says.value).startswith(said)
        assert explorer.run.disabled == said.startswith("Error")
    # what is typed for a file does not matter to a builtin workload, and is still there afterwards
    form.path.value = "x.csv"
    with pytest.raises(ValueError, match=r"x\.csv: unknown kind of workload"):
        form.model.arguments()
    form.name.value = "poisson"
    assert not explorer.run.disabled
    form.name.value = FILE
    assert explorer.run.disabled
    assert form.path.value == "x.csv"


def test_another_workload_has_options_of_its_own_and_the_same_settings():
    model = WorkloadModel("builtin:esp")
    model.option_texts["nodes"] = "64"
    model.type_setting("nodes", "100")
    model.choose("figure-5-1")
    # no malleable share of its own, so there is one for all
    assert model.option_texts == {}
    assert "malleable_share" in model.setting_texts
    model.choose("esp")
    assert "malleable_share" not in model.setting_texts
    found = model.arguments()
    assert (found["options"]["nodes"], found["nodes"], found["malleable_share"]) == (32, 100, None)
    with pytest.raises(ValueError, match=r"unknown workload 'espp'.*did you mean 'esp'"):
        model.choose("espp")
    assert model.name == "esp"


def test_policies_are_added_and_removed_and_numbered(explorer):
    form = explorer.policies
    heads = lambda: [text(entry.head.value) for entry in form.entries]  # noqa: E731
    assert heads() == ["Policy 1: fcfs, the measure of the others", "Policy 2: easy"]
    assert all(entry.remove.disabled for entry in form.entries)
    while not form.add.disabled:
        form.add.click()
    assert len(form.entries) == MOST
    assert len({str(spec) for spec in form.specs()}) == MOST
    assert not explorer.run.disabled
    form.add.click()
    assert len(form.entries) == MOST
    form.entries[0].remove.click()
    assert heads()[0] == "Policy 1: easy, the measure of the others"
    assert form.entries[0].remove.description == "Remove policy 1"
    while not form.entries[0].remove.disabled:
        form.entries[-1].remove.click()
    assert len(form.entries) == FEWEST
    form.entries[0].remove.click()
    assert len(form.entries) == FEWEST


def test_removed_policies_leave_no_widget_behind(explorer):
    before = set(_instances)
    explorer.policies.add.click()
    assert set(_instances) > before
    explorer.policies.entries[-1].remove.click()
    assert set(_instances) == before


def test_the_same_policy_twice_is_refused_until_it_differs(explorer):
    second = explorer.policies.entries[1].form
    second.policy.value = "fcfs"
    assert text(explorer.why.value) == (
        "To run, mend what is not valid: Policy 2 is just as policy 1: change or remove it."
    )
    assert explorer.run.disabled
    second.policy.value = "easy"
    assert not explorer.run.disabled
    first = explorer.policies.entries[0].form
    first.policy.value = "easy"
    first.controls["reservation_depth"].value = "3"
    assert [text(entry.head.value) for entry in explorer.policies.entries] == [
        f"Policy 1: easy ({first.model.parameters._by_name['reservation_depth'].label} 3), "
        "the measure of the others",
        f"Policy 2: easy ({first.model.parameters._by_name['reservation_depth'].label} 1)",
    ]
    assert not explorer.run.disabled


def test_a_wrong_parameter_of_a_policy_stops_the_run(explorer):
    easy = explorer.policies.entries[1].form
    easy.controls["reservation_depth"].value = "-3"
    assert "Error:" in easy.says["reservation_depth"].value
    assert explorer.run.disabled
    assert "Policy 2" in text(explorer.why.value)
    assert "Error: not valid: Policy 2" in text(explorer.html())


def test_titles_tell_namesakes_apart():
    spec = lambda source, **params: registry.spec_of(registry.create(source, **params))  # noqa: E731
    easy, deep = spec("easy"), spec("easy", reservation_depth=2)
    assert titles([easy, spec("fcfs"), easy]) == ["easy", "fcfs", "easy"]
    found = titles([easy, deep, spec("fcfs")])
    assert len(set(found)) == 3
    assert "2" in found[1]
    # members may differ where the parameters of the whole do not show it
    chains = [
        {"policy": "chain", "policies": [first, second]} for first, second in ((easy, deep), (deep, easy))
    ]
    found = titles([registry.spec_of(registry.create(chain)) for chain in chains])
    assert len(set(found)) == 2


# -------------------------------------------------------------------- running


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


def test_a_policy_that_fails_says_how(explorer, monkeypatch):
    def fails(*_, **__):
        raise KeyError("boom")

    monkeypatch.setattr(exploration, "simulate", fails)
    explorer.run.click()
    assert text(explorer.says.value) == "Error: not run: KeyError: 'boom'"


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


# ------------------------------------------------------- beside a kernel's loop


def threads():
    return [one for one in threading.enumerate() if one.name == "dask-hpc-simulation"]


async def until(condition):
    """Let the loop go on until it has brought what is waited for."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


def test_a_run_goes_on_beside_the_loop(explorer, monkeypatch):
    seen, plans = [], []
    real = exploration.run
    monkeypatch.setattr(
        exploration, "run", lambda plan, progress: [plans.append(plan), real(plan, progress)][1]
    )
    explorer.progress.observe(lambda change: seen.append(threading.get_ident()), names="value")

    async def main():
        explorer.run.click()
        assert explorer.run.disabled
        assert explorer._under_way.layout.display == "flex"
        explorer.run.click()
        await until(lambda: explorer._turn is None)

    asyncio.run(main())
    assert text(explorer.says.value) == "Done."
    assert explorer._under_way.layout.display == "none"
    assert not explorer.run.disabled
    assert set(seen) <= {threading.get_ident()}
    assert len(plans) == 1
    for thread in threads():
        thread.join(PATIENCE_S)
    assert threads() == []


def test_progress_names_the_policy_that_runs(explorer, monkeypatch):
    said = []
    explorer.says.observe(lambda change: said.append(text(change["new"])), names="value")

    def telling(plan, progress):
        for share in (0.0, 0.5, 1.0):
            progress(share)
        return real(plan)

    real = exploration.run
    monkeypatch.setattr(exploration, "run", telling)
    monkeypatch.setattr("dask_hpc_widgets.base.background._PERIOD_S", 0.0)
    explorer.run.click()
    assert said == [
        "Reading the workload.",
        "Running policy 1 of 2: fcfs.",
        "Running policy 2 of 2: easy.",
        "Done.",
    ]
    assert explorer.progress.value == 1.0


def test_stop_ends_a_run_at_once_and_nothing_of_it_is_kept(explorer, monkeypatch):
    def endless(workload, spec, **more):
        if spec["policy"] == "fcfs":
            return simulate(workload, spec, **more)
        while True:
            more["progress"](1)

    monkeypatch.setattr(exploration, "simulate", endless)
    gc.collect()
    before = sum(type(one) is Result for one in gc.get_objects())

    async def main():
        explorer.run.click()
        # the first policy has run, and its result is there
        await until(lambda: "policy 2 of 2" in explorer.says.value)
        explorer.stop.click()
        assert text(explorer.says.value) == "Stopped; nothing of it was kept."
        assert not explorer.run.disabled
        assert explorer._under_way.layout.display == "none"
        explorer.stop.click()
        # by itself: the loop goes on
        await until(lambda: not threads())

    asyncio.run(main())
    assert explorer.results.value == ""
    assert explorer.save.disabled
    gc.collect()
    assert sum(type(one) is Result for one in gc.get_objects()) <= before


def test_what_was_stopped_does_not_come_after_what_ran_later(explorer, monkeypatch):
    go = threading.Event()
    real = exploration.run

    def slow(plan, progress):
        if plan.workload["seed"] == 1:
            # a workload is generated or read in one piece
            go.wait(PATIENCE_S)
        return real(plan)

    monkeypatch.setattr(exploration, "run", slow)
    seed = explorer.workload.settings.controls["seed"]

    async def main():
        seed.value = "1"
        explorer.run.click()
        explorer.stop.click()
        seed.value = "2"
        explorer.run.click()
        await until(lambda: explorer._turn is None)
        go.set()
        await until(lambda: not threads())
        await asyncio.sleep(0)

    asyncio.run(main())
    assert explorer._outcome.plan.workload["seed"] == 2
    assert text(explorer.says.value) == "Done."


def test_close_ends_what_is_under_way_and_takes_every_widget_away(monkeypatch):
    def endless(plan, progress):
        while True:
            progress(0.0)

    monkeypatch.setattr(exploration, "run", endless)
    explorer = Explorer("builtin:figure-5-1", ("fcfs", "easy"))
    inside = below(explorer)

    async def main():
        explorer.run.click()
        explorer.close()
        explorer.close()
        await until(lambda: not threads())

    asyncio.run(main())
    assert all(widget.comm is None for widget in inside)
    assert repr(explorer) == "<Explorer closed>"


# ------------------------------------------------------------ saving and showing


def test_results_are_saved_and_not_overwritten_unasked(explorer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    explorer.run.click()
    explorer.path.value = "found.json"
    explorer.save.click()
    assert text(explorer.saved.value) == "Saved as found.json."
    saved = json.loads((tmp_path / "found.json").read_text())
    expected = [{"label": label, **one.to_json()} for label, one in explorer._outcome.runs.items()]
    assert saved == json.loads(json.dumps({"schema": 1, "kind": "comparison", "runs": expected}))
    assert [len(run["jobs"]) for run in saved["runs"]] == [4, 4]

    (tmp_path / "found.json").write_text("mine")
    explorer.save.click()
    said = text(explorer.saved.value)
    assert said.startswith("Error: not saved: found.json is there already: tick 'Replace the file'")
    assert (tmp_path / "found.json").read_text() == "mine"
    explorer.replace.value = True
    explorer.save.click()
    assert json.loads((tmp_path / "found.json").read_text()) == saved
    # the next one is asked for anew
    assert explorer.replace.value is False
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "results file is '': give it a name that ends in .json"),
        ("found.txt", "results file is 'found.txt': give it a name that ends in .json"),
        ("nowhere/found.json", "No such file or directory"),
    ],
)
def test_where_results_cannot_be_saved(explorer, tmp_path, monkeypatch, path, said):
    monkeypatch.chdir(tmp_path)
    explorer.run.click()
    explorer.path.value = path
    explorer.save.click()
    assert text(explorer.saved.value).startswith("Error: not saved: ")
    assert said in text(explorer.saved.value)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_the_old_file(explorer, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    explorer.run.click()
    file = tmp_path / "found.json"
    file.write_text("mine")
    monkeypatch.setattr("os.replace", full)
    explorer.path.value, explorer.replace.value = str(file), True
    explorer.save.click()
    assert "No space left on device" in text(explorer.saved.value)
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_the_figure_is_also_told_in_words(explorer, monkeypatch):
    monkeypatch.setattr(exploration, "_figure", drawn)
    explorer.run.click()
    (image,) = re.findall(r"<img[^>]*>", explorer.results.value)
    alt = unescape(re.search(r'alt="([^"]*)"', image)[1])
    # 88 node-seconds of 10 nodes in 12 s, twice
    assert alt == (
        "Nodes in use over time, of 10. fcfs: 7.33 on average for 12 s; easy: 7.33 on average for 12 s."
    )
    assert 'src="data:image/png;base64,iVBORw0KGgo' in image
    assert image in explorer.html()
    assert EVIL not in drawn({EVIL: explorer._outcome.runs["easy"]})


def test_without_matplotlib_there_are_results_and_a_hint(explorer, monkeypatch):
    monkeypatch.setattr(exploration, "_figure", drawn)
    monkeypatch.setitem(sys.modules, "dask_hpc.sim.results.plots", None)
    monkeypatch.delattr(results, "plots", raising=False)
    explorer.run.click()
    assert "There is no figure: it needs matplotlib, pip install 'dask-hpc[plot]'." in text(
        explorer.results.value
    )
    assert "Mean wait 4 s 3 s" in text(explorer.results.value)


def test_what_a_notebook_shows_and_what_it_keeps(explorer):
    assert repr(explorer) == "<Explorer workload='figure-5-1' policies=2>"
    data = explorer._repr_mimebundle_()
    data = data[0] if isinstance(data, tuple) else data
    assert data["text/plain"] == repr(explorer)
    assert data["text/html"] == explorer.html()
    assert "application/vnd.jupyter.widget-view+json" in data


def test_it_is_reached_from_the_package(monkeypatch):
    explorer = dask_hpc.explore()
    assert repr(explorer) == "<Explorer workload='five-jobs' policies=2>"
    assert not explorer.run.disabled
    explorer.close()
    explorer = dask_hpc.explore("mine.swf", ["easy", "sfsj", {"policy": "easy", "compose": ["mtct"]}])
    assert repr(explorer) == "<Explorer workload='mine.swf' policies=3>"
    assert "Policy 3: easy + mtct" in text(explorer.policies.entries[2].head.value)
    explorer.close()
    monkeypatch.setitem(sys.modules, "dask_hpc_widgets.explorer", None)
    with pytest.raises(
        InstallError, match=r"the explorer needs ipywidgets .*pip install 'dask-hpc\[widgets\]'"
    ):
        dask_hpc.explore()


class Mine:
    """A policy that no data describes."""

    name = "mine"

    def initial_state(self):
        return None

    def decide(self, view, state):
        return None, state


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"workload": "builtin:esp10"}, "unknown workload 'esp10'.*did you mean 'esp-10'"),
        ({"policies": ["easy"]}, "1 policies to compare; give 2 to 6"),
        ({"policies": ["easy"] * 7}, "7 policies to compare; give 2 to 6"),
        ({"policies": ["easy", "eazy"]}, "eazy"),
        (
            {"policies": ["easy", Mine()]},
            "policy '.*:Mine' is an object: give a name, a file or a specification",
        ),
    ],
)
def test_what_it_cannot_begin_with(arguments, said):
    with pytest.raises(ValueError, match=said):
        dask_hpc.explore(**arguments)
