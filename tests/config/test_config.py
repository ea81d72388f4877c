"""Settings: the file, its schema, parsing and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from typing import Any

import dask.config
import jsonschema
import pytest
import yaml

from dask_hpc.config import Settings, load_defaults, settings
from dask_hpc.errors import ConfigError, DaskHPCError
from dask_hpc_policies import codec


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
    levels = list(leaves(load("hpc-schema.yaml"), load("hpc.yaml")))
    assert len(levels) > 3
    for where, in_schema, in_file in levels:
        assert in_schema == in_file, where or "top level"


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


def test_every_key_of_the_file_has_a_comment() -> None:
    text = files("dask_hpc").joinpath("hpc.yaml").read_text(encoding="utf-8")
    values = [line for line in text.splitlines() if ":" in line and not line.endswith(":") and line[0] != "#"]
    assert len(values) == len(_fields())
    assert [line for line in values if "#" not in line] == []


def _fields() -> list[str]:
    return list(Settings.__dataclass_fields__)


def test_defaults_of_the_class_are_those_of_the_file() -> None:
    assert settings(load("hpc.yaml")["hpc"]) == Settings()


def test_settings_survive_a_cleared_configuration() -> None:
    with dask.config.set({"hpc": {}}):
        assert settings() == Settings()


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
        ("default-job.min-nodes", 1.0),
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
    assert f"hpc.{key} is {value!r}; allowed: " in message
    assert "DASK_HPC__" + key.upper().replace(".", "__").replace("-", "_") in message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DaskHPCError)


def test_an_unknown_key_suggests_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"hpc\.shrink-dedline; did you mean hpc\.shrink-deadline\?"):
        settings({"shrink-dedline": "1 s"})
    with pytest.raises(ConfigError, match=r"hpc\.pool is 3; allowed: a mapping"):
        settings({"pool": 3})


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
