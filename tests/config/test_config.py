"""Settings: the file, its schema, parsing and errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import dask.config
import jsonschema
import pytest
import yaml

from dask_hpc.config import Settings, is_setting, layout, load_defaults, problems, settings, table
from dask_hpc.config import text as settings_text
from dask_hpc.errors import ConfigError, DaskHPCError
from dask_hpc_policies import codec
from dask_hpc_policies.params import shown

#: Keys of settings in texts.
_TOLD = re.compile(r"[`\"]hpc\.([a-z]+(?:[.-][a-z]+)*)(?=[`:\"\\])")


def load(name: str) -> Any:
    return yaml.safe_load(files("dask_hpc").joinpath(name).read_text(encoding="utf-8"))


def leaves(schema: dict[str, Any], value: dict[str, Any], prefix: str = "") -> Any:
    """Pairs of (keys in the schema, keys in the value) per level."""
    properties = schema.get("properties", {})
    if not properties:
        return
    yield prefix, set(properties), set(value)
    for key in set(properties) & set(value):
        if isinstance(value[key], dict):
            yield from leaves(properties[key], value[key], f"{prefix}.{key}")


def test_the_files_are_what_the_rows_say() -> None:
    folder = files("dask_hpc")
    assert folder.joinpath("hpc.yaml").read_text(encoding="utf-8") == settings_text.yaml_text()
    assert folder.joinpath("hpc-schema.yaml").read_text(encoding="utf-8") == settings_text.schema_text()


def test_schema() -> None:
    jsonschema.Draft7Validator.check_schema(load("hpc-schema.yaml"))
    jsonschema.validate(load("hpc.yaml"), load("hpc-schema.yaml"))


@pytest.mark.parametrize("bad", [{"lock": "jobs"}, {"tick": None}, {"shrnk": 1}, {"pool": {"max-nodes": 0}}])
def test_schema_refuses_what_the_settings_refuse(bad: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"hpc": bad}, load("hpc-schema.yaml"))
    with pytest.raises(ConfigError):
        settings(bad)


def test_schema_is_complete() -> None:
    knobs = {f".hpc.{one.key}" for one in table() if one.knob}
    levels = list(leaves(load("hpc-schema.yaml"), load("hpc.yaml")))
    assert len(levels) > 3
    for where, in_schema, in_file in levels:
        hidden = {key for key in in_schema - in_file if f"{where}.{key}" in knobs or key == "decisions"}
        assert in_schema - hidden == in_file, where or "top level"


def test_every_key_of_the_schema_is_described() -> None:
    def undescribed(schema: dict[str, Any]) -> list[str]:
        found = []
        for key, inner in schema.get("properties", {}).items():
            if "properties" in inner:
                found += undescribed(inner)
            elif not inner.get("description"):
                found.append(key)
        return found

    assert undescribed(load("hpc-schema.yaml")) == []


def test_every_key_of_the_file_says_what_it_does_and_takes() -> None:
    text = files("dask_hpc").joinpath("hpc.yaml").read_text(encoding="utf-8")
    lines = text.splitlines()
    values = [i for i, line in enumerate(lines) if ": " in line and not line.lstrip().startswith("#")]
    assert len(values) == len([one for one in table() if not one.knob]) > 15
    assert [lines[i] for i in values if "  # " not in lines[i]] == []
    assert [lines[i] for i in values if not lines[i - 1].lstrip().startswith("# ")] == []


def test_every_key_that_is_told_of_is_there(repository: Path) -> None:
    texts = [repository / "README.md", *(repository / "notebooks").rglob("*.ipynb")]
    for folder in ("dask_hpc", "policies", "widgets"):
        texts += [path for kind in ("*.md", "*.py") for path in (repository / folder).rglob(kind)]
    found = {key for path in texts for key in _TOLD.findall(path.read_text(encoding="utf-8"))} - {"yaml"}
    assert [key for key in found if not is_setting(key)] == []
    assert len(found) > 10


def test_defaults_of_the_class_are_those_of_the_file() -> None:
    assert settings(load("hpc.yaml")["hpc"]) == Settings()


def test_settings_survive_a_cleared_configuration() -> None:
    with dask.config.set({"hpc": {}}):
        assert settings() == Settings()


def test_the_defaults_are_in_dask_config_from_the_import_on() -> None:
    assert dask.config.get("hpc.pool.hold") == "auto"
    assert dask.config.get("hpc.policy-params") == {}


def test_settings_come_from_dask_config() -> None:
    with dask.config.set(
        {"hpc.tick": "250 ms", "hpc.pool.max-nodes": 9, "hpc.policy-params": {"step": "next"}}
    ):
        found = settings()
    assert (found.tick_s, found.pool_max_nodes, found.policy_params) == (0.25, 9, {"step": "next"})


def test_settings_come_from_the_environment() -> None:
    code = "from dask_hpc.config import settings as s; print(s().tick_s, s().pool_max_nodes, s().node_by)"
    environment = dict(os.environ, DASK_HPC__TICK="2 s", DASK_HPC__POOL__MAX_NODES="16")
    environment["DASK_HPC__NODE__BY"] = "host"
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2.0", "16", "host"]


def test_loading_defaults_keeps_what_the_user_set() -> None:
    with dask.config.set({"hpc.tick": "7 s"}):
        load_defaults()
        assert settings().tick_s == 7.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1 s", 1), ("500ms", 0.5), ("5 min", 300), ("5min", 300), (2, 2), ("3", 3), ("1h", 3600)],
)
def test_durations(text: Any, seconds: float) -> None:
    assert settings({"tick": text}).tick_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tick", "5 W"),
        ("tick", "0 s"),
        ("tick", "-1 s"),
        ("tick", ""),
        ("tick", "nan"),
        ("tick", True),
        ("tick", None),
        ("tick", ["1 s"]),
        ("sweep", "1 min"),
        ("lock", "jobs"),
        ("policy", ""),
        ("policy", 3),
        ("policy-params", [1]),
        ("shrink-deadline", "31 d"),
        ("default-job.min-nodes", -1),
        ("default-job.min-nodes", True),
        ("default-job.min-nodes", 1.5),
        ("default-job.min-nodes", 10**7),
        ("tick", 10**400),
        ("pool.max-nodes", 0),
        ("node.by", "rack"),
        ("trace.path", 3),
        ("trace.keep", -1),
        ("decisions.keep", "many"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(key: str, value: Any) -> None:
    with dask.config.set({f"hpc.{key}": value}), pytest.raises(ConfigError) as caught:
        settings()
    message = str(caught.value)
    assert f"hpc.{key} is {shown(value)}; allowed: " in message
    assert "DASK_HPC__" + key.upper().replace(".", "__").replace("-", "_") in message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DaskHPCError)


def test_an_unknown_key_suggests_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"hpc\.shrink-dedline; did you mean hpc\.shrink-deadline\?"):
        settings({"shrink-dedline": "1 s"})
    with pytest.raises(ConfigError, match=r"hpc\.pool is 3; allowed: a mapping"):
        settings({"pool": 3})
    assert problems("much") == {"": "hpc is 'much'; allowed: a mapping of settings, as in hpc.yaml"}


def test_update_is_all_or_nothing() -> None:
    before = Settings()
    with pytest.raises(ConfigError):
        before.updated(tick="2 s", lock="none")
    assert before == Settings()
    assert before.updated(tick="2 s", pool_max_nodes=4) == Settings(tick_s=2.0, pool_max_nodes=4)
    assert before.updated(tick_s=2) == before.updated(tick=2)


def test_json_round_trip() -> None:
    changed = Settings(policy="fixed", policy_params={"nodes": 3}, pool_max_nodes=12, trace_path="t.jsonl.gz")
    assert codec.decode(Settings, codec.encode(changed)) == changed
    with pytest.raises(ConfigError):
        codec.decode(Settings, {"tick_s": 0.0})


def test_the_table_is_gone_through_once_for_all_that_is_read(monkeypatch):
    gone = []
    monkeypatch.setattr(layout, "table", lambda: gone.append(1) or table())
    assert settings(load("hpc.yaml")["hpc"]) == Settings()
    assert len(gone) == 1
