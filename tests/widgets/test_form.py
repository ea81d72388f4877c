"""The form that is made from declared parameters: every one of every policy, and nothing invalid gets out."""

from __future__ import annotations

from pathlib import Path

import ipywidgets
import pytest
from markupsafe import escape

from dask_hpc_policies import registry
from dask_hpc_policies.params import Bool, Int, ParameterError, Parameters
from dask_hpc_widgets.forms.fields import PolicyForm, _control
from dask_hpc_widgets.forms.model import PolicyModel

NAMES = (*registry.names(), *registry.library_names())
FIELDS = [
    (name, one) for name in NAMES for one in Parameters(getattr(registry.create(name), "parameters", ()))
]
IDS = [f"{name}-{one.name}" for name, one in FIELDS]
EASY = registry.spec_of(registry.create("easy"))


def form_of(name):
    return PolicyForm(PolicyModel(registry.spec_of(registry.create(name))))


@pytest.mark.parametrize(("name", "one"), FIELDS, ids=IDS)
def test_every_row_says_what_it_takes(name, one):
    form = form_of(name)
    control = form.controls[one.name]
    assert control.description == one.label + (f" ({one.unit})" if one.unit else "")
    assert control.tabbable is not False
    assert one.allowed in control.tooltip
    assert one.validate(control.value) == one.validate(form.model.texts[one.name])
    said = form.says[one.name].value
    assert "Error" not in said
    assert escape(one.help) in said
    assert escape(one.allowed) in said


def test_a_policy_that_is_chosen_for_a_person_has_its_defaults_also_where_it_was_edited():
    told = []
    form = PolicyForm(PolicyModel(EASY), lambda: told.append(1))
    name, one = next((name, one) for name, one in FIELDS if name == "power-aware" and one.name == "margin_w")
    form.policy.value = name
    default, form.controls[one.name].value = form.controls[one.name].value, "12.5"
    assert form.model.spec() != registry.spec_of(registry.create(name))
    told.clear()
    form.choose(name)
    assert form.model.spec() == registry.spec_of(registry.create(name))
    assert (form.policy.value, form.controls[one.name].value, told) == (name, default, [1])


def test_a_policy_that_cannot_be_made_is_not_chosen_and_the_form_shows_what_is(monkeypatch):
    told = []
    form = PolicyForm(PolicyModel(EASY), lambda: told.append(1))
    form.policy.value = "fcfs"
    create = registry.create

    def failing(spec, **more):
        if spec in ("fair", Path("fair.yaml")):
            raise ZeroDivisionError("<b>")
        return create(spec, **more)

    monkeypatch.setattr(registry, "create", failing)
    told.clear()
    form.policy.value = "fair"
    assert (form.policy.value, form.model.spec()["policy"], told) == ("fcfs", "fcfs", [])
    assert "not chosen: fair: ZeroDivisionError: &lt;b&gt;" in form.about.value
    form.path.value = "fair.yaml"
    form.load.click()
    assert (form.policy.value, form.model.spec()["policy"], told) == ("fcfs", "fcfs", [])
    assert "not loaded: ZeroDivisionError: &lt;b&gt;" in form.about.value


@pytest.mark.parametrize(("name", "one"), FIELDS, ids=IDS)
def test_what_is_wrong_stands_in_its_row_until_it_is_mended(name, one):
    told = []
    form = PolicyForm(PolicyModel(registry.spec_of(registry.create(name))), lambda: told.append(1))
    control = form.controls[one.name]
    good = control.value
    if isinstance(control, ipywidgets.Dropdown):
        # nothing wrong can be chosen; what can be is what is declared
        assert all(one.validate(value) in (*one.choices, True, False, None) for value in control.options)
        assert len(control.options) == (len(one.choices) or 2) + one.none_ok
        return
    control.value = "<b>wrong</b>"
    said = form.says[one.name].value
    assert "Error:" in said
    assert 'role="alert"' in said
    assert "&lt;b&gt;wrong&lt;/b&gt;" in said
    assert "<b>wrong" not in said
    others = [html.value for key, html in form.says.items() if key != one.name]
    assert not any("Error:" in text for text in others)
    with pytest.raises(ParameterError):
        form.model.spec()
    control.value = good
    assert "Error:" not in form.says[one.name].value
    assert form.model.changes() == ()
    assert told == [1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_can_be_chosen(name):
    form = form_of("easy")
    form.policy.value = name
    assert form.model.spec() == registry.spec_of(registry.create(name))
    assert list(form.controls) == [one.name for one in form.model.parameters]
    assert escape(registry.describe(name)["summary"]) in form.about.value
    form.policy.value = form.policy.options[0][1]
    assert form.model.spec() == EASY


def test_fields_that_are_wrong_together_are_said_where_it_is_typed():
    spec = registry.spec_of(registry.create({"policy": "easy", "compose": ["mtct"]}))
    form = PolicyForm(PolicyModel(spec))
    form.controls["mtct_upper"].value = "0.1"
    assert "Error:" in form.says["mtct_upper"].value
    form.controls["mtct_upper"].value = "0.9"
    form.controls["mtct_lower"].value = "0.95"
    assert "Error:" in form.says["mtct_lower"].value
    assert "Error:" not in form.says["mtct_upper"].value
    # shown anew, it still stands somewhere
    form.refresh()
    assert any("Error:" in html.value for html in form.says.values())


def test_switches_and_none_are_choices():
    assert _control(Bool("b", True, none_ok=True)).options == ("true", "false", "none")
    row = _control(Int("n", 2, lo=1, unit="nodes"))
    assert (row.description, row.placeholder) == ("n (nodes)", "a whole number of at least 1 nodes")


def test_a_policy_goes_to_a_file_and_comes_back(tmp_path):
    form = form_of("calm")
    form.controls["cooldown_s"].value = "2 min"
    wanted = form.model.spec()
    form.path.value = str(tmp_path / "mine.yaml")
    form.save.click()
    assert "Saved" in form.about.value
    other = form_of("easy")
    other.path.value = form.path.value
    other.load.click()
    assert other.model.spec() == wanted
    assert other.policy.label == "file mine.yaml"
    assert "mine.yaml holds pwma-fpsma + hysteresis + cooldown." in other.about.value
    assert list(other.controls) == list(form.controls)


@pytest.mark.parametrize("path", ["", "policy.txt", "/nowhere/at/all.yaml"])
def test_what_cannot_be_saved_or_loaded_says_so_and_changes_nothing(path):
    form = form_of("easy")
    form.path.value = path
    form.save.click()
    assert "Error:" in form.about.value
    form.load.click()
    assert "Error:" in form.about.value
    assert form.model.spec() == EASY


def test_nothing_invalid_is_saved(tmp_path):
    form = form_of("calm")
    form.path.value = str(tmp_path / "mine.yaml")
    form.controls["cooldown_s"].value = "soon"
    form.save.click()
    assert "cooldown_s" in form.about.value
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_runs_is_no_choice():
    form = PolicyForm(PolicyModel({"policy": "mine:Mine", "params": {}, "custom": True}))
    assert form.policy.value == "pwma-fpsma"
    assert [value for _, value in form.policy.options] == list(NAMES)


def test_the_form_follows_what_runs():
    form = form_of("easy")
    form.policy.value = "calm"
    form.model.applied(form.model.spec())
    form.model.reverted(EASY)
    form.follow()
    assert form.policy.label == "as it runs: easy"
    assert list(form.controls) == list(form.model.texts)


def test_forms_that_are_gone_leave_no_widget():
    before = set(ipywidgets.widgets.widget._instances)
    form = form_of("calm")
    for name in ("easy", "sfsj", "calm"):
        form.policy.value = name
    form.close()
    assert set(ipywidgets.widgets.widget._instances) == before
