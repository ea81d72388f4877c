"""The files of a Binder session agree with what the project needs, and fail where something is wrong."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dask_hpc.deploy.dashboard_link import HUB_LINK

ROOT = Path(__file__).resolve().parents[2]
BINDER = ROOT / "binder"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: What a session has besides the project's needs, and what for.
BESIDES = {
    "bokeh": "the dashboard",
    "dask-labextension": "the dashboard's plots in JupyterLab's side bar",
    "jupyter-server-proxy": "the dashboard through the server",
}


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("binder_check", BINDER / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check = _load()


def by_name(entries: list[str]) -> dict[str, SpecifierSet]:
    return {one.name: one.specifier for one in map(Requirement, entries)}


NEEDED = by_name([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["widgets"]])
LISTED = by_name(check.pip_requirements(check.packages()))


def test_everything_that_the_project_needs_is_there_in_versions_that_it_takes() -> None:
    missing = {name: str(spec) for name, spec in NEEDED.items() if name not in LISTED}
    assert missing == {}
    # ranges may be narrower, not wider
    assert {name for name, spec in NEEDED.items() if not set(spec) <= set(LISTED[name])} == set()


def test_the_version_of_python_is_one_that_the_project_names_and_repo2docker_reads() -> None:
    python = check.packages()["python"]
    assert re.fullmatch(r"=3\.\d+", python)
    assert f"Programming Language :: Python :: {python.lstrip('=')}" in PROJECT["classifiers"]


def test_nothing_else_is_there_but_for_a_purpose() -> None:
    assert set(LISTED) - set(NEEDED) == set(BESIDES)
    tested = by_name(PROJECT["optional-dependencies"]["test"])
    both = BESIDES.keys() & tested.keys()
    assert {name: str(LISTED[name]) for name in both} == {name: str(tested[name]) for name in both}


def test_versions_are_ranges_and_come_from_one_channel() -> None:
    listed = yaml.safe_load((BINDER / "environment.yml").read_text(encoding="utf-8"))
    assert listed["channels"] == ["conda-forge"]
    assert "pip" in listed["dependencies"], "postBuild uses it"
    pinned = [name for name, spec in LISTED.items() if not spec or any(one.operator == "==" for one in spec)]
    assert pinned == []


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_scripts_can_be_executed_by_bash(name: str) -> None:
    path = BINDER / name
    assert os.access(path, os.X_OK)
    assert path.read_text(encoding="utf-8").startswith("#!/bin/bash\n")


@pytest.mark.parametrize("failing", ["python", "dask"])
def test_the_build_ends_where_a_command_fails(tmp_path: Path, failing: str) -> None:
    log = tmp_path / "log"
    for name in ("python", "dask"):
        script = tmp_path / name
        script.write_text(f'#!/bin/bash\necho {name} "$@" >> "{log}"\nexit {int(name == failing) * 3}\n')
        script.chmod(0o755)
    done = subprocess.run([BINDER / "postBuild"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=tmp_path)
    assert done.returncode == 3
    ran = log.read_text().splitlines()
    assert ran[0] == "python -m pip install --no-deps --editable ."
    assert len(ran) == {"python": 1, "dask": 2}[failing]


def test_a_session_knows_the_proxy_and_becomes_what_it_was_to_run() -> None:
    command = [BINDER / "start", "bash", "-c", "printenv DASK_DISTRIBUTED__DASHBOARD__LINK; exit 7"]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, f"{HUB_LINK}\n")


def test_the_badge_leads_to_the_tour() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    address = r"https://mybinder\.org/v2/gh/[\w-]+/[\w-]+/HEAD\?urlpath=lab/tree/([\w/.-]+)\)"
    (path,) = re.findall(address, readme)
    assert (ROOT / path).is_file()
    assert ROOT / path == check.TOUR


def test_a_step_that_fails_is_named_with_what_it_printed(tmp_path: Path) -> None:
    command = ["bash", "-c", "echo no disk; exit 4"]
    with pytest.raises(check.CheckError, match=r"(?s)^packages: exit code 4\nno disk"):
        check.run("packages", command, {"PATH": "/usr/bin:/bin"}, tmp_path)


def test_memory_counts_that_of_all_processes() -> None:
    inner = "b = bytearray(50_000_000); print(flush=True); input()"
    code = "import subprocess, sys; b = bytearray(60_000_000); subprocess.run([sys.executable, '-c', {!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", code.format(inner)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 110e6 < check.held_bytes(process.pid) < 200e6
        process.communicate("go on\n")
    assert check.held_bytes(process.pid) == 0


def test_a_tour_that_fails_is_no_measurement() -> None:
    with pytest.raises(check.CheckError, match=r"^exit code 2\nno kernel"):
        check.peak_bytes(["bash", "-c", "echo no kernel; exit 2"], dict(os.environ))
