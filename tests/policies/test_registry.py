"""Policies by name, by file and by object."""

from __future__ import annotations

import json
import pickle  # noqa: TID251  a policy object travels to the scheduler and to worker processes
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dask_hpc_policies import registry
from dask_hpc_policies.combine.guards import Clamp, Cooldown
from dask_hpc_policies.combine.merge import Arbiter
from dask_hpc_policies.decision import Decision
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.params import Int, ParameterError
from dask_hpc_policies.protocol import InvalidPolicy, Policy, UnknownPolicy
from dask_hpc_policies.registry import create, describe, names, spec_of, updated


class Own:
    """A policy of a user, with a parameter."""

    name = "own"
    parameters: ClassVar = (Int("limit", 3, lo=1, hi=9),)

    def __init__(self, limit: int = 3) -> None:
        self.params = {"limit": limit}

    def initial_state(self) -> None:
        return None

    def decide(self, view: ClusterSnapshot, state: None) -> tuple[Decision, None]:
        return Decision(), state


BUILTIN = (
    "fcfs", "fixed", "dask-default", "prma-fpsma", "prma-egs", "pwma-fpsma", "pwma-egs", "equipartition",
    "performance-aware",
)  # fmt: skip


def test_builtin_names_are_there_without_installation() -> None:
    assert set(BUILTIN) <= set(names())
    for name in BUILTIN:
        assert create(name).name == name
        assert isinstance(create(name), Policy)


@pytest.mark.parametrize("name", [*BUILTIN, *registry.library_names()])
def test_every_name_is_described_and_its_spec_makes_it_again(name: str) -> None:
    description = json.loads(json.dumps(describe(name)))
    assert description["name"] == name
    assert len(description["summary"]) > 20
    for parameter in description["parameters"]:
        assert parameter["label"]
        assert parameter["help"]
    policy = create(name)
    assert create(json.loads(json.dumps(spec_of(policy)))) == policy


def test_library_entries_say_where_they_come_from() -> None:
    assert "builtin-study-pwma-fpsma" in registry.library_names()
    for name in registry.library_names():
        assert describe(name)["provenance"]
    assert describe("builtin-study-pwma-fpsma")["lock"] == "system"
    study: Any = create("builtin-study-pwma-fpsma")
    assert study.params["min_remaining_s"] == 60.0


def test_parameters_are_validated_and_suggested() -> None:
    assert create("pwma-fpsma", min_remaining_s="1 min").params["min_remaining_s"] == 60.0  # type: ignore[attr-defined]
    with pytest.raises(ParameterError, match=r"'min_remaining'.*did you mean 'min_remaining_s'"):
        create("pwma-fpsma", min_remaining=3)
    with pytest.raises(ParameterError, match=r"'max_expansions' cannot be -1.*at least|from 0"):
        create("prma-egs", max_expansions=-1)
    with pytest.raises(UnknownPolicy, match=r"'pwma-fspma'.*did you mean 'pwma-fpsma'"):
        create("pwma-fspma")


def test_yaml_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "policy: pwma-egs\nparams: {min_remaining_s: 30 s}\n"
        "compose: [{cooldown: {cooldown_s: 1 min}}, mtct]\n"
    )
    policy: Any = create(str(path), step="next", cooldown_s=5)
    assert policy == create(path, step="next", cooldown_s=5)
    assert policy.params["step"] == "next"
    assert policy.params["cooldown_s"] == 5.0
    assert policy.params["min_remaining_s"] == 30.0
    assert policy.name == "pwma-egs+cooldown+mtct"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy: [", "not YAML"),
        ("policy: pwma-fpsma\nparams: {step: next}\nparams: {min_remaining_s: 1}", "'params' is given twice"),
        ("policy: fcfs\n? [fcfs]\n: 1", "not YAML"),
        ("policy: " + "[" * 100_000, "nested too deeply"),
        ("- a\n- b", "must hold a mapping"),
        ("polcy: fcfs", "unknown key 'polcy'.*did you mean 'policy'"),
        ("params: {}", "needs 'policy'"),
        ("policy: fcfs\ncompose: [cooldwn]", "unknown guard 'cooldwn'.*did you mean 'cooldown'"),
        ("policy: fcfs\ncompose: [{cooldown: {}, mtct: {}}]", "must be one guard"),
        ("policy: fcfs\nparams: 3", "'params' must map names"),
        ("policy: fcfs\npolicies: []", "has no members"),
        ("policy: chain", "'policies' must be a list"),
        ("policy: arbiter\npolicies: []", "at least one policy"),
        ("policy: fcfs\nparams: {x: 1}", "unknown parameter 'x'"),
        ("policy: fcfs\nparams: {name: x}", "unknown parameter 'name'"),
        ("policy: fcfs\ncompose: [{cooldown: {base: x}}]", "unknown parameter 'base'"),
        ("&a\npolicy: chain\npolicies: [*a]", "nested more than 50 deep"),
        pytest.param(
            "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 10}]\n" for i in range(1, 20)),
            "holds more than 10000 values", id="laughs",
        ),
        ("policy: fcfs\ndescription: 2026-13-01", "not YAML.*month"),
        ("policy: fcfs\ndescription: !!int ''", "not YAML"),
        ("policy: !!python/object/apply:os.system ['true']", "not YAML"),
        pytest.param("policy: fcfs\n" + "#" * 1_000_000, "too long; allowed: up to 1000000", id="long"),
    ],
)
def test_malformed_files_get_one_clear_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        create(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.yaml")
    with pytest.raises(InvalidPolicy) as caught:
        create(missing)
    assert str(caught.value) == f"cannot read policy file {missing!r}: No such file or directory"


@pytest.mark.parametrize("path", ["/dev/zero", "."])
def test_what_has_no_end_or_is_no_file_is_not_read(path: str) -> None:
    with pytest.raises(InvalidPolicy, match="not a regular file"):
        create(Path(path))


def test_own_objects_are_checked_returned_and_updated() -> None:
    own = Own()
    assert create(own) is own
    assert create(own, limit="5").params == {"limit": 5}  # type: ignore[attr-defined]
    with pytest.raises(ParameterError, match="from 1 to 9"):
        updated(own, limit=20)
    spec = spec_of(own)
    assert spec["custom"] is True
    assert spec["policy"].endswith(":Own")
    with pytest.raises(InvalidPolicy, match="pass the object itself"):
        create(spec)


def test_an_object_with_the_name_of_a_builtin_is_not_taken_for_it() -> None:
    own = Own()
    own.name = "fcfs"  # type: ignore[misc]
    assert spec_of(own).get("custom") is True


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Own, "pass an instance"),
        (object(), "needs a 'name'"),
        (
            type("NoDecide", (), {"name": "x", "initial_state": lambda self: None})(),
            "needs a method 'decide'",
        ),
        (
            type("Few", (), {"name": "x", "initial_state": lambda s: None, "decide": lambda s, v: None})(),
            "2 arguments",
        ),
        (
            type("NoState", (), {"name": "x", "decide": lambda s, v, w: None})(),
            "needs a method 'initial_state'",
        ),
    ],
)
def test_objects_that_are_no_policy_are_refused(broken: Any, words: str) -> None:
    with pytest.raises(InvalidPolicy, match=words):
        create(broken)


def test_update_reaches_into_compositions_and_leaves_the_old_one_alone() -> None:
    policy = Cooldown(Clamp(create("pwma-fpsma"), max_nodes=4), cooldown_s=10)
    new: Any = updated(policy, cooldown_s="1 min", clamp_max_nodes=8, step="next")
    assert new.params == {**policy.params, "cooldown_s": 60.0, "clamp_max_nodes": 8, "step": "next"}
    assert policy.params["cooldown_s"] == 10
    both: Any = updated(Arbiter(create("pwma-fpsma"), create("fcfs"), create("prma-egs")), step="next")
    assert [p.params.get("step") for p in both.policies] == ["next", None, "next"]
    with pytest.raises(ParameterError, match="unknown parameter 'max_expansions'"):
        updated(policy, max_expansions=3)


def test_policies_can_be_sent_to_another_process() -> None:
    for policy in (
        create("pwma-fpsma", step="next"),
        create("calm"),
        Arbiter(create("calm"), create("fcfs")),
    ):
        assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301


@dataclass
class Point:
    """What the registry reads of an entry point."""

    name: str
    loaded: Any
    value: str = "third.party:factory"

    def load(self) -> Any:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def test_a_broken_third_party_policy_warns_and_is_skipped() -> None:
    points: Any = [
        Point("gone", ImportError("no such module")),
        Point("own", Own),
        Point("odd", lambda: object()),
    ]
    with pytest.warns(UserWarning, match="is skipped") as caught:
        found = registry._load(points)
    assert set(found) == {"own"}
    assert [("'gone'" in str(w.message), "'odd'" in str(w.message)) for w in caught] == [
        (True, False),
        (False, True),
    ]


def test_the_entry_points_of_the_builtin_policies_load() -> None:
    for name in BUILTIN:
        point = EntryPoint(name, f"dask_hpc_policies.factories:{name.replace('-', '_')}", registry.GROUP)
        assert point.load()() == create(name)
