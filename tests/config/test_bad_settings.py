"""Whatever is wrong with a setting is said in one sentence that is the same wherever the value comes from.

All rows of the table, and those of a section that another package brings; what is of the wrong type, too
small, too large, or a name that is nearly one; from a file, the environment, an update, the panel and the
command line.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any

import dask.config
import pytest
import yaml
from click.testing import CliRunner
from distributed import Client
from saved import write_key

import dask_hpc
from dask_hpc.cli import hpc
from dask_hpc.config import Setting, Settings, register, settings, table
from dask_hpc.config import rows as settings_table
from dask_hpc.errors import ConfigError
from dask_hpc_policies.params import Bool, Choice, Duration, Float, Int, Parameter, Power

#: What another package brings: each kind that no row of ours has.
SECTION, ROWS = "sensor", (
    Float("gain", 1.0, lo=0.5, hi=2.0, help="Factor."),
    Power("cap", 200.0, lo=50.0, hi=400.0, help="Most power of a node."),
    Bool("enabled", True, help="Whether it measures."),
    Duration("period", 5.0, lo=1.0, hi=60.0, help="Time between two measurements."),
    Int("channel", None, lo=1, hi=8, none_ok=True, help="Where it is."),
    Choice("bus", "i2c", ("i2c", "spi"), live=False, help="How it is reached."),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    register(SECTION, ROWS)
    yield
    del settings_table._registered[SECTION]


def _all_rows() -> list[Setting]:
    register(SECTION, ROWS)
    found = list(table())
    del settings_table._registered[SECTION]
    return found


ALL = _all_rows()
#: Texts that no row of that kind takes.
WRONG = {
    "int": "many", "float": "nan", "duration": "5 W", "power": "5 s", "bool": "perhaps", "choice": "other",
    "text": " ", "path": "tmp/spill", "mapping": "[1]", "url": "ftp://host/", "words": "ls -l",
}  # fmt: skip


def wrong(row: Parameter) -> list[str]:
    """Texts of the wrong type, below and above what the row takes."""
    found = [WRONG[row.kind]]
    if row.kind == "int":
        found += [str(int(row.lo) - 1), str(int(row.hi) + 1)]
    elif row.kind in ("float", "duration", "power"):
        # nothing is below 0 but what has a sign
        found += [f"{number} {row.unit}".strip() for number in (row.lo * 0.9 or -1, row.hi * 1.1)]
    return found


#: Those that an update takes: its argument `policy` is a policy.
UPDATED = [one for one in ALL if one.key != "policy"]


def _key(one: Setting) -> str:
    return one.key


def _variable(key: str) -> str:
    return "DASK_HPC__" + key.upper().replace(".", "__").replace("-", "_")


def refusal(error: str, one: Setting, text: str) -> None:
    """It names key, value and range, says where to change it, and is one sentence."""
    shown = [repr(text)]
    with suppress(yaml.YAMLError):
        # what files and the environment make of it
        shown.append(repr(yaml.safe_load(text)))
    assert any(error.startswith(f"hpc.{one.key} is {value}; allowed: {one.row.allowed}") for value in shown)
    assert f"set hpc.{one.key} in the configuration, or {_variable(one.key)})" in error
    assert error.count("hpc.") == 2
    if one.row.kind in ("int", "float", "duration", "power"):
        assert re.search(r"from \S+.* to \S+", one.row.allowed)


def in_file(folder: Path, key: str, text: str) -> Settings:
    section, _, name = key.rpartition(".")
    leaf = f"{name}: {text if text.strip() else repr(text)}"
    lines = ["hpc:", f"  {section}:", f"    {leaf}"] if section else ["hpc:", f"  {leaf}"]
    (folder / "hpc.yaml").write_text("\n".join(lines), encoding="utf-8")
    return settings(dask.config.collect(paths=[str(folder)], env={})["hpc"])


def in_environment(key: str, text: str) -> Settings:
    return settings(dask.config.collect_env({_variable(key): text})["hpc"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One that has no work and no workers; settings are the scheduler's."""
    with dask_hpc.LocalCluster(n_workers=0, dashboard_address=None) as made:
        yield made


@pytest.fixture(scope="module")
def rt(cluster: Any) -> Iterator[Any]:
    with Client(cluster) as client:
        yield dask_hpc.runtime(client)


@pytest.fixture(scope="module")
def panel(rt: Any) -> Iterator[Any]:
    made = rt.panel()
    made.settings.show.value = True
    yield made
    made.close()


def said(widget: Any) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", widget.value)).split())


# ------------------------------------------------------------- bad values


@pytest.mark.parametrize("one", ALL, ids=_key)
def test_in_files_and_the_environment(one: Setting, tmp_path: Path) -> None:
    for text in wrong(one.row):
        with pytest.raises(ConfigError) as caught:
            in_file(tmp_path, one.key, text)
        refusal(str(caught.value), one, text)
        with pytest.raises(ConfigError) as caught:
            in_environment(one.key, text)
        refusal(str(caught.value), one, text)


@pytest.mark.parametrize("one", UPDATED, ids=_key)
def test_in_an_update(one: Setting, rt: Any) -> None:
    before = rt.status()["settings"]
    for text in wrong(one.row):
        with pytest.raises(ConfigError) as caught:
            rt.update(shrink_deadline_s=3, **{one.key: text})
        refusal(str(caught.value), one, text)
    assert rt.status()["settings"] == before


@pytest.mark.parametrize("one", ALL, ids=_key)
def test_in_the_panel(one: Setting, panel: Any, rt: Any) -> None:
    part = panel.settings
    if one.knob or not one.row.live:
        assert one.key not in part.fields.controls, "it cannot be changed there"
        return
    control = part.fields.controls[one.key]
    if one.row.kind in ("choice", "bool"):
        assert set(control.options) == {*(one.row.choices or ("true", "false"))}, "no other can be chosen"
        return
    good, before = control.value, rt.status()["settings"]
    try:
        for text in wrong(one.row):
            control.value = text
            refusal(said(part.fields.says[one.key]).removeprefix("Error: "), one, text)
            assert part.apply.disabled
            part.apply.click()
        assert rt.status()["settings"] == before
    finally:
        control.value = good
    assert not part.apply.disabled


@pytest.mark.parametrize("one", ALL, ids=_key)
def test_on_the_command_line(one: Setting) -> None:
    for text in wrong(one.row):
        # refused before a cluster is looked for
        done = CliRunner().invoke(hpc, ["update", f"{one.key}={text}"])
        assert done.exit_code != 0
        (line,) = done.stderr.splitlines()
        if one.field in ("policy", "policy_params"):
            assert f"{one.key}: --policy and --param change the policy" in line
        else:
            refusal(line.removeprefix("Error: "), one, text)


# ----------------------------------------------------------- unknown keys


@pytest.mark.parametrize("one", ALL, ids=_key)
def test_a_name_that_is_nearly_one(one: Setting, tmp_path: Path, rt: Any) -> None:
    key = one.key + "x"
    before = rt.status()["settings"]
    done = CliRunner().invoke(hpc, ["update", f"{key}=1"])
    errors = [done.stderr.removeprefix("Error: ").strip()]
    for source in (lambda: in_file(tmp_path, key, "1"), lambda: in_environment(key, "1")):
        with pytest.raises(ConfigError) as caught:
            source()
        errors.append(str(caught.value))
    with pytest.raises(ValueError, match="there is no setting") as refused:
        rt.update(shrink_deadline_s=3, **{key: 1})
    errors.append(str(refused.value))
    for error in errors:
        spelled = error.replace("_", "-")
        assert f"there is no setting hpc.{key}".replace("_", "-") in spelled
        # an update may have meant a parameter of the policy: it lists no settings
        rest = spelled.endswith(" either") if error is errors[-1] else "; the settings are policy, " in error
        assert "did you mean hpc." in error or rest
    assert rt.status()["settings"] == before


# ------------------------------------------------ what is allowed is taken


@pytest.mark.parametrize("one", ALL, ids=_key)
def test_bounds_and_choices_are_taken_from_everywhere(
    one: Setting, tmp_path: Path, rt: Any, panel: Any
) -> None:
    row = one.row
    values = [value for value in (row.lo, row.hi) if value is not None] or list(row.choices) or [row.default]
    if row.kind == "words":
        values = [row.default]
    if row.kind in ("text", "path"):
        values = [str(tmp_path / "there")]
    for value in [*values, *([None] if row.none_ok else [])]:
        text = row.format(value)
        assert one.of(in_file(tmp_path, one.key, text)) == value
        assert one.of(in_environment(one.key, text)) == value
        if one.row.live:
            # who has blocks encrypted has a key
            with dask.config.set({"hpc.checkpoint.key-file": write_key(tmp_path / "key")}):
                status = rt.update(**{one.key: text})
            there = status["settings"]["extra"][one.extra] if one.extra else status["settings"]
            # a list travels as one
            assert there[one.field] == (list(value) if row.kind == "words" else value)
            if not one.knob and row.kind not in ("choice", "bool"):
                panel.settings.fields.controls[one.key].value = text
                assert "Allowed: " in said(panel.settings.fields.says[one.key])


@pytest.mark.parametrize("one", [one for one in ALL if not one.row.live and one.key != "policy"], ids=_key)
def test_what_is_read_at_the_start_is_not_updated(one: Setting, rt: Any) -> None:
    row = one.row
    spares = {
        "text": "elsewhere",
        "path": "/elsewhere",
        "url": "http://elsewhere",
        "words": ("ls", "-l"),
        "bool": True,
    }
    spare = spares.get(row.kind, {"step": "next"})
    other = row.hi or next((choice for choice in row.choices if choice != row.default), spare)
    with pytest.raises(ConfigError, match=rf"hpc\.{one.key} is .* and cannot become .* by an update"):
        rt.update(**{one.key: other})
    # giving back what it is, is no change
    rt.update(**{one.key: row.default})


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("DASK_HPC", "hpc is 'foo'"),
        ("DASK_HPC__POOL", "hpc.pool is 'foo'"),
        ("DASK_HPC__POLICY_PARAMS", "hpc.policy-params"),
    ],
)
def test_a_value_where_a_section_belongs_is_not_lost_among_the_defaults(variable: str, key: str) -> None:
    code = "import dask_hpc; from dask_hpc.config import settings; settings()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, variable: "foo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert key in done.stderr.splitlines()[-1]
