"""The explorer, without a kernel: what can be chosen, and that what is wrong with it stands beside it."""

from __future__ import annotations

import ipywidgets
import pytest
from ipywidgets.widgets.widget import _instances
from markup import text
from markupsafe import escape

from dask_hpc_policies import registry
from dask_hpc_widgets.explore import exploration
from dask_hpc_widgets.forms.fields import below
from dask_hpc_widgets.forms.model import titles
from dask_hpc_widgets.forms.policies import FEWEST, MOST
from dask_hpc_widgets.forms.workload_model import FILE, GENERATORS, SETTINGS, WorkloadModel

pytestmark = pytest.mark.usefixtures("no_figure")
EVIL = "<script>alert('x')</script>"


def controls(explorer):
    kinds = (ipywidgets.Text, ipywidgets.Dropdown, ipywidgets.Checkbox, ipywidgets.Button)
    return [widget for widget in below(explorer) if isinstance(widget, kinds)]


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


def test_a_policy_that_is_removed_takes_nothing_of_the_others_along(explorer):
    explorer.policies.add.click()
    before = set(_instances.values())
    explorer.policies.entries[0].remove.click()
    there = set(_instances.values())
    assert there < before
    assert {one.layout for one in there if one.has_trait("layout")} <= there


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
