"""An installation without extras: what needs one says which, and all else works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def without(package: str, code: str, repository: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has no such package."""
    blocked = f"import sys; sys.modules[{package!r}] = None\n{code}"
    path = os.pathsep.join([str(repository), str(repository / "policies"), str(repository / "widgets")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", blocked]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def command(*arguments: str) -> str:
    return f"from dask_hpc.cli import hpc; hpc({list(arguments)!r}, prog_name='dask hpc')"


def test_studies_are_listed_without_matplotlib(repository: Path) -> None:
    found = without("matplotlib", command("study", "--list"), repository)
    assert (found.returncode, found.stderr) == (0, "")
    assert "builtin:five-jobs" in found.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("study", "builtin:five-jobs"),
        ("compare", "builtin:five-jobs", "--policy", "easy", "--policy", "fcfs"),
    ],
)
def test_a_plot_without_matplotlib_is_refused_before_the_runs(
    arguments: tuple[str, ...], repository: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    found = without("matplotlib", command(*arguments, "--plot", str(path)), repository)
    said = f"Error: {path}: a figure needs matplotlib: pip install 'dask-hpc[plot]'\n"
    assert (found.returncode, found.stdout, found.stderr) == (1, "", said)


@pytest.mark.parametrize(
    ("package", "code", "said"),
    [
        ("zarr", "from dask_hpc import metered", "needs Zarr: pip install 'dask-hpc[checkpoint]'"),
        ("matplotlib", "from dask_hpc.sim.study import figure_of", "pip install 'dask-hpc[plot]'"),
        ("matplotlib", "from dask_hpc.sim.study import load_study", ""),
    ],
)
def test_what_needs_an_extra_names_it(package: str, code: str, said: str, repository: Path) -> None:
    found = without(package, code, repository)
    assert (found.returncode == 0) == (not said)
    assert said in (found.stderr.splitlines() or [""])[-1]


def test_a_command_whose_stderr_is_closed_works(repository: Path) -> None:
    closed = "import sys; sys.stderr = None\n"
    code = closed + command("simulate", "builtin:five-jobs", "--policy", "easy", "--json")
    found = without("no_such_package", code, repository)
    assert found.returncode == 0
    assert found.stdout.startswith("{")
