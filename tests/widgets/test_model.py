"""The state behind the policy form: nothing invalid becomes a specification."""

from __future__ import annotations

import pytest

from dask_hpc_policies import registry
from dask_hpc_policies.params import ParameterError, Parameters
from dask_hpc_widgets.model import PolicyModel

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


@pytest.mark.parametrize(("name", "one"), FIELDS, ids=[f"{name}-{one.name}" for name, one in FIELDS])
def test_bounds_and_choices_are_valid_and_reach_the_specification(name, one):
    start = registry.spec_of(registry.create(name))
    choices = {"choice": one.choices, "bool": (True, False)}
    values = choices.get(one.kind) or [bound for bound in (one.lo, one.hi) if bound is not None]
    for value in values:
        model = PolicyModel(start)
        assert model.type(one.name, one.format(value)) == ""
        if one.name in ("mtct_lower", "mtct_upper") and model.errors:
            # valid alone, but the lower bound would not be below the upper one
            assert list(model.errors) == [""]
            with pytest.raises(ParameterError, match="mtct"):
                model.spec()
            continue
        assert model.errors == {}
        again = PolicyModel(model.spec())
        assert one.validate(again.texts[one.name]) == value
