"""The state behind the policy form: nothing invalid becomes a specification."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dask_hpc_policies import registry
from dask_hpc_policies.params import ParameterError, Parameters
from dask_hpc_widgets.forms.model import PolicyModel, changes, is_custom, title

FIELDS = [
    (name, one)
    for name in (*registry.names(), *registry.library_names())
    for one in Parameters(getattr(registry.create(name), "parameters", ()))
]


@pytest.mark.parametrize(("name", "one"), FIELDS, ids=[f"{name}-{one.name}" for name, one in FIELDS])
def test_a_bad_field_never_becomes_a_specification(name, one):
    model = PolicyModel(registry.spec_of(registry.create(name)))
    bad = ["", "garbage?", "nan", "1e999"]
    if one.lo is not None:
        bad.append(repr(one.lo - 1))
    if one.hi is not None:
        bad.append(repr(one.hi + 1))
    for text in bad:
        assert one.name in model.type(one.name, text)
        assert list(model.errors) == [one.name]
        with pytest.raises(ParameterError, match=one.name):
            model.spec()


@pytest.mark.parametrize("name", [*registry.names(), *registry.library_names()])
def test_an_untouched_form_is_the_policy_itself_and_survives_a_file(name, tmp_path):
    spec = registry.spec_of(registry.create(name))
    model = PolicyModel(spec)
    assert model.errors == {}
    assert model.spec() == spec
    model.save(tmp_path / "policy.yaml")
    again = PolicyModel({"policy": "fcfs"})
    again.load(tmp_path / "policy.yaml")
    assert again.spec() == spec


def test_a_refused_load_changes_nothing():
    model = PolicyModel({"policy": "easy"})
    before = model.spec()
    with pytest.raises(ValueError, match="nothing-such"):
        model.load("nothing-such")
    assert model.spec() == before


def test_a_policy_is_anybodys_code_and_may_raise_anything(monkeypatch):
    def boom(*policy, **typed):
        raise ZeroDivisionError("boom")

    model = PolicyModel(CALM)
    monkeypatch.setattr(registry, "updated", boom)
    assert model.type("cooldown_s", "2 min") == "ZeroDivisionError: boom"
    assert model.errors == {"": "ZeroDivisionError: boom"}
    model = PolicyModel(CALM)
    monkeypatch.setattr(registry, "create", lambda source: SimpleNamespace(parameters=5))
    with pytest.raises(TypeError):
        model.load("easy")
    assert model.spec() == CALM, "refused: nothing changes"


@pytest.mark.parametrize(("name", "one"), FIELDS, ids=[f"{name}-{one.name}" for name, one in FIELDS])
def test_bounds_and_choices_are_valid_and_reach_the_specification(name, one):
    start = registry.spec_of(registry.create(name))
    choices = {"choice": one.choices, "bool": (True, False)}
    values = choices.get(one.kind) or [bound for bound in (one.lo, one.hi) if bound is not None]
    for value in values:
        model = PolicyModel(start)
        said = model.type(one.name, one.format(value))
        assert said == model.errors.get("", "")
        if one.name in ("mtct_lower", "mtct_upper") and model.errors:
            # valid alone, but the lower bound would not be below the upper one
            assert list(model.errors) == [""]
            with pytest.raises(ParameterError, match="mtct"):
                model.spec()
            continue
        assert model.errors == {}
        again = PolicyModel(model.spec())
        assert one.validate(again.texts[one.name]) == value


CUSTOM = {"policy": "mine:Mine", "params": {"a": 1}, "custom": True}
EASY = registry.spec_of(registry.create("easy"))
CALM = registry.spec_of(registry.create("calm"))


def test_fields_that_are_wrong_together_say_so_where_it_is_typed():
    model = PolicyModel(registry.spec_of(registry.create({"policy": "pwma-fpsma", "compose": ["mtct"]})))
    model.type("mtct_lower", "0.9")
    assert "mtct_lower" in model.type("mtct_upper", "0.8")
    assert list(model.errors) == [""]
    with pytest.raises(ParameterError, match="mtct"):
        model.changes()


def test_members_that_share_a_parameter_stay_as_they_are_until_it_is_typed():
    members = [{"policy": "pwma-fpsma", "params": {"min_remaining_s": s}} for s in (10.0, 20.0)]
    spec = registry.spec_of(registry.create({"policy": "chain", "policies": members}))
    model = PolicyModel(spec)
    assert model.spec() == spec
    assert model.changes() == ()
    model.type("min_remaining_s", "30 s")
    assert [m["params"]["min_remaining_s"] for m in model.spec()["policies"]] == [30.0, 30.0]


def test_the_difference_names_policy_and_parameters_with_units():
    model = PolicyModel(CALM)
    assert model.changes() == ()
    model.type("cooldown_s", "2 min")
    (change,) = model.changes()
    assert (change.name, change.after) == ("cooldown_s", "120 s")
    assert change.before.endswith(" s")
    policy, *rest = changes(CALM, EASY)
    assert (policy.name, policy.before, policy.after) == ("policy", title(CALM), "easy")
    gone = {change.name: (change.before, change.after) for change in rest}
    assert gone["cooldown_s"] == (model_text(CALM, "cooldown_s"), "")
    assert [c.name for c in changes(CUSTOM, EASY)][:1] == ["policy"]


def chain_of(*steps: str) -> dict:
    """A chain of two that have a parameter of one name."""
    names = zip(("pwma-fpsma", "pwma-egs"), steps, strict=True)
    return {"policy": "chain", "policies": [{"policy": n, "params": {"step": s}} for n, s in names]}


def test_members_of_a_chain_that_differ_where_the_chain_does_not_are_a_difference():
    model = PolicyModel(registry.spec_of(registry.create(chain_of("next", "next"))))
    model.load(chain_of("next", "max"))
    (change,) = model.changes()
    assert (change.name, change.before, change.after) == ("step", "next", "max")
    assert change.label.endswith(" of pwma-egs")
    # what is left out is what is the default: no difference
    full = registry.spec_of(registry.create("pwma-fpsma"))
    assert changes({"policy": "pwma-fpsma"}, full) == ()
    # of what cannot be made here nothing but what it says is known
    (other,) = changes({**CUSTOM, "params": {"limit": 1}}, {**CUSTOM, "params": {"limit": 2}})
    assert "1" in other.before
    assert "2" in other.after


def model_text(spec, name):
    return PolicyModel(spec).texts[name]


def test_titles_tell_compositions_apart():
    assert title(EASY) == "easy"
    assert title({"policy": "chain", "policies": [EASY, {"policy": "fixed"}]}) == "chain(easy, fixed)"
    assert title({"policy": "easy", "compose": [{"clamp": {}}, {"mtct": {}}]}) == "easy + clamp + mtct"


def test_revert_takes_back_one_apply_at_a_time():
    model = PolicyModel(EASY)
    assert model.previous is None
    for name in ("fcfs", "calm"):
        model.load(name)
        model.applied(model.spec())
        assert model.changes() == ()
    assert model.previous == registry.spec_of(registry.create("fcfs"))
    model.reverted(model.previous)
    assert model.spec() == model.running == registry.spec_of(registry.create("fcfs"))
    assert model.previous == EASY
    model.reverted(EASY)
    assert model.previous is None


def test_an_object_cannot_be_edited_nor_brought_back():
    model = PolicyModel(CUSTOM)
    assert model.changes()[0].before == "mine:Mine"
    model.applied(model.spec())
    assert model.previous is None


def test_a_change_by_somebody_else_leaves_nothing_to_revert_and_edits_alone():
    model = PolicyModel(EASY)
    assert not model.report(EASY)
    model.load("fcfs")
    model.applied(model.spec())
    assert model.report(CALM)
    assert model.previous is None
    # nothing was edited: the form follows
    assert model.spec() == CALM
    model.type("cooldown_s", "2 min")
    assert model.report(EASY)
    assert model.texts["cooldown_s"] == "2 min"
    model.type("cooldown_s", "never")
    assert model.report(CALM)
    assert model.texts["cooldown_s"] == "never"


def test_what_others_change_of_a_policy_that_is_edited_stays_changed():
    policy = registry.create("pwma-fpsma")
    before, after = (
        registry.spec_of(registry.updated(policy, min_remaining_s=text)) for text in ("60 s", "7 s")
    )
    model = PolicyModel(before)
    model.type("step", "next")
    model.type("min_remaining_s", "1 min")
    assert model.report(after)
    assert [(one.name, one.before, one.after) for one in model.changes()] == [("step", "max", "next")]
    # the same of one that was applied
    model.applied(model.spec())
    model.type("step", "never")
    assert model.report(before)
    assert model.texts == {"step": "never", "min_remaining_s": "60 s"}
    # what is edited itself is whose form it is
    model.load(after)
    assert model.report(after)
    model.type("min_remaining_s", "9 s")
    assert model.report(before)
    assert model.texts == {"step": "max", "min_remaining_s": "9 s"}


ALIEN = {"policy": "registered-elsewhere", "params": {"a": 1}}


def test_a_policy_that_is_registered_on_the_cluster_alone_is_shown_and_can_be_replaced():
    model = PolicyModel(ALIEN)
    assert is_custom(ALIEN)
    assert title(model.running) == "registered-elsewhere"
    assert model.changes()[0].before == "registered-elsewhere"
    model.load("easy")
    model.applied(EASY)
    assert model.previous is None, "it cannot be brought back from here"
    assert model.report(ALIEN)
    assert model.spec() == EASY, "what is edited stays"
