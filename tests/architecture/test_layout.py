"""The shape of the source tree: sizes of files, directions of imports, purity of the policies, words."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Roots of the source, and the longest file (in lines) each may hold unless its docstring gives a reason.
LONGEST = {"dask_hpc": 400, "policies": 400, "widgets": 400, "notebooks": 400, "binder": 400, "tests": 400}
#: How that reason begins.
REASON = "Over 400 lines because "
#: What must not be loaded by importing the policies: cluster, clocks' and processes' libraries.
HEAVY = (
    "dask",
    "distributed",
    "tornado",
    "asyncio",
    "multiprocessing",
    "subprocess",
    "xarray",
    "pandas",
    "psutil",
)
#: Modules through which time, chance, files and processes come in; the registry alone reads files.
IMPURE = {
    "asyncio", "concurrent", "dask", "datetime", "distributed", "io", "logging", "multiprocessing", "os",
    "pickle", "random", "secrets", "shutil", "socket", "subprocess", "sys", "tempfile", "threading", "time",
    "uuid",
}  # fmt: skip
READS_FILES = {"importlib", "pathlib", "yaml", "warnings"}
#: Calls that do the same without an import.
IMPURE_CALLS = {"open", "input", "print", "exec", "eval", "__import__"}


def sources(repository: Path, *roots: str) -> Iterator[Path]:
    for root in roots:
        yield from sorted(
            path for path in (repository / root).rglob("*.py") if "__pycache__" not in path.parts
        )


def environment(repository: Path) -> dict[str, str]:
    roots = [str(repository), str(repository / "policies"), str(repository / "widgets")]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(roots))


@pytest.mark.parametrize("root", LONGEST)
def test_no_file_is_too_long_without_a_reason(repository: Path, root: str) -> None:
    texts = {path: path.read_text() for path in sources(repository, root)}
    assert texts
    long = {path: text for path, text in texts.items() if len(text.splitlines()) > LONGEST[root]}
    assert [
        str(path) for path, text in long.items() if REASON not in (ast.get_docstring(ast.parse(text)) or "")
    ] == []


def test_imports_obey_the_contracts(repository: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as c; c()",
        "--no-cache",
    ]
    done = subprocess.run(
        command, cwd=repository, env=environment(repository), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    assert f"{len(contracts)} kept, 0 broken" in done.stdout


def test_importing_the_policies_loads_no_cluster_library(repository: Path) -> None:
    modules = [
        ".".join(path.relative_to(repository / "policies").with_suffix("").parts)
        for path in sources(repository, "policies")
        # the registry alone looks at entry points, and so may load what they need
        if path.stem not in ("registry", "__init__")
    ]
    assert len(modules) > 5
    code = f"import sys, {', '.join(modules)}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(repository), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_policies_import_and_call_nothing_impure(repository: Path) -> None:
    found = []
    for path in sources(repository, "policies"):
        allowed = READS_FILES if path.stem == "registry" else set()
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Attribute) and node.attr == "random":
                found.append(f"{path.name}:{node.lineno} uses chance")
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in IMPURE_CALLS
            ):
                found.append(f"{path.name}:{node.lineno} calls {node.func.id}")
            wrong = {name.partition(".")[0] for name in names} & (IMPURE | READS_FILES) - allowed
            found += [f"{path.name}:{node.lineno} imports {name}" for name in sorted(wrong)]  # type: ignore[attr-defined]
    assert found == []


def test_nothing_is_unpickled_evaluated_or_loaded_unsafely(repository: Path) -> None:
    wrong = re.compile(
        r"\b(pickle|cloudpickle|marshal|shelve)\.loads?\(|yaml\.(load|unsafe_load|full_load)\(|shell=True|os\.system\("
        r"|(?<![\w.])(eval|exec)\("
    )
    found = [
        f"{path}:{number}"
        for path in sources(repository, "dask_hpc", "policies", "widgets")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if wrong.search(line)
    ]
    assert found == []


def test_no_text_says_that_something_is_left_to_do(repository: Path) -> None:
    # spelled apart, so that this file does not find itself
    words = ["TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error"]
    found = [
        f"{path}:{number}"
        for path in sources(repository, *LONGEST)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if any(re.search(rf"\b{word}\b", line) for word in words)
    ]
    assert found == []


def test_no_text_names_a_home_or_a_machine(repository: Path) -> None:
    places = re.compile(r"(?<![\w.])/(home|root|Users)/\w|/wo" + r"rk/(main|shared|venv)")
    files = [*sources(repository, *LONGEST)]
    files += [path for depth in ("", "*/", "*/*/") for path in repository.glob(f"{depth}*.md")]
    files += [repository / name for name in ("Makefile", "pyproject.toml", ".ci/run")]
    found = [
        f"{path}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if places.search(line)
    ]
    assert found == []


def test_every_module_says_what_it_is(repository: Path) -> None:
    silent = [
        str(path)
        for path in sources(repository, "dask_hpc", "policies", "widgets")
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


def test_python_packages_are_typed(repository: Path) -> None:
    for package in ("dask_hpc", "policies/dask_hpc_policies", "widgets/dask_hpc_widgets"):
        assert (repository / package / "py.typed").is_file()
